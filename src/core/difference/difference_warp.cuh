// Private to difference_cuda.cu: the work of one warp. The algorithm is that of
// difference_lanes.hpp, over warps:
//
// for each tile of 64 groups, for each group of 32 lanes x 4, 8 or 16 pairs:
//     bits of a and b the same  -> only the largest |a| is kept
//     otherwise for each pair   -> d = |a - b| and verdict by float64; sums; a counter of d's
//                                  decade
//     what is rare leaves the loop, all lanes together: NaN, infinities, verdicts that rounding
//     could decide (the whole group is done anew, by compare_pair), new maxima, decades beyond the
//     counters
//
// Groups come through shared memory (cp.async): each lane copies the words that it will read, so
// that no lane waits for another. Arrays whose addresses are no multiples of 16 are read directly.
//
// Counters of decades are 4 bits of a register (a block of pairs'), then 8 bits (31 blocks'), then
// shared memory (a thread block's): they stand for 7 or 8 decades from a base that the warp
// chooses. Distances beyond those go to shared memory at once.
//
// Other measures have kernels of their own. Units in the last place: two numbers of one sign are as
// far apart as their bits, in arithmetic modulo 2^32 or 2^64. Circles: pairs nearer than half-way
// round any circle, as nearly all are, lie as on a line. Groups in which some are not are marked,
// and a second kernel takes them the shorter way round: in the first one, what that needs would
// take its registers from all groups.
//
// The bound of a maximum is shared by the whole grid, so that few groups have a candidate. It
// decides only what is looked at: the sums of a group are made the same way whether it had a
// candidate or not, and are the same from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/staging.cuh"
#include "device/warp.cuh"
#include "difference/difference_largest.cuh"
#include "difference/difference_shared.cuh"
#include "difference/difference_stored.cuh"

namespace twinrun {

namespace {

// On a circle a distance that is nearer to what is allowed than this share of |a - b| leaves a
// doubt: some roundings' worth.
constexpr double kRoundings = 0x1p-48;

// Consecutive pairs of one part, at most a group.
struct Group {
    unsigned number;  // in its tile
    unsigned n;
    std::uint32_t stage;  // the address of the lane's words; 0: they were read directly
};

template <Kind kKind, Rule kRule>
class Warp {
   public:
    using Value = typename Stored<kKind>::Value;
    using Pairs = Value[kBlock<kKind>];
    static constexpr unsigned kPairs = Stored<kKind>::kPairs;
    static constexpr unsigned kBlocks = kPairs / kBlock<kKind>;
    static constexpr unsigned kGroup = kPairs * kLanes;
    static constexpr unsigned kTile = kTileGroups * kGroup;
    static constexpr bool kFloats = Shared<kKind>::kFloats;
    static constexpr unsigned kCounters = kFloats ? 7 : 8;  // decades that have one

    __device__ Warp(const Work& work, Shared<kKind>& shared)
        : work_(work),
          shared_(shared),
          state_(shared.warp[threadIdx.x / kLanes]),
          stage_at_(shared_address(shared.stages() + threadIdx.x / kLanes * work.stages) +
                    threadIdx.x % kLanes * sizeof(uint4)),
          bins_(shared.bins[kFloats ? threadIdx.x / kLanes : 0]),
          bins_at_(shared_address(&bins_)),
          lane_(threadIdx.x % kLanes) {
        // Kept: they would be worked out anew for each group.
        forget(stage_at_);
        forget(bins_at_);
        set_base(4);
    }

    // The block's tiles: its warps take every step-th of them, from `begin` on.
    __device__ void run(std::uint64_t begin, std::uint64_t end, std::uint64_t step) {
        const unsigned warp = threadIdx.x / kLanes;
        for (std::uint64_t t = begin + warp; t < end; t += step) {
            if constexpr (kRule == Rule::around) {
                tile_around(t);
            } else {
                tile(t);
            }
        }
        flush();
        if constexpr (kPairs == 16) top_ = largest_packed<kKind>(packed_top_, scalar());
        // Always in this order: a tree over the warp, then warp after warp.
        for (unsigned distance = 16; distance != 0; distance /= 2) {
            sum_ += as_double(warp::across(bits_of(sum_), distance));
            sum_different_ += as_double(warp::across(bits_of(sum_different_), distance));
            const double other = as_double(warp::across(bits_of(static_cast<double>(top_)), distance));
            if (other > static_cast<double>(top_)) top_ = static_cast<Value>(other);
        }
        if (lane_ == 0) {
            shared_.sums[2 * warp] = sum_;
            shared_.sums[2 * warp + 1] = sum_different_;
            shared_.largest[warp] = static_cast<double>(top_);
        }
    }

   private:
    // ---- tiles ----

    // The part that a tile lies in: 32 places are looked at in a step.
    [[nodiscard]] __device__ std::uint32_t part_of(std::uint64_t tile) const {
        std::uint32_t low = 0;
        std::uint32_t count = work_.part_count;
        while (count > 1) {
            const std::uint32_t step = count / kLanes + (count % kLanes != 0 ? 1 : 0);
            const std::uint64_t probe = std::uint64_t{lane_} * step;
            const unsigned at_or_before =
                warp::ballot(probe < count && work_.parts[low + probe].tile <= tile);
            const auto last = static_cast<std::uint32_t>(31 - __clz(static_cast<int>(at_or_before)));
            low += last * step;
            const std::uint32_t left = count - last * step;
            count = left < step ? left : step;
        }
        return low;
    }

