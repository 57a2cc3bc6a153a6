// Whether all steps of a record can be restored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "history/record_store.hpp"

namespace twinrun {

struct RecordProblem {
    std::vector<std::int64_t> steps;  // that cannot be restored because of it; may be empty
    std::string what;
};

// Which steps of a rank cannot be restored, and why. Reads every byte that steps need. A damaged
// file of differences is one problem, with all steps that need it. memory: as for
// RecordStore::stream().
Result<std::vector<RecordProblem>> check_record(const std::string& path, std::uint32_t rank, int threads,
                                                std::uint64_t memory = kRecordMemory);

}  // namespace twinrun
