// Golden files: metadata without the room that metadata of large fields leaves for direct reads, and the constants of digests.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "digest/coefficients.hpp"
#include "digest/field61.hpp"
#include "owned_array.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// The same fields with nothing between their sections, no data files, and no hint that depends on how the data was read:
// equal data gives equal bytes, whatever machine made them.
Result<std::vector<std::byte>> compact(MetadataFile& file) {
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
    directory.version = 1;
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
}

nb::object digest_weights(std::size_t scalars, std::size_t block_scalars) {
    if (block_scalars == 0 || block_scalars > kLargestBlock || scalars > kLargestChunk)
        raise({ErrorCode::invalid_argument, "blocks or chunks of more scalars than there are"});
    std::vector<std::uint64_t> weights(scalars);
    const std::size_t blocks = divide_up(scalars, block_scalars);
    for (std::size_t i = 0; i < scalars; ++i) {
        const std::uint64_t factor = power61(kRho, blocks - 1 - i / block_scalars);
        weights[i] = multiply61(coefficient(i % block_scalars), factor);
    }
    return owned_array(std::move(weights));
}

}  // namespace

void define_golden(nb::module_& m) {
    m.def(
        "compact_metadata",
        [](const PyMetadata& metadata) {
            const auto run = [&] {
                const nb::gil_scoped_release unlocked;
                return compact(*metadata.file);
            };
            const std::vector<std::byte> bytes = take(run());
            return nb::bytes(bytes.data(), bytes.size());
        },
        "metadata"_a,
        "The metadata file as small as the format allows, without data files and checksums of data.");
    // Of digests (spec/digest.md), for what is known of values that are at hand.
    m.attr("PRIME") = kPrime;
    m.attr("TOKEN_LIMIT") = kTokenLimit;
    m.attr("SMALLEST_SUM") = kSmallestSum;
    m.def("digest_weights", &digest_weights, "scalars"_a, "block_scalars"_a,
          "By what a chunk's digest multiplies each of its scalars' values, modulo PRIME.");
}

}  // namespace twinrun
