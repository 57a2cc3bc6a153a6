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
#include <span>
#include <type_traits>

#include "digest/coefficients.hpp"
#include "digest/digest.hpp"

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

// ---- digest_bytes.cpp: compiled for any processor, as more than one backend uses it ----

// Digits of `kBits` bits of the coefficients of a block, plane by plane.
template <class T, unsigned kDigitBits, unsigned kDigits>
struct Digits {
    static constexpr unsigned kBits = kDigitBits;
    static constexpr unsigned kPlanes = kDigits;
    // A line more than needed: planes that begin at the same place of every page slow loads down.
    alignas(64) std::array<std::array<T, kLargestBlock + 64 / sizeof(T)>, kPlanes> plane;
};
using ByteDigits8 = Digits<std::int8_t, 8, 8>;  // for VNNI
using ByteDigits7 = Digits<std::int8_t, 7, 9>;  // for AVX2
// For 16-bit scalars: two products are at most 2^26, and kMostAdded times that below 2^31.
using Digits16 = Digits<std::int16_t, 11, 6>;
inline constexpr std::size_t kMostAdded = 31;
// Made at first use, then constant.
const ByteDigits8& byte_digits_8();
const ByteDigits7& byte_digits_7();
const Digits16& digits_16();

// From the sums of products with each digit of `bits` bits to the digest. n: scalars.
// Of one byte; those with a sign had a bias of 2^7.
void take_bytes(std::span<const std::int64_t> sums, unsigned bits, DType scalar, std::size_t n,
                BlockDigest* out);
// Of two bytes; those without a sign had a bias of -2^15.
void take_16(std::span<const std::int64_t> sums, DType scalar, std::size_t n, std::uint64_t nans,
             BlockDigest* out);

inline constexpr std::int16_t kBfloat16Nan = kBinary32Nan >> 16;

}  // namespace twinrun