    // The scalars' type, known to the compiler where there is only one.
    [[nodiscard]] __device__ DType scalar() const {
        if constexpr (kKind == Kind::f32) return DType::f32;
        if constexpr (kKind == Kind::f64) return DType::f64;
        if constexpr (kKind == Kind::f16) return DType::f16;
        if constexpr (kKind == Kind::bf16) return DType::bf16;
        return work_.scalar;
    }
    [[nodiscard]] __device__ unsigned bytes() const { return stored_bytes<kKind>(scalar()); }

    // The address of vector i of a lane's words.
    [[nodiscard]] static __device__ std::uint32_t word_address(std::uint32_t stage, unsigned which,
                                                               unsigned i) {
        return stage + (which * kMostVectors + i) * (kLanes * sizeof(uint4));
    }
    // The lane's words of a group, at `a` and `beside` bytes further, come to shared memory.
    __device__ void stage(const std::byte* a, std::ptrdiff_t beside, std::uint32_t to) {
        const unsigned vectors = vectors_of<kKind>(scalar());
#pragma unroll
        for (unsigned i = 0; i < kMostVectors; ++i) {
            if (i >= vectors) break;
            const std::byte* from = a + i * (kLanes * sizeof(uint4));
            gpu::stage_16<false>(&in_shared<std::byte>(word_address(to, 0, i)), from, {});
            gpu::stage_16<false>(&in_shared<std::byte>(word_address(to, 1, i)), from + beside, {});
        }
    }
    // Of groups that are read directly: a later one comes to the L2 cache, each lane asks for a
    // line.
    __device__ void fetch_ahead(unsigned n, unsigned number) const {
        constexpr unsigned groups = 4;
        const unsigned half = lane_ % (kLanes / 2);
        const std::size_t at = std::size_t{number + groups} * (kGroup * bytes()) + half * 128;
        if (half * 128 >= kGroup * bytes() || at >= std::size_t{n} * bytes()) return;
        gpu::fetch_line((lane_ == half ? state_.a : state_.b) + at);
    }
    [[nodiscard]] __device__ Words<kKind> staged(std::uint32_t from, unsigned which) const {
        const unsigned vectors = vectors_of<kKind>(scalar());
        Words<kKind> w{};
#pragma unroll
        for (unsigned i = 0; i < kMostVectors; ++i) {
            if (i >= vectors) break;
            const uint4 four = in_shared<const uint4>(word_address(from, which, i));
            w.word[4 * i] = four.x, w.word[4 * i + 1] = four.y;
            w.word[4 * i + 2] = four.z, w.word[4 * i + 3] = four.w;
        }
        return w;
    }

    // Where a tile lies.
    struct Tile {
        const std::byte* a;
        const std::byte* b;
        unsigned n;
        unsigned in_words;  // groups
    };
    __device__ Tile begin_tile(std::uint64_t t) {
        const Part& part = work_.parts[state_.part == kAnyPart ? part_of(t) : state_.part];
        const std::uint64_t offset = (t - part.tile) * kTile;
        const std::uint64_t left = part.scalars - offset;
        const unsigned n = left < kTile ? static_cast<unsigned>(left) : kTile;
        const std::byte* a = part.a + offset * bytes();
        const std::byte* b = part.b + offset * bytes();
        const std::uintptr_t places =
            reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b);
        const std::uint64_t index = part.index + offset;
        warp::sync();
        if (lane_ == 0) {
            state_.a = a;
            state_.b = b;
            state_.index = index;
            state_.chunk = part.chunk + offset / work_.chunk_scalars;
            state_.before = offset % work_.chunk_scalars;
            if constexpr (kRule == Rule::around) {
                const Measured& m = work_.measured;
                const std::uint64_t number = index / m.component_stride;
                state_.component = static_cast<std::uint32_t>(number % m.components);
                state_.component_left = (number + 1) * m.component_stride - index;
            }
        }
        choose_bounds(index);
        seek(index < state_.first);
        marks_ = 0;
        return {a, b, n, places % sizeof(uint4) == 0 ? n / kGroup : 0};
    }

    __device__ void tile(std::uint64_t t) {
        const Tile tile = begin_tile(t);
        left_ = 0;
        const unsigned groups = (tile.n + kGroup - 1) / kGroup;
        const std::byte* next = tile.a + lane_ * sizeof(uint4);
        const std::ptrdiff_t beside = tile.b - tile.a;
        const unsigned ahead = work_.stages - 1;  // groups that are under way while one is worked on
#pragma unroll 1
        for (unsigned number = 0; number < ahead; ++number) {
            if (number < tile.in_words) stage(next, beside, stage_at_ + number * sizeof(Stage));
            gpu::stage_commit();
            next += kGroup * bytes();
        }
        std::uint32_t last = stage_at_ + ahead * sizeof(Stage);
        std::uint32_t free = last;
        forget(last);
#pragma unroll 1
        for (unsigned number = 0; number < groups; ++number) {
            // It takes the place of the group before, whose words have been used.
            if (number + ahead < tile.in_words) stage(next, beside, free);
            gpu::stage_commit();
            next += kGroup * bytes();
            free = free == last ? stage_at_ : free + static_cast<std::uint32_t>(sizeof(Stage));
            Group g{number, kGroup, free};
            Words<kKind> words_a;
            Words<kKind> words_b;
            if (number < tile.in_words) {
                if (ahead == kMostStages - 1) {
                    gpu::stage_wait<kMostStages - 1>();
                } else {
                    gpu::stage_wait<kLeastStages - 1>();
                }
                words_a = staged(free, 0);
                words_b = staged(free, 1);
            } else {
                const unsigned left = tile.n - number * kGroup;
                const std::size_t offset = std::size_t{number} * (kGroup * bytes());
                g = {number, left < kGroup ? left : kGroup, 0};
                fetch_ahead(tile.n, number);
                // Places from memory: nothing of this is worked out for groups that do without it.
                words_a = load_singly<kKind>(state_.a + offset, g.n, lane_, scalar());
                words_b = load_singly<kKind>(state_.b + offset, g.n, lane_, scalar());
            }
            group(g, words_a, words_b);
        }
        put_marks();
        if constexpr (kRule == Rule::measured) {
            if (lane_ == 0 && work_.measured.left != nullptr) work_.measured.left[t] = left_;
        }
    }
    // Only the groups that the kernel before left.
    __device__ void tile_around(std::uint64_t t) {
        std::uint64_t left = work_.measured.left[t];
        if (left == 0) return;
        const Tile tile = begin_tile(t);
#pragma unroll 1
        for (; left != 0; left &= left - 1) {
            const auto number = static_cast<unsigned>(__ffsll(static_cast<long long>(left)) - 1);
            const unsigned n = tile.n - number * kGroup;
            group_around({number, n < kGroup ? n : kGroup, 0});
        }
        put_marks();
    }

