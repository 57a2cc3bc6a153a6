#include "capture/setup.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "capture/staging.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class SetupTest : public testing::FolderTest {
   protected:
    void SetUp() override { place_.path = place_.folder = real_path((folder_ / "run").string()); }

    // The error of these settings; empty: none.
    std::string error_of(const std::function<void(SessionSettings&)>& change) {
        SessionSettings settings;
        change(settings);
        const auto done = set_up(posix_file_system(), place_, settings);
        return done ? "" : done.error().message;
    }
    RunPlace place_;
};

TEST_F(SetupTest, LimitsOfNumbers) {
    EXPECT_EQ(error_of([](SessionSettings&) {}), "");
    EXPECT_EQ(error_of([](SessionSettings& s) { s.memory_bytes = (16 << 20) - 1; }),
              "memory: at least 16 MiB, or 0 for none");
    EXPECT_EQ(error_of([](SessionSettings& s) { s.memory_bytes = 0; }), "");
    EXPECT_EQ(error_of([](SessionSettings& s) {
                  s.memory_bytes = 1;
                  s.background = false;
              }),
              "");
    EXPECT_EQ(error_of([](SessionSettings& s) { s.flush_threads = 0; }), "flush_threads: 1 to 64");
    EXPECT_EQ(error_of([](SessionSettings& s) { s.flush_threads = 65; }), "flush_threads: 1 to 64");
    EXPECT_EQ(error_of([](SessionSettings& s) { s.flusher = Flusher::process; }),
              "flusher: a process needs a local tier: set local");
}

TEST_F(SetupTest, AReferenceIsNotReplaced) {
    fs::create_directories(place_.folder);
    fs::create_directory_symlink(place_.folder, folder_ / "link");
    for (const std::string& reference : {place_.folder, (folder_ / "link").string()}) {
        const auto error = error_of([&](SessionSettings& s) {
            s.existing = Existing::replace;
            s.reference = reference;
        });
        EXPECT_NE(error.find("is the reference of this run"), std::string::npos) << error;
        EXPECT_EQ(error_of([&](SessionSettings& s) { s.reference = reference; }), "");
    }
}

TEST_F(SetupTest, ARecordKeepsAllSteps) {
    SessionSettings settings;
    settings.record = RecordMethod::full;
    settings.record_settings.xored = true;
    ASSERT_TRUE(set_up(posix_file_system(), place_, settings));
    ASSERT_TRUE(settings.history.record);
    EXPECT_EQ(settings.history.record->method, RecordMethod::full);
    EXPECT_FALSE(settings.history.record->xored);
    for (const bool data : {false, true}) {
        const auto error = error_of([&](SessionSettings& s) {
            s.record = RecordMethod::tree;
            (data ? s.keep.data_steps : s.keep.steps) = 1;
        });
        EXPECT_EQ(error.rfind("record: later steps need earlier ones", 0), 0U) << error;
    }
    EXPECT_EQ(error_of([](SessionSettings& s) {
                  s.record = RecordMethod::tree;
                  s.history.keep_data = false;
              }),
              "record: there is no data to record where mode is digests");
}

TEST_F(SetupTest, SharedFilesExcludeOtherSettings) {
    const auto error = [&](const std::function<void(SessionSettings&)>& change) {
        return error_of([&](SessionSettings& s) {
            s.shared_files = SharedFiles::one;
            change(s);
        });
    };
    EXPECT_EQ(error([](SessionSettings&) {}), "");
    EXPECT_EQ(error([](SessionSettings& s) { s.history.keep_data = false; }),
              "shared_files: there is no data to share where mode is digests");
    EXPECT_EQ(error([](SessionSettings& s) { s.record = RecordMethod::tree; }),
              "shared_files: a record has a file a rank: leave one of record and shared_files off");
    EXPECT_EQ(error([&](SessionSettings& s) { s.local = real_path((folder_ / "local").string()); }),
              "shared_files: a node-local tier has a file a rank: leave one of local and shared_files off");
    EXPECT_NE(error([](SessionSettings& s) { s.keep.data_steps = 1; }), "");
    EXPECT_EQ(error([](SessionSettings& s) { s.keep.steps = 1; }), "");
}

TEST(Setup, TheRingHasItsShareOfTheMemory) {
    SessionSettings settings;
    settings.memory_bytes = 16 << 20;
    EXPECT_EQ(heap_share(settings), 2U << 20);
    settings.shared_files = SharedFiles::one;
    EXPECT_EQ(settings.memory_bytes - heap_share(settings),
              std::max<std::uint64_t>(4 << 20, StagingRing::kSmallest));
    settings.memory_bytes = 1 << 30;
    EXPECT_EQ(settings.memory_bytes - heap_share(settings), 1U << 28);
}

TEST(Setup, WhatFollowsFromTheSettings) {
    SessionSettings settings;
    EXPECT_TRUE(is_staged(settings));
    EXPECT_FALSE(shares_files(settings));
    settings.flusher = Flusher::none;
    EXPECT_FALSE(stays_local(settings));
    settings.local = "/local";
    EXPECT_TRUE(stays_local(settings));
    EXPECT_EQ(tier_settings(settings).local, "/local");
    settings.memory_bytes = 0;
    EXPECT_FALSE(is_staged(settings));
}

}  // namespace
}  // namespace twinrun
