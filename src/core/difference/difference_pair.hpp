// Private to difference_*: one pair of values, and the places of maxima. Every backend, host or
// device, decides by these. Static on the host, so that no copy compiled for one instruction set
// can stand in for another's.
#pragma once

#include <cmath>
#include <limits>

#include "difference/difference.hpp"
#include "element/exact.hpp"

#if defined(__CUDACC__)
#define TWR_PAIR static __host__ __device__ inline
#else
#define TWR_PAIR static inline
#endif

namespace twinrun {

// |a - b| and the verdict on one pair.
struct Pair {
    double distance;
    bool differs;
};

inline constexpr double kInfiniteDistance = std::numeric_limits<double>::infinity();
inline constexpr double kLargestDouble = std::numeric_limits<double>::max();

TWR_PAIR double absolute_value(double x) { return __builtin_fabs(x); }

TWR_PAIR Pair compare_pair(double a, double b, const DifferenceRule& rule) {
    if (a == b) return {0, false};
    const bool nan_a = a != a;
    const bool nan_b = b != b;
    if (nan_a || nan_b) {
        const bool same = nan_a && nan_b && rule.nan_equal;
        return {same ? 0 : kInfiniteDistance, !same};
    }
    if (absolute_value(a) == kInfiniteDistance || absolute_value(b) == kInfiniteDistance)
        return {kInfiniteDistance, true};
    const double distance = absolute_value(a - b);
    const double allowed = rule.tolerance.atol + rule.tolerance.rtol * absolute_value(a);
    // Three roundings part `distance` and `allowed` from their exact values: outside this margin
    // they cannot decide.
    constexpr double margin = 0x1p-50;
    if (distance > allowed * (1 + margin) && distance > 0x1p-1000) return {distance, true};
    if (distance < allowed * (1 - margin) && allowed > 0x1p-1000 && allowed <= kLargestDouble)
        return {distance, false};
    return {distance, exceeds_exactly(a, b, rule.tolerance)};
}

// Pairs nearer than this share of a period have no shorter way round.
inline constexpr double kHalfWay = 0.49;
// Values farther apart, in periods, are compared as on a line: no double says in which turn they
// are.
inline constexpr double kMostTurns = 0x1p52;

// |a - b - k period|, rounded for the statistics. The product is kept as two numbers, so that
// nothing is lost where the terms nearly cancel.
TWR_PAIR double distance_on_circle(double difference, double k, double period) {
    const double way = k * period;
    const double rest = std::fma(k, period, -way);
    return absolute_value((difference - way) - rest);
}

// The same for 64-bit integers: d is the exact difference, rounded once.
struct WholeNumber {
    std::uint64_t magnitude;
    bool negative;
};
TWR_PAIR WholeNumber whole_number(std::int64_t x) {
    return {x < 0 ? ~static_cast<std::uint64_t>(x) + 1 : static_cast<std::uint64_t>(x), x < 0};
}
TWR_PAIR WholeNumber whole_number(std::uint64_t x) { return {x, false}; }

template <class T>
TWR_PAIR Pair compare_whole_pair(T a, T b, const DifferenceRule& rule) {
    if (a == b) return {0, false};
    const WholeNumber pa = whole_number(a);
    const WholeNumber pb = whole_number(b);
    const std::uint64_t apart = a > b ? static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b)
                                      : static_cast<std::uint64_t>(b) - static_cast<std::uint64_t>(a);
    return {static_cast<double>(apart),
            exceeds_exactly(pa.magnitude, pa.negative, pb.magnitude, pb.negative, rule.tolerance)};
}
TWR_PAIR Pair compare_pair(std::int64_t a, std::int64_t b, const DifferenceRule& rule) {
    return compare_whole_pair(a, b, rule);
}
TWR_PAIR Pair compare_pair(std::uint64_t a, std::uint64_t b, const DifferenceRule& rule) {
    return compare_whole_pair(a, b, rule);
}

// On a circle: k periods further, b is about nearest to a. Rounding may miss the nearest by one, so
// its neighbours are looked at too, and the verdict is exact.
TWR_PAIR Pair compare_on_circle(double a, double b, double period, const DifferenceRule& rule) {
    const Pair straight = compare_pair(a, b, rule);
    // Not half-way round: there is no shorter way. (Infinite: a NaN, an infinity, or farther apart
    // than any float64.)
    if (straight.distance < kHalfWay * period || straight.distance == kInfiniteDistance) return straight;
    const double turns = std::rint((a - b) / period);
    if (!(absolute_value(turns) < kMostTurns)) return straight;
    Pair nearest = straight;
    for (int step = -1; step <= 1; ++step) {
        const double k = turns + step;
        if (k == 0) continue;
        const double distance = distance_on_circle(a - b, k, period);
        if (distance < nearest.distance) nearest.distance = distance;
        nearest.differs = nearest.differs && exceeds_exactly_on_circle(a, b, period, k, rule.tolerance);
    }
    return nearest;
}

// A number of a finite floating-point value: consecutive for consecutive values of its type, and 0
// for both -0 and +0.
template <class Bits>
TWR_PAIR std::int64_t signed_magnitude(Bits bits) {
    constexpr Bits sign = static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1));
    const auto magnitude = static_cast<std::int64_t>(bits & static_cast<Bits>(~sign));
    return (bits & sign) != 0 ? -magnitude : magnitude;
}
TWR_PAIR std::uint64_t steps_apart(std::int64_t a, std::int64_t b) {
    return a > b ? static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b)
                 : static_cast<std::uint64_t>(b) - static_cast<std::uint64_t>(a);
}

TWR_PAIR void raise(double value, std::uint64_t at, double& maximum, std::uint64_t& maximum_at) {
    if (value > maximum || (value == maximum && value > 0 && at < maximum_at)) {
        maximum = value;
        maximum_at = at;
    }
}

}  // namespace twinrun
