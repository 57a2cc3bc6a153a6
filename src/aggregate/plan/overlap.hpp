// Whether sets of a file claim a byte twice. This header may be included beside those of the core,
// which has types of the names that the plan has (README.md).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.hpp"

namespace twinrun {

// offset, width, count and stride of a strided set.
using SetNumbers = std::array<std::uint64_t, 4>;

// A byte that two of the sets have in common; nullopt: there is none. The sets end at 2^62 or
// before. compared: how often a set was looked at, which takes a logarithm of their number each.
//
// n sets take at most about 8 n looks where they are dense or have one stride. Sets of different
// strides that lie side by side are compared with each other, one by one. Error (unsupported): they
// are so many that this would take more than kMostCompared looks, and 32 for each set.
Result<std::optional<std::uint64_t>> first_overlap(std::span<const SetNumbers> sets,
                                                   std::uint64_t* compared = nullptr);
inline constexpr std::uint64_t kMostCompared = std::uint64_t{1} << 22;

}  // namespace twinrun
