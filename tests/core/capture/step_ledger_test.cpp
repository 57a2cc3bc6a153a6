#include "capture/step_ledger.hpp"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace twinrun {
namespace {

const Error kFull{ErrorCode::no_space,
                  "the storage is full, and this text is longer than a string's own buffer"};

std::vector<std::int64_t> steps_of(const std::vector<LostStep>& lost) {
    std::vector<std::int64_t> steps;
    for (const LostStep& one : lost)
        steps.push_back(one.step);
    return steps;
}

TEST(StepLedger, AStepIsTakenUntilItIsLost) {
    StepLedger ledger;
    EXPECT_FALSE(ledger.has(1));
    ledger.begin(1);
    ledger.begin(2);
    EXPECT_TRUE(ledger.has(1));
    ledger.settle(1, nullptr, false);
    ledger.settle(2, &kFull, false);
    EXPECT_TRUE(ledger.has(1));
    EXPECT_FALSE(ledger.has(2));
    EXPECT_EQ(ledger.counts().committed, 1U);
    EXPECT_EQ(ledger.counts().lost, 1U);
}

TEST(StepLedger, EachLostStepIsReportedOnce) {
    StepLedger ledger;
    for (const std::int64_t step : {1, 2, 3})
        ledger.begin(step);
    ledger.settle(2, &kFull, false);
    ledger.settle(1, &kFull, true);  // capture() returned this one
    const std::vector<LostStep> lost = ledger.take_lost();
    ASSERT_EQ(steps_of(lost), std::vector<std::int64_t>{2});
    EXPECT_EQ(lost[0].error.code, kFull.code);
    EXPECT_EQ(lost[0].error.message, kFull.message);
    EXPECT_TRUE(ledger.take_lost().empty());
    EXPECT_EQ(ledger.counts().lost, 2U);
}

TEST(StepLedger, WhatACallCouldNotReportComesFirstInTheNext) {
    StepLedger ledger;
    for (const std::int64_t step : {1, 2, 3})
        ledger.begin(step);
    ledger.settle(1, &kFull, false);
    ledger.settle(2, &kFull, false);
    const std::vector<LostStep> lost = ledger.take_lost();
    ledger.settle(3, &kFull, false);
    ledger.put_back(lost);
    EXPECT_EQ(steps_of(ledger.take_lost()), (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(StepLedger, StepsOfEarlierRunsCountOnlyIfAllRanksHaveThem) {
    StepLedger ledger;
    for (const std::int64_t step : {1, 2, 3})
        ledger.add_earlier(step);
    EXPECT_TRUE(ledger.has(3));
    ledger.keep_only(std::array<std::int64_t, 2>{1, 4});
    EXPECT_TRUE(ledger.has(1));
    EXPECT_FALSE(ledger.has(3));
    EXPECT_TRUE(ledger.has(4));
    EXPECT_EQ(ledger.counts().committed, 0U);
}

TEST(StepLedger, ThreadsSettleSteps) {
    constexpr std::int64_t kSteps = 2000;
    StepLedger ledger;
    std::size_t reported = 0;
    for (std::int64_t step = 0; step < kSteps; ++step)
        ledger.begin(step);
    std::vector<std::thread> threads;
    for (std::int64_t t = 0; t < 4; ++t) {
        threads.emplace_back([&ledger, t] {
            for (std::int64_t step = t; step < kSteps; step += 4)
                ledger.settle(step, step % 3 == 0 ? &kFull : nullptr, false);
        });
    }
    for (int i = 0; i < 50; ++i)
        reported += ledger.take_lost().size();
    for (std::thread& thread : threads)
        thread.join();
    reported += ledger.take_lost().size();
    EXPECT_EQ(reported, ledger.counts().lost);
    EXPECT_EQ(ledger.counts().lost, (kSteps + 2) / 3);
    EXPECT_EQ(ledger.counts().committed + ledger.counts().lost, kSteps);
}

}  // namespace
}  // namespace twinrun
