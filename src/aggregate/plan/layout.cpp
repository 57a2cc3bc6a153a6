#include "aggregate/plan/layout.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/checked.hpp"

namespace twinrun {
inline namespace aggregate_plan {

namespace {

using Wide = __int128;

constexpr std::uint64_t kLargestEnd = std::uint64_t{1} << 63;

// Smallest x >= 0 with low <= a x mod m <= high, where 0 <= low <= high < m and 0 <= a < m; -1 if
// there is none. The step from (a, m) to (m mod a, a) is Euclid's.
Wide first_in_residues(Wide a, Wide m, Wide low, Wide high) {
    if (low == 0) return 0;
    if (a == 0) return -1;
    const Wide x = (low + a - 1) / a;
    if (a * x <= high) return x;
    // No multiple of a in the interval: a x - m y lies in it for some y > 0, so m y mod a in [-high
    // mod a, -low mod a].
    const Wide y = first_in_residues(m % a, a, (a - high % a) % a, (a - low % a) % a);
    if (y < 0) return -1;
    return (low + m * y + a - 1) / a;
}

std::string variable_text(std::uint32_t variable) { return "variable " + std::to_string(variable); }

Result<> check_variable(const DeclaredVariable& variable, std::uint32_t number) {
    const auto refuse = [&](const std::string& what) {
        return Error{ErrorCode::invalid_argument, variable_text(number) + ": " + what};
    };
    if (variable.items == 0) return success();
    if (variable.item_bytes == 0) return refuse("its items have no bytes: item_bytes is 0");
    for (const bool in_file : {true, false}) {
        const std::uint64_t stride = in_file ? variable.file_stride : variable.memory_stride;
        if (stride != 0 && stride < variable.item_bytes && variable.items > 1) {
            return refuse(std::string(in_file ? "file_stride" : "memory_stride") + " (" +
                          std::to_string(stride) + ") is less than item_bytes (" +
                          std::to_string(variable.item_bytes) +
                          "): items would lie on each other; 0 means dense");
        }
        const std::uint64_t used = stride == 0 ? variable.item_bytes : stride;
        const auto span = checked_multiply(variable.items - 1, used);
        const auto length = span ? checked_add(*span, variable.item_bytes) : std::nullopt;
        const auto end = length ? checked_add(*length, in_file ? variable.file_offset : 0) : std::nullopt;
        if (!end || *end >= kLargestEnd) {
            return refuse(std::string("it would end behind 2^63 in ") + (in_file ? "the file" : "memory"));
        }
    }
    return success();
}

Result<> check_set(const StridedSet& set, std::uint32_t number) {
    const auto refuse = [&](const char* what) {
        return Error{ErrorCode::invalid_argument, variable_text(number) + ": " + what};
    };
    if (set.width == 0 || set.count == 0) return refuse("a part has no bytes");
    if (set.count > 1 && set.stride < set.width) return refuse("its parts lie on each other in the file");
    const auto span = checked_multiply(set.count - 1, set.stride);
    const auto length = span ? checked_add(*span, set.width) : std::nullopt;
    const auto end = length ? checked_add(*length, set.offset) : std::nullopt;
    if (!end || *end >= kLargestEnd) return refuse("it would end behind 2^63 in the file");
    return success();
}

// Copies of `count` items of Bytes each, strides apart; the compiler makes single moves of them.
template <std::size_t Bytes>
void copy_fixed(std::byte* to, std::int64_t to_stride, const std::byte* from, std::int64_t from_stride,
                std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        std::memcpy(to, from, Bytes);
        to += to_stride;
        from += from_stride;
    }
}

void copy_strided(std::byte* to, std::int64_t to_stride, const std::byte* from, std::int64_t from_stride,
                  std::uint64_t bytes, std::uint64_t count) {
    if (static_cast<std::int64_t>(bytes) == to_stride && static_cast<std::int64_t>(bytes) == from_stride) {
        std::memcpy(to, from, bytes * count);
        return;
    }
    switch (bytes) {
        case 1: return copy_fixed<1>(to, to_stride, from, from_stride, count);
        case 2: return copy_fixed<2>(to, to_stride, from, from_stride, count);
        case 4: return copy_fixed<4>(to, to_stride, from, from_stride, count);
        case 8: return copy_fixed<8>(to, to_stride, from, from_stride, count);
        case 12: return copy_fixed<12>(to, to_stride, from, from_stride, count);
        case 16: return copy_fixed<16>(to, to_stride, from, from_stride, count);
        case 24: return copy_fixed<24>(to, to_stride, from, from_stride, count);
        default:
            for (std::uint64_t i = 0; i < count; ++i) {
                std::memcpy(to, from, bytes);
                to += to_stride;
                from += from_stride;
            }
    }
}

// Copies in both directions between `packed`, bytes in the file's order, and the arrays that the
// fields name.
template <bool kGather>
using Packed = std::conditional_t<kGather, std::byte*, const std::byte*>;
template <bool kGather>
using Arrays = std::conditional_t<kGather, const void* const*, void* const*>;

template <bool kGather>
auto array_of(Arrays<kGather> data, const Field& field) {
    using Byte = std::conditional_t<kGather, const std::byte, std::byte>;
    return static_cast<Byte*>(data[field.variable]);
}

// Items are copied field by field in portions of this many bytes, which stay in the first-level
// cache from field to field.
constexpr std::uint64_t kCached = 16384;

template <bool kGather>
void copy_items(const RankSet& set, Arrays<kGather> data, std::uint64_t first, std::uint64_t last,
                Packed<kGather> packed, std::uint64_t stride) {
    const std::uint64_t step =
        set.fields.size() == 1 ? last - first : std::max<std::uint64_t>(kCached / set.where.width, 1);
    for (std::uint64_t at = first; at < last;) {
        const std::uint64_t count = std::min(step, last - at);
        for (const Field& field : set.fields) {
            auto* const array = array_of<kGather>(data, field) + field.memory_of(at);
            auto* const place = packed + (at - first) * stride + field.offset;
            const auto here = static_cast<std::int64_t>(stride);
            if constexpr (kGather) {
                copy_strided(place, here, array, field.memory_stride, field.bytes, count);
            } else {
                copy_strided(array, field.memory_stride, place, here, field.bytes, count);
            }
        }
        at += count;
    }
}

template <bool kGather>
void copy_cut(const RankSet& set, Arrays<kGather> data, const SetPart::Cut& cut, Packed<kGather> packed) {
    for (const Field& field : set.fields) {
        const std::uint64_t begin = std::max(cut.begin, field.offset);
        const std::uint64_t end = std::min(cut.end, field.offset + field.bytes);
        if (begin >= end) continue;
        auto* const array =
            array_of<kGather>(data, field) + field.memory_of(cut.item) + (begin - field.offset);
        if constexpr (kGather) {
            std::memcpy(packed + (begin - cut.begin), array, end - begin);
        } else {
            std::memcpy(array, packed + (begin - cut.begin), end - begin);
        }
    }
}

template <bool kGather>
void copy_range(const RankSet& set, Arrays<kGather> data, Range range, Packed<kGather> packed) {
    const StridedSet& where = set.where;
    const SetPart part = part_of(where, range);
    const auto place = [&](std::uint64_t item, std::uint64_t within) {
        return packed + (where.offset + item * where.stride + within - range.begin);
    };
    if (part.head.bytes() != 0)
        copy_cut<kGather>(set, data, part.head, place(part.head.item, part.head.begin));
    if (part.first < part.last) {
        copy_items<kGather>(set, data, part.first, part.last, place(part.first, 0), where.stride);
    }
    if (part.tail.bytes() != 0)
        copy_cut<kGather>(set, data, part.tail, place(part.tail.item, part.tail.begin));
}

}  // namespace

std::uint64_t bytes_in(const StridedSet& set, Range range) {
    const auto before = [&](std::uint64_t at) -> std::uint64_t {
        if (at <= set.offset) return 0;
        const std::uint64_t item = (at - set.offset) / set.stride;
        if (item >= set.count) return set.bytes();
        return item * set.width + std::min((at - set.offset) % set.stride, set.width);
    };
    return range.begin < range.end ? before(range.end) - before(range.begin) : 0;
}

std::optional<std::uint64_t> next_byte(const StridedSet& set, std::uint64_t at) {
    if (at <= set.offset) return set.offset;
    if (at >= set.end()) return std::nullopt;
    const std::uint64_t item = (at - set.offset) / set.stride;
    if ((at - set.offset) % set.stride < set.width) return at;
    return set.offset + (item + 1) * set.stride;
}

std::optional<std::uint64_t> last_end(const StridedSet& set, std::uint64_t at) {
    if (at <= set.offset) return std::nullopt;
    if (at >= set.end()) return set.end();
    const std::uint64_t item = (at - 1 - set.offset) / set.stride;
    return std::min(at, set.offset + item * set.stride + set.width);
}

std::optional<std::uint64_t> first_common(const StridedSet& a, const StridedSet& b) {
    if (a.end() <= b.begin() || b.end() <= a.begin()) return std::nullopt;
    // Items of a that end behind b's begin and begin before b's end: of these, one meets b if it
    // meets b continued for ever in both directions.
    const std::uint64_t low =
        b.offset < a.offset + a.width ? 0 : divide_up(b.offset - a.offset - a.width + 1, a.stride);
    const std::uint64_t past =  // the first item that begins at b's end or behind it
        b.end() <= a.offset ? 0 : std::min(a.count, divide_up(b.end() - a.offset, a.stride));
    if (low >= past) return std::nullopt;
    // Item i at x = a.offset + i a.stride meets one of b's if x - b.offset + a.width - 1 mod
    // b.stride <= a.width + b.width - 2.
    const Wide reach = static_cast<Wide>(a.width) + b.width - 2;
    const Wide m = b.stride;
    std::uint64_t item = low;
    if (b.count > 1 && reach < m - 1) {
        const auto modulo = [&](Wide value) { return ((value % m) + m) % m; };
        const Wide x = static_cast<Wide>(a.offset) + static_cast<Wide>(low) * a.stride;
        const Wide lowest = modulo(-(x - static_cast<Wide>(b.offset) + static_cast<Wide>(a.width) - 1));
        const Wide highest = lowest + reach;
        // An interval that wraps around contains 0: the item `low` itself.
        const Wide further = highest >= m ? 0 : first_in_residues(modulo(a.stride), m, lowest, highest);
        if (further < 0 || further >= static_cast<Wide>(past - low)) return std::nullopt;
        item = low + static_cast<std::uint64_t>(further);
    }
    const std::uint64_t begin = a.offset + item * a.stride;
    const auto common = next_byte(b, begin);
    if (!common || *common >= begin + a.width) return std::nullopt;
    return common;
}

Result<std::vector<RankSet>> rank_sets(std::span<const DeclaredVariable> variables) {
    std::vector<ArrayPart> parts;
    for (std::uint32_t i = 0; i < variables.size(); ++i) {
        const DeclaredVariable& given = variables[i];
        TWR_CHECK(check_variable(given, i));
        if (given.items == 0) continue;
        const std::uint64_t stride = given.file_stride == 0 ? given.item_bytes : given.file_stride;
        const std::uint64_t memory = given.memory_stride == 0 ? given.item_bytes : given.memory_stride;
        parts.push_back({i,
                         {given.file_offset, given.item_bytes, given.items, stride},
                         0,
                         static_cast<std::int64_t>(memory)});
    }
    return rank_sets(parts);
}

Result<std::vector<RankSet>> rank_sets(std::span<const ArrayPart> parts) {
    std::vector<RankSet> all;
    all.reserve(parts.size());
    for (const ArrayPart& part : parts) {
        StridedSet where = part.where;
        TWR_CHECK(check_set(where, part.variable));
        const auto width = static_cast<std::int64_t>(where.width);
        if (where.count == 1 || (where.stride == where.width && part.memory_stride == width))
            where = {where.offset, where.bytes(), 1, where.bytes()};
        const std::int64_t memory =
            where.count == 1 ? static_cast<std::int64_t>(where.width) : part.memory_stride;
        all.push_back({where, {{part.variable, 0, where.width, memory, part.memory_offset}}});
    }
    const auto by_offset = [](const RankSet& a, const RankSet& b) { return a.where.offset < b.where.offset; };
    // Records: of the sets with the same stride and count, those whose items lie side by side
    // become one.
    std::stable_sort(all.begin(), all.end(), [&](const RankSet& a, const RankSet& b) {
        const auto key = [](const RankSet& set) {
            return std::pair(set.where.count == 1 ? 0 : set.where.stride, set.where.count);
        };
        return key(a) != key(b) ? key(a) < key(b) : by_offset(a, b);
    });
    std::vector<RankSet> joined;
    for (RankSet& set : all) {
        RankSet* const last = joined.empty() ? nullptr : &joined.back();
        if (last != nullptr && set.where.count > 1 && last->where.count == set.where.count &&
            last->where.stride == set.where.stride &&
            last->where.offset + last->where.width == set.where.offset &&
            last->where.width + set.where.width <= set.where.stride) {
            for (Field& field : set.fields) {
                field.offset += last->where.width;
                last->fields.push_back(field);
            }
            last->where.width += set.where.width;
        } else {
            joined.push_back(std::move(set));
        }
    }
    std::stable_sort(joined.begin(), joined.end(), by_offset);
    // Compares only sets whose bounds overlap. `open`: those that end after the next one begins.
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < joined.size(); ++i) {
        const StridedSet& where = joined[i].where;
        std::erase_if(open, [&](std::size_t other) { return joined[other].where.end() <= where.begin(); });
        for (const std::size_t other : open) {
            const auto common = first_common(joined[other].where, where);
            if (!common) continue;
            const auto one = variable_at({&joined[other], 1}, *common);
            const auto two = variable_at({&joined[i], 1}, *common);
            return Error{ErrorCode::invalid_argument,
                         "variables " + std::to_string(std::min(*one, *two)) + " and " +
                             std::to_string(std::max(*one, *two)) + " both claim the byte at offset " +
                             std::to_string(*common) + " of the file: every byte may be declared once"};
        }
        open.push_back(i);
    }
    return joined;
}

