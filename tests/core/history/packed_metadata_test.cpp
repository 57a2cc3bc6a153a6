// Metadata that a record makes anew: of parts of shared files, and of steps within a bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "history/compact.hpp"
#include "history/history.hpp"
#include "history/pack.hpp"
#include "history/restore.hpp"
#include "history/unpack.hpp"
#include "metadata/metadata.hpp"
#include "sketch/build.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::bytes_in;
using testing::capture;
using testing::expect_record;
using testing::fields_of;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::random_truth;
using testing::steps_of;
using testing::TestImage;
using testing::Truth;
using testing::unsynced_file_system;

// Each rank's part of a shared file becomes a file of its own, with metadata that fits it.
TEST(Pack, SharedFilesAreTakenApart) {
    std::uint64_t seed = 900;
    for (const int ranks : {1, 2, 4}) {
        for (const RecordMethod method : {RecordMethod::runs, RecordMethod::basic}) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::string(method_name(method)));
            QuickFolder folder;
            const Truth truth = random_truth(++seed, 6, ranks);
            SessionSettings shared;
            shared.shared_files = SharedFiles::one;
            capture(folder / "run", truth, shared);
            if (::testing::Test::HasFailure()) return;
            const auto run = History::open(folder / "run");
            ASSERT_TRUE(run) << run.error().message;
            ASSERT_TRUE(run->settings.shared);
            pack(folder / "run", folder / "record", options(method));
            expect_record(folder / "record", truth);
            const auto record = History::open(folder / "record");
            ASSERT_TRUE(record) << record.error().message;
            EXPECT_FALSE(record->settings.shared);
            // Out of it, and packed once more.
            const auto made = unpack_steps(unsynced_file_system(), folder / "record", steps_of(truth),
                                           folder / "back", false, 1);
            ASSERT_TRUE(made) << made.error().message;
            const auto back = History::open(folder / "back");
            ASSERT_TRUE(back) << back.error().message;
            ASSERT_EQ(back->steps.size(), run->steps.size());
            for (std::size_t k = 0; k < run->steps.size(); ++k) {
                const HistoryStep& had = run->steps[k];
                const HistoryStep& has = back->steps[k];
                for (std::size_t rank = 0; rank < had.ranks.size(); ++rank) {
                    const RankFiles& before = had.ranks[rank];
                    const RankFiles& after = has.ranks[rank];
                    EXPECT_FALSE(after.shared);
                    const auto all =
                        read_whole_file((fs::path(folder / "run") / had.folder / before.data).string(),
                                        std::uint64_t{1} << 30);
                    const auto own =
                        read_whole_file((fs::path(folder / "back") / has.folder / after.data).string(),
                                        std::uint64_t{1} << 30);
                    ASSERT_TRUE(all && own);
                    const auto from = all->begin() + static_cast<std::ptrdiff_t>(before.offset);
                    EXPECT_EQ(*own, std::vector<std::byte>(
                                        from, from + static_cast<std::ptrdiff_t>(before.data_bytes)));
                    const auto metadata = MetadataFile::open(
                        (fs::path(folder / "back") / has.folder / after.metadata).string());
                    ASSERT_TRUE(metadata) << metadata.error().message;
                    EXPECT_TRUE((*metadata)->check_data_files());
                    EXPECT_EQ((*metadata)->directory().data_files[0].path, after.data);
                    // Into arrays, by that metadata.
                    TestImage image = truth.at(had.step)[rank];
                    const TestImage wanted = image;
                    for (auto& segment : image)
                        std::fill(segment.bytes.begin(), segment.bytes.end(), std::byte{0xEE});
                    Journal journal;
                    journal.steps.put(has.step, {has.folder, after});
                    const auto restored =
                        restore_step({{folder / "back", journal}}, has.step, fields_of(image));
                    EXPECT_TRUE(restored) << restored.error().message;
                    for (std::size_t i = 0; i < image.size(); ++i)
                        EXPECT_EQ(image[i].bytes, wanted[i].bytes) << image[i].name;
                }
            }
            pack(folder / "back", folder / "again", options(method));
            expect_record(folder / "again", truth);
            // Steps leave the record as those of any other.
            CompactOptions few;
            few.keep_last = 2;
            const auto compacted = compact_record(unsynced_file_system(), folder / "record", few);
            ASSERT_TRUE(compacted) << compacted.error().message;
            expect_record(folder / "record", truth, {40, 50});
            if (::testing::Test::HasFailure()) return;
        }
    }
}

