// Histories that a session meets, replaces or refuses: journals that are gone, names, folders, steps of others.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>

#include "base/utf8.hpp"
#include "capture/session.hpp"
#include "history/flush.hpp"
#include "support/session_mishaps.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::SessionMishaps;
using testing::ThreadsComm;

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

}  // namespace
}  // namespace twinrun