    __device__ void seek(bool seeking) {
        seeking_ = seeking;
        each_counts_ = seeking || !work_.whole_groups;
    }

    // ---- bounds of the maxima ----

    // Only pairs above the bounds are looked at. The warp's own maximum is a bound where its place
    // comes first; else, and for what another warp found, the number before is: a tie may win by
    // its place.
    __device__ void choose_bounds(std::uint64_t index) {
        warp::sync();
        distance_bound_ = bound(0, index);
        quotient_bound_ = bound(1, index);
        different_bound_ = bound(2, index);
        warp::sync();
    }
    [[nodiscard]] __device__ double bound(unsigned which, std::uint64_t index) const {
        const std::uint64_t known = *const_cast<const volatile Count64*>(&state_.totals->bounds[which]);
        const std::uint64_t own = bits_of(state_.best[which].value);
        const std::uint64_t before = known > own ? known : own;
        if (before == 0 || (known <= own && state_.best[which].at < index)) return as_double(before);
        return as_double(before - 1);
    }

    // The lanes' best become the warp's. All lanes take part.
    __device__ void keep_best(Best (&best)[3], std::uint64_t first, std::uint64_t next_index) {
#pragma unroll
        for (unsigned which = 0; which < 3; ++which) {
            for (unsigned distance = 16; distance != 0; distance /= 2) {
                const double value = as_double(warp::across(bits_of(best[which].value), distance));
                const std::uint64_t at = warp::across(best[which].at, distance);
                raise(best[which], value, at);
            }
        }
        for (unsigned distance = 16; distance != 0; distance /= 2) {
            const std::uint64_t other = warp::across(first, distance);
            first = other < first ? other : first;
        }
        warp::sync();
        if (lane_ == 0) {
#pragma unroll
            for (unsigned which = 0; which < 3; ++which) {
                raise(state_.best[which], best[which].value, best[which].at);
                if (best[which].value > 0)
                    atomicMax(&state_.totals->bounds[which], Count64{bits_of(best[which].value)});
            }
            if (first < state_.first) state_.first = first;
        }
        choose_bounds(next_index);
    }

    // ---- histogram ----

    [[nodiscard]] static __device__ std::uint32_t bin(double distance) {  // of one that is not 0
        const BinEntry& entry = kBinTable.entries[bits_of(distance) >> 52 & 0x7FF];
        if (entry.slot == kNoSlot) return 1;
        return entry.slot / 4 + (distance >= entry.next ? 1 : 0);
    }
    // The warp's entry for a float with these bits.
    [[nodiscard]] __device__ FloatBin bin_of(std::uint32_t bits) const {
#if defined(__CUDA_ARCH__)
        // In one load, at an address without an addition: the table lies at a multiple of its size.
        static_assert(sizeof(FloatBin) == sizeof(ulonglong2));
        const std::uint32_t at = (bits >> 19 & 0xFF0) | bins_at_;
        const auto both = in_shared<const ulonglong2>(at);
        return {as_double(both.x), static_cast<std::uint32_t>(both.y),
                static_cast<std::uint32_t>(both.y >> 32)};
#else
        return bins_[bits >> 23 & 0xFF];
#endif
    }
    // The counter of a pair's distance: 1 in its 4 bits. *outside: it has none.
    [[nodiscard]] __device__ std::uint32_t counter_of(Value a, Value b, double distance,
                                                      std::uint32_t* outside) const {
        if constexpr (kFloats) {
            // Rounded to zero, it keeps its binade.
            const float rounded = kRule == Rule::around ? __double2float_rz(distance) : __fsub_rz(a, b);
            const FloatBin entry = bin_of(bits_in(rounded));
            return distance >= entry.next ? entry.above : entry.below;
        } else {
            const BinEntry& entry = bins_[bits_of(distance) >> 52 & 0x7FF];
            const std::uint32_t lower = 0 - base_slot_;
            const std::uint32_t upper = 4 - base_slot_;
            const std::uint32_t at = entry.slot + entry.scale * (distance >= entry.next ? upper : lower);
            *outside |= at;
            return __funnelshift_lc(0U, 1U, at);  // 0 for slots beyond
        }
    }
    // The first counter stands for this slot.
    __device__ void set_base(std::uint32_t slot) {
        base_slot_ = slot;
        if constexpr (kFloats) {
            warp::sync();
            for (unsigned i = lane_; i < 256; i += kLanes)
                bins_[i] = float_bin(i, slot / 4);
            warp::sync();
        }
    }

