// Sessions around which something goes wrong.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture/session.hpp"
#include "history/restore.hpp"
#include "support/session.hpp"
#include "support/test_folder.hpp"

namespace twinrun::testing {

class SessionMishaps : public FolderTest {
   protected:
    void SetUp() override {
        run_ = (folder_ / "run").string();
        local_ = (folder_ / "local").string();
    }
    static SessionSettings settings() {
        SessionSettings s;
        s.history.tolerance.atol = 1e-6;
        s.memory_bytes = 16 << 20;
        s.threads = 2;
        return s;
    }
    Result<std::unique_ptr<Session>> open(SessionSettings s) {
        return Session::open(posix_file_system(), comm_, run_, std::move(s));
    }
    // One field, all of whose items are the step's number.
    static CapturedField field(std::vector<double>& values, std::int64_t step) {
        std::fill(values.begin(), values.end(), static_cast<double>(step));
        return captured("x", values);
    }
    // Committed steps; each reads back.
    static std::vector<std::int64_t> check(const std::string& path) {
        std::vector<std::int64_t> steps;
        const auto history = History::open(path);
        EXPECT_TRUE(history) << history.error().message;
        if (!history) return steps;
        for (const HistoryStep& step : history->steps) {
            steps.push_back(step.step);
            for (const RankFiles& r : step.ranks) {
                const auto metadata =
                    MetadataFile::open((std::filesystem::path(path) / step.folder / r.metadata).string());
                EXPECT_TRUE(metadata) << metadata.error().message;
                if (!metadata || r.data.empty()) continue;
                std::vector<double> values((*metadata)->directory().fields[0].items());
                Journal journal;
                journal.steps.put(step.step, {step.folder, r});
                const auto restored = restore_step({{path, journal}}, step.step, {field(values, -1)});
                EXPECT_TRUE(restored) << restored.error().message;
                for (const double value : values) {
                    if (value != static_cast<double>(step.step)) {
                        ADD_FAILURE() << "step " << step.step << " holds " << value;
                        break;
                    }
                }
            }
        }
        return steps;
    }

    SelfComm comm_;
    std::string run_;
    std::string local_;
};

}  // namespace twinrun::testing
