// With VNNI, 64 bytes a step. Of bytes, four products are added to each of 16 sums of 32 bits: at
// most 4 * 64 products of at most 255 * 128, and all 16 sums together stay below 2^31. Of 16-bit
// scalars two products are.
#include <immintrin.h>

#include <algorithm>

#include "digest/digest_bytes.hpp"

#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers build "undefined" vectors from themselves (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace twinrun {

namespace {

constexpr std::size_t kStep = 64;
using ByteDigits = ByteDigits8;

// The prefetchers of the hardware stop at every page, which is every block. What the next blocks
// begin with is fetched while these are worked on.
template <std::size_t kBlocks>
void prefetch(const std::byte* x) {
    _mm_prefetch(reinterpret_cast<const char*>(x) + kBlocks * kBlockBytes, _MM_HINT_T0);
}

// Blocks at once: as many as there are registers for their sums.
constexpr std::size_t kBytesTogether = 3;
constexpr std::size_t kHalvesTogether = 4;

// 64 scalars of one byte, without a sign.
template <DType kScalar>
[[gnu::always_inline]] inline __m512i unsigned_8(__m512i v, __mmask64 lanes) {
    if constexpr (kScalar == DType::i8)
        return _mm512_maskz_mov_epi8(lanes, _mm512_xor_si512(v, _mm512_set1_epi8(-128)));
    if constexpr (kScalar == DType::boolean)
        return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(v, v), _mm512_set1_epi8(1));
    return v;
}

template <DType kScalar, std::size_t kBlocks>
void blocks_8(const std::byte* x, std::size_t n, BlockDigest* out) {
    const ByteDigits& table = byte_digits_8();
    __m512i sums[kBlocks][ByteDigits::kPlanes]{};
    const auto add = [&](std::size_t i, const __m512i* v) {
#pragma GCC unroll 8
        for (unsigned k = 0; k < ByteDigits::kPlanes; ++k) {
            const __m512i digit = _mm512_load_si512(&table.plane[k][i]);
#pragma GCC unroll 3
            for (std::size_t b = 0; b < kBlocks; ++b)
                sums[b][k] = _mm512_dpbusd_epi32(sums[b][k], v[b], digit);
        }
    };
    std::size_t i = 0;
    for (; i + kStep <= n; i += kStep) {
        __m512i v[kBlocks];
#pragma GCC unroll 3
        for (std::size_t b = 0; b < kBlocks; ++b) {
            prefetch<kBlocks>(x + b * kBlockBytes + i);
            v[b] = unsigned_8<kScalar>(_mm512_loadu_si512(x + b * kBlockBytes + i), ~0ULL);
        }
        add(i, v);
    }
    if (i < n) {  // then there is one block
        const __mmask64 lanes = (1ULL << (n - i)) - 1;
        const __m512i v[kBlocks] = {unsigned_8<kScalar>(_mm512_maskz_loadu_epi8(lanes, x + i), lanes)};
        add(i, v);
    }
    for (std::size_t b = 0; b < kBlocks; ++b) {
        std::array<std::int64_t, ByteDigits::kPlanes> all;
        for (unsigned k = 0; k < ByteDigits::kPlanes; ++k)
            all[k] = _mm512_reduce_add_epi32(sums[b][k]);
        take_bytes(all, ByteDigits::kBits, kScalar, n, out + b);
    }
}

// 32 scalars of 16 bits, with a sign.
template <DType kScalar>
[[gnu::always_inline]] inline __m512i signed_16(__m512i v, __mmask32 lanes, std::uint64_t* nans) {
    if constexpr (kScalar == DType::u16)
        return _mm512_maskz_mov_epi16(lanes, _mm512_xor_si512(v, _mm512_set1_epi16(INT16_MIN)));
    if constexpr (kScalar == DType::bf16) {
        const __m512i magnitude = _mm512_and_si512(v, _mm512_set1_epi16(0x7FFF));
        const __mmask32 nan = _mm512_cmpgt_epu16_mask(magnitude, _mm512_set1_epi16(0x7F80));
        *nans += static_cast<unsigned>(__builtin_popcount(nan));
        v = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(magnitude, magnitude), v);  // -0.0 is 0
        v = _mm512_mask_mov_epi16(v, nan, _mm512_set1_epi16(kBfloat16Nan));
    }
    return v;
}

