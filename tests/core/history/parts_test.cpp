// Steps that several threads read part by part: into arrays, and to whoever asks.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "history/check_record.hpp"
#include "history/payload_hashes.hpp"
#include "history/record_store.hpp"
#include "history/restore.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"
#include "support/seed.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

using testing::captured;
using testing::QuickFolder;
using testing::unsynced_file_system;

constexpr std::size_t kSliceItems = (std::size_t{1} << 20) / sizeof(double);
constexpr int kPartSteps = 4;

// Fields of which one has several slices and long runs, one short runs, and one few bytes.
class States {
   public:
    explicit States(std::uint64_t seed) : random_(seed) {
        for (std::size_t f = 0; f < 3; ++f) {
            const std::size_t items = f == 2 ? 700 : 4 * kSliceItems + 31 * (1 + f) + random_() % 100;
            fields_.emplace_back(items);
            for (double& value : fields_.back())
                value = number();
        }
    }
    void change() {
        const std::size_t at = random_() % (fields_[0].size() - 4000);
        for (std::size_t i = 0; i < 4000; ++i)
            fields_[0][at + i] = number();
        for (std::size_t i = 0; i < fields_[1].size(); i += 32 * (1 + random_() % 12))
            fields_[1][i] = number();
        fields_[2][random_() % fields_[2].size()] = number();
    }
    std::vector<CapturedField> list() {
        std::vector<CapturedField> all;
        for (std::size_t f = 0; f < fields_.size(); ++f)
            all.push_back(captured("field" + std::to_string(f), fields_[f]));
        return all;
    }
    void fill(double value) {
        for (auto& field : fields_)
            std::fill(field.begin(), field.end(), value);
    }
    // Whether each slice has the bytes of `truth`, or is still filled with `value`.
    [[nodiscard]] bool slices_of(const States& truth, double value) const {
        for (std::size_t f = 0; f < fields_.size(); ++f) {
            for (std::size_t at = 0; at < fields_[f].size(); at += kSliceItems) {
                const std::size_t items = std::min(kSliceItems, fields_[f].size() - at);
                const double* const here = fields_[f].data() + at;
                const bool right = std::equal(here, here + items, truth.fields_[f].data() + at);
                if (!right && std::any_of(here, here + items, [&](double x) { return x != value; }))
                    return false;
            }
        }
        return true;
    }
    [[nodiscard]] const std::vector<std::vector<double>>& fields() const { return fields_; }

   private:
    double number() { return static_cast<double>(random_() % 1000) / 7; }
    std::mt19937_64 random_;
    std::vector<std::vector<double>> fields_;
};

struct Kind {
    const char* name;
    std::optional<PayloadCodec> codec;  // nothing: no record
    bool xored;
};
const Kind kKinds[] = {{"plain", std::nullopt, false},
                       {"stored", PayloadCodec::stored, false},
                       {"packed", PayloadCodec::zstd, false},
                       {"xored", PayloadCodec::zstd, true}};
bool possible(const Kind& kind) { return !kind.codec || codec_available(*kind.codec); }

// Captures kPartSteps states, and returns them.
std::vector<States> capture_states(const std::string& path, const Kind& kind, std::uint64_t seed) {
    SessionSettings settings;
    settings.background = false;
    settings.threads = 1;
    if (kind.codec) {
        settings.history.record.emplace();
        settings.history.record->codec = *kind.codec;
        settings.history.record->xored = kind.xored;
    }
    SelfComm comm;
    auto run = Session::open(unsynced_file_system(), comm, path, settings);
    EXPECT_TRUE(run) << run.error().message;
    std::vector<States> all;
    States state(seed);
    for (int step = 0; step < kPartSteps; ++step) {
        EXPECT_TRUE((*run)->capture_fields(step, state.list()));
        all.push_back(state);
        state.change();
    }
    EXPECT_TRUE((*run)->close());
    return all;
}

StoredPart part_of(const std::string& path) { return {path, read_rank_journal(path, 0, 1).value()}; }

