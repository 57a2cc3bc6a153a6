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
// Units in the last place: two numbers of one sign are as far apart as their bits, in arithmetic
// modulo 2^32 or 2^64. Circles: a group is looked at as on a line first; if some pair may be nearer
// round its circle, at most one turn round; and if some may be more than one turn apart, any
// number of turns. A group begins with what the group before needed.
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
#include "difference/difference_counters.cuh"
#include "difference/difference_largest.cuh"
#include "difference/difference_shared.cuh"
#include "difference/difference_stored.cuh"

namespace twinrun {

namespace {

// On a circle a distance that is nearer to what is allowed than this share of |a - b| leaves a
// doubt: some roundings' worth.
constexpr double kRoundings = 0x1p-48;
// The same of the period, for values that are at most kOneTurn periods apart. Then no other turn
// is nearer.
constexpr double kOneTurn = 1.49;
constexpr double kDoubtOfPeriod = 0x1p-46;

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
    static constexpr bool kShort = is_short(kKind);

    __device__ Warp(const Work& work, Shared<kKind>& shared)
        : work_(work),
          shared_(shared),
          state_(shared.warp[threadIdx.x / kLanes]),
          stage_at_(shared_address(shared.stages() + threadIdx.x / kLanes * work.stages) +
                    threadIdx.x % kLanes * sizeof(uint4)),
          counters_(shared),
          lane_(threadIdx.x % kLanes) {
        forget(stage_at_);  // kept: it would be worked out anew for each group
    }

