// Sessions that keep their steps as a record, and whose states are known at every step.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture/session.hpp"
#include "history/check_record.hpp"
#include "history/restore.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun::testing {

// What element i of a field is at a step, captured for the `attempt`th time: most stay as they were for some steps.
inline double changing_value_at(std::int64_t step, int rank, std::size_t field, std::size_t i,
                                int attempt = 0) {
    const auto block = static_cast<std::int64_t>(i / 64);
    const std::int64_t since = step - ((step - block) & 7);
    return static_cast<double>(since) + 1e3 * rank + 1e-3 * static_cast<double>(field) +
           1e-9 * static_cast<double>(i % 977) + 0.25 * attempt;
}

// Items of the fields of most states.
inline const std::vector<std::size_t> kRecordItems{1, 100, 0, 3000};

struct ChangingState : DoubleFields {
    using DoubleFields::DoubleFields;
    void become(std::int64_t step, int rank = 0, int attempt = 0) {
        fill([&](std::size_t f, std::size_t i) { return changing_value_at(step, rank, f, i, attempt); });
    }
    [[nodiscard]] bool is(std::int64_t step, int rank = 0, int attempt = 0) const {
        return hold(
            [&](std::size_t f, std::size_t i) { return changing_value_at(step, rank, f, i, attempt); });
    }
};

class RecordSession : public ::testing::Test {
   protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        folder_ =
            quick_folder() / ("twinrun_record_" + std::string(info->name()) + "_" + std::to_string(getpid()));
        again();
        run_ = (folder_ / "run").string();
        local_ = (folder_ / "local").string();
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    void again() const {
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
    }

    static SessionSettings settings(RecordMethod method = RecordMethod::runs) {
        SessionSettings s;
        s.history.tolerance.atol = 1e-6;
        s.memory_bytes = 16 << 20;
        s.threads = 2;
        s.record = method;
        return s;
    }
    Result<std::unique_ptr<Session>> open(SessionSettings s, FileSystem& system = unsynced_file_system()) {
        return Session::open(system, comm_, run_, std::move(s));
    }
    static std::int64_t capture(Session& run, ChangingState& state, std::int64_t step, int rank = 0,
                                int attempt = 0) {
        state.become(step, rank, attempt);
        const auto report = run.capture_fields(step, state.list());
        EXPECT_TRUE(report) << report.error().message;
        return report ? static_cast<std::int64_t>(report->lost.size()) : 1;
    }
    static void close_whole(Session& run) {
        const auto lost = run.close();
        ASSERT_TRUE(lost) << lost.error().message;
        for (const LostStep& step : *lost)
            ADD_FAILURE() << step.step << ": " << step.error.message;
    }
    // Steps that are committed: each comes back bit for bit, and nothing else that the record has is wrong. attempts: which
    // one at a step it must be, where it is not the first.
    static std::vector<std::int64_t> check(const std::string& path, const std::vector<std::size_t>& sizes,
                                           const std::map<std::int64_t, int>& attempts = {}) {
        std::vector<std::int64_t> steps;
        const auto history = History::open(path);
        EXPECT_TRUE(history) << history.error().message;
        if (!history) return steps;
        for (const HistoryStep& step : history->steps) {
            steps.push_back(step.step);
            const int attempt = attempts.contains(step.step) ? attempts.at(step.step) : 0;
            for (const RankFiles& r : step.ranks) {
                EXPECT_NE(r.difference, kNoBase);
                ChangingState state(sizes);
                Journal journal;
                journal.steps.put(step.step, {step.folder, r});
                const auto restored = restore_step({{path, journal}}, step.step, state.list());
                EXPECT_TRUE(restored) << restored.error().message;
                EXPECT_TRUE(!restored || state.is(step.step, static_cast<int>(r.rank), attempt))
                    << "step " << step.step;
            }
        }
        for (std::uint32_t rank = 0; rank < history->ranks; ++rank) {
            const auto problems = check_record(path, rank, 1);
            EXPECT_TRUE(problems) << problems.error().message;
            if (!problems) continue;
            for (const RecordProblem& problem : *problems)
                ADD_FAILURE() << problem.what;
        }
        return steps;
    }
    static std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
        std::vector<std::int64_t> steps;
        for (std::int64_t step = begin; step < end; ++step)
            steps.push_back(step);
        return steps;
    }
    static std::uint64_t differences_bytes(const std::string& path) {
        std::uint64_t bytes = 0;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
            bytes += entry.path().extension() == ".twr" ? entry.file_size() : 0;
        return bytes;
    }

    SelfComm comm_;
    std::filesystem::path folder_;
    std::string run_;
    std::string local_;
};

}  // namespace twinrun::testing
