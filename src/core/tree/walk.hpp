// Which leaves of two trees differ, reading as few nodes as it takes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "tree/layout.hpp"

namespace twinrun {

// Half-open range of nodes of a level, or of chunks.
struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    [[nodiscard]] std::uint64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

// Gives nodes by their position in the flattened array, wherever they lie.
class NodeSource {
   public:
    virtual ~NodeSource() = default;
    // The next read will ask for these: a source on storage may begin to bring them.
    virtual void announce(std::span<const Range> /*positions*/) {}
    // Appends the words of all nodes of the ranges (sorted, disjoint positions in the flattened
    // array), in order.
    virtual Result<> read(std::span<const Range> positions, std::vector<std::uint64_t>& words) = 0;
};

// A tree in memory.
class MemoryNodes final : public NodeSource {
   public:
    MemoryNodes(std::span<const std::uint64_t> nodes, std::size_t words_per_node)
        : nodes_(nodes), words_(words_per_node) {}
    Result<> read(std::span<const Range> positions, std::vector<std::uint64_t>& words) override;

   private:
    std::span<const std::uint64_t> nodes_;
    std::size_t words_;
};

struct WalkResult {
    std::vector<Range> chunks;        // leaves whose digests differ: sorted, disjoint, maximal
    std::uint64_t differing = 0;      // their number
    std::uint64_t nodes_visited = 0;  // of each tree
};

// Breadth-first from a middle level down, pruned where digests agree (Middleware '24, section 2.3).
// Both trees have the same number of leaves and the same settings. within: only these leaves count
// (sorted, disjoint, none empty); none: all.
Result<WalkResult> walk_trees(const TreeLayout& layout, std::size_t words_per_node, NodeSource& a,
                              NodeSource& b, std::span<const Range> within = {});

}  // namespace twinrun
