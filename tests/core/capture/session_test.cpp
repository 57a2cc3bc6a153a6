#include "capture/session.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <random>

#include "engine/compare.hpp"
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
using testing::kLarge;
using testing::kSmall;
using testing::SessionTest;
using testing::State;
using testing::ThreadsComm;

TEST_F(SessionTest, ModesAgreeWithTheElements) {
    for (const bool keep_data : {true, false}) {
        for (const bool background : {true, false}) {
            for (const auto& sizes : {kSmall, kLarge}) {
                fs::remove_all(run_);
                SessionSettings s = settings();
                s.history.keep_data = keep_data;
                s.background = background;
                auto run = open(s);
                ASSERT_TRUE(run) << run.error().message;
                State state(sizes);
                for (const auto& field : state.list())
                    ASSERT_TRUE((*run)->protect(field));
                for (const std::int64_t step : {3, 1, 2}) {
                    state.become(step, 0);
                    const auto report = (*run)->capture(step);
                    ASSERT_TRUE(report) << report.error().message;
                    EXPECT_TRUE(report->lost.empty());
                    state.become(-step, 0);  // what is changed after capture() is not what was captured
                }
                const auto lost = (*run)->close();
                ASSERT_TRUE(lost) << lost.error().message;
                EXPECT_TRUE(lost->empty());
                EXPECT_EQ(check(run_, sizes, keep_data), (std::vector<std::int64_t>{1, 2, 3}));
            }
        }
    }
}

TEST_F(SessionTest, MemoryStaysWithinItsLimit) {
    SessionSettings s = settings();
    auto run = open(s);
    ASSERT_TRUE(run) << run.error().message;
    State state({4'000'000});  // 32 MB, twice the limit: streams through
    for (std::int64_t step = 0; step < 3; ++step) {
        state.become(step, 0);
        const auto report = (*run)->capture_fields(step, state.list());
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_LE(report->staged_bytes, s.memory_bytes);
    }
    ASSERT_TRUE((*run)->wait());
    EXPECT_LE((*run)->facts().most_staged_bytes, s.memory_bytes);
    EXPECT_EQ((*run)->facts().committed, 3U);
    ASSERT_TRUE((*run)->close());
    EXPECT_EQ(check(run_, {4'000'000}), (std::vector<std::int64_t>{0, 1, 2}));
}

TEST_F(SessionTest, RestoresWhatWasCaptured) {
    auto run = open(settings());
    ASSERT_TRUE(run);
    State state(kSmall);
    for (const auto& field : state.list())
        ASSERT_TRUE((*run)->protect(field));
    EXPECT_FALSE((*run)->restore(1));
    for (std::int64_t step = 0; step < 5; ++step) {
        state.become(step, 0);
        ASSERT_TRUE((*run)->capture(step));
    }
    ASSERT_TRUE((*run)->wait());
    EXPECT_EQ((*run)->latest().value(), 4);
    EXPECT_EQ((*run)->latest(2).value(), 2);
    EXPECT_FALSE((*run)->latest(-1).value().has_value());
    ASSERT_TRUE((*run)->restore(2));
    EXPECT_TRUE(state.is(2, 0));
    // Twice the same step: refused, unless replacing was asked for.
    EXPECT_FALSE((*run)->capture(2));
    ASSERT_TRUE((*run)->close());
    EXPECT_FALSE((*run)->capture(9));
    SessionSettings again = settings();
    again.existing = Existing::append;
    again.replace_steps = true;
    run = open(again);
    ASSERT_TRUE(run) << run.error().message;
    ASSERT_TRUE((*run)->capture_fields(2, state.list()));
    ASSERT_TRUE((*run)->close());
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
    EXPECT_EQ(History::open(run_)->steps[2].folder, "step-0000000002.1");
    EXPECT_FALSE(fs::exists(fs::path(run_) / "step-0000000002"));
}