    __device__ void count(const std::uint32_t (&all)[kBlocks], const std::uint32_t (&over)[kBlocks]) {
        constexpr std::uint32_t even = 0x0F0F0F0F;
        constexpr std::uint32_t odd = kFloats ? 0x000F0F0F : even;  // the last counts those outside
#pragma unroll
        for (unsigned i = 0; i < kBlocks; ++i) {
            all_[0] += all[i] & even;
            all_[1] += all[i] >> 4 & odd;
            over_[0] += over[i] & even;
            over_[1] += over[i] >> 4 & odd;
        }
        pending_ += kBlocks;
        if (pending_ + kBlocks > kMostPending) flush();
    }
    __device__ void flush() {
        if (pending_ == 0) return;
        pending_ = 0;
        flush(all_, shared_.all);
        flush(over_, shared_.over);
    }
    __device__ void flush(std::uint32_t (&counters)[2], std::uint32_t* bins) {
        constexpr std::uint32_t low = 0x00FF00FF;
        const std::uint32_t sums[4] = {
            warp::sum(counters[0] & low),       // slots 0 and 4
            warp::sum(counters[1] & low),       // 1 and 5
            warp::sum(counters[0] >> 8 & low),  // 2 and 6
            warp::sum(counters[1] >> 8 & low),  // 3 and 7
        };
        counters[0] = counters[1] = 0;
        if (lane_ != 0) return;
        std::uint32_t* to = bins + base_slot_ / 4;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            if ((sums[i] & 0xFFFF) != 0) atomicAdd(to + i, sums[i] & 0xFFFF);
            if (sums[i] >> 16 != 0) atomicAdd(to + i + 4, sums[i] >> 16);
        }
    }

    // ---- measures ----

    // Which circles the pairs of a group lie on.
    struct Ring {
        std::uint32_t component;  // of the first pair
        bool cycles;              // the next pair has the next one
        bool mixed;               // neither that, nor the same for all
    };
    [[nodiscard]] __device__ Ring ring_of(const Group& g) const {
        const Measured& m = work_.measured;
        const unsigned from = g.number * kGroup;
        if (m.cycles) return {state_.component + from, true, false};
        if (from + g.n <= state_.component_left) return {state_.component, false, false};
        const std::uint64_t first = (state_.index + from) / m.component_stride;
        const std::uint64_t last = (state_.index + from + g.n - 1) / m.component_stride;
        return {static_cast<std::uint32_t>(first % m.components), false, first != last};
    }
    [[nodiscard]] __device__ const Circle& circle_of(const Ring& ring, unsigned place) const {
        std::uint32_t component = ring.component;
        if (ring.cycles) {  // its remainder: of numbers below 2^16, by a multiplication
            component += place;
            component -= __umulhi(component, work_.measured.reciprocal) * work_.measured.components;
        }
        return shared_.circles[component];
    }
    // The shorter way round, if what is found can be trusted: the same as compare_on_circle finds.
    struct Round {
        double distance;
        bool trusted;
    };
    [[nodiscard]] static __device__ Round shorter_way(double difference, const Circle& circle) {
        constexpr double integers = 0x1.8p52;  // added and taken away, it rounds to them
        const double quotient = difference * circle.inverse;
        const double turns = (quotient + integers) - integers;
        const double past = quotient - turns;
        double distance = distance_on_circle(difference, turns, circle.period);
        // About half-way: rounding may have chosen the longer one.
        if (absolute_value(past) > kHalfWay) {
            const double other = distance_on_circle(difference, turns + copysign(1.0, past), circle.period);
            if (other < distance) distance = other;
        }
        return {distance, absolute_value(quotient) < 0x1p20 && absolute_value(difference) > 0x1p-900};
    }

    // A value of a floating-point type, as one of its width whose bits are those of the type, or
    // lie on top.
    [[nodiscard]] __device__ Value typed(Value x) const {
        if constexpr (kKind == Kind::f16) return x * 0x1p-112F;
        return x;
    }
    // Whether a and b are far enough apart to differ: their numbers, as signed_magnitude() gives
    // them. quick_offset is what these may be apart, quick_limit twice that, and far less than any
    // two numbers are that wrap around.
    [[nodiscard]] __device__ bool far_enough(Value a, Value b) const {
        const auto x = bits_in(typed(a));
        auto y = bits_in(typed(b));
        using Bits = std::remove_const_t<decltype(x)>;
        constexpr Bits sign = ~(~Bits{0} >> 1);
        // Of two signs: their sizes add up.
        const Bits both = ((x ^ y) & sign) != 0 ? ~Bits{0} : Bits{0};
        y = (y ^ both) + (both & (sign | 1));
        return x - y + static_cast<Bits>(work_.measured.quick_offset) >
               static_cast<Bits>(work_.measured.quick_limit);
    }

    // ---- looks ----

    // The result of a look at a lane's pairs.
    struct Found {
        double sum = 0;
        double sum_different = 0;
        std::uint32_t counts[kBlocks] = {};
        std::uint32_t counts_over[kBlocks] = {};
        std::uint32_t slots = 0;  // of the distances, where they have any
        bool undecided = false;
        bool candidate = false;

