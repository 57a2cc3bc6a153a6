// Records on storage: histories and files packed and given back, damage, compaction, records against records.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "history/check_record.hpp"
#include "history/compact.hpp"
#include "history/journal_line.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"
#include "history/restore.hpp"
#include "history/unpack.hpp"
#include "sketch/build.hpp"
#include "support/faulty_file_system.hpp"
#include "support/forwarding_file_system.hpp"
#include "support/record.hpp"
#include "support/session.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFileSystem;
using testing::RandomHistory;
using testing::TestImage;
using testing::ThreadsComm;
using testing::unsynced_file_system;

int rounds(int normal) {
    const char* text = std::getenv("TWINRUN_TEST_ROUNDS");
    return text == nullptr ? normal : std::max(1, std::min(normal, std::atoi(text)));
}

class RecordFolder {
   public:
    RecordFolder() {
        std::string name = (testing::quick_folder() / "twinrun-record-XXXXXX").string();
        path_ = ::mkdtemp(name.data());
    }
    ~RecordFolder() { fs::remove_all(path_); }
    RecordFolder(const RecordFolder&) = delete;
    RecordFolder& operator=(const RecordFolder&) = delete;
    [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }
    [[nodiscard]] std::string path() const { return path_.string(); }

   private:
    fs::path path_;
};

// What each rank had at each step.
using Truth = std::map<std::int64_t, std::vector<TestImage>>;

std::vector<CapturedField> fields_of(const TestImage& image) {
    std::vector<CapturedField> fields;
    for (const auto& segment : image) {
        CapturedField field;
        field.name = segment.name;
        field.dtype = DType::u8;
        field.shape = {segment.bytes.size()};
        field.data = segment.bytes.data();
        fields.push_back(field);
    }
    return fields;
}

Truth random_truth(std::uint64_t seed, int steps, int ranks, std::uint32_t chunk = 64) {
    Truth truth;
    for (int rank = 0; rank < ranks; ++rank) {
        RandomHistory history(seed * 10 + static_cast<std::uint64_t>(rank), chunk);
        for (int step = 0; step < steps; ++step) {
            truth[step * 10].push_back(history.next());
            TestImage& image = truth[step * 10].back();
            if (image.empty()) image.push_back({"only", testing::RecordBytes(10, std::byte{1}), 0});
        }
    }
    return truth;
}

void capture(const std::string& path, const Truth& truth, SessionSettings settings = {}) {
    const auto ranks = static_cast<int>(truth.begin()->second.size());
    ThreadsComm::run(ranks, [&](Comm& comm) {
        settings.background = false;
        settings.threads = 1;
        auto run = Session::open(unsynced_file_system(), comm, path, settings);
        ASSERT_TRUE(run) << run.error().message;
        for (const auto& [step, images] : truth) {
            const auto report =
                (*run)->capture_fields(step, fields_of(images[static_cast<std::size_t>(comm.rank())]));
            ASSERT_TRUE(report) << report.error().message;
            ASSERT_TRUE(report->lost.empty()) << report->lost[0].error.message;
        }
        ASSERT_TRUE((*run)->close());
    });
}

PackOptions options(RecordMethod method = RecordMethod::runs, std::uint32_t chunk = 64,
                    PayloadCodec codec = PayloadCodec::zstd, bool xored = true) {
    PackOptions all;
    all.settings.method = method;
    all.settings.chunk_bytes = chunk;
    all.settings.codec = codec_available(codec) ? codec : PayloadCodec::stored;
    all.settings.xored = xored && all.settings.codec != PayloadCodec::stored && method != RecordMethod::full;
    return all;
}

// What is wrong with one step; empty: all its bytes are right, as a whole, in parts, and as an application gets them back.
std::string wrong_with(RecordStore& store, std::int64_t step, const TestImage& image) {
    const auto map = store.map(step);
    if (!map) return map.error().message;
    for (const auto& segment : image) {
        if (segment.bytes.empty()) continue;
        const RecordSegment* found = map->find(segment.name);
        if (found == nullptr || found->bytes != segment.bytes.size())
            return "another segment " + segment.name;
        const auto number = static_cast<std::size_t>(found - map->directory.segments.data());
        std::vector<std::byte> bytes(segment.bytes.size());
        if (const auto read = store.read_segment(*map, number, bytes); !read) return read.error().message;
        if (bytes != segment.bytes) return "OTHER BYTES in " + segment.name;
        const std::size_t begin = static_cast<std::size_t>(step * 31 + 7) % bytes.size();
        const std::size_t count = (bytes.size() - begin) / 2 + 1;
        std::vector<std::byte> part(count);
        if (const auto read = store.read(*map, number, begin, part); !read) return read.error().message;
        if (!std::equal(part.begin(), part.end(), segment.bytes.begin() + static_cast<std::ptrdiff_t>(begin)))
            return "OTHER BYTES in a part of " + segment.name;
    }
    return "";
}

