// Where the items of one rank lie in a file and in memory: strided sets, their common bytes, and
// copies between file order and memory. No other ranks, no I/O, no MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun {
inline namespace aggregate_plan {

// Bytes of a file: `count` pieces of `width` bytes, which begin `stride` bytes apart. None of these
// is 0; width <= stride; the end is at most 2^63.
struct StridedSet {
    std::uint64_t offset = 0;
    std::uint64_t width = 0;
    std::uint64_t count = 0;
    std::uint64_t stride = 0;

    [[nodiscard]] std::uint64_t begin() const { return offset; }
    [[nodiscard]] std::uint64_t end() const { return offset + (count - 1) * stride + width; }
    [[nodiscard]] std::uint64_t bytes() const { return width * count; }
    [[nodiscard]] bool dense() const { return count == 1 || width == stride; }
    bool operator==(const StridedSet&) const = default;
};

struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

// How many of the set's bytes lie in the range.
[[nodiscard]] std::uint64_t bytes_in(const StridedSet& set, Range range);
// next_byte: the offset of the first byte of the set at `at` or after it. last_end: the end of its
// last byte before `at`.
[[nodiscard]] std::optional<std::uint64_t> next_byte(const StridedSet& set, std::uint64_t at);
[[nodiscard]] std::optional<std::uint64_t> last_end(const StridedSet& set, std::uint64_t at);
// The first byte that is in both sets. Takes constant time, whatever their lengths.
[[nodiscard]] std::optional<std::uint64_t> first_common(const StridedSet& a, const StridedSet& b);

// One array as it is declared (twr_aggregate_variable). Strides of 0 mean: dense.
struct DeclaredVariable {
    std::uint64_t item_bytes = 0;
    std::uint64_t items = 0;
    std::uint64_t file_offset = 0;
    std::uint64_t file_stride = 0;
    std::uint64_t memory_stride = 0;
};

// A part of every item of a set, and the array that it comes from. In memory items may lie in any
// order and on either side of the array's address: the offset and the stride are signed.
struct Field {
    std::uint32_t variable = 0;
    std::uint64_t offset = 0;  // within the item
    std::uint64_t bytes = 0;
    std::int64_t memory_stride = 0;
    std::int64_t memory_offset = 0;  // of the first item

    // Where item `item` begins, from the array's address on.
    [[nodiscard]] std::ptrdiff_t memory_of(std::uint64_t item) const {
        return static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(memory_offset) +
                                           item * static_cast<std::uint64_t>(memory_stride));
    }
};

// Items of one array that lie at a constant distance, in the file and in memory. What blocks and
// datatypes are cut into.
struct ArrayPart {
    std::uint32_t variable = 0;
    StridedSet where;
    std::int64_t memory_offset = 0;
    std::int64_t memory_stride = 0;
    bool operator==(const ArrayPart&) const = default;
};

// Items whose bytes come from one array or several. Example: nine variables interleaved by record
// are one set of nine fields.
struct RankSet {
    StridedSet where;
    std::vector<Field> fields;  // ascending; they fill the width
};

// The variables of one rank as sets, ascending by offset. Adjacent variables with the same stride
// and count become one set.
// Errors: invalid_argument: an item of no bytes, strides below the item, an end behind 2^63, bytes
// that two variables claim.
Result<std::vector<RankSet>> rank_sets(std::span<const DeclaredVariable> variables);
// The same for parts. Errors: a part that is not a strided set, bytes that two parts claim.
Result<std::vector<RankSet>> rank_sets(std::span<const ArrayPart> parts);

// The variable that claims this byte of the file.
[[nodiscard]] std::optional<std::uint32_t> variable_at(std::span<const RankSet> sets, std::uint64_t offset);

// The bytes of the sets without their fields, for other ranks, ascending. A dense set becomes one
// piece; adjacent dense sets are joined.
[[nodiscard]] std::vector<StridedSet> shape_of(std::span<const RankSet> sets);

// The part of a set within a range: an item cut at its front, whole items, and an item cut at its
// end.
struct SetPart {
    struct Cut {
        std::uint64_t item = 0;
        std::uint64_t begin = 0;  // within the item
        std::uint64_t end = 0;
        [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
    };
    Cut head;
    std::uint64_t first = 0;  // whole items
    std::uint64_t last = 0;
    Cut tail;
};
[[nodiscard]] SetPart part_of(const StridedSet& set, Range range);

// Arrays to bytes in the file's order. data: of each variable. The set's bytes in the range go
// where the range begins at `to`, with the set's holes left as they are.
void gather_range(const RankSet& set, const void* const* data, Range range, std::byte* to);
// Whole items, `stride` from one to the next; and some bytes of one.
void gather_items(const RankSet& set, const void* const* data, std::uint64_t first, std::uint64_t last,
                  std::byte* to, std::uint64_t stride);
void gather_cut(const RankSet& set, const void* const* data, const SetPart::Cut& cut, std::byte* to);
// The same backwards.
void scatter_range(const RankSet& set, void* const* data, Range range, const std::byte* from);
void scatter_items(const RankSet& set, void* const* data, std::uint64_t first, std::uint64_t last,
                   const std::byte* from, std::uint64_t stride);
void scatter_cut(const RankSet& set, void* const* data, const SetPart::Cut& cut, const std::byte* from);

// Memory that holds the bytes from `at` on as they are in the file, as far as one piece goes: these
// bytes are written without a copy.
struct MemoryRun {
    std::uint32_t variable = 0;
    std::ptrdiff_t offset = 0;  // from the variable's address
    std::uint64_t bytes = 0;
};
[[nodiscard]] MemoryRun memory_run(const RankSet& set, std::uint64_t at);

}  // namespace aggregate_plan
}  // namespace twinrun
