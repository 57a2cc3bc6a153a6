// Copies of a step's files: whole, or nothing.
#include "history/copy_step.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "history/history.hpp"
#include "history/step_check.hpp"
#include "history/writer.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::QuickFolder;
using testing::Truth;
using testing::unsynced_file_system;

// The journal and the file agree on a size that is too small for the fields.
TEST(CopyStep, LeavesNothingOfDataThatIsTooShort) {
    QuickFolder folder;
    std::mt19937_64 random(11);
    Truth truth;
    truth[0].push_back({{"a", testing::random_bytes(random, 5000), 0}});
    testing::capture(folder / "run", truth);
    std::uint32_t ranks = 0;
    const auto settings = read_history_settings(folder / "run", ranks);
    const auto journal = read_rank_journal(folder / "run", 0, 1);
    ASSERT_TRUE(settings && journal);
    RankStep entry = journal->steps.at(0);
    const fs::path source = fs::path(folder / "run") / entry.folder / entry.files.data;
    for (const std::uint64_t bytes : {std::uint64_t{4900}, std::uint64_t{0}}) {
        SCOPED_TRACE(bytes);
        fs::resize_file(source, bytes);
        entry.files.data_bytes = bytes;
        const std::string target = folder / ("to-" + std::to_string(bytes));
        const auto to =
            HistoryWriter::open(unsynced_file_system(), target, *settings, 0, 1, Existing::refuse);
        ASSERT_TRUE(to) << to.error().message;
        const auto copied = copy_step(folder / "run", entry, **to);
        ASSERT_FALSE(copied);
        EXPECT_EQ(copied.error().code, ErrorCode::damaged) << copied.error().message;
        for (const auto& there : fs::directory_iterator(fs::path(target) / entry.folder)) {
            const std::string name = there.path().filename().string();
            EXPECT_TRUE(name == marker_name((*to)->id()) || name == begun_name(0)) << name;
        }
    }
}

// Else the step's copy would be damaged for good, and the history with it.
TEST(CopyStep, LeavesNothingOfFilesWhosePaddingIsNotZero) {
    QuickFolder folder;
    std::mt19937_64 random(12);
    Truth truth;
    truth[0].push_back(
        {{"a", testing::random_bytes(random, 5000), 0}, {"b", testing::random_bytes(random, 72), 0}});
    testing::capture(folder / "run", truth);
    std::uint32_t ranks = 0;
    const auto settings = read_history_settings(folder / "run", ranks);
    const auto journal = read_rank_journal(folder / "run", 0, 1);
    ASSERT_TRUE(settings && journal);
    const RankStep& entry = journal->steps.at(0);
    const std::string target = folder / "to";
    const auto to = HistoryWriter::open(unsynced_file_system(), target, *settings, 0, 1, Existing::refuse);
    ASSERT_TRUE(to) << to.error().message;
    for (const std::string& name : {entry.files.data, entry.files.metadata}) {
        const fs::path source = fs::path(folder / "run") / entry.folder / name;
        const auto whole = read_whole_file(source.string(), 1 << 20).value();
        const auto write = [&](const std::vector<std::byte>& bytes) {
            std::ofstream(source, std::ios::binary)
                .write(reinterpret_cast<const char*>(bytes.data()),
                       static_cast<std::streamsize>(bytes.size()));
        };
        int padding = 0;
        for (std::size_t at = 0; at < whole.size(); at += 7) {
            if (whole[at] != std::byte{0}) continue;
            auto changed = whole;
            changed[at] = std::byte{1};
            write(changed);
            EXPECT_FALSE(is_intact(folder / "run", entry)) << at;
            const auto copied = copy_step(folder / "run", entry, **to);
            ASSERT_FALSE(copied) << name << " " << at;
            EXPECT_EQ(copied.error().code, ErrorCode::damaged);
            const std::string& message = copied.error().message;
            EXPECT_NE(message.find(source.string()), std::string::npos) << message;
            EXPECT_FALSE(fs::exists(fs::path(target) / entry.folder / name));
            if (message.find("not zero") != std::string::npos) ++padding;
        }
        EXPECT_GT(padding, 100) << name;
        write(whole);
    }
    EXPECT_TRUE(is_intact(folder / "run", entry));
    EXPECT_TRUE(copy_step(folder / "run", entry, **to));
}

}  // namespace
}  // namespace twinrun
