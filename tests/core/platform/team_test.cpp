#include "platform/team.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace twinrun {
namespace {

TEST(Team, EachWorkerWorksOnceARound) {
    for (const int size : {1, 2, 5, 16}) {
        Team team(size);
        EXPECT_EQ(team.size(), size);
        for (int round = 0; round < 100; ++round) {
            std::vector<std::atomic<int>> times(static_cast<std::size_t>(size));
            int written[16] = {};
            team.run([&](int worker) {
                ++times[static_cast<std::size_t>(worker)];
                written[worker] = round + 1;
            });
            ASSERT_LE(team.size(), size);
            for (int worker = 0; worker < size; ++worker) {
                const bool there = worker < team.size();
                ASSERT_EQ(times[static_cast<std::size_t>(worker)], there ? 1 : 0);
                ASSERT_EQ(written[worker], there ? round + 1 : 0);
            }
        }
    }
}

TEST(Team, WorksThatManyTeamsDoAtOnce) {
    std::vector<std::jthread> callers;
    std::atomic<int> sum{0};
    std::atomic<int> expected{0};
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&] {
            Team team(3);
            for (int round = 0; round < 50; ++round) {
                team.run([&](int) { ++sum; });
                expected += team.size();
            }
        });
    }
    callers.clear();
    EXPECT_EQ(sum, expected);
}

}  // namespace
}  // namespace twinrun
