// The results of parts of a field, joined to the result of the field.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.hpp"
#include "difference/column_order.hpp"
#include "engine/compare.hpp"
#include "sketch/two_sums.hpp"

namespace twinrun {

StageFacts operator+(const StageFacts& one, const StageFacts& other);

// The result of disjoint parts of one field together: ranges that were compared separately, by
// ranks of a job for example, or rows in another order. Counts add up, the first place is the
// smallest one in the order, bytes and seconds are those that the parts took. Parts may come in any
// order and be joined in groups: the outcome differs only in the rounding of sums, and in whose
// words are kept (why a device was chosen, how files were read).
//
// parts: at least one, of one field, rule and method. Errors: internal, for parts that were
// compared by different methods.
Result<FieldResult> merged(std::span<const FieldResult* const> parts, const ColumnOrder& order = {});

// A result with other places: number_of() is called with each that it has.
[[nodiscard]] FieldResult renumbered(FieldResult result,
                                     const std::function<std::uint64_t(std::uint64_t)>& number_of);

// The result for `scalars` scalars, of which the sums of digests proved all but those that `read`
// is the result of. by_tree: scalars in buckets of equal coarse sums. tree, sketch: what reading
// sums and residues took.
[[nodiscard]] FieldResult with_sums(FieldResult read, const TwoSums& sums, std::uint64_t scalars,
                                    std::uint64_t by_tree, const StageFacts& tree, const StageFacts& sketch);

// The result for keys that rows were matched by: `same` are equal, and `different` have no partner.
[[nodiscard]] FieldResult result_of_keys(std::uint64_t same, std::uint64_t different);

}  // namespace twinrun
