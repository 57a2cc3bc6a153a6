#include "tree/walk.hpp"

#include <algorithm>
#include <cstring>

namespace twinrun {

namespace {

// The start: a level wide enough to prune well, narrow enough to be one small read.
constexpr std::uint64_t kStartWidth = 512;
// Levels passed in one step. Three levels: a step reads eight nodes (one cache line) under every
// node that differs.
constexpr unsigned kStride = 3;
// When more than this share of a level differs, pruning saves less than the levels between cost.
constexpr std::uint64_t kDenseShare = 4;

void append(std::vector<Range>& ranges, Range range) {
    if (!ranges.empty() && ranges.back().end == range.begin) {
        ranges.back().end = range.end;
    } else {
        ranges.push_back(range);
    }
}

// The nodes of a level above these leaves.
std::vector<Range> above(std::span<const Range> leaves, unsigned level) {
    std::vector<Range> nodes;
    for (const Range& r : leaves) {
        Range up{r.begin >> level, ((r.end - 1) >> level) + 1};
        // Two may share a node.
        if (!nodes.empty()) up.begin = std::max(up.begin, nodes.back().end);
        if (up.begin < up.end) append(nodes, up);
    }
    return nodes;
}

// What two sorted lists of ranges have in common.
std::vector<Range> common(std::span<const Range> x, std::span<const Range> y) {
    std::vector<Range> both;
    for (std::size_t i = 0, j = 0; i < x.size() && j < y.size();) {
        const Range part{std::max(x[i].begin, y[j].begin), std::min(x[i].end, y[j].end)};
        if (part.begin < part.end) append(both, part);
        if (x[i].end < y[j].end) {
            ++i;
        } else {
            ++j;
        }
    }
    return both;
}

}  // namespace

Result<> MemoryNodes::read(std::span<const Range> positions, std::vector<std::uint64_t>& words) {
    for (const Range& r : positions) {
        words.insert(words.end(), nodes_.begin() + static_cast<std::ptrdiff_t>(r.begin * words_),
                     nodes_.begin() + static_cast<std::ptrdiff_t>(r.end * words_));
    }
    return success();
}

Result<WalkResult> walk_trees(const TreeLayout& layout, std::size_t words_per_node, NodeSource& a,
                              NodeSource& b, std::span<const Range> within) {
    WalkResult result;
    if (layout.leaves == 0) return result;
    unsigned level = 0;
    while (layout.width(level) > kStartWidth)
        ++level;
    const Range all{0, layout.leaves};
    const std::span<const Range> requested = within.empty() ? std::span<const Range>(&all, 1) : within;
    std::vector<Range> open = above(requested, level);  // nodes of this level to compare
    std::vector<std::uint64_t> nodes_a;
    std::vector<std::uint64_t> nodes_b;
    std::vector<Range> positions;
    std::vector<Range> differing;
    for (;;) {
        positions.clear();
        const std::uint64_t origin = layout.first(level);
        std::uint64_t visited = 0;
        for (const Range& r : open) {
            positions.push_back({origin + r.begin, origin + r.end});
            visited += r.size();
        }
        nodes_a.clear();
        nodes_b.clear();
        a.announce(positions);
        b.announce(positions);  // both runs' storage works at once
        TWR_CHECK(a.read(positions, nodes_a));
        TWR_CHECK(b.read(positions, nodes_b));
        if (nodes_a.size() != visited * words_per_node || nodes_b.size() != nodes_a.size()) {
            return Error{ErrorCode::internal, "a node source gave another number of nodes than asked for"};
        }
        result.nodes_visited += visited;
        differing.clear();
        std::uint64_t count = 0;
        std::size_t at = 0;
        for (const Range& r : open) {
            for (std::uint64_t i = r.begin; i < r.end; ++i, at += words_per_node) {
                if (std::memcmp(&nodes_a[at], &nodes_b[at], words_per_node * sizeof(std::uint64_t)) != 0) {
                    append(differing, {i, i + 1});
                    ++count;
                }
            }
        }
        if (level == 0 || count == 0) {
            result.chunks = std::move(differing);
            result.differing = count;
            return result;
        }
        const unsigned down = count * kDenseShare > visited ? level : std::min(level, kStride);
        level -= down;
        open.clear();
        for (const Range& r : differing) {
            append(open, {r.begin << down, std::min(r.end << down, layout.width(level))});
        }
        if (!within.empty()) open = common(open, above(within, level));
    }
}

}  // namespace twinrun
