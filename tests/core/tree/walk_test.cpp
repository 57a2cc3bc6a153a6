#include "tree/walk.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/seed.hpp"
#include "tree/build.hpp"

namespace twinrun {
namespace {

// Also checks what a source may rely on: ranges sorted, disjoint, inside.
class CheckedNodes final : public NodeSource {
   public:
    CheckedNodes(std::span<const std::uint64_t> nodes, std::size_t words)
        : inner_(nodes, words), nodes_(nodes.size() / words) {}
    Result<> read(std::span<const Range> positions, std::vector<std::uint64_t>& words) override {
        std::uint64_t end = 0;
        for (const Range& r : positions) {
            EXPECT_LE(end, r.begin);
            EXPECT_LT(r.begin, r.end);
            EXPECT_LE(r.end, nodes_);
            end = r.end;
            read_ += r.size();
        }
        return inner_.read(positions, words);
    }
    [[nodiscard]] std::uint64_t nodes_read() const { return read_; }

   private:
    MemoryNodes inner_;
    std::uint64_t nodes_;
    std::uint64_t read_ = 0;
};

struct Trees {
    DigestKind kind;
    std::vector<std::uint64_t> a, b;  // leaves
    Trees(DigestKind digest_kind, std::size_t leaves, std::uint64_t seed) : kind(digest_kind) {
        std::mt19937_64 random(seed);
        a.resize(leaves * node_words(kind));
        for (auto& w : a)
            w = random() % kPrime;
        b = a;
    }
    void change(std::size_t leaf, std::size_t word = 0) {
        auto& w = b[leaf * node_words(kind) + word];
        w = (w + 1) % kPrime;
    }
    [[nodiscard]] std::uint64_t leaves() const { return a.size() / node_words(kind); }
    [[nodiscard]] std::vector<Range> brute_force() const {
        std::vector<Range> out;
        const std::size_t words = node_words(kind);
        for (std::uint64_t i = 0; i < leaves(); ++i) {
            bool same = true;
            for (std::size_t w = 0; w < words; ++w)
                same = same && a[i * words + w] == b[i * words + w];
            if (same) continue;
            if (!out.empty() && out.back().end == i) {
                ++out.back().end;
            } else {
                out.push_back({i, i + 1});
            }
        }
        return out;
    }
    // The walk, checked against brute force.
    [[nodiscard]] WalkResult walk() const {
        const std::size_t words = node_words(kind);
        const auto nodes_a = build_tree(kind, 2, a);
        const auto nodes_b = build_tree(kind, 2, b);
        CheckedNodes source_a(nodes_a, words);
        CheckedNodes source_b(nodes_b, words);
        auto result = walk_trees({leaves()}, words, source_a, source_b);
        EXPECT_TRUE(result.ok());
        const auto expected = brute_force();
        EXPECT_EQ(result->chunks, expected) << leaves() << " leaves";
        std::uint64_t differing = 0;
        for (const Range& r : expected)
            differing += r.size();
        EXPECT_EQ(result->differing, differing);
        EXPECT_EQ(result->nodes_visited, source_a.nodes_read());
        EXPECT_EQ(result->nodes_visited, source_b.nodes_read());
        return *result.operator->();
    }
};

TEST(WalkTrees, EqualsBruteForceForEveryNumberOfLeaves) {
    std::mt19937_64 random(test_seed(1));
    for (const DigestKind kind : {DigestKind::linear, DigestKind::published}) {
        for (std::size_t leaves = 0; leaves <= 600; ++leaves) {
            Trees same(kind, leaves, leaves);
            static_cast<void>(same.walk());
            if (leaves == 0) continue;
            Trees first = same, last = same, some = same, all = same;
            first.change(0);
            last.change(leaves - 1, node_words(kind) - 1);
            for (std::size_t i = 0; i < leaves; ++i) {
                if (random() % 10 == 0) some.change(i, random() % node_words(kind));
                all.change(i);
            }
            for (const Trees* trees : {&first, &last, &some, &all})
                static_cast<void>(trees->walk());
            if (HasFailure()) return;
        }
    }
}

// Small trees, where the second-last level has leaves beside inner nodes: every single leaf is found.
TEST(WalkTrees, FindsEverySingleLeaf) {
    for (std::size_t leaves = 1; leaves <= 40; ++leaves) {
        for (std::size_t i = 0; i < leaves; ++i) {
            Trees trees(DigestKind::linear, leaves, leaves);
            trees.change(i);
            EXPECT_EQ(trees.walk().differing, 1U) << leaves << ", " << i;
        }
    }
}

TEST(WalkTrees, EqualsBruteForceForRandomSizesAndDensities) {
    std::mt19937_64 random(test_seed(2));
    for (int round = 0; round < 60; ++round) {
        const auto leaves = static_cast<std::size_t>(random() % 40000 + 1);
        Trees trees(round % 4 == 0 ? DigestKind::published : DigestKind::linear, leaves, random());
        const std::uint64_t share = 1ULL << (random() % 17);
        // In runs as well as one by one.
        for (std::size_t i = 0; i < leaves; ++i) {
            if (random() % share != 0) continue;
            const std::size_t run = random() % 3 == 0 ? random() % 100 : 1;
            for (std::size_t j = i; j < std::min(leaves, i + run); ++j)
                trees.change(j);
        }
        static_cast<void>(trees.walk());
        if (HasFailure()) return;
    }
}

// Only some leaves: what differs among these, and no node is read that has none of them below it.
TEST(WalkTrees, FindsWithinRangesWhatDiffersThere) {
    std::mt19937_64 random(test_seed(5));
    for (int round = 0; round < 200; ++round) {
        const auto leaves = static_cast<std::uint64_t>(random() % (round % 2 == 0 ? 40 : 20000) + 1);
        Trees trees(round % 4 == 0 ? DigestKind::published : DigestKind::linear, leaves, random());
        const std::uint64_t share = 1ULL << (random() % 12);
        for (std::uint64_t i = 0; i < leaves; ++i) {
            if (random() % share == 0) trees.change(i);
        }
        std::vector<Range> within;
        for (std::uint64_t at = random() % leaves; at < leaves;) {
            const std::uint64_t end = std::min(leaves, at + 1 + random() % (random() % 2 == 0 ? 3 : 4000));
            within.push_back({at, end});
            at = end + random() % (random() % 2 == 0 ? 3 : 4000);
        }
        std::vector<Range> expected;
        std::uint64_t differing = 0;
        for (const Range& all : trees.brute_force()) {
            for (const Range& r : within) {
                const Range part{std::max(all.begin, r.begin), std::min(all.end, r.end)};
                if (part.begin >= part.end) continue;
                differing += part.size();
                if (!expected.empty() && expected.back().end == part.begin) {
                    expected.back().end = part.end;
                } else {
                    expected.push_back(part);
                }
            }
        }
        const std::size_t words = node_words(trees.kind);
        const auto nodes_a = build_tree(trees.kind, 2, trees.a);
        const auto nodes_b = build_tree(trees.kind, 2, trees.b);
        CheckedNodes source_a(nodes_a, words);
        CheckedNodes source_b(nodes_b, words);
        const auto walked = walk_trees({leaves}, words, source_a, source_b, within);
        ASSERT_TRUE(walked.ok());
        ASSERT_EQ(walked->chunks, expected) << leaves << " leaves";
        ASSERT_EQ(walked->differing, differing);
        std::uint64_t above =
            0;  // nodes of a level above one leaf of each range, and the leaves of the range
        for (const Range& r : within)
            above += 2 * r.size() + 2 * 64;
        ASSERT_LE(source_a.nodes_read(), above);
    }
}

TEST(WalkTrees, VisitsFewNodesWhereLittleDiffers) {
    constexpr std::size_t kLeaves = 300000;
    Trees trees(DigestKind::linear, kLeaves, 3);
    EXPECT_LE(trees.walk().nodes_visited, 512U);  // equal: one small level
    constexpr std::uint64_t kChanged = 10;
    for (std::size_t i = 0; i < kChanged; ++i)
        trees.change(i * (kLeaves / kChanged) + 7);
    // Below the first level, eight nodes in each third level for every leaf that differs.
    EXPECT_LE(trees.walk().nodes_visited, 512 + kChanged * 8 * 4);
}

TEST(WalkTrees, VisitsNoMoreThanTheLeavesAndOneLevelWhereAllDiffers) {
    constexpr std::size_t kLeaves = 50000;
    Trees trees(DigestKind::linear, kLeaves, 4);
    for (std::size_t i = 0; i < kLeaves; ++i)
        trees.change(i);
    EXPECT_LE(trees.walk().nodes_visited, kLeaves + 512);
}

class FailingNodes final : public NodeSource {
   public:
    Result<> read(std::span<const Range>, std::vector<std::uint64_t>&) override {
        return Error{ErrorCode::io, "gone"};
    }
};
class ShortNodes final : public NodeSource {
   public:
    Result<> read(std::span<const Range>, std::vector<std::uint64_t>&) override { return success(); }
};

TEST(WalkTrees, PassesErrorsOn) {
    const std::vector<std::uint64_t> leaves(9, 1);
    const auto nodes = build_tree(DigestKind::linear, 1, leaves);
    MemoryNodes good(nodes, 1);
    FailingNodes failing;
    ShortNodes shorter;
    EXPECT_EQ(walk_trees({9}, 1, good, failing).error().code, ErrorCode::io);
    EXPECT_EQ(walk_trees({9}, 1, failing, good).error().code, ErrorCode::io);
    EXPECT_EQ(walk_trees({9}, 1, good, shorter).error().code, ErrorCode::internal);
}

}  // namespace
}  // namespace twinrun
