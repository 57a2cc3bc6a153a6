#include "support/faulty_file_system.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace twinrun::testing {
namespace {

class FaultyFileSystemTest : public ::testing::Test {
   protected:
    void SetUp() override {
        std::string pattern = (std::filesystem::temp_directory_path() / "faulty_XXXXXX").string();
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string at(const std::string& name) const { return folder_ + "/" + name; }

    static std::span<const std::byte> bytes_of(const std::string& text) {
        return std::as_bytes(std::span<const char>(text));
    }
    // The file's text, or "(none)".
    static std::string text_of(const std::string& path) {
        auto bytes = read_whole_file(path, 1 << 20);
        if (!bytes.ok()) return "(none)";
        return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    }
    static Result<> put(FileSystem& files, const std::string& path, const std::string& text, bool sync) {
        TWR_TRY(auto file, files.create(path, text.size()));
        TWR_CHECK(file->write_at(0, bytes_of(text)));
        if (sync) TWR_CHECK(file->sync());
        return file->close();
    }
    // The way to replace a file that leaves the old or the new one, never less.
    static Result<> replace(FileSystem& files, const std::string& folder, const std::string& text) {
        TWR_CHECK(files.remove(folder + "/tmp"));  // of an attempt that failed
        TWR_CHECK(put(files, folder + "/tmp", text, true));
        TWR_CHECK(files.replace(folder + "/tmp", folder + "/final"));
        return files.sync_folder(folder);
    }

    std::string folder_;
};

TEST_F(FaultyFileSystemTest, PassesThroughAndCounts) {
    FaultyFileSystem files;
    ASSERT_TRUE(replace(files, folder_, "new").ok());
    EXPECT_EQ(text_of(at("final")), "new");
    EXPECT_EQ(files.operations(), 7U);
    EXPECT_EQ(files.log().front(), "remove " + at("tmp"));
    EXPECT_EQ(files.log()[1], "create " + at("tmp"));
    EXPECT_EQ(files.log().back(), "sync_folder " + folder_);
}

TEST_F(FaultyFileSystemTest, FailsTheChosenOperation) {
    for (std::size_t n = 1; n <= 7; ++n) {
        FaultyFileSystem files;
        files.inject({.at = n, .error = {ErrorCode::no_space, "chosen"}});
        const auto outcome = replace(files, folder_, "new");
        ASSERT_FALSE(outcome.ok()) << n;
        EXPECT_EQ(outcome.error().code, ErrorCode::no_space);
        EXPECT_NE(outcome.error().message.find("chosen"), std::string::npos);
        EXPECT_EQ(files.operations(), n);
        ASSERT_TRUE(replace(files, folder_, "again").ok()) << "only one operation fails";
    }
}

TEST_F(FaultyFileSystemTest, CutsAWriteShort) {
    FaultyFileSystem files;
    files.inject({.at = 2, .error = {ErrorCode::no_space, "full"}, .written_first = 3});
    auto file = files.create(at("x"), 0);
    ASSERT_TRUE(file.ok());
    EXPECT_FALSE((*file)->write_at(0, bytes_of("abcdef")).ok());
    EXPECT_EQ(text_of(at("x")), "abc");
    ASSERT_TRUE((*file)->close().ok());
}

TEST_F(FaultyFileSystemTest, AnAbandonedFileIsGoneAndStaysGone) {
    FaultyFileSystem files;
    { ASSERT_TRUE(files.create(at("x"), 0).ok()); }
    EXPECT_EQ(text_of(at("x")), "(none)");
    ASSERT_TRUE(files.sync_folder(folder_).ok());
    files.power_cut();
    EXPECT_EQ(text_of(at("x")), "(none)");
}

TEST_F(FaultyFileSystemTest, PowerCutForgetsNamesThatWereNotSynced) {
    FaultyFileSystem files;
    ASSERT_TRUE(put(files, at("x"), "abc", true).ok());
    EXPECT_EQ(text_of(at("x")), "abc");
    files.power_cut();
    EXPECT_EQ(text_of(at("x")), "(none)");

    ASSERT_TRUE(replace(files, folder_, "old").ok());
    ASSERT_TRUE(put(files, at("tmp"), "new", true).ok());
    ASSERT_TRUE(files.replace(at("tmp"), at("final")).ok());
    EXPECT_EQ(text_of(at("final")), "new");
    files.power_cut();
    EXPECT_EQ(text_of(at("final")), "old");
    EXPECT_EQ(text_of(at("tmp")), "(none)");

    ASSERT_TRUE(files.remove(at("final")).ok());
    files.power_cut();
    EXPECT_EQ(text_of(at("final")), "old");
    ASSERT_TRUE(files.remove(at("final")).ok());
    ASSERT_TRUE(files.sync_folder(folder_).ok());
    files.power_cut();
    EXPECT_EQ(text_of(at("final")), "(none)");
}

TEST_F(FaultyFileSystemTest, PowerCutForgetsBytesThatWereNotSynced) {
    FaultyFileSystem files;
    ASSERT_TRUE(put(files, at("x"), "abc", false).ok());
    ASSERT_TRUE(files.sync_folder(folder_).ok());
    files.power_cut();
    EXPECT_EQ(text_of(at("x")), "");

    std::uint64_t size = 0;
    auto log = files.open_append(at("x"), size);
    ASSERT_TRUE(log.ok());
    ASSERT_TRUE((*log)->write_at(0, bytes_of("one\n")).ok());
    ASSERT_TRUE((*log)->sync().ok());
    ASSERT_TRUE((*log)->write_at(4, bytes_of("two\n")).ok());
    EXPECT_EQ(text_of(at("x")), "one\ntwo\n");
    files.power_cut();
    EXPECT_EQ(text_of(at("x")), "one\n");
    EXPECT_FALSE((*log)->write_at(4, bytes_of("two\n")).ok()) << "opened before the cut";

    ASSERT_TRUE(files.truncate(at("x"), 1).ok());
    EXPECT_EQ(text_of(at("x")), "o");
    files.power_cut();
    EXPECT_EQ(text_of(at("x")), "one\n");
}

TEST_F(FaultyFileSystemTest, PowerCutKeepsWhatWasThereBefore) {
    ASSERT_TRUE(put(posix_file_system(), at("old"), "before", false).ok());
    ASSERT_TRUE(posix_file_system().make_folders(at("step/deep")).ok());
    ASSERT_TRUE(put(posix_file_system(), at("step/deep/a"), "A", false).ok());
    FaultyFileSystem files;
    std::uint64_t size = 0;
    ASSERT_TRUE(files.truncate(at("old"), 0).ok());
    auto old = files.open_append(at("old"), size);
    ASSERT_TRUE(old.ok());
    ASSERT_TRUE((*old)->write_at(0, bytes_of("after")).ok());
    ASSERT_TRUE((*old)->sync().ok());
    ASSERT_TRUE((*old)->close().ok());
    ASSERT_TRUE(files.rename(at("step"), at("moved")).ok());
    ASSERT_TRUE(files.remove(at("moved/deep/a")).ok());
    ASSERT_TRUE(files.remove_empty_folder(at("moved/deep")).ok());
    ASSERT_TRUE(files.remove_empty_folder(at("moved")).ok());
    EXPECT_EQ(text_of(at("step/deep/a")), "(none)");
    files.power_cut();
    EXPECT_EQ(text_of(at("old")), "after") << "same file, its new bytes were synced";
    EXPECT_EQ(text_of(at("step/deep/a")), "A");
    EXPECT_FALSE(std::filesystem::exists(at("moved")));
}

TEST_F(FaultyFileSystemTest, PowerCutMovesFoldersBack) {
    FaultyFileSystem files;
    ASSERT_TRUE(files.make_folders(at("run/step.tmp")).ok());
    ASSERT_TRUE(put(files, at("run/step.tmp/data"), "bytes", true).ok());
    ASSERT_TRUE(files.sync_folder(at("run/step.tmp")).ok());
    ASSERT_TRUE(files.rename(at("run/step.tmp"), at("run/step")).ok());
    EXPECT_EQ(text_of(at("run/step/data")), "bytes");
    files.power_cut();
    EXPECT_EQ(text_of(at("run/step.tmp/data")), "bytes");
    EXPECT_FALSE(std::filesystem::exists(at("run/step")));
    ASSERT_TRUE(files.rename(at("run/step.tmp"), at("run/step")).ok());
    ASSERT_TRUE(files.sync_folder(at("run")).ok());
    files.power_cut();
    EXPECT_EQ(text_of(at("run/step/data")), "bytes");
}

// The machine goes down before each operation in turn, and the disk keeps any part of what was not synced.
TEST_F(FaultyFileSystemTest, SafeReplacementSurvivesEveryCut) {
    for (std::size_t n = 1; n <= 8; ++n) {
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
            FaultyFileSystem files;
            ASSERT_TRUE(replace(files, folder_, "the old text").ok());
            files.inject({.at = n, .written_first = 4, .dead_after = true});
            const bool done = replace(files, folder_, "the new text").ok();
            EXPECT_EQ(done, n == 8);
            files.power_cut(seed);
            const std::string text = text_of(at("final"));
            if (done) {
                EXPECT_EQ(text, "the new text");
            } else {
                EXPECT_TRUE(text == "the old text" || text == "the new text")
                    << n << " " << seed << ": " << text;
            }
        }
    }
}

// The decorator finds the classic mistake.
TEST_F(FaultyFileSystemTest, ReplacementWithoutSyncIsCaught) {
    bool caught = false;
    for (std::uint64_t seed = 0; seed < 50 && !caught; ++seed) {
        FaultyFileSystem files;
        ASSERT_TRUE(replace(files, folder_, "old").ok());
        ASSERT_TRUE(put(files, at("tmp"), "new", false).ok());
        ASSERT_TRUE(files.replace(at("tmp"), at("final")).ok());
        files.power_cut(seed);
        const std::string text = text_of(at("final"));
        caught = text != "old" && text != "new";
    }
    EXPECT_TRUE(caught);
}

}  // namespace
}  // namespace twinrun::testing
