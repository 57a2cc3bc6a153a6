#include "aggregate/plan/overlap.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

TEST(Overlap, SaysWhetherAByteIsClaimedTwice) {
    std::mt19937_64 random(test_seed(1));
    const auto pick = [&](std::uint64_t low, std::uint64_t high) {
        return low + random() % (high - low + 1);
    };
    int with = 0;
    for (int round = 0; round < 3000; ++round) {
        std::vector<SetNumbers> sets;
        std::set<std::uint64_t> seen;
        bool twice = false;
        for (std::uint64_t i = pick(0, 4); i > 0; --i) {
            const std::uint64_t width = pick(1, 4);
            const SetNumbers set{pick(0, 40), width, pick(1, 6), width + pick(0, 12)};
            for (std::uint64_t k = 0; k < set[2]; ++k) {
                for (std::uint64_t b = 0; b < width; ++b)
                    twice |= !seen.insert(set[0] + k * set[3] + b).second;
            }
            sets.push_back(set);
        }
        EXPECT_EQ(first_overlap(sets).has_value(), twice);
        with += twice ? 1 : 0;
    }
    EXPECT_GT(with, 500);
    EXPECT_LT(with, 2500);
}

TEST(Overlap, NamesTheByte) {
    const std::vector<SetNumbers> sets{{0, 8, 100, 24}, {8, 8, 100, 24}, {804, 8, 1, 8}};
    EXPECT_EQ(first_overlap(sets), 804U);
    EXPECT_EQ(first_overlap(std::vector<SetNumbers>{}), std::nullopt);
}

}  // namespace
}  // namespace twinrun
