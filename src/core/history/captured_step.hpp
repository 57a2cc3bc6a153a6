// One rank's files of a captured step, read back and checked before they are packed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/record_store.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

inline constexpr std::uint64_t kLargestMetadata = std::uint64_t{1} << 40;

// Content of the files, as the run captured them or as a record restores them.
struct CapturedStep {
    std::shared_ptr<MetadataFile> metadata;
    std::vector<std::byte> metadata_bytes;  // of the whole: with residues that are in a record
    std::vector<std::byte> data;
    bool shared = false;       // data is this rank's part of a file of several ranks
    std::uint64_t origin = 0;  // offset of the part in that file; offsets of extents include it
};

// source: the history's folder. store: the record that has the step `number`; null: the history
// stores the data as it was captured. All bytes are checked: those of fields against their
// checksums, those between fields must be zero. Errors: not_found: a field's data is not stored;
// damaged; those of storage.
Result<CapturedStep> read_captured(const std::string& source, const std::string& folder,
                                   const RankFiles& files, const std::shared_ptr<RecordStore>& store,
                                   std::int64_t number);

}  // namespace twinrun
