// Folders of steps for readers: histories, and parts of them on node-local tiers.
#include "history/part.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "history/writer.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class HistoryPartTest : public testing::FolderTest {
   protected:
    static void commit(HistoryWriter& writer, std::int64_t step) {
        RankStep entry;
        entry.folder = step_folder(step, 0);
        entry.files.rank = writer.rank();
        entry.files.metadata = rank_name(writer.rank()) + ".twm";
        entry.files.metadata_bytes = 100 + static_cast<std::uint64_t>(step);
        const HistoryWriter::Commit line{step, entry};
        ASSERT_TRUE(writer.commit({&line, 1}));
    }
};

TEST_F(HistoryPartTest, AHistoryIsOpenedAsItIs) {
    const std::string path = (folder_ / "run").string();
    auto writer =
        HistoryWriter::open(posix_file_system(), path, HistorySettings{}, 0, 1, Existing::refuse).value();
    commit(*writer, 4);
    const auto opened = open_history_or_part(path);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_FALSE(opened->local);
    EXPECT_EQ(opened->history.path, path);
    ASSERT_EQ(opened->history.steps.size(), 1U);
    EXPECT_EQ(opened->history.steps[0].step, 4);
}

TEST_F(HistoryPartTest, AManifestThatIsNoFileIsSaidToBeWhatItIs) {
    const fs::path manifest = folder_ / "manifest.jsonl";
    const std::string path = folder_.string();
    const auto says_of = [](const std::string& at, const std::string& what) {
        std::uint32_t ranks = 0;
        for (const Error& error : {History::open(at).error(), read_history_settings(at, ranks).error(),
                                   LocalHistory::read(at).error(), open_history_or_part(at).error()}) {
            EXPECT_NE(error.message.find(what), std::string::npos) << error.message;
        }
    };
    const auto says = [&](const std::string& what) { says_of(path, what); };
    says("there is no manifest.jsonl in it; name the folder that a run was captured into");
    const std::string other = (folder_ / "other").string();
    says_of(other, other + ": no such file or folder; check the path");
    std::ofstream(other).put('x');
    says_of(other, "a history: it is a file; name the folder");
    fs::remove(other);
    fs::create_symlink("gone", other);
    says_of(other, other + ": is a symbolic link to what is not there; mend the link");
    fs::remove(other);
    fs::create_directory(manifest);
    says(manifest.string() + ": damaged: is a folder");
    fs::remove(manifest);
    ASSERT_EQ(::mkfifo(manifest.c_str(), 0600), 0);
    says(manifest.string() + ": damaged: is a pipe");
    fs::remove(manifest);
    fs::create_symlink("nowhere", manifest);
    says(manifest.string() + ": damaged: is a link that leads to no file");
}

TEST_F(HistoryPartTest, APartHasItsRanksStepsAndSaysWhoseItIs) {
    const std::string path = (folder_ / "part").string();
    HistorySettings settings;
    settings.tolerance = {1e-5, 0};
    auto writer =
        HistoryWriter::open_local(posix_file_system(), path, settings, 2, 3, "/to/run", false).value();
    for (const std::int64_t step : {1, 7})
        commit(*writer, step);
    ASSERT_TRUE(writer->add_provenance({{{"host", {{"name", "node7"}}}}}));
    const auto opened = open_history_or_part(path);
    ASSERT_TRUE(opened) << opened.error().message;
    ASSERT_TRUE(opened->local);
    EXPECT_EQ(opened->local->rank, 2U);
    EXPECT_EQ(opened->local->history, "/to/run");
    const History& history = opened->history;
    EXPECT_EQ(history.path, path);
    EXPECT_EQ(history.ranks, 3U);
    EXPECT_EQ(history.settings, settings);
    EXPECT_FALSE(history.torn);
    ASSERT_EQ(history.steps.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
        const std::int64_t step = i == 0 ? 1 : 7;
        EXPECT_EQ(history.steps[i].step, step);
        EXPECT_EQ(history.steps[i].folder, step_folder(step, 0));
        ASSERT_EQ(history.steps[i].ranks.size(), 1U);
        EXPECT_EQ(history.steps[i].ranks[0].rank, 2U);
        EXPECT_EQ(history.steps[i].ranks[0].metadata_bytes, 100U + static_cast<std::uint64_t>(step));
    }
    ASSERT_EQ(history.provenance.size(), 1U);
    EXPECT_EQ(history.provenance[0].rank, 2U);
    EXPECT_EQ(history.provenance[0].facts.groups.at("host").at("name"), "node7");
}

TEST_F(HistoryPartTest, WhatIsNoHistoryIsAnErrorThatNamesIt) {
    const auto missing = open_history_or_part((folder_ / "nothing").string());
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code, ErrorCode::not_found);
    const std::string path = (folder_ / "part").string();
    static_cast<void>(
        HistoryWriter::open_local(posix_file_system(), path, HistorySettings{}, 0, 1, "/to/run", false)
            .value());
    std::ofstream(fs::path(path) / "manifest.jsonl") << "nonsense\n";
    const auto damaged = open_history_or_part(path);
    ASSERT_FALSE(damaged);
    EXPECT_NE(damaged.error().message.find(path), std::string::npos) << damaged.error().message;
}

}  // namespace
}  // namespace twinrun
