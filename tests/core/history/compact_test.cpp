// Steps that leave a record.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "history/compact.hpp"
#include "history/history.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"
#include "history/unpack.hpp"
#include "record/delta_file.hpp"
#include "support/faulty_file_system.hpp"
#include "support/forwarding_file_system.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::bytes_in;
using testing::capture;
using testing::expect_record;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::random_truth;
using testing::rounds;
using testing::Truth;
using testing::unnamed_files;
using testing::unsynced_file_system;
using testing::wrong_with;

TEST(Compact, WhatRemainsIsAsItWas) {
    const int many = rounds(12);
    for (int round = 0; round < many; ++round) {
        SCOPED_TRACE(round);
        QuickFolder folder;
        std::mt19937_64 random(static_cast<std::uint64_t>(round) + 500);
        const int ranks = round % 4 == 3 ? 2 : 1;
        const Truth truth = random_truth(random(), 16, ranks);
        capture(folder / "run", truth);
        static constexpr PayloadCodec kCodecs[] = {PayloadCodec::zstd, PayloadCodec::stored};
        pack(folder / "run", folder / "record",
             options(testing::kAllMethods[round % 5], round % 2 == 0 ? 64 : 32,
                     kCodecs[round % 3 == 2 ? 1 : 0], round % 3 != 1));
        std::set<std::int64_t> steps;
        for (const auto& [step, images] : truth)
            steps.insert(step);
        while (steps.size() > 1) {
            CompactOptions fewer;
            if (random() % 3 == 0) {
                fewer.keep_last = 1 + random() % steps.size();
                while (steps.size() > fewer.keep_last)
                    steps.erase(steps.begin());
            } else {
                for (int i = 0; i < 3 && steps.size() > 1; ++i) {
                    const auto which =
                        std::next(steps.begin(), static_cast<std::ptrdiff_t>(random() % steps.size()));
                    fewer.drop.push_back(*which);
                    steps.erase(which);
                }
            }
            const std::uint64_t before = bytes_in(folder / "record");
            const auto done = compact_record(unsynced_file_system(), folder / "record", fewer);
            ASSERT_TRUE(done) << done.error().message;
            EXPECT_EQ(done->bytes_before, before);
            EXPECT_EQ(done->bytes_after, bytes_in(folder / "record"));
            expect_record(folder / "record", truth, steps);
            EXPECT_TRUE(unnamed_files(folder / "record").empty());
            if (::testing::Test::HasFailure()) return;
        }
        // What left is packed once more: the record goes on.
        PackOptions how;
        how.settings = *History::open(folder / "record")->settings.record;
        how.append = true;
        pack(folder / "run", folder / "record", how);
        expect_record(folder / "record", truth);
    }
}

TEST(Compact, RefusesWhatIsNotThere) {
    QuickFolder folder;
    const Truth truth = random_truth(2, 3, 1);
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options());
    CompactOptions how;
    how.drop = {0, 7};
    EXPECT_EQ(compact_record(unsynced_file_system(), folder / "record", how).error().code,
              ErrorCode::not_found);
    how.drop = {0};
    EXPECT_EQ(compact_record(unsynced_file_system(), folder / "run", how).error().code,
              ErrorCode::invalid_argument);
    expect_record(folder / "record", truth);
    how.drop = {0, 10, 20};  // all of them
    ASSERT_TRUE(compact_record(unsynced_file_system(), folder / "record", how));
    expect_record(folder / "record", truth, {});
    EXPECT_EQ(bytes_in(folder / "record"), 0U);
    PackOptions again = options();
    again.append = true;
    pack(folder / "run", folder / "record", again);
    expect_record(folder / "record", truth);
}