        [[nodiscard]] __device__ bool outside() const {
            if constexpr (!kFloats) return (slots & kOutlierBits) != 0;
            std::uint32_t any = 0;
#pragma unroll
            for (unsigned i = 0; i < kBlocks; ++i)
                any |= counts[i];
            return any >= kOutsideCounters;
        }
        // Whether some distance has a counter.
        [[nodiscard]] __device__ bool inside() const {
            std::uint32_t any = 0;
#pragma unroll
            for (unsigned i = 0; i < kBlocks; ++i)
                any |= counts[i];
            return (kFloats ? any & (kOutsideCounters - 1) : any) != 0;
        }
        [[nodiscard]] __device__ bool differs() const {
            std::uint32_t any = 0;
#pragma unroll
            for (unsigned i = 0; i < kBlocks; ++i)
                any |= counts_over[i];
            return any != 0;
        }
    };
    // What a look is for. absolute: the tolerance has no relative part, and no d that was rounded
    // equals it, unless of float64. two_bounds: pairs that differ may have another largest quotient
    // than all. verdicts: some pair may differ. steps: numbers few steps apart do not.
    struct LookFor {
        bool absolute = false;
        bool two_bounds = true;
        bool verdicts = true;
        bool steps = false;
    };
    // One pair of a block, at this distance.
    template <LookFor kFor>
    __device__ void look_at(Value a, Value b, double magnitude, double distance, bool differs, unsigned block,
                            Found& f) const {
        f.candidate |= distance > distance_bound_;
        // d / |a| rounded is above a number if d lies above the product: rounding keeps order here,
        // too.
        f.candidate |= fma(-quotient_bound_, magnitude, distance) > 0;
        f.sum = fma(distance, distance, f.sum);
        const std::uint32_t one = counter_of(a, b, distance, &f.slots);
        f.counts[block] += one;
        if constexpr (!kFor.verdicts) return;
        if (differs) {
            f.sum_different = fma(distance, distance, f.sum_different);
            f.counts_over[block] += one;
        }
        if constexpr (kFor.two_bounds)
            f.candidate |= differs & fma(-different_bound_, magnitude, distance) > 0;
    }
    // What a pair may be apart: rounded once.
    template <bool kAbsolute>
    [[nodiscard]] __device__ double allowed_for(double magnitude) const {
        return kAbsolute ? work_.least_atol : fma(magnitude, work_.rtol, work_.least_atol);
    }
    // The values of a block of pairs; first: those of a's first block, which are known.
    __device__ void decode_block(const Pairs& first, const Words<kKind>& words_a, const Words<kKind>& words_b,
                                 unsigned block, Pairs& a, Pairs& b, bool* beyond) const {
        if (block == 0) {
            read_each<kBlock<kKind>>(a, [&](unsigned p) { return first[p]; });
        } else {
            decode<kKind>(words_a, block, scalar(), a, beyond);
        }
        decode<kKind>(words_b, block, scalar(), b, beyond);
    }
    // All pairs, on a line. first: as decode_block() takes it.
    template <LookFor kFor>
    __device__ void look(const Pairs& first, const Words<kKind>& words_a, const Words<kKind>& words_b,
                         Found& f, bool* beyond) const {
#pragma unroll
        for (unsigned block = 0; block < kBlocks; ++block) {
            Pairs a;
            Pairs b;
            decode_block(first, words_a, words_b, block, a, b, beyond);
#pragma unroll
            for (unsigned p = 0; p < kBlock<kKind>; ++p) {
                const auto x = static_cast<double>(a[p]);
                const double magnitude = absolute_value(x);
                const double distance = absolute_value(x - static_cast<double>(b[p]));
                // Denormal numbers: neither counters nor products hold them.
                if constexpr (kKind == Kind::f64) f.undecided |= distance != 0 & distance < 0x1p-1000;
                bool differs = false;
                if constexpr (kFor.verdicts) {
                    // Rounding keeps order, and `allowed` is rounded once: only d = allowed leaves
                    // a doubt.
                    const double allowed = allowed_for<kFor.absolute>(magnitude);
                    if constexpr (kKind == Kind::f64) {
                        f.undecided |= distance != 0 & distance == allowed;
                    } else if constexpr (!kFor.absolute) {
                        f.undecided |= distance == allowed;
                    }
                    differs = distance > allowed;
                    if constexpr (kFor.steps) differs &= far_enough(a[p], b[p]);  // & and no branch
                }
                look_at<kFor>(a[p], b[p], magnitude, distance, differs, block, f);
            }
        }
    }
    // Whether rounding could decide a pair of this group, in which some d equals what is allowed.
    template <bool kAbsolute>
    [[nodiscard]] __device__ bool in_doubt(const Group& g) const {
        bool doubt = false;
        each_pair(g, [&](Value a, Value b) {
            const auto x = static_cast<double>(a);
            const auto y = static_cast<double>(b);
            const double difference = x - y;
            const double distance = absolute_value(difference);
            // What rounding took from the difference (Knuth's two-sum).
            const double back = difference - x;
            const double lost = (x - (difference - back)) - (y + back);
            const bool tie = distance == allowed_for<kAbsolute>(absolute_value(x));
            doubt |= distance != 0 & ((tie & (!kAbsolute | lost != 0)) | distance < 0x1p-1000);
        });
        return doubt;
    }
    // For what is rare: the lane's pairs once more; zeros where there are none. If their values
    // were kept for it, they would take registers from all groups.
    template <class Take>
    __device__ void each_pair(const Group& g, const Take& take) const {
        const std::size_t offset = std::size_t{g.number} * (kGroup * bytes());
        Words<kKind> words[2];
#pragma unroll
        for (unsigned which = 0; which < 2; ++which) {
            const std::byte* run = which == 0 ? state_.a : state_.b;
            words[which] = g.stage != 0 ? staged(g.stage, which)
                                        : load_singly<kKind>(run + offset, g.n, lane_, scalar());
        }
        bool beyond = false;
#pragma unroll
        for (unsigned block = 0; block < kBlocks; ++block) {
            Pairs a;
            Pairs b;
            decode<kKind>(words[0], block, scalar(), a, &beyond);
            decode<kKind>(words[1], block, scalar(), b, &beyond);
#pragma unroll
            for (unsigned p = 0; p < kBlock<kKind>; ++p)
                take(a[p], b[p]);
        }
    }