std::optional<std::uint32_t> variable_at(std::span<const RankSet> sets, std::uint64_t offset) {
    for (const RankSet& set : sets) {
        if (bytes_in(set.where, {offset, offset + 1}) == 0) continue;
        const std::uint64_t within = (offset - set.where.offset) % set.where.stride;
        for (const Field& field : set.fields) {
            if (within >= field.offset && within < field.offset + field.bytes) return field.variable;
        }
    }
    return std::nullopt;
}

std::vector<StridedSet> shape_of(std::span<const RankSet> sets) {
    std::vector<StridedSet> shape;
    for (const RankSet& set : sets) {
        StridedSet where = set.where;
        if (where.dense()) where = {where.offset, where.bytes(), 1, where.bytes()};
        if (!shape.empty() && where.count == 1 && shape.back().count == 1 &&
            shape.back().end() == where.offset) {
            shape.back().width += where.width;
            shape.back().stride = shape.back().width;
        } else {
            shape.push_back(where);
        }
    }
    return shape;
}

SetPart part_of(const StridedSet& set, Range range) {
    SetPart part;
    if (range.begin >= set.end() || range.end <= set.offset || range.begin >= range.end) return part;
    // The place of an offset within the set: its item, and how far into it; the end of an item is
    // the begin of the next.
    const auto place = [&](std::uint64_t at) -> std::pair<std::uint64_t, std::uint64_t> {
        if (at <= set.offset) return {0, 0};
        const std::uint64_t item = (at - set.offset) / set.stride;
        const std::uint64_t within = (at - set.offset) % set.stride;
        if (item >= set.count || within >= set.width) return {std::min(item + 1, set.count), 0};
        return {item, within};
    };
    const auto [first, skipped] = place(range.begin);
    const auto [last, taken] = place(range.end);
    if (first == last) {
        part.first = part.last = first;
        if (taken > skipped) part.head = {first, skipped, taken};
        return part;
    }
    if (skipped != 0) part.head = {first, skipped, set.width};
    part.first = first + (skipped != 0 ? 1 : 0);
    part.last = last;
    if (taken != 0) part.tail = {last, 0, taken};
    return part;
}

