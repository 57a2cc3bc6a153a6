// The items of a block that are not zero, and how many zeros lie between them.
//
// After XOR with the step before, a block of which a few elements changed is nearly all zero. A gap
// is the zeros before an item: a byte, 255 for as many zeros and no item. The gaps, and the planes
// of the items (planes.hpp), are packed one by one.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "record/plane_coder.hpp"

namespace twinrun {

// Where packing works; kept to reuse its memory.
struct SparseScratch {
    std::vector<std::byte> gaps;
    std::vector<std::byte> values;
};

// Bytes written to `to`; 0: they would not fit, or more than half of the items are not zero. from:
// whole items of `width` bytes, one of kPlaneWidths.
std::size_t pack_sparse(Compressor& compressor, std::span<const std::byte> from, unsigned width,
                        SparseScratch& scratch, std::span<std::byte> to);
// Exactly to.size() bytes, whole items.
Result<> unpack_sparse(Compressor& compressor, std::span<const std::byte> from, unsigned width,
                       SparseScratch& scratch, std::span<std::byte> to);

// A stretch of a block, and where it goes.
struct SparsePiece {
    std::size_t begin;        // its first byte in the block
    std::span<std::byte> to;  // whole items
    // Held while the piece is changed; null: nobody else changes it.
    std::mutex* lock = nullptr;
};
// The items of a block of `bytes` bytes, XORed with those that are in the pieces; items between
// pieces are left out. pieces: ascending, apart. After an error a part of the items is there.
Result<> mix_sparse(Compressor& compressor, std::span<const std::byte> from, unsigned width,
                    SparseScratch& scratch, std::size_t bytes, std::span<const SparsePiece> pieces);

}  // namespace twinrun
