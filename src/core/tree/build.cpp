#include "tree/build.hpp"

#include <algorithm>

namespace twinrun {

TreeJoin::TreeJoin(DigestKind kind, std::size_t blocks_per_chunk) : kind_(kind) {
    std::uint64_t factor = power61(kRho, blocks_per_chunk);
    for (auto& f : factors_) {
        f = factor;
        factor = multiply61(factor, factor);
    }
}

void TreeJoin::join_published(const std::uint64_t* left, const std::uint64_t* right, std::uint64_t* parent) {
    ChunkDigest digest;
    published_block(left[0], left[1], &digest);
    published_block(right[0], right[1], &digest);
    parent[0] = digest.fine;
    parent[1] = digest.coarse;
}

std::vector<std::uint64_t> build_tree(DigestKind kind, std::size_t blocks_per_chunk,
                                      std::span<const std::uint64_t> leaves) {
    const std::size_t words = node_words(kind);
    const TreeLayout layout{leaves.size() / words};
    const TreeJoin join(kind, blocks_per_chunk);
    std::vector<std::uint64_t> nodes(layout.nodes() * words);
    if (nodes.empty()) return nodes;
    std::uint64_t* below = nodes.data() + layout.first(0) * words;
    std::copy(leaves.begin(), leaves.end(), below);
    for (unsigned level = 0; level + 1 < layout.levels(); ++level) {
        std::uint64_t* above = nodes.data() + layout.first(level + 1) * words;
        const std::uint64_t width = layout.width(level);
        for (std::uint64_t i = 0; i + 1 < width; i += 2) {
            join(level, below + i * words, below + (i + 1) * words, above + i / 2 * words);
        }
        if (width % 2 != 0) std::copy_n(below + (width - 1) * words, words, above + width / 2 * words);
        below = above;
    }
    return nodes;
}

}  // namespace twinrun
