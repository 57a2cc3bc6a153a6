// From a value to its integer: the one definition that every backend, host or device, must
// reproduce bit for bit. Integer arithmetic only, except the rounded sum of the relative rule
// (IEEE round-to-nearest, denormals on).
#pragma once

#include <cstdint>

#include "element/tolerance.hpp"

#if defined(__CUDACC__)
#define TWR_HOST_DEVICE __host__ __device__
#elif defined(__GNUC__)
// Never a function of its own: the linker would keep one copy for all, maybe one that was compiled
// for AVX-512.
#define TWR_HOST_DEVICE [[gnu::always_inline]]
#else
#define TWR_HOST_DEVICE
#endif

namespace twinrun {

// Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), its mixing
// step.
TWR_HOST_DEVICE constexpr std::uint64_t splitmix64(std::uint64_t z) {
    z += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

// Tokens stand for values without a cell. They are pseudo-random, so that none is the neighbour of
// a cell.
inline constexpr std::uint64_t kNanSeed = 0x4E614E;
inline constexpr std::uint64_t kPositiveInfinitySeed = 0x2B496E66;
inline constexpr std::uint64_t kNegativeInfinitySeed = 0x2D496E66;
inline constexpr std::uint64_t kSeedLimit = 1ULL << 30;  // all of them are smaller
inline constexpr std::uint64_t kNanToken = splitmix64(kNanSeed);
inline constexpr std::uint64_t kPositiveInfinityToken = splitmix64(kPositiveInfinitySeed);
inline constexpr std::uint64_t kNegativeInfinityToken = splitmix64(kNegativeInfinitySeed);
// |q| at or above it becomes a token
inline constexpr std::uint64_t kTokenLimit = 1ULL << 59;
// Below it float64 has no relative steps.
inline constexpr double kSmallestSum = 0x1p-1000;
inline constexpr std::uint64_t kLargestExactInteger = 1ULL << 53;  // of float64

// A cell (signed) or a token (unsigned): 64 bits, and which of the two.
struct Cell {
    std::uint64_t bits;
    bool token;
};

// A finite value split as magnitude * 2^exponent.
struct Magnitude {
    std::uint64_t magnitude;
    int exponent;
    bool negative;
};

TWR_HOST_DEVICE inline std::uint64_t bits_of(double x) {
#if defined(__CUDA_ARCH__)
    return static_cast<std::uint64_t>(__double_as_longlong(x));
#else
    return __builtin_bit_cast(std::uint64_t, x);
#endif
}

TWR_HOST_DEVICE inline Magnitude split(double x) {
    const std::uint64_t bits = bits_of(x);
    const int biased = static_cast<int>((bits >> 52) & 0x7FF);
    const std::uint64_t fraction = bits & ((1ULL << 52) - 1);
    if (biased == 0) return {fraction, -1074, (bits >> 63) != 0};
    return {fraction | (1ULL << 52), biased - 1075, (bits >> 63) != 0};
}

// floor(+-magnitude * 2^exponent / 2^e); token stays false and *fits says whether |q| < 2^59.
TWR_HOST_DEVICE inline std::int64_t floor_cell(Magnitude m, int e, bool* fits) {
    *fits = true;
    if (m.magnitude == 0) return 0;
    const int shift = m.exponent - e;
    std::uint64_t q = 0;
    if (shift >= 0) {
        if (shift >= 60 || (m.magnitude >> (60 - shift)) != 0 || (m.magnitude << shift) >= kTokenLimit) {
            *fits = false;
            return 0;
        }
        q = m.magnitude << shift;
    } else if (shift <= -64) {
        q = m.negative ? 1 : 0;
    } else {
        const std::uint64_t cut = (1ULL << -shift) - 1;
        q = (m.magnitude >> -shift) + ((m.negative && (m.magnitude & cut) != 0) ? 1 : 0);
    }
    if (q >= kTokenLimit) {
        *fits = false;
        return 0;
    }
    return m.negative ? -static_cast<std::int64_t>(q) : static_cast<std::int64_t>(q);
}

TWR_HOST_DEVICE inline std::uint64_t value_token(double x) {
    const std::uint64_t bits = bits_of(x);
    // The seeds are bits of denormal numbers too, whose tokens would be those of NaN and the
    // infinities.
    if (bits == kNanSeed || bits == kPositiveInfinitySeed || bits == kNegativeInfinitySeed) {
        return splitmix64(splitmix64(bits));
    }
    // -0.0 is 0.0; no comparison that denormals-are-zero would change
    return splitmix64((bits << 1) == 0 ? 0 : bits);
}

// Token of an integer: that of its float64 where this is exact. Beyond, the integer's own bits
// mixed twice: float64 would take neighbours for equal, and one mixing could meet the bits of a
// float.
TWR_HOST_DEVICE inline std::uint64_t integer_token(std::uint64_t magnitude, bool negative) {
    if (magnitude <= kLargestExactInteger) {
        const double x = static_cast<double>(magnitude);
        return value_token(negative ? -x : x);
    }
    const std::uint64_t bits = negative ? ~magnitude + 1 : magnitude;
    return splitmix64(splitmix64(bits));
}

// What stands for a binary32 number in the rule of that name: its bits, in two's complement. NaNs
// are one, and so are 0 and -0.0.
inline constexpr std::int32_t kBinary32Nan = 0x7FC00000;
TWR_HOST_DEVICE inline std::int32_t binary32_bits(float x) {
#if defined(__CUDA_ARCH__)
    const std::uint32_t bits = __float_as_uint(x);
#else
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
#endif
    const std::uint32_t magnitude = bits << 1;
    if (magnitude > 0xFF000000U) return kBinary32Nan;
    return magnitude == 0 ? 0 : static_cast<std::int32_t>(bits);
}

// What stands for 64 bits in the rule of words: lower half + kWordFactor * upper half, modulo
// 2^61 - 1. Two scalars of which one number comes of it differ by 510,546,808 or more in their
// upper halves: float64 numbers are then 100 powers of two apart, or more.
inline constexpr std::uint64_t kMersenne61 = (1ULL << 61) - 1;
inline constexpr std::uint64_t kWordFactor = splitmix64(1ULL << 33) % kMersenne61;
TWR_HOST_DEVICE constexpr std::uint64_t words_value(std::uint64_t bits) {
    const auto product = static_cast<unsigned __int128>(kWordFactor) * (bits >> 32);
    // Below 2^61 + 2^33.
    const std::uint64_t sum = (static_cast<std::uint64_t>(product) & kMersenne61) +
                              static_cast<std::uint64_t>(product >> 61) + (bits & 0xFFFFFFFFU);
    return sum >= kMersenne61 ? sum - kMersenne61 : sum;
}
// The bits of a float64. NaNs are one, and so are 0 and -0.0.
inline constexpr std::uint64_t kBinary64Nan = 0x7FF8000000000000ULL;
TWR_HOST_DEVICE inline std::uint64_t binary64_bits(double x) {
    const std::uint64_t bits = bits_of(x);
    const std::uint64_t magnitude = bits << 1;
    if (magnitude > 0xFFE0000000000000ULL) return kBinary64Nan;
    return magnitude == 0 ? 0 : bits;
}

// Fine (coarse_shift = 0) or coarse cell of a float64 (float32, float16, bfloat16 and small
// integers convert exactly).
TWR_HOST_DEVICE inline Cell cell_of(double x, const CellRule& rule, int coarse_shift) {
    if (rule.kind == CellKind::binary32) {  // x is a binary32 number: nothing is rounded
        const std::int64_t bits = binary32_bits(static_cast<float>(x));
        return {static_cast<std::uint64_t>(bits), false};
    }
    if (rule.kind == CellKind::words) return {words_value(binary64_bits(x)), false};
    const std::uint64_t magnitude_bits = bits_of(x) & ~(1ULL << 63);
    if (magnitude_bits > 0x7FF0000000000000ULL) return {kNanToken, true};
    if (magnitude_bits == 0x7FF0000000000000ULL) {
        return {(bits_of(x) >> 63) != 0 ? kNegativeInfinityToken : kPositiveInfinityToken, true};
    }
    // Integers: fine_exponent is 0, so that a cell is its integer.
    if (rule.kind == CellKind::absolute || rule.kind == CellKind::integers) {
        bool fits = false;
        const std::int64_t q = floor_cell(split(x), rule.fine_exponent + coarse_shift, &fits);
        if (fits) return {static_cast<std::uint64_t>(q), false};
    } else if (rule.kind == CellKind::relative) {
        const bool negative = (bits_of(x) >> 63) != 0;
        const double sum = (negative ? -x : x) + rule.key_origin;
        const std::uint64_t sum_bits = bits_of(sum);
        if (sum_bits < 0x7FF0000000000000ULL && (sum >= kSmallestSum || sum_bits == 0)) {
            std::int64_t key = static_cast<std::int64_t>(sum_bits - bits_of(rule.key_origin));
            if (negative) key = -key;
            const std::int64_t q = key >> (rule.fine_exponent + coarse_shift);
            const std::uint64_t size = static_cast<std::uint64_t>(q < 0 ? -q : q);
            if (size < kTokenLimit) return {static_cast<std::uint64_t>(q), false};
        }
    }
    return {value_token(x), true};
}

// The same for a 64-bit integer, given as its magnitude and sign.
TWR_HOST_DEVICE inline Cell cell_of_integer(std::uint64_t magnitude, bool negative, const CellRule& rule,
                                            int coarse_shift) {
    if (rule.kind == CellKind::words) return {words_value(negative ? ~magnitude + 1 : magnitude), false};
    if (magnitude <= kLargestExactInteger) {
        const double x = static_cast<double>(magnitude);
        return cell_of(negative ? -x : x, rule, coarse_shift);
    }
    if (rule.kind == CellKind::absolute) {
        bool fits = false;
        const std::int64_t q = floor_cell({magnitude, 0, negative}, rule.fine_exponent + coarse_shift, &fits);
        if (fits) return {static_cast<std::uint64_t>(q), false};
    }
    return {integer_token(magnitude, negative), true};
}

}  // namespace twinrun
