// Removes steps from a record, and keeps only those parts of their differences that other steps
// need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/writer.hpp"

namespace twinrun {

struct CompactOptions {
    std::vector<std::int64_t> drop;  // steps to remove
    // how many of the newest steps stay; older ones are removed too. 0: all others stay
    std::uint64_t keep_last = 0;
    // Ignore records against this one that do not exist any more: they were deleted, not moved.
    bool forget_missing = false;
    int threads = 1;
};
struct CompactReport {
    std::uint64_t dropped_steps = 0;
    std::uint64_t bytes_before = 0;  // of all files of differences
    std::uint64_t bytes_after = 0;
};
// Removes steps of all ranks. Chunks of their differences that remaining steps need are copied into
// one file for each rank ("folded"); the old files are removed. Other processes may read the record
// meanwhile. Waits for a process that writes it, as HistoryWriter::open() does. Errors: not_found:
// no such step;
// invalid_argument: not a record, or a record against this one needs it (check_children()).
Result<CompactReport> compact_record(FileSystem& system, const std::string& path,
                                     const CompactOptions& options);

}  // namespace twinrun
