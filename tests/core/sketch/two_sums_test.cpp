// Sums of digests of two runs that cut an array, or order their rows, in different ways.
#include "sketch/two_sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <vector>

#include "element/exact.hpp"
#include "sketch/build.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Random = std::mt19937_64;
using Values = std::vector<double>;

constexpr double kAtol = 1e-3;
constexpr unsigned kBits = 4;

FieldMetadata field_of(std::size_t items, unsigned bits = kBits) {
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = DType::f64;
    plan.shape = {items};
    plan.tolerance = {kAtol, 0};
    plan.residue_bits = bits;
    return plan_field(std::move(plan)).value();
}

BucketSums sums_of(const FieldMetadata& field, const Values& values, RowPlacement placement) {
    auto sums = PartialSums::plan(field.settings, DType::f64,
                                  std::make_shared<const RowPlacement>(std::move(placement)));
    EXPECT_TRUE(sums);
    sums->add(dense_view(DType::f64, values.data()), 0, values.size());
    return {sums->finish(), sums->height()};
}

// The sums of a line that some ranks hold a stretch of each.
std::vector<BucketSums> cut(const FieldMetadata& field, const Values& values,
                            const std::vector<std::size_t>& ends) {
    std::vector<BucketSums> parts;
    std::size_t begin = 0;
    const std::array<std::uint64_t, 1> whole{values.size()};
    for (const std::size_t end : ends) {
        const std::array<std::uint64_t, 1> shape{end - begin};
        const std::array<std::uint64_t, 1> offset{begin};
        parts.push_back(sums_of(field,
                                {values.begin() + static_cast<std::ptrdiff_t>(begin),
                                 values.begin() + static_cast<std::ptrdiff_t>(end)},
                                RowPlacement::of_box(shape, whole, offset, 1).value()));
        begin = end;
    }
    return parts;
}

std::vector<SumsOfPart> views(const std::vector<BucketSums>& parts) {
    std::vector<SumsOfPart> all;
    for (const BucketSums& part : parts)
        all.push_back({part.sums, part.height});
    return all;
}

TwoSums two(const FieldMetadata& field, const std::vector<BucketSums>& a, const std::vector<BucketSums>& b,
            const Tolerance& wanted = {kAtol, 0}) {
    return {field, wanted, views(a), views(b)};
}

// Of all scalars, one a byte.
std::vector<std::uint8_t> residues_of(const FieldMetadata& field, const Values& values) {
    MemorySource source(DType::f64, values.size(), values.data(), 8, false);
    BuiltField built;
    EXPECT_TRUE(build_in_memory(field, source, {}, built));
    std::vector<std::uint8_t> residues(values.size());
    unpack_residues(built.residues, 0, values.size(), kBits, field.chunking(), residues.data());
    return residues;
}

// Settles all open buckets of a line.
bool settle(TwoSums& sums, const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
    for (const Range& open : sums.open_scalars(a.size())) {
        for (std::uint64_t first = open.begin; first < open.end; first += sums.bucket_scalars()) {
            const std::uint64_t n = std::min(sums.bucket_scalars(), open.end - first);
            const std::array<std::uint64_t, 1> start{first};
            if (!sums.settle(start, n, std::span(a).subspan(first, n), std::span(b).subspan(first, n)))
                return false;
        }
    }
    return true;
}

Values random_values(std::size_t count, Random& random) {
    std::uniform_real_distribution<double> value(-2, 2);
    Values values;
    for (std::size_t i = 0; i < count; ++i)
        values.push_back(value(random));
    return values;
}

