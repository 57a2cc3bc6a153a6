#include "history/history.hpp"
#include "history/journal_line.hpp"
#include "history/writer.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "engine/compare.hpp"
#include "support/faulty_file_system.hpp"
#include "support/session.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultyFileSystem;

class HistoryTest : public testing::FolderTest {
   protected:
    void SetUp() override {
        run_ = (folder_ / "run").string();
        values_.resize(5000);
        std::iota(values_.begin(), values_.end(), 0.5);
    }

    std::vector<CapturedField> fields() const {
        CapturedField x;
        x.name = "x";
        x.dtype = DType::f64;
        x.shape = {50, 100};
        x.data = values_.data();
        CapturedField scalar;
        scalar.name = "t";
        scalar.dtype = DType::f64;
        scalar.data = values_.data();
        return {x, scalar};
    }
    static HistorySettings settings() {
        HistorySettings s;
        s.tolerance.atol = 1e-6;
        return s;
    }
    // Every listed step reads back, checksums and values; returns the steps.
    std::vector<std::int64_t> check() const {
        std::vector<std::int64_t> steps;
        auto history = History::open(run_);
        EXPECT_TRUE(history) << history.error().message;
        if (!history) return steps;
        for (const HistoryStep& step : history->steps) {
            steps.push_back(step.step);
            for (const RankFiles& r : step.ranks) {
                const std::string path = (fs::path(run_) / step.folder / r.metadata).string();
                auto opened = MetadataFile::open(path);
                EXPECT_TRUE(opened) << opened.error().message;
                if (!opened) continue;
                MetadataFile& metadata = **opened;
                EXPECT_TRUE(metadata.check_data_files());
                for (std::size_t f = 0; f < metadata.directory().fields.size(); ++f) {
                    const FieldMetadata& field = metadata.directory().fields[f];
                    for (std::size_t s = 0; s < kSections; ++s) {
                        std::vector<std::byte> bytes(field.sections[s].length);
                        EXPECT_TRUE(metadata.read(f, static_cast<Section>(s), 0, bytes));
                    }
                    auto source = FileSource::create(field.dtype, field.byte_order, field.items(),
                                                     {{metadata.data_path(0), field.extents[0].offset,
                                                       field.extents[0].stride, field.extents[0].count}},
                                                     CacheUse::buffered);
                    EXPECT_TRUE(source);
                    MemorySource memory(field.dtype, field.items(), values_.data(), 8, false);
                    CompareOptions options;
                    const auto same =
                        compare_field({source->get(), nullptr, 0}, {&memory, nullptr, 0}, options);
                    EXPECT_TRUE(same && same.value().same());
                }
            }
        }
        return steps;
    }

    std::string run_;
    std::vector<double> values_;
};

TEST_F(HistoryTest, CapturesReadBack) {
    auto writer = testing::open_run(posix_file_system(), run_, settings());
    ASSERT_TRUE(writer) << writer.error().message;
    for (const std::int64_t step : {10, 20, -3})
        ASSERT_TRUE((*writer)->capture_fields(step, fields()));
    EXPECT_EQ(check(), (std::vector<std::int64_t>{-3, 10, 20}));
    const auto again = (*writer)->capture_fields(10, fields());
    ASSERT_FALSE(again);
    EXPECT_NE(again.error().message.find("captured already"), std::string::npos);
}

TEST_F(HistoryTest, ExistingHistoriesAreRefusedAppendedOrReplaced) {
    {
        auto writer = testing::open_run(posix_file_system(), run_, settings());
        ASSERT_TRUE((*writer)->capture_fields(1, fields()));
    }
    EXPECT_FALSE(testing::open_run(posix_file_system(), run_, settings()));
    {
        auto writer = testing::open_run(posix_file_system(), run_, settings(), Existing::append);
        ASSERT_TRUE(writer);
        ASSERT_TRUE((*writer)->capture_fields(2, fields()));
    }
    EXPECT_EQ(check(), (std::vector<std::int64_t>{1, 2}));
    HistorySettings other = settings();
    other.tolerance.atol = 1;
    EXPECT_FALSE(testing::open_run(posix_file_system(), run_, other, Existing::append));
    {
        auto writer = testing::open_run(posix_file_system(), run_, other, Existing::replace);
        ASSERT_TRUE(writer);
        ASSERT_TRUE((*writer)->capture_fields(7, fields()));
    }
    EXPECT_EQ(check(), std::vector<std::int64_t>{7});
}

