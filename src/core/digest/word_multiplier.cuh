// Private to digest_words_cuda.cu: digests of words by plain multiplications, a thread 16 bytes of
// each block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "digest/digest.hpp"
#include "digest/field61.hpp"

namespace twinrun::gpu {

inline constexpr unsigned kVector = 16;  // bytes that a thread reads at once
inline constexpr unsigned kWordThreads = kBlockBytes / kVector;
inline constexpr unsigned kWordWarps = kWordThreads / 32;

// A coefficient has 61 bits. It is cut into parts, so that sums of the products of a vector's words
// and one part fit 64 bits.
template <class Word>
struct Parts {
    static constexpr unsigned kWords = kVector / sizeof(Word);
    static constexpr unsigned kCount = sizeof(Word) == 4 ? 3 : 2;
    static constexpr unsigned kBits = sizeof(Word) == 4 ? 21 : 31;
    static constexpr unsigned kLastBits = 61 - (kCount - 1) * kBits;
    static constexpr std::int64_t kMask = (std::int64_t{1} << kBits) - 1;
    static constexpr std::int64_t kLastMask = (std::int64_t{1} << kLastBits) - 1;
};

// sum + a b. In one instruction: compilers extend a and b to 64 bits and multiply these.
__device__ inline std::int64_t multiply_add(std::int32_t a, std::int32_t b, std::int64_t sum) {
#if defined(__CUDA_ARCH__)
    asm("mad.wide.s32 %0, %1, %2, %0;" : "+l"(sum) : "r"(a), "r"(b));
    return sum;
#else
    return sum + std::int64_t{a} * b;
#endif
}

// A value that compilers cannot make again: it stays in a register.
__device__ inline void stay(std::int32_t& value) {
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(value));
#else
    static_cast<void>(value);
#endif
}

template <class Word>
class Multiplier {
   public:
    // For the words at and behind `position` of a block.
    __device__ explicit Multiplier(unsigned position) {
#pragma unroll
        for (unsigned w = 0; w < P::kWords; ++w) {
            const std::uint64_t r = coefficient(position + w);
#pragma unroll
            for (unsigned i = 0; i < P::kCount; ++i) {
                parts_[w][i] = static_cast<std::int32_t>(r >> (i * P::kBits) & P::kMask);
                // Compilers would make them again for each vector, which takes most of the time.
                stay(parts_[w][i]);
            }
        }
    }

    // A number with the remainder of the sum of products of words and coefficients; at most
    // 2^62 + 2^36.
    [[nodiscard]] __device__ std::uint64_t sum(const uint4& vector) const {
        std::int64_t sums[P::kCount] = {};
        const std::uint32_t in[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (unsigned w = 0; w < P::kWords; ++w) {
            constexpr unsigned kEach = 4 / sizeof(Word);
            const std::int32_t word =
                static_cast<Word>(in[w / kEach] >> (w % kEach * 8 * static_cast<unsigned>(sizeof(Word))));
#pragma unroll
            for (unsigned i = 0; i < P::kCount; ++i)
                sums[i] = multiply_add(word, parts_[w][i], sums[i]);
        }
        // From the lowest part up: what a part's bits do not hold belongs to the next one.
        std::uint64_t low = 0;
#pragma unroll
        for (unsigned i = 0; i + 1 < P::kCount; ++i) {
            low += static_cast<std::uint64_t>(sums[i] & P::kMask) << (i * P::kBits);
            sums[i + 1] += sums[i] >> P::kBits;
        }
        const std::int64_t last = sums[P::kCount - 1];
        low += static_cast<std::uint64_t>(last & P::kLastMask) << (61 - P::kLastBits);
        // 2^61 = 1; what is left of the last part is small, and may be negative.
        return low + kPrime + static_cast<std::uint64_t>(last >> P::kLastBits);
    }

   private:
    using P = Parts<Word>;
    std::int32_t parts_[P::kWords][P::kCount];
};

// A number of at most 2^61 + 6 with the same remainder.
__device__ inline std::uint64_t nearly_reduced(std::uint64_t x) { return (x & kPrime) + (x >> 61); }
// The same for sum RHO + more, if sum is nearly reduced and more at most 2^63: without a comparison
// of 64 bits, which no instruction makes.
__device__ inline std::uint64_t append(std::uint64_t sum, std::uint64_t more) {
    const auto product = static_cast<unsigned __int128>(sum) * kRho;
    const std::uint64_t low = static_cast<std::uint64_t>(product) & kPrime;
    return nearly_reduced(low + static_cast<std::uint64_t>(product >> 61) + more);
}

// The bytes of a vector of which `left` are in the array; zeros take the others' place.
__device__ inline uint4 load(const std::byte* at, std::int64_t left) {
    if (left >= static_cast<std::int64_t>(kVector)) return __ldcs(reinterpret_cast<const uint4*>(at));
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < static_cast<int>(kVector); ++i) {
        if (i < left) words[i / 4] |= static_cast<std::uint32_t>(at[i]) << (i % 4 * 8);
    }
    return {words[0], words[1], words[2], words[3]};
}

}  // namespace twinrun::gpu