__m512i widened(__m512i sums) {
    return _mm512_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(sums)),
                            _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(sums, 1)));
}

template <DType kScalar, std::size_t kBlocks>
void blocks_16(const std::byte* x, std::size_t n, BlockDigest* out) {
    constexpr std::size_t kScalars = kStep / 2;
    const Digits16& table = digits_16();
    __m512i wide[kBlocks][Digits16::kPlanes]{};
    std::uint64_t nans[kBlocks]{};
    const std::size_t whole = n / kScalars * kScalars;
    for (std::size_t i = 0; i < n;) {
        __m512i sums[kBlocks][Digits16::kPlanes]{};
        const auto add = [&](const __m512i* v) {
#pragma GCC unroll 6
            for (unsigned k = 0; k < Digits16::kPlanes; ++k) {
                const __m512i digit = _mm512_load_si512(&table.plane[k][i]);
#pragma GCC unroll 4
                for (std::size_t b = 0; b < kBlocks; ++b)
                    sums[b][k] = _mm512_dpwssd_epi32(sums[b][k], v[b], digit);
            }
        };
        if (i == whole) {  // then there is one block
            const auto lanes = static_cast<__mmask32>((1U << (n - i)) - 1);
            const __m512i v[kBlocks] = {
                signed_16<kScalar>(_mm512_maskz_loadu_epi16(lanes, x + 2 * i), lanes, nans)};
            add(v);
            i = n;
        }
        const std::size_t end = std::min(whole, i + kMostAdded * kScalars);
        for (; i < end; i += kScalars) {
            __m512i v[kBlocks];
#pragma GCC unroll 4
            for (std::size_t b = 0; b < kBlocks; ++b) {
                const std::byte* const from = x + b * kBlockBytes + 2 * i;
                prefetch<kBlocks>(from);
                v[b] = signed_16<kScalar>(_mm512_loadu_si512(from), ~0U, nans + b);
            }
            add(v);
        }
        for (std::size_t b = 0; b < kBlocks; ++b) {
            for (unsigned k = 0; k < Digits16::kPlanes; ++k)
                wide[b][k] = _mm512_add_epi64(wide[b][k], widened(sums[b][k]));
        }
    }
    for (std::size_t b = 0; b < kBlocks; ++b) {
        std::array<std::int64_t, Digits16::kPlanes> all;
        for (unsigned k = 0; k < Digits16::kPlanes; ++k)
            all[k] = _mm512_reduce_add_epi64(wide[b][k]);
        take_16(all, kScalar, n, nans[b], out + b);
    }
}

template <DType kScalar>
void scalars_8(const std::byte* x, std::size_t n, BlockDigest* out) {
    in_groups<kBytesTogether>(x, 1, n, out,
                              [](auto blocks, const std::byte* from, std::size_t m, BlockDigest* to) {
                                  blocks_8<kScalar, blocks()>(from, m, to);
                              });
}
template <DType kScalar>
void scalars_16(const std::byte* x, std::size_t n, BlockDigest* out) {
    in_groups<kHalvesTogether>(x, 2, n, out,
                               [](auto blocks, const std::byte* from, std::size_t m, BlockDigest* to) {
                                   blocks_16<kScalar, blocks()>(from, m, to);
                               });
}

}  // namespace

void bytes_blocks_avx512(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out) {
    switch (scalar) {
        case DType::boolean: return scalars_8<DType::boolean>(x, n, out);
        case DType::i8: return scalars_8<DType::i8>(x, n, out);
        case DType::i16: return scalars_16<DType::i16>(x, n, out);
        case DType::u16: return scalars_16<DType::u16>(x, n, out);
        case DType::bf16: return scalars_16<DType::bf16>(x, n, out);
        default: return scalars_8<DType::u8>(x, n, out);
    }
}

}  // namespace twinrun
