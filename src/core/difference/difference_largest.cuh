// Private to difference_cuda.cu: the largest |a| of scalars of 1 or 2 bytes, two at a time, as
// numbers of 16 bits: of floating-point types their bits, of others their sizes.
#pragma once

#include <cstdint>

#include "difference/difference_stored.cuh"

namespace twinrun {

namespace {

// The larger of `top` and what these words hold, each half for itself. NaN and infinities are left
// out.
template <Kind kKind>
__device__ inline std::uint32_t packed_largest(std::uint32_t top, const Words<kKind>& words, DType scalar) {
    if constexpr (is_half(kKind)) {
        constexpr std::uint32_t infinity = kKind == Kind::f16 ? 0x7C00 : 0x7F80;
        std::uint32_t all = top;
#pragma unroll
        for (const std::uint32_t word : words.word)
            all = __vmaxu2(all, word & 0x7FFF7FFFU);
        if (((all + (0x8000 - infinity) * 0x10001U) & 0x80008000U) == 0) return all;
#pragma unroll
        for (std::uint32_t word : words.word) {
            word &= 0x7FFF7FFFU;
            if ((word & 0xFFFFU) >= infinity) word &= 0xFFFF0000U;
            if (word >> 16 >= infinity) word &= 0xFFFFU;
            top = __vmaxu2(top, word);
        }
    } else {
        const auto take = [&](const auto& numbers) {
#pragma unroll
            for (const std::uint32_t word : words.word)
                top = __vmaxu2(top, numbers(word));
        };
        const auto bytes_in = [](std::uint32_t word) {
            return __vmaxu2(word & 0x00FF00FFU, word >> 8 & 0x00FF00FFU);
        };
        switch (scalar) {
            case DType::i16: take([](std::uint32_t word) { return __vabs2(word); }); break;
            case DType::u16: take([](std::uint32_t word) { return word; }); break;
            case DType::i8: take([&](std::uint32_t word) { return bytes_in(__vabs4(word)); }); break;
            case DType::u8: take(bytes_in); break;
            default: take([](std::uint32_t word) { return word != 0 ? 1U : 0U; }); break;
        }
    }
    return top;
}

// The larger half's value.
template <Kind kKind>
__device__ inline float largest_packed(std::uint32_t top, DType scalar) {
    const std::uint32_t low = top & 0xFFFF;
    const std::uint32_t high = top >> 16;
    return from_narrow(high > low ? high : low, is_half(kKind) ? scalar : DType::u16);
}

}  // namespace

}  // namespace twinrun
