// One record against another.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "history/compact.hpp"
#include "history/history.hpp"
#include "history/journal_line.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"
#include "history/unpack.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::capture;
using testing::expect_record;
using testing::expect_same_files;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::random_truth;
using testing::steps_of;
using testing::Truth;
using testing::unsynced_file_system;

TEST(Against, ARunThatIsTheSameCostsNothing) {
    for (const int ranks : {1, 3}) {
        QuickFolder folder;
        Truth truth = random_truth(700, 8, ranks);
        capture(folder / "run", truth);
        pack(folder / "run", folder / "first", options());
        // The second run: the same at first, then a little else.
        Truth second = truth;
        for (auto& [step, images] : second) {
            for (auto& image : images) {
                if (step >= 50 && !image.empty() && !image[0].bytes.empty())
                    image[0].bytes[0] ^= std::byte{1};
            }
        }
        capture(folder / "run2", second);
        PackOptions how = options();
        how.against = folder / "first";
        std::map<std::int64_t, std::uint64_t> payload;
        const auto packed = pack_history(unsynced_file_system(), folder / "run2", folder / "second", how,
                                         [&](const PackedStep& step) {
                                             payload[step.step] += step.recorded.payload_chunks;
                                             return true;
                                         });
        ASSERT_TRUE(packed) << packed.error().message;
        for (const auto& [step, chunks] : payload) {
            EXPECT_LE(chunks, step < 50 ? 0U : static_cast<std::uint64_t>(ranks)) << step;
        }
        expect_record(folder / "second", second);
        const RecordSettings settings = *History::open(folder / "second")->settings.record;
        EXPECT_GE(settings.first_difference, 8U);
        for (int rank = 0; rank < ranks; ++rank) {
            // Each step is told by what differs from its same step.
            auto store = RecordStore::open(folder / "second", static_cast<std::uint32_t>(rank));
            auto parent = RecordStore::open(folder / "first", static_cast<std::uint32_t>(rank));
            ASSERT_TRUE(store && parent);
            for (const auto& [step, files] : (*store)->journal().steps) {
                EXPECT_GE(files.files.difference, settings.first_difference);
                const auto file = (*store)->chain().open(files.files.difference);
                ASSERT_TRUE(file);
                EXPECT_EQ((*file)->difference().base, (*parent)->journal().steps.at(step).files.difference);
            }
        }
        // A third one, against the second; each may lose steps of its own, and only the last one of
        // them.
        Truth third = second;
        for (auto& image : third[70]) {
            if (!image.empty() && !image.back().bytes.empty()) image.back().bytes.back() ^= std::byte{2};
        }
        capture(folder / "run3", third);
        how.against = folder / "second";
        ASSERT_TRUE(pack_history(unsynced_file_system(), folder / "run3", folder / "third", how, {}));
        expect_record(folder / "third", third);
        CompactOptions fewer;
        fewer.drop = {10, 50};
        for (const char* name : {"first", "second"}) {
            const auto refused = compact_record(unsynced_file_system(), folder / name, fewer);
            ASSERT_FALSE(refused);
            EXPECT_NE(refused.error().message.find("against it"), std::string::npos)
                << refused.error().message;
        }
        ASSERT_TRUE(compact_record(unsynced_file_system(), folder / "third", fewer));
        expect_record(folder / "third", third, {0, 20, 30, 40, 60, 70});
        fewer.drop = {0};
        ASSERT_TRUE(compact_record(unsynced_file_system(), folder / "third", fewer));
        expect_record(folder / "third", third, {20, 30, 40, 60, 70});
        // What was dropped comes back, to a record that goes on.
        how.append = true;
        ASSERT_TRUE(pack_history(unsynced_file_system(), folder / "run3", folder / "third", how, {}));
        expect_record(folder / "third", third);
        const auto made = unpack_steps(unsynced_file_system(), folder / "third", steps_of(third),
                                       folder / "back", false, 1);
        ASSERT_TRUE(made) << made.error().message;
        expect_same_files(folder / "run3", folder / "back");
        // Without the third one, the second may lose steps.
        fs::remove_all(folder / "third");
        fewer.drop = {10, 50};
        // It may have been moved: somebody has to say that it is gone.
        const auto missing = compact_record(unsynced_file_system(), folder / "second", fewer);
        ASSERT_FALSE(missing);
        EXPECT_NE(missing.error().message.find("is not there"), std::string::npos) << missing.error().message;
        fewer.forget_missing = true;
        const auto compacted = compact_record(unsynced_file_system(), folder / "second", fewer);
        ASSERT_TRUE(compacted) << compacted.error().message;
        expect_record(folder / "second", second, {0, 20, 30, 40, 60, 70});
        expect_record(folder / "first", truth);
    }
}

