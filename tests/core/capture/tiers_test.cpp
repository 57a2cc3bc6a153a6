// What the node-local tier promises where nobody brings steps on, and to whom it may go.
#include "capture/tiers.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "capture/failure.hpp"
#include "capture/session.hpp"
#include "history/flush.hpp"
#include "history/flushed.hpp"
#include "support/session.hpp"
#include "support/test_folder.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::ThreadsComm;
using Steps = std::vector<std::int64_t>;

class TiersTest : public testing::FolderTest {
   protected:
    void SetUp() override {
        run_ = (folder_ / "run").string();
        local_ = (folder_ / "local").string();
    }

    [[nodiscard]] SessionSettings settings(Flusher flusher, Existing existing = Existing::refuse) const {
        SessionSettings s;
        s.memory_bytes = 16 << 20;
        s.threads = 1;
        s.flush_threads = 1;
        s.local = local_;
        s.flusher = flusher;
        s.existing = existing;
        return s;
    }
    static CapturedField field(std::vector<double>& values, std::int64_t step) {
        std::fill(values.begin(), values.end(), static_cast<double>(step));
        return testing::captured("x", values);
    }
    static Result<CaptureReport> capture(Session& run, std::int64_t step) {
        std::vector<double> values(500);
        return run.capture_fields(step, {field(values, step)});
    }
    static void expect_whole(Session& run, const Steps& steps) {
        EXPECT_EQ(run.committed(), steps);
        for (const std::int64_t step : steps) {
            std::vector<double> values(500);
            const CapturedField to = field(values, -1);
            const auto restored = run.restore_fields(step, {to});
            EXPECT_TRUE(restored) << restored.error().message;
            EXPECT_EQ(values.back(), static_cast<double>(step));
        }
    }
    Result<FlushFacts> flush(int rank = 0) const {
        return flush_folder(posix_file_system(), local_path(local_, static_cast<std::uint32_t>(rank)), run_,
                            [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
    }

    SelfComm comm_;
    std::string run_;
    std::string local_;
};

TEST_F(TiersTest, WhereNobodyBringsStepsOnTheLocalTierIsTheLast) {
    for (const int ranks : {1, 3}) {
        fs::remove_all(run_);
        fs::remove_all(local_);
        const auto session = [&](Comm& comm, SessionSettings s) {
            auto run = Session::open(posix_file_system(), comm, run_, std::move(s));
            EXPECT_TRUE(run) << run.error().message;
            return run ? std::move(run).value() : nullptr;
        };
        ThreadsComm::run(ranks, [&](Comm& comm) {
            auto run = session(comm, settings(Flusher::none));
            ASSERT_NE(run, nullptr);
            for (std::int64_t step = 1; step <= 3; ++step)
                ASSERT_TRUE(capture(*run, step));
            const auto lost = run->wait();
            ASSERT_TRUE(lost && lost->empty());
            EXPECT_EQ(run->latest().value(), std::optional<std::int64_t>(3));
            EXPECT_EQ(run->latest(2).value(), std::optional<std::int64_t>(2));
            EXPECT_EQ(run->local_only(), (Steps{1, 2, 3}));
            ASSERT_TRUE(run->close());
        });
        ASSERT_TRUE(History::open(run_));
        EXPECT_TRUE(History::open(run_)->steps.empty());
        // Rank 1 lost its last step, as when its node died: no rank goes on from it, and all may capture it again.
        if (ranks > 1) {
            auto part = LocalHistory::read(local_path(local_, 1));
            ASSERT_TRUE(part);
            auto writer = HistoryWriter::open_local(posix_file_system(), local_path(local_, 1),
                                                    part->settings, 1, part->ranks, part->history, false);
            ASSERT_TRUE(writer);
            const std::int64_t three = 3;
            ASSERT_TRUE((*writer)->drop({&three, 1}));
        }
        const std::int64_t newest = ranks > 1 ? 2 : 3;
        ThreadsComm::run(ranks, [&](Comm& comm) {
            auto run = session(comm, settings(Flusher::none, Existing::append));
            ASSERT_NE(run, nullptr);
            EXPECT_EQ(run->latest().value(), std::optional<std::int64_t>(newest));
            const auto again = capture(*run, newest);
            ASSERT_FALSE(again);
            EXPECT_NE(again.error().message.find("captured already"), std::string::npos);
            for (std::int64_t step = newest + 1; step <= 4; ++step)
                ASSERT_TRUE(capture(*run, step));
            ASSERT_TRUE(run->wait());
            expect_whole(*run, {1, 2, 3, 4});
            EXPECT_EQ(run->latest().value(), std::optional<std::int64_t>(4));
            ASSERT_TRUE(run->close());
        });
        // Half of the ranks' steps are brought on by hand: still all are seen.
        ASSERT_TRUE(flush(0));
        ThreadsComm::run(ranks, [&](Comm& comm) {
            auto run = session(comm, settings(Flusher::none, Existing::append));
            ASSERT_NE(run, nullptr);
            EXPECT_EQ(run->local_only(), comm.rank() == 0 ? Steps{} : (Steps{1, 2, 3, 4}));
            EXPECT_EQ(run->latest().value(), std::optional<std::int64_t>(4));
            expect_whole(*run, {1, 2, 3, 4});
            ASSERT_TRUE(run->close());
        });
        // A later run that brings steps on finds them.
        ThreadsComm::run(ranks, [&](Comm& comm) {
            auto run = session(comm, settings(Flusher::thread, Existing::append));
            ASSERT_NE(run, nullptr);
            EXPECT_TRUE(run->local_only().empty());
            EXPECT_EQ(run->latest().value(), std::optional<std::int64_t>(4));
            expect_whole(*run, {1, 2, 3, 4});
            ASSERT_TRUE(run->close());
        });
        EXPECT_EQ(History::open(run_)->steps.size(), 4U);
    }
}

TEST_F(TiersTest, RetentionTakesPlaceWhereStepsStay) {
    SessionSettings s = settings(Flusher::none);
    s.keep.steps = 3;
    s.keep.data_steps = 2;
    {
        auto run = Session::open(posix_file_system(), comm_, run_, s);
        ASSERT_TRUE(run) << run.error().message;
        for (std::int64_t step = 0; step < 6; ++step)
            ASSERT_TRUE(capture(**run, step));
        ASSERT_TRUE((*run)->close());
    }
    const auto part = LocalHistory::read(local_path(local_, 0));
    ASSERT_TRUE(part);
    Steps steps;
    Steps with_data;
    for (const auto& [step, entry] : part->journal.steps) {
        steps.push_back(step);
        if (!entry.files.data.empty()) with_data.push_back(step);
    }
    EXPECT_EQ(steps, (Steps{3, 4, 5}));
    EXPECT_EQ(with_data, (Steps{4, 5}));
    ASSERT_TRUE(flush());
    EXPECT_EQ(History::open(run_)->steps.size(), 3U);
    // Those that are on both tiers leave both.
    s.existing = Existing::append;
    auto run = Session::open(posix_file_system(), comm_, run_, s);
    ASSERT_TRUE(run) << run.error().message;
    ASSERT_TRUE(capture(**run, 6));
    ASSERT_TRUE((*run)->wait());
    EXPECT_EQ((*run)->committed(), (Steps{4, 5, 6}));
    ASSERT_TRUE((*run)->close());
    EXPECT_EQ(History::open(run_)->steps.size(), 2U);
}

// A step that could not be brought on is on no list, and may be captured again.
TEST_F(TiersTest, WhatCouldNotBeBroughtOnIsNotCapturedAlready) {
    {
        auto run = Session::open(posix_file_system(), comm_, run_, settings(Flusher::none));
        ASSERT_TRUE(run);
        for (std::int64_t step = 1; step <= 2; ++step)
            ASSERT_TRUE(capture(**run, step));
        ASSERT_TRUE((*run)->close());
    }
    const fs::path data = fs::path(local_path(local_, 0)) / step_folder(2, 0) / "rank-00000.data";
    std::fstream(data, std::ios::in | std::ios::out | std::ios::binary).put('!');
    auto run = Session::open(posix_file_system(), comm_, run_, settings(Flusher::thread, Existing::append));
    ASSERT_TRUE(run) << run.error().message;
    EXPECT_EQ((*run)->latest().value(), std::optional<std::int64_t>(1));
    EXPECT_EQ((*run)->local_only(), Steps{2});
    EXPECT_FALSE(capture(**run, 1));
    ASSERT_TRUE(capture(**run, 2));
    ASSERT_TRUE((*run)->wait());
    expect_whole(**run, {1, 2});
    EXPECT_TRUE((*run)->local_only().empty());
}

TEST_F(TiersTest, AFlushedPartMayGoToAnotherHistory) {
    const std::string other = (folder_ / "other").string();
    const auto open_other = [&](Existing existing = Existing::append) {
        return Session::open(posix_file_system(), comm_, other, settings(Flusher::thread, existing));
    };
    const auto refused = [&] {
        const auto run = open_other();
        EXPECT_FALSE(fs::exists(other)) << "asking makes no history";
        return !run && run.error().message.find("twinrun flush") != std::string::npos;
    };
    {
        auto run = Session::open(posix_file_system(), comm_, run_, settings(Flusher::none));
        ASSERT_TRUE(run);
        for (std::int64_t step = 1; step <= 3; ++step)
            ASSERT_TRUE(capture(**run, step));
        ASSERT_TRUE((*run)->close());
    }
    EXPECT_TRUE(refused()) << "its steps are nowhere else";
    ASSERT_TRUE(flush());
    // What is not really there is not given up.
    const fs::path data = fs::path(run_) / step_folder(2, 0) / "rank-00000.data";
    fs::rename(data, folder_ / "away");
    EXPECT_TRUE(refused());
    std::ofstream(data) << "short";
    EXPECT_TRUE(refused());
    fs::remove(data);
    fs::rename(folder_ / "away", data);
    // Nor what is there and not as it was: of its size, but of other bytes.
    for (const char* name : {"rank-00000.data", "rank-00000.twm"}) {
        const fs::path file = fs::path(run_) / step_folder(2, 0) / name;
        fs::copy_file(file, folder_ / "kept");
        {
            std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
            stream.seekp(name == std::string("rank-00000.data") ? 64 : 4100);  // data; the first section
            stream.write("damaged", 7);
        }
        EXPECT_TRUE(refused()) << name;
        fs::remove(file);
        fs::rename(folder_ / "kept", file);
    }
    fs::rename(run_, folder_ / "moved");
    EXPECT_TRUE(refused());
    fs::rename(folder_ / "moved", run_);
    // A file of somebody's lies in the folder too.
    const fs::path mine = fs::path(local_path(local_, 0)) / "notes.txt";
    std::ofstream(mine) << "mine";
    {
        auto run = open_other();
        ASSERT_TRUE(run) << run.error().message;
        ASSERT_TRUE(capture(**run, 7));
        ASSERT_TRUE((*run)->close());
    }
    EXPECT_EQ(History::open(other)->steps.size(), 1U);
    EXPECT_EQ(History::open(run_)->steps.size(), 3U);
    EXPECT_TRUE(fs::exists(mine));
    // And back: the flusher has brought all of it on.
    auto run = Session::open(posix_file_system(), comm_, run_, settings(Flusher::thread, Existing::append));
    ASSERT_TRUE(run) << run.error().message;
    expect_whole(**run, {1, 2, 3});
}

// Refused once is refused twice: asking makes no history that the steps would be taken for.
TEST_F(TiersTest, StepsOfAHistoryThatIsGoneAreNotTakenForAnother) {
    {
        auto run = Session::open(posix_file_system(), comm_, run_, settings(Flusher::none));
        ASSERT_TRUE(run);
        ASSERT_TRUE(capture(**run, 1));
        ASSERT_TRUE((*run)->close());
    }
    fs::remove_all(run_);
    for (int i = 0; i < 2; ++i) {
        const auto run =
            Session::open(posix_file_system(), comm_, run_, settings(Flusher::thread, Existing::append));
        ASSERT_FALSE(run);
        EXPECT_NE(run.error().message.find("any more"), std::string::npos) << run.error().message;
        EXPECT_FALSE(History::exists(run_));
    }
    auto run = Session::open(posix_file_system(), comm_, run_, settings(Flusher::thread, Existing::replace));
    ASSERT_TRUE(run) << run.error().message;
    expect_whole(**run, {});
}

// Parts of two runs, as when they are gathered from several nodes: no step is made of both.
TEST_F(TiersTest, PartsOfTwoRunsMakeNoHistory) {
    const std::string other = (folder_ / "other").string();
    const std::string made = (folder_ / "made").string();
    for (const bool first : {true, false}) {
        SessionSettings s = settings(Flusher::none);
        s.local = first ? local_ : local_ + "-2";
        ThreadsComm::run(2, [&](Comm& comm) {
            auto run = Session::open(posix_file_system(), comm, first ? run_ : other, s);
            ASSERT_TRUE(run) << run.error().message;
            ASSERT_TRUE(capture(**run, 1));
            ASSERT_TRUE((*run)->close());
        });
    }
    const std::vector<std::string> mixed{local_path(local_, 0), local_path(local_ + "-2", 1)};
    const auto id = id_of_parts(mixed, made);
    ASSERT_FALSE(id);
    EXPECT_EQ(id.error().code, ErrorCode::mismatch);
    EXPECT_NE(id.error().message.find(mixed[1]), std::string::npos) << id.error().message;
    EXPECT_FALSE(fs::exists(made));
    const std::vector<std::string> parts{local_path(local_, 0), local_path(local_, 1)};
    const auto own = id_of_parts(parts, made);
    ASSERT_TRUE(own) << own.error().message;
    EXPECT_EQ(*own, read_history_id(run_).value());
    // One after the other: what is there says whose it is.
    const auto flush_to = [&](const std::string& part, const std::string& history) {
        return flush_folder(posix_file_system(), part, history,
                            [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
    };
    ASSERT_TRUE(flush_to(parts[0], made));
    const auto refused = flush_to(mixed[1], made);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::mismatch);
    EXPECT_FALSE(fs::exists(journal_path(made, 1, 2))) << "nothing is written";
    ASSERT_TRUE(flush_to(parts[1], made));
    EXPECT_EQ(History::open(made)->steps.size(), 1U);
    EXPECT_EQ(read_history_id(made).value(), *own) << "it is the same history again";
    // Where the path is another run's now, and the history was lost.
    fs::remove_all(run_);
    ASSERT_TRUE(flush_to(mixed[1].substr(0, mixed[1].size() - 1) + "0", run_));
    EXPECT_FALSE(flush_to(parts[1], run_));
    EXPECT_TRUE(History::open(run_)->steps.empty());
}

// Who replaces a history may be killed before the ranks' journals are new.
TEST_F(TiersTest, StepsOfAReplacedHistoryAreNotBroughtIntoTheOneInItsPlace) {
    ThreadsComm::run(2, [&](Comm& comm) {
        auto run = Session::open(posix_file_system(), comm, run_, settings(Flusher::none));
        ASSERT_TRUE(run) << run.error().message;
        ASSERT_TRUE(capture(**run, 1));
        ASSERT_TRUE((*run)->close());
    });
    fs::copy(run_, folder_ / "before");
    std::uint32_t ranks = 0;
    const HistorySettings same = read_history_settings(run_, ranks).value();
    ASSERT_TRUE(HistoryWriter::open(posix_file_system(), run_, same, 0, ranks, Existing::replace));
    for (const bool journals : {true, false}) {
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            const fs::path journal = journal_path(run_, rank, ranks);
            fs::remove(journal);
            if (journals) fs::copy_file(folder_ / "before" / journal.filename(), journal);
        }
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            const fs::path journal = journal_path(run_, rank, ranks);
            const auto size = journals ? fs::file_size(journal) : 0;
            const auto done = flush_folder(posix_file_system(), local_path(local_, rank), run_,
                                           [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
            ASSERT_FALSE(done);
            EXPECT_NE(done.error().message.find("is not the history that"), std::string::npos)
                << done.error().message;
            EXPECT_EQ(fs::exists(journal), journals) << "nothing is written";
            EXPECT_EQ(journals ? fs::file_size(journal) : 0, size);
        }
    }
    EXPECT_TRUE(History::open(run_)->steps.empty());
    // Nor are they given up because the other history has, or had, a later attempt at them.
    auto writer = HistoryWriter::open(posix_file_system(), run_, same, 0, ranks, Existing::append);
    ASSERT_TRUE(writer) << writer.error().message;
    const auto part = LocalHistory::read(local_path(local_, 0));
    ASSERT_TRUE(part);
    RankStep later = part->journal.steps.at(1);
    later.folder = step_folder(1, 1);
    const HistoryWriter::Commit line{1, later};
    ASSERT_TRUE((*writer)->commit({&line, 1}));
    const std::int64_t one = 1;
    ASSERT_TRUE((*writer)->drop({&one, 1}));
    EXPECT_FALSE(is_flushed(*part));
}

TEST(RunFailure, AThreadThatCannotBeStartedSaysWhatToDo) {
    const Error error =
        failure_of("run", std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
    EXPECT_EQ(error.code, ErrorCode::out_of_memory);
    for (const char* said : {"run: no thread could be started", "ulimit -u", "flush_threads"})
        EXPECT_NE(error.message.find(said), std::string::npos) << error.message;
    EXPECT_EQ(failure_of("run", std::bad_alloc()).code, ErrorCode::out_of_memory);
    EXPECT_EQ(failure_of("run", std::runtime_error("why")).message, "run: why");
}

// Looking at each of many fields reads the step's directory once.
TEST_F(TiersTest, WhatIsStoredIsReadOnce) {
    auto run = Session::open(posix_file_system(), comm_, run_, settings(Flusher::thread));
    ASSERT_TRUE(run);
    for (std::int64_t step = 1; step <= 2; ++step)
        ASSERT_TRUE(capture(**run, step));
    ASSERT_TRUE((*run)->wait());
    const auto first = (*run)->stored(1);
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_EQ((*run)->stored(1).value(), *first);
    EXPECT_EQ((*run)->stored(2).value()->directory().step, 2);
    EXPECT_FALSE((*run)->stored(3));
    EXPECT_EQ((*first)->find("x"), std::optional<std::size_t>(0));
    EXPECT_EQ((*first)->find("y"), std::nullopt);
}

}  // namespace
}  // namespace twinrun