TEST(TwoSums, EqualValuesAreProvenHoweverTheyAreCut) {
    Random random(test_seed(1));
    const Values values = random_values(20'000, random);
    const FieldMetadata field = field_of(values.size());
    TwoSums sums = two(field, cut(field, values, {9000, 20'000}), cut(field, values, {3, 11'000, 20'000}));
    EXPECT_EQ(sums.count_open(), 0U);
    EXPECT_TRUE(sums.held_by_both());
    EXPECT_TRUE(sums.identical());
    EXPECT_EQ(sums.count(), (values.size() + sums.bucket_scalars() - 1) / sums.bucket_scalars());
    EXPECT_TRUE(sums.open_scalars(values.size()).empty());
    EXPECT_EQ(largest_unread(sums.proven(values.size()), sums.wanted()), sums.proven(0).coarse_cell);
}

TEST(TwoSums, TheBucketOfADifferenceStaysOpen) {
    Random random(test_seed(2));
    const Values a = random_values(20'000, random);
    const FieldMetadata field = field_of(a.size());
    const auto of_a = cut(field, a, {9000, 20'000});
    const std::vector<std::uint8_t> residues = residues_of(field, a);
    for (const std::size_t at : {std::size_t{0}, std::size_t{8999}, std::size_t{9000}, std::size_t{19'999}}) {
        Values b = a;
        b[at] += 1;
        TwoSums sums = two(field, of_a, cut(field, b, {11'000, 20'000}));
        EXPECT_FALSE(sums.identical());
        const std::uint64_t bucket = at / sums.bucket_scalars();
        const Range expected{bucket * sums.bucket_scalars(),
                             std::min<std::uint64_t>((bucket + 1) * sums.bucket_scalars(), a.size())};
        EXPECT_EQ(sums.open_scalars(a.size()), std::vector<Range>{expected});
        EXPECT_TRUE(settle(sums, residues, residues_of(field, b)));
        EXPECT_EQ(sums.open_scalars(a.size()), std::vector<Range>{expected}) << at;
    }
}

// The promise: of a bucket that is closed no pair of elements exceeds the tolerance, and the bound holds.
TEST(TwoSums, ClosedBucketsAgreeWithinTheTolerance) {
    Random random(test_seed(3));
    std::size_t by_tree = 0;
    std::size_t by_residues = 0;
    std::size_t open = 0;
    for (int round = 0; round < 40; ++round) {
        const Values a = random_values(6000 + random() % 9000, random);
        Values b = a;
        std::uniform_real_distribution<double> part(-1, 1);
        for (std::size_t at = a.size() / 3; at < a.size(); ++at) {
            // In some places further apart than the tolerance, by little.
            const bool far = at > 2 * a.size() / 3 && random() % 4000 == 0;
            b[at] += part(random) * kAtol * (far ? 1.2 : 0.45);
        }
        const FieldMetadata field = field_of(a.size());
        TwoSums sums = two(field, cut(field, a, {random() % a.size(), a.size()}),
                           cut(field, b, {random() % a.size(), a.size()}));
        std::uint64_t open_before = 0;
        for (const Range& range : sums.open_scalars(a.size()))
            open_before += range.size();
        by_tree += sums.count() - sums.count_open();
        const std::uint64_t left = sums.count_open();
        ASSERT_TRUE(settle(sums, residues_of(field, a), residues_of(field, b)));
        by_residues += left - sums.count_open();
        open += sums.count_open();
        std::vector<bool> is_open(a.size());
        for (const Range& range : sums.open_scalars(a.size()))
            std::fill(is_open.begin() + static_cast<std::ptrdiff_t>(range.begin),
                      is_open.begin() + static_cast<std::ptrdiff_t>(range.end), true);
        const ProvenDrift proven = sums.proven(a.size() - open_before);
        const double bound = largest_unread(proven, sums.wanted());
        std::uint64_t closed = 0;
        for (std::size_t at = 0; at < a.size(); ++at) {
            if (is_open[at]) continue;
            ++closed;
            ASSERT_FALSE(exceeds_exactly(a[at], b[at], {kAtol, 0})) << at;
            ASSERT_FALSE(exceeds_exactly(a[at], b[at], {bound, 0})) << at;
        }
        EXPECT_EQ(proven.scalars(), closed);
    }
    EXPECT_GT(by_tree, 0U);
    EXPECT_GT(by_residues, 0U);
    EXPECT_GT(open, 0U);
}

TEST(TwoSums, RowsByIdMayLieAnywhere) {
    Random random(test_seed(4));
    constexpr std::size_t kRows = 4000;
    constexpr std::uint64_t kWidth = 3;
    const Values values = random_values(kRows * kWidth, random);
    const FieldMetadata field = field_of(values.size());
    const auto in_parts = [&](const Values& of, std::size_t count) {
        std::vector<std::uint64_t> rows(kRows);
        std::iota(rows.begin(), rows.end(), 0);
        std::shuffle(rows.begin(), rows.end(), random);
        std::vector<BucketSums> parts;
        for (std::size_t part = 0; part < count; ++part) {
            std::vector<std::uint64_t> ids;
            Values own;
            for (std::size_t i = part; i < kRows; i += count) {
                ids.push_back(1000 + rows[i]);
                own.insert(own.end(), of.begin() + static_cast<std::ptrdiff_t>(rows[i] * kWidth),
                           of.begin() + static_cast<std::ptrdiff_t>((rows[i] + 1) * kWidth));
            }
            parts.push_back(sums_of(field, own, RowPlacement::of_ids(std::move(ids), kWidth).value()));
        }
        return parts;
    };
    const auto of_a = in_parts(values, 2);
    EXPECT_TRUE(two(field, of_a, in_parts(values, 5)).identical());
    Values other = values;
    other[77 * kWidth] += 1;
    const TwoSums sums = two(field, of_a, in_parts(other, 3));
    EXPECT_EQ(sums.count_open(), 1U);
    const std::array<std::uint64_t, 1> bucket{(1000 + 77) * id_stride(kWidth) / sums.bucket_scalars()};
    const auto at = sums.at(bucket);
    ASSERT_TRUE(at);
    EXPECT_EQ(sums.open()[at->front()], 1);
    EXPECT_TRUE(two(field, of_a, of_a).is_sum_of(views(in_parts(values, 1))));
    EXPECT_FALSE(two(field, of_a, of_a).is_sum_of(views(in_parts(other, 1))));
    const auto lower = in_parts(values, 1);
    EXPECT_FALSE(two(field, of_a, of_a).is_sum_of({}));
    const std::array<SumsOfPart, 1> higher{{{lower[0].sums, sums.height() + 1}}};
    EXPECT_FALSE(sums.is_sum_of(higher));
}

TEST(TwoSums, OnlyWhatIsKeptIsCompared) {
    Random random(test_seed(5));
    const Values a = random_values(20'000, random);
    Values b = a;
    for (const std::size_t at : {0U, 10'000U, 19'999U})
        b[at] += 1;
    const FieldMetadata field = field_of(a.size());
    TwoSums sums = two(field, cut(field, a, {20'000}), cut(field, b, {20'000}));
    EXPECT_EQ(sums.count_open(), 3U);
    const std::uint64_t size = sums.bucket_scalars();
    const std::uint64_t middle = 10'000 / size;
    const std::array<Range, 2> kept{{{0, 1}, {middle * size, (middle + 2) * size}}};
    sums.keep(kept);
    EXPECT_EQ(sums.count(), 3U);
    EXPECT_EQ(sums.count_open(), 2U);
    EXPECT_EQ(sums.open_scalars(a.size()),
              (std::vector<Range>{{0, size}, {middle * size, (middle + 1) * size}}));
    sums.keep({});
    EXPECT_EQ(sums.count(), 0U);
    EXPECT_EQ(sums.count_open(), 0U);
}

TEST(TwoSums, ElementsWhereARunHasNoSumsAreNoticed) {
    Random random(test_seed(6));
    const Values values = random_values(20'000, random);
    const FieldMetadata field = field_of(values.size());
    const auto whole = cut(field, values, {20'000});
    std::vector<BucketSums> lacking = whole;
    const std::uint64_t missing = lacking[0].sums.back().bucket;
    lacking[0].sums.pop_back();
    TwoSums sums = two(field, lacking, whole);
    EXPECT_FALSE(sums.held_by_both());
    EXPECT_FALSE(sums.identical());
    EXPECT_EQ(sums.count(), whole[0].sums.size());
    const std::array<std::uint64_t, 2> both{0, 0};
    EXPECT_EQ(sums.at(both), (std::vector<std::uint64_t>{0, 0}));
    const std::array<std::uint64_t, 1> one{missing};
    EXPECT_FALSE(sums.at(one));
    const std::array<std::uint64_t, 1> beyond{missing + 1};
    EXPECT_FALSE(sums.at(beyond));
    const std::vector<std::uint8_t> residues(sums.bucket_scalars());
    const std::array<std::uint64_t, 1> start{missing * sums.bucket_scalars()};
    EXPECT_FALSE(sums.settle(start, residues.size(), residues, residues));
}

TEST(TwoSums, ANarrowerToleranceIsNotProvenBySums) {
    Random random(test_seed(7));
    const Values values = random_values(20'000, random);
    const FieldMetadata field = field_of(values.size());
    const auto parts = cut(field, values, {20'000});
    const TwoSums narrow = two(field, parts, parts, {kAtol / 1000, 0});
    EXPECT_EQ(narrow.count_open(), narrow.count());  // equal coarse sums do not prove this
    EXPECT_FALSE(narrow.residues_help());
    const FieldMetadata without = field_of(values.size(), 0);
    EXPECT_FALSE(two(without, parts, parts).residues_help());
    EXPECT_TRUE(two(field, parts, parts).residues_help());
}

TEST(TwoSums, OfAWholeArrayAreItsDigests) {
    Random random(test_seed(8));
    const Values values = random_values(20'001, random);
    const FieldMetadata field = field_of(values.size());
    std::string name = (fs::temp_directory_path() / "twinrun-sums-XXXXXX").string();
    const fs::path folder = ::mkdtemp(name.data());
    Directory directory;
    directory.fields.push_back(field);
    const std::string path = (folder / "x.twm").string();
    auto writer = MetadataWriter::create(posix_file_system(), path, std::move(directory)).value();
    MemorySource source(DType::f64, values.size(), values.data(), 8, false);
    EXPECT_TRUE(build_field(*writer, 0, source, {}));
    EXPECT_TRUE(writer->commit());
    const auto file = MetadataFile::open(path).value();
    const auto whole = read_sums(*file, 0, true);
    ASSERT_TRUE(whole) << whole.error().message;
    EXPECT_EQ(whole->height, 0U);
    EXPECT_TRUE(two(field, {*whole}, cut(field, values, {7000, values.size()})).identical());
    EXPECT_FALSE(read_sums(*file, 0, false).ok() && !read_sums(*file, 0, false)->sums.empty());
    fs::remove_all(folder);
}

}  // namespace
}  // namespace twinrun
