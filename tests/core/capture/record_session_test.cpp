// Runs that keep their steps as a record: every step comes back bit for bit from every tier, whatever went wrong meanwhile.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "history/check_record.hpp"
#include "history/compact.hpp"
#include "history/flush.hpp"
#include "history/record_store.hpp"
#include "history/restore.hpp"
#include "support/faulty_file_system.hpp"
#include "support/forwarding_file_system.hpp"
#include "support/record.hpp"
#include "support/session.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::ThreadsComm;
using testing::unsynced_file_system;

// What element i of a field is at a step, captured for the `attempt`th time: most stay as they were for some steps.
double value_at(std::int64_t step, int rank, std::size_t field, std::size_t i, int attempt = 0) {
    const auto block = static_cast<std::int64_t>(i / 64);
    const std::int64_t since = step - ((step - block) & 7);
    return static_cast<double>(since) + 1e3 * rank + 1e-3 * static_cast<double>(field) +
           1e-9 * static_cast<double>(i % 977) + 0.25 * attempt;
}

struct State {
    explicit State(std::vector<std::size_t> sizes) {
        for (const std::size_t n : sizes)
            fields.emplace_back(n);
    }
    void become(std::int64_t step, int rank = 0, int attempt = 0) {
        for (std::size_t f = 0; f < fields.size(); ++f) {
            for (std::size_t i = 0; i < fields[f].size(); ++i)
                fields[f][i] = value_at(step, rank, f, i, attempt);
        }
    }
    [[nodiscard]] bool is(std::int64_t step, int rank = 0, int attempt = 0) const {
        for (std::size_t f = 0; f < fields.size(); ++f) {
            for (std::size_t i = 0; i < fields[f].size(); ++i) {
                if (fields[f][i] != value_at(step, rank, f, i, attempt)) return false;
            }
        }
        return true;
    }
    std::vector<CapturedField> list() {
        std::vector<CapturedField> all;
        for (std::size_t f = 0; f < fields.size(); ++f) {
            CapturedField one;
            one.name = "field" + std::to_string(f);
            one.dtype = DType::f64;
            one.shape = {fields[f].size()};
            one.data = fields[f].data();
            all.push_back(one);
        }
        return all;
    }
    std::vector<std::vector<double>> fields;
};

const std::vector<std::size_t> kSmall{1, 100, 0, 3000};

class RecordSession : public ::testing::Test {
   protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        folder_ = testing::quick_folder() /
                  ("twinrun_record_" + std::string(info->name()) + "_" + std::to_string(getpid()));
        again();
        run_ = (folder_ / "run").string();
        local_ = (folder_ / "local").string();
    }
    void TearDown() override { fs::remove_all(folder_); }
    void again() const {
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }

    static SessionSettings settings(RecordMethod method = RecordMethod::runs) {
        SessionSettings s;
        s.history.tolerance.atol = 1e-6;
        s.memory_bytes = 16 << 20;
        s.threads = 2;
        s.record = method;
        return s;
    }
    Result<std::unique_ptr<Session>> open(SessionSettings s, FileSystem& system = unsynced_file_system()) {
        return Session::open(system, comm_, run_, std::move(s));
    }
    static std::int64_t capture(Session& run, State& state, std::int64_t step, int rank = 0,
                                int attempt = 0) {
        state.become(step, rank, attempt);
        const auto report = run.capture_fields(step, state.list());
        EXPECT_TRUE(report) << report.error().message;
        return report ? static_cast<std::int64_t>(report->lost.size()) : 1;
    }
    static void close_whole(Session& run) {
        const auto lost = run.close();
        ASSERT_TRUE(lost) << lost.error().message;
        for (const LostStep& step : *lost)
            ADD_FAILURE() << step.step << ": " << step.error.message;
    }
    // Steps that are committed: each comes back bit for bit, and nothing else that the record has is wrong. attempts: which
    // one at a step it must be, where it is not the first.
    static std::vector<std::int64_t> check(const std::string& path, const std::vector<std::size_t>& sizes,
                                           const std::map<std::int64_t, int>& attempts = {}) {
        std::vector<std::int64_t> steps;
        const auto history = History::open(path);
        EXPECT_TRUE(history) << history.error().message;
        if (!history) return steps;
        for (const HistoryStep& step : history->steps) {
            steps.push_back(step.step);
            const int attempt = attempts.contains(step.step) ? attempts.at(step.step) : 0;
            for (const RankFiles& r : step.ranks) {
                EXPECT_NE(r.difference, kNoBase);
                State state(sizes);
                Journal journal;
                journal.steps[step.step] = {step.folder, r};
                const auto restored = restore_step({{path, journal}}, step.step, state.list());
                EXPECT_TRUE(restored) << restored.error().message;
                EXPECT_TRUE(!restored || state.is(step.step, static_cast<int>(r.rank), attempt))
                    << "step " << step.step;
            }
        }
        for (std::uint32_t rank = 0; rank < history->ranks; ++rank) {
            const auto problems = check_record(path, rank, 1);
            EXPECT_TRUE(problems) << problems.error().message;
            if (!problems) continue;
            for (const RecordProblem& problem : *problems)
                ADD_FAILURE() << problem.what;
        }
        return steps;
    }
    static std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
        std::vector<std::int64_t> steps;
        for (std::int64_t step = begin; step < end; ++step)
            steps.push_back(step);
        return steps;
    }
    static std::uint64_t differences_bytes(const std::string& path) {
        std::uint64_t bytes = 0;
        for (const auto& entry : fs::recursive_directory_iterator(path))
            bytes += entry.path().extension() == ".twr" ? entry.file_size() : 0;
        return bytes;
    }

    SelfComm comm_;
    fs::path folder_;
    std::string run_;
    std::string local_;
};

