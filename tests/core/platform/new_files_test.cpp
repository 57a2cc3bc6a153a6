#include "platform/new_files.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class NewFilesTest : public ::testing::Test {
   protected:
    NewFilesTest() {
        std::string name = (fs::temp_directory_path() / "twinrun-new-XXXXXX").string();
        place_ = ::mkdtemp(name.data());
        fs::create_directory(place_ / "to");
        fs::create_directory(place_ / "elsewhere");
    }
    ~NewFilesTest() override { fs::remove_all(place_); }

    std::unique_ptr<NewFiles> open() {
        auto files = open_new_files((place_ / "to").string());
        EXPECT_TRUE(files) << files.error().message;
        return std::move(*files);
    }
    static Result<> put(NewFiles& files, const std::string& name, const std::string& text) {
        TWR_TRY(const auto file, files.create(name, text.size()));
        TWR_CHECK(file->write_at(0, std::as_bytes(std::span(text))));
        return file->publish();
    }
    static std::string text_of(const fs::path& path) {
        std::ifstream file(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    // Every name, with what it is.
    std::map<std::string, std::string> all() const {
        std::map<std::string, std::string> found;
        for (const auto& entry : fs::recursive_directory_iterator(place_)) {
            found[entry.path().string()] = entry.is_symlink()     ? "-> " + fs::read_symlink(entry).string()
                                           : entry.is_directory() ? "folder"
                                                                  : text_of(entry.path());
        }
        return found;
    }
    fs::path place_;
};

TEST_F(NewFilesTest, FilesFoldersAndLinks) {
    const auto files = open();
    const std::string longest(255, 'x');
    EXPECT_TRUE(put(*files, "a", "1"));
    EXPECT_TRUE(put(*files, "b/c/" + longest, "2"));
    EXPECT_TRUE(put(*files, "b/\xff\n", ""));
    EXPECT_TRUE(files->make_folder("d/e"));
    EXPECT_TRUE(files->make_folder("d/e"));
    EXPECT_TRUE(files->make_link("b/link", "../nowhere"));
    EXPECT_TRUE(files->sync());
    const std::string to = (place_ / "to").string();
    EXPECT_EQ(all(), (std::map<std::string, std::string>{{to, "folder"},
                                                         {(place_ / "elsewhere").string(), "folder"},
                                                         {to + "/a", "1"},
                                                         {to + "/b", "folder"},
                                                         {to + "/b/c", "folder"},
                                                         {to + "/b/c/" + longest, "2"},
                                                         {to + "/b/\xff\n", ""},
                                                         {to + "/b/link", "-> ../nowhere"},
                                                         {to + "/d", "folder"},
                                                         {to + "/d/e", "folder"}}));
}

TEST_F(NewFilesTest, WhatIsNotWrittenIsAHole) {
    const auto files = open();
    {
        auto file = files->create("sparse", 64U << 20);
        ASSERT_TRUE(file);
        const std::string text = "end";
        EXPECT_TRUE((*file)->write_at((64U << 20) - 3, std::as_bytes(std::span(text))));
        EXPECT_TRUE((*file)->publish());
    }
    struct stat status;
    ASSERT_EQ(::stat((place_ / "to/sparse").c_str(), &status), 0);
    EXPECT_EQ(status.st_size, 64 << 20);
    EXPECT_LT(status.st_blocks * 512, 1 << 20);
    EXPECT_TRUE(text_of(place_ / "to/sparse").ends_with("end"));
}

TEST_F(NewFilesTest, WhatIsAbandonedIsGone) {
    const auto files = open();
    const auto before = all();
    {
        auto file = files->create("a", 10);
        ASSERT_TRUE(file);
        EXPECT_EQ(all().size(), before.size() + 1);  // under a name of its own
        EXPECT_FALSE(fs::exists(place_ / "to/a"));
    }
    EXPECT_EQ(all(), before);
}

TEST_F(NewFilesTest, WhatHasTheNameStays) {
    std::ofstream(place_ / "elsewhere/old") << "old";
    std::ofstream(place_ / "to/file") << "mine";
    fs::create_directory(place_ / "to/folder");
    fs::create_symlink(place_ / "elsewhere/old", place_ / "to/link");
    fs::create_symlink(place_ / "elsewhere/new", place_ / "to/dangling");
    fs::create_directory_symlink(place_ / "elsewhere", place_ / "to/away");
    const auto before = all();
    const auto files = open();
    for (const char* name : {"file", "folder", "link", "dangling", "away"}) {
        EXPECT_EQ(files->check_free(name).error().code, ErrorCode::invalid_argument) << name;
        EXPECT_EQ(files->check_free(name, true).ok(), name == std::string("folder")) << name;
        const auto put_there = put(*files, name, "new");
        ASSERT_FALSE(put_there) << name;
        EXPECT_NE(put_there.error().message.find("is there already"), std::string::npos);
        EXPECT_FALSE(files->make_link(name, "x")) << name;
        EXPECT_EQ(all(), before) << name;
    }
    for (const char* name : {"away/new", "file/new", "link/new", "away/deep/new"}) {
        EXPECT_FALSE(files->check_free(name)) << name;
        EXPECT_FALSE(put(*files, name, "new")) << name;
        EXPECT_FALSE(files->make_folder(name)) << name;
        EXPECT_FALSE(files->make_link(name, "x")) << name;
        EXPECT_EQ(all(), before) << name;
    }
    for (const char* name :
         {"", "/", "..", ".", "../elsewhere/new", "folder/../new", "a//b", "a/", "/etc/new"})
        EXPECT_FALSE(put(*files, name, "new")) << name;
    EXPECT_FALSE(put(*files, std::string("a\0b", 3), "new"));
    EXPECT_TRUE(files->check_free("folder/new"));
    EXPECT_TRUE(files->check_free("not/there"));
    EXPECT_EQ(all(), before);
}

// Somebody takes the name, or puts a link in the way, while the file is written.
TEST_F(NewFilesTest, WhatComesMeanwhileStays) {
    const auto files = open();
    auto file = files->create("sub/a", 3);
    ASSERT_TRUE(file);
    std::ofstream(place_ / "to/sub/a") << "theirs";
    EXPECT_FALSE((*file)->publish());
    file->reset();
    EXPECT_EQ(text_of(place_ / "to/sub/a"), "theirs");

    file = files->create("sub/b", 3);
    ASSERT_TRUE(file);
    fs::rename(place_ / "to/sub", place_ / "to/moved");
    fs::create_directory_symlink(place_ / "elsewhere", place_ / "to/sub");
    EXPECT_TRUE((*file)->publish());  // in the folder where it was begun
    EXPECT_TRUE(fs::exists(place_ / "to/moved/b"));
    EXPECT_TRUE(fs::is_empty(place_ / "elsewhere"));
    EXPECT_FALSE(put(*files, "sub/c", "x"));
    EXPECT_TRUE(fs::is_empty(place_ / "elsewhere"));
}

}  // namespace
}  // namespace twinrun
