// The metadata file that a record keeps of a captured step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "history/captured_step.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Each writes the file `path`, syncs it (but not its folder), and returns its bytes.

// The step's metadata as it is.
Result<std::vector<std::byte>> copy_metadata(FileSystem& system, const std::string& path,
                                             const CapturedStep& step);
// For data that was part of a file of several ranks: the same digests and checksums, other extents.
Result<std::vector<std::byte>> own_metadata(FileSystem& system, const std::string& path,
                                            const CapturedStep& step, std::uint32_t rank);
// For `data` that differs from what was captured, within its bounds: the same fields, with digests
// and checksums of `data`.
Result<std::vector<std::byte>> remake_metadata(FileSystem& system, const std::string& path,
                                               const CapturedStep& step, std::uint32_t rank,
                                               const std::vector<std::byte>& data);

}  // namespace twinrun
