// Private to difference_*.cpp: one pair of float64, and the places of maxima. Every backend decides by these.
// Static, so that no copy compiled for one instruction set can stand in for another's.
#pragma once

#include <cmath>
#include <limits>

#include "compare/difference.hpp"
#include "element/exact.hpp"

namespace twinrun {

// |a - b| and the verdict on one pair.
struct Pair {
    double distance;
    bool differs;
};

static inline Pair compare_pair(double a, double b, const DifferenceRule& rule) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    constexpr double largest = std::numeric_limits<double>::max();
    if (a == b) return {0, false};
    const bool nan_a = a != a;
    const bool nan_b = b != b;
    if (nan_a || nan_b) return nan_a && nan_b && rule.nan_equal ? Pair{0, false} : Pair{infinity, true};
    if (std::fabs(a) == infinity || std::fabs(b) == infinity) return {infinity, true};
    const double distance = std::fabs(a - b);
    const double allowed = rule.tolerance.atol + rule.tolerance.rtol * std::fabs(a);
    // Three roundings part `distance` and `allowed` from their exact values: outside this margin they cannot
    // decide.
    constexpr double margin = 0x1p-50;
    if (distance > allowed * (1 + margin) && distance > 0x1p-1000) return {distance, true};
    if (distance < allowed * (1 - margin) && allowed > 0x1p-1000 && allowed <= largest)
        return {distance, false};
    return {distance, exceeds_exactly(a, b, rule.tolerance)};
}

static inline void raise(double value, std::uint64_t at, double& maximum, std::uint64_t& maximum_at) {
    if (value > maximum || (value == maximum && value > 0 && at < maximum_at)) {
        maximum = value;
        maximum_at = at;
    }
}

}  // namespace twinrun
