#include "record/block_packer.hpp"

#include <algorithm>

#include "base/codec.hpp"
#include "record/planes.hpp"

namespace twinrun {

namespace {

// On which ways are tried, which takes several times as long as one. A multiple of all items.
constexpr std::size_t kSample = std::size_t{16} << 10;
// No better than what is there by a 256th is not worth the planes.
constexpr std::size_t kLeastGain = 256;

std::uint32_t share_of(std::size_t packed, std::size_t raw) {
    return static_cast<std::uint32_t>((packed == 0 ? raw : packed) * kCodingShare / raw + 1);
}

bool within(std::uint32_t share, std::uint32_t expected, std::uint32_t apart) {
    return share <= expected + apart && share + apart >= expected;
}
bool alike(std::uint32_t share, std::uint32_t expected) { return within(share, expected, expected / 8 + 8); }
// Of a plane, a part of the block: exponents differ from layer to layer.
bool planes_alike(std::uint32_t share, std::uint32_t expected) {
    return within(share, expected, expected / 4 + 16);
}

}  // namespace

std::size_t BlockPacker::pack_as(std::span<const std::byte> raw, BlockCoding& coding,
                                 std::span<std::byte> to) {
    if (coding.width == 1) return compressor_.pack(raw, to, level_);
    if (coding.form == BlockForm::sparse) return pack_sparse(compressor_, raw, coding.width, sparse_, to);
    const PlaneItems items{coding.width, coding.form == BlockForm::sign_last};
    return pack_planes(compressor_, raw, items, level_, coding.coders, planes_, to);
}

void BlockPacker::choose(std::span<const std::byte> raw, BlockCoding& coding) {
    const std::size_t size = std::min(raw.size(), kSample);
    // From the middle: a block may begin with the end of another field.
    const auto sample =
        raw.subspan((raw.size() - size) / 2 / kSmallestRecordChunk * kSmallestRecordChunk, size);
    coding = {};
    sample_.resize(2 * kSample);  // where a plane is packed in two ways, one lies behind the other
    std::size_t best = pack_as(sample, coding, std::span(sample_).first(size - 1));
    const auto try_other = [&](BlockForm form, unsigned width) {
        BlockCoding other{static_cast<std::uint8_t>(width), form, {}, 0};
        const std::size_t room = best == 0 ? size - 1 : best - std::max<std::size_t>(1, best / kLeastGain);
        const std::size_t got = pack_as(sample, other, sample_);
        if (got == 0 || got > room) return false;
        best = got;
        coding = other;
        return true;
    };
    // Items of a width have more in common than halves or pairs of them: from narrow to wide it
    // becomes better, and then worse.
    for (const unsigned width : kPlaneWidths) {
        if (!try_other(BlockForm::planes, width) && coding.width != 1) break;
    }
    if (coding.width != 1) {
        try_other(BlockForm::sign_last, coding.width);
    } else {
        for (const unsigned width : kPlaneWidths)
            try_other(BlockForm::sign_last, width);
    }
    for (const unsigned width : kPlaneWidths)  // takes next to no time where it is not the best
        try_other(BlockForm::sparse, width);
}

// The coding with the shares of what was packed.
BlockCoding BlockPacker::measured(BlockCoding coding, std::size_t size, std::size_t raw) const {
    coding.share = share_of(size, raw);
    coding.plane_shares = {};
    if (size == 0 || coding.width == 1 || coding.form == BlockForm::sparse) return coding;
    Decoder sizes(packed_);
    for (unsigned plane = 0; plane < coding.width; ++plane)
        coding.plane_shares[plane] = share_of(sizes.get<std::uint32_t>() & ~kPlaneStored, raw / coding.width);
    return coding;
}

std::size_t BlockPacker::pack(std::span<const std::byte> raw, BlockCoding& coding) {
    packed_.resize(std::max(packed_.size(), raw.size()));
    const auto room = std::span(packed_).first(raw.size() - 1);
    std::size_t size = 0;
    const BlockCoding expected = coding;
    if (expected.share != 0) {
        size = pack_as(raw, coding, room);
        const BlockCoding now = measured(coding, size, raw.size());
        if (alike(now.share, coding.share) && std::equal(now.plane_shares.begin(), now.plane_shares.end(),
                                                         coding.plane_shares.begin(), planes_alike))
            return size;
    }
    choose(raw, coding);
    const bool packed_so = expected.share != 0 && coding.width == expected.width &&
                           coding.form == expected.form && coding.coders == expected.coders;
    if (!packed_so) size = pack_as(raw, coding, room);
    coding = measured(coding, size, raw.size());
    return size;
}

}  // namespace twinrun
