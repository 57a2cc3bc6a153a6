// Writes the metadata file that a record stores for a captured step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "history/captured_step.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Each function writes the file `path`, syncs it (but not its folder), and returns its bytes.

// A copy of the step's metadata.
Result<std::vector<std::byte>> copy_metadata(FileSystem& system, const std::string& path,
                                             const CapturedStep& step);
// For data that was part of a file of several ranks: the same digests and checksums, with extents
// in a file of the rank.
Result<std::vector<std::byte>> own_metadata(FileSystem& system, const std::string& path,
                                            const CapturedStep& step, std::uint32_t rank);
// For a bounded record, whose data differs from the captured data within the tolerance: the same
// fields, with new digests and checksums of `data`.
Result<std::vector<std::byte>> remake_metadata(FileSystem& system, const std::string& path,
                                               const CapturedStep& step, std::uint32_t rank,
                                               const std::vector<std::byte>& data);

}  // namespace twinrun
