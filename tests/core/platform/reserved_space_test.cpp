#include "platform/reserved_space.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "platform/file_io.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = 1 << 20;

// A folder below each of these: the one for temporary files, and memory.
class ReservedSpaceTest : public ::testing::TestWithParam<const char*> {
   protected:
    ReservedSpaceTest() {
        const fs::path below = *GetParam() != '\0' ? fs::path(GetParam()) : fs::temp_directory_path();
        std::string name = (below / "twinrun-reserved-XXXXXX").string();
        place_ = ::mkdtemp(name.data());
    }
    ~ReservedSpaceTest() override { fs::remove_all(place_); }

    [[nodiscard]] std::string path(const std::string& name) const { return (place_ / name).string(); }
    static std::vector<std::byte> noise(std::uint64_t bytes) {
        std::mt19937_64 random(test_seed(7));
        std::vector<std::byte> data(bytes);
        for (std::uint64_t at = 0; at + 8 <= bytes; at += 8) {
            const std::uint64_t word = random();
            std::memcpy(data.data() + at, &word, 8);
        }
        return data;
    }
    static std::vector<std::byte> content(const std::string& path) {
        auto read = read_whole_file(path, 1 << 30);
        EXPECT_TRUE(read.ok()) << read.error().message;
        return read.ok() ? std::move(*read) : std::vector<std::byte>();
    }
    // Blocks of the file that the system has taken from the disk, in bytes.
    static std::uint64_t taken(int descriptor) {
        struct stat status {};
        EXPECT_EQ(::fstat(descriptor, &status), 0);
        return static_cast<std::uint64_t>(status.st_blocks) * 512;
    }

    fs::path place_;
};

INSTANTIATE_TEST_SUITE_P(Folders, ReservedSpaceTest, ::testing::Values("", "/dev/shm"),
                         [](const auto& one) { return *one.param == '\0' ? "Temporary" : "Memory"; });

TEST_P(ReservedSpaceTest, TheFileIsThereAndReadsAsZeros) {
    // Whole huge pages and a rest; twice, as the second file may be filled another way.
    for (const std::uint64_t bytes :
         {37 * kMiB + 4099, 2 * kMiB, kMiB + 1, std::uint64_t{1}, std::uint64_t{0}}) {
        const std::string name = path("x" + std::to_string(bytes));
        const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        ASSERT_GE(file, 0);
        file_io::ReservedSpace got;
        EXPECT_EQ(file_io::reserve_space(file, bytes, true, got), 0);
        EXPECT_TRUE(got.bytes == bytes || got.bytes == 0) << got.bytes;
        if (got.bytes != 0) {
            EXPECT_EQ(fs::file_size(name), bytes);
            EXPECT_GE(taken(file), bytes);
            EXPECT_EQ(content(name), std::vector<std::byte>(bytes));
        }
        ::close(file);
    }
}

