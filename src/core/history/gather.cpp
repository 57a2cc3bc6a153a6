#include "history/gather.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <string>

#include "base/checked.hpp"

namespace twinrun {

namespace {

// An unsigned key that sorts like the integer.
template <class T>
std::uint64_t ordered_key(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    if constexpr (std::is_signed_v<T>) {
        return static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) ^ (1ULL << 63);
    } else {
        return value;
    }
}

using Key = std::uint64_t (*)(const std::byte*);
Key key_of(DType dtype) {
    switch (dtype) {
        case DType::i8: return ordered_key<std::int8_t>;
        case DType::i16: return ordered_key<std::int16_t>;
        case DType::i32: return ordered_key<std::int32_t>;
        case DType::i64: return ordered_key<std::int64_t>;
        case DType::u8: return ordered_key<std::uint8_t>;
        case DType::u16: return ordered_key<std::uint16_t>;
        case DType::u32: return ordered_key<std::uint32_t>;
        case DType::u64: return ordered_key<std::uint64_t>;
        default: return nullptr;
    }
}

// Distance of IDs in bytes.
std::int64_t id_stride(const CapturedField& ids) {
    if (!ids.strides.empty()) return ids.strides[0];
    return static_cast<std::int64_t>(ids.stride != 0 ? ids.stride : item_bytes(ids.dtype));
}

struct Layout {
    struct Dimension {
        std::uint64_t extent;
        std::int64_t stride;
    };
    std::vector<Dimension> dimensions;  // fastest first
};

Result<Layout> layout_of(const CapturedField& field) {
    const auto item = static_cast<std::int64_t>(item_bytes(field.dtype));
    const auto bad = [&](const char* what) {
        return Error{ErrorCode::invalid_argument, "field '" + field.name + "': " + what};
    };
    Layout layout;
    const std::size_t rank = field.shape.size();
    if (!field.strides.empty() && field.strides.size() != rank)
        return bad("strides must be as many as dimensions");
    std::uint64_t dense =
        static_cast<std::uint64_t>(field.stride == 0 ? static_cast<std::uint64_t>(item) : field.stride);
    for (std::size_t i = 0; i < rank; ++i) {
        const std::size_t d = field.order == ArrayOrder::row_major ? rank - 1 - i : i;
        if (dense > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
            return bad("impossible strides");
        layout.dimensions.push_back(
            {field.shape[d], field.strides.empty() ? static_cast<std::int64_t>(dense) : field.strides[d]});
        const auto next = checked_multiply(dense, std::max<std::uint64_t>(field.shape[d], 1));
        if (!next) return bad("impossible shape");
        dense = *next;
    }
    return layout;
}

// Visits items [first, first + items) in runs of the fastest dimension: visit(byte offset in the
// array, stride in bytes, count).
template <class Dimension, class Visit>
void for_each_run(const std::vector<Dimension>& dimensions, std::uint64_t first, std::uint64_t items,
                  Visit visit) {
    if (items == 0) return;
    if (dimensions.empty()) {
        visit(std::int64_t{0}, std::int64_t{0}, std::uint64_t{1});
        return;
    }
    std::array<std::uint64_t, kMostDimensions> index{};
    std::int64_t offset = 0;
    std::uint64_t rest = first;
    for (std::size_t d = 0; d < dimensions.size(); ++d) {
        index[d] = rest % dimensions[d].extent;
        rest /= dimensions[d].extent;
        offset += static_cast<std::int64_t>(index[d]) * dimensions[d].stride;
    }
    while (items != 0) {
        const std::uint64_t count = std::min(items, dimensions[0].extent - index[0]);
        visit(offset, dimensions[0].stride, count);
        items -= count;
        offset += static_cast<std::int64_t>(count) * dimensions[0].stride;
        index[0] += count;
        for (std::size_t d = 0; d + 1 < dimensions.size() && index[d] == dimensions[d].extent; ++d) {
            offset -= static_cast<std::int64_t>(dimensions[d].extent) * dimensions[d].stride;
            offset += dimensions[d + 1].stride;
            index[d] = 0;
            ++index[d + 1];
        }
    }
}

template <std::size_t kItem>
void copy_strided(std::byte* to, std::int64_t to_stride, const std::byte* from, std::int64_t from_stride,
                  std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        std::memcpy(to, from, kItem);
        to += to_stride;
        from += from_stride;
    }
}

void copy_items(std::size_t item, std::byte* to, std::int64_t to_stride, const std::byte* from,
                std::int64_t from_stride, std::uint64_t count) {
    const auto dense = static_cast<std::int64_t>(item);
    if (to_stride == dense && from_stride == dense) {
        std::memcpy(to, from, count * item);
        return;
    }
    switch (item) {
        case 1: return copy_strided<1>(to, to_stride, from, from_stride, count);
        case 2: return copy_strided<2>(to, to_stride, from, from_stride, count);
        case 4: return copy_strided<4>(to, to_stride, from, from_stride, count);
        case 8: return copy_strided<8>(to, to_stride, from, from_stride, count);
        default: return copy_strided<16>(to, to_stride, from, from_stride, count);
    }
}

}  // namespace

