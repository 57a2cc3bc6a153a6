#include "record/planes.hpp"

#include <bit>
#include <cstdint>

#include "base/codec.hpp"
#include "record/items.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace twinrun {

namespace {

#if defined(__SSE2__)

constexpr std::size_t kVector = 16;

// Every item with its top bit, the sign of a number, moved behind its lowest one.
template <unsigned Width>
__m128i sign_last(__m128i items) {
    if constexpr (Width == 2) {
        return _mm_or_si128(_mm_slli_epi16(items, 1), _mm_srli_epi16(items, 15));
    } else if constexpr (Width == 4) {
        return _mm_or_si128(_mm_slli_epi32(items, 1), _mm_srli_epi32(items, 31));
    } else {
        return _mm_or_si128(_mm_slli_epi64(items, 1), _mm_srli_epi64(items, 63));
    }
}
template <unsigned Width>
__m128i sign_first(__m128i items) {
    if constexpr (Width == 2) {
        return _mm_or_si128(_mm_srli_epi16(items, 1), _mm_slli_epi16(items, 15));
    } else if constexpr (Width == 4) {
        return _mm_or_si128(_mm_srli_epi32(items, 1), _mm_slli_epi32(items, 31));
    } else {
        return _mm_or_si128(_mm_srli_epi64(items, 1), _mm_slli_epi64(items, 63));
    }
}

// Vectors of Width are split in as many rounds as 2 goes into Width by halving: a round puts the
// even bytes of all vectors before the odd ones.
template <unsigned Width, bool SignLast>
std::size_t split_vectors(const std::byte* from, std::size_t items, std::byte* to) {
    const __m128i low = _mm_set1_epi16(0xFF);
    std::size_t item = 0;
    for (; item + kVector <= items; item += kVector) {
        __m128i now[Width];
        for (unsigned v = 0; v < Width; ++v)
            now[v] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + item * Width + v * kVector));
        for (unsigned v = 0; SignLast && v < Width; ++v)
            now[v] = sign_last<Width>(now[v]);
        for (unsigned round = 1; round < Width; round *= 2) {
            __m128i next[Width];
            for (unsigned v = 0; v < Width / 2; ++v) {
                const __m128i a = now[2 * v];
                const __m128i b = now[2 * v + 1];
                next[v] = _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
                next[v + Width / 2] = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
            }
            for (unsigned v = 0; v < Width; ++v)
                now[v] = next[v];
        }
        for (unsigned v = 0; v < Width; ++v)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + v * items + item), now[v]);
    }
    return item;
}

// The opposite: a round puts bytes of the second half of the vectors behind those of the first.
template <unsigned Width, bool SignLast>
std::size_t join_vectors(const std::byte* from, std::size_t items, std::byte* to) {
    std::size_t item = 0;
    for (; item + kVector <= items; item += kVector) {
        __m128i now[Width];
        for (unsigned v = 0; v < Width; ++v)
            now[v] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + v * items + item));
        for (unsigned round = 1; round < Width; round *= 2) {
            __m128i next[Width];
            for (unsigned v = 0; v < Width / 2; ++v) {
                next[2 * v] = _mm_unpacklo_epi8(now[v], now[v + Width / 2]);
                next[2 * v + 1] = _mm_unpackhi_epi8(now[v], now[v + Width / 2]);
            }
            for (unsigned v = 0; v < Width; ++v)
                now[v] = next[v];
        }
        for (unsigned v = 0; SignLast && v < Width; ++v)
            now[v] = sign_first<Width>(now[v]);
        for (unsigned v = 0; v < Width; ++v)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + item * Width + v * kVector), now[v]);
    }
    return item;
}

#else

template <unsigned Width, bool SignLast>
std::size_t split_vectors(const std::byte*, std::size_t, std::byte*) {
    return 0;
}
template <unsigned Width, bool SignLast>
std::size_t join_vectors(const std::byte*, std::size_t, std::byte*) {
    return 0;
}

#endif

