#include "metadata/compact.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/checked.hpp"
#include "base/checksum.hpp"

namespace twinrun {

Result<std::vector<std::byte>> compact_metadata(MetadataFile& file) try {
    Directory directory = file.directory();
    directory.data_files.clear();
    std::uint64_t end = 0;
    for (FieldMetadata& field : directory.fields) {
        field.extents.clear();
        field.format.clear();
        field.largest_sampled = 0;
        field.key.clear();
        field.sums = {};
        field.sections[static_cast<std::size_t>(Section::sums)] = {};
    }
    // Parts are no reason for version 2 here: nothing of it is kept.
    const std::uint32_t version = required_version(directory.fields);
    directory.version = version < 3 ? 1 : version;
    end = round_up(encode_directory(directory, 0).size(), 8);
    for (FieldMetadata& field : directory.fields) {
        for (std::size_t s = 0; s < kSections; ++s) {
            SectionPlace& place = field.sections[s];
            if (static_cast<Section>(s) == Section::data_sums) place.length = 0;
            place.offset = end;
            place.sums_offset = round_up(end + place.length, 8);
            end = place.sums_offset + divide_up(place.length, kPageBytes) * 8;
        }
    }
    std::vector<std::byte> bytes(end);
    for (std::size_t f = 0; f < directory.fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            SectionPlace& place = directory.fields[f].sections[s];
            const auto section = std::span(bytes).subspan(place.offset, place.length);
            TWR_CHECK(file.read(f, static_cast<Section>(s), 0, section));
            std::vector<std::uint64_t> sums;
            for (std::size_t at = 0; at < section.size(); at += kPageBytes) {
                std::uint64_t sum = xxh3(section.subspan(at, std::min(kPageBytes, section.size() - at)));
                if constexpr (std::endian::native == std::endian::big) sum = __builtin_bswap64(sum);
                sums.push_back(sum);
            }
            const auto of_pages = std::as_bytes(std::span(sums));
            place.sums_checksum = xxh3(of_pages);
            if (!of_pages.empty())
                std::memcpy(bytes.data() + place.sums_offset, of_pages.data(), of_pages.size());
        }
    }
    const std::vector<std::byte> head = encode_directory(directory, end);
    std::memcpy(bytes.data(), head.data(), head.size());
    TWR_TRY(const HeaderFacts facts, decode_header(head, end));
    TWR_CHECK(
        decode_directory(std::span(head).subspan(kHeaderBytes, facts.directory_bytes), end, facts.version));
    return bytes;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, file.path() + ": not enough memory to make it compact"};
}

}  // namespace twinrun
