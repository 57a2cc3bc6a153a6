// Whether files of a step on storage are those that were written.
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

// Checks data bytes that come in order against the sums of the fields that they belong to; bytes of
// no field must be zero.
class DataCheck {
   public:
    static Result<DataCheck> create(MetadataFile& metadata);
    Result<> operator()(std::uint64_t offset, std::span<const std::byte> bytes);
    [[nodiscard]] bool complete() const { return at_ == parts_.size(); }

   private:
    struct Part {
        std::uint64_t begin;
        std::uint64_t end;
        std::optional<std::uint64_t> sum;  // none: its metadata has no sums
        std::size_t field;
    };
    static Result<> check_padding(std::uint64_t offset, std::span<const std::byte> bytes);
    explicit DataCheck(MetadataFile& metadata) : metadata_(&metadata) {}
    MetadataFile* metadata_;
    std::vector<Part> parts_;
    std::size_t at_ = 0;
    std::unique_ptr<StreamingChecksum> sum_ = std::make_unique<StreamingChecksum>();
};

// Reads all blocks of a difference, which checks them.
Result<> check_blocks(const DifferenceFile& file);

// Whether a rank's files of a step are those that the journal at `path` names, to the last byte
// that a checksum covers. Of a difference only the metadata is checked: is_intact_difference().
bool is_intact(const std::string& path, const RankStep& entry);
bool is_intact_difference(const std::string& path, std::uint32_t ordinal);

// Ordinals, from `first` on, of the differences that this one has chunks from.
std::set<std::uint32_t> needed_by(const Difference& difference, std::uint32_t first);

}  // namespace twinrun