// Reading back through any strides gives what writing through any strides was given.
TEST_F(SessionTest, StridesAndOrders) {
    std::mt19937 random(7);
    for (int round = 0; round < 40; ++round) {
        fs::remove_all(run_);
        const std::size_t rank = random() % 4;
        std::vector<std::uint64_t> shape;
        std::uint64_t items = 1;
        for (std::size_t d = 0; d < rank; ++d) {
            shape.push_back(1 + random() % 9);
            items *= shape.back();
        }
        // Dimensions in any order in memory, with gaps, some backwards.
        std::vector<std::size_t> order(rank);
        for (std::size_t d = 0; d < rank; ++d)
            order[d] = d;
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::int64_t> strides(rank);
        std::int64_t step = 4 * static_cast<std::int64_t>(1 + random() % 2);
        std::int64_t lowest = 0;
        for (const std::size_t d : order) {
            strides[d] = random() % 3 == 0 ? -step : step;
            if (strides[d] < 0) lowest += strides[d] * static_cast<std::int64_t>(shape[d] - 1);
            step *= static_cast<std::int64_t>(shape[d] + random() % 2);
        }
        std::vector<float> memory(static_cast<std::size_t>(step) / 4 + 1);
        float* base = memory.data() - lowest / 4;
        const ArrayOrder kept = random() % 2 == 0 ? ArrayOrder::row_major : ArrayOrder::column_major;
        std::vector<float> expected;
        for (std::uint64_t i = 0; i < items; ++i) {
            std::uint64_t rest = i;
            std::int64_t at = 0;
            for (std::size_t k = 0; k < rank; ++k) {
                const std::size_t d = kept == ArrayOrder::row_major ? rank - 1 - k : k;
                at += static_cast<std::int64_t>(rest % shape[d]) * strides[d];
                rest /= shape[d];
            }
            expected.push_back(static_cast<float>(round) + static_cast<float>(i) * 0.25F);
            base[at / 4] = expected.back();
        }
        CapturedField field;
        field.name = "x";
        field.dtype = DType::f32;
        field.shape = shape;
        field.strides = strides;
        field.order = kept;
        field.data = base;
        SessionSettings s = settings();
        s.background = round % 2 == 0;
        auto run = open(s);
        ASSERT_TRUE(run);
        ASSERT_TRUE((*run)->protect(field));
        ASSERT_TRUE((*run)->capture(0));
        ASSERT_TRUE((*run)->wait());
        std::vector<float> dense(items);
        CapturedField plain = field;
        plain.strides.clear();
        plain.data = dense.data();
        ASSERT_TRUE((*run)->protect(plain));
        ASSERT_TRUE((*run)->restore(0));
        EXPECT_EQ(dense, expected);
        std::vector<float> before = memory;
        std::fill(memory.begin(), memory.end(), 0.F);
        ASSERT_TRUE((*run)->protect(field));
        ASSERT_TRUE((*run)->restore(0));
        EXPECT_EQ(memory, before);
    }
}

// The order of particles in memory changes neither digests nor data.
TEST_F(SessionTest, ItemsAreKeptInTheOrderOfTheirIds) {
    const std::size_t n = 20'000;
    std::mt19937 random(3);
    std::vector<std::int64_t> ids(n);
    std::vector<float> v(n * 3);
    const auto fill = [&](std::size_t seed) {
        std::vector<std::int64_t> order(n);
        for (std::size_t i = 0; i < n; ++i)
            order[i] = static_cast<std::int64_t>(i) * 7 - 50'000;
        std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(seed)));
        for (std::size_t i = 0; i < n; ++i) {
            ids[i] = order[i];
            for (std::size_t k = 0; k < 3; ++k)
                v[3 * i + k] = static_cast<float>(order[i]) * 0.5F + static_cast<float>(k);
        }
    };
    CapturedField id;
    id.name = "id";
    id.dtype = DType::i64;
    id.shape = {n};
    id.data = ids.data();
    CapturedField field;
    field.name = "v";
    field.dtype = DType::f32;
    field.shape = {n, 3};
    field.data = v.data();
    field.ids = "id";
    for (const bool keep_data : {true, false}) {
        for (const bool background : {true, false}) {
            fs::remove_all(run_);
            SessionSettings s = settings();
            s.history.keep_data = keep_data;
            s.background = background;
            auto run = open(s);
            ASSERT_TRUE(run);
            ASSERT_TRUE((*run)->protect(field));
            EXPECT_FALSE((*run)->capture(9)) << "the IDs are not captured";
            ASSERT_TRUE((*run)->protect(id));
            for (const std::int64_t step : {0, 1}) {
                fill(static_cast<std::size_t>(step) + 1);
                const auto report = (*run)->capture(step);
                ASSERT_TRUE(report) << report.error().message;
            }
            ASSERT_TRUE((*run)->wait());
            const auto history = History::open(run_);
            std::vector<std::shared_ptr<MetadataFile>> files;
            for (const HistoryStep& step : history->steps) {
                files.push_back(
                    MetadataFile::open((fs::path(run_) / step.folder / step.ranks[0].metadata).string())
                        .value());
            }
            for (std::size_t f = 0; f < 2; ++f) {
                std::vector<std::byte> x(files[0]->directory().fields[f].place(Section::tree).length);
                std::vector<std::byte> y(x.size());
                ASSERT_TRUE(files[0]->read(f, Section::tree, 0, x));
                ASSERT_TRUE(files[1]->read(f, Section::tree, 0, y));
                EXPECT_TRUE(x == y) << f;
            }
            if (!keep_data) continue;
            ASSERT_TRUE((*run)->restore(1));
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(ids[i], static_cast<std::int64_t>(i) * 7 - 50'000);
                ASSERT_EQ(v[3 * i + 2], static_cast<float>(ids[i]) * 0.5F + 2.F);
            }
        }
    }
}

