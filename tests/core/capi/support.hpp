// What tests of the C interface share.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <twinrun/twinrun.h>
#include <unistd.h>
#include <csignal>
#include <memory>
#include <vector>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#define TWR_EXPECT_OK(call) EXPECT_EQ(call, TWR_OK) << twr_error_message()
#define TWR_ASSERT_OK(call) ASSERT_EQ(call, TWR_OK) << twr_error_message()
// The call fails in this way, and the message has this word in it.
#define TWR_EXPECT_ERROR(call, status, word)                                      \
    do {                                                                          \
        EXPECT_STREQ(twr_status_name(call), #status) << twr_error_message();      \
        EXPECT_NE(std::string(twr_error_message()).find(word), std::string::npos) \
            << "no '" << (word) << "' in: " << twr_error_message();               \
    } while (0)

namespace twinrun::testing {

// While it is there the system refuses files of more than 256 KiB: what large arrays need is lost, journals have room.
class NoLargeFiles {
   public:
    NoLargeFiles() {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        handler_ = std::signal(SIGXFSZ, SIG_IGN);
        const rlimit low{1U << 18, before_.rlim_max};
        EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
    }
    ~NoLargeFiles() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    NoLargeFiles(const NoLargeFiles&) = delete;
    NoLargeFiles& operator=(const NoLargeFiles&) = delete;

   private:
    rlimit before_{};
    void (*handler_)(int) = SIG_DFL;
};

// A folder of the test's own.
class CapiTest : public ::testing::Test {
   protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        folder_ =
            std::filesystem::temp_directory_path() / ("twinrun_capi_" + std::string(info->test_suite_name()) +
                                                      "_" + info->name() + "_" + std::to_string(getpid()));
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
        TWR_ASSERT_OK(twr_settings_create(&settings_));
        TWR_ASSERT_OK(twr_settings_set(settings_, "atol", "1e-6"));
    }
    void TearDown() override {
        twr_settings_destroy(settings_);
        unsetenv("TWINRUN_SETTINGS");
        std::filesystem::remove_all(folder_);
    }
    [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
    std::string write(const std::string& name, const std::string& text) const {
        std::ofstream(path(name)) << text;
        return path(name);
    }
    // A run with this test's settings; null after a failure.
    twr_run* open(const std::string& name) {
        twr_run* run = nullptr;
        TWR_EXPECT_OK(twr_open(&run, path(name).c_str(), settings_));
        return run;
    }
    void set(const char* name, const std::string& value) {
        TWR_ASSERT_OK(twr_settings_set(settings_, name, value.c_str()));
    }

    std::filesystem::path folder_;
    twr_settings* settings_ = nullptr;
};

}  // namespace twinrun::testing
