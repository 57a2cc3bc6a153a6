#include "capture/session.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/checksum.hpp"
#include "engine/compare.hpp"
#include "history/flush.hpp"
#include "history/gather.hpp"
#include "history/restore.hpp"
#include "support/faulty_file_system.hpp"
#include "support/test_folder.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::ThreadsComm;

// What element i of a field is at a step: any state can be checked without having kept it.
double value_at(std::int64_t step, int rank, std::size_t field, std::size_t i) {
    return static_cast<double>(step) + 1e3 * rank + 1e-3 * static_cast<double>(field) +
           1e-9 * static_cast<double>(i % 977);
}

struct State {
    explicit State(std::vector<std::size_t> sizes) {
        for (const std::size_t n : sizes)
            fields.emplace_back(n);
    }
    void become(std::int64_t step, int rank) {
        for (std::size_t f = 0; f < fields.size(); ++f) {
            for (std::size_t i = 0; i < fields[f].size(); ++i)
                fields[f][i] = value_at(step, rank, f, i);
        }
    }
    [[nodiscard]] bool is(std::int64_t step, int rank) const {
        for (std::size_t f = 0; f < fields.size(); ++f) {
            for (std::size_t i = 0; i < fields[f].size(); ++i) {
                if (fields[f][i] != value_at(step, rank, f, i)) return false;
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

class SessionTest : public testing::FolderTest {
   protected:
    void SetUp() override { run_ = (folder_ / "run").string(); }

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
    // Steps that are committed; each reads back bit for bit.
    static std::vector<std::int64_t> check(const std::string& path, const std::vector<std::size_t>& sizes,
                                           bool with_data = true) {
        std::vector<std::int64_t> steps;
        auto history = History::open(path);
        EXPECT_TRUE(history) << history.error().message;
        if (!history) return steps;
        for (const HistoryStep& step : history->steps) {
            steps.push_back(step.step);
            for (const RankFiles& r : step.ranks) {
                const int rank = static_cast<int>(r.rank);
                State state(sizes);
                Journal journal;
                journal.steps[step.step] = {step.folder, r};
                if (with_data && !r.data.empty()) {
                    const auto restored = restore_step({{path, journal}}, step.step, state.list());
                    EXPECT_TRUE(restored) << restored.error().message;
                    EXPECT_TRUE(state.is(step.step, rank)) << "step " << step.step;
                }
                // Its digests are those of the elements.
                state.become(step.step, rank);
                auto metadata = MetadataFile::open((fs::path(path) / step.folder / r.metadata).string());
                EXPECT_TRUE(metadata) << metadata.error().message;
                if (!metadata) continue;
                const auto list = state.list();
                for (std::size_t f = 0; f < list.size(); ++f) {
                    const FieldMetadata& field = (*metadata)->directory().fields[f];
                    MemorySource source(DType::f64, field.items(), list[f].data, 8, false);
                    BuiltField built;
                    EXPECT_TRUE(build_in_memory(field, source, {}, built));
                    BuiltField stored;
                    stored.tree.resize(built.tree.size());
                    stored.fine.resize(built.fine.size());
                    stored.residues.resize(built.residues.size());
                    EXPECT_TRUE((*metadata)->read(f, Section::tree, 0,
                                                  std::as_writable_bytes(std::span(stored.tree))));
                    EXPECT_TRUE((*metadata)->read(f, Section::fine, 0,
                                                  std::as_writable_bytes(std::span(stored.fine))));
                    EXPECT_TRUE((*metadata)->read(f, Section::residues, 0, stored.residues));
                    EXPECT_EQ(stored.tree, built.tree);
                    EXPECT_EQ(stored.fine, built.fine);
                    EXPECT_TRUE(stored.residues == built.residues);
                }
            }
        }
        return steps;
    }

    SelfComm comm_;
    std::string run_;
};

std::vector<std::string> folders_in(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) {
        if (entry.is_directory()) names.push_back(entry.path().filename().string());
    }
    return names;
}

const std::vector<std::size_t> kSmall{1, 100, 0, 5000};
const std::vector<std::size_t> kLarge{700'001, 3, 1'000'000, 100};  // 13.6 MB: pieces of several slices

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

// ---- files of several ranks ----

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
                    journal.steps[step.step] = {step.folder, r};
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