// ---- tiers ----

TEST_F(SessionTest, LocalTierBringsEveryStepOn) {
    for (const Flusher flusher : {Flusher::thread, Flusher::none}) {
        fs::remove_all(folder_);
        fs::create_directories(folder_);
        SessionSettings s = settings();
        s.local = (folder_ / "local").string();
        s.flusher = flusher;
        State state(kSmall);
        {
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            for (std::int64_t step = 0; step < 6; ++step) {
                state.become(step, 0);
                ASSERT_TRUE((*run)->capture_fields(step, state.list()));
            }
            const auto lost = (*run)->close();
            ASSERT_TRUE(lost && lost->empty());
        }
        if (flusher == Flusher::none) {
            EXPECT_TRUE(check(run_, kSmall).empty());
            const auto done = flush_folder(posix_file_system(), local_path(s.local, 0), run_,
                                           [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
            ASSERT_TRUE(done) << done.error().message;
            EXPECT_EQ(done->steps, 6U);
        }
        EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
    }
}

TEST_F(SessionTest, LocalTierStaysWithinItsLimit) {
    SessionSettings s = settings();
    s.local = (folder_ / "local").string();
    s.local_bytes = 600'000;  // two steps of about 240 kB
    State state({30'000});
    auto run = open(s);
    ASSERT_TRUE(run) << run.error().message;
    const auto used = [&] {
        std::uint64_t bytes = 0;
        for (const auto& entry : fs::recursive_directory_iterator(s.local)) {
            std::error_code gone;
            const auto size = entry.is_regular_file(gone) ? fs::file_size(entry, gone) : 0;
            if (!gone) bytes += size;
        }
        return bytes;
    };
    for (std::int64_t step = 0; step < 10; ++step) {
        state.become(step, 0);
        ASSERT_TRUE((*run)->capture_fields(step, state.list()));
        ASSERT_TRUE((*run)->wait());
        EXPECT_LE(used(), s.local_bytes + 4096);
    }
    // One step that is larger than the tier goes past it.
    State large({100'000});
    large.become(77, 0);
    ASSERT_TRUE((*run)->capture_fields(77, large.list()));
    const auto lost = (*run)->close();
    ASSERT_TRUE(lost && lost->empty());
    EXPECT_EQ(History::open(run_)->steps.size(), 11U);
}

TEST_F(SessionTest, RetentionKeepsTheNewest) {
    for (const bool local : {false, true}) {
        fs::remove_all(folder_);
        fs::create_directories(folder_);
        SessionSettings s = settings();
        if (local) s.local = (folder_ / "local").string();
        s.keep.steps = 4;
        s.keep.data_steps = 2;
        State state(kSmall);
        for (const std::int64_t first : {0, 6}) {
            s.existing = first == 0 ? Existing::refuse : Existing::append;
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            for (std::int64_t step = first; step < first + 6; ++step) {
                state.become(step, 0);
                ASSERT_TRUE((*run)->capture_fields(step, state.list()));
            }
            ASSERT_TRUE((*run)->close());
            EXPECT_EQ(check(run_, kSmall),
                      (std::vector<std::int64_t>{first + 2, first + 3, first + 4, first + 5}));
            const auto history = History::open(run_);
            for (const HistoryStep& step : history->steps) {
                const bool kept = step.step >= first + 4;
                EXPECT_EQ(step.ranks[0].data.empty(), !kept);
                EXPECT_EQ(fs::exists(fs::path(run_) / step.folder / "rank-00000.data"), kept);
            }
        }
    }
}

TEST_F(SessionTest, ALostLocalFolderTakesNothingThatReachedTheSharedOne) {
    SessionSettings s = settings();
    s.local = (folder_ / "local").string();
    State state(kSmall);
    {
        auto run = open(s);
        ASSERT_TRUE(run);
        for (std::int64_t step = 0; step < 3; ++step) {
            state.become(step, 0);
            ASSERT_TRUE((*run)->capture_fields(step, state.list()));
        }
        ASSERT_TRUE((*run)->wait());
        fs::remove_all(s.local);  // the node's disk is gone while the run goes on
        state.become(3, 0);
        static_cast<void>((*run)->capture_fields(3, state.list()));
        const auto lost = (*run)->close();
        ASSERT_TRUE(lost);
        EXPECT_EQ(check(run_, kSmall).size() + lost->size(), 4U);  // there, or told to be lost
    }
    s.existing = Existing::append;
    auto run = open(s);
    ASSERT_TRUE(run) << run.error().message;
    state.become(9, 0);
    ASSERT_TRUE((*run)->capture_fields(9, state.list()));
    const auto lost = (*run)->close();
    ASSERT_TRUE(lost && lost->empty());
    const auto steps = check(run_, kSmall);
    EXPECT_EQ(steps.back(), 9);
    EXPECT_GE(steps.size(), 4U);
}

// ---- several ranks ----

TEST_F(SessionTest, RanksCommitTogether) {
    constexpr int kRanks = 3;
    ThreadsComm::run(kRanks, [&](Comm& comm) {
        auto run = Session::open(posix_file_system(), comm, run_, settings());
        ASSERT_TRUE(run) << run.error().message;
        State state(kSmall);
        for (std::int64_t step = 0; step < 4; ++step) {
            state.become(step, comm.rank());
            const auto report = (*run)->capture_fields(step, state.list());
            ASSERT_TRUE(report) << report.error().message;
        }
        // All say the same of what only one did wrong.
        const auto other = (*run)->capture_fields(comm.rank() == 1 ? 9 : 8, state.list());
        ASSERT_FALSE(other);
        EXPECT_EQ(other.error().code, ErrorCode::mismatch);
        auto fields = state.list();
        if (comm.rank() == 2) fields[0].name = fields[1].name;
        const auto bad = (*run)->capture_fields(8, fields);
        ASSERT_FALSE(bad);
        EXPECT_EQ(bad.error().code, comm.rank() == 2 ? ErrorCode::invalid_argument : ErrorCode::other_rank);
        ASSERT_TRUE((*run)->wait());
        EXPECT_EQ((*run)->latest().value(), 3);
        ASSERT_TRUE((*run)->close());
    });
    const auto history = History::open(run_);
    ASSERT_TRUE(history);
    EXPECT_EQ(history->ranks, 3U);
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{0, 1, 2, 3}));
    // What one rank did not commit does not exist, and is not offered.
    std::string text;
    {
        const auto bytes = read_whole_file(journal_path(run_, 1, 3), 1 << 20).value();
        text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    text.resize(text.rfind('\n', text.size() - 2) + 1);
    fs::resize_file(journal_path(run_, 1, 3), text.size());
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{0, 1, 2}));
    EXPECT_EQ(History::open(run_)->incomplete, std::vector<std::int64_t>{3});
    ThreadsComm::run(kRanks, [&](Comm& comm) {
        SessionSettings s = settings();
        s.existing = Existing::append;
        auto run = Session::open(posix_file_system(), comm, run_, s);
        ASSERT_TRUE(run) << run.error().message;
        EXPECT_EQ((*run)->latest().value(), 2);
        State state(kSmall);
        state.become(3, comm.rank());
        ASSERT_TRUE((*run)->capture_fields(3, state.list()));
        ASSERT_TRUE((*run)->close());
    });
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{0, 1, 2, 3}));
    // Other numbers of ranks are refused.
    SessionSettings s = settings();
    s.existing = Existing::append;
    EXPECT_FALSE(open(s));
}

TEST_F(SessionTest, RanksAgreeAboutWhatLeaves) {
    ThreadsComm::run(3, [&](Comm& comm) {
        SessionSettings s = settings();
        s.keep.steps = 2;
        s.local = (folder_ / "local").string();
        auto run = Session::open(posix_file_system(), comm, run_, s);
        ASSERT_TRUE(run) << run.error().message;
        State state(kSmall);
        for (std::int64_t step = 0; step < 8; ++step) {
            state.become(step, comm.rank());
            ASSERT_TRUE((*run)->capture_fields(step, state.list()));
            if (step % 3 == 2) {
                ASSERT_TRUE((*run)->wait());
                EXPECT_EQ((*run)->latest().value(), step);
            }
        }
        ASSERT_TRUE((*run)->close());
    });
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{6, 7}));
    // Also in what a later job goes on with.
    ThreadsComm::run(3, [&](Comm& comm) {
        SessionSettings s = settings();
        s.keep.steps = 2;
        s.existing = Existing::append;
        auto run = Session::open(posix_file_system(), comm, run_, s);
        ASSERT_TRUE(run) << run.error().message;
        State state(kSmall);
        state.become(8, comm.rank());
        ASSERT_TRUE((*run)->capture_fields(8, state.list()));
        ASSERT_TRUE((*run)->close());
    });
    EXPECT_EQ(check(run_, kSmall), (std::vector<std::int64_t>{7, 8}));
}

