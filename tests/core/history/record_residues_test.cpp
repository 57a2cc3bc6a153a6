// Residues that a record keeps in the differences of its steps.
#include "history/record_residues.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "comparison/compare_runs.hpp"
#include "comparison/run.hpp"
#include "history/history.hpp"
#include "history/pack.hpp"
#include "history/reference.hpp"
#include "history/restore.hpp"
#include "history/unpack.hpp"
#include "sketch/host_sketch.hpp"
#include "support/files.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"
#include "support/seed.hpp"
#include "support/session.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::DoubleFields;
using testing::expect_same_files;
using testing::kAllMethods;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::ThreadsComm;
using testing::unsynced_file_system;

using Bytes = std::vector<std::byte>;

constexpr double kResidueTolerance = 1e-6;
const std::vector<std::size_t> kResidueItems{40'000, 1, 100, 0, 3000, 700};

// Few values change from step to step. noise: added to all, within the tolerance.
double residue_value_at(std::int64_t step, int rank, std::size_t field, std::size_t i, double noise) {
    const auto since = static_cast<double>(i / 512 % 64 < static_cast<std::size_t>(step) ? step : 0);
    return since + 1e3 * rank + 1e-3 * static_cast<double>(field) + 1e-5 * static_cast<double>(i % 977) +
           noise * static_cast<double>(i % 7);
}

constexpr std::int64_t kResidueSteps = 4;

SessionSettings residue_settings() {
    SessionSettings s;
    s.history.tolerance.atol = kResidueTolerance;
    s.background = false;
    s.threads = 1;
    return s;
}

void capture_states(const std::string& path, const SessionSettings& how, int ranks = 1, double noise = 0,
                    const std::function<void(std::vector<CapturedField>&)>& change = {},
                    const std::function<void(const Divergence&)>& on_divergence = {}) {
    ThreadsComm::run(ranks, [&](Comm& comm) {
        auto run = Session::open(unsynced_file_system(), comm, path, how);
        ASSERT_TRUE(run) << run.error().message;
        if (on_divergence) (*run)->on_divergence(on_divergence);
        DoubleFields state(kResidueItems);
        for (std::int64_t step = 0; step < kResidueSteps; ++step) {
            state.fill([&](std::size_t f, std::size_t i) {
                return residue_value_at(step, comm.rank(), f, i, noise);
            });
            std::vector<CapturedField> fields = state.list();
            if (change) change(fields);
            const auto report = (*run)->capture_fields(step, fields);
            ASSERT_TRUE(report) << report.error().message;
            ASSERT_TRUE(report->lost.empty()) << report->lost[0].error.message;
        }
        ASSERT_TRUE((*run)->close());
    });
}

struct Opened {
    std::shared_ptr<RecordStore> store;  // null: a history that is no record
    std::shared_ptr<MetadataFile> metadata;
};
Opened opened_step(const std::string& path, const HistoryStep& step, std::uint32_t rank) {
    Opened found;
    auto metadata = MetadataFile::open((fs::path(path) / step.folder / step.ranks[rank].metadata).string());
    EXPECT_TRUE(metadata) << metadata.error().message;
    found.metadata = std::move(*metadata);
    if (step.ranks[rank].difference == kNoBase) return found;
    auto store = RecordStore::open(path, rank);
    EXPECT_TRUE(store) << store.error().message;
    found.store = std::move(*store);
    read_residues_from(found.store, step.ranks[rank].difference, *found.metadata);
    return found;
}

Bytes section_of(MetadataFile& file, std::size_t field, Section section) {
    Bytes bytes(file.directory().fields[field].place(section).length);
    const auto read = file.read(field, section, 0, bytes);
    EXPECT_TRUE(read) << read.error().message;
    return bytes;
}

// Both histories have the same digests, sums and residues at every step.
void expect_same_metadata(const std::string& a, const std::string& b) {
    const auto first = History::open(a);
    const auto second = History::open(b);
    ASSERT_TRUE(first && second);
    ASSERT_EQ(first->steps.size(), second->steps.size());
    for (std::size_t s = 0; s < first->steps.size(); ++s) {
        for (std::uint32_t rank = 0; rank < first->ranks; ++rank) {
            const Opened x = opened_step(a, first->steps[s], rank);
            const Opened y = opened_step(b, second->steps[s], rank);
            const auto& fields = x.metadata->directory().fields;
            ASSERT_EQ(fields.size(), y.metadata->directory().fields.size());
            for (std::size_t f = 0; f < fields.size(); ++f) {
                for (std::size_t n = 0; n < kSections; ++n) {
                    const auto section = static_cast<Section>(n);
                    EXPECT_TRUE(section_of(*x.metadata, f, section) == section_of(*y.metadata, f, section))
                        << "step " << s << ", field " << f << ", section " << n;
                }
            }
        }
    }
}

TEST(RecordResidues, AreThoseOfAPlainHistory) {
    int number = 0;
    for (const RecordMethod method : kAllMethods) {
        for (const std::uint32_t chunk : {32U, 256U, 4096U}) {
            for (const int ranks : {1, 2}) {
                if (number++ % 3 != 0 && ranks == 2) continue;
                SCOPED_TRACE(std::string(method_name(method)) + ", chunks of " + std::to_string(chunk) +
                             ", " + std::to_string(ranks) + " ranks");
                const QuickFolder folder;
                SessionSettings how = residue_settings();
                capture_states(folder / "plain", how, ranks);
                how.record = method;
                how.record_settings.chunk_bytes = chunk;
                if (number % 2 == 0) how.local = folder / "local";
                capture_states(folder / "record", how, ranks);
                if (HasFailure()) return;
                expect_same_metadata(folder / "plain", folder / "record");
                const auto history = History::open(folder / "record");
                EXPECT_NE(opened_step(folder / "record", history->steps[1], 0).metadata->elsewhere().size(),
                          0U);
            }
        }
    }
}

TEST(RecordResidues, EqualOnesAreThereOnce) {
    const QuickFolder folder;
    SessionSettings how = residue_settings();
    how.record = RecordMethod::runs;
    capture_states(folder / "record", how);
    how.history.residue_bits = 0;
    capture_states(folder / "without", how);
    const auto record = History::open(folder / "record");
    const auto without = History::open(folder / "without");
    ASSERT_TRUE(record && without);
    for (std::size_t s = 0; s < record->steps.size(); ++s) {
        const std::uint64_t residues =
            opened_step(folder / "record", record->steps[s], 0).metadata->elsewhere().size();
        ASSERT_GT(residues, 20'000U);
        const RankFiles& with = record->steps[s].ranks[0];
        // Of 64 pieces, so many change as the step's number says. Packing is better or worse with more.
        const std::uint64_t most = without->steps[s].ranks[0].data_bytes + residues / 5;
        if (s != 0) {
            EXPECT_LT(with.data_bytes, most) << s;
        }
        EXPECT_LT(with.metadata_bytes, residues);
    }
}

// Packed, packed again, and taken out: the files are what they were.
TEST(RecordResidues, ComeBackBitForBit) {
    int number = 0;
    for (const SharedFiles shared : {SharedFiles::off, SharedFiles::one}) {
        for (const RecordMethod method : {RecordMethod::runs, RecordMethod::tree, RecordMethod::full}) {
            SCOPED_TRACE(++number);
            const QuickFolder folder;
            SessionSettings how = residue_settings();
            how.shared_files = shared;
            capture_states(folder / "run", how, 2);
            pack(folder / "run", folder / "record", options(method, 128));
            pack(folder / "record", folder / "again", options(RecordMethod::runs, 64));
            if (HasFailure()) return;
            expect_same_metadata(folder / "run", folder / "record");
            expect_same_metadata(folder / "run", folder / "again");
            for (const std::string name : {"record", "again"}) {
                const auto made = unpack_steps(unsynced_file_system(), folder / name, {0, 1, 2, 3},
                                               folder / (name + " back"), false, 1);
                ASSERT_TRUE(made) << made.error().message;
                expect_same_metadata(folder / "run", folder / (name + " back"));
                if (shared == SharedFiles::off) expect_same_files(folder / "run", folder / (name + " back"));
                // A second time: the steps are known.
                EXPECT_TRUE(unpack_steps(unsynced_file_system(), folder / name, {0, 1, 2, 3},
                                         folder / (name + " back"), false, 1));
            }
            // With the same steps nothing is added.
            PackOptions append = options(method, 128);
            append.append = true;
            std::size_t added = 0;
            EXPECT_TRUE(pack_history(unsynced_file_system(), folder / "run", folder / "record", append,
                                     [&](const PackedStep&) { return ++added != 0; }));
            EXPECT_EQ(added, 0U);
        }
    }
}

TEST(RecordResidues, ProveWhatElementsWouldSay) {
    const QuickFolder folder;
    SessionSettings how = residue_settings();
    capture_states(folder / "plain", how);
    how.record = RecordMethod::runs;
    capture_states(folder / "a", how);
    capture_states(folder / "b", how, 1, 0.1 * kResidueTolerance);
    capture_states(folder / "c", how, 1, 0.3 * kResidueTolerance);  // up to 1.8 times the tolerance
    const auto compared = [&](const std::string& x, const std::string& y) {
        auto run_x = HistoryRun::open(folder / x);
        auto run_y = HistoryRun::open(folder / y);
        EXPECT_TRUE(run_x && run_y);
        auto found = compare_runs(**run_x, **run_y, {});
        EXPECT_TRUE(found) << found.error().message;
        return std::move(*found);
    };
    for (const char* x : {"plain", "a"}) {
        const auto same = compared(x, "b");
        EXPECT_EQ(same.verdict, Verdict::same);
        const auto different = compared(x, "c");
        EXPECT_EQ(different.verdict, Verdict::different);
    }
    // While a run is captured, against a reference that is a record.
    for (const bool within : {true, false}) {
        SessionSettings online = residue_settings();
        online.reference = folder / "a";
        std::size_t diverged = 0;
        capture_states(folder / (within ? "near" : "far"), online, 1,
                       (within ? 0.1 : 0.3) * kResidueTolerance, {}, [&](const Divergence&) { ++diverged; });
        EXPECT_EQ(diverged, within ? 0U : static_cast<std::size_t>(kResidueSteps));
    }
}

// A reference captures steps again that were compared already: its residues are those of the new ones.
TEST(RecordResidues, AreThoseOfTheAttemptThatTheJournalNames) {
    const QuickFolder folder;
    SessionSettings how = residue_settings();
    how.record = RecordMethod::runs;
    capture_states(folder / "a", how, 1, 0.1 * kResidueTolerance);
    const auto reference = Reference::open(folder / "a", 0, 1);
    ASSERT_TRUE(reference);
    const auto first = History::open(folder / "a");
    ASSERT_TRUE(first);
    const Opened known = opened_step(folder / "a", first->steps[2], 0);
    const std::vector<FieldMetadata> fields = known.metadata->directory().fields;
    std::vector<HostSketch> sketches;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        auto sketch = HostSketch::load(*known.metadata, f);
        ASSERT_TRUE(sketch) << sketch.error().message;
        sketches.push_back(std::move(*sketch));
    }
    const auto before = (*reference)->check(0, fields);  // opens the record
    how.existing = Existing::append;
    how.replace_steps = true;
    capture_states(folder / "a", how, 1, 0.2 * kResidueTolerance);
    const auto again = History::open(folder / "a");
    ASSERT_TRUE(again);
    ASSERT_NE(again->steps[2].folder, first->steps[2].folder);
    const auto check = (*reference)->check(2, fields);
    for (std::size_t f = 0; f < fields.size(); ++f)
        ASSERT_TRUE(check->whole(f, sketches[f].built()));
    const auto found = check->result();
    EXPECT_FALSE(found) << found->reason;
}

TEST(RecordResidues, AFieldMayHaveTheirName) {
    const QuickFolder folder;
    SessionSettings how = residue_settings();
    const auto change = [](std::vector<CapturedField>& fields) {
        fields[0].name = "rank-00000.residues";
        fields[1].name = "rank-00000.residues'";
        fields[2].name = "rank-00000.data";
        fields[3].name = "rank-00000.residues\'\'";  // has no items
    };
    capture_states(folder / "plain", how, 1, 0, change);
    how.record = RecordMethod::runs;
    capture_states(folder / "record", how, 1, 0, change);
    expect_same_metadata(folder / "plain", folder / "record");
    ASSERT_TRUE(unpack_steps(unsynced_file_system(), folder / "record", {2}, folder / "back", false, 1));
    const auto store = RecordStore::open(folder / "record", 0);
    DoubleFields restored(kResidueItems);
    std::vector<CapturedField> into = restored.list();
    change(into);
    const auto journal = read_rank_journal(folder / "record", 0, 1);
    ASSERT_TRUE(journal);
    const auto done = restore_step({{folder / "record", *journal}}, 2, into);
    ASSERT_TRUE(done) << done.error().message;
    DoubleFields state(kResidueItems);
    state.fill([](std::size_t f, std::size_t i) { return residue_value_at(2, 0, f, i, 0); });
    const auto map = (*store)->map(2);
    ASSERT_TRUE(map);
    for (const std::size_t f : {0U, 1U, 2U}) {
        std::vector<CapturedField> fields = state.list();
        change(fields);
        const RecordSegment* found = map->find(fields[f].name);
        ASSERT_NE(found, nullptr);
        EXPECT_EQ(found->file, 0U);
        std::vector<double> values(kResidueItems[f]);
        ASSERT_TRUE((*store)->read_segment(*map,
                                           static_cast<std::size_t>(found - map->directory.segments.data()),
                                           std::as_writable_bytes(std::span(values))));
        EXPECT_EQ(values, state.fields[f]);
    }
}

// Whatever byte of a record's files is another one: residues are right, or an error.
TEST(RecordResidues, DamageIsFound) {
    const QuickFolder folder;
    SessionSettings how = residue_settings();
    how.record = RecordMethod::runs;
    capture_states(folder / "record", how);
    const auto history = History::open(folder / "record");
    ASSERT_TRUE(history);
    const HistoryStep& step = history->steps.back();
    std::vector<Bytes> right;
    {
        const Opened good = opened_step(folder / "record", step, 0);
        for (std::size_t f = 0; f < kResidueItems.size(); ++f)
            right.push_back(section_of(*good.metadata, f, Section::residues));
    }
    std::mt19937_64 random(test_seed(1));
    std::size_t errors = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "record")) {
        const std::string path = entry.path().string();
        if (entry.path().extension() != ".twr" && entry.path().extension() != ".twm") continue;
        const auto whole = read_whole_file(path, 1 << 30);
        ASSERT_TRUE(whole);
        for (int round = 0; round < 40; ++round) {
            Bytes damaged = *whole;
            damaged[random() % damaged.size()] ^= static_cast<std::byte>(1U << random() % 8);
            testing::put(path, damaged);
            auto metadata = MetadataFile::open(
                (fs::path(folder / "record") / step.folder / step.ranks[0].metadata).string());
            auto store = RecordStore::open(folder / "record", 0);
            if (!metadata || !store) {
                ++errors;
                continue;
            }
            read_residues_from(*store, step.ranks[0].difference, **metadata);
            for (std::size_t f = 0; f < kResidueItems.size(); ++f) {
                Bytes bytes(right[f].size());
                if (const auto read = (*metadata)->read(f, Section::residues, 0, bytes); !read) {
                    ++errors;
                    EXPECT_EQ(read.error().code, ErrorCode::damaged) << read.error().message;
                } else {
                    EXPECT_TRUE(bytes == right[f]);
                }
            }
        }
        testing::put(path, *whole);
    }
    EXPECT_GT(errors, 50U);
}

}  // namespace
}  // namespace twinrun
