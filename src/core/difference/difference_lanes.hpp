// Private to difference_avx2.cpp and difference_avx512.cpp: their one algorithm, over lanes of
// float64.
//
// for each group of 64 scalars:
//     bits of a and b the same       -> only the largest |a| is kept
//     otherwise for each vector of it
//                                    -> d = |a - b|, verdicts; what is rare (NaN, infinities,
//                                       verdicts that rounding could decide, new maxima) leaves the
//                                       loop
//     distances that are not 0 go, without gaps, to a buffer that is counted from time to time:
//     where those of a block lie in few decades, each edge between them is compared with all of it
//
// A rounded quotient d / |a| above the maximum m has d >= m |a|, rounded or not: only such lanes
// are divided.
//
// Isa gives the instruction set: Lanes (of float64), Mask (of lanes) and Words<T> (a vector of T as
// stored). It is local to its source file, and so is everything that is made from it: no code of
// one set can stand in for another's.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>

#include "difference/difference_histogram.hpp"
#include "difference/difference_pair.hpp"

namespace twinrun {

template <class Isa>
struct LaneDifference {
    using Lanes = typename Isa::Lanes;
    using Mask = typename Isa::Mask;

    static constexpr std::size_t kWidth = Isa::kWidth;
    static constexpr std::size_t kGroup = 64;
    static constexpr double kInfinity = std::numeric_limits<double>::infinity();

    // The results for one vector of pairs.
    struct Verdict {
        Lanes distance;   // infinite where it is not a number
        Lanes magnitude;  // |a|; 1 where the distance is infinite
        Lanes summed;     // the distance, 0 where infinite
        Mask differs;
    };

    // A maximum within one call.
    struct Maximum {
        double value;
        std::uint64_t at = kNowhere;

        // The call's places follow `index`: a tie is worth noting only if the known place lies
        // beyond it.
        Maximum(double known, std::uint64_t known_at, std::uint64_t index) : value(known) {
            if (known > 0 && known_at > index) {
                std::uint64_t bits = 0;
                std::memcpy(&bits, &known, sizeof bits);
                --bits;
                std::memcpy(&value, &bits, sizeof bits);
            }
        }
        void offer(double candidate, std::uint64_t place) {
            if (candidate > value) {
                value = candidate;
                at = place;
            }
        }
        void store(double& maximum, std::uint64_t& maximum_at) const {
            if (at != kNowhere) raise(value, at, maximum, maximum_at);
        }
    };

    struct Maxima {
        Maximum distance;
        Maximum relative;
        Maximum relative_different;

        Maxima(const DifferenceStats& s, std::uint64_t index)
            : distance(s.max_abs, s.max_abs_at, index),
              relative(s.max_rel, s.max_rel_at, index),
              relative_different(s.max_rel_different, s.max_rel_different_at, index) {}
    };

    // ---- rare cases, out of the loop ----

    // a - b less its rounded value, exact.
    static Lanes lost_by_subtraction(Lanes a, Lanes b) {
        const Lanes rounded = Isa::subtract(a, b);
        const Lanes part = Isa::subtract(rounded, a);
        return Isa::subtract(Isa::subtract(a, Isa::subtract(rounded, part)), Isa::add(b, part));
    }

