// Header and directory of a metadata file from any bytes: no read outside them, and what is accepted is encoded again to
// the same bytes. Checksums are left out, or they would be all that is tested.
#include <algorithm>

#include "input.hpp"
#include "metadata/metadata.hpp"

using namespace twinrun;

namespace {

void check_directory(std::span<const std::byte> body, std::uint64_t file_bytes) {
    const auto decoded = decode_directory(body, file_bytes);
    if (!decoded.ok()) {
        fuzz::require(decoded.error().code == ErrorCode::damaged);
        return;
    }
    const Directory& directory = *decoded.operator->();
    std::vector<std::byte> expected(body.begin(), body.end());
    std::fill_n(expected.begin() + 20, 4, std::byte{0});  // reserved: read and forgotten
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
    // The length that the header names where it lies inside, checksum or not, so that a saved file is taken as it is.
    std::uint64_t length = 0;
    std::memcpy(&length, data + 24, 8);
    length = std::min<std::uint64_t>(length, size - kHeaderBytes);
    const std::vector<std::byte> body(bytes.begin() + kHeaderBytes,
                                      bytes.begin() + static_cast<std::ptrdiff_t>(kHeaderBytes + length));
    check_directory(body, size);
    check_directory(body, 1ULL << 62);
    return 0;
}
