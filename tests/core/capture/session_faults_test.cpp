// What may go wrong around a session: threads in each other's way, other processes, ranks that fail
// alone, callbacks that throw. Nothing hangs, nothing ends the program, what was committed reads back, what is lost is told.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "capture/session.hpp"
#include "history/flush.hpp"
#include "history/journal_line.hpp"
#include "history/restore.hpp"
#include "support/session_mishaps.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::SessionMishaps;
using testing::ThreadsComm;

// A tier that has room for one large step: the next, whose first bytes are ready sooner, must not take its place.
TEST_F(SessionMishaps, SmallStepsBehindLargeOnesWaitTheirTurn) {
    SessionSettings s = settings();
    s.local = local_;
    s.local_bytes = 9 << 20;
    auto run = open(s);
    ASSERT_TRUE(run) << run.error().message;
    std::vector<double> large(1'000'000);
    std::vector<double> small(10);
    for (std::int64_t step = 0; step < 30; ++step) {
        const auto report = (*run)->capture_fields(step, {field(step % 2 == 0 ? large : small, step)});
        ASSERT_TRUE(report) << report.error().message;
    }
    const auto lost = (*run)->close();
    ASSERT_TRUE(lost && lost->empty());
    EXPECT_EQ(check(run_).size(), 30U);
}

// Steps captured again and again while older attempts are on their way, and their data goes.
TEST_F(SessionMishaps, StepsAreReplacedOnTheirWay) {
    SessionSettings s = settings();
    s.local = local_;
    s.local_bytes = 2 << 20;
    s.replace_steps = true;
    s.keep.steps = 3;
    s.keep.data_steps = 1;
    for (int round = 0; round < 8; ++round) {
        s.existing = round == 0 ? Existing::refuse : Existing::append;
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        std::vector<double> values(5000);
        for (int i = 0; i < 60; ++i) {
            const std::int64_t step = i * 7 % 5 / (i % 3 + 1);
            const auto report = (*run)->capture_fields(step, {field(values, step)});
            ASSERT_TRUE(report) << report.error().message;
            EXPECT_TRUE(report->lost.empty()) << report->lost[0].error.message;
        }
        ASSERT_TRUE((*run)->capture_fields(4, {field(values, 4)}));
        const auto lost = (*run)->close();
        ASSERT_TRUE(lost && lost->empty());
        const auto steps = check(run_);
        EXPECT_LE(steps.size(), 3U);
        EXPECT_TRUE(std::binary_search(steps.begin(), steps.end(), 4));
        EXPECT_EQ((*run)->facts().committed, 61U);
    }
}

// A newer attempt may arrive just as an older one is taken to be flushed. Each has its turn, or retention ends.
TEST_F(SessionMishaps, AttemptsThatMeetTheirFlushAreSettled) {
    SessionSettings s = settings();
    s.local = local_;
    s.local_bytes = 2 << 20;
    s.replace_steps = true;
    s.keep.steps = 2;
    // The more threads want a core, the more often one loses it between two locks.
    std::vector<std::jthread> others;
    for (int i = 0; i < 2; ++i) {
        others.emplace_back([](const std::stop_token& stop) {
            while (!stop.stop_requested())
                std::this_thread::yield();
        });
    }
    for (int round = 0; round < 4 && !HasFailure(); ++round) {
        s.existing = round == 0 ? Existing::refuse : Existing::replace;
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        std::vector<double> values(8);
        for (int i = 0; i < 100; ++i)
            ASSERT_TRUE((*run)->capture_fields(i % 3 / 2, {field(values, i)}));
        for (int step = 10; step < 16; ++step)
            ASSERT_TRUE((*run)->capture_fields(step, {field(values, step)}));
        const auto lost = (*run)->close();
        ASSERT_TRUE(lost && lost->empty());
        EXPECT_EQ(check(run_), (std::vector<std::int64_t>{14, 15}));
    }
}

