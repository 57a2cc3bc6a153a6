#include "capture/step_set.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <set>

namespace twinrun {
namespace {

TEST(StepSet, HasWhatWasPutThere) {
    StepSet steps;
    std::set<std::int64_t> expected;
    std::mt19937 random(2);
    for (int i = 0; i < 3000; ++i) {
        const std::int64_t step = static_cast<std::int64_t>(random() % 200) - 100;
        if (random() % 3 == 0) {
            steps.erase(step);
            expected.erase(step);
        } else {
            steps.insert(step);
            expected.insert(step);
        }
    }
    for (std::int64_t step = -110; step < 110; ++step)
        EXPECT_EQ(steps.contains(step), expected.contains(step)) << step;
}

TEST(StepSet, TakesOthersInAnyOrder) {
    StepSet steps;
    steps.insert(1);
    steps.assign(std::array<std::int64_t, 4>{9, 3, 9, 5});
    for (std::int64_t step = 0; step < 11; ++step)
        EXPECT_EQ(steps.contains(step), step == 3 || step == 5 || step == 9) << step;
    steps.erase(5);
    EXPECT_FALSE(steps.contains(5));
}

}  // namespace
}  // namespace twinrun