TEST_F(RecordSession, EveryWayGivesBackEveryStep) {
    int number = 0;
    for (const RecordMethod method : testing::kAllMethods) {
        for (const bool background : {true, false}) {
            for (const int tier : {0, 1, 2, 3}) {
                SCOPED_TRACE(std::string(method_name(method)) + ", background " + std::to_string(background) +
                             ", tier " + std::to_string(tier));
                again();
                SessionSettings s = settings(method);
                s.background = background;
                s.record_settings.chunk_bytes = number % 2 == 0 ? 256 : 64;
                if (number % 3 == 0) {
                    s.record_settings.codec = PayloadCodec::stored;
                    s.record_settings.xored = false;
                }
                if ((tier == 2 || !background) && number++ % 4 != 0) continue;  // a process each
                if (tier != 0) s.local = local_;
                if (tier == 2) s.flusher = Flusher::process;
                if (tier == 3) s.flusher = Flusher::none;
                State state(kSmall);
                for (const std::int64_t first : {0, 6}) {
                    s.existing = first == 0 ? Existing::refuse : Existing::append;
                    auto run = open(s);
                    ASSERT_TRUE(run) << run.error().message;
                    for (const auto& field : state.list())
                        ASSERT_TRUE((*run)->protect(field));
                    for (std::int64_t step = first; step < first + 6; ++step) {
                        EXPECT_EQ(capture(**run, state, step), 0);
                        state.become(-step);
                    }
                    ASSERT_TRUE((*run)->wait());
                    for (const std::int64_t step : {first + 5, first + 2, std::int64_t{1}}) {
                        ASSERT_TRUE((*run)->restore(step));
                        EXPECT_TRUE(state.is(step)) << step;
                    }
                    close_whole(**run);
                }
                if (tier == 3) {
                    const auto done =
                        flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                                     [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
                    ASSERT_TRUE(done) << done.error().message;
                }
                EXPECT_EQ(check(run_, kSmall), range(0, 12));
                if (method != RecordMethod::full) {
                    EXPECT_LT(differences_bytes(run_), 12U * 25'000U / 2);
                }
                if (HasFailure()) return;
                ++number;
            }
        }
    }
}

TEST_F(RecordSession, RefusesWhatHasNoMeaning) {
    SessionSettings s = settings();
    s.history.keep_data = false;
    EXPECT_FALSE(open(s));
    s = settings();
    s.keep.steps = 3;
    EXPECT_FALSE(open(s));
    s = settings();
    s.record_settings.chunk_bytes = 100;
    EXPECT_FALSE(open(s));
    EXPECT_FALSE(fs::exists(run_));
    {
        State state(kSmall);
        auto run = open(settings());
        ASSERT_TRUE(run);
        capture(**run, state, 1);
        close_whole(**run);
    }
    // Goes on with the same settings, or is another history.
    s = settings(RecordMethod::tree);
    s.existing = Existing::append;
    EXPECT_EQ(open(s).error().code, ErrorCode::mismatch);
    s.record.reset();
    EXPECT_EQ(open(s).error().code, ErrorCode::mismatch);
    SessionSettings by_name;
    EXPECT_FALSE(by_name.set("record", "something"));
    EXPECT_FALSE(by_name.set("record_chunk", "100"));
    EXPECT_FALSE(by_name.set("record_level", "20"));
    ASSERT_TRUE(by_name.set("record", "runs"));
    ASSERT_TRUE(by_name.set("existing", "replace"));
    by_name.background = false;
    State state(kSmall);
    auto run = open(by_name);
    ASSERT_TRUE(run) << run.error().message;
    capture(**run, state, 7);
    close_whole(**run);
    EXPECT_EQ(check(run_, kSmall), std::vector<std::int64_t>{7});
}

// What an earlier process recorded is known to the next one.
TEST_F(RecordSession, AppendedStepsCostWhatTheyChange) {
    SessionSettings s = settings();
    State state({20'000});
    std::uint64_t first = 0;
    for (int round = 0; round < 4; ++round) {
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        for (std::int64_t step = round * 3; step < round * 3 + 3; ++step)
            capture(**run, state, step);
        close_whole(**run);
        const std::uint64_t bytes = differences_bytes(run_);
        if (round == 0) first = bytes;
        EXPECT_LE(bytes, first * static_cast<std::uint64_t>(round + 1));
        s.existing = Existing::append;
    }
    EXPECT_EQ(check(run_, {20'000}), range(0, 12));
    const auto journal = read_rank_journal(run_, 0, 1);
    for (const auto& [step, files] : journal->steps) {
        const auto file = DifferenceFile::open((fs::path(run_) / files.folder / files.files.data).string());
        ASSERT_TRUE(file);
        EXPECT_EQ((*file)->difference().base == kNoBase, step == 0);
    }
}

// Steps in any order, and again and again, wherever older attempts are.
TEST_F(RecordSession, StepsAreReplacedOnTheirWay) {
    for (const int tier : {0, 1, 2}) {
        SCOPED_TRACE(tier);
        again();
        SessionSettings s = settings();
        s.replace_steps = true;
        if (tier != 0) s.local = local_;
        if (tier == 2) s.flusher = Flusher::none;
        State state(kSmall);
        std::map<std::int64_t, int> attempts;
        for (int round = 0; round < 3; ++round) {
            s.existing = round == 0 ? Existing::refuse : Existing::append;
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            for (int i = 0; i < 40; ++i) {
                const std::int64_t step = i * 7 % 5 / (i % 3 + 1);
                const int attempt = round * 100 + i + 1;
                attempts[step] = attempt;
                EXPECT_EQ(capture(**run, state, step, 0, attempt), 0);
            }
            close_whole(**run);
            if (tier == 2) {
                const auto done =
                    flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                                 [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
                ASSERT_TRUE(done) << done.error().message;
            }
            EXPECT_EQ(check(run_, kSmall, attempts), range(0, 5));
            if (HasFailure()) return;
        }
        // They do not need the node's folder.
        fs::remove_all(local_);
        EXPECT_EQ(check(run_, kSmall, attempts), range(0, 5));
    }
}

TEST_F(RecordSession, ALocalTierStaysWithinItsLimit) {
    SessionSettings s = settings();
    s.local = local_;
    s.local_bytes = 120'000;  // some steps
    State state({6000});
    auto run = open(s);
    ASSERT_TRUE(run) << run.error().message;
    for (const auto& field : state.list())
        ASSERT_TRUE((*run)->protect(field));
    for (std::int64_t step = 0; step < 20; ++step) {
        capture(**run, state, step);
        ASSERT_TRUE((*run)->wait());
        EXPECT_LE(differences_bytes(local_), s.local_bytes);
        const std::int64_t some = step * 3 / 4;
        ASSERT_TRUE((*run)->restore(some));
        EXPECT_TRUE(state.is(some));
    }
    // A store that was opened on the local tier finds on the next one what left it meanwhile.
    auto store = RecordStore::open(local_path(local_, 0), 0);
    ASSERT_TRUE(store) << store.error().message;
    const auto steps = (*store)->journal().steps;
    ASSERT_FALSE(steps.empty());
    auto map = (*store)->map(steps.rbegin()->first);
    ASSERT_TRUE(map);
    (*store)->chain().forget();
    for (std::int64_t step = 20; step < 40; ++step)
        capture(**run, state, step);
    ASSERT_TRUE((*run)->wait());
    std::vector<double> values(6000);
    const auto read = (*store)->read_segment(*map, 0, std::as_writable_bytes(std::span(values)));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(values[5], value_at(steps.rbegin()->first, 0, 0, 5));
    close_whole(**run);
    fs::remove_all(local_);
    EXPECT_EQ(check(run_, {6000}), range(0, 40));
}

// A step that has no room on the node goes past it. It must not need steps that are there only.
TEST_F(RecordSession, StepsThatGoPastTheLocalTierStandWithoutIt) {
    SessionSettings s = settings();
    s.local = local_;
    s.flusher = Flusher::none;  // nothing is ever brought on
    State small({100});
    State large({100, 40'000});
    s.local_bytes = 200'000;
    {
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        for (std::int64_t step = 0; step < 12; ++step)
            capture(**run, step % 4 == 2 ? large : small, step);
        close_whole(**run);
    }
    EXPECT_EQ(check(run_, {100}), (std::vector<std::int64_t>{2, 6, 10})) << "without the others";
    EXPECT_EQ(check(run_, {100, 40'000}), (std::vector<std::int64_t>{2, 6, 10}));
    const auto done = flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                                   [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
    ASSERT_TRUE(done) << done.error().message;
    fs::remove_all(local_);
    EXPECT_EQ(check(run_, {100}), range(0, 12));
}

TEST_F(RecordSession, ALostLocalFolderTakesNothingThatReachedTheSharedOne) {
    SessionSettings s = settings();
    s.local = local_;
    State state(kSmall);
    {
        auto run = open(s);
        ASSERT_TRUE(run);
        for (std::int64_t step = 0; step < 3; ++step)
            capture(**run, state, step);
        ASSERT_TRUE((*run)->wait());
        fs::remove_all(local_);  // the node's disk is gone while the run goes on
        state.become(3);
        static_cast<void>((*run)->capture_fields(3, state.list()));
        state.become(4);
        static_cast<void>((*run)->capture_fields(4, state.list()));
        const auto lost = (*run)->close();
        ASSERT_TRUE(lost);
    }
    const auto before = check(run_, kSmall);
    EXPECT_GE(before.size(), 3U);
    s.existing = Existing::append;
    auto run = open(s);
    ASSERT_TRUE(run) << run.error().message;
    capture(**run, state, 9);
    close_whole(**run);
    EXPECT_EQ(check(run_, kSmall).back(), 9);
    EXPECT_EQ(check(run_, kSmall).size(), before.size() + 1);
}

// Two runs go on with the same record, the second without the node where steps of the first still are. When these come
// later, each is what it was, or is told to be lost.
TEST_F(RecordSession, StepsThatComeLateAreNotTakenForOthers) {
    for (const bool same_steps : {false, true}) {
        again();
        SessionSettings s = settings();
        s.local = local_;
        s.flusher = Flusher::none;
        State state(kSmall);
        {
            auto run = open(s);
            ASSERT_TRUE(run);
            for (std::int64_t step = 0; step < 6; ++step)
                capture(**run, state, step);
            close_whole(**run);
        }
        std::map<std::int64_t, int> attempts;
        {
            SessionSettings elsewhere = settings();
            elsewhere.existing = Existing::append;
            auto run = open(elsewhere);
            ASSERT_TRUE(run) << run.error().message;
            for (std::int64_t step = same_steps ? 2 : 10; step < (same_steps ? 5 : 14); ++step) {
                attempts[step] = 3;
                capture(**run, state, step, 0, 3);
            }
            close_whole(**run);
        }
        // Steps that are there with other content are told: they are nowhere but here.
        std::set<std::int64_t> told;
        const auto done = flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                                       [&](std::int64_t step, const Error& e) {
                                           EXPECT_EQ(e.code, ErrorCode::mismatch) << e.message;
                                           told.insert(step);
                                       });
        ASSERT_TRUE(done) << done.error().message;
        EXPECT_EQ(told, same_steps ? (std::set<std::int64_t>{2, 3, 4}) : std::set<std::int64_t>{});
        fs::remove_all(local_);
        auto steps = range(0, 6);
        if (!same_steps) {
            for (const std::int64_t step : range(10, 14))
                steps.push_back(step);
        }
        EXPECT_EQ(check(run_, kSmall, attempts), steps);
        // And the record goes on.
        s.existing = Existing::append;
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        capture(**run, state, 20);
        close_whole(**run);
        ASSERT_TRUE(flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                                 [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; }));
        EXPECT_EQ(check(run_, kSmall, attempts).back(), 20);
    }
}

// A record that is made smaller between runs: what left it does not come back from a node that still has it.
TEST_F(RecordSession, WhatWasDroppedStaysAway) {
    SessionSettings s = settings();
    s.local = local_;
    State state(kSmall);
    {
        auto run = open(s);
        ASSERT_TRUE(run);
        for (std::int64_t step = 0; step < 8; ++step)
            capture(**run, state, step);
        close_whole(**run);
    }
    CompactOptions fewer;
    fewer.drop = {0, 1, 4};
    ASSERT_TRUE(compact_record(unsynced_file_system(), run_, fewer));
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{2, 3, 5, 6, 7}));
    ASSERT_TRUE(flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                             [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; }));
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{2, 3, 5, 6, 7}));
    s.existing = Existing::append;
    {
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        for (std::int64_t step = 8; step < 12; ++step)
            capture(**run, state, step);
        close_whole(**run);
    }
    fs::remove_all(local_);
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{2, 3, 5, 6, 7, 8, 9, 10, 11}));
}

// Steps leave, and the machine goes down before what others need of them is elsewhere: they are captured again beside it.
TEST_F(RecordSession, StepsThatLeftAreCapturedAgain) {
    for (const bool local : {false, true}) {
        again();
        SessionSettings s = settings();
        State state(kSmall);
        {
            auto run = open(s);
            ASSERT_TRUE(run);
            for (std::int64_t step = 0; step < 6; ++step)
                capture(**run, state, step);
            close_whole(**run);
        }
        {
            auto writer = HistoryWriter::open(unsynced_file_system(), run_, History::open(run_)->settings, 0,
                                              1, Existing::append);
            ASSERT_TRUE(writer);
            const std::int64_t gone[] = {0, 3};
            ASSERT_TRUE((*writer)->drop(gone));
        }
        EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{1, 2, 4, 5}));
        s.existing = Existing::append;
        if (local) s.local = local_;
        {
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            for (const std::int64_t step : {3, 0})
                EXPECT_EQ(capture(**run, state, step), 0);
            close_whole(**run);
        }
        fs::remove_all(local_);
        EXPECT_EQ(check(run_, kSmall), range(0, 6));
    }
}

// Steps in any order come as they are, each once.
TEST_F(RecordSession, StepsAreBroughtOnInTheOrderOfCapture) {
    SessionSettings s = settings();
    s.local = local_;
    s.flusher = Flusher::none;
    State state(kSmall);
    {
        auto run = open(s);
        ASSERT_TRUE(run);
        for (const std::int64_t step : {5, 3, 9, 1})
            capture(**run, state, step);
        close_whole(**run);
    }
    auto store = RecordStore::open(local_path(local_, 0), 0);
    ASSERT_TRUE(store);
    const auto map = (*store)->map(1);
    ASSERT_TRUE(map);
    (*store)->chain().forget();
    ASSERT_TRUE(flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                             [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; }));
    EXPECT_FALSE(fs::exists(fs::path(run_) / kLeftoversFolder));
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{1, 3, 5, 9}));
    // A reader that began before they left the node finds them.
    {
        const auto part = LocalHistory::read(local_path(local_, 0));
        ASSERT_TRUE(part);
        auto writer = HistoryWriter::open_local(unsynced_file_system(), local_path(local_, 0), part->settings,
                                                0, 1, part->history, false);
        ASSERT_TRUE(writer) << writer.error().message;
        const std::int64_t left[] = {5, 3, 9, 1};
        ASSERT_TRUE((*writer)->drop(left, HistoryWriter::Differences::leave));
    }
    std::vector<double> values(3000);
    const auto number = static_cast<std::size_t>(map->find("field3") - map->directory.segments.data());
    const auto read = (*store)->read_segment(*map, number, std::as_writable_bytes(std::span(values)));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(values[2999], value_at(1, 0, 3, 2999));
}

