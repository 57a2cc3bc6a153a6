#include "capture/retention.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace twinrun {
namespace {

using StepList = std::vector<std::int64_t>;

// What leaves where only so many of the newest steps stay.
StepList leaving(RetainedSteps& steps, std::uint64_t keep) { return steps.take_leaving({keep, 0}).steps; }

TEST(Retention, TheOldestLeaveOnce) {
    RetainedSteps steps;
    for (const std::int64_t step : {10, 20, 30, 40})
        steps.add(step);
    EXPECT_EQ(leaving(steps, 0), StepList{});
    EXPECT_EQ(leaving(steps, 4), StepList{});
    EXPECT_EQ(leaving(steps, 2), (StepList{10, 20}));
    EXPECT_EQ(leaving(steps, 2), StepList{});
    steps.add(50);
    EXPECT_EQ(leaving(steps, 2), (StepList{30}));
}

TEST(Retention, DataLeavesOnceAndBeforeItsStep) {
    RetainedSteps steps;
    for (const std::int64_t step : {1, 2, 3, 4, 5})
        steps.add(step);
    RetainedSteps::Leaving first = steps.take_leaving({4, 2});
    EXPECT_EQ(first.steps, (StepList{1}));
    EXPECT_EQ(first.data, (StepList{2, 3}));
    steps.add(6);
    RetainedSteps::Leaving next = steps.take_leaving({4, 2});
    EXPECT_EQ(next.steps, (StepList{2}));
    EXPECT_EQ(next.data, (StepList{4}));
    // Steps without data leave: the counts of the others stay.
    steps.forget(3);
    EXPECT_EQ(steps.take_leaving({0, 1}).data, (StepList{5}));
}

TEST(Retention, ACapturedAgainStepIsTheNewest) {
    RetainedSteps steps;
    for (const std::int64_t step : {1, 2, 3})
        steps.add(step);
    steps.add(1);
    EXPECT_EQ(leaving(steps, 1), (StepList{2, 3}));
}

TEST(Retention, AStepThatComesLateTakesItsPlace) {
    RetainedSteps steps;
    for (const std::int64_t step : {10, 20, 30})
        steps.add(step);
    EXPECT_EQ(steps.take_leaving({0, 1}).data, (StepList{10, 20}));
    steps.insert(15);
    // It still has its data, and so what follows is looked at again.
    EXPECT_EQ(steps.take_leaving({0, 1}).data, (StepList{15, 20}));
    EXPECT_EQ(leaving(steps, 1), (StepList{10, 15, 20}));
}

// A step counts when all that were captured before it are settled.
TEST(Retention, StepsCountInTheOrderOfCapture) {
    RetainedSteps steps;
    steps.begin(1, "a");
    steps.begin(2, "b");
    steps.begin(3, "c");
    steps.settle(3, "c", true);
    EXPECT_EQ(leaving(steps, 1), StepList{});
    steps.settle(1, "a", true);
    EXPECT_EQ(leaving(steps, 1), StepList{});
    steps.settle(2, "b", false);  // lost
    EXPECT_EQ(leaving(steps, 1), (StepList{1}));
}

TEST(Retention, OnlyTheNewestAttemptCounts) {
    RetainedSteps steps;
    steps.add(1);
    steps.add(2);
    steps.begin(1, "again");
    steps.begin(1, "once more");
    steps.settle(1, "again", true);
    EXPECT_EQ(leaving(steps, 1), StepList{});  // only 2 counts
    steps.settle(1, "", true);
    EXPECT_EQ(leaving(steps, 1), (StepList{2}));
    EXPECT_EQ(leaving(steps, 1), StepList{});
}

}  // namespace
}  // namespace twinrun
