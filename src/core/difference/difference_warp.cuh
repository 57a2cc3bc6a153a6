// Private to difference_cuda.cu: the work of one warp. The algorithm is that of
// difference_lanes.hpp, over warps:
//
// for each tile of 8 groups, for each group of 32 lanes x 4 or 8 pairs:
//     bits of a and b the same  -> only the largest |a| is kept
//     otherwise for each pair   -> d = |a - b| and verdict by float64; sums; a counter of d's
//                                  decade
//     what is rare leaves the loop, all lanes together: NaN, infinities, verdicts that rounding
//     could decide (the whole group is done anew, by compare_pair), new maxima, decades beyond the
//     counters
//
// Counters of decades are 4 bits of a register (a group's), then 8 bits (31 groups'), then shared
// memory (a block's): they stand for 8 decades from a base that the warp chooses. Distances beyond
// those go to shared memory at once.
//
// Other measures have kernels of their own. Units in the last place: in the first look a pair can
// differ only if its bits are too far apart, in arithmetic modulo 2^32 or 2^64. Circles: pairs
// nearer than half-way round any circle, as nearly all are, lie as on a line. Groups in which some
// are not are marked, and a second kernel takes them the shorter way round: in the first one, what
// that needs would take its registers from all groups.
//
// The bound of a maximum is shared by the whole grid, so that few groups have a candidate. It
// decides only what is looked at: the sums of a group are made the same way whether it had a
// candidate or not, and are the same from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/warp.cuh"
#include "difference/difference_stored.cuh"

namespace twinrun {

namespace {

struct WarpState {
    Totals* totals;
    std::uint32_t part;  // that all tiles lie in; kAnyPart: each is looked for
    Best best[3];        // distance; quotient; quotient of those that differ
    std::uint64_t first;
    // Facts of the tile, in memory and not in registers, because only rare cases use them.
    const std::byte* a;
    const std::byte* b;
    std::uint64_t index;  // of its first scalar in the field
    std::uint64_t chunk;  // `before` scalars before it this chunk begins
    std::uint64_t before;
    std::uint32_t component;       // of its first scalar
    std::uint64_t component_left;  // scalars until another one, where components do not take turns
};

struct Shared {
    BinEntry bins[2048];
    WarpState warp[kWarps];
    Circle circles[Measure::kMostComponents];
    double sums[2 * kWarps];
    double largest[kWarps];
    std::uint32_t all[kHistogramBins];
    std::uint32_t over[kHistogramBins];
};

// On a circle a distance that is nearer to what is allowed than this share of |a - b| leaves a
// doubt: some roundings' worth.
constexpr double kRoundings = 0x1p-48;

// Consecutive pairs of one part, at most a group.
struct Group {
    unsigned number;  // in its tile
    unsigned n;
    bool in_words;
};

template <Kind kKind, Rule kRule>
class Warp {
   public:
    using Value = typename Stored<kKind>::Value;
    static constexpr unsigned kPairs = Stored<kKind>::kPairs;
    static constexpr unsigned kGroup = kPairs * kLanes;
    static constexpr unsigned kTile = kTileGroups * kGroup;

    __device__ Warp(const Work& work, Shared& shared)
        : work_(work),
          shared_(shared),
          state_(shared.warp[threadIdx.x / kLanes]),
          lane_(threadIdx.x % kLanes) {}

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

    __device__ Words<kKind> load(const std::byte* group, unsigned n, bool in_words) const {
        return in_words ? load_words<kKind>(group, lane_, work_.scalar)
                        : load_singly<kKind>(group, n, lane_, work_.scalar);
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
        const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(work_.scalar);
        const std::byte* a = part.a + offset * bytes;
        const std::byte* b = part.b + offset * bytes;
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
        seeking_ = index < state_.first;
        marks_ = 0;
        return {a, b, n, places % (bytes == 1 ? 8 : 16) == 0 ? n / kGroup : 0};
    }

