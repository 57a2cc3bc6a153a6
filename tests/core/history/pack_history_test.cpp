// Histories into records: every step comes back, whatever happens meanwhile.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "history/check_record.hpp"
#include "history/pack.hpp"
#include "history/unpack.hpp"
#include "history/writer.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

using testing::bytes_in;
using testing::capture;
using testing::expect_record;
using testing::expect_same_files;
using testing::lost_steps;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::random_truth;
using testing::RandomHistory;
using testing::rounds;
using testing::steps_of;
using testing::TestImage;
using testing::Truth;
using testing::unnamed_files;
using testing::unsynced_file_system;

TEST(Pack, GivesBackEveryStepBitForBit) {
    std::uint64_t seed = 1;
    for (const int ranks : {1, 3}) {
        const int many = ranks == 1 ? rounds(2) : 1;
        for (int round = 0; round < many; ++round) {
            QuickFolder folder;
            const Truth truth = random_truth(++seed, 12, ranks);
            capture(folder / "run", truth);
            if (::testing::Test::HasFailure()) return;
            int number = 0;
            for (const RecordMethod method : testing::kAllMethods) {
                for (const auto& [codec, xored] :
                     {std::pair(PayloadCodec::stored, false), std::pair(PayloadCodec::zstd, false),
                      std::pair(PayloadCodec::zstd, true)}) {
                    static constexpr std::uint32_t kChunks[] = {32, 64, 256, 4096};
                    if (ranks != 1 && number % 4 != 0 && ++number != 0) continue;  // some of them
                    const std::string record = folder / ("record" + std::to_string(number));
                    const PackOptions how = options(method, kChunks[(number + round) % 4], codec, xored);
                    SCOPED_TRACE(record + ", seed " + std::to_string(seed));
                    pack(folder / "run", record, how);
                    expect_record(record, truth);
                    // Out of it, and once more out of a record that was packed from it.
                    const std::string back = folder / ("back" + std::to_string(number));
                    const auto made =
                        unpack_steps(unsynced_file_system(), record, steps_of(truth), back, false, 2);
                    ASSERT_TRUE(made) << made.error().message;
                    EXPECT_EQ(made->size(), truth.size() * static_cast<std::size_t>(ranks) * 2);
                    expect_same_files(folder / "run", back);
                    if (number % 3 == 0) {
                        pack(record, record + "again", options(RecordMethod::runs, 128));
                        expect_record(record + "again", truth);
                    }
                    if (::testing::Test::HasFailure()) return;
                    ++number;
                }
            }
        }
    }
}