TEST(SessionSettingsTest, MembersHaveTheLimitsOfTheirTexts) {
    SessionSettings s;
    for (const char* name : {"atol", "residue_bits", "chunk_bytes", "record_chunk", "record_level", "memory",
                             "device_memory", "local_limit", "record_table", "threads", "flush_threads"})
        EXPECT_TRUE(s.check(name, "")) << name;
    s.history.tolerance.atol = -1;
    s.history.residue_bits = 3;
    s.history.chunk_bytes = 5000;
    s.record_settings.chunk_bytes = 16;
    s.record_settings.level = 20;
    s.memory_bytes = s.device_bytes = s.local_bytes = s.record_table_bytes = (1ULL << 62) + 1;
    s.threads = 4097;
    s.flush_threads = 0;
    for (const char* name : {"atol", "residue_bits", "chunk_bytes", "record_chunk", "record_level", "memory",
                             "device_memory", "local_limit", "record_table", "threads", "flush_threads"}) {
        const auto checked = s.check(name, "this");
        ASSERT_FALSE(checked) << name;
        EXPECT_EQ(checked.error().message.rfind("setting " + std::string(name) + " = 'this': give ", 0), 0U);
    }
}

// ---- online comparison ----

TEST_F(SessionTest, DivergenceIsSeenAtOnce) {
    const std::string reference = (folder_ / "reference").string();
    for (const bool keep_data : {true, false}) {
        for (const auto& sizes : {kSmall, kLarge}) {
            for (const bool stop : {true, false}) {
                fs::remove_all(run_);
                fs::remove_all(reference);
                SessionSettings s = settings();
                s.history.keep_data = keep_data;
                State state(sizes);
                {
                    auto run = Session::open(posix_file_system(), comm_, reference, s);
                    ASSERT_TRUE(run);
                    for (std::int64_t step = 0; step < 3; ++step) {
                        state.become(step, 0);
                        ASSERT_TRUE((*run)->capture_fields(step, state.list()));
                    }
                    ASSERT_TRUE((*run)->close());
                }
                // The data is never read.
                for (const auto& entry : fs::recursive_directory_iterator(reference)) {
                    if (entry.path().extension() == ".data") fs::resize_file(entry, 0);
                }
                s.reference = reference;
                s.stop_on_divergence = stop;
                auto run = open(s);
                ASSERT_TRUE(run) << run.error().message;
                std::mutex mutex;
                std::vector<Divergence> seen;
                (*run)->on_divergence([&](const Divergence& d) {
                    const std::lock_guard guard(mutex);
                    seen.push_back(d);
                });
                for (std::int64_t step = 0; step < 4; ++step) {
                    state.become(step, 0);
                    for (auto& field : state.fields) {
                        for (double& x : field)
                            x += 1e-8;  // far below the tolerance
                    }
                    if (step == 1) state.fields[3][state.fields[3].size() - 2] += 1e-5;
                    const auto report = (*run)->capture_fields(step, state.list());
                    ASSERT_TRUE(report) << report.error().message;
                    EXPECT_EQ(report->divergence.has_value(), stop && step == 1);
                }
                ASSERT_TRUE((*run)->close());
                ASSERT_EQ(seen.size(), 1U);
                EXPECT_EQ(seen[0].step, 1);
                EXPECT_EQ(seen[0].field, "field3");
                EXPECT_EQ(seen[0].chunks, 1U);
                EXPECT_EQ(seen[0].first_item, (sizes[3] - 2) / 512 * 512);
                EXPECT_NE(History::open(run_)->steps[1].ranks[0].divergence, "");
                EXPECT_EQ(History::open(run_)->steps[2].ranks[0].divergence, "");
            }
        }
    }
}

