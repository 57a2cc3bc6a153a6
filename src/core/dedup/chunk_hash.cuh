// Private to dedup_cuda.cu: XXH3-128 with seed 0 of 32 to 128 bytes, and of 256 and more where that
// is a power of two, from its definition (xxHash, doc/xxhash_spec.md); tested against the library.
#pragma once

#include <cstdint>

#include "dedup/chunk_hash.hpp"

namespace twinrun::gpu {

inline constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87U;
inline constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FU;
inline constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9U;
inline constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63U;
inline constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5U;
inline constexpr std::uint64_t kPrime32_1 = 0x9E3779B1U;
inline constexpr std::uint64_t kPrime32_2 = 0x85EBCA77U;
inline constexpr std::uint64_t kPrime32_3 = 0xC2B2AE3DU;

// The default secret, as words.
inline constexpr unsigned kSecretBytes = 192;
inline constexpr std::uint64_t kSecret[kSecretBytes / 8] = {
    0xbe4ba423396cfeb8U, 0x1cad21f72c81017cU, 0xdb979083e96dd4deU, 0x1f67b3b7a4a44072U, 0x78e5c0cc4ee679cbU,
    0x2172ffcc7dd05a82U, 0x8e2443f7744608b8U, 0x4c263a81e69035e0U, 0xcb00c391bb52283cU, 0xa32e531b8b65d088U,
    0x4ef90da297486471U, 0xd8acdea946ef1938U, 0x3f349ce33f76faa8U, 0x1d4f0bc7c7bbdcf9U, 0x3159b4cd4be0518aU,
    0x647378d9c97e9fc8U, 0xc3ebd33483acc5eaU, 0xeb6313faffa081c5U, 0x49daf0b751dd0d17U, 0x9e68d429265516d3U,
    0xfca1477d58be162bU, 0xce31d07ad1b8f88fU, 0x280416958f3acb45U, 0x7e404bbbcafbd7afU,
};
// Eight bytes of it from any of them on.
[[nodiscard]] constexpr std::uint64_t secret_at(unsigned byte) {
    const unsigned shift = byte % 8 * 8;
    const std::uint64_t low = kSecret[byte / 8] >> shift;
    return shift == 0 ? low : low | kSecret[byte / 8 + 1] << (64 - shift);
}
template <unsigned Byte>
inline constexpr std::uint64_t kSecretAt = secret_at(Byte);

__device__ inline std::uint64_t fold(std::uint64_t a, std::uint64_t b) { return a * b ^ __umul64hi(a, b); }
__device__ inline std::uint64_t avalanche(std::uint64_t h) {
    h ^= h >> 37;
    h *= 0x165667919E3779F9U;
    return h ^ h >> 32;
}

// ---- 32 to 128 bytes ----

struct ShortHash {
    std::uint64_t low;
    std::uint64_t high = 0;
    // Two pieces of 16 bytes; Secret: byte of the secret.
    template <unsigned Secret>
    __device__ void mix(std::uint64_t a0, std::uint64_t a1, std::uint64_t b0, std::uint64_t b1) {
        constexpr std::uint64_t s0 = kSecretAt<Secret>;
        constexpr std::uint64_t s1 = kSecretAt<Secret + 8>;
        constexpr std::uint64_t s2 = kSecretAt<Secret + 16>;
        constexpr std::uint64_t s3 = kSecretAt<Secret + 24>;
        low += fold(a0 ^ s0, a1 ^ s1);
        low ^= b0 + b1;
        high += fold(b0 ^ s2, b1 ^ s3);
        high ^= a0 + a1;
    }
    [[nodiscard]] __device__ ChunkHash finish(std::uint64_t bytes) const {
        return {avalanche(low + high), 0 - avalanche(low * kPrime1 + high * kPrime4 + bytes * kPrime2)};
    }
};

// 2, 4 or 8 pieces of 16 bytes.
template <int Pieces>
__device__ inline ChunkHash short_hash(const ulonglong2 (&p)[Pieces]) {
    ShortHash hash{Pieces * 16 * kPrime1};
    if constexpr (Pieces >= 8) {
        hash.mix<96>(p[3].x, p[3].y, p[4].x, p[4].y);
        hash.mix<64>(p[2].x, p[2].y, p[5].x, p[5].y);
    }
    if constexpr (Pieces >= 4) hash.mix<32>(p[1].x, p[1].y, p[Pieces - 2].x, p[Pieces - 2].y);
    hash.mix<0>(p[0].x, p[0].y, p[Pieces - 1].x, p[Pieces - 1].y);
    return hash.finish(Pieces * 16);
}

// The hash of a node of the tree: 40 bytes.
__device__ inline ChunkHash node_hash(const ChunkHash& left, const ChunkHash& right, std::uint64_t level) {
    ShortHash hash{40 * kPrime1};
    hash.mix<32>(right.low, right.high, left.high, right.low);
    hash.mix<0>(left.low, left.high, right.high, level);
    return hash.finish(40);
}

// ---- 256 bytes and more: stripes of 64 bytes, 16 to a block ----

// Keys of the stripes of a block, then that of a chunk's last stripe.
struct StripeKeys {
    std::uint64_t of[17][8];
};
constexpr StripeKeys stripe_keys() {
    StripeKeys keys{};
    for (unsigned stripe = 0; stripe < 16; ++stripe) {
        for (unsigned i = 0; i < 8; ++i)
            keys.of[stripe][i] = kSecret[stripe + i];
    }
    for (unsigned i = 0; i < 8; ++i)
        keys.of[16][i] = secret_at(kSecretBytes - 64 - 7 + 8 * i);
    return keys;
}
__constant__ constexpr StripeKeys kStripeKeys = stripe_keys();

// What accumulators begin with, are scrambled with behind each block, and are merged with, for both
// halves of the hash.
struct AccumulatorKeys {
    std::uint64_t start[8] = {kPrime32_3, kPrime1,    kPrime2, kPrime3,
                              kPrime4,    kPrime32_2, kPrime5, kPrime32_1};
    std::uint64_t scramble[8] = {};
    std::uint64_t merge_low[8] = {};
    std::uint64_t merge_high[8] = {};
};
constexpr AccumulatorKeys accumulator_keys() {
    AccumulatorKeys keys;
    for (unsigned i = 0; i < 8; ++i) {
        keys.scramble[i] = secret_at(kSecretBytes - 64 + 8 * i);
        keys.merge_low[i] = secret_at(11 + 8 * i);
        keys.merge_high[i] = secret_at(kSecretBytes - 64 - 11 + 8 * i);
    }
    return keys;
}
__constant__ constexpr AccumulatorKeys kKeys = accumulator_keys();

// One of four pieces of a stripe, for its two accumulators.
__device__ inline void accumulate(std::uint64_t& a0, std::uint64_t& a1, std::uint64_t d0, std::uint64_t d1,
                                  std::uint64_t k0, std::uint64_t k1) {
    const std::uint64_t x0 = d0 ^ k0;
    const std::uint64_t x1 = d1 ^ k1;
    a0 += d1 +
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(x0)) * static_cast<std::uint32_t>(x0 >> 32);
    a1 += d0 +
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(x1)) * static_cast<std::uint32_t>(x1 >> 32);
}
__device__ inline std::uint64_t scramble(std::uint64_t a, std::uint64_t key) {
    return (a ^ a >> 47 ^ key) * kPrime32_1;
}
// low, high: the sums of four products of merged accumulators each.
__device__ inline ChunkHash finish_long(std::uint64_t low, std::uint64_t high, std::uint64_t bytes) {
    return {avalanche(bytes * kPrime1 + low), avalanche(~(bytes * kPrime2) + high)};
}

}  // namespace twinrun::gpu
