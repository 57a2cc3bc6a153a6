// Sessions of several ranks whose steps lie in files that they share.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "capture/session.hpp"
#include "history/flush.hpp"
#include "history/restore.hpp"
#include "support/faulty_file_system.hpp"
#include "support/session_states.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::folders_in;
using testing::kSmall;
using testing::SessionTest;
using testing::State;
using testing::ThreadsComm;

// Sizes differ from rank to rank and from step to step; some have nothing.
std::vector<std::size_t> sizes_at(std::int64_t step, int rank, std::uint64_t seed) {
    std::mt19937_64 random(seed * 1'000'003 + static_cast<std::uint64_t>(step) * 1009 +
                           static_cast<std::uint64_t>(rank));
    std::vector<std::size_t> sizes(1 + random() % 3);
    const bool nothing = random() % 4 == 0 || step % 5 == 3;
    for (std::size_t& n : sizes)
        n = nothing ? 0 : random() % 3 == 0 ? random() % 200'000 : random() % 900;
    return sizes;
}

TEST_F(SessionTest, SharedFilesHoldTheBytesOfAllRanks) {
    for (const int ranks : {1, 2, 3, 5}) {
        for (const bool background : {false, true}) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks" + (background ? ", background" : ""));
            const auto seed = static_cast<std::uint64_t>(ranks);
            fs::remove_all(run_);
            std::map<std::pair<std::int64_t, int>, std::vector<std::size_t>> sizes;
            for (std::int64_t step = 0; step < 8; ++step) {
                for (int rank = 0; rank < ranks; ++rank)
                    sizes[{step, rank}] = sizes_at(step, rank, seed);
            }
            ThreadsComm::run(ranks, [&](Comm& comm) {
                SessionSettings s = settings();
                s.shared_files = SharedFiles::one;
                s.background = background;
                auto run = Session::open(posix_file_system(), comm, run_, s);
                ASSERT_TRUE(run) << run.error().message;
                for (std::int64_t step = 0; step < 8; ++step) {
                    State state(sizes.at({step, comm.rank()}));
                    state.become(step, comm.rank());
                    const auto report = (*run)->capture_fields(step, state.list());
                    ASSERT_TRUE(report) << report.error().message;
                    state.become(-step, comm.rank());
                }
                const auto waited = (*run)->wait();
                ASSERT_TRUE(waited && waited->empty());
                for (std::int64_t step = 0; step < 8; ++step) {
                    State state(sizes.at({step, comm.rank()}));
                    for (auto& field : state.list())
                        ASSERT_TRUE((*run)->protect(field));
                    std::vector<std::string> names;
                    for (auto& field : state.list())
                        names.push_back(field.name);
                    const auto restored = (*run)->restore(step, names);
                    EXPECT_TRUE(restored) << restored.error().message;
                    EXPECT_TRUE(state.is(step, comm.rank()));
                }
                const auto lost = (*run)->close();
                ASSERT_TRUE(lost && lost->empty());
            });
            const auto history = History::open(run_);
            ASSERT_TRUE(history) << history.error().message;
            ASSERT_EQ(history->steps.size(), 8U);
            EXPECT_TRUE(history->settings.shared);
            for (const HistoryStep& step : history->steps) {
                // The parts are the file: one behind the other, without a gap.
                const std::string file = (fs::path(run_) / step.folder / "group.data").string();
                std::uint64_t at = 0;
                for (const RankFiles& r : step.ranks) {
                    EXPECT_EQ(r.data, "group.data");
                    EXPECT_TRUE(r.shared);
                    EXPECT_EQ(r.offset, at);
                    EXPECT_EQ(r.offset % kPageBytes, 0U);
                    at += r.data_bytes;
                    EXPECT_EQ(r.file_bytes, fs::file_size(file));
                    EXPECT_FALSE(fs::exists(fs::path(run_) / step.folder / (rank_name(r.rank) + ".data")));
                    const int rank = static_cast<int>(r.rank);
                    State state(sizes.at({step.step, rank}));
                    Journal journal;
                    journal.steps.put(step.step, {step.folder, r});
                    const auto restored = restore_step({{run_, journal}}, step.step, state.list());
                    EXPECT_TRUE(restored) << restored.error().message;
                    EXPECT_TRUE(state.is(step.step, rank));
                    const auto metadata =
                        MetadataFile::open((fs::path(run_) / step.folder / r.metadata).string());
                    ASSERT_TRUE(metadata) << metadata.error().message;
                    EXPECT_TRUE((*metadata)->check_data_files());
                    for (const FieldMetadata& field : (*metadata)->directory().fields) {
                        if (field.items() == 0) continue;
                        ASSERT_EQ(field.extents.size(), 1U);
                        EXPECT_GE(field.extents[0].offset, r.offset);
                        EXPECT_LE(field.extents[0].offset + field.data_bytes(), r.offset + r.data_bytes);
                    }
                }
                EXPECT_EQ(at, fs::file_size(file));
            }
        }
    }
}