void gather_range(const RankSet& set, const void* const* data, Range range, std::byte* to) {
    copy_range<true>(set, data, range, to);
}

void gather_items(const RankSet& set, const void* const* data, std::uint64_t first, std::uint64_t last,
                  std::byte* to, std::uint64_t stride) {
    copy_items<true>(set, data, first, last, to, stride);
}

void gather_cut(const RankSet& set, const void* const* data, const SetPart::Cut& cut, std::byte* to) {
    copy_cut<true>(set, data, cut, to);
}

void scatter_range(const RankSet& set, void* const* data, Range range, const std::byte* from) {
    copy_range<false>(set, data, range, from);
}

void scatter_items(const RankSet& set, void* const* data, std::uint64_t first, std::uint64_t last,
                   const std::byte* from, std::uint64_t stride) {
    copy_items<false>(set, data, first, last, from, stride);
}

void scatter_cut(const RankSet& set, void* const* data, const SetPart::Cut& cut, const std::byte* from) {
    copy_cut<false>(set, data, cut, from);
}

MemoryRun memory_run(const RankSet& set, std::uint64_t at) {
    const std::uint64_t item = (at - set.where.offset) / set.where.stride;
    const std::uint64_t within = (at - set.where.offset) % set.where.stride;
    for (const Field& field : set.fields) {
        if (within >= field.offset && within < field.offset + field.bytes) {
            return {field.variable,
                    field.memory_of(item) + static_cast<std::ptrdiff_t>(within - field.offset),
                    field.offset + field.bytes - within};
        }
    }
    return {};
}

}  // namespace aggregate_plan
}  // namespace twinrun
