#include "capture/agreement.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "history/names.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

using testing::ThreadsComm;

TEST(Agreement, AnErrorOfOneRankIsOneOfAll) {
    ThreadsComm::run(3, [](Comm& comm) {
        Agreement agreement(comm, false, {});
        const bool fails = comm.rank() == 1;
        const auto done = agreement.agree(fails ? Result<>(Error{ErrorCode::io, "this rank's"}) : success());
        ASSERT_FALSE(done.ok());
        EXPECT_EQ(done.error().code, fails ? ErrorCode::io : ErrorCode::other_rank);
        EXPECT_TRUE(agreement.agree(success()).ok());
    });
}

TEST(Agreement, TheHighestAttemptIsThatOfAll) {
    ThreadsComm::run(3, [](Comm& comm) {
        Agreement agreement(comm, false, {});
        std::uint32_t attempt = static_cast<std::uint32_t>(comm.rank()) * 2;
        ASSERT_TRUE(agreement.on_step(success(), 7, attempt).ok());
        EXPECT_EQ(attempt, 4U);
        attempt = 0;
        const auto other = agreement.on_step(success(), comm.rank() == 2 ? 8 : 7, attempt);
        ASSERT_FALSE(other.ok());
        EXPECT_EQ(other.error().code, ErrorCode::mismatch);
    });
}

// The rank with the smallest step is told another's, too.
TEST(Agreement, EachRankIsToldAnotherStepThanItsOwn) {
    for (const std::int64_t later : {99, 5}) {
        ThreadsComm::run(3, [&](Comm& comm) {
            Agreement agreement(comm, false, {});
            std::uint32_t attempt = 0;
            const std::int64_t own = comm.rank() == 0 ? 4 : later;
            const auto done = agreement.on_step(success(), own, attempt);
            ASSERT_FALSE(done.ok());
            EXPECT_EQ(done.error().message, "ranks capture different steps: here " + std::to_string(own) +
                                                ", elsewhere " + std::to_string(own == 4 ? later : 4));
        });
    }
}

// A step counts as committed everywhere when the last rank has committed it; one that a rank lost never does.
TEST(Agreement, StepsAreEverywhereWhenTheLastRankHasThem) {
    ThreadsComm::run(2, [](Comm& comm) {
        std::vector<std::int64_t> everywhere;
        Agreement agreement(comm, true, [&](std::int64_t step) { everywhere.push_back(step); });
        for (const std::int64_t step : {1, 2, 3}) {
            std::uint32_t attempt = 0;
            ASSERT_TRUE(agreement.on_step(success(), step, attempt).ok());
            agreement.add(step);
        }
        agreement.settled(1, false);
        if (comm.rank() == 0) agreement.settled(2, false);
        ASSERT_TRUE(agreement.exchange().ok());
        EXPECT_EQ(everywhere, (std::vector<std::int64_t>{1}));
        EXPECT_EQ(agreement.unresolved(), 2U);
        if (comm.rank() == 1) agreement.settled(2, true);
        agreement.settled(3, false);
        ASSERT_TRUE(agreement.exchange().ok());
        EXPECT_EQ(everywhere, (std::vector<std::int64_t>{1, 3}));
        EXPECT_EQ(agreement.unresolved(), 0U);
    });
}

// Where steps stay on the nodes, each rank says what it has of the steps of rank 0.
TEST(Agreement, CommonStepsAreThoseThatEveryRankHas) {
    ThreadsComm::run(2, [](Comm& comm) {
        Agreement agreement(comm, false, {});
        const auto entry = [](std::int64_t step, std::uint32_t attempt, bool data) {
            RankStep made{step_folder(step, attempt), {}};
            if (data) made.files.data = "data";
            return made;
        };
        RankSteps own;
        own.put(1, entry(1, 0, true));
        own.put(2, entry(2, comm.rank() == 0 ? 0 : 1, true));  // another attempt
        own.put(3, entry(3, 0, comm.rank() == 0));             // only one rank has data
        own.put(4 + comm.rank(), entry(4 + comm.rank(), 0, true));
        const auto steps = agreement.common_steps(
            true, true, [&] { return own; },
            []() -> Result<History> {
                return Error{ErrorCode::internal, "nobody reads the history"};
            });
        ASSERT_TRUE(steps.ok()) << steps.error().message;
        ASSERT_EQ(steps->size(), 2U);
        EXPECT_EQ((*steps)[0].step, 1);
        EXPECT_TRUE((*steps)[0].has_data);
        EXPECT_EQ((*steps)[1].step, 3);
        EXPECT_FALSE((*steps)[1].has_data);
    });
}

// Ranks with other settings would wait for each other for ever.
TEST(Agreement, SettingsThatDifferAreAnError) {
    ThreadsComm::run(2, [](Comm& comm) {
        Agreement agreement(comm, false, {});
        SessionSettings settings;
        bool ends_local = comm.rank() == 1;
        ASSERT_TRUE(agreement.on_settings(settings, true, ends_local, "run").ok());
        EXPECT_TRUE(ends_local);
        settings.stop_on_divergence = comm.rank() == 1;
        const auto differs = agreement.on_settings(settings, true, ends_local, "run");
        ASSERT_FALSE(differs.ok());
        EXPECT_EQ(differs.error().code, ErrorCode::mismatch);
    });
}

TEST(Agreement, OneRankAgreesWithItself) {
    SelfComm alone;
    Agreement agreement(alone, true, {});
    EXPECT_FALSE(agreement.several());
    std::uint32_t attempt = 3;
    EXPECT_TRUE(agreement.on_step(success(), 1, attempt).ok());
    EXPECT_EQ(attempt, 3U);
    agreement.add(1);
    EXPECT_EQ(agreement.unresolved(), 0U);
}

}  // namespace
}  // namespace twinrun
