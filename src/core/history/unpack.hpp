// Steps of a record back into files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "history/record_store.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Gives steps of a record back, every byte checked: a history of captures as a history in `target`
// (made, or appended to), other programs' files under their names in target/step-N, or in `target`
// itself if `flat` (then one step). Whatever is there stays: it is an error where it has the name
// of a file, and a link in `target` is never followed. memory: RecordStore::stream. Returns the
// paths that were made.
Result<std::vector<std::string>> unpack_steps(FileSystem& system, const std::string& record,
                                              const std::vector<std::int64_t>& steps,
                                              const std::string& target, bool flat, int threads,
                                              std::uint64_t memory = kRecordMemory);

// Writes bytes [offset, offset + bytes) of a segment of a step to a new file at `path`. Error where
// something is there.
Result<> write_part(FileSystem& system, RecordStore& store, std::int64_t step, const std::string& segment,
                    std::uint64_t offset, std::uint64_t bytes, const std::string& path, std::uint64_t memory);

}  // namespace twinrun