TEST_F(SessionTest, SharedFilesLeaveWithTheLastRank) {
    for (const bool replace : {false, true}) {
        fs::remove_all(run_);
        ThreadsComm::run(3, [&](Comm& comm) {
            SessionSettings s = settings();
            s.shared_files = SharedFiles::one;
            s.replace_steps = replace;
            s.keep.steps = 2;
            auto run = Session::open(posix_file_system(), comm, run_, s);
            ASSERT_TRUE(run) << run.error().message;
            State state(kSmall);
            for (int i = 0; i < 9; ++i) {
                const std::int64_t step = replace ? i % 3 : i;
                state.become(step, comm.rank());
                const auto report = (*run)->capture_fields(step, state.list());
                ASSERT_TRUE(report) << report.error().message;
            }
            const auto lost = (*run)->close();
            ASSERT_TRUE(lost && lost->empty());
        });
        EXPECT_EQ(check(run_, kSmall),
                  replace ? (std::vector<std::int64_t>{1, 2}) : (std::vector<std::int64_t>{7, 8}));
        EXPECT_EQ(folders_in(run_).size(), 2U);
    }
}

// Storage fails once on one rank, wherever: the step is there for all, or for none; no rank waits for ever, and the next steps are
// well. What a lost one left, the next job removes.
TEST_F(SessionTest, SharedStepsAreLostTogether) {
    for (const bool background : {false, true}) {
        for (const int who : {0, 2}) {
            bool reached = true;
            for (std::size_t at = 1; reached; ++at) {
                SCOPED_TRACE("rank " + std::to_string(who) + ", operation " + std::to_string(at) +
                             (background ? ", background" : ""));
                fs::remove_all(run_);
                std::array<std::set<std::int64_t>, 3> told;
                ThreadsComm::run(3, [&](Comm& comm) {
                    FaultyFileSystem system;
                    SessionSettings s = settings();
                    s.shared_files = SharedFiles::one;
                    s.background = background;
                    s.flush_threads = 1;
                    auto run = Session::open(system, comm, run_, s);
                    ASSERT_TRUE(run) << run.error().message;
                    if (comm.rank() == who) {
                        Fault fault;
                        fault.at = at;
                        system.inject(fault);
                    }
                    auto& mine = told[static_cast<std::size_t>(comm.rank())];
                    State state(kSmall);
                    for (std::int64_t step = 0; step < 3; ++step) {
                        state.become(step, comm.rank());
                        const auto report = (*run)->capture_fields(step, state.list());
                        if (!report) mine.insert(step);
                        for (const LostStep& lost : report ? report->lost : std::vector<LostStep>())
                            mine.insert(lost.step);
                        if (comm.rank() == who && step == 0) {
                            const auto lost = (*run)->wait();
                            ASSERT_TRUE(lost);
                            for (const LostStep& one : *lost)
                                mine.insert(one.step);
                            reached = system.operations() >= at;
                            system.inject({});
                        } else if (step == 0) {
                            const auto lost = (*run)->wait();
                            ASSERT_TRUE(lost);
                            for (const LostStep& one : *lost)
                                mine.insert(one.step);
                        }
                    }
                    const auto lost = (*run)->close();
                    ASSERT_TRUE(lost && lost->empty());
                });
                const auto steps = check(run_, kSmall);
                const auto& mine = told[static_cast<std::size_t>(who)];
                if (steps == (std::vector<std::int64_t>{1, 2})) {
                    EXPECT_EQ(mine, std::set<std::int64_t>{0});
                } else {
                    EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 1, 2}));
                }
                EXPECT_TRUE(reached || steps.size() == 3U);
                // Nobody hears of a step that all ranks have.
                for (const auto& other : told) {
                    EXPECT_TRUE(other.empty() || mine == other);
                    EXPECT_TRUE(other.empty() || reached);
                }
                ThreadsComm::run(3, [&](Comm& comm) {
                    SessionSettings s = settings();
                    s.existing = Existing::append;
                    auto run = Session::open(posix_file_system(), comm, run_, s);
                    ASSERT_TRUE(run) << run.error().message;
                    State state(kSmall);
                    state.become(9, comm.rank());
                    ASSERT_TRUE((*run)->capture_fields(9, state.list()));
                    const auto lost = (*run)->close();
                    ASSERT_TRUE(lost && lost->empty());
                });
                EXPECT_EQ(check(run_, kSmall).size(), steps.size() + 1);
                if (HasFailure()) return;
            }
        }
    }
}

