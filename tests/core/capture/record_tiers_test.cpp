// Runs that keep their steps as a record, on several tiers: every step is brought on whole and in order, or stays where it is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "history/compact.hpp"
#include "history/flush.hpp"
#include "history/record_store.hpp"
#include "history/restore.hpp"
#include "support/faulty_file_system.hpp"
#include "support/record.hpp"
#include "support/record_session.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::kRecordItems;
using testing::RecordSession;
using testing::unsynced_file_system;

using testing::ChangingState;

TEST_F(RecordSession, ALocalTierStaysWithinItsLimit) {
    SessionSettings s = settings();
    s.local = local_;
    s.local_bytes = 120'000;  // some steps
    ChangingState state({6000});
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
    auto map = (*store)->map(steps.last().first);
    ASSERT_TRUE(map);
    (*store)->chain().forget();
    for (std::int64_t step = 20; step < 40; ++step)
        capture(**run, state, step);
    ASSERT_TRUE((*run)->wait());
    std::vector<double> values(6000);
    const auto read = (*store)->read_segment(*map, 0, std::as_writable_bytes(std::span(values)));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(values[5], testing::changing_value_at(steps.last().first, 0, 0, 5));
    close_whole(**run);
    fs::remove_all(local_);
    EXPECT_EQ(check(run_, {6000}), range(0, 40));
}

// A step that has no room on the node goes past it. It must not need steps that are there only.
TEST_F(RecordSession, StepsThatGoPastTheLocalTierStandWithoutIt) {
    SessionSettings s = settings();
    s.local = local_;
    s.flusher = Flusher::none;  // nothing is ever brought on
    ChangingState small({100});
    ChangingState large({100, 40'000});
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
    ChangingState state(kRecordItems);
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
    const auto before = check(run_, kRecordItems);
    EXPECT_GE(before.size(), 3U);
    s.existing = Existing::append;
    auto run = open(s);
    ASSERT_TRUE(run) << run.error().message;
    capture(**run, state, 9);
    close_whole(**run);
    EXPECT_EQ(check(run_, kRecordItems).back(), 9);
    EXPECT_EQ(check(run_, kRecordItems).size(), before.size() + 1);
}

// Two runs go on with the same record, the second without the node where steps of the first still are. When these come
// later, each is what it was, or is told to be lost.
TEST_F(RecordSession, StepsThatComeLateAreNotTakenForOthers) {
    for (const bool same_steps : {false, true}) {
        again();
        SessionSettings s = settings();
        s.local = local_;
        s.flusher = Flusher::none;
        ChangingState state(kRecordItems);
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
        EXPECT_EQ(check(run_, kRecordItems, attempts), steps);
        // And the record goes on.
        s.existing = Existing::append;
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        capture(**run, state, 20);
        close_whole(**run);
        ASSERT_TRUE(flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                                 [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; }));
        EXPECT_EQ(check(run_, kRecordItems, attempts).back(), 20);
    }
}

// A record that is made smaller between runs: what left it does not come back from a node that still has it.
TEST_F(RecordSession, WhatWasDroppedStaysAway) {
    SessionSettings s = settings();
    s.local = local_;
    ChangingState state(kRecordItems);
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
    EXPECT_EQ(check(run_, kRecordItems), (std::vector<std::int64_t>{2, 3, 5, 6, 7}));
    ASSERT_TRUE(flush_folder(unsynced_file_system(), local_path(local_, 0), run_,
                             [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; }));
    EXPECT_EQ(check(run_, kRecordItems), (std::vector<std::int64_t>{2, 3, 5, 6, 7}));
    s.existing = Existing::append;
    {
        auto run = open(s);
        ASSERT_TRUE(run) << run.error().message;
        for (std::int64_t step = 8; step < 12; ++step)
            capture(**run, state, step);
        close_whole(**run);
    }
    fs::remove_all(local_);
    EXPECT_EQ(check(run_, kRecordItems), (std::vector<std::int64_t>{2, 3, 5, 6, 7, 8, 9, 10, 11}));
}

// Steps leave, and the machine goes down before what others need of them is elsewhere: they are captured again beside it.
TEST_F(RecordSession, StepsThatLeftAreCapturedAgain) {
    for (const bool local : {false, true}) {
        again();
        SessionSettings s = settings();
        ChangingState state(kRecordItems);
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
        EXPECT_EQ(check(run_, kRecordItems), (std::vector<std::int64_t>{1, 2, 4, 5}));
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
        EXPECT_EQ(check(run_, kRecordItems), range(0, 6));
    }
}

// Steps in any order come as they are, each once.
TEST_F(RecordSession, StepsAreBroughtOnInTheOrderOfCapture) {
    SessionSettings s = settings();
    s.local = local_;
    s.flusher = Flusher::none;
    ChangingState state(kRecordItems);
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
    EXPECT_EQ(check(run_, kRecordItems), (std::vector<std::int64_t>{1, 3, 5, 9}));
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
    EXPECT_EQ(values[2999], testing::changing_value_at(1, 0, 3, 2999));
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
            ChangingState state(kRecordItems);
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
            EXPECT_EQ(check(run_, kRecordItems), (std::vector<std::int64_t>{0, 1, 2, 4, 5, 6, 7, 100}));
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
        ChangingState state(kRecordItems);
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
        const auto steps = check(run_, kRecordItems);
        EXPECT_FALSE(std::binary_search(steps.begin(), steps.end(), 2));
        for (const std::int64_t step : {0, 1, 5, 6, 7, 8})
            EXPECT_TRUE(std::binary_search(steps.begin(), steps.end(), step))
                << step << ", metadata " << metadata;
        if (metadata) {
            EXPECT_EQ(steps.size(), 8U);  // its difference is whole, and came without it
        }
    }
}

}  // namespace
}  // namespace twinrun
