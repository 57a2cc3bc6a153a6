// Residues of a step's metadata that are in its record.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "history/record_store.hpp"
#include "history/recorder.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

// The stretch of a metadata file that has its residues (MetadataRest), wherever it is.
struct ResidueBytes {
    const std::byte* bytes = nullptr;
    std::uint64_t size = 0;  // 0: there are none
    int device = kHostMemory;
};

// Adds the residues of a step's metadata to what its difference has: as the second file. No effect
// where there are none. They outlive `image`.
void add_residues(RecordDirectory& directory, std::vector<ImageSegment>& image, std::uint32_t rank,
                  const ResidueBytes& residues);
// The number of the segment that has it; nullopt: the difference has no residues. Errors: damaged:
// the difference has files that no captured step has.
Result<std::optional<std::size_t>> residue_segment(const RecordDirectory& directory,
                                                   const std::string& where);

// Lets `metadata` read its residues from the difference `ordinal` of the record, when they are
// asked for. No effect where they are in the file. Errors of reading them: those of RecordStore;
// damaged: they are those of another step.
void read_residues_from(std::shared_ptr<RecordStore> record, std::uint32_t ordinal, MetadataFile& metadata);

}  // namespace twinrun
