// Damage in a record: check_record names exactly the steps that are lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "history/check_record.hpp"
#include "history/compact.hpp"
#include "history/pack.hpp"
#include "record/delta_file.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::capture;
using testing::lost_steps;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::random_truth;
using testing::TestImage;
using testing::Truth;
using testing::unsynced_file_system;

struct Differences {
    std::vector<std::string> files;
    explicit Differences(const std::string& record) {
        for (const auto& entry : fs::recursive_directory_iterator(record)) {
            if (entry.path().extension() == ".twr") files.push_back(entry.path().string());
        }
        std::sort(files.begin(), files.end());
    }
};

// Damages every file in its header, in each block and in its index, and removes it. The steps that
// are reported as lost are those that cannot be given back; no step gives back wrong bytes; all
// other steps are right.
void damage_everything(const std::string& record, const Truth& truth, const std::set<std::int64_t>& steps) {
    std::map<std::string, std::set<std::int64_t>>
        alone;  // steps that a file takes with it, if its last block is damaged
    for (const std::string& file : Differences(record).files) {
        const auto whole = testing::read_file(file);
        std::vector<std::size_t> places{9, 60, whole.size() - 1};
        {
            const auto opened = DifferenceFile::open(file);
            ASSERT_TRUE(opened) << opened.error().message;
            for (const PayloadBlock& block : (*opened)->difference().blocks)
                places.push_back(block.offset + block.bytes / 2);
        }
        places.push_back(whole.size());  // it is gone
        for (const std::size_t place : places) {
            SCOPED_TRACE(file + ", byte " + std::to_string(place));
            auto bytes = whole;
            if (place == whole.size()) {
                fs::remove(file);
            } else {
                bytes[place] ^= std::byte{16};
                testing::write_file(file, bytes);
            }
            const auto lost = lost_steps(record, truth, steps);
            if (place != whole.size()) alone[file] = lost;
            const auto problems = check_record(record, 0, 1);
            ASSERT_TRUE(problems) << problems.error().message;
            ASSERT_EQ(problems->size(), 1U);
            EXPECT_EQ(std::set<std::int64_t>((*problems)[0].steps.begin(), (*problems)[0].steps.end()), lost);
            EXPECT_EQ((*problems)[0].steps.size(), lost.size());
            EXPECT_NE((*problems)[0].what.find(file), std::string::npos) << (*problems)[0].what;
            testing::write_file(file, whole);
            if (::testing::Test::HasFailure()) return;
        }
    }
    // Two at once: each is named, with what it takes.
    const auto files = Differences(record).files;
    for (std::size_t i = 0; i + 1 < files.size(); i += 3) {
        const auto blocks_of = [](const std::string& file) {
            return (*DifferenceFile::open(file))->difference().blocks.size();
        };
        if (blocks_of(files[i]) == 0 || blocks_of(files[i + 1]) == 0)
            continue;  // its index is needed to see what is behind it
        const auto first = testing::read_file(files[i]);
        const auto second = testing::read_file(files[i + 1]);
        for (const auto& [file, whole] : {std::pair(files[i], first), std::pair(files[i + 1], second)}) {
            const auto opened = DifferenceFile::open(file);
            ASSERT_TRUE(opened);
            const auto& blocks = (*opened)->difference().blocks;
            auto bytes = whole;
            bytes[blocks.back().offset + blocks.back().bytes / 2] ^= std::byte{16};
            testing::write_file(file, bytes);
        }
        const auto problems = check_record(record, 0, 1);
        ASSERT_TRUE(problems);
        EXPECT_EQ(problems->size(), 2U);
        for (const RecordProblem& problem : *problems) {
            for (const std::string& file : {files[i], files[i + 1]}) {
                if (problem.what.find(file) == std::string::npos) continue;
                EXPECT_EQ(std::set<std::int64_t>(problem.steps.begin(), problem.steps.end()), alone[file])
                    << file;
            }
        }
        testing::write_file(files[i], first);
        testing::write_file(files[i + 1], second);
    }
}

TEST(RecordDamage, NamesTheStepsThatItTakes) {
    for (const RecordMethod method : {RecordMethod::runs, RecordMethod::basic, RecordMethod::tree}) {
        for (const bool xored : {false, true}) {
            QuickFolder folder;
            const Truth truth = random_truth(method == RecordMethod::runs ? 41 : 42, 10, 1);
            capture(folder / "run", truth);
            pack(folder / "run", folder / "record", options(method, 64, PayloadCodec::zstd, xored));
            std::set<std::int64_t> steps;
            for (const auto& [step, images] : truth)
                steps.insert(step);
            damage_everything(folder / "record", truth, steps);
            if (::testing::Test::HasFailure()) return;
            CompactOptions fewer;
            fewer.drop = {0, 20, 50};
            for (const std::int64_t step : fewer.drop)
                steps.erase(step);
            const auto done = compact_record(unsynced_file_system(), folder / "record", fewer);
            ASSERT_TRUE(done) << done.error().message;
            damage_everything(folder / "record", truth, steps);
            if (::testing::Test::HasFailure()) return;
        }
    }
}

// Larger fields, several blocks a difference.
TEST(RecordDamage, BlocksAreToldApart) {
    QuickFolder folder;
    std::mt19937_64 random(21);
    Truth truth;
    TestImage image{{"a", testing::random_bytes(random, 300'000), 0}};
    std::set<std::int64_t> steps;
    for (std::int64_t step = 0; step < 6; ++step) {
        const auto part = testing::random_bytes(random, 90'000);
        std::copy(part.begin(), part.end(), image[0].bytes.begin() + step * 40'000);
        truth[step].push_back(image);
        steps.insert(step);
    }
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options(RecordMethod::runs, 128));
    damage_everything(folder / "record", truth, steps);
}

// Packing goes on with a damaged record: what cannot be read is not used.
TEST(RecordDamage, PackingGoesOn) {
    for (const bool gone : {false, true}) {
        QuickFolder folder;
        const Truth truth = random_truth(61, 10, 1);
        capture(folder / "run", truth);
        PackOptions how = options();
        int left = 5;
        ASSERT_FALSE(pack_history(unsynced_file_system(), folder / "run", folder / "record", how,
                                  [&](const PackedStep&) { return --left != 0; }));
        const std::string file = Differences(folder / "record").files[gone ? 2 : 4];
        if (gone) {
            fs::remove(file);
        } else {
            auto bytes = testing::read_file(file);
            bytes[70] ^= std::byte{1};
            testing::write_file(file, bytes);
        }
        const auto before = lost_steps(folder / "record", truth, {0, 10, 20, 30, 40});
        how.append = true;
        const auto packed = pack_history(unsynced_file_system(), folder / "run", folder / "record", how, {});
        ASSERT_TRUE(packed) << packed.error().message;
        std::set<std::int64_t> all;
        for (const auto& [step, images] : truth)
            all.insert(step);
        for (const std::int64_t step : lost_steps(folder / "record", truth, all)) {
            EXPECT_TRUE(before.contains(step)) << step;
        }
    }
}

}  // namespace
}  // namespace twinrun