// A step whose difference cannot be written is lost, and no other.
TEST_F(RecordSession, ALostStepTakesNoOther) {
    for (const bool background : {false, true}) {
        for (const char* what : {"write_at", "sync", "create", "rename"}) {
            again();
            SessionSettings s = settings();
            s.background = background;
            s.flush_threads = 1;
            FaultyFileSystem system(unsynced_file_system());
            State state(kSmall);
            std::set<std::int64_t> lost;
            {
                auto run = open(s, system);
                ASSERT_TRUE(run);
                for (std::int64_t step = 0; step < 8; ++step) {
                    const auto news = (*run)->wait();
                    ASSERT_TRUE(news);
                    for (const LostStep& one : *news)
                        lost.insert(one.step);
                    if (step == 3) {
                        // The first such operation on a difference, as an undisturbed step has it.
                        std::size_t at = 0;
                        system.inject({});
                        capture(**run, state, 100);
                        ASSERT_TRUE((*run)->wait());
                        const auto log = system.log();
                        for (std::size_t i = 0; i < log.size() && at == 0; ++i) {
                            if (log[i].starts_with(what) && log[i].find(".twr") != std::string::npos)
                                at = i + 1;
                        }
                        ASSERT_GT(at, 0U);
                        Fault fault;
                        fault.at = at;
                        fault.written_first = 50;
                        system.inject(fault);
                    }
                    state.become(step);
                    const auto report = (*run)->capture_fields(step, state.list());
                    if (!report) lost.insert(step);  // nobody else tells of it
                    if (!report) continue;
                    for (const LostStep& one : report->lost)
                        lost.insert(one.step);
                }
                const auto rest = (*run)->close();
                ASSERT_TRUE(rest);
                for (const LostStep& one : *rest)
                    lost.insert(one.step);
            }
            EXPECT_EQ(lost, std::set<std::int64_t>{3}) << what;
            EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{0, 1, 2, 4, 5, 6, 7, 100}));
        }
    }
}

