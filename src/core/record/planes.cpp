#include "record/planes.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/codec.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace twinrun {

namespace {

#if defined(__SSE2__)

constexpr std::size_t kVector = 16;

// Vectors of Width are split in as many rounds as 2 goes into Width by halving: a round puts the
// even bytes of all vectors before the odd ones.
template <unsigned Width>
std::size_t split_vectors(const std::byte* from, std::size_t items, std::byte* to) {
    const __m128i low = _mm_set1_epi16(0xFF);
    std::size_t item = 0;
    for (; item + kVector <= items; item += kVector) {
        __m128i now[Width];
        for (unsigned v = 0; v < Width; ++v)
            now[v] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + item * Width + v * kVector));
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
template <unsigned Width>
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
        for (unsigned v = 0; v < Width; ++v)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + item * Width + v * kVector), now[v]);
    }
    return item;
}

#else

template <unsigned Width>
std::size_t split_vectors(const std::byte*, std::size_t, std::byte*) {
    return 0;
}
template <unsigned Width>
std::size_t join_vectors(const std::byte*, std::size_t, std::byte*) {
    return 0;
}

#endif

// Calls move(in items, in planes) for the places of each byte of the items from `first` on.
template <unsigned Width, typename Move>
void each_byte(std::size_t first, std::size_t items, Move move) {
    for (std::size_t item = first; item < items; ++item) {
        for (unsigned plane = 0; plane < Width; ++plane)
            move(item * Width + plane, plane * items + item);
    }
}

template <unsigned Width>
void split(std::span<const std::byte> from, std::byte* to) {
    const std::size_t items = from.size() / Width;
    each_byte<Width>(split_vectors<Width>(from.data(), items, to), items,
                     [&](std::size_t item, std::size_t plane) { to[plane] = from[item]; });
}
template <unsigned Width>
void join(std::span<const std::byte> from, std::byte* to) {
    const std::size_t items = from.size() / Width;
    each_byte<Width>(join_vectors<Width>(from.data(), items, to), items,
                     [&](std::size_t item, std::size_t plane) { to[item] = from[plane]; });
}

constexpr std::uint32_t kPlaneStored = std::uint32_t{1} << 31;

void put_size(std::byte* to, std::uint32_t size) {
    for (unsigned i = 0; i < 4; ++i)
        to[i] = static_cast<std::byte>(size >> (8 * i));
}

}  // namespace

void split_planes(std::span<const std::byte> from, unsigned width, std::byte* to) {
    switch (width) {
        case 2: return split<2>(from, to);
        case 4: return split<4>(from, to);
        default: return split<8>(from, to);
    }
}
void join_planes(std::span<const std::byte> from, unsigned width, std::byte* to) {
    switch (width) {
        case 2: return join<2>(from, to);
        case 4: return join<4>(from, to);
        default: return join<8>(from, to);
    }
}

std::size_t pack_planes(Compressor& compressor, std::span<const std::byte> from, unsigned width, int level,
                        std::vector<std::byte>& scratch, std::span<std::byte> to) {
    if (scratch.size() < from.size()) scratch.resize(from.size());
    split_planes(from, width, scratch.data());
    const std::size_t plane_bytes = from.size() / width;
    std::size_t used = 4 * std::size_t{width};
    for (unsigned plane = 0; plane < width; ++plane) {
        if (used > to.size()) return 0;
        const auto bytes = std::span<const std::byte>(scratch).subspan(plane * plane_bytes, plane_bytes);
        // What saves less than a 64th is not worth the time of reading it.
        const std::size_t room = std::min(to.size() - used, plane_bytes - plane_bytes / 64);
        std::size_t size = compressor.pack(bytes, to.subspan(used, room), level);
        std::uint32_t said = static_cast<std::uint32_t>(size);
        if (size == 0) {
            if (plane_bytes > to.size() - used) return 0;
            if (plane_bytes != 0) std::memcpy(to.data() + used, bytes.data(), plane_bytes);
            size = plane_bytes;
            said = static_cast<std::uint32_t>(size) | kPlaneStored;
        }
        put_size(to.data() + 4 * plane, said);
        used += size;
    }
    return used;
}

Result<> unpack_planes(Compressor& compressor, std::span<const std::byte> from, unsigned width,
                       std::vector<std::byte>& scratch, std::span<std::byte> to) {
    const auto damaged = [](const char* what) { return Error{ErrorCode::damaged, what}; };
    if (to.size() % width != 0 || from.size() < 4 * std::size_t{width})
        return damaged("planes that are cut short");
    if (scratch.size() < to.size()) scratch.resize(to.size());
    const std::size_t plane_bytes = to.size() / width;
    Decoder sizes(from);
    auto left = from.subspan(4 * std::size_t{width});
    for (unsigned plane = 0; plane < width; ++plane) {
        const auto said = sizes.get<std::uint32_t>();
        const std::size_t size = said & ~kPlaneStored;
        const auto into = std::span(scratch).subspan(plane * plane_bytes, plane_bytes);
        if (size > left.size()) return damaged("planes that are cut short");
        if ((said & kPlaneStored) == 0) {
            TWR_CHECK(compressor.unpack(left.first(size), into));
        } else {
            if (size != plane_bytes) return damaged("a plane of another size than its items say");
            if (size != 0) std::memcpy(into.data(), left.data(), size);
        }
        left = left.subspan(size);
    }
    if (!left.empty()) return damaged("bytes behind the last plane");
    join_planes(std::span<const std::byte>(scratch).first(to.size()), width, to.data());
    return success();
}

}  // namespace twinrun
