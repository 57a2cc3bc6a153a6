// Header and directory of a metadata file from any bytes: no read outside them, and what is
// accepted is encoded again to the same bytes. Checksums are left out, or they would be all that is
// tested.
#include <algorithm>
#include <initializer_list>
#include <vector>

#include "input.hpp"
#include "metadata/metadata.hpp"

using namespace twinrun;

namespace {

// The two reserved bytes of each field of version 2: before three numbers and a place.
void forget_reserved(const Directory& directory, std::vector<std::byte>& body) {
    if (directory.version < 2) return;
    Directory part;
    part.version = directory.version;
    part.data_files = directory.data_files;
    std::size_t end = encode_directory(part, 0).size() - kHeaderBytes;
    part.data_files.clear();
    const std::size_t without = encode_directory(part, 0).size();
    for (const FieldMetadata& field : directory.fields) {
        part.fields = {field};
        end += encode_directory(part, 0).size() - without;
        std::fill_n(body.begin() + static_cast<std::ptrdiff_t>(end - 7 * 8 - 2), 2, std::byte{0});
    }
}

void check_directory(std::span<const std::byte> body, std::uint64_t file_bytes, std::uint32_t version) {
    const auto decoded = decode_directory(body, file_bytes, version);
    if (!decoded.ok()) {
        fuzz::require(decoded.error().code == ErrorCode::damaged);
        return;
    }
    const Directory& directory = *decoded.operator->();
    std::vector<std::byte> expected(body.begin(), body.end());
    std::fill_n(expected.begin() + 20, 4, std::byte{0});  // reserved: read and forgotten
    forget_reserved(directory, expected);
    const auto again = encode_directory(directory, file_bytes);
    fuzz::require(std::equal(expected.begin(), expected.end(), again.begin() + kHeaderBytes, again.end()));
    const auto header = decode_header(again, file_bytes);
    fuzz::require(header.ok() || kHeaderBytes + body.size() > file_bytes);
    // What the layers above compute from an accepted directory.
    for (const FieldMetadata& field : directory.fields) {
        std::uint64_t covered = 0;
        for (const Extent& e : field.extents)
            covered += e.count;
        fuzz::require(field.extents.empty() || covered == field.items());
        fuzz::require(field.data_bytes() / item_bytes(field.dtype) == field.items());
        fuzz::require(field.chunks() <= field.tree().nodes());
        const SumsFacts& sums = field.sums;
        fuzz::require(sums.kind != SumsKind::none || sums == SumsFacts{});
        fuzz::require(sums.kind == SumsKind::none || directory.version >= 2);
        fuzz::require(sums.kind != SumsKind::place || field.global_shape.size() == field.shape.size());
        fuzz::require(sums.kind != SumsKind::ids || (!field.key.empty() && !field.shape.empty()));
        if (sums.kind == SumsKind::ids && field.scalars() != 0) {
            const std::uint64_t row = field.scalars() / field.shape[0];
            fuzz::require(row <= std::uint64_t{field.chunking().chunk_scalars} << sums.height);
            fuzz::require(sums.largest_id < kIndexLimit / row);
        }
        fuzz::require(sums.buckets <= field.scalars());
        fuzz::require(field.section_bytes(Section::sums) / kPartialSumBytes == sums.buckets);
        fuzz::require(sums.height <= 8 &&
                      std::uint64_t{field.settings.chunk_bytes} << sums.height <= kLargestChunk);
        for (std::size_t s = 0; s < kSections; ++s) {
            const SectionPlace& place = field.sections[s];
            fuzz::require(place.offset + place.length <= file_bytes);
            fuzz::require(place.length == 0 || place.length == field.section_bytes(static_cast<Section>(s)));
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto header = decode_header(bytes.first(std::min(size, kHeaderBytes)), size);
    if (header.ok()) fuzz::require(header->directory_bytes <= size - kHeaderBytes);
    if (size < kHeaderBytes) return 0;
    // The length that the header names where it lies inside, checksum or not, so that a saved file
    // is taken as it is.
    std::uint64_t length = 0;
    std::memcpy(&length, data + 24, 8);
    length = std::min<std::uint64_t>(length, size - kHeaderBytes);
    const std::vector<std::byte> body(bytes.begin() + kHeaderBytes,
                                      bytes.begin() + static_cast<std::ptrdiff_t>(kHeaderBytes + length));
    for (const std::uint32_t version : {1U, 2U}) {
        check_directory(body, size, version);
        check_directory(body, 1ULL << 62, version);
    }
    return 0;
}