    // A block of pairs, on their circles.
    __device__ void look_around(const Group& g, const Ring& ring, unsigned block, Found& f) const {
        Pairs a;
        Pairs b;
#pragma unroll
        for (unsigned p = 0; p < kBlock<kKind>; ++p) {
            const unsigned place = (block * kBlock<kKind> + p) * kLanes + lane_;
            a[p] = place < g.n ? value_at(state_.a, g, place) : 0;
            b[p] = place < g.n ? value_at(state_.b, g, place) : 0;
        }
#pragma unroll
        for (unsigned p = 0; p < kBlock<kKind>; ++p) {
            const unsigned place = (block * kBlock<kKind> + p) * kLanes + lane_;
            const auto x = static_cast<double>(a[p]);
            const double magnitude = absolute_value(x);
            const double difference = x - static_cast<double>(b[p]);
            const double allowed = allowed_for<false>(magnitude);
            const Round round = shorter_way(difference, circle_of(ring, place));
            const double distance = round.distance;
            const double beside = absolute_value(distance - allowed);
            const bool decided = round.trusted & beside > absolute_value(difference) * kRoundings;
            f.undecided |= difference != 0 & !decided;
            f.undecided |= distance != 0 & distance < 0x1p-1000;
            const bool differs = distance > allowed & far_enough(a[p], b[p]);
            look_at<LookFor{}>(a[p], b[p], magnitude, distance, differs, block, f);
        }
    }

    // ---- one group ----

    // Whether some pair may be nearer round its circle: if none is, no square of a distance comes
    // to that of half-way round. If so, the group is left for the next kernel.
    [[nodiscard]] __device__ bool left_over(const Group& g, const Found& f) {
        if (work_.measured.left == nullptr || !warp::any(!(f.sum < work_.measured.near_squared)))
            return false;
        left_ |= 1ULL << g.number;
        return true;
    }

    // Whether some pair may be far enough apart to differ; surely not, if not.
    [[nodiscard]] __device__ bool may_be_far(const Pairs& first, const Words<kKind>& words_a,
                                             const Words<kKind>& words_b) const {
        bool far = false;
        bool beyond = false;
#pragma unroll
        for (unsigned block = 0; block < kBlocks; ++block) {
            Pairs a;
            Pairs b;
            decode_block(first, words_a, words_b, block, a, b, &beyond);
#pragma unroll
            for (unsigned p = 0; p < kBlock<kKind>; ++p) {
                // Bits of two signs are far apart, as long as the few steps are few.
                const auto x = bits_in(typed(a[p]));
                using Bits = std::remove_const_t<decltype(x)>;
                far |= x - bits_in(typed(b[p])) + static_cast<Bits>(work_.measured.quick_offset) >
                       static_cast<Bits>(work_.measured.quick_limit);
            }
        }
        return far;
    }
    [[nodiscard]] __device__ Found look_on_line(const Group& g, const Pairs& first,
                                                const Words<kKind>& words_a, const Words<kKind>& words_b,
                                                bool* beyond) {
        Found f;
        if constexpr (kRule != Rule::plain) {
            // Most groups have no pair that differs by one part of the rule: the other one is not
            // worked out for them.
            if (work_.measured.ulps == Measure::kNoUlps) {
                look<LookFor{}>(first, words_a, words_b, f, beyond);
            } else if (work_.measured.quick_far && !warp::any(may_be_far(first, words_a, words_b))) {
                look<LookFor{.two_bounds = false, .verdicts = false}>(first, words_a, words_b, f, beyond);
            } else {
                // (Pairs without a counter are in this sum only.)
                const auto some_differ = [&] { return warp::any(f.differs() || f.sum_different != 0); };
                if ((work_.atol != 0 || work_.rtol != 0) && !differed_) {
                    look<LookFor{}>(first, words_a, words_b, f, beyond);
                    differed_ = some_differ();
                } else {
                    differed_ = true;
                }
                if (differed_) {
                    f = Found{};
                    look<LookFor{.steps = true}>(first, words_a, words_b, f, beyond);
                    differed_ = some_differ();
                }
            }
        } else if (!work_.absolute) {
            look<LookFor{}>(first, words_a, words_b, f, beyond);
        } else if (different_bound_ == quotient_bound_) {
            look<LookFor{.absolute = true, .two_bounds = false}>(first, words_a, words_b, f, beyond);
        } else {
            look<LookFor{.absolute = true}>(first, words_a, words_b, f, beyond);
        }
        if (warp::any(f.undecided)) {
            const bool absolute = kRule == Rule::plain && work_.absolute;
            f.undecided = absolute ? in_doubt<true>(g) : in_doubt<false>(g);
        }
        return f;
    }
    __device__ void group(const Group& g, const Words<kKind>& words_a, const Words<kKind>& words_b) {
        bool beyond = false;
        Pairs first;
        if constexpr (kPairs == 16) {
            packed_top_ = packed_largest<kKind>(packed_top_, words_a, scalar());
        } else {
            decode<kKind>(words_a, 0, scalar(), first, &beyond);
            keep_largest_of(first);
        }
        std::uint32_t apart = 0;
#pragma unroll
        for (unsigned i = 0; i < Stored<kKind>::kWords; ++i)
            apart |= words_a.word[i] ^ words_b.word[i];
        if (!warp::any(apart != 0) && work_.nan_equal) return;
        if constexpr (kPairs == 16) decode<kKind>(words_a, 0, scalar(), first, &beyond);
        const Found f = look_on_line(g, first, words_a, words_b, &beyond);
        if constexpr (kRule == Rule::measured) {
            if (left_over(g, f)) return;
        }
        const bool differs = f.differs();
        // | and &: no branches.
        const bool trouble = f.undecided | beyond | !(f.sum < kInfiniteDistance) | work_.exactly;
        if (warp::any(trouble | f.candidate | f.outside() | (differs & each_counts_))) {
            take(g, f, warp::any(trouble), [&](Outliers& found) {
                each_pair(g, [&](Value a, Value b) { count_outlier(distance_of(a, b), found); });
            });
        } else {
            keep(f);
            if (differs) marks_ |= 1ULL << g.number;
        }
    }
    // Keeps what a look found. count_outside(found): counts the distances that have no counter.
    template <class CountOutside>
    __device__ void take(const Group& g, const Found& f, bool trouble, const CountOutside& count_outside) {
        bool candidate = f.candidate;
        if (!trouble) {
            keep(f);
            const unsigned outliers = warp::ballot(f.outside());
            bool differs = f.differs();
            if (outliers != 0) {
                Outliers found;
                count_outside(found);
                warp::sync();
                differs |= found.differs;
                if (wants_base(outliers, f)) move_base(found);
            }
            if (warp::any(differs)) {
                candidate |= seeking_ && differs;
                mark_chunks(g);
            }
        }
        if (warp::any(trouble || candidate)) one_by_one(g, trouble);
    }
    __device__ void group_around(const Group& g) {
        const Ring ring = ring_of(g);
        Found f;
        f.undecided = ring.mixed;
#pragma unroll
        for (unsigned block = 0; block < kBlocks; ++block)
            look_around(g, ring, block, f);
        const bool trouble = warp::any(f.undecided || !(f.sum < kInfiniteDistance)) || work_.exactly;
        take(g, f, trouble, [&](Outliers& found) {
#pragma unroll 1
            for (unsigned i = lane_; i < g.n; i += kLanes)
                count_outlier(distance_around(ring, g, i), found);
        });
    }
    __device__ void keep(const Found& f) {
        sum_ += f.sum;
        sum_different_ += f.sum_different;
        count(f.counts, f.counts_over);
    }

