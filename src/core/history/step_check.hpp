// Checks whether a step's files on storage have the bytes that were written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/checksum.hpp"
#include "history/history.hpp"
#include "metadata/metadata.hpp"
#include "record/delta_file.hpp"

namespace twinrun {

// Checks the bytes of a data file, which are given in order, against the data sums of their fields.
// Bytes that belong to no field must be zero. Not thread-safe.
class DataCheck {
   public:
    // metadata outlives this. Errors: those of reading it.
    static Result<DataCheck> create(MetadataFile& metadata);
    // Checks the next bytes, from `offset` in the file on. Error: damaged.
    Result<> operator()(std::uint64_t offset, std::span<const std::byte> bytes);
    // Whether all bytes of all fields were given.
    [[nodiscard]] bool complete() const { return at_ == parts_.size(); }

   private:
    // The bytes of one data sum, or of a field without sums.
    struct Part {
        std::uint64_t begin;
        std::uint64_t end;
        std::optional<std::uint64_t> sum;  // nullopt: the field has no data sums
        std::size_t field;
    };
    static Result<> check_padding(std::uint64_t offset, std::span<const std::byte> bytes);
    explicit DataCheck(MetadataFile& metadata) : metadata_(&metadata) {}
    MetadataFile* metadata_;
    std::vector<Part> parts_;
    std::size_t at_ = 0;
    std::unique_ptr<StreamingChecksum> sum_ = std::make_unique<StreamingChecksum>();
};

// Reads all blocks of a difference, which checks their checksums.
Result<> check_blocks(const DifferenceFile& file);

// Whether a rank's files of a step in the history at `path` are those that its journal entry
// describes: sizes, and all bytes that have a checksum. Of a step in a record only the metadata is
// checked; is_intact_difference() checks the rest.
bool is_intact(const std::string& path, const RankStep& entry);
// Whether the file at `path` is the undamaged difference with this ordinal.
bool is_intact_difference(const DifferencePlace& place, std::uint32_t ordinal);

// Ordinals of the other differences that this one needs: its base, and those whose chunks it uses.
// Only ordinals from `first` on.
std::set<std::uint32_t> needed_by(const Difference& difference, std::uint32_t first);

}  // namespace twinrun
