// Items of an application's array in the order in which they are kept: dense, strided any way, or sorted by IDs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "history/field.hpp"

namespace twinrun {

// Rows in ascending order of their IDs; rows of equal IDs keep their order. Empty: they are in order already.
using RowOrder = std::vector<std::uint32_t>;
// ids: one-dimensional, of an integer type, in host memory. Errors: another type or shape; more than 2^32 rows.
Result<std::shared_ptr<const RowOrder>> order_by_ids(const CapturedField& ids);
// The IDs in that order; negative ones in two's complement.
using RowIds = std::vector<std::uint64_t>;
Result<std::shared_ptr<const RowIds>> ordered_ids(const CapturedField& ids, const RowOrder& order);

// Reads one field on the host. Thread-safe; the array must not change meanwhile.
class FieldReader {
   public:
    // rows: null or empty: as they lie. Errors: strides that do not fit the shape, rows that do not fit it.
    static Result<FieldReader> create(const CapturedField& field, std::shared_ptr<const RowOrder> rows);
    // Items from `first` on where they lie, if they are dense or have one stride; then no copy is needed.
    [[nodiscard]] std::optional<ElementView> view(std::uint64_t first) const;
    // Items [first, first + items), densely.
    void copy(std::uint64_t first, std::uint64_t items, std::byte* to) const;

   private:
    struct Dimension {
        std::uint64_t extent;
        std::int64_t stride;  // bytes
    };
    DType dtype_ = DType::f32;
    std::size_t item_ = 0;
    const std::byte* data_ = nullptr;
    std::vector<Dimension> dimensions_;  // fastest first, merged where they are one
    std::shared_ptr<const RowOrder> rows_;
    std::uint64_t row_items_ = 0;
    std::int64_t row_stride_ = 0;
};

// The same backwards: dense items into the array. Items that lie outside [first, first + items) stay as they are.
Result<> scatter(const CapturedField& field, std::uint64_t first, std::uint64_t items, const std::byte* from,
                 void* to);

}  // namespace twinrun