// All of `steps` are right, no other step is there, and the record's own check finds nothing.
void expect_record(const std::string& path, const Truth& truth, const std::set<std::int64_t>& steps) {
    const auto history = History::open(path);
    ASSERT_TRUE(history) << history.error().message;
    std::set<std::int64_t> there;
    for (const HistoryStep& step : history->steps)
        there.insert(step.step);
    EXPECT_EQ(there, steps);
    for (std::uint32_t rank = 0; rank < history->ranks; ++rank) {
        auto store = RecordStore::open(path, rank);
        ASSERT_TRUE(store) << store.error().message;
        for (const std::int64_t step : steps) {
            EXPECT_EQ(wrong_with(**store, step, truth.at(step)[rank]), "") << path << ", step " << step;
        }
        const auto problems = check_record(path, rank, 1);
        ASSERT_TRUE(problems) << problems.error().message;
        for (const RecordProblem& problem : *problems)
            ADD_FAILURE() << problem.what;
    }
}
void expect_record(const std::string& path, const Truth& truth) {
    std::set<std::int64_t> steps;
    for (const auto& [step, images] : truth)
        steps.insert(step);
    expect_record(path, truth, steps);
}

// Two histories have the same steps, and these the same files.
void expect_same_files(const std::string& a, const std::string& b) {
    const auto first = History::open(a);
    const auto second = History::open(b);
    ASSERT_TRUE(first) << first.error().message;
    ASSERT_TRUE(second) << second.error().message;
    ASSERT_EQ(first->steps.size(), second->steps.size());
    ASSERT_EQ(first->ranks, second->ranks);
    for (std::size_t s = 0; s < first->steps.size(); ++s) {
        const HistoryStep& x = first->steps[s];
        const HistoryStep& y = second->steps[s];
        ASSERT_EQ(x.step, y.step);
        for (std::uint32_t rank = 0; rank < first->ranks; ++rank) {
            const auto name = [&](const std::string& path, const HistoryStep& step, const std::string& file) {
                return (fs::path(path) / step.folder / file).string();
            };
            EXPECT_EQ(x.ranks[rank].header_checksum, y.ranks[rank].header_checksum);
            EXPECT_EQ(x.ranks[rank].data_bytes, y.ranks[rank].data_bytes);
            EXPECT_TRUE(testing::read_file(name(a, x, x.ranks[rank].data)) ==
                        testing::read_file(name(b, y, y.ranks[rank].data)))
                << x.step;
            EXPECT_TRUE(testing::read_file(name(a, x, x.ranks[rank].metadata)) ==
                        testing::read_file(name(b, y, y.ranks[rank].metadata)))
                << x.step;
        }
    }
}

std::vector<std::int64_t> steps_of(const Truth& truth) {
    std::vector<std::int64_t> steps;
    for (const auto& [step, images] : truth)
        steps.push_back(step);
    return steps;
}

void pack(const std::string& source, const std::string& target, const PackOptions& how) {
    const auto packed = pack_history(unsynced_file_system(), source, target, how, {});
    ASSERT_TRUE(packed) << packed.error().message;
}

// Files in the folders of steps that no journal names.
std::vector<std::string> unnamed_files(const std::string& path) {
    const auto history = History::open(path);
    EXPECT_TRUE(history);
    std::set<std::string> named;
    for (std::uint32_t rank = 0; rank < history->ranks; ++rank) {
        const auto journal = read_rank_journal(path, rank, history->ranks);
        EXPECT_TRUE(journal);
        for (const auto& [step, files] : journal->steps) {
            named.insert(files.folder + "/" + files.files.metadata);
            named.insert(files.folder + "/" + files.files.data);
        }
        for (const auto& [ordinal, file] : journal->differences)
            named.insert(file);
    }
    std::vector<std::string> others;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
        const std::string name = fs::relative(entry.path(), path).string();
        if (entry.path().filename() == marker_name(history->id)) continue;
        if (entry.is_regular_file() && name.find('/') != std::string::npos && !named.contains(name))
            others.push_back(name);
    }
    return others;
}

