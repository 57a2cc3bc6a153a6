#include "platform/file_io.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "support/files.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using Folder = testing::FreshFolder;
using testing::aligned;
using testing::noise;
using testing::one_line;
using testing::put;

// ---- files to read ----

TEST(InputFileTest, OpensAndStamps) {
    Folder folder;
    const auto bytes = noise(12'345);
    put(folder / "x", bytes);
    auto file = InputFile::open(folder / "x");
    ASSERT_TRUE(file.ok());
    EXPECT_EQ((*file)->size(), 12'345U);
    EXPECT_EQ((*file)->path(), folder / "x");
    auto stamp = stamp_of(folder / "x");
    ASSERT_TRUE(stamp.ok());
    EXPECT_EQ(*stamp, (*file)->stamp());
    const timespec times[2] = {{1'000'000'000, 1}, {1'000'000'000, 7}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (folder / "x").c_str(), times, 0), 0);
    EXPECT_EQ(stamp_of(folder / "x")->mtime_ns, 1'000'000'000'000'000'007);
    EXPECT_NE(stamp_of(folder / "x").value(), (*file)->stamp());

    std::vector<std::byte> part(345);
    ASSERT_TRUE((*file)->read_at(12'000, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 12'000));
    EXPECT_EQ((*file)->read_at(12'001, part).error().code, ErrorCode::damaged);
    EXPECT_TRUE((*file)->read_at(99'999, {}).ok());
    EXPECT_EQ((*file)->read_at(~std::uint64_t{0}, part).error().code, ErrorCode::invalid_argument);
}

TEST(InputFileTest, ASmallFileIsReadAtOnceAndClosed) {
    Folder folder;
    const auto bytes = noise(12'345);
    put(folder / "x", bytes);
    EXPECT_FALSE(InputFile::open(folder / "x", 12'344).value()->in_memory());
    const auto file = InputFile::open(folder / "x", 12'345).value();
    ASSERT_TRUE(file->in_memory());
    EXPECT_TRUE(std::ranges::equal(file->content(), bytes));
    EXPECT_EQ(file->descriptor(), -1);
    EXPECT_EQ(file->direct_descriptor(), -1);
    EXPECT_EQ(file->stamp(), stamp_of(folder / "x").value());
    EXPECT_EQ(file->cached_share(0, 5), 1.0);
    file->will_need(0, 5);
    put(folder / "x", noise(12'345, 2));  // what was read stays
    std::vector<std::byte> part(345);
    ASSERT_TRUE(file->read_at(12'000, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 12'000));
    for (const std::uint64_t offset : {12'001U, 99'999U}) {
        const auto wrong = file->read_at(offset, part);
        EXPECT_EQ(wrong.error().code, ErrorCode::damaged);
        EXPECT_EQ(wrong.error().message,
                  InputFile::open(folder / "x").value()->read_at(offset, part).error().message);
    }
    EXPECT_TRUE(file->read_at(99'999, {}).ok());
    EXPECT_EQ(file->read_at(~std::uint64_t{0}, part).error().code, ErrorCode::invalid_argument);
    put(folder / "none", {});
    EXPECT_FALSE(InputFile::open(folder / "none", 100).value()->in_memory());
}

TEST(InputFileTest, SaysWhyNot) {
    Folder folder;
    const auto expect = [](const auto& outcome, ErrorCode code) {
        ASSERT_FALSE(outcome.ok());
        EXPECT_EQ(outcome.error().code, code) << outcome.error().message;
        EXPECT_TRUE(one_line(outcome.error().message)) << outcome.error().message;
    };
    expect(InputFile::open(folder / "none"), ErrorCode::not_found);
    expect(InputFile::open(folder / "line\nfeed"), ErrorCode::not_found);
    expect(InputFile::open(""), ErrorCode::invalid_argument);
    expect(InputFile::open(folder / std::string("a\0b", 3)), ErrorCode::invalid_argument);
    expect(InputFile::open(folder.path()), ErrorCode::io);
    expect(InputFile::open("/dev/null"), ErrorCode::unsupported);
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    expect(InputFile::open(folder / "pipe"), ErrorCode::unsupported);
    expect(stamp_of(folder / "none"), ErrorCode::not_found);
    expect(read_whole_file(folder / "none", 10), ErrorCode::not_found);
    EXPECT_EQ(InputFile::open(folder / "none").error().message,
              (folder / "none") + ": cannot open for reading: no such file or directory; check the path");
}

TEST(InputFileTest, TheDirectDescriptorIsOfTheSameFile) {
    Folder folder;
    const auto bytes = noise(8192, 1);
    put(folder / "x", bytes);
    const auto file = InputFile::open(folder / "x").value();
    put(folder / "y", noise(8192, 2));
    std::filesystem::rename(folder / "y", folder / "x");
    const int direct = file->direct_descriptor();
    EXPECT_EQ(direct, file->direct_descriptor());
    if (direct < 0) GTEST_SKIP() << "no O_DIRECT in " << folder.path();
    auto memory = aligned(8192);
    ASSERT_EQ(::pread(direct, memory.get(), 8192, 0), 8192);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get()));
}

TEST(InputFileTest, CachedShare) {
    Folder folder;
    put(folder / "x", noise(1 << 20));
    const auto file = InputFile::open(folder / "x").value();
    EXPECT_EQ(file->cached_share(0, 1 << 20), 1.0) << "just written";
    EXPECT_EQ(file->cached_share(0, 1), 1.0);
    EXPECT_EQ(file->cached_share(5000, ~std::uint64_t{0}, 1000), 1.0);
    EXPECT_EQ(file->cached_share(1 << 20, 1), 0.0);
    EXPECT_EQ(file->cached_share(0, 0), 0.0);
    EXPECT_EQ(file->cached_share(0, 100, 0), 0.0);
    ASSERT_EQ(::fsync(file->descriptor()), 0);
    ASSERT_EQ(::posix_fadvise(file->descriptor(), 0, 0, POSIX_FADV_DONTNEED), 0);
    const double left = file->cached_share(0, 1 << 20, 256);  // advice: the system may keep some
    EXPECT_LE(left, 1.0);
    EXPECT_EQ(file->cached_share(0, 1 << 20, 256), left) << "looking must not read";
}

TEST(InputFileTest, ReadWholeFile) {
    Folder folder;
    for (const std::size_t size : {0U, 1U, 4096U, 100'000U}) {
        const auto bytes = noise(size);
        put(folder / "x", bytes);
        auto read = read_whole_file(folder / "x", size);
        ASSERT_TRUE(read.ok());
        EXPECT_EQ(*read, bytes);
        if (size > 0) {
            EXPECT_EQ(read_whole_file(folder / "x", size - 1).error().code, ErrorCode::damaged);
        }
    }
}

// ---- writing ----

class PosixFileSystemTest : public ::testing::Test {
   protected:
    std::vector<std::byte> read(const std::string& name) {
        auto bytes = read_whole_file(folder_ / name, 1 << 30);
        EXPECT_TRUE(bytes.ok());
        return bytes.ok() ? *bytes : std::vector<std::byte>{};
    }
    Folder folder_;
    FileSystem& files_ = posix_file_system();
};

TEST_F(PosixFileSystemTest, AWholeFileUnderItsFinalName) {
    const auto bytes = noise(100'001);
    put(folder_ / "final", noise(5, 2));
    auto file = files_.create(folder_ / "tmp", bytes.size());
    ASSERT_TRUE(file.ok());
    // In two halves, the second first.
    ASSERT_TRUE((*file)->write_at(50'000, std::span(bytes).subspan(50'000)).ok());
    ASSERT_TRUE((*file)->write_at(0, std::span(bytes).first(50'000)).ok());
    ASSERT_TRUE((*file)->write_at(7, {}).ok());
    ASSERT_TRUE((*file)->sync().ok());
    ASSERT_TRUE((*file)->close().ok());
    ASSERT_TRUE((*file)->close().ok());
    EXPECT_EQ((*file)->write_at(0, bytes).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ((*file)->sync().error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.rename(folder_ / "tmp", folder_ / "final").error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(read("final").size(), 5U) << "untouched until it is replaced";
    ASSERT_TRUE(files_.replace(folder_ / "tmp", folder_ / "final").ok());
    ASSERT_TRUE(files_.sync_folder(folder_.path()).ok());
    file->reset();
    EXPECT_EQ(read("final"), bytes);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "tmp"));
}

TEST_F(PosixFileSystemTest, TheReservationLeavesNoTrace) {
    const auto bytes = noise(1000);
    {
        auto file = files_.create(folder_ / "x", 8 << 20);
        ASSERT_TRUE(file.ok());
        ASSERT_TRUE((*file)->write_at(0, bytes).ok());
        EXPECT_EQ(std::filesystem::file_size(folder_ / "x"), 1000U);
        ASSERT_TRUE((*file)->close().ok());
    }
    EXPECT_EQ(read("x"), bytes);
    struct stat status;
    ASSERT_EQ(::stat((folder_ / "x").c_str(), &status), 0);
    EXPECT_LT(status.st_blocks * 512, 1 << 20);
}

TEST_F(PosixFileSystemTest, AnAbandonedFileIsRemoved) {
    { ASSERT_TRUE(files_.create(folder_ / "tmp", 100).ok()); }
    EXPECT_FALSE(std::filesystem::exists(folder_ / "tmp"));
    {
        // Renamed or replaced meanwhile: what has the name now is not ours to remove.
        auto file = files_.create(folder_ / "tmp", 100);
        ASSERT_TRUE(file.ok());
        ASSERT_TRUE(files_.rename(folder_ / "tmp", folder_ / "kept").ok());
        put(folder_ / "tmp", noise(3));
    }
    EXPECT_TRUE(std::filesystem::exists(folder_ / "tmp"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "kept"));
    std::uint64_t size = 9;
    { ASSERT_TRUE(files_.open_append(folder_ / "log", size).ok()); }
    EXPECT_TRUE(std::filesystem::exists(folder_ / "log"));
    EXPECT_EQ(size, 0U);
}

TEST_F(PosixFileSystemTest, Append) {
    const auto bytes = noise(300);
    for (std::size_t i = 0; i < 3; ++i) {
        std::uint64_t size = 0;
        auto file = files_.open_append(folder_ / "log", size);
        ASSERT_TRUE(file.ok());
        EXPECT_EQ(size, i * 100);
        ASSERT_TRUE((*file)->write_at(size, std::span(bytes).subspan(i * 100, 100)).ok());
        ASSERT_TRUE((*file)->sync().ok());
        ASSERT_TRUE((*file)->close().ok());
    }
    EXPECT_EQ(read("log"), bytes);
    ASSERT_TRUE(files_.truncate(folder_ / "log", 150).ok());
    EXPECT_EQ(read("log").size(), 150U);
    EXPECT_EQ(files_.truncate(folder_ / "none", 0).error().code, ErrorCode::not_found);
    EXPECT_EQ(files_.truncate(folder_ / "log", ~std::uint64_t{0}).error().code, ErrorCode::io);
}

TEST_F(PosixFileSystemTest, ThreadsWriteDisjointRanges) {
    const auto bytes = noise(400'000);
    auto file = files_.create(folder_ / "x", bytes.size());
    ASSERT_TRUE(file.ok());
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (std::size_t at = t * 1000; at < bytes.size(); at += 4000) {
                EXPECT_TRUE((*file)->write_at(at, std::span(bytes).subspan(at, 1000)).ok());
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    ASSERT_TRUE((*file)->close().ok());
    EXPECT_EQ(read("x"), bytes);
}

TEST_F(PosixFileSystemTest, Folders) {
    ASSERT_TRUE(files_.make_folders(folder_ / "a/b//c/").ok());
    ASSERT_TRUE(files_.make_folders(folder_ / "a/b/c").ok());
    EXPECT_TRUE(std::filesystem::is_directory(folder_ / "a/b/c"));
    put(folder_ / "a/b/file", noise(3));
    EXPECT_FALSE(files_.make_folders(folder_ / "a/b/file").ok());
    EXPECT_FALSE(files_.make_folders(folder_ / "a/b/file/d").ok());
    EXPECT_EQ(files_.make_folders("").error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(files_.remove(folder_ / "a/b").ok());
    ASSERT_TRUE(files_.remove(folder_ / "a/b/file").ok());
    ASSERT_TRUE(files_.remove(folder_ / "a/b/file").ok()) << "not there: success";
    EXPECT_TRUE(files_.remove(folder_ / "none/file").ok()) << "nor its folder";
    EXPECT_TRUE(files_.remove_empty_folder(folder_ / "none/folder").ok());
    EXPECT_EQ(files_.sync_folder(folder_ / "none").error().code, ErrorCode::not_found);
    EXPECT_EQ(files_.rename(folder_ / "none", folder_ / "x").error().code, ErrorCode::not_found);
    std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
    EXPECT_TRUE(files_.make_folders("relative/deep").ok());
    std::filesystem::current_path(before);
    EXPECT_TRUE(std::filesystem::is_directory(folder_ / "relative/deep"));
}

TEST_F(PosixFileSystemTest, WhatIsThereStays) {
    const auto bytes = noise(30);
    put(folder_ / "file", bytes);
    std::filesystem::create_directory(folder_ / "folder");
    std::filesystem::create_symlink("nowhere", folder_ / "dangling");
    std::filesystem::create_symlink("file", folder_ / "link");
    for (const char* name : {"file", "folder", "dangling", "link"}) {
        EXPECT_EQ(files_.create(folder_ / name, 1).error().code, ErrorCode::invalid_argument) << name;
        put(folder_ / "new", noise(3));
        EXPECT_EQ(files_.rename(folder_ / "new", folder_ / name).error().code, ErrorCode::invalid_argument)
            << name;
        const auto made = files_.make_marked_folder(folder_ / name, "mark");
        ASSERT_TRUE(made.ok()) << name;
        EXPECT_FALSE(made.value()) << name;
        EXPECT_TRUE(is_there(folder_ / name));
    }
    EXPECT_EQ(read("file"), bytes);
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "folder"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "nowhere"));
    EXPECT_FALSE(is_there(folder_ / "nowhere"));
    std::size_t names = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path()))
        ++names;
    EXPECT_EQ(names, 5U) << "nothing is left of what was refused";
}

TEST_F(PosixFileSystemTest, LinksAreNotFollowed) {
    const auto bytes = noise(30);
    std::filesystem::create_directories(folder_ / "elsewhere");
    put(folder_ / "elsewhere/file", bytes);
    std::filesystem::create_directory_symlink("elsewhere", folder_ / "folder");
    std::filesystem::create_symlink("elsewhere/file", folder_ / "link");
    std::uint64_t size = 0;
    EXPECT_EQ(files_.open_append(folder_ / "link", size).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.truncate(folder_ / "link", 0).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.create(folder_ / "folder/new", 1).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.open_append(folder_ / "folder/file", size).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.truncate(folder_ / "folder/file", 0).error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(files_.remove(folder_ / "folder/file").ok());
    EXPECT_FALSE(files_.make_marked_folder(folder_ / "folder/new", "mark").ok());
    const auto refused = files_.create(folder_ / "folder/new", 1);
    EXPECT_NE(refused.error().message.find("symbolic link"), std::string::npos) << refused.error().message;
    EXPECT_EQ(read("elsewhere/file"), bytes);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere/new"));
    // Who was given a link by the user names where it leads.
    EXPECT_EQ(real_path(folder_ / "folder/new"), std::string(folder_ / "elsewhere/new"));
    EXPECT_TRUE(files_.create(real_path(folder_ / "folder/new"), 1).ok());
    // A link itself may go, or be replaced: what it leads to stays.
    put(folder_ / "mine", noise(3));
    ASSERT_TRUE(files_.replace(folder_ / "mine", folder_ / "link").ok());
    ASSERT_TRUE(files_.remove(folder_ / "link").ok());
    EXPECT_EQ(read("elsewhere/file"), bytes);
}

TEST_F(PosixFileSystemTest, AMarkedFolderIsWhole) {
    const auto made = files_.make_marked_folder(folder_ / "step", "mark");
    ASSERT_TRUE(made.ok());
    EXPECT_TRUE(made.value());
    EXPECT_TRUE(std::filesystem::is_regular_file(folder_ / "step/mark"));
    EXPECT_FALSE(files_.make_marked_folder(folder_ / "step", "mark").value());
    EXPECT_EQ(files_.make_marked_folder(folder_ / "none/step", "mark").error().code, ErrorCode::not_found);
    ASSERT_TRUE(files_.remove_empty_folder(folder_ / "step").ok()) << "not empty: stays";
    EXPECT_TRUE(std::filesystem::exists(folder_ / "step/mark"));
    // Of many that want it, one makes it.
    std::atomic<int> winners{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            const auto outcome = files_.make_marked_folder(folder_ / "race", "mark");
            EXPECT_TRUE(outcome.ok());
            winners += outcome.ok() && outcome.value() ? 1 : 0;
            EXPECT_TRUE(std::filesystem::exists(folder_ / "race/mark"));
        });
    }
    for (auto& thread : threads)
        thread.join();
    EXPECT_EQ(winners, 1);
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
        EXPECT_FALSE(entry.path().filename().string().starts_with(kHiddenPrefix)) << entry.path();
}

TEST_F(PosixFileSystemTest, CreateSaysWhyNot) {
    EXPECT_EQ(files_.create(folder_ / "none/x", 1).error().code, ErrorCode::not_found);
    EXPECT_EQ(files_.create(folder_.path(), 1).error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(files_.create("/dev/full", 0).ok());
    ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
    EXPECT_FALSE(files_.create(folder_ / "pipe", 0).ok());
    const auto huge = files_.create(folder_ / "huge", ~std::uint64_t{0});
    ASSERT_FALSE(huge.ok());
    EXPECT_FALSE(std::filesystem::exists(folder_ / "huge"));
}

class FullDiskTest : public PosixFileSystemTest {
   protected:
    void SetUp() override {
        mount_ = folder_ / "disk";
        ASSERT_TRUE(files_.make_folders(mount_).ok());
        if (::mount("twinrun-test", mount_.c_str(), "tmpfs", 0, "size=256k") != 0) {
            GTEST_SKIP() << "needs the right to mount a small tmpfs: " << std::strerror(errno);
        }
        mounted_ = true;
    }
    void TearDown() override {
        if (mounted_) ::umount2(mount_.c_str(), MNT_DETACH);
    }
    std::string mount_;
    bool mounted_ = false;
};

TEST_F(FullDiskTest, TheReservationFindsOut) {
    const auto file = files_.create(mount_ + "/x", 1 << 20);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::no_space);
    EXPECT_EQ(file.error().message,
              mount_ +
                  "/x: cannot reserve 1048576 bytes: no space left on device; free some "
                  "space or choose another file system");
    EXPECT_FALSE(std::filesystem::exists(mount_ + "/x"));
}

TEST_F(FullDiskTest, TheWriteFindsOut) {
    const auto bytes = noise(1 << 20);
    {
        auto file = files_.create(mount_ + "/x", 0);
        ASSERT_TRUE(file.ok());
        const auto outcome = (*file)->write_at(0, bytes);
        ASSERT_FALSE(outcome.ok());
        EXPECT_EQ(outcome.error().code, ErrorCode::no_space);
        EXPECT_NE(outcome.error().message.find("free some space"), std::string::npos);
    }
    EXPECT_FALSE(std::filesystem::exists(mount_ + "/x"));
    auto file = files_.create(mount_ + "/y", 1000);
    ASSERT_TRUE(file.ok()) << "the space is free again";
    EXPECT_TRUE((*file)->write_at(0, std::span(bytes).first(1000)).ok());
}

}  // namespace
}  // namespace twinrun
