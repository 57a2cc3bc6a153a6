// Runs that keep their steps as a record: every step comes back bit for bit from every tier, whatever went wrong meanwhile.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
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
#include "support/record_session.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::kRecordItems;
using testing::RecordSession;
using testing::ThreadsComm;
using testing::unsynced_file_system;

using testing::ChangingState;

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
                ChangingState state(kRecordItems);
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
                EXPECT_EQ(check(run_, kRecordItems), range(0, 12));
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
        ChangingState state(kRecordItems);
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
    ChangingState state(kRecordItems);
    auto run = open(by_name);
    ASSERT_TRUE(run) << run.error().message;
    capture(**run, state, 7);
    close_whole(**run);
    EXPECT_EQ(check(run_, kRecordItems), std::vector<std::int64_t>{7});
}

// What an earlier process recorded is known to the next one.
TEST_F(RecordSession, AppendedStepsCostWhatTheyChange) {
    SessionSettings s = settings();
    ChangingState state({20'000});
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
        ChangingState state(kRecordItems);
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
            EXPECT_EQ(check(run_, kRecordItems, attempts), range(0, 5));
            if (HasFailure()) return;
        }
        // They do not need the node's folder.
        fs::remove_all(local_);
        EXPECT_EQ(check(run_, kRecordItems, attempts), range(0, 5));
    }
}

TEST_F(RecordSession, ADamagedRecordIsGoneOnWith) {
    for (const bool gone : {false, true}) {
        again();
        ChangingState state(kRecordItems);
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
            ChangingState state(kRecordItems);
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
    EXPECT_EQ(check(run_, kRecordItems), range(0, 10));
    CompactOptions fewer;
    fewer.keep_last = 3;
    ASSERT_TRUE(compact_record(unsynced_file_system(), run_, fewer));
    EXPECT_EQ(check(run_, kRecordItems), range(7, 10));
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
                    ChangingState state(kRecordItems);
                    for (std::int64_t step = first; step < first + 4; ++step)
                        capture(**run, state, step, comm.rank());
                    close_whole(**run);
                    s.existing = Existing::append;
                }
            }
        });
        fs::remove_all(local_);
        for (const std::string& path : {run_, second, third})
            EXPECT_EQ(check(path, kRecordItems), range(0, 8)) << path;
        EXPECT_LT(differences_bytes(second), 8U * 700U * static_cast<unsigned>(ranks));
        EXPECT_LT(differences_bytes(third), 8U * 700U * static_cast<unsigned>(ranks));
        CompactOptions fewer;
        fewer.keep_last = 2;
        EXPECT_FALSE(compact_record(unsynced_file_system(), second, fewer));
        ASSERT_TRUE(compact_record(unsynced_file_system(), third, fewer));
        EXPECT_EQ(check(third, kRecordItems), range(6, 8));
    }
}

TEST_F(RecordSession, DivergenceIsSeenAtOnce) {
    const std::string reference = (folder_ / "reference").string();
    ChangingState state(kRecordItems);
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
    ChangingState back(kRecordItems);
    Journal journal;
    journal.steps.put(2, {history->steps[2].folder, history->steps[2].ranks[0]});
    ASSERT_TRUE(restore_step({{run_, journal}}, 2, back.list()));
    EXPECT_EQ(back.fields[3][700], testing::changing_value_at(2, 0, 3, 700) + 1);
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
        ChangingState state(sizes);
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
    ChangingState state({500, 80, 1, 2000, 0});
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
        ChangingState back({500, 80, 1, 2000, 0});
        if (step >= 5) back.fields[3].resize(2600);
        if (step >= 7) back.fields[0].resize(30);
        std::vector<CapturedField> fields;
        for (const std::size_t f : shown[step])
            fields.push_back(back.list()[f]);
        Journal journal;
        journal.steps.put(history->steps[step].step,
                          {history->steps[step].folder, history->steps[step].ranks[0]});
        const auto restored = restore_step({{run_, journal}}, history->steps[step].step, fields);
        ASSERT_TRUE(restored) << restored.error().message;
        for (const std::size_t f : shown[step]) {
            for (std::size_t i = 0; i < back.fields[f].size(); ++i)
                ASSERT_EQ(back.fields[f][i],
                          testing::changing_value_at(static_cast<std::int64_t>(step), 0, f, i));
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
            ChangingState state(kRecordItems);
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
                        const auto steps = check(run_, kRecordItems);
                        for (const std::int64_t step : promised)
                            EXPECT_TRUE(std::binary_search(steps.begin(), steps.end(), step)) << step;
                    }
                    if (History::exists(run_) && kind != 2 && began) {
                        const auto steps = check(run_, kRecordItems);
                        EXPECT_GE(steps.size() + told, 3U);
                    }
                    s.existing = Existing::append;
                    told = 0;
                    ASSERT_TRUE(run_steps(system, 10, 12, told));
                    EXPECT_EQ(told, 0U);
                    if (local && at % 3 == 0) fs::remove_all(local_);
                    const auto steps = check(run_, kRecordItems);
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
    ChangingState state(kRecordItems);
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
    EXPECT_EQ(check(run_, kRecordItems), (std::vector<std::int64_t>{1, 2, 3, 5, 7, 8, 9}));
}

}  // namespace
}  // namespace twinrun