std::uint64_t bytes_in(const std::string& path) {
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
        if (entry.path().extension() == ".twr") bytes += entry.file_size();
    }
    return bytes;
}

// Steps that cannot be given back, found by giving back each of them.
std::set<std::int64_t> lost_steps(const std::string& record, const Truth& truth,
                                  const std::set<std::int64_t>& steps) {
    std::set<std::int64_t> lost;
    auto store = RecordStore::open(record, 0);
    EXPECT_TRUE(store);
    for (const std::int64_t step : steps) {
        const std::string wrong = wrong_with(**store, step, truth.at(step)[0]);
        EXPECT_EQ(wrong.find("OTHER"), std::string::npos) << wrong;
        if (!wrong.empty()) lost.insert(step);
    }
    return lost;
}

// ---- packed, and given back ----

TEST(Pack, GivesBackEveryStepBitForBit) {
    std::uint64_t seed = 1;
    for (const int ranks : {1, 3}) {
        const int many = ranks == 1 ? rounds(2) : 1;
        for (int round = 0; round < many; ++round) {
            RecordFolder folder;
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

// Each rank's part of a file of all of them becomes its own, with metadata that fits it.
TEST(Pack, SharedFilesAreTakenApart) {
    std::uint64_t seed = 900;
    for (const int ranks : {1, 2, 4}) {
        for (const RecordMethod method : {RecordMethod::runs, RecordMethod::basic}) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::string(method_name(method)));
            RecordFolder folder;
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
                    journal.steps[has.step] = {has.folder, after};
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

// Another size than the journal's, a flipped byte, a part that is another rank's: an error before anything is packed of it.
TEST(Pack, DamagedSharedFilesAreNotPacked) {
    RecordFolder folder;
    const Truth truth = random_truth(77, 1, 3);
    SessionSettings shared;
    shared.shared_files = SharedFiles::one;
    capture(folder / "run", truth, shared);
    const auto run = History::open(folder / "run");
    ASSERT_TRUE(run) << run.error().message;
    const std::string file = (fs::path(folder / "run") / run->steps[0].folder / "group.data").string();
    const auto good = read_whole_file(file, std::uint64_t{1} << 30);
    ASSERT_TRUE(good);
    const auto put = [&](const std::vector<std::byte>& bytes) {
        std::FILE* const out = std::fopen(file.c_str(), "wb");
        ASSERT_NE(out, nullptr);
        ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), out), bytes.size());
        std::fclose(out);
    };
    const auto refused = [&](const std::vector<std::byte>& bytes, const char* what) {
        put(bytes);
        fs::remove_all(folder / "record");
        const auto packed =
            pack_history(unsynced_file_system(), folder / "run", folder / "record", options(), {});
        ASSERT_FALSE(packed) << what;
        EXPECT_EQ(packed.error().code, ErrorCode::damaged) << packed.error().message;
        EXPECT_NE(packed.error().message.find("group.data"), std::string::npos) << packed.error().message;
    };
    auto shorter = *good;
    shorter.pop_back();
    refused(shorter, "shorter");
    auto longer = *good;
    longer.push_back(std::byte{0});
    refused(longer, "longer");
    for (const RankFiles& r : run->steps[0].ranks) {
        for (const std::uint64_t at : {r.offset, r.offset + r.data_bytes / 2, r.offset + r.data_bytes - 1}) {
            auto flipped = *good;
            flipped[at] ^= std::byte{0x10};
            refused(flipped, "flipped");
        }
    }
    put(*good);
    fs::remove_all(folder / "record");
    pack(folder / "run", folder / "record", options());
    expect_record(folder / "record", truth);
}

TEST(Pack, SmallChangesCostLittle) {
    RecordFolder folder;
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
            RecordFolder folder;
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

// The run that writes the history takes a step away meanwhile: what is packed is whole, and the message says so.
TEST(Pack, AStepThatLeavesMeanwhileIsToldFromDamage) {
    RecordFolder folder;
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
    EXPECT_NE(packed.error().message.find("step " + std::to_string(leaving) + " left while it was packed"),
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
    EXPECT_EQ(damaged.error().message.find("left while"), std::string::npos) << damaged.error().message;
}

TEST(Pack, RefusesWhatHasNoMeaning) {
    RecordFolder folder;
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
    refused(folder / "run", folder.path() + "/./run", append, ErrorCode::invalid_argument);  // into itself
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

TEST(Pack, NothingIsOverwritten) {
    RecordFolder folder;
    const Truth truth = random_truth(6, 4, 1);
    Truth other = random_truth(7, 4, 1);
    capture(folder / "run", truth);
    capture(folder / "other", other);
    pack(folder / "run", folder / "record", options());
    // The same steps once more: nothing to do. Steps of another run: refused, and left as they are.
    ASSERT_TRUE(unpack_steps(unsynced_file_system(), folder / "record", {0, 10}, folder / "back", false, 1));
    const auto again =
        unpack_steps(unsynced_file_system(), folder / "record", {0, 10, 20, 30}, folder / "back", false, 1);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->size(), 4U);
    expect_same_files(folder / "run", folder / "back");
    const auto before = testing::read_file(folder / "other" + "/step-0000000010/rank-00000.data");
    EXPECT_FALSE(unpack_steps(unsynced_file_system(), folder / "record", {10}, folder / "other", false, 1));
    EXPECT_TRUE(testing::read_file(folder / "other" + "/step-0000000010/rank-00000.data") == before);
}

// Data that is damaged before it is packed is found, and nothing of it becomes a step.
TEST(Pack, DamagedDataIsNotPacked) {
    for (const bool between : {false, true}) {
        RecordFolder folder;
        const Truth truth{{0,
                           {{{"a", testing::RecordBytes(5000, std::byte{1}), 0},
                             {"b", testing::RecordBytes(700, std::byte{2}), 0}}}},
                          {10,
                           {{{"a", testing::RecordBytes(5000, std::byte{3}), 0},
                             {"b", testing::RecordBytes(700, std::byte{2}), 0}}}}};
        capture(folder / "run", truth);
        const std::string file = folder / "run" + "/step-0000000010/rank-00000.data";
        auto bytes = testing::read_file(file);
        bytes[between ? 5001 : 4097] ^= std::byte{4};
        testing::write_file(file, bytes);
        const auto packed =
            pack_history(unsynced_file_system(), folder / "run", folder / "record", options(), {});
        ASSERT_FALSE(packed);
        EXPECT_EQ(packed.error().code, ErrorCode::damaged) << packed.error().message;
        EXPECT_NE(packed.error().message.find(file), std::string::npos) << packed.error().message;
        expect_record(folder / "record", truth, {0});
    }
}

// Every step stays within its tolerance of what was captured, however slowly all drifts, and is a history that verifies.
TEST(Pack, BoundedStepsStayWithinTheTolerance) {
    for (const RecordMethod method :
         {RecordMethod::runs, RecordMethod::tree, RecordMethod::list, RecordMethod::basic}) {
        RecordFolder folder;
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

TEST(Pack, FilesOfOtherPrograms) {
    RecordFolder folder;
    std::mt19937_64 random(8);
    FileSystem& system = unsynced_file_system();
    std::vector<FilesOfStep> steps;
    std::map<std::int64_t, std::map<std::string, testing::RecordBytes>> truth;
    testing::RecordBytes changing = testing::random_bytes(random, 30'001);
    for (std::int64_t step = 1; step <= 6; ++step) {
        changing[static_cast<std::size_t>(step) * 1000] ^= std::byte{9};
        std::map<std::string, testing::RecordBytes> files{
            {"out/mesh/" + std::to_string(step) + ".bin", changing},
            {"log.txt", testing::random_bytes(random, 10)}};
        if (step % 2 == 0) files["empty"] = {};
        FilesOfStep one;
        one.step = step;
        for (const auto& [name, bytes] : files) {
            const std::string path =
                folder / ("in-" + std::to_string(step) + "-" + std::to_string(one.files.size()));
            testing::write_file(path, bytes);
            one.files.push_back({name, path, name.starts_with("out") ? "out/mesh" : name});
        }
        truth[step] = files;
        steps.push_back(one);
    }
    PackOptions how = options();
    const std::vector<FilesOfStep> some(steps.begin(), steps.begin() + 3);
    ASSERT_TRUE(pack_files(system, some, folder / "record", how, {}));
    EXPECT_FALSE(pack_files(system, steps, folder / "record", how, {}));
    how.append = true;
    const auto packed = pack_files(system, steps, folder / "record", how, {});
    ASSERT_TRUE(packed) << packed.error().message;
    EXPECT_LT(bytes_in(folder / "record"), 30'001U + 6U * 2000U);
    const auto right = [&](const fs::path& at, std::int64_t step) {
        std::size_t there = 0;
        for (const auto& entry : fs::recursive_directory_iterator(at))
            there += entry.is_regular_file() ? 1 : 0;
        EXPECT_EQ(there, truth[step].size());
        for (const auto& [name, bytes] : truth[step])
            EXPECT_TRUE(testing::read_file((at / name).string()) == bytes) << name;
    };
    auto made = unpack_steps(system, folder / "record", {1, 2, 3, 4, 5, 6}, folder / "back", false, 1);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made->size(), 15U);
    for (std::int64_t step = 1; step <= 6; ++step)
        right(fs::path(folder / "back") / step_folder(step, 0), step);
    made = unpack_steps(system, folder / "record", {4}, folder / "flat", true, 1);
    ASSERT_TRUE(made) << made.error().message;
    right(folder / "flat", 4);
    // Neither over what is there, nor half beside it.
    testing::write_file(folder / "flat" + "/log.txt", {});
    EXPECT_EQ(unpack_steps(system, folder / "record", {4}, folder / "flat", true, 1).error().code,
              ErrorCode::invalid_argument);
    EXPECT_TRUE(testing::read_file(folder / "flat" + "/log.txt").empty());
    fs::create_directories(folder / "half");
    testing::write_file(folder / "half" + "/log.txt", {});
    EXPECT_FALSE(unpack_steps(system, folder / "record", {4}, folder / "half", true, 1));
    EXPECT_FALSE(fs::exists(folder / "half" + "/out"));
    EXPECT_FALSE(unpack_steps(system, folder / "record", {4, 5}, folder / "two", true, 1));
    how.settings.bounded = true;
    EXPECT_FALSE(pack_files(system, steps, folder / "bounded", how, {}));
    // It is no history of captures.
    const auto other = pack_history(system, folder / "record", folder / "other", options(), {});
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, ErrorCode::invalid_argument) << other.error().message;
    CompactOptions fewer;
    fewer.keep_last = 2;
    ASSERT_TRUE(compact_record(system, folder / "record", fewer));
    ASSERT_TRUE(unpack_steps(system, folder / "record", {6}, folder / "after", true, 1));
    right(folder / "after", 6);
    EXPECT_TRUE(check_record(folder / "record", 0, 1)->empty());
}

// Whatever fails while files are given back: no half file stays, and nothing else is touched.
TEST(Pack, RestoreThatFails) {
    RecordFolder folder;
    std::mt19937_64 random(18);
    FileSystem& system = unsynced_file_system();
    FilesOfStep step;
    step.step = 1;
    std::map<std::string, testing::RecordBytes> truth;
    for (const std::string name : {"a", "sub/b", "sub/deep/c"}) {
        truth[name] = testing::random_bytes(random, 5000);
        const std::string path = folder / ("in-" + std::to_string(step.files.size()));
        testing::write_file(path, truth[name]);
        step.files.push_back({name, path, name});
    }
    step.files.push_back({"sub/link", "", "link", RecordFileKind::link, "/nowhere"});
    step.files.push_back({"empty", "", "empty", RecordFileKind::folder});
    ASSERT_TRUE(pack_files(system, {step}, folder / "record", options(), {}));
    // And what a hostile record may say: a file behind a link of the same record.
    FilesOfStep hostile = step;
    hostile.files.push_back({"sub/link/d", hostile.files[0].path, "d"});
    ASSERT_TRUE(pack_files(system, {hostile}, folder / "hostile", options(), {}));
    EXPECT_FALSE(unpack_steps(system, folder / "hostile", {1}, folder / "hostile-to", true, 1));
    EXPECT_FALSE(fs::is_symlink(folder / "hostile-to/sub/link"));

    testing::FaultyFileSystem faulty(system);
    for (std::size_t at = 1;; ++at) {
        const fs::path to = folder / ("to-" + std::to_string(at));
        fs::create_directories(to / "sub");
        testing::write_file((to / "sub/b.tmp").string(), truth["a"]);
        testing::Fault fault;
        fault.at = at;
        faulty.inject(fault);
        const auto made = unpack_steps(faulty, folder / "record", {1}, to.string(), true, 1);
        EXPECT_TRUE(testing::read_file((to / "sub/b.tmp").string()) == truth["a"]);
        std::size_t files = 0;
        for (const auto& entry : fs::recursive_directory_iterator(to)) {
            if (!entry.is_regular_file() || entry.path().filename() == "b.tmp") continue;
            const std::string name = entry.path().lexically_relative(to).string();
            ASSERT_TRUE(truth.contains(name)) << name << ", operation " << at;
            EXPECT_TRUE(testing::read_file(entry.path().string()) == truth[name]) << name;
            ++files;
        }
        if (!made) continue;
        EXPECT_EQ(files, 3U);
        EXPECT_EQ(made->size(), 5U);
        EXPECT_TRUE(fs::is_symlink(to / "sub/link"));
        EXPECT_GT(at, 10U);
        break;
    }
}

// Hashes that collide: with `verify` nothing is taken for what it is not; without, what restore gives is told to be wrong.
TEST(Pack, CollisionsAreCaught) {
    for (const RecordMethod method :
         {RecordMethod::runs, RecordMethod::tree, RecordMethod::list, RecordMethod::basic}) {
        RecordFolder folder;
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

// ---- reading ----

// One field is read from its own blocks: whatever happened to all others.
TEST(RecordStoreTest, ReadsOnlyWhatIsNeeded) {
    RecordFolder folder;
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
    // The payload is that of a, b and c, in blocks of 64 KiB: in each part that is wanted, all others are destroyed.
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

// However many steps there are behind each other, a step is put together from a bounded number of differences.
TEST(RecordStoreTest, LongChainsAreBounded) {
    for (const auto& [method, copies, steps] :
         {std::tuple(RecordMethod::runs, true, 300), std::tuple(RecordMethod::basic, false, 300)}) {
        RecordFolder folder;
        std::mt19937_64 random(14);
        Truth truth;
        // Chunks that are copied about, so that a map costs more than many steps do; or a little changes, nothing, or all.
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

// A step that has bytes of more differences than a process may have open files.
TEST(RecordStoreTest, StepsOfManyDifferences) {
    RecordFolder folder;
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

// ---- damage ----

struct Differences {
    std::vector<std::string> files;
    explicit Differences(const std::string& record) {
        for (const auto& entry : fs::recursive_directory_iterator(record)) {
            if (entry.path().extension() == ".twr") files.push_back(entry.path().string());
        }
        std::sort(files.begin(), files.end());
    }
};

// Every file, in its header, in each block and in its index; and files that are not there. What is told to be lost is what cannot
// be given back, no other byte comes, and all other steps are right.
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
            RecordFolder folder;
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
    RecordFolder folder;
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

// A record with damage can be gone on with: what cannot be read is not used, that is all.
TEST(RecordDamage, PackingGoesOn) {
    for (const bool gone : {false, true}) {
        RecordFolder folder;
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

// ---- compaction ----

TEST(Compact, WhatRemainsIsAsItWas) {
    const int many = rounds(12);
    for (int round = 0; round < many; ++round) {
        SCOPED_TRACE(round);
        RecordFolder folder;
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
    RecordFolder folder;
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

// Whatever storage does at any moment: what was to stay is there, and the next compaction does the rest.
TEST(Compact, AnyFaultLeavesWhatStays) {
    RecordFolder folder;
    const Truth truth = random_truth(1234, 7, 1);
    capture(folder / "run", truth);
    pack(folder / "run", folder / "packed", options(RecordMethod::runs, 64));
    {
        CompactOptions first;
        first.drop = {10};
        ASSERT_TRUE(
            compact_record(unsynced_file_system(), folder / "packed", first));  // there are leftovers already
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

// A step that stands alone was XORed with one that leaves: no map names these chunks, and they are needed.
TEST(Compact, WhatWasXoredStays) {
    RecordFolder folder;
    std::mt19937_64 random(17);
    Truth truth;
    std::vector<std::uint64_t> values(2000);
    for (auto& value : values)
        value = random();
    for (std::int64_t step = 0; step < 70; ++step) {
        for (auto& value : values)
            value += random() % 4;
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

// A machine that goes down between two ranks leaves a step that only some have: it can still be dropped.
TEST(Compact, StepsThatOnlySomeRanksHaveCanBeDropped) {
    RecordFolder folder;
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
    fs::remove_all(folder / "record/step-leftovers/rank-00001.twr");  // which that journal did not name yet
    EXPECT_EQ(History::open(folder / "record")->incomplete, (std::vector<std::int64_t>{10, 20}));
    const auto again = compact_record(unsynced_file_system(), folder / "record", fewer);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE(History::open(folder / "record")->incomplete.empty());
    expect_record(folder / "record", truth, {0, 30, 40});
    EXPECT_EQ(unnamed_files(folder / "record"), std::vector<std::string>());
}

// What was opened before steps left goes on after it: maps, and stores that have read nothing yet.
TEST(Compact, ReadersGoOn) {
    RecordFolder folder;
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
    RecordFolder folder;
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

// `twinrun restore` of a step that leaves the record meanwhile: it says so, and the next one finds what is there.
TEST(Compact, AStepThatLeavesWhileItIsGivenBack) {
    class Dropping final : public testing::ForwardingFileSystem {
       public:
        std::function<void()> drop;
        Result<std::unique_ptr<NewFiles>> open_new(const std::string& folder) override {
            if (drop) std::exchange(drop, nullptr)();
            return ForwardingFileSystem::open_new(folder);
        }
    } system;
    RecordFolder folder;
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
    EXPECT_NE(left.error().message.find("step 10 left while it was given back"), std::string::npos)
        << left.error().message;
    ASSERT_TRUE(unpack_steps(system, folder / "record", {20, 30}, folder / "back", false, 1));
    // Where the record still has it, a file is missing.
    fs::remove(folder / "record" + "/" + step_folder(0, 0) + "/rank-00000.twm");
    const auto damaged = unpack_steps(system, folder / "record", {0}, folder / "other", false, 1);
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().message.find("left while"), std::string::npos) << damaged.error().message;
}

// ---- one record against another ----

TEST(Against, ARunThatIsTheSameCostsNothing) {
    for (const int ranks : {1, 3}) {
        RecordFolder folder;
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
        // A third one, against the second; each may lose steps of its own, and only the last one of them.
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
    RecordFolder folder;
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
    RecordFolder folder;
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

// ---- packing under faults ----

// Any operation fails, or the machine goes down: what was committed reads back, and packing goes on to the same end.
void any_fault_leaves_whole_steps(int ranks, int steps, const SessionSettings& settings) {
    RecordFolder folder;
    const Truth truth = random_truth(4321, steps, ranks);
    capture(folder / "run", truth, settings);
    const PackOptions how = options();
    std::size_t operations = 0;
    {
        FaultyFileSystem system(unsynced_file_system());
        ASSERT_TRUE(pack_history(system, folder / "run", folder / "record", how, {}));
        operations = system.operations();
    }
    for (const int kind : {0, 1, 2}) {
        for (std::size_t at = 1; at <= operations; ++at) {
            SCOPED_TRACE("kind " + std::to_string(kind) + ", operation " + std::to_string(at));
            fs::remove_all(folder / "record");
            FaultyFileSystem system(unsynced_file_system());
            Fault fault;
            fault.at = at;
            fault.error = {kind == 0 ? ErrorCode::no_space : ErrorCode::io, "injected"};
            fault.written_first = 60;
            fault.dead_after = kind == 2;
            system.inject(fault);
            std::set<std::int64_t> promised;  // by all ranks: the last one comes last
            const auto packed =
                pack_history(system, folder / "run", folder / "record", how, [&](const PackedStep& step) {
                    if (step.rank + 1 == static_cast<std::uint32_t>(ranks)) promised.insert(step.step);
                    return true;
                });
            if (kind == 2) system.power_cut(at % 4);
            system.inject({});
            const auto history = History::open(folder / "record");
            if (history) {
                std::set<std::int64_t> there;
                for (const HistoryStep& step : history->steps)
                    there.insert(step.step);
                for (const std::int64_t step : promised)
                    EXPECT_TRUE(there.contains(step));
                expect_record(folder / "record", truth, there);
            } else {
                EXPECT_TRUE(promised.empty());
            }
            PackOptions on = how;
            on.append = true;
            const auto rest = pack_history(system, folder / "run", folder / "record", on, {});
            ASSERT_TRUE(rest) << rest.error().message;
            expect_record(folder / "record", truth);
            EXPECT_TRUE(unnamed_files(folder / "record").empty());
            if (::testing::Test::HasFailure()) return;
        }
    }
}

TEST(Pack, AnyFaultLeavesWholeSteps) { any_fault_leaves_whole_steps(1, 3, {}); }

TEST(Pack, AnyFaultLeavesWholeStepsOfSharedFiles) {
    SessionSettings shared;
    shared.shared_files = SharedFiles::one;
    any_fault_leaves_whole_steps(2, 2, shared);
}

// ---- hostile journals ----

TEST(RecordJournal, HostileLinesAreRefused) {
    RecordFolder folder;
    const std::string path = folder / "record";
    fs::create_directories(path);
    const std::string head = seal_line(
        R"({"atol":0.0,"chunk_bytes":4096,"digest":"linear","keep_data":true,"record":{"bounded":false,"chunk_bytes":64,)"
        R"("codec":"none","level":1,"method":"runs","xor":false},"residue_bits":4,"rtol":0.0,"twinrun_history":2})");
    const auto step = [](std::int64_t number, const std::string& difference,
                         const std::string& folder_name = "", const std::string& more = "") {
        const std::string place = folder_name.empty() ? "step-" + std::to_string(number) : folder_name;
        return R"({"folder":")" + place +
               R"(","ranks":[{"data":"rank-00000.twr","data_bytes":9,"difference":)" + difference +
               R"(,"full_bytes":9,"header_xxh3":"0000000000000000","metadata":"m","metadata_bytes":0,"rank":0}],"step":)" +
               std::to_string(number) + more + "}";
    };
    const auto moved = [](const std::string& file, const std::string& ordinals = "0",
                          const std::string& gone = "") {
        return R"({"gone":[)" + gone + R"(],"moved":[{"differences":[)" + ordinals + R"(],"file":")" + file +
               R"("}]})";
    };
    const auto reads = [&](const std::vector<std::string>& lines) {
        std::string text = head + "\n";
        for (const std::string& line : lines)
            text += seal_line(line) + "\n";
        testing::write_file(manifest_path(path), std::as_bytes(std::span(text)));
        const auto history = History::open(path);
        const auto journal = read_rank_journal(path, 0, 1);
        EXPECT_EQ(history.ok(), journal.ok());
        if (!history) {
            EXPECT_EQ(history.error().code, ErrorCode::damaged) << history.error().message;
            EXPECT_NE(history.error().message.find(": line "), std::string::npos);
        }
        return history.ok();
    };
    EXPECT_TRUE(reads({step(1, "0"), step(2, "1")}));
    EXPECT_TRUE(
        reads({step(1, "0"), step(2, "1"), R"({"drop":1})", moved("step-leftovers/rank-00000.1.twr")}));
    EXPECT_TRUE(reads({step(1, "0"), step(1, "0", "", R"(,"replaces":true)")}))
        << "a step that is written anew";
    EXPECT_TRUE(reads({step(1, "0"), step(1, "1", "step-1.1", R"(,"replaces":true)")}));
    EXPECT_TRUE(reads({step(1, "0"), R"({"child":"/x"})"}));
    // Ordinals that cannot be, or that something else has.
    EXPECT_TRUE(reads({step(1, std::to_string(kMostOrdinals))}));
    for (const char* ordinal : {"16777216", "4294967295", "4294967296", "-1", "1.5", "\"0\"", "null"})
        EXPECT_FALSE(reads({step(1, ordinal)})) << ordinal;
    EXPECT_FALSE(reads({step(1, "0"), step(2, "0")})) << "two steps, one difference";
    EXPECT_FALSE(reads({step(1, "0"), R"({"drop":1})", step(2, "0")})) << "that had one";
    EXPECT_FALSE(reads({step(1, "0"), step(1, "0", "step-1.1", R"(,"replaces":true)")}))
        << "of another attempt";
    // Places that lead out, or to what is no difference.
    for (const char* file : {"/x", "x", "../x", "..", "a/..", "a/../b", "a/b/c", "./manifest.jsonl", "./x",
                             "a/.", "a/", "/", "", "a\\u0000/b", "a/b\\u0000"}) {
        EXPECT_FALSE(reads({step(1, "0"), moved(file)})) << file;
    }
    // Differences that are not there.
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "1")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "4294967296")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "0.2")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "-0.2")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "0", "1")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "0", "4294967296")}));
    EXPECT_FALSE(reads({step(1, "0"), R"({"moved":[]})"}));
    EXPECT_FALSE(reads({step(1, "0"), R"({"gone":{},"moved":5})"}));
    EXPECT_FALSE(reads({step(1, "0"), R"({"child":7})"}));
}

}  // namespace
}  // namespace twinrun
