#include "history/record_residues.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "history/names.hpp"

namespace twinrun {

namespace {

// Shared by the threads that read one step's residues.
class ResidueReader {
   public:
    ResidueReader(std::shared_ptr<RecordStore> record, std::uint32_t ordinal, std::uint64_t bytes)
        : record_(std::move(record)), ordinal_(ordinal), bytes_(bytes) {}

    Result<> read(const std::string& name, std::uint64_t offset, std::span<std::byte> to) {
        TWR_CHECK(find(name));
        return record_->read(*map_, segment_, offset, to);
    }

   private:
    // To find them, the difference and its bases are opened: many comparisons need no residues.
    Result<> find(const std::string& name) {
        const std::lock_guard guard(mutex_);
        if (map_) return success();
        const std::string where = name + ": its residues in the record";
        TWR_TRY(const RecordDirectory directory, record_->directory_of_difference(ordinal_));
        TWR_TRY(const auto number, residue_segment(directory, where));
        if (!number || directory.segments[*number].bytes != bytes_)
            return Error{ErrorCode::damaged, where + ": damaged: they are those of another step"};
        TWR_TRY(StepMap map, record_->map_of_difference(ordinal_, directory.segments[*number].name));
        const RecordSegment* const found = map.find(directory.segments[*number].name);
        if (found == nullptr || found->bytes != bytes_)
            return Error{ErrorCode::damaged, where + ": damaged: they are those of another step"};
        segment_ = static_cast<std::size_t>(found - map.directory.segments.data());
        map_ = std::move(map);
        return success();
    }

    std::shared_ptr<RecordStore> record_;
    std::uint32_t ordinal_;
    std::uint64_t bytes_;
    std::mutex mutex_;  // until map_ is there
    std::optional<StepMap> map_;
    std::size_t segment_ = 0;
};

}  // namespace

void add_residues(RecordDirectory& directory, std::vector<ImageSegment>& image, std::uint32_t rank,
                  const ResidueBytes& residues) {
    if (residues.size == 0) return;
    std::string name = rank_name(rank) + ".residues";
    directory.files.push_back({name, residues.size});
    const auto is_taken = [&] {
        return std::any_of(image.begin(), image.end(), [&](const ImageSegment& s) { return s.name == name; });
    };
    while (is_taken())  // by a field
        name += '\'';
    directory.segments.push_back({name, 1, 0, residues.size, 0});
    image.push_back(
        {std::move(name), residues.bytes, residues.size, std::nullopt, DType::u8, residues.device});
}

Result<std::optional<std::size_t>> residue_segment(const RecordDirectory& directory,
                                                   const std::string& where) {
    if (directory.files.size() > 2 || !directory.only_files())
        return Error{ErrorCode::damaged, where + ": damaged: it has files that no captured step has"};
    std::optional<std::size_t> found;
    for (std::size_t s = 0; s < directory.segments.size(); ++s) {
        const RecordSegment& segment = directory.segments[s];
        if (segment.file == 0) continue;
        if (found || segment.offset != 0 || segment.bytes != directory.files[1].bytes)
            return Error{ErrorCode::damaged, where + ": damaged: its residues are not one piece"};
        found = s;
    }
    if (!found && directory.files.size() == 2)
        return Error{ErrorCode::damaged, where + ": damaged: its residues are not one piece"};
    return found;
}

void read_residues_from(std::shared_ptr<RecordStore> record, std::uint32_t ordinal, MetadataFile& metadata) {
    const std::uint64_t bytes = metadata.elsewhere().size();
    if (bytes == 0) return;
    auto reader = std::make_shared<ResidueReader>(std::move(record), ordinal, bytes);
    metadata.take_residues_from(
        InputFile::elsewhere(metadata.path(), bytes,
                             [reader](const std::string& name, std::uint64_t offset,
                                      std::span<std::byte> to) { return reader->read(name, offset, to); }));
}

}  // namespace twinrun
