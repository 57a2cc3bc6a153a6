#include "platform/anchored.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class AnchoredTest : public ::testing::Test {
   protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        const fs::path folder = fs::temp_directory_path() /
                                ("twinrun_" + std::string(info->name()) + "_" + std::to_string(getpid()));
        fs::remove_all(folder);
        fs::create_directories(folder);
        folder_ = real_path(folder.string());
        root_ = folder_ + "/history";
        fs::create_directories(root_ + "/step");
        write(root_ + "/step/ours", "ours");
    }
    void TearDown() override { fs::remove_all(folder_); }

    static void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
    static std::string read(const std::string& path) {
        std::ifstream file(path);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    // The folder gets another name, and another folder its own, with files of the same names.
    void swap() const {
        fs::rename(root_, folder_ + "/moved");
        fs::create_directories(root_ + "/step");
        write(root_ + "/step/ours", "theirs");
        write(root_ + "/journal", "theirs");
    }

    std::string folder_, root_;
};

TEST_F(AnchoredTest, ChangesGoToTheFolderThatWasHeld) {
    AnchoredFileSystem system(posix_file_system(), root_);
    ASSERT_TRUE(system.anchor());
    const std::string moved = folder_ + "/moved";
    {
        std::uint64_t size = 0;
        auto journal = system.open_append(root_ + "/journal", size);
        ASSERT_TRUE(journal) << journal.error().message;
        ASSERT_TRUE((*journal)->write_at(0, std::as_bytes(std::span("one", 3))));
        ASSERT_TRUE((*journal)->close());
    }
    swap();
    std::uint64_t size = 0;
    auto journal = system.open_append(root_ + "/journal", size);
    ASSERT_TRUE(journal);
    EXPECT_EQ(size, 3U);
    ASSERT_TRUE((*journal)->write_at(size, std::as_bytes(std::span("two", 3))));
    ASSERT_TRUE((*journal)->close());
    auto file = system.create(root_ + "/step/made", 0);
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_TRUE((*file)->write_at(0, std::as_bytes(std::span("new", 3))));
    ASSERT_TRUE((*file)->close());
    ASSERT_TRUE(system.rename(root_ + "/step/made", root_ + "/step/kept"));
    ASSERT_TRUE(system.remove(root_ + "/step/ours"));
    ASSERT_TRUE(system.make_marked_folder(root_ + "/step-2", "mark"));
    ASSERT_TRUE(system.make_folders(root_ + "/a/b"));
    ASSERT_TRUE(system.truncate(root_ + "/journal", 3));
    ASSERT_TRUE(system.sync_folder(root_));
    ASSERT_TRUE(system.sync_folder(root_ + "/step"));

    EXPECT_EQ(read(moved + "/journal"), "one");
    EXPECT_EQ(read(moved + "/step/kept"), "new");
    EXPECT_FALSE(fs::exists(moved + "/step/ours"));
    EXPECT_TRUE(fs::exists(moved + "/step-2/mark"));
    EXPECT_TRUE(fs::exists(moved + "/a/b"));
    EXPECT_EQ(read(root_ + "/journal"), "theirs");
    EXPECT_EQ(read(root_ + "/step/ours"), "theirs");
    EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 2);
    EXPECT_EQ(std::distance(fs::directory_iterator(root_ + "/step"), {}), 1);
}

TEST_F(AnchoredTest, AnAbandonedFileGoesFromTheFolderThatItIsIn) {
    AnchoredFileSystem system(posix_file_system(), root_);
    ASSERT_TRUE(system.anchor());
    {
        auto file = system.create(root_ + "/step/made", 0);
        ASSERT_TRUE(file);
        swap();
        write(root_ + "/step/made", "theirs");
    }
    EXPECT_EQ(read(root_ + "/step/made"), "theirs");
    EXPECT_FALSE(fs::exists(folder_ + "/moved/step/made"));
}

TEST_F(AnchoredTest, ErrorsNameThePathThatWasGiven) {
    AnchoredFileSystem system(posix_file_system(), root_);
    ASSERT_TRUE(system.anchor());
    for (const auto& error :
         {system.create(root_ + "/step/ours", 0).error(),
          system.rename(root_ + "/no", root_ + "/yes").error(), system.create(root_ + "/no/x", 0).error(),
          system.truncate(root_ + "/gone", 1).error()}) {
        EXPECT_NE(error.message.find(root_ + "/"), std::string::npos) << error.message;
        EXPECT_EQ(error.message.find("/proc"), std::string::npos) << error.message;
    }
}

TEST_F(AnchoredTest, ErrorsOfNewFilesNameThePathThatWasGiven) {
    AnchoredFileSystem system(posix_file_system(), root_);
    ASSERT_TRUE(system.anchor());
    auto files = system.open_new(root_ + "/step");
    ASSERT_TRUE(files);
    const auto check = [&](const Error& error) {
        EXPECT_NE(error.message.find(root_ + "/step/"), std::string::npos) << error.message;
        EXPECT_EQ(error.message.find("/proc"), std::string::npos) << error.message;
    };
    auto first = (*files)->create("new", 10);
    auto second = (*files)->create("new", 10);
    ASSERT_TRUE(first && second);
    ASSERT_TRUE((*first)->publish());
    check((*second)->publish().error());
    check((*files)->check_free("new").error());
    check((*files)->create("new/x", 1).error());
    check((*files)->make_link("new", "x").error());
    check((*files)->make_folder("new").error());
}

TEST_F(AnchoredTest, OtherPathsAreLeftAlone) {
    AnchoredFileSystem system(posix_file_system(), root_);
    ASSERT_TRUE(system.anchor());
    ASSERT_TRUE(system.make_folders(root_ + "-2"));
    auto file = system.create(root_ + "-2/x", 0);
    ASSERT_TRUE(file);
    ASSERT_TRUE((*file)->close());
    EXPECT_TRUE(fs::exists(root_ + "-2/x"));
    ASSERT_TRUE(system.rename(root_ + "-2/x", root_ + "/step/x"));
    EXPECT_TRUE(fs::exists(root_ + "/step/x"));
}

TEST_F(AnchoredTest, AFolderThatIsNotThereIsAnError) {
    AnchoredFileSystem system(posix_file_system(), folder_ + "/none");
    EXPECT_FALSE(system.anchor());
    fs::create_directory_symlink(root_, folder_ + "/link");
    AnchoredFileSystem link(posix_file_system(), folder_ + "/link");
    EXPECT_FALSE(link.anchor());
}

}  // namespace
}  // namespace twinrun