    // The block's tiles: its warps take every step-th of them, from `begin` on.
    __device__ void run(std::uint64_t begin, std::uint64_t end, std::uint64_t step) {
        const unsigned warp = threadIdx.x / kLanes;
        for (std::uint64_t t = begin + warp; t < end; t += step)
            tile(t);
        counters_.flush();
        if constexpr (kShort) top_ = largest_packed<kKind>(packed_top_, scalar());
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
            if constexpr (kRule == Rule::circles) {
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
    // The place of a lane's pair in its group.
    [[nodiscard]] __device__ unsigned place_of(const Group& g, unsigned pair) const {
        if (g.stage == 0) return pair * kLanes + lane_;
        const unsigned each = sizeof(uint4) / bytes();  // pairs of a vector
        return pair / each * (each * kLanes) + lane_ * each + pair % each;
    }
    [[nodiscard]] __device__ const Circle& circle_of(const Ring& ring, unsigned place) const {
        std::uint32_t component = ring.component;
        if (ring.cycles) {  // its remainder: of numbers below 2^16, by a multiplication
            component += place;
            component -= __umulhi(component, work_.measured.reciprocal) * work_.measured.components;
        }
        return shared_.circles[component];
    }
    // A distance as compare_on_circle finds it. A verdict leaves a doubt where no more than `doubt`
    // is between the distance and what is allowed.
    struct Way {
        double distance;
        double doubt;
        bool round;  // it is shorter round the circle
    };
    // For values at most circle.one_turn apart.
    [[nodiscard]] static __device__ Way one_turn(double straight, const Circle& circle) {
        const double other = absolute_value(straight - circle.period);
        const bool round = other < straight;
        // Of float64 no rounding matters where the straight way is the shorter one, as on a line.
        // Numbers of other types are seldom so near that it could.
        const bool exact = kKind == Kind::f64 && straight < other;
        return {round ? other : straight, exact ? 0 : circle.period * kDoubtOfPeriod, round};
    }
    [[nodiscard]] static __device__ Way any_turns(double difference, const Circle& circle) {
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
        const double straight = absolute_value(difference);
        const bool trusted = absolute_value(quotient) < 0x1p20 && straight > 0x1p-900;
        return {distance, trusted ? straight * kRoundings : kInfiniteDistance, distance < straight};
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
        bool on_line = true;      // the same in all lanes
        bool undecided = false;
        bool candidate = false;
        bool round = false;    // some pair is nearer round its circle
        bool farther = false;  // some pair may be more than one turn apart

        [[nodiscard]] __device__ bool outside() const {
            if constexpr (!kFloats) return (slots & kOutlierBits) != 0;
            std::uint32_t any = 0;
#pragma unroll
            for (unsigned i = 0; i < kBlocks; ++i)
                any |= counts[i];
            return any >= kOutsideCounters;
        }
        [[nodiscard]] __device__ bool differs() const {
            std::uint32_t any = 0;
#pragma unroll
            for (unsigned i = 0; i < kBlocks; ++i)
                any |= counts_over[i];
            return any != 0;
        }
    };
    enum class Turns : std::uint8_t { none, one, any };  // round circles
    // What a look is for. absolute: the tolerance has no relative part, and no d that was rounded
    // equals it, unless of float64. two_bounds: pairs that differ may have another largest quotient
    // than all. verdicts: some pair may differ. steps: numbers few steps apart do not. one_circle:
    // all pairs lie on the same.
    struct LookFor {
        bool absolute = false;
        bool two_bounds = true;
        bool verdicts = true;
        bool steps = false;
        Turns turns = Turns::none;
        bool one_circle = false;
    };
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
    template <bool kOnLine>
    [[nodiscard]] __device__ std::uint32_t counter_of(Value a, Value b, double distance,
                                                      std::uint32_t* slots) const {
        if constexpr (kFloats) {
            return counters_.of_floats(distance, kOnLine ? __fsub_rz(a, b) : __double2float_rz(distance));
        } else {
            return counters_.of_doubles(distance, slots);
        }
    }
    // One pair of a block. circle: with turns only.
    template <LookFor kFor>
    __device__ void look_at(Value a, Value b, const Circle& circle, unsigned block, Found& f) const {
        constexpr bool on_line = kFor.turns == Turns::none;
        const auto x = static_cast<double>(a);
        const double magnitude = absolute_value(x);
        const double difference = x - static_cast<double>(b);
        double distance = absolute_value(difference);
        Way way{};
        if constexpr (!on_line) {
            f.farther |= distance > circle.one_turn;
            way = kFor.turns == Turns::one ? one_turn(distance, circle) : any_turns(difference, circle);
            f.round |= way.round;
            distance = way.distance;
        }
        // Denormal numbers: neither counters nor products hold them.
        if constexpr (kKind == Kind::f64) f.undecided |= distance != 0 & distance < 0x1p-1000;
        f.candidate |= distance > distance_bound_;
        // d / |a| rounded is above a number if d lies above the product: rounding keeps order here,
        // too.
        f.candidate |= fma(-quotient_bound_, magnitude, distance) > 0;
        f.sum = fma(distance, distance, f.sum);
        const std::uint32_t one = counter_of<on_line>(a, b, distance, &f.slots);
        f.counts[block] += one;
        if constexpr (!kFor.verdicts) return;
        const double allowed = allowed_for<kFor.absolute>(magnitude);
        // Rounding keeps order, and `allowed` is rounded once: on a line, only d = allowed leaves a
        // doubt.
        if constexpr (!on_line) {
            f.undecided |= difference != 0 & !(absolute_value(distance - allowed) > way.doubt);
        } else if constexpr (kKind == Kind::f64) {
            f.undecided |= distance != 0 & distance == allowed;
        } else if constexpr (!kFor.absolute) {
            f.undecided |= distance == allowed;
        }
        bool differs = distance > allowed;
        if constexpr (kFor.steps) differs &= far_enough(a, b);  // & and no branch
        if (differs) {
            f.sum_different = fma(distance, distance, f.sum_different);
            f.counts_over[block] += one;
        }
        if constexpr (kFor.two_bounds)
            f.candidate |= differs & fma(-different_bound_, magnitude, distance) > 0;
    }
    // All pairs. first: as decode_block() takes it. ring: with turns only.
    template <LookFor kFor>
    __device__ void look(const Group& g, const Ring& ring, const Pairs& first, const Words<kKind>& words_a,
                         const Words<kKind>& words_b, Found& f, bool* beyond) const {
        Circle circle{};
        if constexpr (kFor.one_circle) circle = circle_of(ring, 0);
#pragma unroll
        for (unsigned block = 0; block < kBlocks; ++block) {
            Pairs a;
            Pairs b;
            decode_block(first, words_a, words_b, block, a, b, beyond);
#pragma unroll
            for (unsigned p = 0; p < kBlock<kKind>; ++p) {
                if constexpr (kFor.turns != Turns::none && !kFor.one_circle)
                    circle = circle_of(ring, place_of(g, block * kBlock<kKind> + p));
                look_at<kFor>(a[p], b[p], circle, block, f);
            }
        }
    }
    // The same, pair after pair: what any turns need would take registers from all groups.
    __device__ void look_any_turns(const Group& g, const Ring& ring, Found& f) const {
        constexpr LookFor any_turns_and_steps{.steps = true, .turns = Turns::any};
#pragma unroll
        for (unsigned block = 0; block < kBlocks; ++block) {
#pragma unroll 1
            for (unsigned p = 0; p < kBlock<kKind>; ++p) {
                const unsigned pair = block * kBlock<kKind> + p;
                const Two two = pair_at(g, pair);
                look_at<any_turns_and_steps>(two.a, two.b, circle_of(ring, place_of(g, pair)), block, f);
            }
        }
    }
    // Whether rounding could decide a pair of this group, in which some d equals what is allowed.
    template <bool kAbsolute>
    [[nodiscard]] __device__ bool in_doubt(const Group& g) const {
        bool doubt = false;
#pragma unroll 1
        for (unsigned pair = 0; pair < kPairs; ++pair) {
            const Two two = pair_at(g, pair);
            const auto x = static_cast<double>(two.a);
            const auto y = static_cast<double>(two.b);
            const double difference = x - y;
            const double distance = absolute_value(difference);
            // What rounding took from the difference (Knuth's two-sum).
            const double back = difference - x;
            const double lost = (x - (difference - back)) - (y + back);
            const bool tie = distance == allowed_for<kAbsolute>(absolute_value(x));
            doubt |= distance != 0 & ((tie & (!kAbsolute | lost != 0)) | distance < 0x1p-1000);
        }
        return doubt;
    }
    // For what is rare: one of the lane's pairs once more; zeros where there is none. If values
    // were kept for it, they would take registers from all groups.
    struct Two {
        Value a;
        Value b;
    };
    [[nodiscard]] __device__ Two pair_at(const Group& g, unsigned pair) const {
        std::uint64_t bits[2] = {0, 0};
        const unsigned each = sizeof(uint4) / bytes();
        const unsigned place = place_of(g, pair);
#pragma unroll
        for (unsigned which = 0; which < 2; ++which) {
            if (g.stage != 0) {
                const std::uint32_t at = word_address(g.stage, which, pair / each) + pair % each * bytes();
                bits[which] = bits_in_shared(at, bytes());
            } else if (place < g.n) {
                const std::byte* run = which == 0 ? state_.a : state_.b;
                bits[which] = word_at(run + (std::size_t{g.number} * kGroup + place) * bytes(), bytes());
            }
        }
        return {value_of<kKind>(bits[0], scalar()), value_of<kKind>(bits[1], scalar())};
    }
    // Of such a pair, which is ordinary.
    struct Measures {
        double magnitude;
        double distance;
        bool differs;
    };
    [[nodiscard]] __device__ Measures measures_of(const Group& g, const Ring& ring, unsigned pair) const {
        const Two two = pair_at(g, pair);
        const auto x = static_cast<double>(two.a);
        const double difference = x - static_cast<double>(two.b);
        Measures m{absolute_value(x), absolute_value(difference), false};
        if constexpr (kRule == Rule::circles) {
            // (The inverse of a tiny period is infinite.)
            if (difference != 0)
                m.distance = any_turns(difference, circle_of(ring, place_of(g, pair))).distance;
        }
        m.differs = m.distance > allowed_for<false>(m.magnitude);
        if constexpr (kRule != Rule::plain) m.differs = m.differs && far_enough(two.a, two.b);
        return m;
    }
    // Of which pairs the distance on a line has no counter.
    [[nodiscard]] __device__ unsigned outside_on_line(const Group& g) const {
        unsigned pairs = 0;
        Words<kKind> words[2];
#pragma unroll
        for (unsigned which = 0; which < 2; ++which) {
            const std::byte* run = which == 0 ? state_.a : state_.b;
            const std::size_t offset = std::size_t{g.number} * (kGroup * bytes());
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
            for (unsigned p = 0; p < kBlock<kKind>; ++p) {
                const double distance = absolute_value(static_cast<double>(a[p]) - static_cast<double>(b[p]));
                std::uint32_t slots = 0;
                const std::uint32_t one = counter_of<true>(a[p], b[p], distance, &slots);
                const bool outside = kFloats ? one >= kOutsideCounters : (slots & kOutlierBits) != 0;
                if (outside) pairs |= 1U << (block * kBlock<kKind> + p);
            }
        }
        return pairs;
    }

    // ---- one group ----

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
                look<LookFor{}>(g, {}, first, words_a, words_b, f, beyond);
            } else if (work_.measured.quick_far && !warp::any(may_be_far(first, words_a, words_b))) {
                look<LookFor{.two_bounds = false, .verdicts = false}>(g, {}, first, words_a, words_b, f,
                                                                      beyond);
            } else {
                // (Pairs without a counter are in this sum only.)
                const auto some_differ = [&] { return warp::any(f.differs() || f.sum_different != 0); };
                if ((work_.atol != 0 || work_.rtol != 0) && !differed_) {
                    look<LookFor{}>(g, {}, first, words_a, words_b, f, beyond);
                    differed_ = some_differ();
                } else {
                    differed_ = true;
                }
                if (differed_) {
                    f = Found{};
                    look<LookFor{.steps = true}>(g, {}, first, words_a, words_b, f, beyond);
                    differed_ = some_differ();
                }
            }
        } else if (!work_.absolute) {
            look<LookFor{}>(g, {}, first, words_a, words_b, f, beyond);
        } else if (different_bound_ == quotient_bound_) {
            look<LookFor{.absolute = true, .two_bounds = false}>(g, {}, first, words_a, words_b, f, beyond);
        } else {
            look<LookFor{.absolute = true}>(g, {}, first, words_a, words_b, f, beyond);
        }
        if (warp::any(f.undecided)) {
            const bool absolute = kRule == Rule::plain && work_.absolute;
            f.undecided = absolute ? in_doubt<true>(g) : in_doubt<false>(g);
        }
        return f;
    }
    // Begins as the group before ended.
    [[nodiscard]] __device__ Found look_round(const Group& g, const Ring& ring, const Pairs& first,
                                              const Words<kKind>& words_a, const Words<kKind>& words_b,
                                              bool* beyond) {
        Found f;
        if (turns_ == Turns::none) {
            f = look_on_line(g, first, words_a, words_b, beyond);
            // No square of a distance comes to that of half-way round.
            if (!warp::any(!(f.sum < work_.measured.near_squared))) return f;
            turns_ = Turns::one;
        }
        const auto next = [&] {
            turns_ = warp::any(f.farther) ? Turns::any : warp::any(f.round) ? Turns::one : Turns::none;
        };
        if (turns_ == Turns::one) {
            f = Found{};
            constexpr LookFor one{.turns = Turns::one, .one_circle = true};
            constexpr LookFor one_and_steps{.steps = true, .turns = Turns::one, .one_circle = true};
            constexpr LookFor each{.steps = true, .turns = Turns::one};
            if (ring.cycles) {
                look<each>(g, ring, first, words_a, words_b, f, beyond);
            } else if (work_.measured.ulps == Measure::kNoUlps) {
                look<one>(g, ring, first, words_a, words_b, f, beyond);
            } else {
                look<one_and_steps>(g, ring, first, words_a, words_b, f, beyond);
            }
            next();
        }
        if (turns_ == Turns::any) {
            f = Found{};
            look_any_turns(g, ring, f);
            next();
        }
        f.undecided |= ring.mixed;
        f.on_line = false;
        return f;
    }
    __device__ void group(const Group& g, const Words<kKind>& words_a, const Words<kKind>& words_b) {
        bool beyond = false;
        Pairs first;
        if constexpr (kShort) {
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
        if constexpr (kShort) decode<kKind>(words_a, 0, scalar(), first, &beyond);
        if constexpr (kRule == Rule::circles) {
            const Ring ring = ring_of(g);
            const Found f = look_round(g, ring, first, words_a, words_b, &beyond);
            conclude(g, f, beyond, ring);
        } else {
            const Found f = look_on_line(g, first, words_a, words_b, &beyond);
            conclude(g, f, beyond, {});
        }
    }
    __device__ void conclude(const Group& g, const Found& f, bool beyond, const Ring& ring) {
        const bool differs = f.differs();
        // | and &: no branches.
        const bool trouble = f.undecided | beyond | !(f.sum < kInfiniteDistance) | work_.exactly;
        if (warp::any(trouble | f.candidate | f.outside() | (differs & each_counts_))) {
            take(g, f, warp::any(trouble), ring);
        } else {
            keep(f);
            if (differs) marks_ |= 1ULL << g.number;
        }
    }
    // Keeps what a look found.
    __device__ void take(const Group& g, const Found& f, bool trouble, const Ring& ring) {
        bool candidate = f.candidate;
        if (!trouble) {
            keep(f);
            bool differs = f.differs();
            if (warp::any(f.outside())) {
                unsigned pairs = f.on_line ? outside_on_line(g) : (1U << kPairs) - 1;
#pragma unroll 1
                for (; pairs != 0; pairs &= pairs - 1) {
                    const auto pair = static_cast<unsigned>(__ffs(static_cast<int>(pairs)) - 1);
                    const Measures m = measures_of(g, ring, pair);
                    if (counters_.count_outlier(m.distance, m.differs)) differs |= m.differs;
                }
                counters_.choose_base();
            }
            if (warp::any(differs)) mark_chunks(g);
            if (warp::any(candidate)) candidate = has_new_maximum(g, ring);
            candidate |= seeking_ && differs;
        }
        if (warp::any(trouble || candidate)) one_by_one(g, trouble);
    }
    // Looks only find that some pair may be above the bounds.
    [[nodiscard]] __device__ bool has_new_maximum(const Group& g, const Ring& ring) const {
        bool above = false;
#pragma unroll 1
        for (unsigned pair = 0; pair < kPairs; ++pair) {
            const Measures m = measures_of(g, ring, pair);
            if (m.distance == 0) continue;
            const double quotient = m.magnitude == 0 ? kInfiniteDistance : m.distance / m.magnitude;
            above |= m.distance > distance_bound_ || quotient > quotient_bound_ ||
                     (m.differs && quotient > different_bound_);
        }
        return above;
    }
    __device__ void keep(const Found& f) {
        sum_ += f.sum;
        sum_different_ += f.sum_different;
        counters_.count(f.counts, f.counts_over);
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

    // One pair of a group from memory, by the reference.
    [[nodiscard]] __device__ ExactPair pair_of(const Group& g, unsigned place) const {
        const DifferenceRule rule{{work_.atol, work_.rtol}, work_.nan_equal};
        const std::size_t from = (std::size_t{g.number} * kGroup + place) * bytes();
        double period = 0;
        std::uint64_t ulps = 0;
        if constexpr (kRule != Rule::plain) ulps = work_.measured.ulps;
        if constexpr (kRule == Rule::circles) {
            const Measured& m = work_.measured;
            const std::uint64_t scalar = state_.index + g.number * kGroup + place;
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
            // (0: rounded to it.)
            counters_.count_at(distance == 0 ? 0 : bin(distance), exact.pair.differs);
            if (!infinite) sum_ += distance * distance;
            if (!exact.pair.differs) continue;
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
    Counters<kKind> counters_;
    unsigned lane_;
    // One a lane.
    Value top_ = 0;
    std::uint32_t packed_top_ = 0;
    double sum_ = 0;
    double sum_different_ = 0;
    std::uint64_t marks_ = 0;  // groups of the tile in which some lane has a pair that differs
    // The same in all lanes.
    double distance_bound_ = 0;
    double quotient_bound_ = 0;
    double different_bound_ = 0;
    bool seeking_ = false;      // the tile may hold the first pair that differs
    bool each_counts_ = false;  // a pair that differs wants more than its group's mark
    bool differed_ = false;     // by both parts of a rule with steps, in the last group looked at so
    Turns turns_ = Turns::none;
};

}  // namespace

}  // namespace twinrun