    // ---- the largest |a| ----

    __device__ void keep_largest_of(const Pairs& a) {
        const Value before = top_;
#pragma unroll
        for (unsigned p = 0; p < kBlock<kKind>; ++p) {
            if constexpr (sizeof(Value) == 4) {
                top_ = fmaxf(top_, fabsf(a[p]));  // skips NaN
            } else {
                const Value magnitude = absolute_value(a[p]);
                if (magnitude > top_) top_ = magnitude;
            }
        }
        if (static_cast<double>(top_) == kInfiniteDistance) {
            top_ = before;
#pragma unroll
            for (unsigned p = 0; p < kBlock<kKind>; ++p) {
                const Value magnitude = a[p] < 0 ? -a[p] : a[p];
                if (magnitude > top_ && static_cast<double>(magnitude) < kInfiniteDistance) top_ = magnitude;
            }
        }
    }
    struct Distance {
        double distance;
        bool differs;
    };
    // The distance of an ordinary pair, and whether it differs.
    [[nodiscard]] __device__ Distance distance_of(Value a, Value b) const {
        const auto x = static_cast<double>(a);
        const double distance = absolute_value(x - static_cast<double>(b));
        bool differs = distance > fma(absolute_value(x), work_.rtol, work_.least_atol);
        if constexpr (kRule != Rule::plain) differs = differs && far_enough(a, b);
        return {distance, differs};
    }
    [[nodiscard]] __device__ Distance distance_around(const Ring& ring, const Group& g,
                                                      unsigned place) const {
        const Value a = value_at(state_.a, g, place);
        const Value b = value_at(state_.b, g, place);
        const auto x = static_cast<double>(a);
        const double distance = shorter_way(x - static_cast<double>(b), circle_of(ring, place)).distance;
        return {distance,
                distance > fma(absolute_value(x), work_.rtol, work_.least_atol) && far_enough(a, b)};
    }

    // Some pair of the group differs. Where chunks are made of whole groups, put_marks() says so
    // for the tile.
    __device__ void mark_chunks(const Group& g) {
        if (work_.whole_groups) {
            marks_ |= 1ULL << g.number;
            return;
        }
#pragma unroll 1
        for (unsigned i = lane_; i < g.n; i += kLanes) {
            if (pair_of(g, i).pair.differs) mark_chunk(g, i);
        }
    }
    __device__ void put_marks() {
        marks_ = warp::united(marks_);
        if (marks_ == 0) return;
        warp::sync();
#pragma unroll 1
        for (unsigned number = lane_; number < kTileGroups; number += kLanes) {
            if ((marks_ >> number & 1) != 0) mark_chunk({number, kGroup, 0}, 0);
        }
        warp::sync();
    }
    __device__ void mark_chunk(const Group& g, unsigned place) const {
        const std::uint64_t from = state_.before + g.number * kGroup + place;
        const std::uint64_t size = work_.chunk_scalars;
        // Both are small nearly always, and a division of 32 bits is a third of one of 64.
        const std::uint64_t chunks = ((from | size) >> 32) == 0
                                         ? static_cast<std::uint32_t>(from) / static_cast<std::uint32_t>(size)
                                         : from / size;
        work_.chunk_differs[state_.chunk + chunks] = 1;
    }

