// The reference for comparing elements, one pair at a time. Every other backend gives the same
// counts, places, maxima and histograms.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "difference/difference.hpp"
#include "difference/difference_pair.hpp"
#include "element/exact.hpp"

namespace twinrun {

namespace {

template <class Stored>
Stored stored_at(const void* data, std::size_t i) {
    Stored value;
    std::memcpy(&value, static_cast<const std::byte*>(data) + i * sizeof(Stored), sizeof(Stored));
    return value;
}

// pair_of(a, b, index of the scalar) -> Pair
template <class StoredA, class StoredB, class ValueA, class ValueB, class PairOf>
void accumulate(const void* a, const void* b, std::size_t n, std::uint64_t index, DifferenceStats* stats,
                const PairOf& pair_of) {
    DifferenceStats& s = *stats;
    s.scalars += n;
    for (std::size_t i = 0; i < n; ++i) {
        const auto value_a = static_cast<ValueA>(stored_at<StoredA>(a, i));
        const Pair pair = pair_of(value_a, static_cast<ValueB>(stored_at<StoredB>(b, i)), index + i);
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
    accumulate<Stored, Stored, Value, Value>(
        a, b, n, index, stats, [&](Value x, Value y, std::uint64_t) { return compare_pair(x, y, rule); });
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
    accumulate<T, T, double, double>(a, b, n, index, stats, [&](double x, double y, std::uint64_t at) {
        const double period = rule.measure.period_of(at);
        Pair pair = period > 0 ? compare_on_circle(x, y, period, rule) : compare_pair(x, y, rule);
        if (pair.differs && rule.measure.ulps != Measure::kNoUlps && !std::isinf(pair.distance)) {
            pair.differs = ulps_apart(scalar, x, y) > rule.measure.ulps;
        }
        return pair;
    });
}

// ---- numbers of two 64-bit types ----

using Wide = __int128;

Magnitude exact_value(double x) { return split(x); }
template <class Integer>
Magnitude exact_value(Integer x) {
    const WholeNumber whole = whole_number(x);
    return {whole.magnitude, 0, whole.negative};
}

// x + y = sum + error, exactly (Knuth).
struct TwoSum {
    double sum;
    double error;
};
TwoSum two_sum(double x, double y) {
    const double sum = x + y;
    const double of_y = sum - x;
    return {sum, (x - (sum - of_y)) + (y - of_y)};
}

// x + y rounded to odd: the exact sum, or that of its two neighbours whose last bit is 1.
double odd_sum(double x, double y) {
    const auto [sum, error] = two_sum(x, y);
    const auto bits = std::bit_cast<std::uint64_t>(sum);
    if (error == 0 || (bits & 1) != 0) return sum;
    // The next number towards the exact sum: away from zero where the error has the sum's sign.
    return std::bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// |a - b| rounded once, for a finite b. Boldo and Melquiond, "Emulation of FMA and correctly
// rounded sums: proved algorithms using rounding to odd" (IEEE Transactions on Computers, 2008).
template <class Integer>
double distance_of(Integer a, double b) {
    // a = high + low: each is a float64, as 64 bits are fewer than 2 times 53.
    const auto high = static_cast<double>(a);
    const auto low = static_cast<double>(static_cast<Wide>(a) - static_cast<Wide>(high));
    const auto [u, u_error] = two_sum(low, -b);
    const auto [t, t_error] = two_sum(high, u);
    return std::fabs(t + odd_sum(t_error, u_error));
}
template <class Integer>
double distance_of(double a, Integer b) {
    return distance_of(b, a);
}
template <class IntegerA, class IntegerB>
requires std::is_integral_v<IntegerA> && std::is_integral_v<IntegerB>
double distance_of(IntegerA a, IntegerB b) {
    const Wide apart = static_cast<Wide>(a) - static_cast<Wide>(b);
    return static_cast<double>(apart < 0 ? -apart : apart);
}

template <class Value>
bool is_finite(Value x) {
    if constexpr (std::is_floating_point_v<Value>) return std::isfinite(x);
    return true;
}

// No integer equals a NaN or an infinity.
template <class A, class B>
Pair compare_mixed(A a, B b, const DifferenceRule& rule) {
    if (!is_finite(a) || !is_finite(b)) return {kInfiniteDistance, true};
    const double distance = distance_of(a, b);
    if (distance == 0) return {0, false};  // no difference is so small that it is rounded to 0
    // On a circle of any length, and turned by nothing: that takes numbers of any exponents.
    return {distance, exceeds_exactly_on_circle(exact_value(a), exact_value(b), split(1.0), split(0.0),
                                                rule.tolerance)};
}

template <class A, class B>
void compare_mixed_all(const void* a, const void* b, std::size_t n, std::uint64_t index,
                       const DifferenceRule& rule, DifferenceStats* stats) {
    accumulate<A, B, A, B>(a, b, n, index, stats,
                           [&](A x, B y, std::uint64_t) { return compare_mixed(x, y, rule); });
}

template <class A>
void compare_mixed_with(const void* a, ComputeType type_b, const void* b, std::size_t n, std::uint64_t index,
                        const DifferenceRule& rule, DifferenceStats* stats) {
    switch (type_b) {
        case ComputeType::i64: return compare_mixed_all<A, std::int64_t>(a, b, n, index, rule, stats);
        case ComputeType::u64: return compare_mixed_all<A, std::uint64_t>(a, b, n, index, rule, stats);
        default:
            if constexpr (!std::is_floating_point_v<A>)
                return compare_mixed_all<A, double>(a, b, n, index, rule, stats);
    }
}

}  // namespace

bool comparable(DType a, DType b) {
    const auto wide = [](DType dtype) {
        return dtype == DType::f64 || dtype == DType::i64 || dtype == DType::u64;
    };
    return a == b || (wide(a) && wide(b));
}

void mixed_difference(ComputeType type_a, const void* a, ComputeType type_b, const void* b, std::size_t n,
                      std::uint64_t index, const DifferenceRule& rule, DifferenceStats* stats) {
    switch (type_a) {
        case ComputeType::i64: return compare_mixed_with<std::int64_t>(a, type_b, b, n, index, rule, stats);
        case ComputeType::u64: return compare_mixed_with<std::uint64_t>(a, type_b, b, n, index, rule, stats);
        default: return compare_mixed_with<double>(a, type_b, b, n, index, rule, stats);
    }
}

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
