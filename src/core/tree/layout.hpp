// Where nodes of a tree lie in its flattened array. Level 0 are the chunks' digests, level h + 1
// the pairs of level h; a node without a partner passes its digest up unchanged. The array holds
// the root first, the leaves last, so that the upper levels, all that a comparison of equal runs
// reads, are its beginning.
#pragma once

#include <cstdint>

#include "digest/digest.hpp"
#include "digest/field61.hpp"

namespace twinrun {

struct TreeLayout {
    std::uint64_t leaves = 0;

    [[nodiscard]] constexpr unsigned levels() const {
        unsigned n = 0;
        if (leaves == 0) return 0;
        for (std::uint64_t width = leaves; width > 1; width = width / 2 + width % 2)
            ++n;
        return n + 1;
    }
    // Nodes of a level: ceil(leaves / 2^level).
    [[nodiscard]] constexpr std::uint64_t width(unsigned level) const {
        if (leaves == 0) return 0;
        return ((leaves - 1) >> level) + 1;
    }
    // Position of a level's first node in the array.
    [[nodiscard]] constexpr std::uint64_t first(unsigned level) const {
        std::uint64_t position = 0;
        for (unsigned h = levels(); h-- > level + 1;)
            position += width(h);
        return position;
    }
    [[nodiscard]] constexpr std::uint64_t nodes() const { return leaves == 0 ? 0 : first(0) + leaves; }
};

// A node of a tree: for linear digests the coarse one alone (8 bytes), for published ones all 16.
[[nodiscard]] constexpr std::size_t node_words(DigestKind kind) { return kind == DigestKind::linear ? 1 : 2; }

// Joins children at level h to their parent at h + 1. Linear: left * RHO^(blocks_per_chunk 2^h) +
// right, so that the root is one polynomial over all blocks. (One factor for all levels would give
// the second and third of four chunks the same weight, and exchanging them would go unseen.)
class TreeJoin {
   public:
    TreeJoin(DigestKind kind, std::size_t blocks_per_chunk);
    void operator()(unsigned level, const std::uint64_t* left, const std::uint64_t* right,
                    std::uint64_t* parent) const {
        if (kind_ == DigestKind::linear) {
            *parent = add61(multiply61(*left, factors_[level]), *right);
        } else {
            join_published(left, right, parent);
        }
    }

   private:
    static void join_published(const std::uint64_t* left, const std::uint64_t* right, std::uint64_t* parent);
    DigestKind kind_;
    std::array<std::uint64_t, 64> factors_{};
};

}  // namespace twinrun
