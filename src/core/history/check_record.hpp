// Whether all of a record can be given back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "history/record_store.hpp"

namespace twinrun {

struct RecordProblem {
    std::vector<std::int64_t> steps;
    std::string what;
};

// Which steps of a rank cannot be given back, and why: every byte that they need is read. A damaged
// file of differences is one problem, with all steps that need it. memory: RecordStore::stream.
Result<std::vector<RecordProblem>> check_record(const std::string& path, std::uint32_t rank, int threads,
                                                std::uint64_t memory = kRecordMemory);

}  // namespace twinrun
