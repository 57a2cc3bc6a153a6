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
#include <vector>

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

struct StoredRead;
class Background;
class Pipeline;

}  // namespace twinrun::aggregation

struct twr_aggregate_settings {
    twinrun::aggregation::Settings values;
};

struct twr_aggregate {
    twinrun::aggregation::Settings settings;
    std::unique_ptr<twinrun::aggregation::Team> team;
    twinrun::aggregation::FileGroup group;
    // All ranks, as if there were one file: of declarations of a whole file, and of reads of one.
    twinrun::aggregation::FileGroup everyone;
    std::shared_ptr<const twinrun::Topology> topology;
    std::unique_ptr<twinrun::aggregation::Plan> plan;
    // Several files with parts of a whole one: the declarations of all ranks, as they count in the
    // whole. `plan` is then that of this rank's file.
    std::unique_ptr<twinrun::aggregation::Plan> whole;
    std::vector<int> file_of;  // of each rank
    std::uint64_t declarations = 0;
    std::shared_ptr<twinrun::aggregation::StoredRead> stored;  // of the last read of sub-files
    // Since the first write in the background.
    std::shared_ptr<twinrun::aggregation::Background> background;
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

// ---- transfer.cpp, stored_read.cpp ----

// [collective] path: the name that the caller gave, without a sub-file's number.
Result<> write(twr_aggregate* a, const char* path, const void* const* data);
Result<> read(twr_aggregate* a, const char* path, void* const* data);
// [collective] Reads the declared bytes of the whole file from sub-files, whatever their number.
// False: there are none, and nothing was read.
Result<bool> read_stored(twr_aggregate& a, const char* path, void* const* data);
// Moves the declared bytes of a file that all ranks have open, of one variable; a write leaves all
// other bytes of it alone. For other libraries of this house. The plan must know the storage's
// traits already (Plan::adapt), and the file must have the bytes that are read.
class Move {
   public:
    Move(twr_aggregate& a, Mode mode, void* data);
    ~Move();
    Move(const Move&) = delete;
    Move& operator=(const Move&) = delete;

    // What a failure may meet before the first byte moves: of this rank alone.
    Result<> prepare();
    // Of a write that one rank can do for all: puts this rank's bytes where the rank that leads its
    // node takes them from. Whether it is such a write is the same on all ranks that have data.
    [[nodiscard]] bool deposit();
    // Writes what all ranks have deposited. By the rank that leads them, while the others wait.
    Result<> store(const OpenFile& file);
    // [collective] After all ranks have agreed that theirs are prepared.
    Result<> run(const OpenFile& file);

   private:
    twr_aggregate& a_;
    Mode mode_;
    void* data_[1];
    std::unique_ptr<Pipeline> pipeline_;
};
// [collective] Prepares, agrees and runs.
Result<> move(twr_aggregate& a, Mode mode, const OpenFile& file, void* data);

// ---- background.cpp ----

// [collective] Returns when `data` may change. The writes of all calls come one after the other.
Result<> write_begin(twr_aggregate* a, const char* path, const void* const* data);
// Waits for all writes that began. Their first error since the last call.
Result<> wait(twr_aggregate* a);
Result<> test(twr_aggregate* a, int* done);
// Waits for all writes that began, and keeps their error for wait(). Every other function that uses
// the team calls it first.
void settle(const twr_aggregate& a);

// What writes in the background cost this rank.
struct BackgroundFigures {
    bool used = false;
    bool thread = false;  // false: the caller wrote
    std::uint64_t writes = 0;
    std::uint64_t staged_bytes = 0;  // most at a time
    double copy_seconds = 0;
    double wait_seconds = 0;  // for a free buffer, in wait() and in other calls
};
[[nodiscard]] BackgroundFigures background_figures(const twr_aggregate& a);

// ---- report.cpp ----

// verb: "written" or "read", for the error where there was no such transfer.
Result<> fill(const std::optional<Transfer>& done, const char* verb, twr_aggregate_transfer* to);
// As JSON (docs/reference/aggregate.md). Throws std::bad_alloc.
[[nodiscard]] std::string report_of(const twr_aggregate& a);

}  // namespace twinrun::aggregation
