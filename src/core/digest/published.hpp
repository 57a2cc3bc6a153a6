// The arithmetic of the published method's digest, value by value and block by block: one
// definition for host and device. published.cpp says what it is.
//
// The host calls this with rounding set downward (Digester::chunks); on a device each operation
// says so itself.
#pragma once

#include <cmath>
#include <cstdint>

#include "element/cell.hpp"
#include "element/convert.hpp"

namespace twinrun {

TWR_HOST_DEVICE inline double multiply_down(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dmul_rd(a, b);
#else
    return a * b;
#endif
}
TWR_HOST_DEVICE inline double add_down(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dadd_rd(a, b);
#else
    return a + b;
#endif
}
TWR_HOST_DEVICE inline double divide_down(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __ddiv_rd(a, b);
#else
    return a / b;
#endif
}

TWR_HOST_DEVICE inline std::uint64_t murmur_rotate(std::uint64_t x, int r) {
    return (x << r) | (x >> (64 - r));
}

TWR_HOST_DEVICE inline std::uint64_t murmur_mix(std::uint64_t k) {
    k ^= k >> 33;
    k *= 0xFF51AFD7ED558CCDULL;
    k ^= k >> 33;
    k *= 0xC4CEB9FE1A85EC53ULL;
    return k ^ (k >> 33);
}

// Murmur3F of one 16-byte block {k1, k2}; the seed {h1, h2} becomes the hash.
TWR_HOST_DEVICE inline void murmur3f(std::uint64_t k1, std::uint64_t k2, std::uint64_t& h1,
                                     std::uint64_t& h2) {
    constexpr std::uint64_t c1 = 0x87C37B91114253D5ULL;
    constexpr std::uint64_t c2 = 0x4CF5AD432745937FULL;
    h1 ^= murmur_rotate(k1 * c1, 31) * c2;
    h1 = (murmur_rotate(h1, 27) + h2) * 5 + 0x52DCE729;
    h2 ^= murmur_rotate(k2 * c2, 33) * c1;
    h2 = (murmur_rotate(h2, 31) + h1) * 5 + 0x38495AB5;
    h1 ^= 16;
    h2 ^= 16;
    h1 += h2;
    h2 += h1;
    h1 = murmur_mix(h1);
    h2 = murmur_mix(h2);
    h1 += h2;
    h2 += h1;
}

// 1 / grid width, or 0 where everything is hashed by its own bits.
TWR_HOST_DEVICE inline double published_inverse(double atol) {
    const double grid = multiply_down(atol, 1 - 0x1p-11);
    // Below the normal numbers 1 / grid overflows, to the largest number or to infinity as the
    // rounding mode has it.
    return grid >= 0x1p-1022 ? divide_down(1, grid) : 0;
}

// The number to hash for x, and whether it is x's own bits.
template <class Number, class Own>
TWR_HOST_DEVICE inline Number published_rounded(double x, Own own, double inverse, double limit,
                                                bool& is_own) {
    const double scaled = multiply_down(x, inverse);
    if (inverse == 0 || !(std::fabs(scaled) < limit)) {
        is_own = true;
        return static_cast<Number>(x == 0 ? 0 : own);
    }
    is_own = false;
    return static_cast<Number>(static_cast<std::int64_t>(add_down(scaled, scaled < 0 ? -0.5 : 0.5)));
}

// The number to hash for a float32 given as x and its bits. Four of them, the first lowest, are a
// block; after the block's hash, h1 ^= is_own of number j << j.
TWR_HOST_DEVICE inline std::uint32_t published_number(float x, std::uint32_t own, double inverse,
                                                      bool& is_own) {
    if (x != x) own = 0x7FC00000U;
    return published_rounded<std::uint32_t>(static_cast<double>(x), own, inverse, 0x1p31 - 1, is_own);
}

// The same for the 64 bits of a float64 or a 64-bit integer, two of them a block. x: the float64;
// used for f64 only.
TWR_HOST_DEVICE inline std::uint64_t published_number(double x, std::uint64_t own, ComputeType type,
                                                      double inverse, bool& is_own) {
    double step = inverse;
    if (type == ComputeType::f64) {
        if (x != x) own = 0x7FF8000000000000ULL;
    } else {
        const auto as_signed = static_cast<std::int64_t>(own);
        const bool negative = type == ComputeType::i64 && as_signed < 0;
        x = negative ? static_cast<double>(as_signed) : static_cast<double>(own);
        if ((negative ? ~own + 1 : own) > kLargestExactInteger) step = 0;  // by its own bits
        if (step == 0) x = 1;  // so that only a true zero is taken for zero below
        if (own == 0) x = 0;
    }
    return published_rounded<std::uint64_t>(x, own, step, 0x1p40, is_own);
}

// published_block() for device code too: the hash of {first, second} with the seed {h1, h2}, which
// it replaces.
TWR_HOST_DEVICE inline void published_join(const std::uint64_t* left, const std::uint64_t* right,
                                           std::uint64_t* parent) {
    std::uint64_t h1 = 0;
    std::uint64_t h2 = 0;
    murmur3f(left[0], left[1], h1, h2);
    murmur3f(right[0], right[1], h1, h2);
    parent[0] = h1;
    parent[1] = h2;
}

}  // namespace twinrun
