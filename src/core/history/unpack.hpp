// Restores steps of a record as files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "history/record_store.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Restores steps of a record, and checks every byte. Captured steps become steps of a history in
// `target`, which is made or appended to. Files of other programs get their names in target/step-N
// or, if `flat` (one step only), in `target` itself. Existing files never change: one that has the
// name of a file to restore is an error, and links in `target` are not followed. memory: as for
// RecordStore::stream(). Returns the paths of the files that were made.
Result<std::vector<std::string>> unpack_steps(FileSystem& system, const std::string& record,
                                              const std::vector<std::int64_t>& steps,
                                              const std::string& target, bool flat, int threads,
                                              std::uint64_t memory = kRecordMemory);

// Writes bytes [offset, offset + bytes) of a segment of a step to a new file at `path`. Error if
// something has this path already.
Result<> write_part(FileSystem& system, RecordStore& store, std::int64_t step, const std::string& segment,
                    std::uint64_t offset, std::uint64_t bytes, const std::string& path, std::uint64_t memory);

}  // namespace twinrun