// A step that is damaged before it left the node is told to be lost; those that need it too; later ones do not.
TEST_F(RecordSession, DamageOnTheNodeIsNotBroughtOn) {
    for (const bool metadata : {false, true}) {
        again();
        SessionSettings s = settings();
        s.local = local_;
        s.flusher = Flusher::none;
        State state(kSmall);
        {
            auto run = open(s);
            ASSERT_TRUE(run);
            for (std::int64_t step = 0; step < 5; ++step)
                capture(**run, state, step);
            close_whole(**run);
        }
        const std::string file =
            local_path(local_, 0) + "/step-0000000002/rank-00000." + (metadata ? "twm" : "twr");
        auto bytes = testing::read_file(file);
        bytes[200] ^= std::byte{1};
        testing::write_file(file, bytes);
        s.flusher = Flusher::thread;
        s.existing = Existing::append;
        {
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            for (std::int64_t step = 5; step < 9; ++step)
                capture(**run, state, step);
            close_whole(**run);
        }
        const auto steps = check(run_, kSmall);
        EXPECT_FALSE(std::binary_search(steps.begin(), steps.end(), 2));
        for (const std::int64_t step : {0, 1, 5, 6, 7, 8})
            EXPECT_TRUE(std::binary_search(steps.begin(), steps.end(), step))
                << step << ", metadata " << metadata;
        if (metadata) {
            EXPECT_EQ(steps.size(), 8U);  // its difference is whole, and came without it
        }
    }
}

