#include "aggregate/plan/stored.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace twinrun {
inline namespace aggregate_plan {

namespace {

Error too_many(std::size_t most) {
    return Error{ErrorCode::unsupported,
                 "what is read has more than " + std::to_string(most) +
                     " pieces in the stored files: read in another cutting, or join the files first"};
}

// Collects what two sets have in common.
struct Collector {
    std::vector<Common>& to;
    std::size_t most;

    Result<> add(Common piece) {
        if (to.size() >= most) return too_many(most);
        if (piece.where.count == 1) piece.where.stride = piece.where.width;
        to.push_back(piece);
        return success();
    }

    // What a range has in common with a strided set. range_is_a: the range is (an item of) the
    // first set.
    Result<> add_within(Range range, const StridedSet& set, bool range_is_a) {
        const SetPart part = part_of(set, range);
        const auto add_cut = [&](const SetPart::Cut& cut) -> Result<> {
            if (cut.bytes() == 0) return success();
            return add({{set.offset + cut.item * set.stride + cut.begin, cut.bytes(), 1, cut.bytes()}});
        };
        TWR_CHECK(add_cut(part.head));
        if (part.first < part.last) {
            const StridedSet whole{set.offset + part.first * set.stride, set.width, part.last - part.first,
                                   set.stride};
            TWR_CHECK(add({whole, !range_is_a, range_is_a}));
        }
        return add_cut(part.tail);
    }

    // Of two sets with one stride: items meet at one distance between their numbers, or at two.
    Result<> add_in_step(const StridedSet& a, const StridedSet& b) {
        const auto stride = static_cast<std::int64_t>(a.stride);
        const auto apart = static_cast<std::int64_t>(b.offset) - static_cast<std::int64_t>(a.offset);
        const auto a_width = static_cast<std::int64_t>(a.width);
        const auto b_width = static_cast<std::int64_t>(b.width);
        // Item i + k of b begins at apart + k * stride within item i of a.
        const std::int64_t nearest = -(apart / stride);
        for (std::int64_t k = nearest - 2; k <= nearest + 2; ++k) {
            const std::int64_t within = apart + k * stride;
            if (within <= -b_width || within >= a_width) continue;
            const std::int64_t first = std::max<std::int64_t>(0, -k);
            const std::int64_t last =
                std::min(static_cast<std::int64_t>(a.count), static_cast<std::int64_t>(b.count) - k);
            if (first >= last) continue;
            const std::int64_t begin = std::max<std::int64_t>(0, within);
            const std::int64_t end = std::min(a_width, within + b_width);
            TWR_CHECK(add({{a.offset + static_cast<std::uint64_t>(first * stride + begin),
                            static_cast<std::uint64_t>(end - begin), static_cast<std::uint64_t>(last - first),
                            a.stride},
                           true,
                           true}));
        }
        return success();
    }
};

// The number of the item that has this byte, and the byte's place within it.
std::pair<std::uint64_t, std::uint64_t> item_of(const StridedSet& set, std::uint64_t byte) {
    return {(byte - set.offset) / set.stride, (byte - set.offset) % set.stride};
}

// The part of a set's fields that has `width` bytes from `begin` on of item `item`, and of every
// item after it.
std::vector<Field> fields_within(const RankSet& set, std::uint64_t item, std::uint64_t begin,
                                 std::uint64_t width) {
    std::vector<Field> fields;
    for (const Field& field : set.fields) {
        const std::uint64_t from = std::max(begin, field.offset);
        const std::uint64_t to = std::min(begin + width, field.offset + field.bytes);
        if (from >= to) continue;
        Field part = field;
        part.offset = from - begin;
        part.bytes = to - from;
        part.memory_offset =
            static_cast<std::int64_t>(field.memory_of(item)) + static_cast<std::int64_t>(from - field.offset);
        fields.push_back(part);
    }
    return fields;
}

// What a set of the reader and a stored one have in common, as it lies in the stored stream.
void place(const RankSet& set, const StoredSet& stored, const Common& common, std::vector<RankSet>& to) {
    const StridedSet& where = common.where;
    const auto [item, begin] = item_of(set.where, where.offset);
    const auto [stored_item, within] = item_of(stored.where, where.offset);
    const std::uint64_t at = stored.at + stored_item * stored.where.width + within;
    const std::uint64_t stride = common.across_b ? stored.where.width : where.stride;
    if (where.count == 1 || common.across_a) {
        to.push_back({{at, where.width, where.count, where.count == 1 ? where.width : stride},
                      fields_within(set, item, begin, where.width)});
        return;
    }
    // All in one item of the reader's, whose memory is dense within each of its fields.
    if (set.fields.size() == 1) {
        std::vector<Field> fields = fields_within(set, item, begin, where.width);
        fields.front().memory_stride = static_cast<std::int64_t>(where.stride);
        to.push_back({{at, where.width, where.count, stride}, std::move(fields)});
        return;
    }
    for (std::uint64_t i = 0; i < where.count; ++i) {
        to.push_back({{at + i * stride, where.width, 1, where.width},
                      fields_within(set, item, begin + i * where.stride, where.width)});
    }
}

}  // namespace

Result<> add_common(const StridedSet& a, const StridedSet& b, std::vector<Common>& to, std::size_t most) {
    if (!first_common(a, b)) return success();
    Collector collector{to, most};
    if (a.count == 1) return collector.add_within({a.begin(), a.end()}, b, true);
    if (b.count == 1) return collector.add_within({b.begin(), b.end()}, a, false);
    if (a.stride == b.stride) return collector.add_in_step(a, b);
    // Item by item of the set with the longer stride, within the range that both have.
    const bool by_a = a.stride > b.stride;
    const StridedSet& one = by_a ? a : b;
    const StridedSet& other = by_a ? b : a;
    const std::uint64_t first = other.begin() <= one.begin() ? 0 : item_of(one, other.begin()).first;
    for (std::uint64_t item = first; item < one.count; ++item) {
        const std::uint64_t begin = one.offset + item * one.stride;
        if (begin >= other.end()) break;
        TWR_CHECK(collector.add_within({begin, begin + one.width}, other, by_a));
    }
    return success();
}

Result<FoundSets> find_stored(std::span<const RankSet> sets, std::span<const StoredSet> stored) {
    FoundSets found;
    std::vector<Common> common;
    for (std::size_t number = 0; number < sets.size(); ++number) {
        const RankSet& set = sets[number];
        std::uint64_t bytes = 0;
        for (const StoredSet& part : stored) {
            if (part.where.offset >= set.where.end()) break;
            common.clear();
            TWR_CHECK(add_common(set.where, part.where, common));
            for (const Common& piece : common) {
                bytes += piece.where.bytes();
                place(set, part, piece, found.sets);
            }
            if (found.sets.size() > kMostRuns) return too_many(kMostRuns);
        }
        if (bytes != set.where.bytes()) found.with_holes.push_back(number);
    }
    std::stable_sort(found.sets.begin(), found.sets.end(),
                     [](const RankSet& a, const RankSet& b) { return a.where.offset < b.where.offset; });
    return found;
}

std::vector<RankSet> packed_sets(std::span<const RankSet> sets, std::uint64_t at) {
    std::vector<RankSet> packed;
    for (const RankSet& set : sets) {
        RankSet next = set;
        const std::uint64_t bytes = set.where.bytes();
        next.where = {at, set.where.width, set.where.count, set.where.width};
        if (set.fields.size() == 1 &&
            set.fields.front().memory_stride == static_cast<std::int64_t>(set.where.width)) {
            next.where = {at, bytes, 1, bytes};
            next.fields.front().bytes = bytes;
            next.fields.front().memory_stride = static_cast<std::int64_t>(bytes);
        }
        packed.push_back(std::move(next));
        at += bytes;
    }
    return packed;
}

}  // namespace aggregate_plan
}  // namespace twinrun