    // Lanes with a NaN or an infinity (special) and lanes whose verdict rounding could decide. The
    // verdict on all others is in `v` already.
    [[gnu::noinline]] static Verdict settle(Verdict v, Lanes a, Lanes b, Mask special, Mask undecided,
                                            const DifferenceRule& rule) {
        if (rule.tolerance.rtol != 0 && Isa::any(undecided)) {
            // Where no rounding took place, d > allowed is the verdict.
            const Lanes zero = Isa::fill(0);
            const Lanes rtol = Isa::fill(rule.tolerance.rtol);
            const Lanes atol = Isa::fill(rule.tolerance.atol);
            const Lanes product = Isa::multiply(rtol, v.magnitude);
            const Lanes allowed = Isa::add(atol, product);
            const Lanes part = Isa::subtract(allowed, atol);
            const Lanes sum_lost =
                Isa::add(Isa::subtract(atol, Isa::subtract(allowed, part)), Isa::subtract(product, part));
            Mask exact = Isa::equal(undecided, lost_by_subtraction(a, b), zero);
            exact = Isa::equal(exact, sum_lost, zero);
            // Below 2^-900 what the product lost could itself be rounded.
            const Mask whole = Isa::equal(exact, Isa::multiply_subtract(rtol, v.magnitude, product), zero);
            exact = Isa::either(Isa::equal(exact, v.magnitude, zero),
                                Isa::greater(whole, product, Isa::fill(0x1p-900)));
            v.differs = Isa::either(v.differs, Isa::greater(exact, v.distance, allowed));
            undecided = Isa::without(undecided, exact);
        }
        unsigned rest = Isa::bits(Isa::either(special, undecided));
        if (rest == 0) return v;
        alignas(64) double values_a[kWidth];
        alignas(64) double values_b[kWidth];
        alignas(64) double distances[kWidth];
        Isa::store(values_a, a);
        Isa::store(values_b, b);
        Isa::store(distances, v.distance);
        unsigned differs = Isa::bits(v.differs);
        for (; rest != 0; rest &= rest - 1) {
            const auto lane = static_cast<unsigned>(__builtin_ctz(rest));
            const Pair pair = compare_pair(values_a[lane], values_b[lane], rule);
            distances[lane] = pair.distance;
            differs = (differs & ~(1U << lane)) | static_cast<unsigned>(pair.differs) << lane;
        }
        v.distance = Isa::load(distances);
        v.differs = Isa::mask(differs);
        const Mask infinite = Isa::not_less(v.distance, Isa::fill(kInfinity));
        v.magnitude = Isa::replace(infinite, v.magnitude, 1);
        v.summed = Isa::replace(infinite, v.distance, 0);
        return v;
    }

    // Some lane reaches a bound.
    [[gnu::noinline]] static void offer(Lanes distance, Lanes magnitude, Mask unequal, Mask differs,
                                        std::uint64_t index, Maxima& maxima) {
        const Lanes quotient = Isa::divide(distance, magnitude);
        Mask raises = Isa::greater(unequal, quotient, Isa::fill(maxima.relative.value));
        raises =
            Isa::either(raises, Isa::greater(differs, quotient, Isa::fill(maxima.relative_different.value)));
        raises = Isa::either(raises, Isa::greater(unequal, distance, Isa::fill(maxima.distance.value)));
        if (!Isa::any(raises)) return;
        alignas(64) double distances[kWidth];
        alignas(64) double quotients[kWidth];
        Isa::store(distances, distance);
        Isa::store(quotients, quotient);
        const unsigned different = Isa::bits(differs);
        for (unsigned rest = Isa::bits(raises); rest != 0; rest &= rest - 1) {
            const auto lane = static_cast<unsigned>(__builtin_ctz(rest));
            maxima.distance.offer(distances[lane], index + lane);
            maxima.relative.offer(quotients[lane], index + lane);
            if ((different >> lane & 1U) != 0) maxima.relative_different.offer(quotients[lane], index + lane);
        }
    }

    template <class T>
    [[gnu::noinline]] static bool group_has_nan(const T* a) {
        bool found = false;
        for (std::size_t i = 0; i < kGroup; ++i) {
            T value;
            std::memcpy(&value, reinterpret_cast<const std::byte*>(a) + i * sizeof(T), sizeof(T));
            found |= value != value;
        }
        return found;
    }

    template <class T>
    [[gnu::noinline]] static double largest_finite(const T* a, std::size_t n) {
        double largest = 0;
        for (std::size_t i = 0; i < n; ++i) {
            T value;
            std::memcpy(&value, reinterpret_cast<const std::byte*>(a) + i * sizeof(T), sizeof(T));
            const double magnitude = std::fabs(static_cast<double>(value));
            if (magnitude > largest && magnitude < kInfinity) largest = magnitude;
        }
        return largest;
    }

    // ---- the histogram ----

    static constexpr std::size_t kVectors = kGroup / kWidth;
    // Where a block has more edges, looking up each distance is as fast.
    static constexpr std::size_t kMostEdges = 2 * kWidth <= 8 ? 4 : 8;

