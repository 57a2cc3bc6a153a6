// Collective transfers of one file: all ranks' bytes through aggregation, and what else they agree
// on.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregate/hdf5/config.hpp"
#include "aggregate/hdf5/store.hpp"
#include "aggregate/mpi/aggregate.hpp"
#include "aggregate/plan/last_transfer.hpp"
#include "base/result.hpp"

namespace twinrun::hdf5 {

using aggregation::Mode;
using aggregation::Piece;

// What one rank brings to a collective transfer.
struct Part {
    Mode mode = Mode::read;
    // Its bytes, in ascending order of their places; memory counts from `base` on.
    std::vector<ArrayPart> parts;
    std::byte* base = nullptr;
    // In place of `parts`, where they are no such list: this rank moves them by itself.
    std::vector<Piece> pieces;
    Result<> checked = success();  // an error of this rank
};

class Collective {
   public:
    // comm must stay as long as this object.
    Collective(MPI_Comm comm, Config config, std::string name);
    ~Collective();
    Collective(const Collective&) = delete;
    Collective& operator=(const Collective&) = delete;

    // A rank did not come in time, or died: no collective call of MPI may be made any more.
    [[nodiscard]] bool broken() const;

    // [collective] Errors: of this rank or of another; ranks write the same bytes.
    Result<> move(Store& store, const Part& part);
    // [collective] Waits for all. If mine is success on all ranks, `by_one` runs on rank 0; the
    // others get what it puts into the payload.
    Result<aggregation::Outcome> agree(Result<> mine,
                                       std::function<Result<>(aggregation::Outcome&)> by_one = {});

   private:
    Result<> start();
    Result<> plan(const Part& part, const aggregation::Outcome& agreed);
    Result<> look_at_storage(const Store& store, aggregation::Outcome& outcome);
    void put_figures(const Part& part, std::span<double> figures) const;
    void report() const;

    MPI_Comm comm_;
    Config config_;
    std::string name_;
    twr_aggregate* aggregate_ = nullptr;
    std::optional<aggregation::StorageTraits> traits_;  // on rank 0, since the first transfer
    LastTransfer last_;
    // For TWINRUN_HDF5_REPORT.
    std::uint64_t aggregated_ = 0;
    std::uint64_t alone_ = 0;
    std::uint64_t plans_ = 0;
};

// Moves a rank's bytes without the others.
Result<> move_alone(Store& store, const Part& part);

}  // namespace twinrun::hdf5
