#include "aggregate/plan/overlap.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

std::optional<std::uint64_t> overlap_of(const std::vector<SetNumbers>& sets) {
    const auto looked = first_overlap(std::span<const SetNumbers>(sets));
    EXPECT_TRUE(looked);
    return looked ? *looked : std::nullopt;
}

TEST(Overlap, SaysWhetherAByteIsClaimedTwice) {
    std::mt19937_64 random(test_seed(1));
    const auto pick = [&](std::uint64_t low, std::uint64_t high) {
        return low + random() % (high - low + 1);
    };
    int with = 0;
    for (int round = 0; round < 20000; ++round) {
        std::vector<SetNumbers> sets;
        std::set<std::uint64_t> seen;
        bool twice = false;
        // Many of one stride, or few of any.
        const std::uint64_t one = pick(0, 2) == 0 ? 0 : pick(3, 14);
        for (std::uint64_t i = pick(0, one == 0 ? 4 : 6); i > 0; --i) {
            const std::uint64_t width = pick(1, one == 0 ? 4 : 3);
            const bool other = one == 0 || pick(0, 4) == 0;
            const SetNumbers set{pick(0, 40), width, pick(1, 6), other ? width + pick(0, 12) : one};
            for (std::uint64_t k = 0; k < set[2]; ++k) {
                for (std::uint64_t b = 0; b < width; ++b)
                    twice |= !seen.insert(set[0] + k * set[3] + b).second;
            }
            sets.push_back(set);
        }
        EXPECT_EQ(overlap_of(sets).has_value(), twice);
        with += twice ? 1 : 0;
    }
    EXPECT_GT(with, 4000);
    EXPECT_LT(with, 17000);
}

TEST(Overlap, NamesTheByte) {
    const std::vector<SetNumbers> sets{{0, 8, 100, 24}, {8, 8, 100, 24}, {804, 8, 1, 8}};
    EXPECT_EQ(overlap_of(sets), 804U);
    EXPECT_EQ(overlap_of({}), std::nullopt);
}

// Indices made on purpose: many sets are open at a time. What counts is how often a set is looked at.
struct Work {
    bool answered = false;
    std::uint64_t compared = 0;
};
Work work_of(const std::vector<SetNumbers>& sets) {
    Work work;
    const auto looked = first_overlap(std::span<const SetNumbers>(sets), &work.compared);
    work.answered = looked && !*looked;
    EXPECT_TRUE(looked || looked.error().code == ErrorCode::unsupported);
    return work;
}

TEST(Overlap, ManySetsSideBySideTakeFewLooks) {
    constexpr std::uint64_t kSets = 200000;
    std::vector<SetNumbers> sets;
    // One stride, all from the file's beginning to its end.
    for (std::uint64_t i = 0; i < kSets; ++i)
        sets.push_back({2 * i, 1, 1000, 2 * kSets});
    Work work = work_of(sets);
    EXPECT_TRUE(work.answered);
    EXPECT_LE(work.compared, 8 * kSets);
    // And as many of one item each between them.
    for (std::uint64_t i = 0; i < kSets; ++i)
        sets.push_back({2 * i + 1, 1, 1, 1});
    work = work_of(sets);
    EXPECT_TRUE(work.answered);
    EXPECT_LE(work.compared, 16 * kSets);
    // A long one that nothing is in, which all others follow.
    sets = {{0, 1, 2, 1 << 30}};
    for (std::uint64_t i = 0; i < kSets; ++i)
        sets.push_back({2 + 8 * i, 1, 2, 4});
    work = work_of(sets);
    EXPECT_TRUE(work.answered);
    EXPECT_LE(work.compared, 16 * kSets);
}

TEST(Overlap, TooManyDifferentStridesAreRefused) {
    constexpr std::uint64_t kSets = 20000;
    std::vector<SetNumbers> sets;
    for (std::uint64_t i = 0; i < kSets; ++i)
        sets.push_back({2 * i, 1, 2, (std::uint64_t{1} << 40) + 4 * kSets * i});
    const Work work = work_of(sets);
    EXPECT_FALSE(work.answered);
    EXPECT_LE(work.compared, kMostCompared + 32 * kSets + 16);
    // Two thousand are still looked at, each with each.
    sets.resize(2000);
    EXPECT_TRUE(work_of(sets).answered);
}

}  // namespace
}  // namespace twinrun
