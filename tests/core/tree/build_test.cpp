#include "tree/build.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace twinrun {
namespace {

std::vector<std::uint64_t> random_leaves(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint64_t> leaves(count);
    for (auto& leaf : leaves)
        leaf = random() % kPrime;
    return leaves;
}

std::uint64_t horner(std::span<const std::uint64_t> digests) {
    std::uint64_t h = 0;
    for (const std::uint64_t d : digests)
        h = add61(multiply61(h, kRho), d);
    return h;
}

TEST(BuildTree, RootIsHornersRuleOverAllBlocksWhenTheirNumberIsAPowerOfTwo) {
    for (std::size_t count = 1; count <= 1024; count *= 2) {
        const auto blocks = random_leaves(count, count);
        ASSERT_EQ(build_tree(DigestKind::linear, 1, blocks).front(), horner(blocks)) << count;
        // The same data in larger chunks has the same root.
        for (std::size_t chunk = 2; chunk <= count; chunk *= 2) {
            std::vector<std::uint64_t> chunks;
            for (std::size_t i = 0; i < count; i += chunk)
                chunks.push_back(horner(std::span(blocks).subspan(i, chunk)));
            ASSERT_EQ(build_tree(DigestKind::linear, chunk, chunks).front(), horner(blocks))
                << count << ", " << chunk;
        }
    }
}

// Every leaf has a weight of its own at the root: RHO to a power that no other leaf has.
TEST(BuildTree, RootGivesEveryChunkAnotherWeight) {
    for (std::size_t count = 1; count <= 70; ++count) {
        std::vector<std::uint64_t> weights;
        for (std::size_t i = 0; i < count; ++i) {
            std::vector<std::uint64_t> leaves(count);
            leaves[i] = 1;
            weights.push_back(build_tree(DigestKind::linear, 4, leaves).front());
        }
        std::sort(weights.begin(), weights.end());
        ASSERT_EQ(std::adjacent_find(weights.begin(), weights.end()), weights.end()) << count;
        ASSERT_NE(weights.front(), 0U) << count;
    }
}

TEST(BuildTree, SeesAnyTwoChunksExchanged) {
    for (const DigestKind kind : {DigestKind::linear, DigestKind::published}) {
        const std::size_t words = node_words(kind);
        for (std::size_t count = 2; count <= 34; ++count) {
            auto leaves = random_leaves(count * words, count);
            const auto root = [&] {
                const auto tree = build_tree(kind, 1, leaves);
                return std::vector<std::uint64_t>(tree.begin(),
                                                  tree.begin() + static_cast<std::ptrdiff_t>(words));
            };
            const auto before = root();
            const auto exchange = [&](std::size_t i, std::size_t j) {
                for (std::size_t w = 0; w < words; ++w)
                    std::swap(leaves[i * words + w], leaves[j * words + w]);
            };
            for (std::size_t i = 0; i < count; ++i) {
                for (std::size_t j = i + 1; j < count; ++j) {
                    exchange(i, j);
                    ASSERT_NE(root(), before) << count << " chunks: " << i << " and " << j;
                    exchange(i, j);
                }
            }
        }
    }
}

TEST(BuildTree, KeepsLeavesAndPassesALoneNodeUp) {
    const auto leaves = random_leaves(5, 1);
    const auto tree = build_tree(DigestKind::linear, 1, leaves);
    const TreeLayout layout{5};
    ASSERT_EQ(tree.size(), layout.nodes());
    EXPECT_TRUE(std::equal(leaves.begin(), leaves.end(),
                           tree.begin() + static_cast<std::ptrdiff_t>(layout.first(0))));
    EXPECT_EQ(tree[layout.first(1) + 2], leaves[4]);
    EXPECT_EQ(tree[layout.first(2) + 1], leaves[4]);
}

TEST(BuildTree, OfNothingIsNothing) { EXPECT_TRUE(build_tree(DigestKind::linear, 1, {}).empty()); }

}  // namespace
}  // namespace twinrun
