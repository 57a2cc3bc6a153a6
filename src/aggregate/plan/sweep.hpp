// first_overlap() (overlap.hpp) for sets as the plan has them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "aggregate/plan/layout.hpp"
#include "base/result.hpp"

namespace twinrun {

Result<std::optional<std::uint64_t>> first_overlap(std::span<const StridedSet> sets,
                                                   std::uint64_t* compared = nullptr);

}  // namespace twinrun