template <unsigned Width, bool SignLast>
void split(std::span<const std::byte> from, std::byte* to) {
    const std::size_t items = from.size() / Width;
    for (std::size_t item = split_vectors<Width, SignLast>(from.data(), items, to); item < items; ++item) {
        auto value = item_at<Width>(from.data() + item * Width);
        if (SignLast) value = std::rotl(value, 1);
        for (unsigned plane = 0; plane < Width; ++plane)
            to[plane * items + item] = static_cast<std::byte>(value >> (8 * plane));
    }
}
template <unsigned Width, bool SignLast>
void join(std::span<const std::byte> from, std::byte* to) {
    const std::size_t items = from.size() / Width;
    for (std::size_t item = join_vectors<Width, SignLast>(from.data(), items, to); item < items; ++item) {
        ItemOf<Width> value = 0;
        for (unsigned plane = 0; plane < Width; ++plane)
            value |= static_cast<ItemOf<Width>>(std::to_integer<std::uint64_t>(from[plane * items + item])
                                                << (8 * plane));
        if (SignLast) value = std::rotr(value, 1);
        put_item<Width>(to + item * Width, value);
    }
}

}  // namespace

void split_planes(std::span<const std::byte> from, PlaneItems items, std::byte* to) {
    switch (items.width) {
        case 2: return items.sign_last ? split<2, true>(from, to) : split<2, false>(from, to);
        case 4: return items.sign_last ? split<4, true>(from, to) : split<4, false>(from, to);
        default: return items.sign_last ? split<8, true>(from, to) : split<8, false>(from, to);
    }
}
void join_planes(std::span<const std::byte> from, PlaneItems items, std::byte* to) {
    switch (items.width) {
        case 2: return items.sign_last ? join<2, true>(from, to) : join<2, false>(from, to);
        case 4: return items.sign_last ? join<4, true>(from, to) : join<4, false>(from, to);
        default: return items.sign_last ? join<8, true>(from, to) : join<8, false>(from, to);
    }
}

std::size_t pack_planes(Compressor& compressor, std::span<const std::byte> from, PlaneItems items, int level,
                        PlaneCoders& coders, std::vector<std::byte>& scratch, std::span<std::byte> to) {
    if (scratch.size() < from.size()) scratch.resize(from.size());
    split_planes(from, items, scratch.data());
    const std::size_t plane_bytes = from.size() / items.width;
    std::size_t used = 4 * std::size_t{items.width};
    for (unsigned plane = 0; plane < items.width; ++plane) {
        if (used > to.size()) return 0;
        const auto bytes = std::span<const std::byte>(scratch).subspan(plane * plane_bytes, plane_bytes);
        std::uint32_t said = 0;
        const auto size = pack_plane(compressor, bytes, level, coders[plane], to.subspan(used), said);
        if (!size) return 0;
        put_plane_number(to.data() + 4 * plane, said);
        used += *size;
    }
    return used;
}

Result<> unpack_planes(Compressor& compressor, std::span<const std::byte> from, PlaneItems items,
                       std::vector<std::byte>& scratch, std::span<std::byte> to) {
    const auto damaged = [](const char* what) { return Error{ErrorCode::damaged, what}; };
    const std::size_t width = items.width;
    if (to.size() % width != 0 || from.size() < 4 * width) return damaged("planes that are cut short");
    if (scratch.size() < to.size()) scratch.resize(to.size());
    const std::size_t plane_bytes = to.size() / width;
    Decoder sizes(from);
    auto left = from.subspan(4 * width);
    for (std::size_t plane = 0; plane < width; ++plane) {
        const auto said = sizes.get<std::uint32_t>();
        TWR_CHECK(unpack_plane(compressor, said, left,
                               std::span(scratch).subspan(plane * plane_bytes, plane_bytes)));
    }
    if (!left.empty()) return damaged("bytes behind the last plane");
    join_planes(std::span<const std::byte>(scratch).first(to.size()), items, to.data());
    return success();
}

}  // namespace twinrun
