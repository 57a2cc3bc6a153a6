// Steps are brought from one tier to the next, however often the process that does it is killed.
#include "history/flush.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "platform/comm.hpp"
#include "support/faulty_file_system.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::FaultyFileSystem;
using testing::QuickFolder;
using testing::unsynced_file_system;

class FlushTest : public ::testing::Test {
   protected:
    // A run whose two steps are on the node-local tier only.
    void SetUp() override {
        SessionSettings settings;
        settings.memory_bytes = 16 << 20;
        settings.threads = 1;
        settings.local = local_;
        settings.flusher = Flusher::none;
        SelfComm comm;
        auto run = Session::open(unsynced_file_system(), comm, run_, settings);
        ASSERT_TRUE(run) << run.error().message;
        std::vector<double> values(500);
        for (const std::int64_t step : {1, 2}) {
            std::fill(values.begin(), values.end(), static_cast<double>(step));
            ASSERT_TRUE((*run)->capture_fields(step, {testing::captured("x", values)}));
        }
        ASSERT_TRUE((*run)->close());
        fs::copy(run_, begun_, fs::copy_options::recursive);
    }
    void start_again() const {
        fs::remove_all(run_);
        fs::copy(begun_, run_, fs::copy_options::recursive);
    }
    // Flushes, and is killed at the operation `at` (0: never). Returns how many operations there were.
    std::size_t flush(std::size_t at) const {
        FaultyFileSystem system(unsynced_file_system());
        system.inject(testing::killed_at(at));
        const auto done = flush_folder(system, local_path(local_, 0), run_,
                                       [&](std::int64_t, const Error& e) { EXPECT_NE(at, 0U) << e.message; });
        if (at == 0) {
            EXPECT_TRUE(done) << done.error().message;
        }
        return system.operations();
    }
    [[nodiscard]] std::vector<std::int64_t> steps() const {
        std::vector<std::int64_t> numbers;
        const auto history = History::open(run_);
        EXPECT_TRUE(history) << history.error().message;
        if (!history) return numbers;
        for (const HistoryStep& step : history->steps)
            numbers.push_back(step.step);
        return numbers;
    }

    QuickFolder folder_;
    std::string run_ = folder_ / "run";
    std::string local_ = folder_ / "local";
    std::string begun_ = folder_ / "begun";
};

// The second process may be killed while it clears away what the first one left.
TEST_F(FlushTest, WhatWasKilledTwiceIsFinishedByTheThird) {
    const std::size_t operations = flush(0);
    ASSERT_GT(operations, 20U);
    EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
    for (std::size_t first = 1; first <= operations; ++first) {
        for (std::size_t second = 1;; ++second) {
            SCOPED_TRACE("killed at operation " + std::to_string(first) + ", then at " +
                         std::to_string(second));
            start_again();
            flush(first);
            const bool whole = flush(second) < second;
            flush(0);
            ASSERT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
            if (whole) break;
        }
    }
}

// Somebody's files in a folder with a step's name stay, and so does the step on its tier.
TEST_F(FlushTest, AFolderOfOthersIsNotUsed) {
    const fs::path taken =
        fs::path(run_) / LocalHistory::read(local_path(local_, 0))->journal.steps.at(1).folder;
    fs::create_directory(taken);
    fs::create_directory(taken / "mine");
    std::size_t lost = 0;
    const auto done = flush_folder(
        unsynced_file_system(), local_path(local_, 0), run_, [&](std::int64_t step, const Error& e) {
            EXPECT_EQ(step, 1);
            EXPECT_NE(e.message.find("did not make it"), std::string::npos) << e.message;
            ++lost;
        });
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(lost, 1U);
    EXPECT_EQ(steps(), std::vector<std::int64_t>{2});
    EXPECT_EQ(std::distance(fs::directory_iterator(taken), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace twinrun