TEST(Pack, SmallChangesCostLittle) {
    QuickFolder folder;
    Truth truth;
    std::mt19937_64 random(3);
    TestImage image{{"a", testing::random_bytes(random, 100'000), 0},
                    {"b", testing::random_bytes(random, 40'000), 0}};
    for (std::int64_t step = 0; step < 20; ++step) {
        image[0].bytes[static_cast<std::size_t>(step) * 700] ^= std::byte{1};
        truth[step].push_back(image);
    }
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options());
    expect_record(folder / "record", truth);
    EXPECT_LT(bytes_in(folder / "record"), 140'000U + 20U * 1500U);
}

TEST(Pack, StopsAndGoesOn) {
    for (const int ranks : {1, 3}) {
        for (const RecordMethod method : {RecordMethod::runs, RecordMethod::basic}) {
            QuickFolder folder;
            const Truth truth = random_truth(77, 9, ranks);
            capture(folder / "run", truth);
            PackOptions how = options(method);
            std::uint64_t in_parts = 0;
            for (int stop = 0; stop < 9 * ranks; stop += 4) {
                int left = 4;
                const auto packed = pack_history(unsynced_file_system(), folder / "run", folder / "record",
                                                 how, [&](const PackedStep& step) {
                                                     in_parts += step.recorded.bytes;
                                                     return --left != 0;
                                                 });
                how.append = true;
                if (left == 0) {
                    ASSERT_FALSE(packed);
                    EXPECT_EQ(packed.error().code, ErrorCode::interrupted);
                    EXPECT_NE(packed.error().message.find("--append"), std::string::npos);
                } else {
                    ASSERT_TRUE(packed) << packed.error().message;
                }
            }
            pack(folder / "run", folder / "record", how);
            expect_record(folder / "record", truth);
            EXPECT_TRUE(unnamed_files(folder / "record").empty());
            // What was learnt again is what was known: it costs about as much as in one go.
            pack(folder / "run", folder / "whole", options(method));
            EXPECT_LT(in_parts, bytes_in(folder / "whole") * 5 / 4 + 2000);
        }
    }
}

// The run that writes the history removes a step while it is packed: the record is whole, and the
// error says so.
TEST(Pack, AStepThatLeavesMeanwhileIsToldFromDamage) {
    QuickFolder folder;
    Truth truth = random_truth(78, 4, 1);
    capture(folder / "run", truth);
    std::uint32_t ranks = 0;
    const auto settings = read_history_settings(folder / "run", ranks);
    ASSERT_TRUE(settings);
    auto writer =
        HistoryWriter::open(unsynced_file_system(), folder / "run", *settings, 0, 1, Existing::append);
    ASSERT_TRUE(writer) << writer.error().message;
    const auto steps = steps_of(truth);
    const std::int64_t leaving = steps[1];
    PackOptions how = options();
    const auto packed =
        pack_history(unsynced_file_system(), folder / "run", folder / "record", how, [&](const PackedStep&) {
            EXPECT_TRUE((*writer)->drop({&leaving, 1}));
            return true;
        });
    ASSERT_FALSE(packed);
    EXPECT_NE(
        packed.error().message.find("step " + std::to_string(leaving) + " was removed while it was packed"),
        std::string::npos)
        << packed.error().message;
    how.append = true;
    pack(folder / "run", folder / "record", how);
    truth.erase(leaving);
    expect_record(folder / "record", truth);
    // Where the step is still there, the file is missing.
    std::filesystem::remove(folder / "run" + "/" + step_folder(steps[2], 0) + "/rank-00000.twm");
    const auto damaged =
        pack_history(unsynced_file_system(), folder / "run", folder / "other", options(), {});
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().message.find("was removed while"), std::string::npos)
        << damaged.error().message;
}

TEST(Pack, RefusesWhatHasNoMeaning) {
    QuickFolder folder;
    const Truth truth = random_truth(5, 3, 1);
    FileSystem& system = unsynced_file_system();
    capture(folder / "run", truth);
    pack(folder / "run", folder / "record", options());
    const auto refused = [&](const std::string& source, const std::string& target, const PackOptions& how,
                             ErrorCode code) {
        const auto packed = pack_history(system, source, target, how, {});
        ASSERT_FALSE(packed);
        EXPECT_EQ(packed.error().code, code) << packed.error().message;
    };
    refused(folder / "nothing", folder / "x", options(), ErrorCode::not_found);
    refused(folder / "run", folder / "record", options(), ErrorCode::invalid_argument);  // is there
    PackOptions append = options(RecordMethod::tree);
    append.append = true;
    refused(folder / "run", folder / "record", append, ErrorCode::mismatch);
    // Into itself.
    refused(folder / "run", folder.path() + "/./run", append, ErrorCode::invalid_argument);
    PackOptions bad = options();
    bad.settings.chunk_bytes = 100;
    EXPECT_FALSE(pack_history(system, folder / "run", folder / "x", bad, {}));
    SessionSettings digests;
    digests.history.keep_data = false;
    capture(folder / "digests", truth, digests);
    refused(folder / "digests", folder / "x", options(), ErrorCode::invalid_argument);
    // Given back: steps that are not there; a folder that holds something else.
    EXPECT_EQ(unpack_steps(system, folder / "record", {0, 11}, folder / "y", false, 1).error().code,
              ErrorCode::not_found);
    EXPECT_EQ(unpack_steps(system, folder / "run", {0}, folder / "y", false, 1).error().code,
              ErrorCode::invalid_argument);
    EXPECT_FALSE(unpack_steps(system, folder / "record", {0}, folder / "record", false, 1));
    expect_record(folder / "record", truth);
}

// Hashes that collide: with `verify`, no chunk is taken for another one; without it, a check
// reports the steps that come back wrong.
TEST(Pack, CollisionsAreCaught) {
    for (const RecordMethod method :
         {RecordMethod::runs, RecordMethod::tree, RecordMethod::list, RecordMethod::basic}) {
        QuickFolder folder;
        const Truth truth = random_truth(31, 10, 1, 32);
        capture(folder / "run", truth);
        PackOptions how = options(method, 32);
        how.hash_bits = 5;
        how.verify = true;
        std::uint64_t collisions = 0;
        const auto packed = pack_history(unsynced_file_system(), folder / "run", folder / "record", how,
                                         [&](const PackedStep& step) {
                                             collisions += step.recorded.collisions;
                                             return true;
                                         });
        ASSERT_TRUE(packed) << packed.error().message;
        if (method != RecordMethod::basic) {  // which looks at one chunk for each
            EXPECT_GT(collisions, 0U) << method_name(method);
        }
        expect_record(folder / "record", truth);
        // Without: no wrong byte comes, and what is lost is named.
        how.verify = false;
        pack(folder / "run", folder / "wrong", how);
        std::set<std::int64_t> all;
        for (const auto& [step, images] : truth)
            all.insert(step);
        const auto lost = lost_steps(folder / "wrong", truth, all);
        if (method != RecordMethod::basic) {
            EXPECT_FALSE(lost.empty());
        }
        std::set<std::int64_t> named;
        const auto problems = check_record(folder / "wrong", 0, 1);
        ASSERT_TRUE(problems);
        for (const RecordProblem& problem : *problems)
            named.insert(problem.steps.begin(), problem.steps.end());
        EXPECT_EQ(named, lost);
        // Also against what an earlier process wrote.
        how.verify = true;
        how.append = true;
        Truth longer = truth;
        RandomHistory more(99, 32);
        for (std::int64_t step = 1000; step < 1005; ++step)
            longer[step].push_back(more.next());
        capture(folder / "longer", longer);
        ASSERT_TRUE(pack_history(unsynced_file_system(), folder / "longer", folder / "record", how, {}));
        expect_record(folder / "record", longer);
    }
}

}  // namespace
}  // namespace twinrun
