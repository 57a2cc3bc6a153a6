// Scalars of one or two bytes that stand for themselves: products with the digits of coefficients.
//
// A coefficient r_i is sum_k d_ik 2^(B k) with signed digits, |d_ik| <= 2^(B - 1); the last one is
// what is left. The digest of small x_i is sum_k 2^(B k) sum_i d_ik x_i, and the inner sums are
// what instructions for products of 8 or 16 bits make. Where these take scalars with a sign only,
// or without one only, others get a bias, which is taken off at the end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "digest/coefficients.hpp"
#include "digest/digest.hpp"
#include "digest/field61.hpp"

namespace twinrun {

// Whether the types have kernels here: booleans and integers of 8 and 16 bits, and bfloat16.
[[nodiscard]] constexpr bool has_bytes_kernel(DType scalar) {
    switch (scalar) {
        case DType::boolean:
        case DType::i8:
        case DType::u8:
        case DType::i16:
        case DType::u16:
        case DType::bf16: return true;
        default: return false;
    }
}

// x: n scalars of consecutive blocks, as they are stored, under the exact rule of their type; only
// the last block may be short. out: one for each block.
void bytes_blocks_avx2(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out);
void bytes_blocks_avx512(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out);

// Divides blocks among calls of blocks(x, scalars, out): kTogether whole ones, or one. All take the
// same digits of coefficients: several blocks at a time read these less often.
template <std::size_t kTogether, class Blocks>
void in_groups(const std::byte* x, std::size_t item, std::size_t n, BlockDigest* out, const Blocks& blocks) {
    const std::size_t whole = kBlockBytes / item;
    for (; n >= kTogether * whole; n -= kTogether * whole, x += kTogether * kBlockBytes, out += kTogether)
        blocks(std::integral_constant<std::size_t, kTogether>(), x, whole, out);
    for (; n != 0; x += kBlockBytes, ++out) {
        const std::size_t scalars = n < whole ? n : whole;
        blocks(std::integral_constant<std::size_t, 1>(), x, scalars, out);
        n -= scalars;
    }
}

// Digits of `kBits` bits of the coefficients of a block, plane by plane.
template <class T, unsigned kBits, unsigned kPlanes>
struct Digits {
    // A line more than needed: planes that begin at the same place of every page slow loads down.
    alignas(64) std::array<std::array<T, kLargestBlock + 64 / sizeof(T)>, kPlanes> plane;
};
template <class T, unsigned kBits, unsigned kPlanes>
const Digits<T, kBits, kPlanes>& digits() {
    // A coefficient has 60 bits, and the last digit a carry.
    static_assert(kBits * kPlanes >= 60 && 60 - kBits * (kPlanes - 1) < 8 * sizeof(T) - 1);
    static const Digits<T, kBits, kPlanes> once = [] {
        Digits<T, kBits, kPlanes> made{};
        for (std::size_t i = 0; i < kLargestBlock; ++i) {
            auto left = static_cast<std::int64_t>(coefficients().r[i]);
            for (unsigned k = 0; k < kPlanes; ++k) {
                constexpr std::int64_t half = 1LL << (kBits - 1);
                const bool is_last = k + 1 == kPlanes;
                const std::int64_t digit = is_last ? left : ((left + half) & (2 * half - 1)) - half;
                made.plane[k][i] = static_cast<T>(digit);
                left = (left - digit) >> kBits;
            }
        }
        return made;
    }();
    return once;
}

// sum_i r_i x_i, of the sums of products with each digit.
template <unsigned kBits, std::size_t kPlanes>
std::uint64_t joined(const std::array<std::int64_t, kPlanes>& sums) {
    std::uint64_t all = 0;
    for (std::size_t k = kPlanes; k-- > 0;)
        all = add61(multiply61(all, 1ULL << kBits), signed61(sums[k]));
    return all;
}

// For 16-bit scalars: two products are at most 2^26, and kMostAdded times that below 2^31.
inline constexpr unsigned kDigitBits16 = 11;
inline constexpr unsigned kPlanes16 = 6;
inline constexpr std::size_t kMostAdded = 31;
using Digits16 = Digits<std::int16_t, kDigitBits16, kPlanes16>;
inline const Digits16& digits_16() { return digits<std::int16_t, kDigitBits16, kPlanes16>(); }
inline constexpr std::int16_t kBfloat16Nan = kBinary32Nan >> 16;

// The sum of the coefficients of the first n scalars.
inline std::uint64_t coefficients_until(std::size_t n) {
    const Coefficients& table = coefficients();
    std::uint64_t sum = table.sums[n / 8];
    for (std::size_t i = n / 8 * 8; i < n; ++i)
        sum = add61(sum, table.r[i]);
    return sum;
}

// The digest of scalars of one byte, of their sum with a bias of 2^7 if they are signed.
inline void take_bytes(std::uint64_t sum, DType scalar, std::size_t n, BlockDigest* out) {
    if (scalar == DType::i8) sum = subtract61(sum, multiply61(coefficients_until(n), 1 << 7));
    *out = {sum, sum, {}};
}
// The same of two bytes, of which those without a sign had a bias of -2^15. A bfloat16 is the upper
// half of a float32.
inline void take_16(std::uint64_t sum, DType scalar, std::size_t n, std::uint64_t nans, BlockDigest* out) {
    if (scalar == DType::u16) sum = add61(sum, multiply61(coefficients_until(n), 1 << 15));
    if (scalar == DType::bf16) sum = multiply61(sum, 1 << 16);
    *out = {sum, sum, {nans, 0}};
}

}  // namespace twinrun