// Whatever fails at any moment: the steps that were to stay are there, and the next compaction
// completes the work.
TEST(Compact, AnyFaultLeavesWhatStays) {
    QuickFolder folder;
    const Truth truth = random_truth(1234, 7, 1);
    capture(folder / "run", truth);
    pack(folder / "run", folder / "packed", options(RecordMethod::runs, 64));
    {
        CompactOptions first;
        first.drop = {10};
        // There are leftovers already.
        ASSERT_TRUE(compact_record(unsynced_file_system(), folder / "packed", first));
    }
    CompactOptions fewer;
    fewer.drop = {0, 30};
    const std::set<std::int64_t> stay{20, 40, 50, 60};
    const auto fresh = [&] {
        fs::remove_all(folder / "record");
        fs::copy(folder / "packed", folder / "record", fs::copy_options::recursive);
    };
    fresh();
    FaultyFileSystem counting(unsynced_file_system());
    ASSERT_TRUE(compact_record(counting, folder / "record", fewer));
    const std::size_t operations = counting.operations();
    ASSERT_GT(operations, 20U);
    for (const int kind : {0, 1, 2}) {
        for (std::size_t at = 1; at <= operations; ++at) {
            SCOPED_TRACE("kind " + std::to_string(kind) + ", operation " + std::to_string(at));
            fresh();
            FaultyFileSystem system(unsynced_file_system());
            Fault fault;
            fault.at = at;
            fault.error = {kind == 0 ? ErrorCode::no_space : ErrorCode::io, "injected"};
            fault.written_first = 60;
            fault.dead_after = kind == 2;
            system.inject(fault);
            const bool done = compact_record(system, folder / "record", fewer).ok();
            if (kind == 2) {
                system.power_cut(at % 4);
                system.inject({});
            }
            std::set<std::int64_t> there;
            const auto history = History::open(folder / "record");
            ASSERT_TRUE(history) << history.error().message;
            for (const HistoryStep& step : history->steps)
                there.insert(step.step);
            for (const std::int64_t step : stay)
                EXPECT_TRUE(there.contains(step)) << step;
            if (done && kind != 2) {
                EXPECT_EQ(there, stay);
            }
            expect_record(folder / "record", truth, there);
            // What left comes back, beside what is needed of it still; or all is done again.
            if (at % 2 == 0) {
                PackOptions back = options(RecordMethod::runs, 64);
                back.append = true;
                const auto packed = pack_history(system, folder / "run", folder / "record", back, {});
                ASSERT_TRUE(packed) << packed.error().message;
                expect_record(folder / "record", truth);
                if (::testing::Test::HasFailure()) return;
                continue;
            }
            CompactOptions rest;
            for (const std::int64_t step : fewer.drop) {
                if (there.contains(step)) rest.drop.push_back(step);
            }
            const auto again = compact_record(system, folder / "record", rest);
            ASSERT_TRUE(again) << again.error().message;
            expect_record(folder / "record", truth, stay);
            EXPECT_EQ(unnamed_files(folder / "record"), std::vector<std::string>());
            if (::testing::Test::HasFailure()) return;
        }
    }
}

// A step without a base was XORed with a step that leaves: no map names these chunks, but the step
// needs them.
TEST(Compact, WhatWasXoredStays) {
    QuickFolder folder;
    std::mt19937_64 random(17);
    Truth truth;
    std::vector<std::uint64_t> values(2000);
    for (auto& value : values)
        value = random();
    for (std::int64_t step = 0; step < 70; ++step) {
        // Half of them: where nearly all change, a step stands alone before there is a whole map.
        for (std::size_t i = 0; i < values.size() / 2; ++i)
            values[i] += random() % 4;
        truth[step].push_back({{"a", testing::bytes_of(values), 0}});
    }
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options(RecordMethod::runs, 64));
    std::set<std::int64_t> alone;
    bool xored = false;
    for (std::int64_t step = 1; step < 70; ++step) {
        const auto file =
            DifferenceFile::open(folder / "record" + "/" + step_folder(step, 0) + "/rank-00000.twr");
        ASSERT_TRUE(file);
        if ((*file)->difference().base != kNoBase) continue;
        alone.insert(step);
        xored = xored || !(*file)->difference().bases.empty();
    }
    if (codec_available(PayloadCodec::zstd)) {
        ASSERT_TRUE(xored);
    }
    CompactOptions fewer;
    for (std::int64_t step = 0; step < 70; ++step) {
        if (!alone.contains(step)) fewer.drop.push_back(step);
    }
    const auto done = compact_record(unsynced_file_system(), folder / "record", fewer);
    ASSERT_TRUE(done) << done.error().message;
    expect_record(folder / "record", truth, alone);
}

// A machine that goes down between two ranks leaves a step that only some ranks have: it can still
// be dropped.
TEST(Compact, StepsThatOnlySomeRanksHaveCanBeDropped) {
    QuickFolder folder;
    const Truth truth = random_truth(55, 5, 2);
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options());
    const auto second = testing::read_file(journal_path(folder / "record", 1, 2));
    fs::copy(folder / "record", folder / "before", fs::copy_options::recursive);
    CompactOptions fewer;
    fewer.drop = {10, 20};
    ASSERT_TRUE(compact_record(unsynced_file_system(), folder / "record", fewer));
    // Rank 1 as it was.
    testing::write_file(journal_path(folder / "record", 1, 2), second);
    for (const auto& entry : fs::recursive_directory_iterator(folder / "before")) {
        const fs::path place = fs::path(folder / "record") / fs::relative(entry.path(), folder / "before");
        if (entry.is_directory())
            fs::create_directories(place);
        else if (!entry.path().filename().string().starts_with("rank-00000"))
            fs::copy(entry.path(), place, fs::copy_options::skip_existing);
    }
    // That journal did not name the file yet.
    fs::remove_all(folder / "record/step-leftovers/rank-00001.twr");
    EXPECT_EQ(History::open(folder / "record")->incomplete, (std::vector<std::int64_t>{10, 20}));
    const auto again = compact_record(unsynced_file_system(), folder / "record", fewer);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE(History::open(folder / "record")->incomplete.empty());
    expect_record(folder / "record", truth, {0, 30, 40});
    EXPECT_EQ(unnamed_files(folder / "record"), std::vector<std::string>());
}

