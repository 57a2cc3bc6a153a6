// Bytes of equal significance brought together before they are packed, and apart again.
//
// The exponents of neighbouring numbers are alike while their low bits are noise. Byte by byte in
// turn they hide each other from a codec. So the bytes of items of 2, 4 or 8 bytes are split into
// as many planes, each is packed by itself, and one that packing does not make smaller is kept as
// it is.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "record/compression.hpp"

namespace twinrun {

inline constexpr unsigned kPlaneWidths[] = {2, 4, 8};  // bytes of an item

// Plane j has byte j of each item. Sizes: whole items; `to` has as many bytes as `from`, and they
// do not overlap. width: one of kPlaneWidths.
void split_planes(std::span<const std::byte> from, unsigned width, std::byte* to);
void join_planes(std::span<const std::byte> from, unsigned width, std::byte* to);

// Bytes written to `to`; 0: they would not fit. scratch: any; kept to reuse its memory.
std::size_t pack_planes(Compressor& compressor, std::span<const std::byte> from, unsigned width, int level,
                        std::vector<std::byte>& scratch, std::span<std::byte> to);
// Exactly to.size() bytes, whole items. Errors: as Compressor::unpack.
Result<> unpack_planes(Compressor& compressor, std::span<const std::byte> from, unsigned width,
                       std::vector<std::byte>& scratch, std::span<std::byte> to);

}  // namespace twinrun
