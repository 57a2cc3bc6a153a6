// Bytes of equal significance brought together before they are packed, and apart again.
//
// The exponents of neighbouring numbers are alike while their low bits are noise. Byte by byte in
// turn they hide each other from a codec. So the bytes of items of 2, 4 or 8 bytes are split into
// as many planes, each is packed by itself, and one that packing does not make smaller is kept as
// it is. The sign is noise too: moved behind the lowest bit, it leaves the exponent of a bf16 or
// f32 a plane of its own.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "record/compression.hpp"
#include "record/plane_coder.hpp"

namespace twinrun {

inline constexpr unsigned kPlaneWidths[] = {2, 4, 8};  // bytes of an item

struct PlaneItems {
    unsigned width = 2;      // one of kPlaneWidths
    bool sign_last = false;  // each item's top bit is moved behind its lowest one
};

// Plane j has byte j of each item. Sizes: whole items; `to` has as many bytes as `from`, and they
// do not overlap.
void split_planes(std::span<const std::byte> from, PlaneItems items, std::byte* to);
void join_planes(std::span<const std::byte> from, PlaneItems items, std::byte* to);

// Bytes written to `to`; 0: they would not fit. coders: of each plane. scratch: any; kept to reuse
// its memory.
std::size_t pack_planes(Compressor& compressor, std::span<const std::byte> from, PlaneItems items, int level,
                        PlaneCoders& coders, std::vector<std::byte>& scratch, std::span<std::byte> to);
// Exactly to.size() bytes, whole items. Errors: as Compressor::unpack.
Result<> unpack_planes(Compressor& compressor, std::span<const std::byte> from, PlaneItems items,
                       std::vector<std::byte>& scratch, std::span<std::byte> to);

}  // namespace twinrun
