// The reference for comparing elements, one pair at a time. Every other backend gives the same
// counts, places, maxima and histograms.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "difference/difference.hpp"
#include "difference/difference_pair.hpp"
#include "element/exact.hpp"

namespace twinrun {

namespace {

// pair_of(a, b, index of the scalar) -> Pair
template <class Stored, class Value, class PairOf>
void accumulate(const Stored* a, const Stored* b, std::size_t n, std::uint64_t index, DifferenceStats* stats,
                const PairOf& pair_of) {
    DifferenceStats& s = *stats;
    s.scalars += n;
    for (std::size_t i = 0; i < n; ++i) {
        Stored stored_a;
        Stored stored_b;
        std::memcpy(&stored_a, reinterpret_cast<const std::byte*>(a) + i * sizeof(Stored), sizeof(Stored));
        std::memcpy(&stored_b, reinterpret_cast<const std::byte*>(b) + i * sizeof(Stored), sizeof(Stored));
        const auto value_a = static_cast<Value>(stored_a);
        const Pair pair = pair_of(value_a, static_cast<Value>(stored_b), index + i);
        const double magnitude = std::fabs(static_cast<double>(value_a));
        if (magnitude > s.largest && std::isfinite(magnitude)) s.largest = magnitude;
        const std::size_t bin = histogram_bin(pair.distance);
        ++s.all[bin];
        if (pair.distance == 0 && !pair.differs) continue;
        const std::uint64_t at = index + i;
        const bool infinite = std::isinf(pair.distance);
        const double relative =
            infinite || magnitude == 0 ? std::numeric_limits<double>::infinity() : pair.distance / magnitude;
        raise(pair.distance, at, s.max_abs, s.max_abs_at);
        raise(relative, at, s.max_rel, s.max_rel_at);
        if (!infinite) s.sum_squares += pair.distance * pair.distance;
        if (!pair.differs) continue;
        ++s.different;
        ++s.over[bin];
        if (at < s.first) s.first = at;
        raise(relative, at, s.max_rel_different, s.max_rel_different_at);
        if (infinite) {
            ++s.infinite;
        } else {
            s.sum_squares_different += pair.distance * pair.distance;
        }
    }
}

template <class Stored, class Value>
void compare_all(const Stored* a, const Stored* b, std::size_t n, std::uint64_t index,
                 const DifferenceRule& rule, DifferenceStats* stats) {
    accumulate<Stored, Value>(a, b, n, index, stats,
                              [&](Value x, Value y, std::uint64_t) { return compare_pair(x, y, rule); });
}

std::int64_t half_key(double value) {
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
    std::int64_t magnitude;
    if (value == 0 || exponent < -13) {  // subnormal: units of 2^-24
        magnitude = static_cast<std::int64_t>(std::ldexp(std::fabs(value), 24));
    } else {
        magnitude = (static_cast<std::int64_t>(exponent + 14) << 10) +
                    static_cast<std::int64_t>(std::ldexp(fraction, 11)) - 1024;
    }
    return std::signbit(value) ? -magnitude : magnitude;
}

std::int64_t value_key(DType scalar, double value) {
    switch (scalar) {
        case DType::f16: return half_key(value);
        case DType::bf16:
            return signed_magnitude(
                static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
        case DType::f32: return signed_magnitude(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
        default: return signed_magnitude(std::bit_cast<std::uint64_t>(value));
    }
}

template <class T>
void measure_all(DType scalar, const T* a, const T* b, std::size_t n, std::uint64_t index,
                 const DifferenceRule& rule, DifferenceStats* stats) {
    accumulate<T, double>(a, b, n, index, stats, [&](double x, double y, std::uint64_t at) {
        const double period = rule.measure.period_of(at);
        Pair pair = period > 0 ? compare_on_circle(x, y, period, rule) : compare_pair(x, y, rule);
        if (pair.differs && rule.measure.ulps != Measure::kNoUlps && !std::isinf(pair.distance)) {
            pair.differs = ulps_apart(scalar, x, y) > rule.measure.ulps;
        }
        return pair;
    });
}

}  // namespace

std::uint64_t ulps_apart(DType scalar, double a, double b) {
    return steps_apart(value_key(scalar, a), value_key(scalar, b));
}

void measured_difference(DType scalar, const float* a, const float* b, std::size_t n, std::uint64_t index,
                         const DifferenceRule& rule, DifferenceStats* stats) {
    measure_all(scalar, a, b, n, index, rule, stats);
}
void measured_difference(DType scalar, const double* a, const double* b, std::size_t n, std::uint64_t index,
                         const DifferenceRule& rule, DifferenceStats* stats) {
    measure_all(scalar, a, b, n, index, rule, stats);
}

void DifferenceStats::merge(const DifferenceStats& later) {
    scalars += later.scalars;
    different += later.different;
    infinite += later.infinite;
    first = std::min(first, later.first);
    raise(later.max_abs, later.max_abs_at, max_abs, max_abs_at);
    raise(later.max_rel, later.max_rel_at, max_rel, max_rel_at);
    raise(later.max_rel_different, later.max_rel_different_at, max_rel_different, max_rel_different_at);
    largest = std::max(largest, later.largest);
    sum_squares += later.sum_squares;
    sum_squares_different += later.sum_squares_different;
    for (std::size_t i = 0; i < kHistogramBins; ++i) {
        all[i] += later.all[i];
        over[i] += later.over[i];
    }
}

const DifferenceKernels kPortableDifference = {compare_all<float, double>, compare_all<double, double>};

void portable_difference_i64(const std::int64_t* a, const std::int64_t* b, std::size_t n, std::uint64_t index,
                             const DifferenceRule& rule, DifferenceStats* stats) {
    compare_all<std::int64_t, std::int64_t>(a, b, n, index, rule, stats);
}
void portable_difference_u64(const std::uint64_t* a, const std::uint64_t* b, std::size_t n,
                             std::uint64_t index, const DifferenceRule& rule, DifferenceStats* stats) {
    compare_all<std::uint64_t, std::uint64_t>(a, b, n, index, rule, stats);
}

}  // namespace twinrun