TEST_F(RecordSession, ADamagedRecordIsGoneOnWith) {
    for (const bool gone : {false, true}) {
        again();
        State state(kSmall);
        SessionSettings s = settings();
        {
            auto run = open(s);
            ASSERT_TRUE(run);
            for (std::int64_t step = 0; step < 4; ++step)
                capture(**run, state, step);
            close_whole(**run);
        }
        const std::string file = run_ + "/step-0000000003/rank-00000.twr";
        if (gone) {
            fs::remove(file);
        } else {
            auto bytes = testing::read_file(file);
            bytes[130] ^= std::byte{1};
            testing::write_file(file, bytes);
        }
        s.existing = Existing::append;
        {
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            for (std::int64_t step = 4; step < 7; ++step)
                EXPECT_EQ(capture(**run, state, step), 0);
            close_whole(**run);
        }
        const auto problems = check_record(run_, 0, 1);
        ASSERT_TRUE(problems);
        ASSERT_EQ(problems->size(), 1U);
        EXPECT_EQ((*problems)[0].steps, std::vector<std::int64_t>{3});
    }
}

TEST_F(RecordSession, SeveralRanks) {
    ThreadsComm::run(3, [&](Comm& comm) {
        SessionSettings s = settings();
        s.local = local_;
        for (const std::int64_t first : {0, 5}) {
            s.existing = first == 0 ? Existing::refuse : Existing::append;
            auto run = Session::open(unsynced_file_system(), comm, run_, s);
            ASSERT_TRUE(run) << run.error().message;
            State state(kSmall);
            for (std::int64_t step = first; step < first + 5; ++step)
                capture(**run, state, step, comm.rank());
            ASSERT_TRUE((*run)->wait());
            for (const auto& field : state.list())
                ASSERT_TRUE((*run)->protect(field));
            ASSERT_TRUE((*run)->restore(first + 1));
            EXPECT_TRUE(state.is(first + 1, comm.rank()));
            close_whole(**run);
        }
        // Settings that differ between ranks are refused by some rank, and by all.
        s.existing = Existing::append;
        if (comm.rank() == 1) s.record = RecordMethod::list;
        EXPECT_FALSE(Session::open(unsynced_file_system(), comm, run_, s));
    });
    EXPECT_EQ(check(run_, kSmall), range(0, 10));
    CompactOptions fewer;
    fewer.keep_last = 3;
    ASSERT_TRUE(compact_record(unsynced_file_system(), run_, fewer));
    EXPECT_EQ(check(run_, kSmall), range(7, 10));
}