// Every operation of a capture fails once, plainly or with the machine going down and losing what was not synced: the
// steps that were committed stay whole, no half step shows, and the next capture goes on.
TEST_F(HistoryTest, AnyFaultLeavesWholeSteps) {
    std::size_t operations = 0;
    {
        FaultyFileSystem system;
        auto writer = testing::open_run(system, run_, settings());
        ASSERT_TRUE((*writer)->capture_fields(1, fields()));
        system.inject({});
        ASSERT_TRUE((*writer)->capture_fields(2, fields()));
        operations = system.operations();
        fs::remove_all(run_);
    }
    ASSERT_GT(operations, 10U);
    for (const bool goes_down : {false, true}) {
        for (std::size_t at = 1; at <= operations; ++at) {
            SCOPED_TRACE((goes_down ? "power cut at operation " : "fault at operation ") +
                         std::to_string(at));
            FaultyFileSystem system;
            auto writer = testing::open_run(system, run_, settings());
            ASSERT_TRUE(writer);
            ASSERT_TRUE((*writer)->capture_fields(1, fields()));
            Fault fault;
            fault.at = at;
            fault.written_first = 100;
            fault.dead_after = goes_down;
            system.inject(fault);
            const bool captured = (*writer)->capture_fields(2, fields()).ok();
            if (goes_down) {
                writer->reset();
                system.power_cut(at % 5);
            } else {
                system.inject({});
            }
            auto steps = check();
            ASSERT_FALSE(steps.empty());
            EXPECT_EQ(steps[0], 1);
            if (captured) {
                EXPECT_EQ(steps.size(), 2U);
            }
            if (goes_down) {
                writer = testing::open_run(system, run_, settings(), Existing::append);
                ASSERT_TRUE(writer) << writer.error().message;
            }
            if (steps.size() == 1) {
                const auto again = (*writer)->capture_fields(2, fields());
                ASSERT_TRUE(again) << again.error().message;
            }
            ASSERT_TRUE((*writer)->capture_fields(3, fields()));
            EXPECT_EQ(check(), (std::vector<std::int64_t>{1, 2, 3}));
            fs::remove_all(run_);
        }
    }
}

TEST_F(HistoryTest, DamagedManifestsAreToldFromTornOnes) {
    {
        auto writer = testing::open_run(posix_file_system(), run_, settings());
        for (const std::int64_t step : {1, 2, 3})
            ASSERT_TRUE((*writer)->capture_fields(step, fields()));
    }
    const fs::path manifest = fs::path(run_) / "manifest.jsonl";
    std::string text;
    {
        std::ifstream in(manifest, std::ios::binary);
        text.assign(std::istreambuf_iterator<char>(in), {});
    }
    const auto write = [&](const std::string& content) {
        std::ofstream(manifest, std::ios::binary | std::ios::trunc) << content;
    };
    for (std::size_t size = 0; size < text.size();
         ++size) {  // torn anywhere: a prefix of the steps, or an error
        write(text.substr(0, size));
        const auto history = History::open(run_);
        if (size <= text.find('\n')) {
            ASSERT_FALSE(history);
            EXPECT_NE(history.error().message.find(size == 0 ? "manifest.jsonl: empty"
                                                             : "damaged: line 1: it is not complete"),
                      std::string::npos)
                << history.error().message;
            continue;
        }
        ASSERT_TRUE(history);
        EXPECT_EQ(history.value().torn, text[size - 1] != '\n');
        EXPECT_LE(history.value().steps.size(), 3U);
    }
    for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
        std::string flipped = text;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        write(flipped);
        const auto history = History::open(run_);
        // The end of the last line may turn into a torn line; anything else is an error.
        if (history) {
            EXPECT_EQ(bit / 8, text.size() - 1);
        }
    }
    write(text);
    EXPECT_EQ(History::open(run_).value().steps.size(), 3U);
}

// A place at which the system cannot look is not said to be there.
TEST_F(HistoryTest, APlaceThatCannotBeLookedUp) {
    fs::create_directories(run_);
    const fs::path circle = fs::path(run_) / "circle";
    fs::create_symlink("circle", circle);
    for (const fs::path& path : {fs::path(run_) / std::string(300, 'n'), circle / "run"}) {
        for (const Existing existing : {Existing::refuse, Existing::append, Existing::replace}) {
            const auto opened = testing::open_run(posix_file_system(), path.string(), settings(), existing);
            ASSERT_FALSE(opened);
            EXPECT_EQ(opened.error().code, ErrorCode::io);
            EXPECT_EQ(opened.error().message.find("is there"), std::string::npos) << opened.error().message;
            EXPECT_NE(opened.error().message.find("manifest.jsonl: cannot be looked up: "), std::string::npos)
                << opened.error().message;
        }
    }
}

