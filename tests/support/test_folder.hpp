// A folder of a test's own, which goes with the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

namespace twinrun::testing {

class TestFolder {
   public:
    // Named after the running test and this process.
    TestFolder() {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        std::string name = std::string(info->test_suite_name()) + "_" + info->name();
        std::replace(name.begin(), name.end(), '/', '_');
        path_ = std::filesystem::temp_directory_path() / ("twinrun_" + name + "_" + std::to_string(getpid()));
        std::filesystem::remove_all(path_);
        std::filesystem::create_directories(path_);
    }
    ~TestFolder() { std::filesystem::remove_all(path_); }
    TestFolder(const TestFolder&) = delete;
    TestFolder& operator=(const TestFolder&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::string path(const std::string& name) const { return (path_ / name).string(); }
    // Writes a file, and returns its path.
    std::string write(const std::string& name, const void* data, std::size_t bytes) const {
        std::ofstream file(path(name), std::ios::binary);
        file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
        EXPECT_TRUE(file.good());
        return path(name);
    }

   private:
    std::filesystem::path path_;
};

// Tests of which each has such a folder.
class FolderTest : public ::testing::Test {
   private:
    const TestFolder own_;

   protected:
    const std::filesystem::path& folder_ = own_.path();
};

}  // namespace twinrun::testing
