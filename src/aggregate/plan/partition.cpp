#include "aggregate/plan/partition.hpp"

#include <algorithm>
#include <unordered_map>

#include "aggregate/plan/sweep.hpp"
#include "base/checked.hpp"

namespace twinrun {
inline namespace aggregate_plan {

namespace {

StridedSet dense_set(Range range) { return {range.begin, range.bytes(), 1, range.bytes()}; }

// The sets that begin before `end`, from a list that ascends by offset.
std::span<const OwnedSet> begin_before(std::span<const OwnedSet> sets, std::uint64_t end) {
    const auto past = std::partition_point(sets.begin(), sets.end(),
                                           [&](const OwnedSet& owned) { return owned.set.offset < end; });
    return {sets.begin(), past};
}

std::uint64_t round_down(std::uint64_t at, std::uint64_t block) { return at - at % block; }

void ascending(std::vector<Range>& ranges) {
    std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
}

// Ranges that meet or touch become one, and those with at most `hole` bytes between them.
std::vector<Range> merged(std::vector<Range> ranges, std::uint64_t hole = 0) {
    ascending(ranges);
    std::vector<Range> all;
    for (const Range& range : ranges) {
        if (!all.empty() && range.begin <= all.back().end + hole) {
            all.back().end = std::max(all.back().end, range.end);
        } else {
            all.push_back(range);
        }
    }
    return all;
}

// The stretches of `sets`, which ascend by offset, in a range: one for each item of a set, or one
// for the whole set if `whole` says so.
template <typename Whole>
std::vector<Range> stretches(std::span<const OwnedSet> sets, Range range, Whole whole) {
    std::vector<Range> all;
    for (const OwnedSet& owned : begin_before(sets, range.end)) {
        const StridedSet& set = owned.set;
        if (bytes_in(set, range) == 0) continue;
        const std::uint64_t begin = *next_byte(set, range.begin);
        const std::uint64_t end = *last_end(set, range.end);
        if (whole(set)) {
            all.push_back({begin, end});
            continue;
        }
        for (std::uint64_t at = begin; at < end;) {
            const std::uint64_t item = (at - set.offset) / set.stride;
            all.push_back({at, std::min(end, set.offset + item * set.stride + set.width)});
            at = set.offset + (item + 1) * set.stride;
        }
    }
    return all;
}

}  // namespace

FileTable::FileTable(std::vector<OwnedSet> sets, bool shared) : sets_(std::move(sets)), shared_(shared) {
    std::stable_sort(sets_.begin(), sets_.end(), [](const OwnedSet& a, const OwnedSet& b) {
        return a.set.offset != b.set.offset ? a.set.offset < b.set.offset : a.rank < b.rank;
    });
    if (!sets_.empty()) span_.begin = sets_.front().set.offset;
    for (const OwnedSet& owned : sets_) {
        span_.end = std::max(span_.end, owned.set.end());
        bytes_ += owned.set.bytes();
    }
}

std::uint64_t FileTable::bytes_within(Range range) const {
    std::uint64_t sum = 0;
    for (const OwnedSet& owned : begin_before(sets_, range.end))
        sum += bytes_in(owned.set, range);
    return sum;
}

std::vector<Range> make_partitions(const FileTable& table, std::uint64_t parts, std::uint64_t block) {
    std::vector<Range> partitions;
    const Range span = table.span();
    if (table.bytes() == 0) return partitions;
    parts = std::max<std::uint64_t>(parts, 1);
    const std::uint64_t share = divide_up(table.bytes(), parts);
    std::uint64_t begin = span.begin;
    for (std::uint64_t i = 1; i < parts && begin < span.end; ++i) {
        // Where the first i shares end: the smallest offset with this many bytes before it.
        std::uint64_t at = span.begin + std::min(share * i, span.bytes());
        if (!table.gapless()) {
            std::uint64_t low = begin;
            std::uint64_t high = span.end;
            while (low < high) {
                const std::uint64_t middle = low + (high - low) / 2;
                if (table.bytes_within({span.begin, middle}) < share * i) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            at = low;
        }
        const std::uint64_t below = round_down(at, block);
        const std::uint64_t end = at - below <= block / 2 ? below : below + block;
        if (end <= begin || end >= span.end) continue;
        partitions.push_back({begin, end});
        begin = end;
    }
    partitions.push_back({begin, span.end});
    if (!table.gapless()) {
        std::erase_if(partitions, [&](const Range& range) { return table.bytes_within(range) == 0; });
    }
    return partitions;
}

std::uint64_t default_aggregators(std::uint64_t bytes, std::uint64_t nodes, std::uint64_t ranks) {
    // One on each node saturates the path to storage of most networks. Little data needs fewer. Two
    // on a node help if a partition would be many times as long as the buffers.
    constexpr std::uint64_t kLeast = std::uint64_t{8} << 20;
    constexpr std::uint64_t kMany = std::uint64_t{256} << 20;
    const std::uint64_t few = std::clamp<std::uint64_t>(bytes / kLeast, 1, nodes);
    return std::min(ranks, bytes / nodes >= kMany ? few * 2 : few);
}

std::vector<Contribution> contributions_to(const FileTable& table, Range partition,
                                           std::span<const std::uint32_t> node_of) {
    std::unordered_map<std::uint32_t, std::uint64_t> volumes;
    for (const OwnedSet& owned : begin_before(table.sets(), partition.end)) {
        if (const std::uint64_t bytes = bytes_in(owned.set, partition)) volumes[owned.rank] += bytes;
    }
    std::vector<Contribution> all;
    all.reserve(volumes.size());
    for (const auto& [rank, bytes] : volumes)
        all.push_back({rank, node_of[rank], static_cast<float>(bytes)});
    std::sort(all.begin(), all.end(),
              [](const Contribution& a, const Contribution& b) { return a.rank < b.rank; });
    return all;
}

std::optional<Overlap> find_overlap(const FileTable& table, Range range) {
    // Most often there is none, which takes no comparison of each set with each. Sets of one rank
    // have no byte in common.
    std::vector<StridedSet> sets;
    for (const OwnedSet& owned : begin_before(table.sets(), range.end)) {
        if (owned.set.end() > range.begin) sets.push_back(owned.set);
    }
    if (const auto looked = first_overlap(std::span<const StridedSet>(sets)); looked && !*looked)
        return std::nullopt;
    std::vector<const OwnedSet*> open;
    for (const OwnedSet& owned : begin_before(table.sets(), range.end)) {
        if (owned.set.end() <= range.begin) continue;
        std::erase_if(open, [&](const OwnedSet* other) {
            return other->set.end() <= std::max(owned.set.begin(), range.begin);
        });
        for (const OwnedSet* other : open) {
            if (other->rank == owned.rank) continue;
            const auto common = first_common(other->set, owned.set);
            // An overlap outside the range is found by the rank that checks that range.
            if (!common || *common >= range.end) continue;
            return Overlap{{std::min(other->rank, owned.rank), std::max(other->rank, owned.rank)}, *common};
        }
        open.push_back(&owned);
    }
    return std::nullopt;
}

DirectRule rule_for(const FileTable& table, DirectRule rule) {
    if (rule.least_alone >= rule.least_bytes) return rule;
    std::vector<std::uint32_t> ranks;
    ranks.reserve(table.sets().size());
    for (const OwnedSet& owned : table.sets()) {
        if (!owned.set.dense()) return rule;
        ranks.push_back(owned.rank);
    }
    std::sort(ranks.begin(), ranks.end());
    if (std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end()) rule.least_bytes = rule.least_alone;
    return rule;
}

std::optional<Range> direct_part(const StridedSet& set, const DirectRule& rule) {
    if (!set.dense() || set.bytes() < rule.least_bytes) return std::nullopt;
    const Range part{divide_up(set.begin(), rule.alignment) * rule.alignment,
                     round_down(set.end(), rule.alignment)};
    if (part.begin >= part.end) return std::nullopt;
    return part;
}

PartitionPlan::PartitionPlan(const FileTable& table, Range partition, const DirectRule& rule,
                             std::uint64_t buffer_bytes, std::uint64_t block) {
    for (const OwnedSet& owned : begin_before(table.sets(), partition.end)) {
        if (owned.set.end() <= partition.begin) continue;
        const auto direct = direct_part(owned.set, rule);
        if (!direct) {
            if (bytes_in(owned.set, partition) != 0) gathered_.push_back(owned);
            continue;
        }
        direct_.push_back(*direct);
        for (const Range& edge :
             {Range{owned.set.begin(), direct->begin}, Range{direct->end, owned.set.end()}}) {
            const Range part{std::max(edge.begin, partition.begin), std::min(edge.end, partition.end)};
            if (part.begin < part.end) gathered_.push_back({dense_set(part), owned.rank});
        }
    }
    std::stable_sort(gathered_.begin(), gathered_.end(),
                     [](const OwnedSet& a, const OwnedSet& b) { return a.set.offset < b.set.offset; });
    ascending(direct_);

    // For each window the sets that reach into it: those that begin before its end and end after
    // its begin.
    std::vector<const OwnedSet*> open;
    std::size_t next = 0;
    std::uint64_t at = partition.begin;
    while (at < partition.end) {
        std::erase_if(open, [&](const OwnedSet* owned) { return owned->set.end() <= at; });
        for (; next < gathered_.size() && gathered_[next].set.offset <= at; ++next) {
            if (gathered_[next].set.end() > at) open.push_back(&gathered_[next]);
        }
        std::uint64_t first = UINT64_MAX;
        for (const OwnedSet* owned : open)
            first = std::min(first, next_byte(owned->set, at).value_or(UINT64_MAX));
        if (next < gathered_.size()) first = std::min(first, gathered_[next].set.offset);
        if (first >= partition.end) break;
        Window window;
        window.range.begin = std::max(at, round_down(first, block));
        window.range.end = std::min(partition.end, round_down(window.range.begin, block) + buffer_bytes);
        for (; next < gathered_.size() && gathered_[next].set.offset < window.range.end; ++next)
            open.push_back(&gathered_[next]);
        window.data = {first, first};
        for (const OwnedSet* owned : open) {
            const std::uint64_t bytes = bytes_in(owned->set, window.range);
            if (bytes == 0) continue;
            window.bytes += bytes;
            window.data.end =
                std::max(window.data.end, last_end(owned->set, window.range.end).value_or(first));
        }
        windows_.push_back(window);
        at = window.range.end;
    }
}

std::vector<std::uint32_t> PartitionPlan::ranks_of(const Window& window) const {
    std::vector<std::uint32_t> ranks;
    for (const OwnedSet& owned : begin_before(gathered_, window.range.end)) {
        if (bytes_in(owned.set, window.range) != 0) ranks.push_back(owned.rank);
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
}

std::vector<Range> PartitionPlan::sieve_of(const Window& window, std::uint64_t hole) const {
    if (window.bytes == window.data.bytes()) return {window.data};
    return merged(stretches(gathered_, window.range,
                            [&](const StridedSet& set) { return set.stride - set.width <= hole; }),
                  hole);
}

std::vector<Range> PartitionPlan::runs_of(const Window& window, bool exact, std::uint64_t block) const {
    if (window.bytes == window.data.bytes()) return {window.data};
    const auto whole = [&](const StridedSet& set) {
        return set.dense() || (!exact && set.stride - set.width < block);
    };
    const std::vector<Range> runs = merged(stretches(gathered_, window.range, whole));
    if (exact) return runs;
    // Direct stretches may lie in the holes of a strided set.
    std::vector<Range> left;
    auto direct = std::partition_point(direct_.begin(), direct_.end(),
                                       [&](const Range& range) { return range.end <= window.range.begin; });
    for (Range run : runs) {
        while (direct != direct_.end() && direct->end <= run.begin)
            ++direct;
        for (auto at = direct; at != direct_.end() && at->begin < run.end; ++at) {
            if (at->begin > run.begin) left.push_back({run.begin, at->begin});
            run.begin = std::max(run.begin, at->end);
        }
        if (run.begin < run.end) left.push_back(run);
    }
    return left;
}

}  // namespace aggregate_plan
}  // namespace twinrun
