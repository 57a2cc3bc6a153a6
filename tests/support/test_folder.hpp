// A folder of a test's own, which goes with the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

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

// A folder that nobody else has; a test may have several.
class FreshFolder {
   public:
    explicit FreshFolder(const std::filesystem::path& within = std::filesystem::temp_directory_path()) {
        std::string name = (within / "twinrun-test-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        path_ = name;
    }
    ~FreshFolder() { std::filesystem::remove_all(path_); }
    FreshFolder(const FreshFolder&) = delete;
    FreshFolder& operator=(const FreshFolder&) = delete;
    [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }
    [[nodiscard]] std::string path() const { return path_.string(); }
    // What lies in it.
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const auto& entry : std::filesystem::directory_iterator(path_))
            all.push_back(entry.path().filename().string());
        std::sort(all.begin(), all.end());
        return all;
    }

   private:
    std::filesystem::path path_;
};

// Tests of which each has a folder of its name.
class FolderTest : public ::testing::Test {
   private:
    const TestFolder own_;

   protected:
    const std::filesystem::path& folder_ = own_.path();
};

}  // namespace twinrun::testing
