// Places in arrays that are stored column by column: the first of them is the first as the user
// counts, row by row, though elements are read and compared as they lie.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "difference/difference.hpp"

namespace twinrun {

class ColumnOrder {
   public:
    // Row-major, or of one dimension: places are compared as they are.
    ColumnOrder() = default;
    // shape: of a column-major array in items, the slowest dimension first. pair: scalars an item.
    ColumnOrder(std::span<const std::uint64_t> shape, std::uint64_t pair);

    // False where elements lie in the order in which the user counts them.
    [[nodiscard]] bool matters() const { return sizes_.size() > 1; }
    // The place, counted row by row, of a scalar.
    [[nodiscard]] std::uint64_t logical(std::uint64_t scalar) const;
    // The least of these of the scalars [begin, end), which are not none.
    [[nodiscard]] std::uint64_t least(std::uint64_t begin, std::uint64_t end) const;
    // Scalars that lie one after another in either order, from a multiple of it on.
    [[nodiscard]] std::uint64_t run() const { return sizes_.front() * pair_; }

    // As DifferenceStats::merge; the first place, and ties, by `logical`.
    void merge(const DifferenceStats& from, DifferenceStats& into) const;
    // The places of `from` that come before those of `into`, or hold larger values.
    void take_places(const DifferenceStats& from, DifferenceStats& into) const;

   private:
    std::vector<std::uint64_t> sizes_;  // of the dimensions longer than 1, the fastest first
    std::uint64_t pair_ = 1;
};

// As compare_elements, of scalars that are one stretch of the field; places as of
// ColumnOrder::merge.
void compare_in_columns(const ColumnOrder& order, const DifferenceKernels& kernels, const ElementView& a,
                        const ElementView& b, std::uint64_t first, std::uint64_t count, std::uint64_t index,
                        const DifferenceRule& rule, DifferenceStats* stats);

}  // namespace twinrun