TEST_F(SessionTest, WhatCannotBeComparedDiverges) {
    const std::string reference = (folder_ / "reference").string();
    SessionSettings s = settings();
    State state({100, 50});
    state.become(0, 0);
    {
        auto run = Session::open(posix_file_system(), comm_, reference, s);
        ASSERT_TRUE((*run)->capture_fields(0, state.list()));
        ASSERT_TRUE((*run)->close());
    }
    s.reference = reference;
    s.stop_on_divergence = true;
    auto run = open(s);
    ASSERT_TRUE(run);
    State other({100, 51});
    other.become(0, 0);
    const auto report = (*run)->capture_fields(0, other.list());
    ASSERT_TRUE(report);
    ASSERT_TRUE(report->divergence);
    EXPECT_EQ(report->divergence->field, "field1");
    EXPECT_NE(report->divergence->reason, "");
    s.reference = (folder_ / "nothing").string();
    s.existing = Existing::replace;
    run->reset();
    EXPECT_FALSE(open(s));
}

// ---- faults ----

// Every operation on storage fails once, as full or broken disk or with the machine going down: what was committed stays
// whole, nothing half is visible, what was lost is told, and the next run goes on.
TEST_F(SessionTest, AnyFaultOnAnyTier) {
    for (const int tier : {0, 1, 2}) {
        const bool local = tier == 1;
        const bool shared = tier == 2;
        for (const bool background : {false, true}) {
            SessionSettings s = settings();
            if (local) s.local = (folder_ / "local").string();
            if (shared) s.shared_files = SharedFiles::one;
            s.background = background;
            s.flush_threads = 1;
            State state(kSmall);
            // Steps that wait() promised.
            std::vector<std::int64_t> promised;
            bool waits = false;
            const auto run_steps = [&](FaultyFileSystem& system, std::int64_t first, std::int64_t last,
                                       std::size_t& told) {
                auto run = Session::open(system, comm_, run_, s);
                if (!run) return false;
                for (std::int64_t step = first; step < last; ++step) {
                    state.become(step, 0);
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
                FaultyFileSystem system;
                std::size_t told = 0;
                ASSERT_TRUE(run_steps(system, 0, 2, told));
                operations = system.operations();
                EXPECT_EQ(told, 0U);
            }
            for (const int kind : {0, 1, 2}) {
                for (std::size_t at = 1; at <= operations; ++at) {
                    SCOPED_TRACE(std::string(local    ? "local tier, "
                                             : shared ? "shared files, "
                                                      : "") +
                                 (background ? "background, " : "") + "kind " + std::to_string(kind) +
                                 ", operation " + std::to_string(at));
                    fs::remove_all(folder_);
                    fs::create_directories(folder_);
                    FaultyFileSystem system;
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
                    const bool began = run_steps(system, 0, 2, told);
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
                        EXPECT_GE(steps.size() + told, 2U);
                    }
                    // Goes on.
                    s.existing = Existing::append;
                    told = 0;
                    ASSERT_TRUE(run_steps(system, 10, 12, told));
                    EXPECT_EQ(told, 0U);
                    const auto steps = check(run_, kSmall);
                    ASSERT_GE(steps.size(), 2U);
                    EXPECT_EQ(steps[steps.size() - 1], 11);
                    EXPECT_EQ(steps[steps.size() - 2], 10);
                    if (shared && kind != 2) {
                        EXPECT_EQ(folders_in(run_).size(), steps.size());  // the lost ones left nothing
                    }
                }
            }
            fs::remove_all(folder_);
            fs::create_directories(folder_);
        }
    }
}

}  // namespace
}  // namespace twinrun
