// Who may write a history: one process at a time, whatever the others ask for.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <thread>

#include "history/history.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class WritersTest : public ::testing::Test {
   protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        folder_ = fs::temp_directory_path() /
                  ("twinrun_" + std::string(info->name()) + "_" + std::to_string(getpid()));
        fs::remove_all(folder_);
        fs::create_directories(folder_);
        run_ = (folder_ / "run").string();
    }
    void TearDown() override { fs::remove_all(folder_); }

    using Opened = Result<std::unique_ptr<HistoryWriter>>;
    [[nodiscard]] Opened open(std::uint32_t rank, std::uint32_t ranks, Existing existing) const {
        return HistoryWriter::open(posix_file_system(), run_, HistorySettings{}, rank, ranks, existing);
    }
    static Result<> commit(HistoryWriter& writer, std::int64_t step) {
        RankStep entry;
        entry.folder = step_folder(step, 0);
        entry.files.rank = writer.rank();
        entry.files.metadata = rank_name(writer.rank()) + ".twm";
        fs::create_directories(fs::path(writer.path()) / entry.folder);
        std::ofstream(fs::path(writer.path()) / entry.folder / entry.files.metadata) << step;
        const HistoryWriter::Commit line{step, entry};
        return writer.commit({&line, 1});
    }
    [[nodiscard]] std::size_t steps() const {
        const auto history = History::open(run_);
        EXPECT_TRUE(history) << history.error().message;
        for (const HistoryStep& step : history->steps) {
            for (const RankFiles& files : step.ranks)
                EXPECT_TRUE(fs::exists(fs::path(run_) / step.folder / files.metadata));
        }
        return history->steps.size();
    }

    fs::path folder_;
    std::string run_;
};

// Each descriptor of a file has a lock of its own: threads stand for processes.
TEST_F(WritersTest, OneOfManyThatBeginAtOnceDoes) {
    constexpr int kWriters = 6;
    for (int round = 0; round < 12; ++round) {
        fs::remove_all(run_);
        const Existing existing = round % 3 == 0 ? Existing::refuse : Existing::append;
        std::barrier start(kWriters);
        std::atomic<int> committed = 0;
        std::atomic<int> refused = 0;
        std::vector<std::thread> writers;
        for (int i = 0; i < kWriters; ++i) {
            writers.emplace_back([&, i] {
                start.arrive_and_wait();
                auto writer = open(0, 1, existing);
                if (!writer) {
                    EXPECT_NE(writer.error().message.find("holds a history already"), std::string::npos)
                        << writer.error().message;
                    ++refused;
                    return;
                }
                const auto done = commit(**writer, i);
                EXPECT_TRUE(done) << done.error().message;
                ++committed;
            });
        }
        for (auto& writer : writers)
            writer.join();
        EXPECT_EQ(committed + refused, kWriters);
        EXPECT_EQ(committed, existing == Existing::refuse ? 1 : kWriters);
        EXPECT_EQ(steps(), static_cast<std::size_t>(committed));
    }
}

TEST_F(WritersTest, RunsOfOtherNumbersOfRanksAreToldApart) {
    const auto busy = [](const Opened& opened) {
        return !opened && opened.error().message.find("another process is writing") != std::string::npos;
    };
    {
        auto alone = open(0, 1, Existing::refuse);
        ASSERT_TRUE(alone) << alone.error().message;
        ASSERT_TRUE(commit(**alone, 1));
        std::thread other([&] { EXPECT_TRUE(busy(open(0, 2, Existing::replace))); });
        EXPECT_TRUE(busy(open(0, 1, Existing::replace)));
        other.join();
        ASSERT_TRUE(commit(**alone, 2));
    }
    EXPECT_EQ(steps(), 2U);
    {
        auto first = open(0, 2, Existing::replace);
        ASSERT_TRUE(first) << first.error().message;
        auto second = open(1, 2, Existing::replace);
        ASSERT_TRUE(second) << second.error().message;
        ASSERT_TRUE(commit(**first, 3));
        ASSERT_TRUE(commit(**second, 3));
        std::vector<std::thread> others;
        others.emplace_back([&] { EXPECT_TRUE(busy(open(0, 1, Existing::append))); });
        others.emplace_back([&] { EXPECT_TRUE(busy(open(0, 1, Existing::replace))); });
        others.emplace_back([&] { EXPECT_TRUE(busy(open(1, 2, Existing::append))); });
        for (auto& other : others)
            other.join();
        // Rank 0 has ended, and rank 1 goes on: nobody takes its steps away.
        first->reset();
        EXPECT_TRUE(busy(open(0, 1, Existing::replace)));
        ASSERT_TRUE(commit(**second, 4));
    }
    EXPECT_EQ(steps(), 1U);
    auto alone = open(0, 1, Existing::replace);
    ASSERT_TRUE(alone) << alone.error().message;
    EXPECT_EQ(steps(), 0U);
}

// Two processes take themselves for the same rank, before it has a journal.
TEST_F(WritersTest, ARankIsThereOnce) {
    auto first = open(0, 3, Existing::refuse);
    ASSERT_TRUE(first);
    std::barrier start(2);
    std::atomic<int> good = 0;
    std::vector<Opened> opened;
    opened.reserve(2);
    opened.emplace_back(Error{ErrorCode::internal, ""});
    opened.emplace_back(Error{ErrorCode::internal, ""});
    std::vector<std::thread> writers;
    for (std::size_t i = 0; i < 2; ++i) {
        writers.emplace_back([&, i] {
            start.arrive_and_wait();
            opened[i] = open(2, 3, Existing::refuse);
            if (opened[i]) ++good;
        });
    }
    for (auto& writer : writers)
        writer.join();
    EXPECT_EQ(good, 1);
    for (auto& one : opened) {
        if (one) {
            EXPECT_TRUE(commit(**one, 1));
        }
    }
    const auto journal = read_rank_journal(run_, 2, 3);
    ASSERT_TRUE(journal) << journal.error().message;
    EXPECT_EQ(journal->steps.size(), 1U);
}

}  // namespace
}  // namespace twinrun