// The second run of several ranks against the record of the first: the ranks go on with its numbers.
TEST_F(RecordSession, ASecondRunAgainstTheFirst) {
    const std::string second = (folder_ / "second").string();
    const std::string third = (folder_ / "third").string();
    for (const int ranks : {1, 2}) {
        again();
        ThreadsComm::run(ranks, [&](Comm& comm) {
            for (const std::string& path : {run_, second, third}) {
                SessionSettings s = settings();
                s.local = path == second ? local_ : "";
                if (path == second) s.record_settings.against = run_;
                if (path == third) s.record_settings.against = second;
                for (const std::int64_t first : {0, 4}) {
                    auto run = Session::open(unsynced_file_system(), comm, path, s);
                    ASSERT_TRUE(run) << run.error().message;
                    State state(kSmall);
                    for (std::int64_t step = first; step < first + 4; ++step)
                        capture(**run, state, step, comm.rank());
                    close_whole(**run);
                    s.existing = Existing::append;
                }
            }
        });
        fs::remove_all(local_);
        for (const std::string& path : {run_, second, third})
            EXPECT_EQ(check(path, kSmall), range(0, 8)) << path;
        EXPECT_LT(differences_bytes(second), 8U * 700U * static_cast<unsigned>(ranks));
        EXPECT_LT(differences_bytes(third), 8U * 700U * static_cast<unsigned>(ranks));
        CompactOptions fewer;
        fewer.keep_last = 2;
        EXPECT_FALSE(compact_record(unsynced_file_system(), second, fewer));
        ASSERT_TRUE(compact_record(unsynced_file_system(), third, fewer));
        EXPECT_EQ(check(third, kSmall), range(6, 8));
    }
}

