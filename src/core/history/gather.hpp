// Reads the items of an application's array in stored order: from dense or strided memory, and
// sorted by IDs if there are any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "history/field.hpp"

namespace twinrun {

// Numbers of rows in ascending order of their IDs; rows of equal IDs keep their order. Empty:
// memory has this order already.
using RowOrder = std::vector<std::uint32_t>;
// ids: one-dimensional, of an integer type, in host memory. Errors: another type or shape; 2^32
// rows or more.
Result<std::shared_ptr<const RowOrder>> order_by_ids(const CapturedField& ids);
// The IDs in that order. Negative IDs are in two's complement.
using RowIds = std::vector<std::uint64_t>;
Result<std::shared_ptr<const RowIds>> ordered_ids(const CapturedField& ids, const RowOrder& order);

// Reads a field in host memory. Thread-safe; the array must not change meanwhile, and outlives
// this.
class FieldReader {
   public:
    // rows: null or empty: rows are read in the order of memory. Errors: strides or rows that do
    // not fit the shape.
    static Result<FieldReader> create(const CapturedField& field, std::shared_ptr<const RowOrder> rows);
    // A view of the items from `first` on in the array itself, if they are dense or have one
    // stride; otherwise nullopt.
    [[nodiscard]] std::optional<ElementView> view(std::uint64_t first) const;
    // Copies items [first, first + items) to `to`, without gaps.
    void copy(std::uint64_t first, std::uint64_t items, std::byte* to) const;

   private:
    struct Dimension {
        std::uint64_t extent;
        std::int64_t stride;  // bytes
    };
    DType dtype_ = DType::f32;
    std::size_t item_ = 0;
    const std::byte* data_ = nullptr;
    // fastest first; of one row, if there is an order of rows; merged if possible
    std::vector<Dimension> dimensions_;
    std::shared_ptr<const RowOrder> rows_;
    std::uint64_t row_items_ = 0;
    std::int64_t row_stride_ = 0;  // bytes
};

// The reverse of copy(): writes dense items into the array `to`, which has the field's shape and
// strides. Items outside [first, first + items) do not change.
Result<> scatter(const CapturedField& field, std::uint64_t first, std::uint64_t items, const std::byte* from,
                 void* to);

}  // namespace twinrun
