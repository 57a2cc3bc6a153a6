#include "history/captured_step.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <span>
#include <utility>

#include "base/checksum.hpp"
#include "history/record_residues.hpp"
#include "metadata/verify.hpp"
#include "sketch/build.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

// The whole metadata file, with residues that lie elsewhere. All of it is checked.
Result<std::vector<std::byte>> whole_metadata(MetadataFile& metadata) {
    if (metadata.whole_bytes() > kLargestMetadata)
        return Error{ErrorCode::damaged, metadata.path() + ": larger than any metadata"};
    TWR_CHECK(verify(metadata));  // first: residues of another size are found before there is room for them
    std::vector<std::byte> bytes(metadata.whole_bytes());
    const std::span<std::byte> all(bytes);
    const Range& apart = metadata.elsewhere();
    for (const Range& part : {Range{0, apart.begin}, apart, Range{apart.end, all.size()}}) {
        if (part.size() == 0) continue;
        const MetadataFile::Place place = metadata.place_of(part.begin);
        TWR_CHECK(place.file->read_at(place.offset, all.subspan(part.begin, part.size())));
    }
    return bytes;
}

// Checks the bytes of fields against their checksums, and that bytes between fields are zero.
Result<> check_data(const CapturedStep& step, const std::string& where) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> covered;
    for (std::size_t f = 0; f < step.metadata->directory().fields.size(); ++f) {
        const FieldMetadata& field = step.metadata->directory().fields[f];
        if (field.items() == 0) continue;
        const std::size_t item = item_bytes(field.dtype);
        if (field.extents.size() != 1 || field.extents[0].stride != item ||
            field.place(Section::data_sums).length == 0)
            return Error{ErrorCode::not_found, where + ": field '" + field.name + "': its data was not kept"};
        if (field.extents[0].offset < step.origin)
            return Error{ErrorCode::damaged,
                         where + ": damaged: field '" + field.name + "' lies before its rank's part"};
        const std::uint64_t begin = field.extents[0].offset - step.origin;
        if (begin > step.data.size() || field.data_bytes() > step.data.size() - begin)
            return Error{ErrorCode::damaged, where + ": damaged: shorter than its fields"};
        covered.emplace_back(begin, begin + field.data_bytes());
        const FieldSlices slices(field);
        std::vector<std::uint64_t> sums(slices.slices());
        TWR_CHECK(step.metadata->read(f, Section::data_sums, 0, std::as_writable_bytes(std::span(sums))));
        for (std::uint64_t s = 0; s < slices.slices(); ++s) {
            std::uint64_t sum = sums[s];
            if constexpr (std::endian::native == std::endian::big) sum = __builtin_bswap64(sum);
            if (xxh3(std::span(step.data).subspan(begin + slices.first_item(s) * item,
                                                  slices.items(s) * item)) != sum) {
                return Error{ErrorCode::damaged, where + ": damaged: field '" + field.name +
                                                     "', items from " + std::to_string(slices.first_item(s)) +
                                                     " on"};
            }
        }
    }
    std::sort(covered.begin(), covered.end());
    std::uint64_t at = 0;
    covered.emplace_back(step.data.size(), step.data.size());
    for (const auto& [begin, end] : covered) {
        for (; at < begin; ++at) {
            if (step.data[at] != std::byte{0}) {
                return Error{ErrorCode::damaged, where + ": damaged: byte " + std::to_string(at) +
                                                     " belongs to no field, and is not zero"};
            }
        }
        at = std::max(at, end);
    }
    return success();
}

}  // namespace

Result<CapturedStep> read_captured(const std::string& source, const std::string& folder,
                                   const RankFiles& files, const std::shared_ptr<RecordStore>& store,
                                   std::int64_t number) {
    CapturedStep step;
    const std::string name = (fs::path(source) / folder / files.metadata).string();
    TWR_TRY(step.metadata, MetadataFile::open(name));
    if (step.metadata->header_checksum() != files.header_checksum ||
        step.metadata->file().size() != files.metadata_bytes)
        return Error{ErrorCode::damaged, name + ": is not the file that the journal names"};
    if (store != nullptr) read_residues_from(store, files.difference, *step.metadata);
    if (!step.metadata->has_residues())
        return Error{ErrorCode::damaged, name + ": damaged: truncated: its residues are missing"};
    TWR_TRY(step.metadata_bytes, whole_metadata(*step.metadata));
    const std::string data = (fs::path(source) / folder / files.data).string();
    if (files.shared) {
        TWR_TRY(const auto file, InputFile::open(data));
        if (file->size() != files.file_bytes) {
            return Error{ErrorCode::damaged, data + ": damaged: has " + std::to_string(file->size()) +
                                                 " bytes, and the journal says " +
                                                 std::to_string(files.file_bytes)};
        }
        step.shared = true;
        step.origin = files.offset;
        // Does not exceed the file: checked when the journal was read.
        step.data.resize(files.data_bytes);
        TWR_CHECK(file->read_at(files.offset, step.data));
    } else if (store == nullptr) {
        TWR_TRY(step.data, read_whole_file(data, std::uint64_t{1} << 62));
    } else {
        TWR_TRY(const StepMap map, store->map(number));
        if (map.directory.files.empty()) return Error{ErrorCode::damaged, data + ": is not one file of data"};
        TWR_TRY(const auto residues, residue_segment(map.directory, data));
        step.data.resize(map.directory.files[0].bytes);
        for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
            if (s == residues) continue;
            const RecordSegment& segment = map.directory.segments[s];
            TWR_CHECK(
                store->read_segment(map, s, std::span(step.data).subspan(segment.offset, segment.bytes)));
        }
    }
    TWR_CHECK(check_data(step, data));
    return step;
}

}  // namespace twinrun
