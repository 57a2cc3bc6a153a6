#include "history/rank_steps.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "history/names.hpp"

namespace twinrun {
namespace {

RankStep plain(std::int64_t step, std::uint32_t attempt = 0) {
    RankStep made;
    made.folder = step_folder(step, attempt);
    made.files.rank = 3;
    made.files.data = "rank-00003.data";
    made.files.data_bytes = static_cast<std::uint64_t>(step) + 7;
    made.files.metadata = "rank-00003.twm";
    made.files.metadata_bytes = 100;
    made.files.header_checksum = ~static_cast<std::uint64_t>(step);
    made.files.blocked_seconds = 0.25;
    return made;
}

// Each has a member that most entries do not have.
RankStep other(std::int64_t step, int which) {
    RankStep made = plain(step);
    switch (which) {
        case 0: made.folder = "another name"; break;
        case 1: made.folder = step_folder(step + 1, 0); break;
        case 2: made.files.difference = 5; break;
        case 3: made.files.full_bytes = 9; break;
        case 4: made.files.shared = true; break;
        case 5: made.files.offset = 4096; break;
        case 6: made.files.file_bytes = 8192; break;
        case 7: made.files.divergence = "x"; break;
        case 8: made.files.difference_checksum = 0; break;
        default: made.files.data = "file-" + std::to_string(which); break;
    }
    return made;
}

void expect_same(const RankSteps& steps, const std::map<std::int64_t, RankStep>& expected) {
    ASSERT_EQ(steps.size(), expected.size());
    auto at = expected.begin();
    for (const auto& [step, entry] : steps) {
        EXPECT_EQ(step, at->first);
        EXPECT_EQ(entry, at->second) << step;
        ++at;
    }
    for (const auto& [step, entry] : expected) {
        EXPECT_EQ(steps.at(step), entry);
        EXPECT_TRUE(steps.has(step, entry.folder));
        EXPECT_FALSE(steps.has(step, entry.folder + "0"));
        EXPECT_TRUE(steps.names_folder(entry.folder));
    }
    if (!expected.empty()) {
        EXPECT_EQ(steps.last().first, expected.rbegin()->first);
        EXPECT_EQ(steps.last().second, expected.rbegin()->second);
    }
}

TEST(RankSteps, AreWhatWasPutThere) {
    RankSteps steps;
    std::map<std::int64_t, RankStep> expected;
    std::mt19937 random(1);
    for (int i = 0; i < 2000; ++i) {
        const std::int64_t step = random() % 300;
        const auto what = random() % 60;
        if (what == 59) {
            steps.erase(step);
            expected.erase(step);
        } else {
            const RankStep entry = what < 40 ? plain(step, static_cast<std::uint32_t>(what % 3))
                                             : other(step, static_cast<int>(what) - 40);
            steps.put(step, entry);
            expected[step] = entry;
        }
        if (i % 100 == 0) expect_same(steps, expected);
    }
    expect_same(steps, expected);
    EXPECT_FALSE(steps.contains(300));
    EXPECT_EQ(steps.find(-1), steps.end());
    EXPECT_FALSE(steps.names_folder(step_folder(300, 0)));
    EXPECT_THROW(static_cast<void>(steps.at(300)), std::out_of_range);
}

TEST(RankSteps, AreEqualHoweverTheyCameAbout) {
    RankSteps a, b;
    for (std::int64_t step = 0; step < 40; ++step) {
        a.put(step, other(step, static_cast<int>(step)));
        b.put(39 - step, other(39 - step, static_cast<int>(39 - step)));
    }
    EXPECT_EQ(a, b);
    b.put(7, plain(7));
    EXPECT_FALSE(a == b);
    b.erase(7);
    EXPECT_FALSE(a == b);
}

TEST(RankSteps, AnIteratorGoesOnFromWhereItWasFound) {
    RankSteps steps;
    for (std::int64_t step = 0; step < 9; ++step)
        steps.put(step, step % 3 == 0 ? other(step, 2) : plain(step));
    std::int64_t next = 4;
    for (auto at = steps.find(4); at != steps.end(); at++)
        EXPECT_EQ(at->first, next++);
    EXPECT_EQ(next, 9);
}

}  // namespace
}  // namespace twinrun
