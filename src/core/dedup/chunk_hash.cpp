#include "dedup/chunk_hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "record/delta.hpp"

namespace twinrun {

ChunkHash chunk_hash(const std::byte* chunk, std::size_t bytes) {
    const XXH128_hash_t hash = XXH3_128bits(chunk, bytes);
    return {hash.low64, hash.high64};
}

ChunkHash short_chunk_hash(const std::byte* chunk, std::size_t bytes, std::size_t chunk_bytes) {
    std::byte whole[kLargestRecordChunk];
    std::memcpy(whole, chunk, bytes);
    std::memset(whole + bytes, 0, chunk_bytes - bytes);
    return chunk_hash(whole, chunk_bytes);
}

namespace {
template <std::size_t kBytes>
void hash_all(const std::byte* bytes, std::size_t chunks, ChunkHash* hashes) {
    for (std::size_t i = 0; i < chunks; ++i)
        hashes[i] = chunk_hash(bytes + i * kBytes, kBytes);
}
}  // namespace

void chunk_hashes(std::span<const std::byte> bytes, std::size_t chunk_bytes, ChunkHash* hashes) {
    const std::size_t whole = bytes.size() / chunk_bytes;
    switch (chunk_bytes) {  // known sizes: the hash of small inputs is then without branches
        case 32: hash_all<32>(bytes.data(), whole, hashes); break;
        case 64: hash_all<64>(bytes.data(), whole, hashes); break;
        case 128: hash_all<128>(bytes.data(), whole, hashes); break;
        default:
            for (std::size_t i = 0; i < whole; ++i)
                hashes[i] = chunk_hash(bytes.data() + i * chunk_bytes, chunk_bytes);
    }
    if (const std::size_t left = bytes.size() - whole * chunk_bytes; left != 0)
        hashes[whole] = short_chunk_hash(bytes.data() + whole * chunk_bytes, left, chunk_bytes);
}

}  // namespace twinrun