    __device__ void tile(std::uint64_t t) {
        const Tile tile = begin_tile(t);
        const std::byte* a = tile.a;
        const std::byte* b = tile.b;
        const unsigned n = tile.n;
        const unsigned in_words = tile.in_words;
        const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(work_.scalar);
        left_ = 0;
        const auto load_group = [&](const std::byte* run, unsigned number) {
            return load(run + number * (kGroup * bytes), n - number * kGroup, number < in_words);
        };
        const unsigned groups = (n + kGroup - 1) / kGroup;
        // Under way while a group is worked on: of narrow types, whose groups have half of the
        // bytes, two. Each stays in its registers, as a move waits for what is loaded.
        constexpr unsigned kAhead = kKind == Kind::narrow ? 2 : 1;
        Words<kKind> next_a[kAhead];
        Words<kKind> next_b[kAhead];
#pragma unroll
        for (unsigned i = 0; i < kAhead; ++i) {
            if (i >= groups) break;
            next_a[i] = load_group(a, i);
            next_b[i] = load_group(b, i);
        }
#pragma unroll 1
        for (unsigned first = 0; first < groups; first += kAhead) {
#pragma unroll
            for (unsigned i = 0; i < kAhead; ++i) {
                const unsigned number = first + i;
                if (number >= groups) break;
                const Words<kKind> words_a = next_a[i];
                const Words<kKind> words_b = next_b[i];
                if (number + kAhead < groups) {
                    next_a[i] = load_group(a, number + kAhead);
                    next_b[i] = load_group(b, number + kAhead);
                }
                const unsigned left = n - number * kGroup;
                group({number, left < kGroup ? left : kGroup, number < in_words}, words_a, words_b);
            }
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
            group_around({number, n < kGroup ? n : kGroup, number < tile.in_words});
        }
        put_marks();
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

    [[nodiscard]] __device__ const BinEntry& bin_entry(double distance) const {
        return shared_.bins[(bits_of(distance) >> 52) & 0x7FF];
    }
    [[nodiscard]] __device__ std::uint32_t bin(double distance) const {  // of one that is not 0
        const BinEntry entry = bin_entry(distance);
        if (entry.slot == kNoSlot) return 1;
        return entry.slot / 4 + (distance >= entry.next ? 1 : 0);
    }
    // 1 in the 4 bits of a slot; 0 for slots beyond.
    [[nodiscard]] static __device__ std::uint32_t one_in(std::uint32_t slot) {
        return __funnelshift_lc(0U, 1U, slot);
    }

    template <bool kDiffering>
    __device__ void count(std::uint32_t groups, std::uint32_t groups_over) {
        constexpr std::uint32_t even = 0x0F0F0F0F;
        all_[0] += groups & even;
        all_[1] += groups >> 4 & even;
        if constexpr (kDiffering) {
            over_[0] += groups_over & even;
            over_[1] += groups_over >> 4 & even;
        }
        if (++pending_ == kFlushGroups) flush();
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
        if constexpr (kKind == Kind::narrow) return x * work_.measured.key_scale;
        return x;
    }
    // False: a and b are so few values apart that they do not differ. True: maybe. quick_offset is
    // what they may be apart, quick_limit twice that; the bits of two signs are farther apart than
    // any that is not 0.
    [[nodiscard]] __device__ bool may_differ(Value a, Value b) const {
        const auto x = bits_in(typed(a));
        using Bits = std::remove_const_t<decltype(x)>;
        return x - bits_in(typed(b)) + static_cast<Bits>(work_.measured.quick_offset) >
               static_cast<Bits>(work_.measured.quick_limit);
    }
    [[nodiscard]] __device__ bool far_enough(Value a, Value b) const {
        const auto x = key_of(typed(a));
        const auto y = key_of(typed(b));
        using Bits = std::make_unsigned_t<std::remove_const_t<decltype(x)>>;
        const Bits forward = static_cast<Bits>(x) - static_cast<Bits>(y);
        const Bits steps = x > y ? forward : 0 - forward;
        return steps >= static_cast<Bits>(work_.measured.least_steps);
    }

    // ---- looks ----

    // The result of a look at a lane's pairs.
    struct Found {
        double sum = 0;
        double sum_different = 0;
        std::uint32_t counts = 0;
        std::uint32_t counts_over = 0;
        std::uint32_t slots = 0;
        bool undecided = false;
        bool candidate = false;
        bool reaches = false;  // some distance is not below what is allowed
    };
    // One pair, at this distance. differing: it may differ. Without it a group that has such a pair
    // is only noticed.
    template <bool kDiffering>
    __device__ void look_at(Value a, Value b, double magnitude, double distance, double allowed,
                            Found& f) const {
        f.candidate |= distance > distance_bound_;
        // d / |a| rounded is above a number if d lies above the product: rounding keeps order here,
        // too.
        f.candidate |= fma(-quotient_bound_, magnitude, distance) > 0;
        f.sum = fma(distance, distance, f.sum);
        const BinEntry entry = bin_entry(distance);
        const std::uint32_t lower = 0 - base_slot_;
        const std::uint32_t upper = 4 - base_slot_;
        const std::uint32_t at = entry.slot + entry.scale * (distance >= entry.next ? upper : lower);
        const std::uint32_t one = one_in(at);
        f.slots |= at;
        f.counts += one;
        if constexpr (kDiffering) {
            bool differs = distance > allowed;
            if constexpr (kRule != Rule::plain) differs &= far_enough(a, b);  // & and no branch
            if (differs) {
                f.sum_different = fma(distance, distance, f.sum_different);
                f.counts_over += one;
                f.candidate |= fma(-different_bound_, magnitude, distance) > 0;
            }
        } else {
            bool reaches = distance >= allowed;
            if constexpr (kKind == Kind::f64) reaches = reaches && distance != 0;
            if constexpr (kRule != Rule::plain) reaches &= may_differ(a, b);
            f.reaches |= reaches;
        }
    }
    // All pairs, on a line.
    template <bool kDiffering>
    [[nodiscard]] __device__ Found look(const Value (&a)[kPairs], const Value (&b)[kPairs]) const {
        const double atol = work_.least_atol;
        const double rtol = work_.rtol;
        Found f;
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            const auto x = static_cast<double>(a[p]);
            const double magnitude = absolute_value(x);
            const double distance = absolute_value(x - static_cast<double>(b[p]));
            // Rounding keeps order, and `allowed` is rounded once: only d = allowed leaves a doubt.
            const double allowed = fma(magnitude, rtol, atol);
            // Denormal numbers: neither counters nor products hold them.
            if constexpr (kKind == Kind::f64) {
                f.undecided |= distance != 0 && ((kDiffering && distance == allowed) || distance < 0x1p-1000);
            } else if constexpr (kDiffering) {
                f.undecided |= distance == allowed;
            }
            look_at<kDiffering>(a[p], b[p], magnitude, distance, allowed, f);
        }
        return f;
    }
    // All pairs, on their circles.
    [[nodiscard]] __device__ Found look_around(const Group& g) const {
        const Ring ring = ring_of(g);
        Value a[kPairs];
        Value b[kPairs];
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            const unsigned place = p * kLanes + lane_;
            a[p] = place < g.n ? value_of(state_.a, g, place) : 0;
            b[p] = place < g.n ? value_of(state_.b, g, place) : 0;
        }
        Found f;
        f.undecided = ring.mixed;
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            const auto x = static_cast<double>(a[p]);
            const double magnitude = absolute_value(x);
            const double difference = x - static_cast<double>(b[p]);
            const double allowed = fma(magnitude, work_.rtol, work_.least_atol);
            const Round round = shorter_way(difference, circle_of(ring, p * kLanes + lane_));
            const double distance = round.distance;
            const double beside = absolute_value(distance - allowed);
            const bool decided = round.trusted & beside > absolute_value(difference) * kRoundings;
            f.undecided |= difference != 0 & !decided;
            f.undecided |= distance != 0 & distance < 0x1p-1000;
            look_at<true>(a[p], b[p], magnitude, distance, allowed, f);
        }
        return f;
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

