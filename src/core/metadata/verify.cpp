#include "metadata/verify.hpp"

#include <algorithm>
#include <new>

#include "base/checked.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kPartBytes = 1 << 20;  // of what is read at a time: whole pages

Result<> verify_sections(MetadataFile& file, std::span<std::byte> part) {
    const Directory& directory = file.directory();
    for (std::size_t f = 0; f < directory.fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            const std::uint64_t length = directory.fields[f].place(section).length;
            if (section == Section::residues && !file.has_residues()) continue;
            for (std::uint64_t at = 0; at < length; at += part.size()) {
                const auto bytes = part.first(std::min<std::uint64_t>(part.size(), length - at));
                TWR_CHECK(file.read(f, section, at, bytes));
            }
        }
    }
    return success();
}

// Bytes between header, directory, sections and their checksums must be zero: others are damage.
Result<> verify_padding(MetadataFile& file, std::span<std::byte> part) {
    const Directory& directory = file.directory();
    std::vector<Range> used{{0, encode_directory(directory, 0).size()}};
    for (const FieldMetadata& field : directory.fields) {
        for (const SectionPlace& place : field.sections) {
            used.push_back({place.offset, place.offset + place.length});
            used.push_back({place.sums_offset, place.sums_offset + divide_up(place.length, kPageBytes) * 8});
        }
    }
    used.push_back(file.elsewhere());  // which the record checks
    used.push_back({file.whole_bytes(), file.whole_bytes()});
    std::sort(used.begin(), used.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::uint64_t at = 0;
    for (const Range& range : used) {
        while (at < range.begin) {
            const auto bytes = part.first(std::min<std::uint64_t>(part.size(), range.begin - at));
            const MetadataFile::Place place = file.place_of(at);
            TWR_CHECK(place.file->read_at(place.offset, bytes));
            if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) {
                return Error{ErrorCode::damaged, file.path() + ": damaged metadata: its padding is not zero"};
            }
            at += bytes.size();
        }
        at = std::max(at, range.end);
    }
    return success();
}

}  // namespace

Result<> verify(MetadataFile& file) try {
    std::vector<std::byte> part(kPartBytes);
    TWR_CHECK(verify_sections(file, part));
    return verify_padding(file, part);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, file.path() + ": not enough memory to check it"};
}

}  // namespace twinrun
