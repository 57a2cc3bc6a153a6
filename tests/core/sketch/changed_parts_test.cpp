// Data against the checksums of it that its metadata holds.
#include "sketch/changed_parts.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "sketch/build.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPart = kDataSumBytes / sizeof(double);  // items
constexpr std::size_t kItems = 4 * kPart + 5;                  // the last part has 5

class ChangedParts : public testing::FolderTest {
   protected:
    void SetUp() override {
        data_.resize(kItems);
        std::iota(data_.begin(), data_.end(), 0.0);
        metadata_ = index(data_);
    }
    void TearDown() override { metadata_.reset(); }

    [[nodiscard]] std::shared_ptr<MetadataFile> index(const std::vector<double>& data,
                                                      bool data_sums = true) const {
        FieldPlan plan;
        plan.name = "x";
        plan.dtype = DType::f64;
        plan.shape = {data.size()};
        Directory directory;
        directory.fields.push_back(plan_field(std::move(plan)).value());
        const std::string path = (fs::path(folder_) / "x.twm").string();
        auto writer = MetadataWriter::create(posix_file_system(), path, std::move(directory)).value();
        writer->may_replace();
        MemorySource source(DType::f64, data.size(), data.data(), sizeof(double), false);
        EXPECT_TRUE(build_field(*writer, 0, source, {}).ok());
        if (!data_sums)
            writer->directory().fields[0].sections[static_cast<std::size_t>(Section::data_sums)].length = 0;
        EXPECT_TRUE(writer->commit().ok());
        return MetadataFile::open(path).value();
    }

    [[nodiscard]] Result<std::vector<std::uint64_t>> changed(const std::vector<double>& data, int threads = 1,
                                                             std::size_t field = 0) const {
        MemorySource source(DType::f64, data.size(), data.data(), sizeof(double), false);
        StreamOptions options;
        options.threads = threads;
        return changed_parts(*metadata_, field, source, options);
    }

    std::vector<double> data_;
    std::shared_ptr<MetadataFile> metadata_;
};

using Parts = std::vector<std::uint64_t>;

TEST_F(ChangedParts, AreFoundWhereverTheyLie) {
    EXPECT_EQ(changed(data_).value(), Parts());
    struct Case {
        std::size_t item;
        std::uint64_t part;
    };
    for (const auto& [item, part] : std::array<Case, 7>{{{0, 0},
                                                         {kPart - 1, 0},
                                                         {kPart, 1},
                                                         {2 * kPart + 17, 2},
                                                         {4 * kPart - 1, 3},
                                                         {4 * kPart, 4},
                                                         {kItems - 1, 4}}}) {
        std::vector<double> other = data_;
        other[item] = std::nextafter(other[item], 1e300);
        for (const int threads : {1, 3})
            EXPECT_EQ(changed(other, threads).value(), Parts{part}) << item;
    }
    std::vector<double> other = data_;
    other[kItems - 1] = other[1] = other[3 * kPart] = -1;
    EXPECT_EQ(changed(other, 3).value(), (Parts{0, 3, 4}));
}

TEST_F(ChangedParts, OfNoItemsAreNone) {
    data_.clear();
    metadata_ = index(data_);
    EXPECT_EQ(changed(data_).value(), Parts());
}

TEST_F(ChangedParts, NeedDataSums) {
    metadata_ = index(data_, false);
    const auto result = changed(data_);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::stale);
    EXPECT_NE(result.error().message.find("index it again"), std::string::npos);
}

TEST_F(ChangedParts, OfOtherSizesAreRefused) {
    for (const std::size_t items : {kItems - 1, kItems + 1, std::size_t{0}}) {
        const auto result = changed(std::vector<double>(items));
        ASSERT_FALSE(result.ok()) << items;
        EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(result.error().message.find("'x'"), std::string::npos) << result.error().message;
    }
    EXPECT_EQ(changed(data_, 1, 1).error().code, ErrorCode::invalid_argument) << "no such field";
}

}  // namespace
}  // namespace twinrun
