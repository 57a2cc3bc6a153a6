#include "dedup/host_tree_join.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "dedup/shares.hpp"

namespace twinrun {

namespace {

enum class NodeLabel : std::uint8_t { none, unchanged, first, copy };

ChunkHash node_hash(const ChunkHash& left, const ChunkHash& right, std::uint64_t level) {
    const std::uint64_t words[5] = {left.low, left.high, right.low, right.high, level};
    return chunk_hash(reinterpret_cast<const std::byte*>(words), sizeof words);
}

// The tree of a slice. Level by level from the leaves on: node i of a level of n nodes is at n + i.
class SliceTree {
   public:
    SliceTree(const TreeSlice& slice, const HostImage& image, HashTable& table, Team& team)
        : slice_(slice),
          image_(image),
          table_(table),
          team_(team),
          leaves_(slice.last - slice.first),
          width_(std::bit_ceil(leaves_)),
          labels_(2 * width_, NodeLabel::none),
          hashes_(2 * width_),
          at_(2 * width_, kNoLocation) {}

    // Chunks that a collision kept out of the table are new as any other.
    void label_leaves() {
        std::fill_n(labels_.begin() + static_cast<std::ptrdiff_t>(width_), leaves_, NodeLabel::unchanged);
        // From the front: seen from the back, a copy of the last new chunk would be taken for it.
        NewChunks is_new(location(slice_.ordinal, slice_.placed));
        for (std::size_t j = 0; j < slice_.changed.size(); ++j) {
            const std::uint64_t leaf = width_ + (slice_.changed[j] - slice_.first);
            labels_[leaf] = is_new(slice_.sources[j]) ? NodeLabel::first : NodeLabel::copy;
            hashes_[leaf] = image_.hash(slice_.changed[j]);
            at_[leaf] = slice_.sources[j];
        }
    }

    // Nodes whose leaves are all new go into the table.
    void enter_first_nodes() {
        each_node([&](std::uint64_t node, std::uint64_t left, std::uint64_t right, unsigned level) {
            if (labels_[left] != NodeLabel::first || labels_[right] != NodeLabel::first) return;
            labels_[node] = NodeLabel::first;
            hashes_[node] = node_hash(hashes_[left], hashes_[right], level);
            at_[node] = at_[left];
            table_.use(table_.insert(image_.masked(hashes_[node]), at_[node]), slice_.ordinal);
        });
    }

    // Nodes whose leaves are all copies or all unchanged.
    void find_copied_nodes() {
        each_node([&](std::uint64_t node, std::uint64_t left, std::uint64_t right, unsigned level) {
            if (labels_[left] != labels_[right]) return;
            if (labels_[left] == NodeLabel::unchanged) labels_[node] = NodeLabel::unchanged;
            if (labels_[left] != NodeLabel::copy) return;
            hashes_[node] = node_hash(hashes_[left], hashes_[right], level);
            const std::uint64_t slot = table_.find(image_.masked(hashes_[node]));
            if (slot == HashTable::kFull) return;
            const Location region = table_.at(slot);
            const std::uint64_t half = std::uint64_t{1} << (level - 1);
            // With `verify`, only what the leaves' sources confirm.
            if (slice_.verify && (at_[left] != region || at_[right] != region + half)) return;
            labels_[node] = NodeLabel::copy;
            at_[node] = region;
            table_.use(slot, slice_.ordinal);
        });
    }

    // The topmost node of each region, from left to right.
    void add_regions(RunJoiner& joiner) const {
        for (std::uint64_t leaf = 0; leaf < leaves_;) {
            std::uint64_t node = width_ + leaf;
            std::uint64_t count = 1;
            while (node > 1 && node % 2 == 0 && labels_[node / 2] == labels_[node]) {
                node /= 2;
                count *= 2;
            }
            if (labels_[node] != NodeLabel::unchanged) {
                joiner.add_region(slice_.first + leaf, count, at_[node], labels_[node] == NodeLabel::first);
            }
            leaf += count;
        }
    }

   private:
    // Calls use(node, left, right, level) for all inner nodes, level by level from the leaves on.
    template <class Use>
    void each_node(Use use) {
        for (std::uint64_t n = width_ / 2; n != 0; n /= 2) {
            const auto level = static_cast<unsigned>(std::countr_zero(width_ / n));
            each_item(team_, n, [&](std::uint64_t i) { use(n + i, 2 * (n + i), 2 * (n + i) + 1, level); });
        }
    }

    const TreeSlice& slice_;
    const HostImage& image_;
    HashTable& table_;
    Team& team_;
    const std::uint64_t leaves_;
    const std::uint64_t width_;
    std::vector<NodeLabel> labels_;
    std::vector<ChunkHash> hashes_;
    std::vector<Location> at_;
};

}  // namespace

void join_tree(const TreeSlice& slice, const HostImage& image, HashTable& table, Team& team,
               RunJoiner& joiner) {
    SliceTree tree(slice, image, table, team);
    tree.label_leaves();
    tree.enter_first_nodes();
    tree.find_copied_nodes();
    tree.add_regions(joiner);
}

}  // namespace twinrun