// Who opens a history waits for the one that writes it, before it reads what is there.
TEST_F(SessionMishaps, WhatIsCommittedWhileTheNextOneWaitsStays) {
    for (const bool local : {false, true}) {
        const std::string path = (folder_ / (local ? "l" : "r")).string();
        const HistorySettings history = settings().history;
        const auto open_writer = [&](Existing existing) {
            return local ? HistoryWriter::open_local(posix_file_system(), path, history, 0, 1, "/nowhere/run",
                                                     false)
                         : HistoryWriter::open(posix_file_system(), path, history, 0, 1, existing);
        };
        auto writer = open_writer(Existing::refuse);
        ASSERT_TRUE(writer) << writer.error().message;
        std::atomic<bool> begins = false;
        std::size_t seen = 0;
        std::thread other([&] {
            begins = true;
            const auto next = open_writer(Existing::append);
            ASSERT_TRUE(next) << next.error().message;
            seen = (*next)->journal().steps.size();
            for (const auto& [step, entry] : (*next)->journal().steps)
                EXPECT_TRUE(fs::exists(fs::path(path) / entry.folder / "x")) << step;
        });
        while (!begins)
            std::this_thread::yield();
        for (std::int64_t step = 0; step < 30; ++step) {
            RankStep entry;
            entry.folder = step_folder(step, 0);
            entry.files.metadata = "x";
            fs::create_directories(fs::path(path) / entry.folder);
            std::ofstream(fs::path(path) / entry.folder / "x") << step;
            const HistoryWriter::Commit commit{step, entry};
            ASSERT_TRUE((*writer)->commit({&commit, 1}));
        }
        writer->reset();
        other.join();
        EXPECT_EQ(seen, 30U);
    }
}