TEST(StepParts, ArraysGetWhatWasCaptured) {
    for (const Kind& kind : kKinds) {
        if (!possible(kind)) continue;
        SCOPED_TRACE(kind.name);
        QuickFolder folder;
        const auto truth = capture_states(folder / "run", kind, test_seed(11));
        for (int step = 0; step < kPartSteps; ++step) {
            for (const int threads : {1, 3}) {
                States back = truth[static_cast<std::size_t>(step)];
                back.fill(-1);
                const auto done = restore_step({part_of(folder / "run")}, step, back.list(), threads);
                ASSERT_TRUE(done) << done.error().message;
                ASSERT_EQ(back.fields(), truth[static_cast<std::size_t>(step)].fields());
            }
        }
    }
}

// With any byte of any file changed, a step is restored as it was, or there is an error; and bytes
// that were not checked never come to an array.
TEST(StepParts, DamageComesToNoArray) {
    std::mt19937_64 random(test_seed(12));
    int found = 0;
    for (const Kind& kind : kKinds) {
        if (!possible(kind)) continue;
        SCOPED_TRACE(kind.name);
        QuickFolder folder;
        const auto truth = capture_states(folder / "run", kind, test_seed(13));
        std::vector<std::filesystem::path> files;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "run")) {
            const std::string end = entry.path().extension().string();
            if (end == ".twr" || end == ".data" || end == ".twm") files.push_back(entry.path());
        }
        std::sort(files.begin(), files.end());
        ASSERT_GE(files.size(), std::size_t{kPartSteps});
        for (int round = 0; round < testing::rounds(24); ++round) {
            const std::string file = files[random() % files.size()].string();
            const auto whole = testing::read_file(file);
            auto bytes = whole;
            bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
            testing::write_file(file, bytes);
            for (std::size_t step = 0; step < kPartSteps; ++step) {
                States back = truth[step];
                back.fill(-1);
                const auto done = restore_step({part_of(folder / "run")}, static_cast<std::int64_t>(step),
                                               back.list(), 1 + round % 3);
                if (done) {
                    ASSERT_EQ(back.fields(), truth[step].fields()) << file;
                } else {
                    ++found;
                    ASSERT_TRUE(back.slices_of(truth[step], -1)) << file << ": " << done.error().message;
                }
            }
            testing::write_file(file, whole);
        }
    }
    EXPECT_GT(found, 0);
}

// The checksum of each content follows from the hashes of payload, of which each block is read once.
TEST(StepParts, ContentsFollowFromHashes) {
    for (const Kind& kind : kKinds) {
        if (!kind.codec || !possible(kind)) continue;
        SCOPED_TRACE(kind.name);
        QuickFolder folder;
        capture_states(folder / "run", kind, test_seed(15));
        const auto store = RecordStore::open(folder / "run", 0, 3).value();
        RecordChain& chain = store->chain();
        PayloadHashes hashes(kRecordMemory);
        PayloadHashes none(15);
        std::uint64_t blocks = 0;
        for (const std::uint32_t ordinal : store->ordinals()) {
            EXPECT_FALSE(hashes.content(store->map(ordinal).value(), 0)) << "its payload was not read yet";
            const auto file = chain.open(ordinal).value();
            blocks += file->difference().blocks.size();
            EXPECT_FALSE(none.has_room(*file));
            ASSERT_TRUE(hashes.has_room(*file));
            const auto read = hashes.add(chain, *file);
            ASSERT_TRUE(read) << read.error().message;
        }
        EXPECT_TRUE(kind.xored ? chain.reads().blocks >= blocks : chain.reads().blocks == blocks);
        for (std::int64_t step = 0; step < kPartSteps; ++step) {
            const StepMap map = store->map(step).value();
            for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
                std::vector<std::byte> bytes(map.directory.segments[s].bytes);
                ASSERT_TRUE(chain.read(map, s, 0, bytes));
                EXPECT_EQ(hashes.content(map, s), chain.content_of(map, 0, bytes));
            }
        }
    }
}

