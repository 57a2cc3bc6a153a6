// What may go wrong around a session: memory that is not there, threads in each other's way, other processes, ranks that fail
// alone, callbacks that throw. Nothing hangs, nothing ends the program, what was committed reads back, what is lost is told.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/utf8.hpp"
#include "capture/session.hpp"
#include "history/flush.hpp"
#include "history/journal_line.hpp"
#include "history/restore.hpp"
#include "support/session.hpp"
#include "support/test_folder.hpp"
#include "support/threads_comm.hpp"

// Allocations of the whole program: the one that is counted down to fails.
namespace {
std::atomic<std::int64_t> allocations_left = -1;  // below 0: none fails

void* counted(std::size_t bytes, std::size_t alignment) {
    if (allocations_left.load(std::memory_order_relaxed) >= 0 && allocations_left.fetch_sub(1) == 0)
        throw std::bad_alloc();
    void* const at = alignment == 0
                         ? std::malloc(bytes == 0 ? 1 : bytes)
                         : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (at == nullptr) throw std::bad_alloc();
    return at;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, 0); }
void* operator new[](std::size_t bytes) { return counted(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t to) {
    return counted(bytes, static_cast<std::size_t>(to));
}
void* operator new[](std::size_t bytes, std::align_val_t to) {
    return counted(bytes, static_cast<std::size_t>(to));
}
// Those that say failure with a null never fail here; they must go with the operators below all the same.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
    const auto alignment = static_cast<std::size_t>(to);
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
    return operator new(bytes, to, std::nothrow);
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::ThreadsComm;

class SessionMishaps : public testing::FolderTest {
   protected:
    void SetUp() override {
        run_ = (folder_ / "run").string();
        local_ = (folder_ / "local").string();
    }
    void TearDown() override {
        allocations_left = -1;
        fs::remove_all(folder_);
    }
    static SessionSettings settings() {
        SessionSettings s;
        s.history.tolerance.atol = 1e-6;
        s.memory_bytes = 16 << 20;
        s.threads = 2;
        return s;
    }
    Result<std::unique_ptr<Session>> open(SessionSettings s) {
        return Session::open(posix_file_system(), comm_, run_, std::move(s));
    }
    // One field, all of whose items are the step's number.
    static CapturedField field(std::vector<double>& values, std::int64_t step) {
        std::fill(values.begin(), values.end(), static_cast<double>(step));
        CapturedField one;
        one.name = "x";
        one.dtype = DType::f64;
        one.shape = {values.size()};
        one.data = values.data();
        return one;
    }
    // Committed steps; each reads back.
    static std::vector<std::int64_t> check(const std::string& path) {
        std::vector<std::int64_t> steps;
        const auto history = History::open(path);
        EXPECT_TRUE(history) << history.error().message;
        if (!history) return steps;
        for (const HistoryStep& step : history->steps) {
            steps.push_back(step.step);
            for (const RankFiles& r : step.ranks) {
                const auto metadata =
                    MetadataFile::open((fs::path(path) / step.folder / r.metadata).string());
                EXPECT_TRUE(metadata) << metadata.error().message;
                if (!metadata || r.data.empty()) continue;
                std::vector<double> values((*metadata)->directory().fields[0].items());
                Journal journal;
                journal.steps[step.step] = {step.folder, r};
                const auto restored = restore_step({{path, journal}}, step.step, {field(values, -1)});
                EXPECT_TRUE(restored) << restored.error().message;
                for (const double value : values) {
                    if (value != static_cast<double>(step.step)) {
                        ADD_FAILURE() << "step " << step.step << " holds " << value;
                        break;
                    }
                }
            }
        }
        return steps;
    }

    SelfComm comm_;
    std::string run_;
    std::string local_;
};

// Any single allocation fails, in whatever thread: each step is there, or told to be lost, and only once.
TEST_F(SessionMishaps, AnyAllocationFails) {
    for (const int kind : {0, 1, 2, 3, 4, 5}) {
        int misses = 0;
        for (std::int64_t at = kind; misses < 3; at += at < 60 ? 1 : 23) {
            SCOPED_TRACE("kind " + std::to_string(kind) + ", allocation " + std::to_string(at));
            fs::remove_all(folder_);
            fs::create_directories(folder_);
            SessionSettings s = settings();
            if (kind == 1) s.local = local_;
            s.background = kind != 2 && kind != 5;
            if (kind >= 4) s.shared_files = SharedFiles::one;
            s.history.keep_data = kind != 3;
            s.keep.data_steps = kind == 1 ? 1 : 0;
            std::vector<double> values(kind == 0 ? 700'000 : 3000);
            std::array<int, 3> told{};  // no memory is taken in between
            const auto tell = [&](std::int64_t step) { ++told[static_cast<std::size_t>(step)]; };
            {
                auto run = open(s);
                ASSERT_TRUE(run) << run.error().message;
                for (std::int64_t step = 0; step < 3; ++step) {
                    const std::int64_t left = step == 0 ? -1 : allocations_left.exchange(-1);
                    std::vector<CapturedField> fields{field(values, step)};
                    allocations_left = step == 1 ? at : left;
                    const auto report = (*run)->capture_fields(step, std::move(fields));
                    if (!report) {
                        tell(step);
                        continue;
                    }
                    for (const LostStep& lost : report->lost)
                        tell(lost.step);
                }
                const auto lost = (*run)->close();
                misses += allocations_left.exchange(-1) >= 0 ? 1 : 0;
                ASSERT_TRUE(lost);
                for (const LostStep& step : *lost)
                    tell(step.step);
            }
            const auto steps = check(run_);
            for (std::int64_t step = 0; step < 3; ++step) {
                EXPECT_LE(told[static_cast<std::size_t>(step)], 1);
                EXPECT_TRUE(told[static_cast<std::size_t>(step)] == 1 ||
                            std::binary_search(steps.begin(), steps.end(), step))
                    << step;
            }
            s.existing = Existing::append;
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            ASSERT_TRUE((*run)->capture_fields(9, {field(values, 9)}));
            const auto lost = (*run)->close();
            ASSERT_TRUE(lost && lost->empty());
            EXPECT_EQ(check(run_).back(), 9);
            if (HasFailure()) return;
        }
    }
}

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

// A journal that somebody takes away: nothing is committed to what cannot be read.
TEST_F(SessionMishaps, AJournalThatIsGoneIsNotBegunAnew) {
    const HistorySettings history = settings().history;
    auto first = HistoryWriter::open(posix_file_system(), run_, history, 0, 2, Existing::refuse);
    ASSERT_TRUE(first);
    auto writer = HistoryWriter::open(posix_file_system(), run_, history, 1, 2, Existing::refuse);
    ASSERT_TRUE(writer);
    RankStep entry;
    entry.folder = step_folder(1, 0);
    entry.files.rank = 1;
    entry.files.metadata = "x";
    const HistoryWriter::Commit commit{1, entry};
    ASSERT_TRUE((*writer)->commit({&commit, 1}));
    fs::remove(journal_path(run_, 1, 2));
    for (int i = 0; i < 3; ++i)
        EXPECT_FALSE((*writer)->commit({&commit, 1}));
    const std::int64_t step = 1;
    EXPECT_FALSE((*writer)->drop({&step, 1}));
    if (fs::exists(journal_path(run_, 1, 2))) {
        EXPECT_EQ(fs::file_size(journal_path(run_, 1, 2)), 0U);
    }
}

// Journals without a manifest may be all that is left of somebody's run: they are neither taken over nor removed.
TEST_F(SessionMishaps, JournalsWithoutAManifestStopARun) {
    const auto open_ranks = [&](Existing existing) {
        std::atomic<int> opened = 0;
        std::atomic<int> named = 0;
        ThreadsComm::run(3, [&](Comm& comm) {
            SessionSettings s = settings();
            s.existing = existing;
            auto run = Session::open(posix_file_system(), comm, run_, s);
            if (!run) {
                named += run.error().message.find("manifest.jsonl: missing, and") != std::string::npos;
                return;
            }
            ++opened;
            std::vector<double> own(100);
            EXPECT_TRUE((*run)->capture_fields(1, {field(own, 1)}));
            ASSERT_TRUE((*run)->close());
        });
        return std::pair(opened.load(), named.load() != 0);
    };
    EXPECT_EQ(open_ranks(Existing::refuse), std::pair(3, false));
    const auto journal = [&](std::uint32_t rank) { return journal_path(run_, rank, 3); };
    std::vector<std::vector<std::byte>> before;
    for (std::uint32_t rank = 0; rank < 3; ++rank)
        before.push_back(read_whole_file(journal(rank), 1 << 20).value());
    for (const Existing existing : {Existing::refuse, Existing::append, Existing::replace}) {
        fs::remove(manifest_path(run_));
        EXPECT_EQ(open_ranks(existing), std::pair(0, true));
        for (std::uint32_t rank = 0; rank < 3; ++rank)
            EXPECT_EQ(read_whole_file(journal(rank), 1 << 20).value(), before[rank]);
    }
    fs::remove(manifest_path(run_));
    for (std::uint32_t rank = 0; rank < 3; ++rank)
        fs::rename(journal(rank), journal(rank) + ".kept");
    EXPECT_EQ(open_ranks(Existing::append), std::pair(0, true)) << "its steps are there";
    fs::rename(run_ + "/step-0000000001", run_ + "/kept");
    EXPECT_EQ(open_ranks(Existing::refuse), std::pair(3, false));
    EXPECT_EQ(check(run_), std::vector<std::int64_t>{1});
}

// Who reads a history needs its names as text.
TEST_F(SessionMishaps, NamesOfFieldsAreText) {
    std::vector<double> values(100);
    auto run = open(settings());
    ASSERT_TRUE(run) << run.error().message;
    CapturedField one = field(values, 1);
    for (const char* name : {"\xff\xfe", "x\xc3", "\xed\xa0\x80", "\xc0\xaf"}) {
        one.name = name;
        const auto protected_field = (*run)->protect(one);
        ASSERT_FALSE(protected_field);
        EXPECT_EQ(protected_field.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(protected_field.error().message.find("\\x"), std::string::npos);
        EXPECT_TRUE(is_utf8(protected_field.error().message)) << "so that it can be told";
        const auto captured = (*run)->capture_fields(1, {one});
        ASSERT_FALSE(captured);
        EXPECT_EQ(captured.error().code, ErrorCode::invalid_argument);
    }
    one.name = "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    ASSERT_TRUE((*run)->protect(one));
    ASSERT_TRUE((*run)->capture(1));
    ASSERT_TRUE((*run)->close());
    const auto history = History::open(run_);
    ASSERT_TRUE(history);
    EXPECT_EQ(history->steps.size(), 1U);
}

// A history that is to be replaced leaves last: what else can be refused is refused before.
TEST_F(SessionMishaps, ARefusedReplacementTakesNothing) {
    std::vector<double> values(100);
    {
        auto run = open(settings());
        ASSERT_TRUE(run) << run.error().message;
        for (std::int64_t step = 1; step <= 3; ++step)
            ASSERT_TRUE((*run)->capture_fields(step, {field(values, step)}));
        ASSERT_TRUE((*run)->close());
    }
    const std::string part = local_path(local_, 0);
    const auto begin_part = [&](SessionSettings& s) {
        fs::remove_all(local_);
        fs::create_directories(part);
        s.local = local_;
    };
    const std::vector<std::function<void(SessionSettings&)>> refusals{
        [&](SessionSettings& s) {
            std::ofstream(local_) << "mine";
            s.local = local_;
        },
        [&](SessionSettings& s) { s.local = "/proc/twinrun"; },
        [&](SessionSettings& s) {
            begin_part(s);
            s.flusher = Flusher::process;
            s.flush_program = (folder_ / "nothing").string();
        },
        [&](SessionSettings& s) {
            begin_part(s);
            std::ofstream(manifest_path(part)) << "";
        },
        [&](SessionSettings& s) {
            begin_part(s);
            fs::create_symlink("elsewhere", manifest_path(part));
        },
        [&](SessionSettings& s) {  // what is left of a part whose manifest is gone
            begin_part(s);
            fs::copy(run_ + "/" + step_folder(1, 0), part + "/" + step_folder(1, 0));
        },
    };
    for (std::size_t i = 0; i < refusals.size(); ++i) {
        SessionSettings s = settings();
        s.existing = Existing::replace;
        refusals[i](s);
        EXPECT_FALSE(open(s)) << i;
        EXPECT_EQ(check(run_), (std::vector<std::int64_t>{1, 2, 3})) << i;
    }
    // And what is not refused replaces.
    SessionSettings s = settings();
    s.existing = Existing::replace;
    begin_part(s);
    ASSERT_TRUE(open(s));
    EXPECT_TRUE(check(run_).empty());
}

TEST_F(SessionMishaps, AReplacementThatOneRankRefusesTakesNothing) {
    const auto run_ranks = [&](Existing existing, std::int64_t step) {
        std::atomic<int> opened = 0;
        ThreadsComm::run(2, [&](Comm& comm) {
            SessionSettings s = settings();
            s.existing = existing;
            auto run = Session::open(posix_file_system(), comm, run_, s);
            if (!run) return;
            ++opened;
            std::vector<double> own(100);
            EXPECT_TRUE((*run)->capture_fields(step, {field(own, step)}));
            ASSERT_TRUE((*run)->close());
        });
        return opened.load();
    };
    ASSERT_EQ(run_ranks(Existing::refuse, 1), 2);
    for (const std::uint32_t rank : {0U, 1U}) {
        const std::string journal = journal_path(run_, rank, 2);
        const std::string kept = journal + ".kept";
        fs::rename(journal, kept);
        for (const bool link : {false, true}) {
            if (link) fs::create_symlink("elsewhere", journal);
            if (!link) std::ofstream(journal) << "";
            EXPECT_EQ(run_ranks(Existing::replace, 2), 0) << rank << link;
            fs::remove(journal);
        }
        fs::rename(kept, journal);
        EXPECT_EQ(check(run_), std::vector<std::int64_t>{1}) << rank;
    }
    EXPECT_EQ(run_ranks(Existing::replace, 2), 2);
    EXPECT_EQ(check(run_), std::vector<std::int64_t>{2});
}

// What a replaced history left, its journals too, is nobody's steps, and goes.
TEST_F(SessionMishaps, ReplacedHistoriesLeaveNothing) {
    const auto run_ranks = [&](int ranks, Existing existing, std::int64_t step) {
        ThreadsComm::run(ranks, [&](Comm& comm) {
            SessionSettings s = settings();
            s.existing = existing;
            auto run = Session::open(posix_file_system(), comm, run_, s);
            ASSERT_TRUE(run) << run.error().message;
            std::vector<double> own(100);
            EXPECT_TRUE((*run)->capture_fields(step, {field(own, step)}));
            ASSERT_TRUE((*run)->close());
        });
    };
    run_ranks(3, Existing::refuse, 1);
    run_ranks(2, Existing::replace, 2);
    EXPECT_EQ(check(run_), std::vector<std::int64_t>{2});
    EXPECT_FALSE(is_there(journal_path(run_, 2, 3)));
    EXPECT_FALSE(is_there(run_ + "/" + step_folder(1, 0)));
    run_ranks(1, Existing::replace, 3);
    EXPECT_EQ(check(run_), std::vector<std::int64_t>{3});
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(run_))
        names.insert(entry.path().filename().string());
    EXPECT_EQ(names, (std::set<std::string>{"manifest.jsonl", step_folder(3, 0)}));
    // As it is after a crash between the new manifest and the end of what it replaces.
    run_ranks(3, Existing::replace, 1);
    const std::string old = run_ + "-old";
    fs::copy(run_, old, fs::copy_options::recursive);
    run_ranks(3, Existing::replace, 2);
    fs::copy(old + "/" + step_folder(1, 0), run_ + "/" + step_folder(1, 0), fs::copy_options::recursive);
    const auto before = History::open(old);
    ASSERT_TRUE(before);
    std::ofstream(run_ + "/" + step_folder(1, 0) + "/" + left_name(before->id)).close();
    for (const char* name : {"rank-00002.data", "rank-00002.twm"})
        fs::remove(run_ + "/" + step_folder(2, 0) + "/" + name);
    fs::copy_file(old + "/rank-00002.jsonl", run_ + "/rank-00002.jsonl",
                  fs::copy_options::overwrite_existing);
    run_ranks(3, Existing::append, 7);
    EXPECT_EQ(check(run_), std::vector<std::int64_t>{7}) << "step 2 lost its third rank's journal";
    EXPECT_FALSE(is_there(run_ + "/" + step_folder(1, 0)));
}

// Steps of a history that was removed do not come into the next one of its name.
TEST_F(SessionMishaps, StepsOfARemovedHistoryStayOut) {
    SessionSettings s = settings();
    s.local = local_;
    std::vector<double> values(100);
    {
        auto run = open(s);
        ASSERT_TRUE(run);
        ASSERT_TRUE((*run)->capture_fields(1, {field(values, 1)}));
        ASSERT_TRUE((*run)->close());
    }
    fs::remove_all(run_);
    const auto run = open(s);
    ASSERT_FALSE(run);
    EXPECT_EQ(run.error().code, ErrorCode::mismatch);
    EXPECT_EQ(LocalHistory::read(local_path(local_, 0))->journal.steps.size(), 1U)
        << "it may be the only copy";
    EXPECT_TRUE(!History::exists(run_) || check(run_).empty());
}

// At once, whatever door the settings came through, and before anything is made.
TEST_F(SessionMishaps, FoldersThatMustNotBeOne) {
    const auto refused = [&](const std::string& path, const SessionSettings& s, const std::string& why) {
        const auto run = Session::open(posix_file_system(), comm_, path, s);
        ASSERT_FALSE(run) << path;
        EXPECT_EQ(run.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(run.error().message.find(why), std::string::npos) << run.error().message;
    };
    const std::string in_the_way = "the node-local tier uses this folder";
    fs::create_directories(folder_ / "real");
    fs::create_directory_symlink(folder_ / "real", folder_ / "link");
    for (const Flusher flusher : {Flusher::thread, Flusher::process, Flusher::none}) {
        SessionSettings s = settings();
        s.flusher = flusher;
        s.local = local_;
        for (const char* below :
             {"", "/", "/rank-00000", "/rank-00007", "/rank-00000/run", "/x/../rank-00001"})
            refused(local_ + below, s, in_the_way);
        s.local = (folder_ / "link").string();
        for (const char* below : {"real", "link", "real/rank-00000", "link/rank-00001/run"})
            refused((folder_ / below).string(), s, in_the_way);
    }
    fs::create_directory_symlink(folder_ / "not-yet", folder_ / "nowhere");
    fs::create_directory_symlink("nowhere", folder_ / "further");
    SessionSettings nowhere = settings();
    nowhere.local = (folder_ / "further").string();
    for (const char* below : {"not-yet", "nowhere", "not-yet/rank-00000"})
        refused((folder_ / below).string(), nowhere, in_the_way);
    EXPECT_FALSE(fs::exists(local_) || fs::exists(folder_ / "not-yet"));
    EXPECT_TRUE(fs::is_empty(folder_ / "real"));
    // Beside the ranks' folders, and around the tier, is room for a history.
    std::vector<double> values(100);
    SessionSettings s = settings();
    s.local = local_;
    for (const std::string& path : {local_ + "/run", local_ + "/rank-1", folder_.string()}) {
        auto run = Session::open(posix_file_system(), comm_, path, s);
        ASSERT_TRUE(run) << run.error().message;
        ASSERT_TRUE((*run)->capture_fields(1, {field(values, 1)}));
        ASSERT_TRUE((*run)->close());
        EXPECT_EQ(check(path), std::vector<std::int64_t>{1});
        ASSERT_TRUE(flush_folder(posix_file_system(), local_path(local_, 0), path,
                                 [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; }));
    }
    for (const std::string below : {"", "/run"}) {
        const auto flushed = flush_folder(posix_file_system(), local_path(local_, 0),
                                          local_path(local_, 0) + below, [](std::int64_t, const Error&) {});
        ASSERT_FALSE(flushed);
        EXPECT_NE(flushed.error().message.find("is the folder of the part itself"), std::string::npos);
    }
    // What would be replaced is what steps are compared with.
    fs::create_directory_symlink(local_ + "/run", folder_ / "other");
    SessionSettings replacing = settings();
    replacing.existing = Existing::replace;
    for (const std::string& reference : {local_ + "/run", (folder_ / "other").string()}) {
        replacing.reference = reference;
        refused(local_ + "/run", replacing, "is the reference");
    }
    EXPECT_EQ(check(local_ + "/run"), std::vector<std::int64_t>{1});
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