// A rank that could not even take a step comes with the next one.
TEST_F(SessionTest, SharedStepsThatOneRankNeverTook) {
    class Absent final : public Comm {
       public:
        explicit Absent(Comm& inner) : inner_(inner) {}
        [[nodiscard]] int rank() const override { return inner_.rank(); }
        [[nodiscard]] int size() const override { return inner_.size(); }
        Result<> minimum(std::span<std::int64_t> values) override { return inner_.minimum(values); }
        Result<> broadcast(std::span<std::byte> bytes) override { return inner_.broadcast(bytes); }
        Result<std::string> prepare_shared(SharedFiles files, bool background) override {
            return inner_.prepare_shared(files, background);
        }
        Result<SharedPlace> write_shared(FileSystem& system, const SharedPart& part) override {
            if (rank() == 1 && part.ordinal % 3 == 1) return Error{ErrorCode::out_of_memory, "not taken"};
            return inner_.write_shared(system, part);
        }

       private:
        Comm& inner_;
    };
    ThreadsComm::run(3, [&](Comm& inner) {
        Absent comm(inner);
        SessionSettings s = settings();
        s.shared_files = SharedFiles::one;
        auto run = Session::open(posix_file_system(), comm, run_, s);
        ASSERT_TRUE(run) << run.error().message;
        State state(kSmall);
        std::set<std::int64_t> told;
        for (std::int64_t step = 0; step < 9; ++step) {
            state.become(step, comm.rank());
            const auto report = (*run)->capture_fields(step, state.list());
            ASSERT_TRUE(report) << report.error().message;
            for (const LostStep& lost : report->lost)
                told.insert(lost.step);
        }
        const auto lost = (*run)->close();
        ASSERT_TRUE(lost);
        for (const LostStep& one : *lost)
            told.insert(one.step);
        EXPECT_EQ(told, (std::set<std::int64_t>{1, 4, 7}));
    });
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{0, 2, 3, 5, 6, 8}));
}

TEST_F(SessionTest, SharedFilesDoNotGoWithEverything) {
    const auto refused = [&](auto change) {
        SessionSettings s = settings();
        s.shared_files = SharedFiles::one;
        change(s);
        const auto run = open(s);
        EXPECT_FALSE(run);
        EXPECT_FALSE(fs::exists(run_));
        if (run) return;
        EXPECT_NE(run.error().message.find("shared_files"), std::string::npos) << run.error().message;
    };
    refused([](SessionSettings& s) { s.record = RecordMethod::tree; });
    refused([&](SessionSettings& s) { s.local = (folder_ / "local").string(); });
    refused([](SessionSettings& s) { s.keep.data_steps = 1; });
    refused([](SessionSettings& s) { s.history.keep_data = false; });
    // Ranks that cannot write together.
    class Plain final : public Comm {
       public:
        [[nodiscard]] int rank() const override { return 0; }
        [[nodiscard]] int size() const override { return 1; }
        Result<> minimum(std::span<std::int64_t>) override { return success(); }
        Result<> broadcast(std::span<std::byte>) override { return success(); }
    } plain;
    SessionSettings s = settings();
    s.shared_files = SharedFiles::node;
    const auto run = Session::open(posix_file_system(), plain, run_, s);
    ASSERT_FALSE(run);
    EXPECT_EQ(run.error().code, ErrorCode::unsupported);
    EXPECT_FALSE(fs::exists(run_));
    // A history that was begun without stays as older programs know it.
    SessionSettings without = settings();
    State state(kSmall);
    state.become(1, 0);
    {
        auto first = open(without);
        ASSERT_TRUE(first && (*first)->capture_fields(1, state.list()) && (*first)->close());
    }
    s.existing = Existing::append;
    const auto later = open(s);
    ASSERT_FALSE(later);
    EXPECT_EQ(later.error().code, ErrorCode::mismatch);
    EXPECT_NE(later.error().message.find("shared_files"), std::string::npos);
    // The text of the setting.
    for (const auto& [text, value] : std::map<std::string, SharedFiles>{{"off", SharedFiles::off},
                                                                        {"rank", SharedFiles::off},
                                                                        {"one", SharedFiles::one},
                                                                        {"node", SharedFiles::node}}) {
        SessionSettings named;
        named.shared_files = value == SharedFiles::off ? SharedFiles::one : SharedFiles::off;
        ASSERT_TRUE(named.set("shared_files", text));
        EXPECT_EQ(named.shared_files, value);
    }
    EXPECT_FALSE(s.set("shared_files", "two"));
}

}  // namespace
}  // namespace twinrun
