#include "record/sparse.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/codec.hpp"
#include "record/items.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace twinrun {

namespace {

constexpr std::size_t kWord = 64;          // items that one mask has
constexpr std::size_t kLongestGap = 255;   // zeros of a byte that has no item
constexpr std::size_t kNumbersBefore = 3;  // items, bytes of gaps, size of the gaps

// Bit i: item i is not zero. count: at most kWord items.
template <unsigned Width>
std::uint64_t mask_one_by_one(const std::byte* from, std::size_t count) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < count; ++i)
        mask |= std::uint64_t{item_at<Width>(from + i * Width) != 0} << i;
    return mask;
}

#if defined(__SSE2__)

// The same of kWord items.
template <unsigned Width>
std::uint64_t mask_of_word(const std::byte* from) {
    const __m128i zero = _mm_setzero_si128();
    const auto load = [&](std::size_t vector) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + vector);
    };
    // 16 items as bytes, 0xFF where one is zero.
    const auto zeros = [&](std::size_t part) {
        if constexpr (Width == 2) {
            return _mm_packs_epi16(_mm_cmpeq_epi16(load(2 * part), zero),
                                   _mm_cmpeq_epi16(load(2 * part + 1), zero));
        } else {
            __m128i halves[2];
            for (std::size_t h = 0; h < 2; ++h) {
                const std::size_t at = 4 * part + 2 * h;
                halves[h] =
                    _mm_packs_epi32(_mm_cmpeq_epi32(load(at), zero), _mm_cmpeq_epi32(load(at + 1), zero));
            }
            return _mm_packs_epi16(halves[0], halves[1]);
        }
    };
    std::uint64_t mask = 0;
    for (std::size_t part = 0; part < 4; ++part) {
        const auto sixteen = static_cast<unsigned>(_mm_movemask_epi8(zeros(part))) ^ 0xFFFFU;
        mask |= std::uint64_t{sixteen} << (16 * part);
    }
    return mask;
}
template <>
std::uint64_t mask_of_word<8>(const std::byte* from) {
    return mask_one_by_one<8>(from, kWord);
}

#else

template <unsigned Width>
std::uint64_t mask_of_word(const std::byte* from) {
    return mask_one_by_one<Width>(from, kWord);
}

#endif

template <unsigned Width, typename Take>
void each_mask(std::span<const std::byte> from, Take take) {
    const std::size_t items = from.size() / Width;
    std::size_t item = 0;
    for (; item + kWord <= items; item += kWord)
        take(item, mask_of_word<Width>(from.data() + item * Width));
    if (item != items) take(item, mask_one_by_one<Width>(from.data() + item * Width, items - item));
}

template <unsigned Width>
std::size_t count_items(std::span<const std::byte> from) {
    std::size_t count = 0;
    each_mask<Width>(from, [&](std::size_t, std::uint64_t mask) {
        count += static_cast<std::size_t>(std::popcount(mask));
    });
    return count;
}

// Plane j of the items lies from j * count on. Returns the bytes of gaps.
template <unsigned Width>
std::size_t gather(std::span<const std::byte> from, std::size_t count, SparseScratch& scratch) {
    const std::size_t most_gaps = count + from.size() / Width / kLongestGap;
    if (scratch.gaps.size() < most_gaps) scratch.gaps.resize(most_gaps);
    if (scratch.values.size() < count * Width) scratch.values.resize(count * Width);
    std::byte* gap = scratch.gaps.data();
    std::byte* const values = scratch.values.data();
    std::size_t next = 0;  // behind the item before
    std::size_t done = 0;
    each_mask<Width>(from, [&](std::size_t first, std::uint64_t mask) {
        for (; mask != 0; mask &= mask - 1) {
            const std::size_t item = first + static_cast<std::size_t>(std::countr_zero(mask));
            std::size_t zeros = item - next;
            for (; zeros >= kLongestGap; zeros -= kLongestGap)
                *gap++ = std::byte{kLongestGap};
            *gap++ = static_cast<std::byte>(zeros);
            next = item + 1;
            const std::uint64_t value = item_at<Width>(from.data() + item * Width);
            for (unsigned plane = 0; plane < Width; ++plane)
                values[plane * count + done] = static_cast<std::byte>(value >> (8 * plane));
            ++done;
        }
    });
    return static_cast<std::size_t>(gap - scratch.gaps.data());
}

// One lock at a time: nobody waits in a circle.
class OneLock {
   public:
    OneLock() = default;
    ~OneLock() { change(nullptr); }
    OneLock(const OneLock&) = delete;
    OneLock& operator=(const OneLock&) = delete;
    void change(std::mutex* to) {
        if (held_ != nullptr) held_->unlock();
        held_ = to;
        if (held_ != nullptr) held_->lock();
    }

   private:
    std::mutex* held_ = nullptr;
};