// Other programs have files of this name: what is in one is not said to be empty, and stays as it is.
TEST_F(HistoryTest, AManifestOfAnotherProgramStays) {
    for (const std::string& content : {std::string("{\"shards\":12}"), std::string("{\"shards\":12}\n")}) {
        fs::create_directories(run_);
        const fs::path manifest = manifest_path(run_);
        std::ofstream(manifest, std::ios::binary) << content;
        for (const Existing existing : {Existing::refuse, Existing::append, Existing::replace}) {
            const auto opened = testing::open_run(posix_file_system(), run_, settings(), existing);
            ASSERT_FALSE(opened);
            EXPECT_EQ(opened.error().message.find("empty"), std::string::npos) << opened.error().message;
        }
        const auto read = History::open(run_);
        ASSERT_FALSE(read);
        EXPECT_NE(read.error().message.find("or move it away if it is not twinrun's"), std::string::npos)
            << read.error().message;
        std::ifstream in(manifest, std::ios::binary);
        EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), content);
        EXPECT_EQ(std::distance(fs::directory_iterator(run_), {}), 1);
        fs::remove_all(run_);
    }
}

// As Python and every file so far have it: a column-major array is stored as its transposed one.
TEST(PlanCaptured, ShapesAreStoredSlowestDimensionFirst) {
    CapturedField field;
    field.name = "x";
    field.shape = {3, 100};
    field.global_shape = {3, 400};
    field.global_offset = {0, 200};
    const auto row_major = plan_captured(field, {});
    field.order = ArrayOrder::column_major;
    const auto column_major = plan_captured(field, {});
    ASSERT_TRUE(row_major.ok() && column_major.ok());
    using Numbers = std::vector<std::uint64_t>;
    EXPECT_EQ(row_major->shape, (Numbers{3, 100}));
    EXPECT_EQ(column_major->shape, (Numbers{100, 3}));
    EXPECT_EQ(column_major->global_shape, (Numbers{400, 3}));
    EXPECT_EQ(column_major->global_offset, (Numbers{200, 0}));
    EXPECT_EQ(column_major->order, ArrayOrder::column_major);
}

TEST(HistoryLine, NamesAndPartsThatLeadOutAreRefused) {
    const fs::path run = fs::temp_directory_path() / ("twinrun_names_" + std::to_string(getpid()));
    fs::create_directories(run);
    const std::string header = seal_line(
        R"({"atol":0.0,"chunk_bytes":4096,"digest":"linear","keep_data":true,"residue_bits":4,"rtol":0.0,"twinrun_history":1})");
    for (const char* folder : {"..", "a/b", "."}) {
        const std::string step =
            seal_line(R"({"folder":")" + std::string(folder) + R"(","ranks":[],"step":1})");
        std::ofstream(run / "manifest.jsonl", std::ios::trunc) << header << "\n" << step << "\n";
        EXPECT_FALSE(History::open(run.string())) << folder;
    }
    // A part of a file of several ranks that is not in it, or has no file, or is a difference.
    const auto shared = [&](const std::string& keys) {
        const std::string step = seal_line(
            R"({"folder":"step-0000000001","ranks":[{)" + keys +
            R"("header_xxh3":"0000000000000000","metadata":"m","metadata_bytes":1,"rank":0}],"step":1})");
        std::ofstream(run / "manifest.jsonl", std::ios::trunc) << header << "\n" << step << "\n";
        return History::open(run.string());
    };
    const auto good = shared(R"("data":"group.data","data_bytes":4096,"file_bytes":12288,"offset":8192,)");
    ASSERT_TRUE(good) << good.error().message;
    const RankFiles& part = good->steps.at(0).ranks.at(0);
    EXPECT_TRUE(part.shared);
    EXPECT_EQ(part.offset, 8192U);
    EXPECT_EQ(part.file_bytes, 12288U);
    for (const char* keys :
         {R"("data":"group.data","data_bytes":4096,"file_bytes":12287,"offset":8192,)",
          R"("data":"group.data","data_bytes":18446744073709551615,"file_bytes":12288,"offset":8192,)",
          R"("data":"group.data","data_bytes":0,"file_bytes":8191,"offset":8192,)",
          R"("data":"group.data","data_bytes":4096,"offset":8192,)",
          R"("data":"group.data","data_bytes":4096,"file_bytes":12288,"offset":-1,)",
          R"("data":"","data_bytes":4096,"file_bytes":12288,"offset":8192,)",
          R"("data":"a","data_bytes":1,"difference":0,"full_bytes":1,"file_bytes":12288,"offset":8192,)"}) {
        EXPECT_FALSE(shared(keys)) << keys;
    }
    const std::string newer = seal_line(R"({"twinrun_history":99})");
    std::ofstream(run / "manifest.jsonl", std::ios::trunc) << newer << "\n";
    const auto opened = History::open(run.string());
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::unsupported);
    fs::remove_all(run);
}

}  // namespace
}  // namespace twinrun
