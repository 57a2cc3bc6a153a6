// The aggregate behind the C interface, and the operations on it. The functions return what
// the C interface returns as a code; those marked [collective] are called by all ranks, in the same
// order.
#pragma once

#include <mpi.h>
#include <twinrun/aggregate.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "aggregate/mpi/plan.hpp"
#include "aggregate/mpi/settings.hpp"
#include "aggregate/mpi/team.hpp"
#include "aggregate/topology/topology.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

// A write or a read that succeeded, for reports.
struct Transfer {
    std::string path;
    Figures figures;
    double rename_seconds = 0;
};
// Which figure is which in Transfer::figures.
enum Sum : std::size_t { kShared, kRemote, kDirect, kWindows };
enum Largest : std::size_t { kGather, kDirectSeconds, kStorage, kWait, kSync, kTotal };

[[nodiscard]] inline Error refuse(const std::string& what) {
    return Error{ErrorCode::invalid_argument, what};
}

}  // namespace twinrun::aggregation

struct twr_aggregate_settings {
    twinrun::aggregation::Settings values;
};

struct twr_aggregate {
    twinrun::aggregation::Settings settings;
    std::unique_ptr<twinrun::aggregation::Team> team;
    twinrun::aggregation::FileGroup group;
    std::shared_ptr<const twinrun::Topology> topology;
    std::unique_ptr<twinrun::aggregation::Plan> plan;
    std::uint64_t seed_of_names = 0;  // of partial files: rank 0's, the same on all
    std::uint64_t writes = 0;
    std::optional<twinrun::aggregation::Transfer> written;
    std::optional<twinrun::aggregation::Transfer> read;
    std::string report;
};

namespace twinrun::aggregation {

// ---- creation.cpp ----

// [collective] given(): the settings, as this rank has them. Their error becomes one of all ranks.
Result<> create(twr_aggregate** aggregate, MPI_Comm comm, const std::function<Result<Settings>()>& given);
// [collective] null: nothing. Where MPI has ended or the team is broken, what is MPI's stays
// allocated.
void release(twr_aggregate* aggregate);

// ---- declaration.cpp ----

// [collective]
Result<> declare(twr_aggregate* a, const twr_aggregate_variable* variables, int count);
Result<> declare_records(twr_aggregate* a, const std::uint64_t* item_bytes, int count, std::uint64_t items,
                         int layout, std::uint64_t offset);
Result<> declare_blocks(twr_aggregate* a, const twr_aggregate_block* blocks, int count);
Result<> declare_types(twr_aggregate* a, const twr_aggregate_typed* types, int count);

// ---- transfer.cpp ----

// [collective] path: the name that the caller gave, without a sub-file's number.
Result<> write(twr_aggregate* a, const char* path, const void* const* data);
Result<> read(twr_aggregate* a, const char* path, void* const* data);
// [collective] Moves the declared bytes of a file that all ranks have open; a write leaves all
// other bytes of it alone. For other libraries of this house. The plan must know the storage's
// traits already (Plan::adapt), and the file must have the bytes that are read.
Result<> move(twr_aggregate& a, Mode mode, const OpenFile& file, void* const* data);

// ---- report.cpp ----

// verb: "written" or "read", for the error where there was no such transfer.
Result<> fill(const std::optional<Transfer>& done, const char* verb, twr_aggregate_transfer* to);
// As JSON (docs/reference/aggregate.md). Throws std::bad_alloc.
[[nodiscard]] std::string report_of(const twr_aggregate& a);

}  // namespace twinrun::aggregation
