// A process is killed at any operation, the next one at any of its own, and the third goes on: nothing committed is lost,
// and nothing is left of what was not.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "history/history.hpp"
#include "history/restore.hpp"
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
using Steps = std::vector<std::int64_t>;

struct Case {
    const char* name;
    std::function<void(SessionSettings&)> set;  // of the processes that are killed
    std::int64_t step;                          // that they capture
    Steps kept;                                 // steps that are there all the time
    Steps after;
};

SessionSettings quiet() {
    SessionSettings settings;
    settings.background = false;
    settings.threads = 1;
    settings.existing = Existing::append;
    settings.replace_steps = true;  // the process before may have got so far
    return settings;
}

std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

class KilledTwice : public ::testing::TestWithParam<Case> {
   protected:
    // Opens the run as the case says, and captures a step; errors end it.
    [[nodiscard]] Result<> go_on(FileSystem& system, SessionSettings settings, std::int64_t step) {
        TWR_TRY(const auto run, testing::open_run(system, run_, std::move(settings)));
        std::fill(values_.begin(), values_.end(), static_cast<double>(step));
        TWR_CHECK(run->capture_fields(step, {testing::captured("x", values_)}));
        return success();
    }
    // Returns the number of operations; killed at `at`, or at none.
    std::size_t killed(std::size_t at) {
        const Case& one = GetParam();
        SessionSettings settings = quiet();
        one.set(settings);
        FaultyFileSystem system(unsynced_file_system());
        system.inject(testing::killed_at(at));
        const auto done = go_on(system, std::move(settings), one.step);
        // What a step has no further use for is removed without a word.
        if (at == 0) {
            EXPECT_TRUE(done) << done.error().message;
        }
        return system.operations();
    }
    void start_again() {
        fs::remove_all(run_);
        fs::copy(begun_, run_, fs::copy_options::recursive);
    }
    // The steps, each of which gives its values back. Changes nothing.
    Steps steps() {
        Steps numbers;
        const auto history = History::open(run_);
        EXPECT_TRUE(history) << history.error().message;
        const auto journal = read_rank_journal(run_, 0, 1);
        EXPECT_TRUE(journal) << journal.error().message;
        if (!history || !journal) return numbers;
        for (const HistoryStep& step : history->steps) {
            numbers.push_back(step.step);
            if (step.ranks[0].data.empty()) continue;
            std::fill(values_.begin(), values_.end(), -1.0);
            const auto restored =
                restore_step({{run_, *journal}}, step.step, {testing::captured("x", values_)});
            EXPECT_TRUE(restored) << restored.error().message;
            EXPECT_EQ(values_, std::vector<double>(values_.size(), static_cast<double>(step.step)));
        }
        return numbers;
    }
    [[nodiscard]] std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::recursive_directory_iterator(run_)) {
            const std::string name = entry.path().filename().string();
            if (entry.is_regular_file() && !name.starts_with(".twinrun-")) names.push_back(name);
        }
        std::sort(names.begin(), names.end());
        return names;
    }

    void SetUp() override {
        for (const std::int64_t step : {1, 2}) {
            SessionSettings settings = quiet();
            GetParam().set(settings);
            // The first history is not what the others do to it.
            settings.existing = Existing::append;
            settings.keep = {};
            ASSERT_TRUE(go_on(unsynced_file_system(), settings, step));
        }
        fs::copy(run_, begun_, fs::copy_options::recursive);
    }

    QuickFolder folder_;
    std::string run_ = folder_ / "run";
    std::string begun_ = folder_ / "begun";
    std::vector<double> values_ = std::vector<double>(700);
};

TEST_P(KilledTwice, GoesOn) {
    const Case& one = GetParam();
    SessionSettings asked;
    one.set(asked);
    const bool recorded = asked.record.has_value();
    const auto end = [&] {
        killed(0);
        SessionSettings settings = quiet();
        one.set(settings);
        settings.existing = Existing::append;
        const auto done = go_on(unsynced_file_system(), settings, 9);
        ASSERT_TRUE(done) << done.error().message;
    };
    const std::size_t operations = killed(0);
    ASSERT_GT(operations, 10U);
    end();
    EXPECT_EQ(steps(), one.after);
    const auto clean = files();
    for (std::size_t first = 1; first <= operations; ++first) {
        for (std::size_t second = 1;; ++second) {
            SCOPED_TRACE("killed at operation " + std::to_string(first) + ", then at " +
                         std::to_string(second));
            start_again();
            killed(first);
            const bool whole = killed(second) < second;
            const Steps between = steps();
            for (const std::int64_t step : one.kept)
                ASSERT_TRUE(std::binary_search(between.begin(), between.end(), step)) << step;
            end();
            ASSERT_EQ(steps(), one.after);
            // Differences of attempts that were replaced stay: others may need them.
            if (!recorded) {
                ASSERT_EQ(files(), clean);
            }
            if (whole) break;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Actions, KilledTwice,
    ::testing::Values(
        Case{"appends", [](SessionSettings&) {}, 3, {1, 2}, {1, 2, 3, 9}},
        Case{"captures_again", [](SessionSettings&) {}, 2, {1, 2}, {1, 2, 9}},
        Case{"drops", [](SessionSettings& s) { s.keep.steps = 2; }, 3, {}, {3, 9}},
        Case{"drops_data", [](SessionSettings& s) { s.keep.data_steps = 1; }, 3, {1, 2}, {1, 2, 3, 9}},
        Case{"replaces", [](SessionSettings& s) { s.existing = Existing::replace; }, 2, {}, {2, 9}},
        Case{"records", [](SessionSettings& s) { s.record = RecordMethod::runs; }, 3, {1, 2}, {1, 2, 3, 9}}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace twinrun
