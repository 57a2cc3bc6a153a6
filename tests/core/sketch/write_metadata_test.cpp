// A metadata file for data that lie elsewhere: written whole, or not at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <vector>

#include "metadata/verify.hpp"
#include "sketch/build.hpp"
#include "sketch/changed_parts.hpp"
#include "support/faulty_file_system.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::FaultyFileSystem;

constexpr std::size_t kNumbers = 20'000;

class WriteMetadata : public testing::FolderTest {
   protected:
    void SetUp() override {
        path_ = (folder_ / "data.twm").string();
        std::iota(numbers_.begin(), numbers_.end(), 0.5);
        ids_ = std::make_shared<std::vector<std::uint64_t>>(numbers_.size());
        std::iota(ids_->begin(), ids_->end(), 100);
    }

    static FieldPlan plan_of(const std::string& name, std::uint64_t items) {
        FieldPlan plan;
        plan.name = name;
        plan.dtype = DType::f64;
        plan.shape = {items};
        plan.extents = {{0, 0, 8, items}};
        return plan;
    }
    Result<std::uint64_t> write(FileSystem& system, bool durable = true, double atol = 1e-3,
                                const StreamOptions& options = {}) {
        Directory facts;
        facts.step = 7;
        facts.rank = 3;
        facts.status = 5;
        facts.data_files = {{"data", {numbers_.size() * 8, 11}}};
        std::vector<FieldToWrite> fields;
        fields.push_back({plan_of("x", numbers_.size()), &all_, nullptr});
        fields.push_back({plan_of("y", 10), &few_, nullptr});
        fields.push_back({plan_of("z", numbers_.size()), &all_, ids_});
        for (FieldToWrite& field : fields)
            field.plan.tolerance = {atol, 0};
        fields.back().plan.key = "id";
        return write_metadata(system, path_, std::move(facts), std::move(fields), options, durable);
    }
    [[nodiscard]] std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(folder_))
            names.push_back(entry.path().filename().string());
        return names;
    }

    std::string path_;
    std::vector<double> numbers_ = std::vector<double>(kNumbers);
    std::shared_ptr<std::vector<std::uint64_t>> ids_;
    MemorySource all_{DType::f64, kNumbers, numbers_.data(), 8, false};
    MemorySource few_{DType::f64, 10, numbers_.data(), 8, false};
};

TEST_F(WriteMetadata, AnInterruptDuringTheLastReadsLeavesNoFile) {
    StreamOptions options;
    options.threads = 2;
    // The reads end before any poll of theirs is due.
    options.poll = [](std::uint64_t, std::uint64_t) { return false; };
    const auto result = write(posix_file_system(), true, 1e-3, options);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::interrupted);
    EXPECT_TRUE(files().empty());
}

TEST_F(WriteMetadata, HoldsEveryFieldAndWhereItsDataLie) {
    for (const bool durable : {true, false}) {
        const auto read = write(posix_file_system(), durable);
        ASSERT_TRUE(read) << read.error().message;
        const auto file = MetadataFile::open(path_).value();
        const Directory& directory = file->directory();
        EXPECT_EQ(directory.step, 7);
        EXPECT_EQ(directory.rank, 3U);
        EXPECT_EQ(directory.status, 5U);
        ASSERT_EQ(directory.data_files.size(), 1U);
        EXPECT_EQ(directory.data_files[0].stamp.mtime_ns, 11);
        ASSERT_EQ(directory.fields.size(), 3U);
        EXPECT_EQ(directory.fields[0].name, "x");
        EXPECT_EQ(directory.fields[1].items(), 10U);
        EXPECT_EQ(directory.fields[2].key, "id");
        EXPECT_EQ(directory.fields[2].sums.kind, SumsKind::ids);
        EXPECT_EQ(directory.fields[2].sums.smallest_id, 100U);
        EXPECT_EQ(directory.fields[0].sums.kind, SumsKind::none);
        EXPECT_TRUE(verify(*file));
        for (const std::size_t field : {0U, 2U})
            EXPECT_TRUE(changed_parts(*file, field, all_, {}).value().empty());
        EXPECT_EQ(files(), std::vector<std::string>{"data.twm"});
    }
}

TEST_F(WriteMetadata, SyncsOnlyWhatMustSurvive) {
    const auto syncs = [&](bool durable) {
        FaultyFileSystem system;
        EXPECT_TRUE(write(system, durable));
        const std::vector<std::string> log = system.log();
        return std::ranges::count_if(log, [](const std::string& line) { return line.starts_with("sync"); });
    };
    EXPECT_GE(syncs(true), 2);  // the file and its folder
    EXPECT_EQ(syncs(false), 0);
}

TEST_F(WriteMetadata, WhateverFailsLeavesWhatWasThere) {
    ASSERT_TRUE(write(posix_file_system()));
    std::size_t failed = 0;
    for (std::size_t at = 1;; ++at) {
        FaultyFileSystem system;
        system.inject({at});
        const auto read = write(system, true, 0.5);
        const auto file = MetadataFile::open(path_);
        ASSERT_TRUE(file) << "operation " << at << ": " << file.error().message;
        EXPECT_TRUE(verify(**file)) << "operation " << at;
        ASSERT_EQ((*file)->directory().fields.size(), 3U);
        const double atol = (*file)->directory().fields[0].settings.tolerance.atol;
        EXPECT_TRUE(atol == 0.5 || (!read && atol == 1e-3)) << "operation " << at;
        if (read) break;
        ++failed;
    }
    EXPECT_GT(failed, 3U);
}

TEST_F(WriteMetadata, AFieldThatCannotBePlannedWritesNothing) {
    const auto read = write(posix_file_system(), true, -1);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(files().empty());
}

}  // namespace
}  // namespace twinrun