TEST_F(RecordSession, DivergenceIsSeenAtOnce) {
    const std::string reference = (folder_ / "reference").string();
    State state(kSmall);
    SessionSettings s = settings();
    {
        auto run = Session::open(unsynced_file_system(), comm_, reference, s);
        ASSERT_TRUE(run);
        for (std::int64_t step = 0; step < 4; ++step)
            capture(**run, state, step);
        close_whole(**run);
    }
    s.reference = reference;
    s.stop_on_divergence = true;
    auto run = open(s);
    ASSERT_TRUE(run) << run.error().message;
    for (std::int64_t step = 0; step < 4; ++step) {
        state.become(step);
        if (step == 2) state.fields[3][700] += 1;
        const auto report = (*run)->capture_fields(step, state.list());
        ASSERT_TRUE(report);
        EXPECT_EQ(report->divergence.has_value(), step == 2);
    }
    close_whole(**run);
    const auto history = History::open(run_);
    EXPECT_NE(history->steps[2].ranks[0].divergence, "");
    EXPECT_EQ(history->steps[3].ranks[0].divergence, "");
    State back(kSmall);
    Journal journal;
    journal.steps[2] = {history->steps[2].folder, history->steps[2].ranks[0]};
    ASSERT_TRUE(restore_step({{run_, journal}}, 2, back.list()));
    EXPECT_EQ(back.fields[3][700], value_at(2, 0, 3, 700) + 1);
}

// A step that is larger than all memory that was set: it goes alone.
TEST_F(RecordSession, StepsLargerThanTheMemoryGoThrough) {
    const std::vector<std::size_t> sizes{2'500'000, 10};  // 20 MB of 16
    for (const bool background : {true, false}) {
        again();
        SessionSettings s = settings();
        s.background = background;
        s.record_settings.chunk_bytes = 4096;
        auto run = open(s);
        ASSERT_TRUE(run);
        State state(sizes);
        for (std::int64_t step = 0; step < 3; ++step)
            EXPECT_EQ(capture(**run, state, step), 0);
        close_whole(**run);
        EXPECT_LE((*run)->facts().most_staged_bytes, s.memory_bytes);
        EXPECT_EQ(check(run_, sizes), range(0, 3));
    }
}

TEST_F(RecordSession, FieldsComeAndGo) {
    auto run = open(settings());
    ASSERT_TRUE(run);
    State state({500, 80, 1, 2000, 0});
    std::vector<std::vector<std::size_t>> shown{{0, 1},          {1, 0}, {3}, {4},
                                                {0, 1, 2, 3, 4}, {4, 3}, {2}, {0, 1}};
    for (std::size_t step = 0; step < shown.size(); ++step) {
        if (step == 5) state.fields[3].resize(2600);
        if (step == 7) state.fields[0].resize(30);
        state.become(static_cast<std::int64_t>(step));
        std::vector<CapturedField> fields;
        for (const std::size_t f : shown[step])
            fields.push_back(state.list()[f]);
        const auto report = (*run)->capture_fields(static_cast<std::int64_t>(step), fields);
        ASSERT_TRUE(report) << report.error().message;
    }
    close_whole(**run);
    const auto history = History::open(run_);
    ASSERT_TRUE(history);
    ASSERT_EQ(history->steps.size(), shown.size());
    for (std::size_t step = 0; step < shown.size(); ++step) {
        State back({500, 80, 1, 2000, 0});
        if (step >= 5) back.fields[3].resize(2600);
        if (step >= 7) back.fields[0].resize(30);
        std::vector<CapturedField> fields;
        for (const std::size_t f : shown[step])
            fields.push_back(back.list()[f]);
        Journal journal;
        journal.steps[history->steps[step].step] = {history->steps[step].folder,
                                                    history->steps[step].ranks[0]};
        const auto restored = restore_step({{run_, journal}}, history->steps[step].step, fields);
        ASSERT_TRUE(restored) << restored.error().message;
        for (const std::size_t f : shown[step]) {
            for (std::size_t i = 0; i < back.fields[f].size(); ++i)
                ASSERT_EQ(back.fields[f][i], value_at(static_cast<std::int64_t>(step), 0, f, i));
        }
    }
    EXPECT_TRUE(check_record(run_, 0, 1)->empty());
}

// ---- faults ----