    // Adds kGroup distances, as count_distances takes them. False: they lie in too many decades,
    // and nothing was added.
    static bool count_block(const std::uint64_t* distances, DifferenceStats* stats) {
        Lanes found[kVectors];
        Mask differs[kVectors];
        const auto* bytes = reinterpret_cast<const std::byte*>(distances);
        std::memcpy(found, bytes, sizeof found);
        Lanes least = Isa::fill(kInfinity);
        Lanes most = Isa::fill(0);
        unsigned different = 0;
        for (std::size_t v = 0; v < kVectors; ++v) {
            differs[v] = Isa::negative(found[v]);
            different += count(differs[v]);
            found[v] = Isa::absolute(found[v]);
            least = Isa::smaller(least, found[v]);
            most = Isa::larger(most, found[v]);
        }
        const std::size_t low = histogram_bin(Isa::smallest(least));
        const std::size_t high = histogram_bin(Isa::largest(most));
        if (high - low > kMostEdges) return false;
        unsigned left = kGroup;
        unsigned left_different = different;
        for (std::size_t bin = low; bin < high; ++bin) {
            const Lanes edge = Isa::fill(upper_edge(bin));
            unsigned beyond = 0;
            unsigned beyond_different = 0;
            for (std::size_t v = 0; v < kVectors; ++v) {
                const Mask above = Isa::not_less(found[v], edge);
                beyond += count(above);
                if (different != 0) beyond_different += count(Isa::both(above, differs[v]));
            }
            stats->all[bin] += left - beyond;
            stats->over[bin] += left_different - beyond_different;
            left = beyond;
            left_different = beyond_different;
        }
        stats->all[high] += left;
        stats->over[high] += left_different;
        stats->different += different;
        if (high == kHistogramBins - 1) stats->infinite += left_different;
        return true;
    }
    static unsigned count(Mask lanes) { return static_cast<unsigned>(__builtin_popcount(Isa::bits(lanes))); }
    // Of a bin that is not the last one: the next one begins there.
    static double upper_edge(std::size_t bin) {
        return bin - 1 < sizeof kDecadeEdges / sizeof(double) ? kDecadeEdges[bin - 1] : kInfinity;
    }

    // ---- the loop ----

    template <class T>
    struct Call {
        const DifferenceRule& rule;
        DifferenceStats* stats;
        Maxima maxima;
        std::uint64_t first = kNowhere;
        Lanes sum = Isa::fill(0);
        Lanes sum_different = Isa::fill(0);
        std::size_t pending = 0;
        std::uint64_t counted = 0;
        alignas(64) std::uint64_t distances[kMostDistances + kWidth];

        Call(const DifferenceRule& r, std::uint64_t index, DifferenceStats* s)
            : rule(r), stats(s), maxima(*s, index) {}

        void flush() {
            counted += pending;
            // What lies in many decades moves to the front.
            std::size_t wide = 0;
            std::size_t i = 0;
            for (; i + kGroup <= pending; i += kGroup) {
                if (count_block(distances + i, stats)) continue;
                if (wide != i) std::memcpy(distances + wide, distances + i, kGroup * sizeof *distances);
                wide += kGroup;
            }
            const std::size_t rest = pending - i;
            if (wide != i) std::memmove(distances + wide, distances + i, rest * sizeof *distances);
            count_distances(distances, wide + rest, stats);
            pending = 0;
        }

        [[gnu::noinline]] void group(const T* a, const T* b, std::uint64_t index) {
            if (pending > kMostDistances - kGroup) flush();
            const Lanes atol = Isa::fill(rule.tolerance.atol);
            const Lanes rtol = Isa::fill(rule.tolerance.rtol);
            const Lanes infinity = Isa::fill(kInfinity);
            Lanes group_sum = sum;
            Lanes group_sum_different = sum_different;
            std::size_t end = pending;
            for (std::size_t i = 0; i < kGroup; i += kWidth) {
                const Lanes x = Isa::load(a + i);
                const Lanes y = Isa::load(b + i);
                Mask unequal = Isa::unequal(x, y);
                Lanes distance = Isa::keep(unequal, Isa::absolute(Isa::subtract(x, y)));
                Lanes summed = distance;
                Lanes magnitude = Isa::absolute(x);
                Mask special = Isa::not_less(distance, infinity);
                // Rounding keeps order, and `allowed` is rounded once: only d = allowed leaves a
                // doubt.
                const Lanes allowed = Isa::multiply_add(magnitude, rtol, atol);
                Mask differs = Isa::greater(distance, allowed);
                Mask undecided = Isa::equal(unequal, distance, allowed);
                if (Isa::any(special, undecided)) [[unlikely]] {
                    if (rule.nan_equal) {
                        const Mask nans = Isa::both_nan(x, y);
                        unequal = Isa::without(unequal, nans);
                        special = Isa::without(special, nans);
                        summed = distance = Isa::keep(unequal, distance);
                    }
                    undecided = Isa::without(Isa::both(undecided, unequal), special);
                    // Where the subtraction was exact, d is atol itself.
                    if (rule.tolerance.rtol == 0) {
                        undecided = Isa::without(
                            undecided, Isa::equal(undecided, lost_by_subtraction(x, y), Isa::fill(0)));
                    }
                    if (Isa::any(special, undecided)) {
                        const Verdict v =
                            settle({distance, magnitude, summed, differs}, x, y, special, undecided, rule);
                        distance = v.distance;
                        magnitude = v.magnitude;
                        summed = v.summed;
                        differs = v.differs;
                    }
                }
                const Mask farther = Isa::greater(distance, Isa::fill(maxima.distance.value));
                const Mask steeper = Isa::at_least(
                    unequal, distance, Isa::multiply(magnitude, Isa::fill(maxima.relative.value)));
                const Mask steeper_different = Isa::at_least(
                    differs, distance, Isa::multiply(magnitude, Isa::fill(maxima.relative_different.value)));
                if (Isa::any(Isa::either(farther, steeper), steeper_different)) [[unlikely]] {
                    offer(distance, magnitude, unequal, differs, index + i, maxima);
                }
                if (first == kNowhere && Isa::any(differs)) [[unlikely]] {
                    first = index + i + static_cast<unsigned>(__builtin_ctz(Isa::bits(differs)));
                }
                group_sum = Isa::multiply_add(summed, summed, group_sum);
                group_sum_different = Isa::add_square(differs, summed, group_sum_different);
                end += Isa::pack(distances + end, unequal, Isa::negate(differs, distance));
            }
            pending = end;
            sum = group_sum;
            sum_different = group_sum_different;
        }
    };