// With any byte changed, a check finds nothing only where all steps can be restored.
TEST(StepParts, ACheckFindsWhatStepsMiss) {
    std::mt19937_64 random(test_seed(16));
    for (const Kind& kind : kKinds) {
        if (!kind.codec || !possible(kind)) continue;
        SCOPED_TRACE(kind.name);
        QuickFolder folder;
        capture_states(folder / "run", kind, test_seed(17));
        ASSERT_TRUE(check_record(folder / "run", 0, 2).value().empty());
        for (int round = 0; round < testing::rounds(12); ++round) {
            const std::string file = folder / "run" + "/step-000000000" +
                                     std::to_string(random() % kPartSteps) + "/rank-00000.twr";
            const auto whole = testing::read_file(file);
            auto bytes = whole;
            bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
            testing::write_file(file, bytes);
            const std::uint64_t memory = round % 3 == 0 ? std::uint64_t{1} << 16 : kRecordMemory;
            const auto problems = check_record(folder / "run", 0, 2, memory).value();
            EXPECT_FALSE(problems.empty()) << file;
            std::set<std::int64_t> named;
            for (const RecordProblem& problem : problems)
                named.insert(problem.steps.begin(), problem.steps.end());
            for (std::int64_t step = 0; step < kPartSteps; ++step) {
                const auto store = RecordStore::open(folder / "run", 0, 2).value();
                const auto map = store->map(step);
                bool good = map.ok();
                for (std::size_t s = 0; good && s < map->directory.segments.size(); ++s) {
                    std::vector<std::byte> to(map->directory.segments[s].bytes);
                    good = store->read_segment(*map, s, to).ok();
                }
                EXPECT_EQ(good, !named.contains(step)) << file << ", step " << step;
            }
            testing::write_file(file, whole);
        }
    }
}

// Whatever the memory and the threads: each byte once, and the same.
TEST(StepParts, CoverEachSegmentOnce) {
    for (const Kind& kind : kKinds) {
        if (!kind.codec || !possible(kind)) continue;
        SCOPED_TRACE(kind.name);
        QuickFolder folder;
        const auto truth = capture_states(folder / "run", kind, test_seed(14));
        for (const std::uint64_t memory : {std::uint64_t{1}, std::uint64_t{8} << 20, kRecordMemory}) {
            for (const int threads : {1, 3}) {
                const auto store = RecordStore::open(folder / "run", 0, threads).value();
                const auto map = store->map(kPartSteps - 1).value();
                std::vector<std::size_t> all(map.directory.segments.size());
                std::iota(all.begin(), all.end(), std::size_t{0});
                std::vector<std::vector<int>> seen;  // how often each kRecordPart came
                for (const RecordSegment& segment : map.directory.segments)
                    seen.emplace_back(segment.bytes / kRecordPart + 1, 0);
                std::mutex mutex;
                std::uint64_t bytes = 0;
                const auto take = [&](std::size_t s, std::uint64_t at, auto part) -> Result<> {
                    const std::lock_guard guard(mutex);
                    bytes += part.size();
                    EXPECT_EQ(at % kRecordPart, 0U);
                    for (std::uint64_t i = at / kRecordPart; i * kRecordPart < at + part.size(); ++i)
                        ++seen[s][i];
                    const auto* expected =
                        reinterpret_cast<const std::byte*>(truth.back().fields()[s].data());
                    EXPECT_EQ(std::memcmp(part.data(), expected + at, part.size()), 0);
                    return success();
                };
                const auto done = store->each_part(map, all, memory, true, take);
                ASSERT_TRUE(done) << done.error().message;
                std::uint64_t expected = 0;
                for (std::size_t s = 0; s < all.size(); ++s) {
                    expected += map.directory.segments[s].bytes;
                    for (std::size_t i = 0; i * kRecordPart < map.directory.segments[s].bytes; ++i)
                        EXPECT_EQ(seen[s][i], 1);
                }
                EXPECT_EQ(bytes, expected);
                // An error of the one who takes ends it.
                const auto refused =
                    store->each_part(map, all, memory, false, [](auto, auto, auto) -> Result<> {
                        return Error{ErrorCode::io, "no room"};
                    });
                ASSERT_FALSE(refused);
                EXPECT_EQ(refused.error().message, "no room");
            }
        }
    }
}

}  // namespace
}  // namespace twinrun