// The first record goes on after the second began: the numbers of their differences are told apart.
TEST(Against, TheFirstRecordMayGoOn) {
    QuickFolder folder;
    const Truth truth = random_truth(701, 12, 1);
    capture(folder / "run", truth);
    PackOptions how = options();
    int left = 4;
    ASSERT_FALSE(pack_history(unsynced_file_system(), folder / "run", folder / "first", how,
                              [&](const PackedStep&) { return --left != 0; }));
    PackOptions child = options();
    child.against = folder / "first";
    left = 6;
    ASSERT_FALSE(pack_history(unsynced_file_system(), folder / "run", folder / "second", child,
                              [&](const PackedStep&) { return --left != 0; }));
    how.append = true;
    child.append = true;
    pack(folder / "run", folder / "first", how);
    pack(folder / "run", folder / "second", child);
    expect_record(folder / "first", truth);
    expect_record(folder / "second", truth);
    auto store = RecordStore::open(folder / "second", 0);
    ASSERT_TRUE(store);
    for (const auto& [step, files] : (*store)->journal().steps) {
        const auto file = (*store)->chain().open(files.files.difference);
        ASSERT_TRUE(file);
        // Steps that the first one had only later are told by the second's own.
        if (step >= 60) {
            EXPECT_GE((*file)->difference().base, 4U) << step;
        }
    }
}

TEST(Against, RefusesWhatDoesNotFit) {
    QuickFolder folder;
    capture(folder / "run", random_truth(1, 3, 1));
    capture(folder / "three", random_truth(1, 3, 3));
    pack(folder / "run", folder / "first", options());
    PackOptions how = options();
    how.against = folder / "nothing";
    EXPECT_FALSE(pack_history(unsynced_file_system(), folder / "run", folder / "a", how, {}));
    how.against = folder / "run";
    EXPECT_FALSE(pack_history(unsynced_file_system(), folder / "run", folder / "a", how, {}));
    how.against = folder / "first";
    EXPECT_FALSE(pack_history(unsynced_file_system(), folder / "three", folder / "a", how, {}));
    how.settings.chunk_bytes = 128;
    EXPECT_FALSE(pack_history(unsynced_file_system(), folder / "run", folder / "a", how, {}));
    how.settings.chunk_bytes = 64;
    how.append = true;
    EXPECT_FALSE(pack_history(unsynced_file_system(), folder / "run", folder / "first", how, {}))
        << "against itself";
    // A record that was there and is against nothing does not keep the first one from losing steps.
    capture(folder / "other", random_truth(1, 3, 1));
    pack(folder / "other", folder / "b", options());
    EXPECT_FALSE(pack_history(unsynced_file_system(), folder / "run", folder / "b", how, {}));
    CompactOptions fewer;
    fewer.drop = {0};
    const auto done = compact_record(unsynced_file_system(), folder / "first", fewer);
    EXPECT_TRUE(done) << done.error().message;
    // In a circle, by hand.
    Truth truth = random_truth(1, 3, 1);
    how.append = false;
    ASSERT_TRUE(pack_history(unsynced_file_system(), folder / "run", folder / "c", how, {}));
    for (const char* name : {"c"}) {
        std::string text;
        const auto bytes = testing::read_file(manifest_path(folder / name));
        text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        std::string line = open_line(text.substr(0, text.find('\n'))).value();
        const std::size_t at = line.find(folder / "first");
        ASSERT_NE(at, std::string::npos);
        line.replace(at, (folder / "first").size(), folder / "c");
        text = seal_line(line) + text.substr(text.find('\n'));
        testing::write_file(manifest_path(folder / name), std::as_bytes(std::span(text)));
    }
    const auto circle = RecordStore::open(folder / "c", 0);
    ASSERT_FALSE(circle);
    EXPECT_EQ(circle.error().code, ErrorCode::damaged) << circle.error().message;
}

}  // namespace
}  // namespace twinrun