Result<std::shared_ptr<const RowOrder>> order_by_ids(const CapturedField& ids) try {
    const Key key = key_of(ids.dtype);
    if (key == nullptr || ids.shape.size() != 1) {
        return Error{ErrorCode::invalid_argument,
                     "field '" + ids.name + "': IDs must be a one-dimensional array of integers"};
    }
    const std::uint64_t rows = ids.shape[0];
    if (rows >> 32 != 0) return Error{ErrorCode::unsupported, "field '" + ids.name + "': more than 2^32 IDs"};
    const std::int64_t stride = id_stride(ids);
    auto order = std::make_shared<RowOrder>();
    std::vector<std::uint64_t> keys(rows);
    bool sorted = true;
    std::uint64_t differing = 0;  // bits
    for (std::uint64_t i = 0; i < rows; ++i) {
        keys[i] = key(static_cast<const std::byte*>(ids.data) + static_cast<std::int64_t>(i) * stride);
        sorted = sorted && (i == 0 || keys[i - 1] <= keys[i]);
        differing |= keys[i] ^ keys[0];
    }
    if (sorted) return std::shared_ptr<const RowOrder>(std::move(order));
    // Stable radix sort by bytes, lowest first; bytes that are equal in all keys are skipped.
    order->resize(rows);
    std::iota(order->begin(), order->end(), 0U);
    RowOrder next(rows);
    for (unsigned shift = 0; shift < 64; shift += 8) {
        if ((differing >> shift & 0xFF) == 0) continue;
        std::array<std::uint32_t, 257> begin{};
        for (const std::uint32_t row : *order)
            ++begin[(keys[row] >> shift & 0xFF) + 1];
        for (std::size_t b = 1; b < begin.size(); ++b)
            begin[b] += begin[b - 1];
        for (const std::uint32_t row : *order)
            next[begin[keys[row] >> shift & 0xFF]++] = row;
        order->swap(next);
    }
    return std::shared_ptr<const RowOrder>(std::move(order));
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to sort field '" + ids.name + "'"};
}

Result<std::shared_ptr<const RowIds>> ordered_ids(const CapturedField& ids, const RowOrder& order) try {
    const Key key = key_of(ids.dtype);
    if (key == nullptr || ids.shape.size() != 1)
        return Error{ErrorCode::invalid_argument, "field '" + ids.name + "': IDs must be integers"};
    const bool is_signed = ids.dtype == DType::i8 || ids.dtype == DType::i16 || ids.dtype == DType::i32 ||
                           ids.dtype == DType::i64;
    const std::int64_t stride = id_stride(ids);
    auto sorted = std::make_shared<RowIds>(ids.shape[0]);
    for (std::uint64_t i = 0; i < sorted->size(); ++i) {
        const std::uint64_t row = order.empty() ? i : order[i];
        const std::uint64_t bits =
            key(static_cast<const std::byte*>(ids.data) + static_cast<std::int64_t>(row) * stride);
        (*sorted)[i] = is_signed ? bits ^ (1ULL << 63) : bits;
    }
    return std::shared_ptr<const RowIds>(std::move(sorted));
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for field '" + ids.name + "'"};
}