// XORs the items with those at their places. items: of the block. Returns whether the gaps have as
// many as there are, and no more zeros than fit.
template <unsigned Width>
bool scatter(std::span<const std::byte> gaps, const std::byte* values, std::size_t count, std::size_t items,
             std::span<const SparsePiece> pieces) {
    auto next = pieces.begin();
    // The piece that the walk is in or behind: its items, and its bytes.
    std::size_t begin = 0;
    std::size_t end = 0;
    std::byte* to = nullptr;
    OneLock held;
    std::size_t item = 0;
    std::size_t done = 0;
    for (const std::byte gap : gaps) {
        item += std::to_integer<std::size_t>(gap);
        if (std::to_integer<std::size_t>(gap) == kLongestGap) continue;
        if (item >= items || done == count) return false;
        while (item >= end && next != pieces.end()) {
            begin = next->begin / Width;
            end = begin + next->to.size() / Width;
            to = next->to.data();
            held.change(next->lock);
            ++next;
        }
        if (item >= begin && item < end) {
            std::uint64_t wide = 0;
            for (unsigned plane = 0; plane < Width; ++plane)
                wide |= std::to_integer<std::uint64_t>(values[plane * count + done]) << (8 * plane);
            std::byte* const at = to + (item - begin) * Width;
            put_item<Width>(at, static_cast<ItemOf<Width>>(wide ^ item_at<Width>(at)));
        }
        ++item;
        ++done;
    }
    return done == count && item <= items;
}

template <unsigned Width>
std::size_t pack(Compressor& compressor, std::span<const std::byte> from, SparseScratch& scratch,
                 std::span<std::byte> to) {
    const std::size_t count = count_items<Width>(from);
    if (count > from.size() / Width / 2) return 0;
    const std::size_t gaps = gather<Width>(from, count, scratch);
    std::size_t used = 4 * (kNumbersBefore + Width);
    if (used > to.size()) return 0;
    put_plane_number(to.data(), static_cast<std::uint32_t>(count));
    put_plane_number(to.data() + 4, static_cast<std::uint32_t>(gaps));
    for (unsigned column = 0; column <= Width; ++column) {
        const auto bytes =
            column == 0 ? std::span<const std::byte>(scratch.gaps).first(gaps)
                        : std::span<const std::byte>(scratch.values).subspan((column - 1) * count, count);
        std::uint32_t said = 0;
        auto coder = PlaneCoder::literals;
        const auto size = pack_plane(compressor, bytes, 1, coder, to.subspan(used), said);
        if (!size) return 0;
        put_plane_number(to.data() + 4 * (2 + column), said);
        used += *size;
    }
    return used;
}

template <unsigned Width>
Result<> mix(Compressor& compressor, std::span<const std::byte> from, SparseScratch& scratch,
             std::size_t bytes, std::span<const SparsePiece> pieces) {
    const auto damaged = [](const char* what) { return Error{ErrorCode::damaged, what}; };
    constexpr std::size_t kNumbers = 4 * (kNumbersBefore + Width);
    const std::size_t items = bytes / Width;
    if (bytes % Width != 0 || from.size() < kNumbers) return damaged("planes that are cut short");
    Decoder numbers(from);
    const std::size_t count = numbers.get<std::uint32_t>();
    const std::size_t gaps = numbers.get<std::uint32_t>();
    if (count > items || gaps < count || gaps - count > items / kLongestGap)
        return damaged("more items than a block has");
    if (scratch.gaps.size() < gaps) scratch.gaps.resize(gaps);
    if (scratch.values.size() < count * Width) scratch.values.resize(count * Width);
    auto left = from.subspan(kNumbers);
    TWR_CHECK(
        unpack_plane(compressor, numbers.get<std::uint32_t>(), left, std::span(scratch.gaps).first(gaps)));
    for (unsigned plane = 0; plane < Width; ++plane) {
        TWR_CHECK(unpack_plane(compressor, numbers.get<std::uint32_t>(), left,
                               std::span(scratch.values).subspan(plane * count, count)));
    }
    if (!left.empty()) return damaged("bytes behind the last plane");
    const auto gap_bytes = std::span<const std::byte>(scratch.gaps).first(gaps);
    if (!scatter<Width>(gap_bytes, scratch.values.data(), count, items, pieces))
        return damaged("gaps that do not fit the items of a block");
    return success();
}

}  // namespace

std::size_t pack_sparse(Compressor& compressor, std::span<const std::byte> from, unsigned width,
                        SparseScratch& scratch, std::span<std::byte> to) {
    switch (width) {
        case 2: return pack<2>(compressor, from, scratch, to);
        case 4: return pack<4>(compressor, from, scratch, to);
        default: return pack<8>(compressor, from, scratch, to);
    }
}

Result<> unpack_sparse(Compressor& compressor, std::span<const std::byte> from, unsigned width,
                       SparseScratch& scratch, std::span<std::byte> to) {
    if (!to.empty()) std::memset(to.data(), 0, to.size());
    const SparsePiece all{0, to};
    return mix_sparse(compressor, from, width, scratch, to.size(), {&all, 1});
}

Result<> mix_sparse(Compressor& compressor, std::span<const std::byte> from, unsigned width,
                    SparseScratch& scratch, std::size_t bytes, std::span<const SparsePiece> pieces) {
    switch (width) {
        case 2: return mix<2>(compressor, from, scratch, bytes, pieces);
        case 4: return mix<4>(compressor, from, scratch, bytes, pieces);
        default: return mix<8>(compressor, from, scratch, bytes, pieces);
    }
}

}  // namespace twinrun
