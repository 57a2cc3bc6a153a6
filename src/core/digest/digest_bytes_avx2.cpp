// 32 bytes a step. Two products of a byte and a 7-bit digit are added in 16 bits, where
// 2 * 255 * 64 is the most, and then in 32 bits. Two products of 16-bit scalars are added in 32
// bits at once.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "digest/digest_bytes.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kStep = 32;
using ByteDigits = ByteDigits7;

__m256i load(const void* x) { return _mm256_loadu_si256(static_cast<const __m256i*>(x)); }
void put(void* x, __m256i v) { _mm256_store_si256(static_cast<__m256i*>(x), v); }

// The sums of 32 bits in four of 64.
__m256i widened(__m256i v) {
    return _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(v)),
                            _mm256_cvtepi32_epi64(_mm256_extracti128_si256(v, 1)));
}
std::int64_t sum_of_lanes(__m256i v) {
    alignas(32) std::array<std::int64_t, 4> lanes;
    put(lanes.data(), v);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

// The bytes of a block: n of them, and zeros up to a whole step.
using Bytes = std::array<std::uint8_t, kBlockBytes>;

void digest_bytes(const std::uint8_t* bytes, DType scalar, std::size_t n, BlockDigest* out) {
    const ByteDigits& table = byte_digits_7();
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums[ByteDigits::kPlanes]{};
    for (std::size_t i = 0; i < n; i += kStep) {
        const __m256i v = load(bytes + i);
#pragma GCC unroll 9
        for (unsigned k = 0; k < ByteDigits::kPlanes; ++k) {
            const __m256i pairs = _mm256_maddubs_epi16(v, load(&table.plane[k][i]));
            sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(pairs, ones));
        }
    }
    std::array<std::int64_t, ByteDigits::kPlanes> all;
    for (unsigned k = 0; k < ByteDigits::kPlanes; ++k)
        all[k] = sum_of_lanes(widened(sums[k]));
    take_bytes(all, ByteDigits::kBits, scalar, n, out);
}

void block_8(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out) {
    if (scalar == DType::u8 && n % kStep == 0)
        return digest_bytes(reinterpret_cast<const std::uint8_t*>(x), scalar, n, out);
    alignas(32) Bytes bytes;
    const std::size_t whole = n / kStep * kStep;
    const auto prepare = [&](std::size_t at, __m256i v) {
        if (scalar == DType::i8) v = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
        if (scalar == DType::boolean) {
            const __m256i zero = _mm256_cmpeq_epi8(v, _mm256_setzero_si256());
            v = _mm256_andnot_si256(zero, _mm256_set1_epi8(1));
        }
        put(bytes.data() + at, v);
    };
    for (std::size_t i = 0; i < whole; i += kStep)
        prepare(i, load(x + i));
    if (whole != n) {
        alignas(32) std::array<std::byte, kStep> rest{};
        std::memcpy(rest.data(), x + whole, n - whole);
        prepare(whole, load(rest.data()));
        std::memset(bytes.data() + n, 0, whole + kStep - n);
    }
    digest_bytes(bytes.data(), scalar, n, out);
}

// 16 scalars of 16 bits, with a sign.
template <DType kScalar>
__m256i signed_16(__m256i v, std::uint64_t* nans) {
    if constexpr (kScalar == DType::u16) return _mm256_xor_si256(v, _mm256_set1_epi16(INT16_MIN));
    if constexpr (kScalar == DType::bf16) {
        const __m256i magnitude = _mm256_and_si256(v, _mm256_set1_epi16(0x7FFF));
        const __m256i nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7F80));
        const __m256i zero = _mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256());  // -0.0 is 0
        *nans +=
            static_cast<unsigned>(__builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(nan)))) / 2;
        v = _mm256_blendv_epi8(_mm256_andnot_si256(zero, v), _mm256_set1_epi16(kBfloat16Nan), nan);
    }
    return v;
}

template <DType kScalar>
void block_16(const std::byte* x, std::size_t n, BlockDigest* out) {
    constexpr std::size_t kScalars = kStep / 2;
    const Digits16& table = digits_16();
    __m256i wide[Digits16::kPlanes]{};
    std::uint64_t nans = 0;
    for (std::size_t i = 0; i < n;) {
        const std::size_t end = std::min(n, i + kMostAdded * kScalars);
        __m256i sums[Digits16::kPlanes]{};
        for (; i < end; i += kScalars) {
            __m256i v = _mm256_setzero_si256();
            if (n - i >= kScalars) {
                v = signed_16<kScalar>(load(x + 2 * i), &nans);
            } else {
                alignas(32) std::array<std::uint16_t, kScalars> rest{};
                std::memcpy(rest.data(), x + 2 * i, 2 * (n - i));
                put(rest.data(), signed_16<kScalar>(load(rest.data()), &nans));
                std::memset(rest.data() + (n - i), 0, 2 * (kScalars - (n - i)));
                v = load(rest.data());
            }
#pragma GCC unroll 6
            for (unsigned k = 0; k < Digits16::kPlanes; ++k)
                sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(v, load(&table.plane[k][i])));
        }
        for (unsigned k = 0; k < Digits16::kPlanes; ++k)
            wide[k] = _mm256_add_epi64(wide[k], widened(sums[k]));
    }
    std::array<std::int64_t, Digits16::kPlanes> all;
    for (unsigned k = 0; k < Digits16::kPlanes; ++k)
        all[k] = sum_of_lanes(wide[k]);
    take_16(all, kScalar, n, nans, out);
}

}  // namespace

void bytes_blocks_avx2(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out) {
    const auto block = [scalar](auto, const std::byte* from, std::size_t m, BlockDigest* to) {
        switch (scalar) {
            case DType::i16: return block_16<DType::i16>(from, m, to);
            case DType::u16: return block_16<DType::u16>(from, m, to);
            case DType::bf16: return block_16<DType::bf16>(from, m, to);
            default: return block_8(from, scalar, m, to);
        }
    };
    in_groups<1>(x, item_bytes(scalar), n, out, block);
}

}  // namespace twinrun