    // Those distances that have no counters in registers.
    struct Outliers {
        std::uint32_t highest = 0;
        bool differs = false;  // one of them does
    };
    __device__ void count_outlier(const Distance& d, Outliers& found) {
        if (d.distance == 0) return;
        const std::uint32_t at = bin(d.distance);
        found.highest = at > found.highest ? at : found.highest;
        // Floats: a distance below any normal one has no counter, whatever its bin.
        const bool has_none = kFloats && d.distance < 0x1p-126;
        if (at - base_slot_ / 4 < kCounters && !has_none) return;
        atomicAdd(&shared_.all[at], 1U);
        if (!d.differs) return;
        atomicAdd(&shared_.over[at], 1U);
        found.differs = true;
    }
    // Many distances have no counter, or most of them.
    [[nodiscard]] __device__ bool wants_base(unsigned outliers, const Found& f) const {
        const int lanes = __popc(outliers);
        return lanes >= static_cast<int>(kManyLanes) || lanes > __popc(warp::ballot(f.inside()));
    }
    // Room for one decade above what is highest now, which groups often have in a few lanes.
    __device__ void move_base(const Outliers& found) {
        const std::uint32_t highest = warp::largest(found.highest);
        constexpr std::uint32_t below = kCounters - 2;
        const std::uint32_t base = highest > below ? 4 * (highest - below) : 4;
        if (base == base_slot_) return;
        flush();
        set_base(base);
    }

    [[nodiscard]] __device__ Value value_at(const std::byte* run, const Group& g, unsigned place) const {
        const std::uint64_t bits = word_at(run + (std::size_t{g.number} * kGroup + place) * bytes(), bytes());
        if constexpr (kKind == Kind::f64) {
            return as_double(bits);
        } else if constexpr (kKind == Kind::f32) {
            return float_of(static_cast<std::uint32_t>(bits));
        } else {
            return from_narrow(static_cast<std::uint32_t>(bits), scalar());
        }
    }
    // One pair of a group from memory, by the reference.
    [[nodiscard]] __device__ ExactPair pair_of(const Group& g, unsigned place) const {
        const DifferenceRule rule{{work_.atol, work_.rtol}, work_.nan_equal};
        const std::size_t from = (std::size_t{g.number} * kGroup + place) * bytes();
        double period = 0;
        std::uint64_t ulps = 0;
        if constexpr (kRule != Rule::plain) ulps = work_.measured.ulps;
        if constexpr (kRule == Rule::around) {
            const std::uint64_t scalar = state_.index + g.number * kGroup + place;
            const Measured& m = work_.measured;
            period = shared_.circles[scalar / m.component_stride % m.components].period;
        }
        return exact_pair<kKind, kRule>(word_at(state_.a + from, bytes()), word_at(state_.b + from, bytes()),
                                        scalar(), rule, ulps, period);
    }

    // All pairs of a group from memory, by the reference. everything: all statistics; otherwise
    // only the maxima and the first one that differs.
    __device__ void one_by_one(const Group& g, bool everything) {
        Best best[3] = {{0, kNowhere}, {0, kNowhere}, {0, kNowhere}};
        std::uint64_t first = kNowhere;
        bool differs = false;
        const std::uint64_t index = state_.index + g.number * kGroup;
#pragma unroll 1
        for (unsigned i = lane_; i < g.n; i += kLanes) {
            const ExactPair exact = pair_of(g, i);
            const double distance = exact.pair.distance;
            if (distance == 0 && !exact.pair.differs) continue;
            const std::uint64_t at = index + i;
            const bool infinite = distance == kInfiniteDistance;
            const double quotient =
                infinite || exact.magnitude == 0 ? kInfiniteDistance : distance / exact.magnitude;
            raise(best[0], distance, at);
            raise(best[1], quotient, at);
            if (exact.pair.differs) {
                raise(best[2], quotient, at);
                first = at < first ? at : first;
            }
            if (!everything) continue;
            const std::uint32_t decade = distance == 0 ? 0 : bin(distance);  // 0: rounded to it
            atomicAdd(&shared_.all[decade], 1U);
            if (!infinite) sum_ += distance * distance;
            if (!exact.pair.differs) continue;
            atomicAdd(&shared_.over[decade], 1U);
            if (!infinite) sum_different_ += distance * distance;
            differs = true;
            if (!work_.whole_groups) mark_chunk(g, i);
        }
        warp::sync();
        if (warp::any(differs) && work_.whole_groups) marks_ |= 1ULL << g.number;
        keep_best(best, first, index + g.n);
        seek(index + g.n <= state_.first);
    }

    const Work& work_;
    Shared<kKind>& shared_;
    WarpState& state_;
    std::uint32_t stage_at_;  // of the lane's words in the warp's first stage
    typename Shared<kKind>::Bin (&bins_)[Shared<kKind>::kBins];
    std::uint32_t bins_at_;
    unsigned lane_;
    // One a lane.
    Value top_ = 0;
    std::uint32_t packed_top_ = 0;
    double sum_ = 0;
    double sum_different_ = 0;
    std::uint32_t all_[2] = {};
    std::uint32_t over_[2] = {};
    std::uint64_t marks_ = 0;  // groups of the tile in which some lane has a pair that differs
    // The same in all lanes.
    double distance_bound_ = 0;
    double quotient_bound_ = 0;
    double different_bound_ = 0;
    std::uint32_t base_slot_ = 4;
    std::uint32_t pending_ = 0;
    bool seeking_ = false;      // the tile may hold the first pair that differs
    bool each_counts_ = false;  // a pair that differs wants more than its group's mark
    bool differed_ = false;     // by both parts of a rule with steps, in the last group looked at so
    std::uint64_t left_ = 0;    // groups of the tile that are left for Rule::around
};

}  // namespace

}  // namespace twinrun
