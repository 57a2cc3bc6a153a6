// Whether sets of a file claim a byte twice, for readers of an index.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace twinrun {

// offset, width, count and stride of a strided set.
using SetNumbers = std::array<std::uint64_t, 4>;

// A byte that two of the sets have in common; nullopt: there is none. The sets end at 2^62 or
// before.
[[nodiscard]] std::optional<std::uint64_t> first_overlap(std::span<const SetNumbers> sets);

}  // namespace twinrun