TEST_P(ReservedSpaceTest, WithoutASizeTheLengthIsThatOfTheData) {
    const int file = ::open(path("x").c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    file_io::ReservedSpace got;
    EXPECT_EQ(file_io::reserve_space(file, 5 * kMiB, false, got), 0);
    EXPECT_EQ(fs::file_size(path("x")), 0U);
    EXPECT_FALSE(got.one_writer);
    ::close(file);
}

// No file may be mapped that is not open for reading: small pages it is.
TEST_P(ReservedSpaceTest, WhereHugePagesAreRefusedTheSpaceIsStillThere) {
    const int file = ::open(path("x").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    file_io::ReservedSpace got;
    EXPECT_EQ(file_io::reserve_space(file, 9 * kMiB, true, got), 0);
    EXPECT_EQ(content(path("x")), std::vector<std::byte>(got.bytes));
    if (got.bytes != 0) {
        EXPECT_GE(taken(file), 9 * kMiB);
    }
    ::close(file);
}

TEST_P(ReservedSpaceTest, AnyNumberOfWritersMakesTheSameFile) {
    const auto data = noise(37 * kMiB + 4099);
    std::mt19937_64 random(test_seed(8));
    for (const std::size_t writers : {1U, 2U, 5U}) {
        std::vector<std::uint64_t> begins;
        for (std::uint64_t at = 0; at < data.size(); at += kMiB)
            begins.push_back(at);
        std::shuffle(begins.begin(), begins.end(), random);
        const std::string name = path("x" + std::to_string(writers));
        auto file = posix_file_system().create(name, data.size());
        ASSERT_TRUE(file.ok()) << file.error().message;
        std::atomic<std::size_t> next = 0;
        std::vector<std::thread> threads;
        for (std::size_t t = 0; t < writers; ++t) {
            threads.emplace_back([&] {
                for (std::size_t i = next++; i < begins.size(); i = next++) {
                    const auto part = std::span(data).subspan(begins[i]);
                    EXPECT_TRUE((*file)->write_at(begins[i], part.first(std::min(kMiB, part.size()))).ok());
                }
            });
        }
        for (std::thread& thread : threads)
            thread.join();
        ASSERT_TRUE((*file)->sync().ok());
        ASSERT_TRUE((*file)->close().ok());
        EXPECT_TRUE(content(name) == data);
    }
}

// A file that gets less than was expected is as long as what it got, before it is synced and after.
TEST_P(ReservedSpaceTest, WhatWasNotUsedIsGivenBack) {
    const auto data = noise(3 * kMiB + 17);
    for (const bool sync : {true, false}) {
        const std::string name = path(sync ? "synced" : "closed");
        auto file = posix_file_system().create(name, 40 * kMiB);
        ASSERT_TRUE(file.ok()) << file.error().message;
        ASSERT_TRUE((*file)->write_at(0, data).ok());
        if (sync) {
            ASSERT_TRUE((*file)->sync().ok());
            EXPECT_EQ(fs::file_size(name), data.size());
            // It may still grow.
            ASSERT_TRUE((*file)->write_at(data.size(), data).ok());
        }
        ASSERT_TRUE((*file)->close().ok());
        auto whole = data;
        if (sync) whole.insert(whole.end(), data.begin(), data.end());
        EXPECT_TRUE(content(name) == whole);
        const int open = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
        EXPECT_LT(taken(open), 16 * kMiB);
        ::close(open);
    }
}

class SmallMemoryTest : public ::testing::Test {
   protected:
    void SetUp() override {
        std::string name = (fs::temp_directory_path() / "twinrun-small-XXXXXX").string();
        place_ = ::mkdtemp(name.data());
        if (::mount("twinrun-test", place_.c_str(), "tmpfs", 0, "size=48m") != 0)
            GTEST_SKIP() << "needs the right to mount a small tmpfs: " << std::strerror(errno);
        mounted_ = true;
    }
    void TearDown() override {
        if (mounted_) ::umount2(place_.c_str(), MNT_DETACH);
        fs::remove(place_);
    }
    std::string place_;
    bool mounted_ = false;
};

TEST_F(SmallMemoryTest, AFileThatDoesNotFitIsRefusedAndLeavesNothing) {
    const std::string name = place_ + "/x";
    const auto refused = posix_file_system().create(name, 49 * kMiB);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    EXPECT_EQ(refused.error().message,
              name +
                  ": cannot reserve 51380224 bytes: no space left on device; free some space "
                  "or choose another file system");
    EXPECT_FALSE(fs::exists(name));
    auto first = posix_file_system().create(place_ + "/first", 33 * kMiB + 1);
    ASSERT_TRUE(first.ok()) << "the space is free again: " << first.error().message;
    // What is reserved is taken, before a byte is written.
    EXPECT_EQ(posix_file_system().create(place_ + "/second", 33 * kMiB).error().code, ErrorCode::no_space);
    const std::vector<std::byte> all(33 * kMiB + 1, std::byte{0x5a});
    EXPECT_TRUE((*first)->write_at(0, all).ok());
    EXPECT_TRUE((*first)->close().ok());
}

}  // namespace
}  // namespace twinrun
