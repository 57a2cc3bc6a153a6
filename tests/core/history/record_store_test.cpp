// Reading a record: only what is needed, from a bounded number of files.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "history/compact.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

using testing::bytes_in;
using testing::capture;
using testing::expect_record;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::TestImage;
using testing::Truth;
using testing::unnamed_files;
using testing::unsynced_file_system;
using testing::wrong_with;

// What the journal names was written before it. A file that is newer was changed or copied.
TEST(RecordStoreTest, AFileThatIsNewerThanItsJournalWasChanged) {
    QuickFolder folder;
    std::mt19937_64 random(5);
    Truth truth;
    for (std::int64_t step = 0; step < 3; ++step)
        truth[step].push_back({{"a", testing::random_bytes(random, 4'000), 0}});
    capture(folder / "run", truth);
    const std::string record = folder / "record";
    pack(folder / "run", record, options(RecordMethod::runs, 256, PayloadCodec::stored, false));
    EXPECT_EQ(RecordStore::open(record, 0).value()->changed_file(), std::nullopt);
    const auto written = std::filesystem::last_write_time(record + "/manifest.jsonl");
    for (const std::string step : {"2", "1", "0"}) {
        const std::string file = record + "/step-000000000" + step + "/rank-00000.twr";
        std::filesystem::last_write_time(file, written + std::chrono::milliseconds(1));
        const auto store = RecordStore::open(record, 0).value();
        EXPECT_EQ(store->changed_file(), file);
        EXPECT_EQ(store->changed_file(), file);  // looked at once
        std::filesystem::last_write_time(file, written);
    }
    EXPECT_EQ(RecordStore::open(record, 0).value()->changed_file(), std::nullopt);
    // A record against another one is as old as that.
    auto against = options(RecordMethod::runs, 256, PayloadCodec::stored, false);
    against.against = record;
    pack(folder / "run", folder / "child", against);
    const std::string file = record + "/step-0000000001/rank-00000.twr";
    const auto noted = std::filesystem::last_write_time(record + "/manifest.jsonl");
    std::filesystem::last_write_time(file, noted + std::chrono::milliseconds(1));
    EXPECT_EQ(RecordStore::open(folder / "child", 0).value()->changed_file(), file);
}

// A field is read from its own blocks only: damage in other blocks does not matter.
TEST(RecordStoreTest, ReadsOnlyWhatIsNeeded) {
    QuickFolder folder;
    std::mt19937_64 random(4);
    Truth truth;
    TestImage image{{"a", testing::random_bytes(random, 400'000), 0},
                    {"b", testing::random_bytes(random, 5'000), 0},
                    {"c", testing::random_bytes(random, 400'000), 0}};
    for (std::int64_t step = 0; step < 5; ++step) {
        image[0].bytes[7] = static_cast<std::byte>(step);
        truth[step].push_back(image);
    }
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options(RecordMethod::runs, 256, PayloadCodec::stored, false));
    const std::string file = folder / "record" + "/step-0000000000/rank-00000.twr";
    const auto whole = testing::read_file(file);
    // The payload is that of a, b and c, in blocks of 64 KiB. All blocks are damaged that the
    // wanted field does not need.
    const std::uint64_t begins[] = {0, 400'128, 405'248, 805'376};
    for (std::size_t field = 0; field < 3; ++field) {
        auto bytes = whole;
        for (std::uint64_t block = 0; block * 65536 < 805'376; ++block) {
            const bool wanted = block * 65536 < begins[field + 1] && (block + 1) * 65536 > begins[field];
            if (!wanted) bytes[128 + block * 65536] ^= std::byte{1};
        }
        testing::write_file(file, bytes);
        auto store = RecordStore::open(folder / "record", 0);
        ASSERT_TRUE(store);
        const auto map = (*store)->map(4);
        ASSERT_TRUE(map) << map.error().message;
        std::vector<std::byte> read(image[field].bytes.size());
        const auto done = (*store)->read_segment(*map, field, read);
        EXPECT_TRUE(done) << done.error().message;
        EXPECT_TRUE(read == image[field].bytes);
        const std::size_t other = field == 0 ? 2 : 0;
        read.resize(image[other].bytes.size());
        EXPECT_FALSE((*store)->read_segment(*map, other, read));
    }
}

// The map of a segment has the runs that the whole map has there, and needs no difference beside.
TEST(RecordStoreTest, TheMapOfOneSegment) {
    QuickFolder folder;
    std::mt19937_64 random(6);
    Truth truth;
    TestImage image{{"a", testing::random_bytes(random, 9'000), 0},
                    {"b", testing::random_bytes(random, 20'000), 0},
                    {"c", testing::random_bytes(random, 700), 0},
                    {"none", {}, 0}};
    for (std::int64_t step = 0; step < 6; ++step) {
        image[0].bytes = testing::random_bytes(random, 9'000);
        image[1].bytes[random() % 20'000] ^= std::byte{1};
        if (step == 3) image[2].bytes = testing::random_bytes(random, 700);
        truth[step].push_back(image);
    }
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options(RecordMethod::runs, 256, PayloadCodec::stored, false));
    const auto store = RecordStore::open(folder / "record", 0).value();
    for (std::int64_t step = 0; step < 6; ++step) {
        const auto whole = store->map(step).value();
        EXPECT_EQ(store->directory(step).value().segments.size(), whole.directory.segments.size());
        EXPECT_TRUE(store->map_of(step, "d").value().runs.empty());
        for (std::size_t s = 0; s < whole.directory.segments.size(); ++s) {
            const auto own = store->map_of(step, whole.directory.segments[s].name).value();
            for (const auto& run : own.runs)
                EXPECT_TRUE(run.begin >= own.firsts[s] && run.begin + run.count <= own.firsts[s + 1]);
            std::vector<std::byte> read(own.directory.segments[s].bytes);
            ASSERT_TRUE(store->read_segment(own, s, read));
            EXPECT_TRUE(read == truth[step][0][s].bytes);
        }
    }
    // Of step 5, "a" is in its own difference. "b" needs those before it.
    for (const std::string step : {"0", "1", "2", "3", "4"})
        std::filesystem::remove(folder / "record" + "/step-000000000" + step + "/rank-00000.twr");
    const auto left = RecordStore::open(folder / "record", 0).value();
    EXPECT_FALSE(left->map(5));
    EXPECT_FALSE(left->map_of(5, "b"));
    const auto map = left->map_of(5, "a");
    ASSERT_TRUE(map) << map.error().message;
    std::vector<std::byte> read(9'000);
    ASSERT_TRUE(left->read_segment(*map, 0, read));
    EXPECT_TRUE(read == truth[5][0][0].bytes);
    EXPECT_EQ(left->directory(7).error().code, ErrorCode::not_found);
}

// However many steps follow each other, a step is read from a bounded number of differences.
TEST(RecordStoreTest, LongChainsAreBounded) {
    for (const auto& [method, copies, steps] :
         {std::tuple(RecordMethod::runs, true, 300), std::tuple(RecordMethod::basic, false, 300)}) {
        QuickFolder folder;
        std::mt19937_64 random(14);
        Truth truth;
        // Either chunks are copied about, so that a map costs more than many steps do; or little,
        // nothing or all changes.
        TestImage image{{"a", testing::random_bytes(random, copies ? 60'000 : 3000), 0},
                        {"b", testing::random_bytes(random, 300), 0}};
        for (std::int64_t step = 0; step < steps; ++step) {
            auto& bytes = image[0].bytes;
            if (copies) {
                std::memcpy(bytes.data() + random() % 1800 * 32, bytes.data() + random() % 1800 * 32, 32);
            } else if (step % 5 != 4) {
                bytes[random() % 3000] ^= std::byte{3};
            }
            if (!copies && step % 97 == 96) image[1].bytes = testing::random_bytes(random, 300);
            truth[step].push_back(image);
        }
        capture(folder / "run", truth);
        pack(folder / "run", folder / "record", options(method, 32));
        expect_record(folder / "record", truth);
        auto store = RecordStore::open(folder / "record", 0);
        ASSERT_TRUE(store);
        std::size_t longest = 0;
        std::size_t alone = 0;
        for (const std::uint32_t ordinal : (*store)->ordinals()) {
            const auto behind = (*store)->chain().bases(ordinal);
            ASSERT_TRUE(behind);
            longest = std::max(longest, behind->size());
            alone += behind->size() == 1 ? 1 : 0;
        }
        EXPECT_GT(longest, copies ? 200U : 16U);
        EXPECT_LE(longest, 257U);
        EXPECT_GE(alone, 2U);
        // Steps that leave between.
        CompactOptions fewer;
        std::set<std::int64_t> left;
        for (std::int64_t step = 0; step < steps; ++step) {
            if (step % 3 != 0) {
                fewer.drop.push_back(step);
            } else {
                left.insert(step);
            }
        }
        auto done = compact_record(unsynced_file_system(), folder / "record", fewer);
        ASSERT_TRUE(done) << done.error().message;
        expect_record(folder / "record", truth, left);
        fewer = {};
        fewer.keep_last = 1;
        done = compact_record(unsynced_file_system(), folder / "record", fewer);
        ASSERT_TRUE(done) << done.error().message;
        expect_record(folder / "record", truth, {*left.rbegin()});
        EXPECT_LT(bytes_in(folder / "record"), copies ? 70'000U : 8000U);
        EXPECT_TRUE(unnamed_files(folder / "record").empty());
    }
}

// A step with bytes of more differences than a process may have open files.
TEST(RecordStoreTest, StepsOfManyDifferences) {
    QuickFolder folder;
    std::mt19937_64 random(15);
    constexpr int kSteps = 420;
    Truth truth;
    TestImage image{{"a", testing::random_bytes(random, kSteps * 32), 0}};
    for (std::int64_t step = 0; step < kSteps; ++step) {
        const auto chunk = testing::random_bytes(random, 32);
        std::copy(chunk.begin(), chunk.end(), image[0].bytes.begin() + step * 32);
        truth[step].push_back(image);
    }
    capture(folder / "run", truth);
    struct rlimit before;
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit few = before;
    few.rlim_cur = 350;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    PackOptions how = options(RecordMethod::runs, 32);
    const auto packed = pack_history(unsynced_file_system(), folder / "run", folder / "record", how, {});
    std::string wrong = packed ? "" : packed.error().message;
    {
        auto store = RecordStore::open(folder / "record", 0);
        if (wrong.empty() && store) wrong = wrong_with(**store, kSteps - 1, truth.at(kSteps - 1)[0]);
    }
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(wrong, "");
}

}  // namespace
}  // namespace twinrun
