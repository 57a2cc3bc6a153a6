// SPDX-License-Identifier: Apache-2.0
#include "haccio/partitions.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace haccio {
namespace {

std::uint64_t deepest(const std::vector<Partition>& partitions, std::uint64_t ranks) {
    std::uint64_t most = 0;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        const auto holding = std::count_if(partitions.begin(), partitions.end(),
                                           [&](const Partition& partition) { return partition.holds(rank); });
        most = std::max(most, static_cast<std::uint64_t>(holding));
    }
    return most;
}

TEST(Partitions, HaveTheirSizeAndSpanAllRanks) {
    for (std::uint64_t ranks = 1; ranks <= 20; ++ranks) {
        for (std::uint64_t count = 1; count <= 25; ++count) {
            for (std::uint64_t size = 0; size <= ranks; ++size) {
                const auto partitions = overlapping(ranks, count, size);
                ASSERT_EQ(partitions.size(), count);
                for (std::size_t i = 0; i < count; ++i) {
                    ASSERT_LT(partitions[i].begin, partitions[i].end);
                    ASSERT_LE(partitions[i].end, ranks);
                    if (size > 0) {
                        ASSERT_EQ(partitions[i].end - partitions[i].begin, size);
                    }
                    if (i > 0) {
                        ASSERT_LE(partitions[i - 1].begin, partitions[i].begin);
                    }
                }
                EXPECT_EQ(partitions.front().begin, 0u);
                if (count > 1 || size == 0) {
                    EXPECT_EQ(partitions.back().end, ranks);
                }
                // Left to itself, it leaves no rank out.
                for (std::uint64_t rank = 0; size == 0 && rank < ranks; ++rank)
                    EXPECT_TRUE(
                        std::any_of(partitions.begin(), partitions.end(),
                                    [&](const Partition& partition) { return partition.holds(rank); }));
            }
        }
    }
}

TEST(Partitions, RoundsAreDisjointAndAsFewAsCanBe) {
    for (std::uint64_t ranks = 1; ranks <= 20; ++ranks) {
        for (std::uint64_t count = 1; count <= 25; ++count) {
            for (std::uint64_t size = 1; size <= ranks; ++size) {
                const auto partitions = overlapping(ranks, count, size);
                const auto rounds = rounds_of(partitions);
                ASSERT_EQ(rounds.size(), count);
                for (std::size_t i = 0; i < count; ++i)
                    for (std::size_t j = 0; j < i; ++j)
                        ASSERT_TRUE(rounds[i] != rounds[j] || partitions[j].end <= partitions[i].begin);
                EXPECT_EQ(*std::max_element(rounds.begin(), rounds.end()) + 1, deepest(partitions, ranks));
            }
        }
    }
}

TEST(Partitions, DisjointOnesHoldEachRankOnce) {
    for (std::uint64_t ranks = 1; ranks <= 20; ++ranks) {
        for (std::uint64_t count = 1; count <= 25; ++count) {
            const auto partitions = disjoint(ranks, count);
            for (std::uint64_t rank = 0; rank < ranks; ++rank)
                EXPECT_EQ(std::count_if(partitions.begin(), partitions.end(),
                                        [&](const Partition& partition) { return partition.holds(rank); }),
                          1);
        }
    }
}

}  // namespace
}  // namespace haccio
