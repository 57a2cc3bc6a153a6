// Private to difference_*.cpp: how vector kernels count distances.
#pragma once

#include "compare/difference.hpp"

namespace twinrun {

// A distance that is not 0, as the bits of its float64, the sign bit set where the scalar differs.
inline constexpr std::uint64_t kDiffersBit = 1ULL << 63;
inline constexpr std::size_t kMostDistances = 1024;  // a call: private counters have 16 bits

// Adds n of them to `all`; those that differ to `over`, `different` and `infinite`, too.
void count_distances(const std::uint64_t* distances, std::size_t n, DifferenceStats* stats);

}  // namespace twinrun
