// Writes the metadata file that a record stores for a captured step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "history/captured_step.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Each function writes the file `path`, and syncs it, but not its folder.
struct PackedMetadata {
    std::uint64_t bytes = 0;  // of the file
    std::uint64_t header_checksum = 0;
    MetadataRest residues;  // which are not in the file; empty: all are
};

// The step's digests, checksums and residues; residues not in the file, for the record keeps them.
// Data that was part of a file of several ranks gets extents in a file of the rank.
Result<PackedMetadata> pack_metadata(FileSystem& system, const std::string& path, const CapturedStep& step,
                                     std::uint32_t rank);
// For a bounded record, whose data differs from the captured data within the tolerance: the same
// fields, with new digests, checksums and residues of `data`, in the file.
Result<PackedMetadata> remake_metadata(FileSystem& system, const std::string& path, const CapturedStep& step,
                                       std::uint32_t rank, const std::vector<std::byte>& data);

}  // namespace twinrun