// Every operation on storage fails once, as full or broken disk or with the machine going down: what was committed reads back,
// nothing half is visible, what was lost is told, and the next run goes on.
TEST_F(RecordSession, AnyFaultOnAnyTier) {
    for (const bool local : {false, true}) {
        for (const bool background : {false, true}) {
            if (!local && background) continue;  // no other operations
            SessionSettings s = settings();
            if (local) s.local = local_;
            s.background = background;
            s.flush_threads = 1;
            State state(kSmall);
            std::vector<std::int64_t> promised;
            bool waits = false;
            const auto run_steps = [&](FaultyFileSystem& system, std::int64_t first, std::int64_t last,
                                       std::size_t& told) {
                auto run = open(s, system);
                if (!run) return false;
                for (std::int64_t step = first; step < last; ++step) {
                    state.become(step);
                    const auto report = (*run)->capture_fields(step, state.list());
                    told += report ? report->lost.size() : 1;
                    if (!waits) continue;
                    const auto lost = (*run)->wait();
                    told += lost ? lost->size() : 1;
                    if (report && report->lost.empty() && lost && lost->empty()) promised.push_back(step);
                }
                const auto lost = (*run)->close();
                told += lost ? lost->size() : 1;
                return true;
            };
            std::size_t operations = 0;
            {
                FaultyFileSystem system(unsynced_file_system());
                std::size_t told = 0;
                ASSERT_TRUE(run_steps(system, 0, 3, told));
                operations = system.operations();
                EXPECT_EQ(told, 0U);
            }
            for (const int kind : {0, 1, 2}) {
                // Of many operations some, others of each kind.
                const std::size_t stride = background ? 6 : local ? 3 : 1;
                for (std::size_t at = 1 + static_cast<std::size_t>(kind) % stride; at <= operations;
                     at += stride) {
                    SCOPED_TRACE(std::string(local ? "local tier, " : "") +
                                 (background ? "background, " : "") + "kind " + std::to_string(kind) +
                                 ", operation " + std::to_string(at));
                    again();
                    FaultyFileSystem system(unsynced_file_system());
                    Fault fault;
                    fault.at = at;
                    fault.error = {kind == 0 ? ErrorCode::no_space : ErrorCode::io, "injected"};
                    fault.written_first = 100;
                    fault.dead_after = kind == 2;
                    system.inject(fault);
                    std::size_t told = 0;
                    s.existing = Existing::refuse;
                    promised.clear();
                    waits = at % 2 == 0;
                    const bool began = run_steps(system, 0, 3, told);
                    waits = false;
                    if (kind == 2) system.power_cut(at % 5);
                    system.inject({});
                    if (!promised.empty()) {
                        const auto steps = check(run_, kSmall);
                        for (const std::int64_t step : promised)
                            EXPECT_TRUE(std::binary_search(steps.begin(), steps.end(), step)) << step;
                    }
                    if (History::exists(run_) && kind != 2 && began) {
                        const auto steps = check(run_, kSmall);
                        EXPECT_GE(steps.size() + told, 3U);
                    }
                    s.existing = Existing::append;
                    told = 0;
                    ASSERT_TRUE(run_steps(system, 10, 12, told));
                    EXPECT_EQ(told, 0U);
                    if (local && at % 3 == 0) fs::remove_all(local_);
                    const auto steps = check(run_, kSmall);
                    ASSERT_GE(steps.size(), 2U);
                    EXPECT_EQ(steps[steps.size() - 1], 11);
                    EXPECT_EQ(steps[steps.size() - 2], 10);
                    if (HasFailure()) return;
                }
            }
            again();
        }
    }
}

// The last tier is full for a while: all steps come when there is room again, in the order in which they need each other.
TEST_F(RecordSession, AFullDiskHoldsStepsUpOnly) {
    class Full final : public testing::ForwardingFileSystem {
       public:
        explicit Full(std::string place)
            : ForwardingFileSystem(unsynced_file_system()), place_(std::move(place)) {}
        std::atomic<bool> full = false;
        Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t bytes) override {
            if (full && path.starts_with(place_)) return Error{ErrorCode::no_space, path + ": full"};
            return ForwardingFileSystem::create(path, bytes);
        }

       private:
        std::string place_;
    };
    Full system(run_);
    SessionSettings s = settings();
    s.local = local_;
    State state(kSmall);
    auto run = open(s, system);
    ASSERT_TRUE(run);
    std::set<std::int64_t> told;
    const std::int64_t order[] = {5, 3, 9, 1, 7, 2, 8};
    for (const std::int64_t step : order) {
        system.full = step == 3 || step == 9 || step == 1 || step == 7;
        capture(**run, state, step);
        if (step == 7) {
            const auto lost = (*run)->wait();
            ASSERT_TRUE(lost);
            for (const LostStep& one : *lost)
                told.insert(one.step);
        }
    }
    EXPECT_FALSE(told.empty());
    close_whole(**run);
    fs::remove_all(local_);
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{1, 2, 3, 5, 7, 8, 9}));
}

}  // namespace
}  // namespace twinrun
