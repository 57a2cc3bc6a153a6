// Private to roots_cuda.cu: what bytes of a part are multiplied by, and what their sums count in a
// root.
#pragma once

#include <cstdint>

#include "device/warp.cuh"
#include "digest/byte_products.cuh"
#include "digest/digest.hpp"
#include "digest/field61.hpp"
#include "digest/roots_fields.cuh"

namespace twinrun::gpu {

namespace {

// x 2^k mod p for x below 2^61 and k below 61.
__host__ __device__ constexpr std::uint64_t rotate61(std::uint64_t x, unsigned k) {
    return reduce61(((x << k) & kPrime) | (k == 0 ? 0 : x >> (61 - k)));
}

// Powers of RHO: of a block in its chunk, times what the two columns of a lane count; of the blocks
// that a last chunk lacks; of each level of the tree.
struct RhoPowers {
    std::uint64_t of_row[2][32];
    std::uint64_t of_lacking[kChunkBlocks];
    std::uint64_t of_level[32];
};
constexpr RhoPowers rho_powers() {
    RhoPowers all{};
    const std::uint64_t inverse = power61(kRho, kPrime - 2);
    for (unsigned i = 0; i < kChunkBlocks; ++i) {
        all.of_lacking[i] = power61(inverse, i);
        const std::uint64_t of_block = power61(kRho, kChunkBlocks - 1 - i);
        for (unsigned pair = 0; pair < 4; ++pair)
            all.of_row[i / 8][i % 8 * 4 + pair] = rotate61(of_block, pair * 16);
    }
    std::uint64_t power = power61(kRho, kChunkBlocks);
    for (std::uint64_t& one : all.of_level) {
        one = power;
        power = multiply61(power, power);
    }
    return all;
}
// All tables are in global memory: a warp's lanes take different places.
__device__ constexpr RhoPowers kRhoPowers = rho_powers();

// What the bytes of a block are multiplied by, as a lane of a warp needs it for a step: for two
// products, 8 bytes of a row each. And what words of the value 0 give, by columns: the sums to
// begin with.
struct ByteCoefficients {
    uint4 of[kWarps][kSteps][32];
    std::uint32_t begin[kWarps][8];
};
// The signs of 4 bytes of words.
template <class Word>
constexpr std::uint32_t kSigns = sizeof(Word) == 1   ? 0x80808080U
                                 : sizeof(Word) == 2 ? 0x80008000U
                                                     : 0x80000000U;

template <class Word>
constexpr ByteCoefficients byte_coefficients() {
    ByteCoefficients all{};
    for (unsigned position = 0; position < kBlockBytes; ++position) {
        const std::uint64_t r = rotate61(coefficient(position / sizeof(Word)), position % sizeof(Word) * 8);
        uint4* const lanes = all.of[position / kWarpBytes][position % kWarpBytes / kStepBytes];
        const unsigned of_row = position % kStepBytes / kVector;
        const unsigned word = position % kVector / 4;
        for (unsigned column = 0; column < 8; ++column) {
            const auto byte = static_cast<std::uint32_t>(r >> (8 * column) & 0xFF);
            uint4& of = lanes[4 * column + of_row];
            (word == 0 ? of.x : word == 1 ? of.y : word == 2 ? of.z : of.w) |= byte << (position % 4 * 8);
            all.begin[position / kWarpBytes][column] -= byte * (kSigns<Word> >> (position % 4 * 8) & 0xFF);
        }
    }
    return all;
}
__device__ constexpr ByteCoefficients kCoefficients8 = byte_coefficients<std::int8_t>();
__device__ constexpr ByteCoefficients kCoefficients16 = byte_coefficients<std::int16_t>();
__device__ constexpr ByteCoefficients kCoefficients32 = byte_coefficients<std::int32_t>();
template <class Word>
__device__ const ByteCoefficients& coefficients_of() {
    if constexpr (sizeof(Word) == 1) return kCoefficients8;
    if constexpr (sizeof(Word) == 2) return kCoefficients16;
    if constexpr (sizeof(Word) == 4) return kCoefficients32;
}

struct SharedTables {
    std::uint64_t powers[2][32];
    std::uint32_t begin[kWarps][8];
};

// What a thread has for all parts.
template <class Word>
class Products {
   public:
    __device__ explicit Products(SharedTables& shared) : shared_(shared) {
        const ByteCoefficients& all = coefficients_of<Word>();
#pragma unroll
        for (unsigned i = 0; i < kSteps; ++i)
            coefficients_[i] = all.of[threadIdx.x / 32][i][threadIdx.x % 32];
        if (threadIdx.x < 64)
            (&shared.powers[0][0])[threadIdx.x] = (&kRhoPowers.of_row[0][0])[threadIdx.x];
        else if (threadIdx.x < 64 + kWarps * 8)
            (&shared.begin[0][0])[threadIdx.x - 64] = (&all.begin[0][0])[threadIdx.x - 64];
    }
    // After the thread block has met.
    __device__ void begin() {
        const std::uint32_t* const from = &shared_.begin[threadIdx.x / 32][threadIdx.x % 4 * 2];
        sums_[0] = sums_[2] = from[0];
        sums_[1] = sums_[3] = from[1];
    }
    __device__ void add(unsigned half, const uint4 (&vectors)[kHalf][2]) {
#pragma unroll
        for (unsigned i = 0; i < kHalf; ++i)
            add_step(sums_, vectors[i][0], vectors[i][1], coefficients_[half * kHalf + i]);
    }
    // The sum over the thread's rows and columns. weights: of the part's chunks, of which there may
    // be one only.
    [[nodiscard]] __device__ std::uint64_t sum(const Part& part, const std::uint64_t* weights) const {
        const unsigned row = threadIdx.x % 32 / 4;
        const unsigned first = part.first_block % kChunkBlocks;
        return add61(weighted(0, weights[row < first]), weighted(1, weights[row + 8 < first]));
    }