Result<FieldReader> FieldReader::create(const CapturedField& field, std::shared_ptr<const RowOrder> rows) {
    TWR_TRY(const Layout layout, layout_of(field));
    FieldReader reader;
    reader.dtype_ = field.dtype;
    reader.item_ = item_bytes(field.dtype);
    reader.data_ = static_cast<const std::byte*>(field.data);
    for (const auto& d : layout.dimensions)
        reader.dimensions_.push_back({d.extent, d.stride});
    if (rows != nullptr && !rows->empty()) {
        if (reader.dimensions_.empty() || reader.dimensions_.back().extent != rows->size()) {
            return Error{
                ErrorCode::invalid_argument,
                "field '" + field.name + "': its rows are not as many as the IDs '" + field.ids + "'"};
        }
        reader.rows_ = std::move(rows);
        reader.row_stride_ = reader.dimensions_.back().stride;
        reader.dimensions_.pop_back();
        reader.row_items_ = 1;
        for (const Dimension& d : reader.dimensions_)
            reader.row_items_ *= d.extent;
    }
    // Merges neighbouring dimensions that lie in memory like a single one, and leaves out those of
    // extent 1.
    std::vector<Dimension> merged;
    for (const Dimension& d : reader.dimensions_) {
        if (d.extent == 1) continue;
        if (!merged.empty() &&
            d.stride == merged.back().stride * static_cast<std::int64_t>(merged.back().extent)) {
            merged.back().extent *= d.extent;
        } else {
            merged.push_back(d);
        }
    }
    reader.dimensions_ = std::move(merged);
    return reader;
}

std::optional<ElementView> FieldReader::view(std::uint64_t first) const {
    if (rows_ != nullptr || dimensions_.size() > 1) return std::nullopt;
    const std::int64_t stride =
        dimensions_.empty() ? static_cast<std::int64_t>(item_) : dimensions_[0].stride;
    if (stride < static_cast<std::int64_t>(item_)) return std::nullopt;
    ElementView view = dense_view(dtype_, data_ + static_cast<std::int64_t>(first) * stride);
    view.stride = static_cast<std::uint64_t>(stride);
    return view;
}

void FieldReader::copy(std::uint64_t first, std::uint64_t items, std::byte* to) const {
    const auto dense = static_cast<std::int64_t>(item_);
    const auto run = [&](const std::byte* base, std::uint64_t from, std::uint64_t count) {
        for_each_run(dimensions_, from, count,
                     [&](std::int64_t offset, std::int64_t stride, std::uint64_t n) {
                         copy_items(item_, to, dense, base + offset, stride, n);
                         to += n * item_;
                     });
    };
    if (rows_ == nullptr) {
        run(data_, first, items);
        return;
    }
    while (items != 0) {
        const std::uint64_t row = first / row_items_;
        const std::uint64_t within = first % row_items_;
        const std::uint64_t count = std::min(items, row_items_ - within);
        run(data_ + static_cast<std::int64_t>((*rows_)[row]) * row_stride_, within, count);
        first += count;
        items -= count;
    }
}

Result<> scatter(const CapturedField& field, std::uint64_t first, std::uint64_t items, const std::byte* from,
                 void* to) {
    TWR_TRY(const Layout layout, layout_of(field));
    const std::size_t item = item_bytes(field.dtype);
    auto* base = static_cast<std::byte*>(to);
    for_each_run(layout.dimensions, first, items,
                 [&](std::int64_t offset, std::int64_t stride, std::uint64_t n) {
                     copy_items(item, base + offset, stride, from, static_cast<std::int64_t>(item), n);
                     from += n * item;
                 });
    return success();
}

}  // namespace twinrun