    template <class T>
    struct Sweep {
        typename Isa::template Words<T> largest = Isa::template words_of<T>(0);

        // True if a group's scalars are the same, bit for bit. Keeps the largest |a|, skipping
        // NaNs.
        bool same(const T* a, const T* b) {
            using W = typename Isa::template Words<T>;
            constexpr std::size_t width = sizeof(W) / sizeof(T);
            W apart = Isa::template words_of<T>(0);
            W top = largest;
            for (std::size_t i = 0; i < kGroup; i += width) {
                const W words_a = Isa::words(a + i);
                apart = Isa::accumulate_difference(apart, words_a, Isa::words(b + i));
                top = Isa::larger_magnitude(words_a, top);
            }
            largest = top;
            return Isa::all_zero(apart);
        }
        [[nodiscard]] double result() const {
            T values[sizeof(largest) / sizeof(T)];
            std::memcpy(values, &largest, sizeof largest);
            T top = 0;
            for (const T value : values)
                top = value > top ? value : top;
            return static_cast<double>(top);
        }
    };

    template <class T>
    static void kernel(const T* a, const T* b, std::size_t n, std::uint64_t index, const DifferenceRule& rule,
                       DifferenceStats* stats) {
        Call<T> call(rule, index, stats);
        Sweep<T> sweep;
        const bool nan_equal = rule.nan_equal;
        std::size_t i = 0;
        for (; i + kGroup <= n; i += kGroup) {
            if (sweep.same(a + i, b + i) && (nan_equal || !group_has_nan(a + i))) [[likely]]
                continue;
            call.group(a + i, b + i, index + i);
        }
        if (i < n) {  // padded by equal zeros, which leave no trace
            alignas(64) T last_a[kGroup] = {};
            alignas(64) T last_b[kGroup] = {};
            const auto* from_a = reinterpret_cast<const std::byte*>(a) + i * sizeof(T);
            const auto* from_b = reinterpret_cast<const std::byte*>(b) + i * sizeof(T);
            std::memcpy(last_a, from_a, (n - i) * sizeof(T));
            std::memcpy(last_b, from_b, (n - i) * sizeof(T));
            const bool same = sweep.same(last_a, last_b);
            if (!same || (!nan_equal && group_has_nan(last_a))) call.group(last_a, last_b, index + i);
        }
        double largest = sweep.result();
        if (largest == kInfinity) largest = largest_finite(a, n);
        if (largest > stats->largest) stats->largest = largest;
        stats->scalars += n;
        if (call.pending != 0) call.flush();
        stats->all[0] += n - call.counted;
        if (call.counted == 0) return;
        if (call.first < stats->first) stats->first = call.first;
        call.maxima.distance.store(stats->max_abs, stats->max_abs_at);
        call.maxima.relative.store(stats->max_rel, stats->max_rel_at);
        call.maxima.relative_different.store(stats->max_rel_different, stats->max_rel_different_at);
        stats->sum_squares += Isa::total(call.sum);
        stats->sum_squares_different += Isa::total(call.sum_different);
    }
};

}  // namespace twinrun