   private:
    __device__ static void add_step(std::uint32_t (&sums)[4], const uint4& low, const uint4& high,
                                    const uint4& coefficients) {
        constexpr std::uint32_t s = kSigns<Word>;
        multiply_bytes(sums, low.x ^ s, high.x ^ s, low.y ^ s, high.y ^ s, coefficients.x, coefficients.y);
        multiply_bytes(sums, low.z ^ s, high.z ^ s, low.w ^ s, high.w ^ s, coefficients.z, coefficients.w);
    }
    [[nodiscard]] __device__ std::uint64_t weighted(unsigned row, std::uint64_t weight) const {
        return multiply61(multiply61(of_row(row), shared_.powers[row][threadIdx.x % 32]), weight);
    }
    // Two columns: below 2^34.
    [[nodiscard]] __device__ std::uint64_t of_row(unsigned row) const {
        const std::int64_t both = static_cast<std::int32_t>(sums_[row * 2]) +
                                  std::int64_t{static_cast<std::int32_t>(sums_[row * 2 + 1])} * 256;
        return static_cast<std::uint64_t>(both < 0 ? both + static_cast<std::int64_t>(kPrime) : both);
    }

    SharedTables& shared_;
    uint4 coefficients_[kSteps];
    std::uint32_t sums_[4];
};

// What the sum of a chunk's rows, as if it had all of its blocks, counts in its field's root. All
// lanes of a warp call it, and all have it.
__device__ std::uint64_t chunk_weight(std::uint32_t chunk, std::uint32_t blocks) {
    const std::uint32_t chunks = (blocks + kChunkBlocks - 1) / kChunkBlocks;
    const unsigned lane = threadIdx.x % 32;
    std::uint64_t weight = 1;
    if (lane == 0 && chunk + 1 == chunks && blocks % kChunkBlocks != 0)
        weight = kRhoPowers.of_lacking[chunks * kChunkBlocks - blocks];
    // A node with a right neighbour is a left child, and counts by the level's power.
    const std::uint32_t node = chunk >> lane;
    if (node % 2 == 0 && node < (chunks - 1) >> lane) weight = multiply61(weight, kRhoPowers.of_level[lane]);
    // No higher level has two nodes.
    for (unsigned distance = 1; distance < 32 && (chunks - 1) >> distance != 0; distance *= 2)
        weight = multiply61(weight, warp::across(weight, static_cast<int>(distance)));
    return warp::from(weight, 0);
}

}  // namespace

}  // namespace twinrun::gpu
