// What all transfers have in common: the checks before, the agreement to begin, the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aggregate/mpi/aggregate.hpp"
#include "aggregate/mpi/pipeline.hpp"
#include "aggregate/mpi/storage.hpp"

namespace twinrun::aggregation {

// Which bytes a transfer moves, of which ranks.
struct Subject {
    Plan& plan;
    const FileGroup& group;
    const SubFiles* files = nullptr;             // several that are read as one; null: one file
    const std::vector<RankSet>* sets = nullptr;  // where the items lie in memory; null: as declared
    bool plans_again = true;                     // false: where that would need calls of MPI
};

// [collective] Writes. mine: an error of this rank.
Result<> write_subject(twr_aggregate& a, const Subject& subject, const char* path, void* const* data,
                       Result<> mine);
// [collective] The plan suits the storage that a new file at this path will lie on.
Result<> suit_storage(twr_aggregate& a, const char* path, Result<> mine);

Result<> check_arguments(const twr_aggregate& a, const char* path, const void* const* data);
Result<> check_write(const twr_aggregate& a, const char* path, const void* const* data);

// [collective] Makes the pipeline of a transfer and agrees with all ranks to begin. Plans again if
// the storage has other traits than the plan assumed. mine: an error of this rank.
Result<std::unique_ptr<Pipeline>> begin(twr_aggregate& a, const Subject& subject, Mode mode,
                                        void* const* data, const char* path, Result<> mine,
                                        const std::string& looked_at);

// [collective] Runs a read that has begun, from `file`. start: of the read.
Result<> finish_read(twr_aggregate& a, Pipeline& pipeline, const std::string& file, const char* path,
                     Clock::time_point start);

}  // namespace twinrun::aggregation
