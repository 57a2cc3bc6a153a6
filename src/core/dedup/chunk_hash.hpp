// The 128-bit hash of a chunk's exact bytes: XXH3-128 (xxHash, seed 0) of the chunk, filled up with
// zeros to its full size. The same on host and devices. It decides only which chunks are taken for
// equal; no record holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "element/cell.hpp"

namespace twinrun {

struct ChunkHash {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const ChunkHash&) const = default;
};

// The hash of a whole chunk: 32 to 65536 bytes, any alignment.
[[nodiscard]] ChunkHash chunk_hash(const std::byte* chunk, std::size_t bytes);
// The hash of the last chunk of a segment. It has `bytes` bytes, more than 0 and less than
// chunk_bytes.
[[nodiscard]] ChunkHash short_chunk_hash(const std::byte* chunk, std::size_t bytes, std::size_t chunk_bytes);
// The hashes of the chunks of consecutive bytes; the last chunk may be short. hashes:
// divide_up(bytes, chunk_bytes) of them.
void chunk_hashes(std::span<const std::byte> bytes, std::size_t chunk_bytes, ChunkHash* hashes);

// The number that this chunk of a segment adds (mod 2^64) to the checksum of the segment's content.
[[nodiscard]] TWR_HOST_DEVICE inline std::uint64_t content_term(const ChunkHash& hash, std::uint64_t number) {
    std::uint64_t x = hash.low + (number + 1) * 0x9E3779B97F4A7C15U;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93U;
    x ^= x >> 32;
    return x + hash.high;
}

}  // namespace twinrun