    __device__ void group(const Group& g, const Words<kKind>& words_a, const Words<kKind>& words_b) {
        Value a[kPairs];
        Value b[kPairs];
        bool beyond = false;
        decode<kKind>(words_a, work_.scalar, a, &beyond);
        keep_largest(a);
        std::uint32_t apart = 0;
#pragma unroll
        for (unsigned i = 0; i < Stored<kKind>::kWords; ++i)
            apart |= words_a.word[i] ^ words_b.word[i];
        if (!warp::any(apart != 0) && work_.nan_equal) return;
        decode<kKind>(words_b, work_.scalar, b, &beyond);
        if (!differing_ && !work_.exactly) {
            const Found f = look<false>(a, b);
            // NaN and infinities leave their mark in the sum.
            bool rare = f.undecided || beyond || !(f.sum < kInfiniteDistance) || f.candidate || f.reaches ||
                        (f.slots & kOutlierBits) != 0;
            if constexpr (kRule == Rule::measured) rare |= !(f.sum < work_.measured.near_squared);
            if (!warp::any(rare)) {
                sum_ += f.sum;
                count<false>(f.counts, 0);
                return;
            }
            if constexpr (kRule == Rule::measured) {
                if (left_over(g, f)) return;
            }
            forget_distances(a, b);
        }
        const Found f = look<true>(a, b);
        if constexpr (kRule == Rule::measured) {
            if (left_over(g, f)) return;
        }
        const bool trouble =
            warp::any(f.undecided || beyond || !(f.sum < kInfiniteDistance)) || work_.exactly;
        bool candidate = f.candidate;
        if (!trouble) {
            keep(f);
            const bool outlier = (f.slots & kOutlierBits) != 0;
            const unsigned outliers = warp::ballot(outlier);
            bool differs = f.counts_over != 0;
            if (outliers != 0) {
                forget_distances(a, b);
                Outliers found;
#pragma unroll
                for (unsigned p = 0; p < kPairs; ++p)
                    count_outlier(distance_of(a[p], b[p]), found);
                differs |= found.differs;
                if (__popc(outliers) >= static_cast<int>(kManyLanes)) move_base(found);
            }
            differing_ = warp::any(differs);
            if (differing_) {
                candidate |= seeking_ && differs;
                forget_distances(a, b);
                mark_chunks(g);
            }
        }
        if (warp::any(trouble || candidate)) one_by_one(g, trouble);
    }
    __device__ void group_around(const Group& g) {
        const Found f = look_around(g);
        const bool trouble = warp::any(f.undecided || !(f.sum < kInfiniteDistance)) || work_.exactly;
        bool candidate = f.candidate;
        if (!trouble) {
            keep(f);
            const unsigned outliers = warp::ballot((f.slots & kOutlierBits) != 0);
            bool differs = f.counts_over != 0;
            if (outliers != 0) {
                Outliers found;
                const Ring ring = ring_of(g);
#pragma unroll 1
                for (unsigned i = lane_; i < g.n; i += kLanes)
                    count_outlier(distance_around(ring, g, i), found);
                differs |= found.differs;
                warp::sync();
                if (__popc(outliers) >= static_cast<int>(kManyLanes)) move_base(found);
            }
            if (warp::any(differs)) {
                candidate |= seeking_ && differs;
                mark_chunks(g);
            }
        }
        if (warp::any(trouble || candidate)) one_by_one(g, trouble);
    }
    __device__ void keep(const Found& f) {
        sum_ += f.sum;
        sum_different_ += f.sum_different;
        count<true>(f.counts, f.counts_over);
    }