// Maps, and stores that have read nothing yet, can still be read after steps left.
TEST(Compact, ReadersGoOn) {
    QuickFolder folder;
    const Truth truth = random_truth(88, 12, 1);
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options());
    auto store = RecordStore::open(folder / "record", 0);
    auto idle = RecordStore::open(folder / "record", 0);
    ASSERT_TRUE(store && idle);
    std::map<std::int64_t, StepMap> maps;
    for (const std::int64_t step : {60, 80, 90, 110}) {
        auto map = (*store)->map(step);
        ASSERT_TRUE(map);
        maps.emplace(step, std::move(map).value());
    }
    (*store)->chain().forget();  // as where many files are open
    for (const std::uint64_t last : {8, 5}) {
        CompactOptions fewer;
        fewer.keep_last = last;
        if (last == 5) fewer.drop = {100};
        ASSERT_TRUE(compact_record(unsynced_file_system(), folder / "record", fewer));
        for (const auto& [step, map] : maps) {
            if (step == 60 && last == 5) continue;
            for (const auto& segment : truth.at(step)[0]) {
                if (segment.bytes.empty()) continue;
                const auto number =
                    static_cast<std::size_t>(map.find(segment.name) - map.directory.segments.data());
                std::vector<std::byte> bytes(segment.bytes.size());
                const auto read = (*store)->read_segment(map, number, bytes);
                ASSERT_TRUE(read) << read.error().message;
                EXPECT_TRUE(bytes == segment.bytes);
            }
            EXPECT_EQ(wrong_with(**idle, step, truth.at(step)[0]), "");
        }
    }
    EXPECT_EQ((*idle)->map(0).error().code, ErrorCode::not_found);
}

TEST(Compact, ManyReadersWhileStepsLeave) {
    QuickFolder folder;
    const Truth truth = random_truth(89, 30, 1);
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options());
    auto opened = RecordStore::open(folder / "record", 0);
    ASSERT_TRUE(opened);
    const std::shared_ptr<RecordStore> store = *opened;
    std::atomic<bool> done = false;
    std::atomic<int> reads = 0;
    std::vector<std::thread> readers;
    for (int r = 0; r < 3; ++r) {
        readers.emplace_back([&, r] {
            for (int i = 0; !done || i < 3; ++i) {
                const std::int64_t step = 10 * (27 + (i + r) % 3);  // that stay
                EXPECT_EQ(wrong_with(*store, step, truth.at(step)[0]), "") << step;
                if (r == 0) store->chain().forget();
                ++reads;
            }
        });
    }
    for (std::uint64_t last = 29; last >= 3; last -= 2) {
        const int before = reads;
        CompactOptions fewer;
        fewer.keep_last = last;
        const auto compacted = compact_record(unsynced_file_system(), folder / "record", fewer);
        EXPECT_TRUE(compacted) << compacted.error().message;
        while (reads == before)
            std::this_thread::yield();
    }
    done = true;
    for (auto& reader : readers)
        reader.join();
    expect_record(folder / "record", truth, {270, 280, 290});
}

// A step leaves the record while it is given back: the error says so, and the next call gives back
// what is there.
TEST(Compact, AStepThatLeavesWhileItIsGivenBack) {
    class Dropping final : public testing::ForwardingFileSystem {
       public:
        std::function<void()> drop;
        Result<std::unique_ptr<NewFiles>> open_new(const std::string& folder) override {
            if (drop) std::exchange(drop, nullptr)();
            return ForwardingFileSystem::open_new(folder);
        }
    } system;
    QuickFolder folder;
    const Truth truth = random_truth(90, 4, 1);
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options());
    system.drop = [&] {
        CompactOptions fewer;
        fewer.drop = {10};
        const auto compacted = compact_record(unsynced_file_system(), folder / "record", fewer);
        EXPECT_TRUE(compacted) << compacted.error().message;
    };
    const auto left = unpack_steps(system, folder / "record", {10, 20}, folder / "back", false, 1);
    ASSERT_FALSE(left);
    EXPECT_NE(left.error().message.find("step 10 was removed while it was restored"), std::string::npos)
        << left.error().message;
    ASSERT_TRUE(unpack_steps(system, folder / "record", {20, 30}, folder / "back", false, 1));
    // Where the record still has it, a file is missing.
    fs::remove(folder / "record" + "/" + step_folder(0, 0) + "/rank-00000.twm");
    const auto damaged = unpack_steps(system, folder / "record", {0}, folder / "other", false, 1);
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().message.find("was removed while"), std::string::npos)
        << damaged.error().message;
}

}  // namespace
}  // namespace twinrun
