// Steps that leave a record, and what stays of their differences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/writer.hpp"

namespace twinrun {

// Steps leave, and what remains of their differences is folded into few files: bytes that remaining steps need stay, all others
// go. Readers may be at work; another process that writes to the record is waited for, as HistoryWriter::open does.
struct CompactOptions {
    std::vector<std::int64_t> drop;  // steps
    std::uint64_t keep_last = 0;     // and all but so many of the newest; 0: none
    bool forget_missing =
        false;  // records against this one that are not there any more were removed, not moved
    int threads = 1;
};
struct CompactReport {
    std::uint64_t dropped_steps = 0;
    std::uint64_t bytes_before = 0;  // of all differences
    std::uint64_t bytes_after = 0;
};
Result<CompactReport> compact_record(FileSystem& system, const std::string& path,
                                     const CompactOptions& options);

}  // namespace twinrun