// Every step stays within its tolerance of what was captured, however slowly values drift, and its
// metadata fits its data.
TEST(Pack, BoundedStepsStayWithinTheTolerance) {
    for (const RecordMethod method :
         {RecordMethod::runs, RecordMethod::tree, RecordMethod::list, RecordMethod::basic}) {
        QuickFolder folder;
        constexpr double kBound = 1e-3;
        std::map<std::int64_t, std::vector<std::vector<double>>> truth;
        {
            SessionSettings settings;
            settings.history.tolerance.atol = kBound;
            settings.background = false;
            auto run = testing::open_run(unsynced_file_system(), folder / "run", settings);
            ASSERT_TRUE(run) << run.error().message;
            std::mt19937_64 random(5);
            std::vector<std::vector<double>> state{std::vector<double>(6000), std::vector<double>(37),
                                                   std::vector<double>(1)};
            std::vector<std::int32_t> exact(500);
            for (std::int64_t step = 0; step < 25; ++step) {
                std::vector<CapturedField> fields;
                for (std::size_t f = 0; f < state.size(); ++f) {
                    for (std::size_t i = 0; i < state[f].size(); ++i) {
                        state[f][i] +=
                            2e-5 * static_cast<double>(i % 7) + 1e-6 * static_cast<double>(random() % 9);
                        if (step == 7 && i % 50 == 0) state[f][i] = std::numeric_limits<double>::quiet_NaN();
                    }
                    CapturedField field;
                    field.name = "f" + std::to_string(f);
                    field.dtype = DType::f64;
                    field.shape = {state[f].size()};
                    field.data = state[f].data();
                    fields.push_back(field);
                }
                exact[static_cast<std::size_t>(step)] += 1;
                CapturedField whole;
                whole.name = "exact";
                whole.dtype = DType::i32;
                whole.shape = {exact.size()};
                whole.data = exact.data();
                fields.push_back(whole);
                ASSERT_TRUE((*run)->capture_fields(step, fields));
                truth[step] = state;
                truth[step].emplace_back(exact.begin(), exact.end());
            }
            ASSERT_TRUE((*run)->close());
        }
        PackOptions how = options(method, 256);
        how.settings.bounded = true;
        pack(folder / "run", folder / "record", how);
        pack(folder / "run", folder / "whole", options(method, 256));
        EXPECT_LT(bytes_in(folder / "record") * 2, bytes_in(folder / "whole"));
        std::vector<std::int64_t> steps;
        for (const auto& [step, values] : truth)
            steps.push_back(step);
        const auto made =
            unpack_steps(unsynced_file_system(), folder / "record", steps, folder / "back", false, 1);
        ASSERT_TRUE(made) << made.error().message;
        const auto history = History::open(folder / "back");
        ASSERT_TRUE(history);
        for (const HistoryStep& step : history->steps) {
            auto metadata =
                MetadataFile::open((fs::path(history->path) / step.folder / step.ranks[0].metadata).string());
            ASSERT_TRUE(metadata) << metadata.error().message;
            const auto bytes =
                testing::read_file((fs::path(history->path) / step.folder / step.ranks[0].data).string());
            for (std::size_t f = 0; f < 4; ++f) {
                const FieldMetadata& field = (*metadata)->directory().fields[f];
                const std::byte* data = bytes.data() + field.extents[0].offset;
                for (std::size_t i = 0; i < field.items(); ++i) {
                    double value = 0;
                    const double wanted = truth[step.step][f][i];
                    if (f == 3) {
                        std::int32_t number = 0;
                        std::memcpy(&number, data + i * 4, 4);
                        ASSERT_EQ(static_cast<double>(number), wanted);
                        continue;
                    }
                    std::memcpy(&value, data + i * 8, 8);
                    ASSERT_TRUE(std::isnan(value) == std::isnan(wanted) &&
                                (std::isnan(value) || std::abs(value - wanted) <= kBound))
                        << "step " << step.step << ", field " << f << ", item " << i << ": " << value
                        << ", not " << wanted;
                }
                // Its digests are those of what is given back.
                MemorySource source(field.dtype, field.items(), data,
                                    static_cast<std::int64_t>(item_bytes(field.dtype)), false);
                BuiltField built;
                ASSERT_TRUE(build_in_memory(field, source, {}, built));
                BuiltField stored;
                stored.tree.resize(built.tree.size());
                stored.fine.resize(built.fine.size());
                stored.residues.resize(built.residues.size());
                ASSERT_TRUE(
                    (*metadata)->read(f, Section::tree, 0, std::as_writable_bytes(std::span(stored.tree))));
                ASSERT_TRUE(
                    (*metadata)->read(f, Section::fine, 0, std::as_writable_bytes(std::span(stored.fine))));
                ASSERT_TRUE((*metadata)->read(f, Section::residues, 0, stored.residues));
                EXPECT_EQ(stored.tree, built.tree);
                EXPECT_EQ(stored.fine, built.fine);
                EXPECT_TRUE(stored.residues == built.residues);
            }
        }
        if (::testing::Test::HasFailure()) return;
    }
}

}  // namespace
}  // namespace twinrun