    __device__ void keep_largest(const Value (&a)[kPairs]) {
        const Value before = top_;
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
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
            for (unsigned p = 0; p < kPairs; ++p) {
                const Value magnitude = a[p] < 0 ? -a[p] : a[p];
                if (magnitude > top_ && static_cast<double>(magnitude) < kInfiniteDistance) top_ = magnitude;
            }
        }
    }

    struct Distance {
        double distance;
        bool differs;
    };
    // If the lanes' distances were kept for this rare case, they would take registers from all
    // groups.
    static __device__ void forget_distances(Value (&a)[kPairs], Value (&b)[kPairs]) {
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            forget(a[p]);
            forget(b[p]);
        }
    }
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
        const Value a = value_of(state_.a, g, place);
        const Value b = value_of(state_.b, g, place);
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
    __device__ void put_marks() const {
        if (marks_ == 0) return;
        warp::sync();
#pragma unroll 1
        for (unsigned number = lane_; number < kTileGroups; number += kLanes) {
            if ((marks_ >> number & 1) != 0) mark_chunk({number, kGroup, true}, 0);
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
        if (at - base_slot_ / 4 < kSlots) return;
        atomicAdd(&shared_.all[at], 1U);
        if (!d.differs) return;
        atomicAdd(&shared_.over[at], 1U);
        found.differs = true;
    }
    // Room for one decade above and six below what is highest now.
    __device__ void move_base(const Outliers& found) {
        const std::uint32_t highest = warp::largest(found.highest);
        const std::uint32_t base = highest > 6 ? 4 * (highest - 6) : 4;
        if (base == base_slot_) return;
        flush();
        base_slot_ = base;
    }

    [[nodiscard]] __device__ Value value_of(const std::byte* run, const Group& g, unsigned place) const {
        const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(work_.scalar);
        const std::uint64_t bits = word_at(run + (std::size_t{g.number} * kGroup + place) * bytes, bytes);
        if constexpr (kKind == Kind::f64) {
            return as_double(bits);
        } else if constexpr (kKind == Kind::f32) {
            return float_of(static_cast<std::uint32_t>(bits));
        } else {
            return from_narrow(static_cast<std::uint32_t>(bits), work_.scalar);
        }
    }
    // One pair of a group from memory, by the reference.
    [[nodiscard]] __device__ ExactPair pair_of(const Group& g, unsigned place) const {
        const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(work_.scalar);
        const DifferenceRule rule{{work_.atol, work_.rtol}, work_.nan_equal};
        const std::size_t from = (std::size_t{g.number} * kGroup + place) * bytes;
        double period = 0;
        std::uint64_t ulps = 0;
        if constexpr (kRule != Rule::plain) ulps = work_.measured.ulps;
        if constexpr (kRule == Rule::around) {
            const std::uint64_t scalar = state_.index + g.number * kGroup + place;
            const Measured& m = work_.measured;
            period = shared_.circles[scalar / m.component_stride % m.components].period;
        }
        return exact_pair<kKind, kRule>(word_at(state_.a + from, bytes), word_at(state_.b + from, bytes),
                                        work_.scalar, rule, ulps, period);
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
        seeking_ = index + g.n <= state_.first;
    }

    const Work& work_;
    Shared& shared_;
    WarpState& state_;
    unsigned lane_;
    // One a lane.
    Value top_ = 0;
    double sum_ = 0;
    double sum_different_ = 0;
    std::uint32_t all_[2] = {};
    std::uint32_t over_[2] = {};
    // The same in all lanes.
    double distance_bound_ = 0;
    double quotient_bound_ = 0;
    double different_bound_ = 0;
    std::uint32_t base_slot_ = 4;
    std::uint32_t pending_ = 0;
    std::uint64_t marks_ = 0;  // groups of the tile that hold a pair that differs
    bool seeking_ = false;     // the tile may hold the first pair that differs
    bool differing_ = false;   // the group before held one
    std::uint64_t left_ = 0;   // groups of the tile that are left for Rule::around
};

}  // namespace

}  // namespace twinrun