// Steps leave while they are read back: each is whole, or said to have left.
TEST_F(SessionMishaps, StepsLeaveWhileTheyAreRestored) {
    for (const bool replaced : {false, true}) {
        fs::remove_all(run_);
        SessionSettings s = settings();
        s.keep.steps = replaced ? 0 : 1;
        s.replace_steps = replaced;
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        std::vector<double> values(200'000);
        std::vector<double> back(values.size());
        const auto restore = [&](std::int64_t step) {
            const auto restored = (*run)->restore_fields(step, {field(back, -1)});
            if (restored) {
                const double found = back[0];
                EXPECT_TRUE(std::all_of(back.begin(), back.end(), [&](double v) { return v == found; }));
                EXPECT_TRUE(replaced ? found >= 1 : found == static_cast<double>(step)) << found;
            } else {
                EXPECT_FALSE(replaced) << restored.error().message;
                EXPECT_EQ(restored.error().code, ErrorCode::not_found) << restored.error().message;
                EXPECT_TRUE(restored.error().message.find("was removed while") != std::string::npos ||
                            restored.error().message.find("has not committed") != std::string::npos)
                    << restored.error().message;
            }
        };
        for (std::int64_t i = 1; i <= 60; ++i) {
            ASSERT_TRUE((*run)->capture_fields(replaced ? 1 : i, {field(values, i)}));
            // Until it is committed, and what was there is gone.
            while ((*run)->facts().committed != static_cast<std::uint64_t>(i)) {
                for (const std::int64_t step : (*run)->committed())
                    restore(step);
            }
        }
        ASSERT_TRUE((*run)->close());
    }
}

TEST_F(SessionMishaps, HostileLinesAreRefused) {
    const std::string head = seal_line(
        R"({"atol":0.0,"chunk_bytes":4096,"digest":"linear","keep_data":true,"residue_bits":4,"rtol":0.0,"twinrun_history":1})");
    const auto line = [](const std::string& folder, const std::string& metadata,
                         const std::string& more = "") {
        return R"({"folder":")" + folder +
               R"(","ranks":[{"data":"","data_bytes":0,"header_xxh3":"0000000000000000",)" +
               R"("metadata":")" + metadata + R"(","metadata_bytes":0,"rank":0}],"step":1)" + more + "}";
    };
    fs::create_directories(run_);
    const auto opens = [&](const std::string& first, const std::string& second) {
        std::ofstream(manifest_path(run_), std::ios::trunc) << first << "\n" << seal_line(second) << "\n";
        return History::open(run_).ok();
    };
    EXPECT_TRUE(opens(head, line("step-1", "m")));
    EXPECT_FALSE(opens(head, line("", "m"))) << "to drop it would remove the history";
    EXPECT_FALSE(opens(head, line("step-1", "")));
    EXPECT_FALSE(opens(head, R"({"drop":1})"));
    EXPECT_FALSE(opens(head, R"({"drop":1.5})"));
    EXPECT_FALSE(opens(head, R"({"step":9223372036854775808})"));
    EXPECT_FALSE(opens(head, R"([1])"));
    const auto with_ranks = [&](const std::string& ranks) {
        return seal_line(R"({"atol":0.0,"chunk_bytes":4096,"digest":"linear","keep_data":true,"ranks":)" +
                         ranks + R"(,"residue_bits":4,"rtol":0.0,"twinrun_history":1})");
    };
    for (const char* ranks : {"0", "-1", "4294967296", "16777217", "1e3", "\"2\""}) {
        std::ofstream(manifest_path(run_), std::ios::trunc) << with_ranks(ranks) << "\n";
        EXPECT_FALSE(History::open(run_)) << ranks;
    }
    std::ofstream(manifest_path(run_), std::ios::trunc) << with_ranks("16777216") << "\n";
    EXPECT_TRUE(History::open(run_));  // and at once
}

TEST_F(SessionMishaps, CallbacksThatThrowHarmNothing) {
    const std::string reference = (folder_ / "reference").string();
    std::vector<double> values(5000);
    {
        auto run = Session::open(posix_file_system(), comm_, reference, settings());
        ASSERT_TRUE((*run)->capture_fields(1, {field(values, 7)}));
        ASSERT_TRUE((*run)->close());
    }
    for (const bool stop : {false, true}) {
        SessionSettings s = settings();
        s.reference = reference;
        s.stop_on_divergence = stop;
        s.existing = Existing::replace;
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        std::atomic<int> calls = 0;
        (*run)->on_divergence([&](const Divergence&) {
            ++calls;
            throw std::runtime_error("of the application");
        });
        const auto report = (*run)->capture_fields(1, {field(values, 1)});
        ASSERT_TRUE(report) << report.error().message;
        const auto lost = (*run)->close();
        ASSERT_TRUE(lost && lost->empty());
        EXPECT_EQ(calls, 1);
        EXPECT_EQ(check(run_), std::vector<std::int64_t>{1});
    }
}

// A reference that cannot be read proves nothing, and costs no step.
TEST_F(SessionMishaps, ADamagedReferenceCostsNoStep) {
    const std::string reference = (folder_ / "reference").string();
    std::vector<double> values(40'000);
    for (const int damage : {0, 1, 2}) {
        fs::remove_all(reference);
        fs::remove_all(run_);
        {
            auto run = Session::open(posix_file_system(), comm_, reference, settings());
            ASSERT_TRUE((*run)->capture_fields(1, {field(values, 1)}));
            ASSERT_TRUE((*run)->close());
        }
        const fs::path file = fs::path(reference) / "step-0000000001" / "rank-00000.twm";
        if (damage == 0) fs::remove(file);
        if (damage != 0) {
            std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
            stream.seekp(damage == 1 ? 20 : 4100);  // header; the first section
            stream.write("damaged", 7);
        }
        for (const bool stop : {false, true}) {
            SessionSettings s = settings();
            s.reference = reference;
            s.stop_on_divergence = stop;
            s.existing = Existing::replace;
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            std::atomic<int> calls = 0;
            (*run)->on_divergence([&](const Divergence& d) {
                ++calls;
                EXPECT_NE(d.reason.find("cannot be read"), std::string::npos) << d.reason;
            });
            const auto report = (*run)->capture_fields(1, {field(values, 1)});
            ASSERT_TRUE(report) << report.error().message;
            EXPECT_EQ(report->divergence.has_value(), stop);
            const auto lost = (*run)->close();
            ASSERT_TRUE(lost && lost->empty());
            EXPECT_EQ(calls, 1) << damage;
            EXPECT_EQ(check(run_), std::vector<std::int64_t>{1});
        }
    }
}

TEST_F(SessionMishaps, TheProgramMayChangeItsFolder) {
    const fs::path before = fs::current_path();
    fs::create_directories(folder_ / "elsewhere");
    fs::current_path(folder_);
    SessionSettings s = settings();
    s.local = "local";
    std::vector<double> values(1000);
    {
        auto run = Session::open(posix_file_system(), comm_, "run", s);
        fs::current_path(folder_ / "elsewhere");
        ASSERT_TRUE(run) << run.error().message;
        EXPECT_EQ((*run)->path(), "run");
        auto x = field(values, 1);
        ASSERT_TRUE((*run)->protect(x));
        ASSERT_TRUE((*run)->capture(1));
        const auto lost = (*run)->wait();
        EXPECT_TRUE(lost && lost->empty());
        EXPECT_EQ((*run)->latest().value(), 1);
        EXPECT_TRUE((*run)->restore(1));
        ASSERT_TRUE((*run)->close());
    }
    fs::current_path(before);
    EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere"));
    EXPECT_EQ(check(run_), std::vector<std::int64_t>{1});
}

// A child of fork() has the session's memory, not its threads: it must neither hang nor touch the files.
TEST_F(SessionMishaps, ForkedProcessesLeaveARunAlone) {
    SessionSettings s = settings();
    s.local = local_;
    std::vector<double> values(200'000);
    auto run = open(s);
    ASSERT_TRUE(run);
    for (std::int64_t step = 0; step < 4; ++step)
        ASSERT_TRUE((*run)->capture_fields(step, {field(values, step)}));
    int go[2];
    ASSERT_EQ(::pipe(go), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(600);  // a child that hangs fails the test
        ::close(go[1]);
        const bool refused = !(*run)->capture_fields(9, {field(values, 9)}) && !(*run)->wait();
        run->reset();
        char byte;
        while (::read(go[0], &byte, 1) > 0) {
        }  // until the parent is done: its locks must not live on here
        ::_exit(refused ? 0 : 1);
    }
    ::close(go[0]);
    const auto lost = (*run)->close();
    ASSERT_TRUE(lost && lost->empty());
    s.existing = Existing::append;
    run = open(s);
    EXPECT_TRUE(run) << run.error().message;
    if (run) {
        EXPECT_TRUE((*run)->close());
    }
    ::close(go[1]);
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(check(run_), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST_F(SessionMishaps, TheFlushingProcessDies) {
    SessionSettings s = settings();
    s.local = local_;
    s.flusher = Flusher::process;
    s.flush_program = (folder_ / "nothing").string();
    EXPECT_FALSE(open(s));
    s.flush_program = "/bin/false";
    s.existing = Existing::append;
    EXPECT_FALSE(open(s));
    s.flush_program.clear();
    std::vector<double> values(100'000);
    std::map<std::int64_t, int> told;
    {
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        pid_t child = -1;
        for (const auto& entry : fs::directory_iterator("/proc")) {
            std::ifstream stat(entry.path() / "stat");
            std::string text;
            std::getline(stat, text);
            const std::string mark = "(twinrun_flush) ";
            const std::size_t at = text.find(mark);
            if (at == std::string::npos) continue;
            int parent = 0;
            if (std::sscanf(text.c_str() + at + mark.size(), "%*c %d", &parent) == 1 && parent == ::getpid())
                child = std::atoi(text.c_str());
        }
        ASSERT_GT(child, 0);
        for (std::int64_t step = 0; step < 8; ++step) {
            if (step == 4) ::kill(child, SIGKILL);
            const auto report = (*run)->capture_fields(step, {field(values, step)});
            ASSERT_TRUE(report) << report.error().message;
            for (const LostStep& lost : report->lost)
                ++told[lost.step];
        }
        const auto lost = (*run)->close();
        ASSERT_TRUE(lost);
        for (const LostStep& step : *lost)
            ++told[step.step];
    }
    const auto steps = check(run_);
    for (std::int64_t step = 0; step < 8; ++step)
        EXPECT_EQ(told[step] + std::count(steps.begin(), steps.end(), step), 1) << step;
    EXPECT_EQ(told[7], 1);
    const auto done = flush_folder(posix_file_system(), local_path(local_, 0), run_,
                                   [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(check(run_).size(), 8U);
}

// ---- several ranks ----

TEST_F(SessionMishaps, ExtremeStepNumbers) {
    for (const std::int64_t step : {INT64_MIN, -INT64_MAX, std::int64_t{-1}, INT64_MAX}) {
        fs::remove_all(run_);
        ThreadsComm::run(2, [&](Comm& comm) {
            auto run = Session::open(posix_file_system(), comm, run_, settings());
            ASSERT_TRUE(run) << run.error().message;
            std::vector<double> values(100);
            // Numbers next to each other are not the same, whatever their negatives are.
            const auto other =
                (*run)->capture_fields(comm.rank() == 0 ? INT64_MIN : -INT64_MAX, {field(values, 1)});
            EXPECT_FALSE(other);
            const auto report = (*run)->capture_fields(step, {field(values, step)});
            EXPECT_TRUE(report) << report.error().message;
            const auto lost = (*run)->close();
            ASSERT_TRUE(lost && lost->empty());
        });
        EXPECT_EQ(check(run_), std::vector<std::int64_t>{step});
    }
}

TEST_F(SessionMishaps, OneRankFailsToOpen) {
    for (const int rank : {0, 1, 2}) {
        for (const int kind : {0, 1, 2, 3}) {
            SCOPED_TRACE("rank " + std::to_string(rank) + ", kind " + std::to_string(kind));
            fs::remove_all(run_);
            fs::remove_all(local_);
            ThreadsComm::run(3, [&](Comm& comm) {
                SessionSettings s = settings();
                s.local = local_;
                if (comm.rank() == rank) {
                    if (kind == 0) s.flush_threads = 0;
                    if (kind == 1) s.local = "/dev/null/nowhere";
                    if (kind == 2) s.keep.steps = 3;
                    if (kind == 3) s.memory_bytes = 1ULL << 62;
                }
                const auto run = Session::open(posix_file_system(), comm, run_, s);
                ASSERT_FALSE(run);
                if (kind != 2) {
                    EXPECT_EQ(run.error().code == ErrorCode::other_rank, comm.rank() != rank)
                        << run.error().message;
                }
            });
        }
    }
}

TEST_F(SessionMishaps, RanksThatFailAloneHoldUpNobody) {
    const std::string reference = (folder_ / "reference").string();
    for (const bool make_reference : {true, false}) {
        ThreadsComm::run(3, [&](Comm& comm) {
            SessionSettings s = settings();
            s.keep.steps = 1000;
            if (!make_reference) {
                s.reference = reference;
                s.stop_on_divergence = true;
            }
            const std::string path = make_reference ? reference : run_;
            auto run = Session::open(posix_file_system(), comm, path, s);
            ASSERT_TRUE(run) << run.error().message;
            std::vector<double> values(100);
            for (std::int64_t step = 0; step < 80; ++step) {
                auto one = field(values, step);
                if (!make_reference && step == 5 && comm.rank() == 1) values[3] += 1;
                const auto report = (*run)->capture_fields(step, {one});
                ASSERT_TRUE(report) << report.error().message;
                EXPECT_EQ(report->divergence.has_value(), !make_reference && step == 5);
                // A name that one rank has not; the numbers of collective calls stay the same.
                const std::vector<std::string> names{"y"};
                if (comm.rank() == 2) {
                    ASSERT_TRUE((*run)->unprotect("y").ok() || true);
                } else {
                    one.name = "y";
                    ASSERT_TRUE((*run)->protect(one));
                }
                EXPECT_FALSE((*run)->capture(1000, names));
            }
            ASSERT_TRUE((*run)->wait());
            EXPECT_EQ((*run)->latest().value(), 79);
            ASSERT_TRUE((*run)->close());
            EXPECT_FALSE((*run)->capture_fields(2000, {field(values, 1)}));
            EXPECT_FALSE((*run)->wait());
        });
    }
}

TEST_F(SessionMishaps, ManyStepsUnderWay) {
    SessionSettings s = settings();
    auto run = open(s);
    ASSERT_TRUE(run);
    std::vector<double> values(1);
    std::vector<double> none;
    for (std::int64_t step = 0; step < 400; ++step)
        ASSERT_TRUE((*run)->capture_fields(step, {field(step % 5 == 0 ? none : values, step)}));
    const auto lost = (*run)->close();
    ASSERT_TRUE(lost && lost->empty());
    EXPECT_EQ(check(run_).size(), 400U);
}

}  // namespace
}  // namespace twinrun
