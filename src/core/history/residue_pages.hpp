// Checksums of residues that are on a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "metadata/metadata.hpp"
#include "sketch/started_sketches.hpp"

namespace twinrun {

// For each field XXH3 of each page of its residues, as the metadata file has them. Whole pages are
// hashed on the device; other ends of residues come to the host. Waits for it. fields: those that
// the residues are of. Thread-safe. Errors: of the device; out_of_memory.
Result<std::vector<std::vector<std::uint64_t>>> residue_checksums(
    const DeviceResidues& residues, std::span<const FieldMetadata* const> fields);

}  // namespace twinrun
