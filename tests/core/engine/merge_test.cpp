#include "engine/merge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "sketch/build.hpp"
#include "support/field_results.hpp"
#include "support/fields.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Result<FieldResult> joined(const std::vector<FieldResult>& parts, const ColumnOrder& order = {}) {
    std::vector<const FieldResult*> pointers;
    for (const FieldResult& part : parts)
        pointers.push_back(&part);
    return merged(pointers, order);
}

// What does not depend on which of the undecided elements were read.
void expect_same_verdict(const FieldResult& found, const FieldResult& whole) {
    EXPECT_EQ(found.method, whole.method);
    EXPECT_EQ(found.scalars, whole.scalars);
    EXPECT_EQ(found.chunks, whole.chunks);
    EXPECT_EQ(found.read.different, whole.read.different);
    EXPECT_EQ(found.read.infinite, whole.read.infinite);
    EXPECT_EQ(found.read.first, whole.read.first);
    EXPECT_EQ(found.first_bits_a, whole.first_bits_a);
    EXPECT_EQ(found.first_bits_b, whole.first_bits_b);
    EXPECT_EQ(found.read.max_rel_different, whole.read.max_rel_different);
    EXPECT_EQ(found.read.max_rel_different_at, whole.read.max_rel_different_at);
    EXPECT_EQ(found.read.over, whole.read.over);
    testing::expect_same_stage(found.tree, whole.tree);
    EXPECT_EQ(found.proven.by_tree, whole.proven.by_tree);
    EXPECT_EQ(found.read.scalars + found.proven.scalars(), found.scalars);
    EXPECT_NEAR(found.read.sum_squares_different, whole.read.sum_squares_different,
                1e-12 * whole.read.sum_squares_different);
}

void expect_same(const FieldResult& found, const FieldResult& whole) {
    expect_same_verdict(found, whole);
    testing::expect_same_read(found.read, whole.read, 1e-12);
    testing::expect_same_proof(found, whole);
    testing::expect_same_values(found, whole);
    testing::expect_same_stage(found.elements, whole.elements);
    EXPECT_EQ(found.warnings, whole.warnings);
}

// Two arrays that differ here and there, by much and by little, and their metadata.
class Runs {
   public:
    Runs(const testing::TestFolder& folder, std::size_t items, bool indexed, unsigned residue_bits,
         Random& random) {
        std::uniform_real_distribution<double> value(-2, 2);
        for (std::size_t i = 0; i < items; ++i)
            a.push_back(value(random));
        b = a;
        const std::array<double, 8> odd{0.0, 1e-5, 1e-3, -1e-3, 0.5, 1e9, INFINITY, kNaN};
        for (std::size_t n = items / 40; n != 0; --n) {  // the first third is the same
            const std::size_t at = items / 3 + random() % (items - items / 3);
            b[at] = random() % 8 == 0 ? odd[random() % odd.size()] : a[at] + odd[random() % odd.size()];
        }
        for (const std::vector<double>* values : {&a, &b}) {
            sources.push_back(testing::memory_of(DType::f64, *values));
            if (!indexed) continue;
            FieldPlan plan = testing::plan_of(DType::f64, items);
            plan.residue_bits = residue_bits;
            metadata.push_back(testing::index_field(folder.path("x.twm"), *sources.back(), std::move(plan)));
        }
        if (!indexed) metadata.resize(2);
    }

    [[nodiscard]] FieldResult compare(const CompareOptions& options) const {
        const FieldSide side_a{sources[0].get(), metadata[0].get(), 0};
        const FieldSide side_b{sources[1].get(), metadata[1].get(), 0};
        auto found = compare_field(side_a, side_b, options);
        EXPECT_TRUE(found) << found.error().message;
        return std::move(found).value();
    }
    [[nodiscard]] std::uint64_t unit() const {
        return range_unit(DType::f64, metadata[0] ? &metadata[0]->directory().fields[0] : nullptr);
    }

    std::vector<double> a, b;
    std::vector<std::unique_ptr<MemorySource>> sources;
    std::vector<std::shared_ptr<MetadataFile>> metadata;
};

// Disjoint parts of a field, each some ranges of it.
std::vector<std::vector<Range>> divided(std::uint64_t scalars, std::uint64_t unit, Random& random) {
    std::vector<std::vector<Range>> parts(1 + random() % 4);
    for (std::uint64_t begin = 0; begin < scalars;) {
        const std::uint64_t end = std::min(scalars, begin + unit * (1 + random() % 9));
        parts[random() % parts.size()].push_back({begin, end});
        begin = end;
    }
    std::erase_if(parts, [](const std::vector<Range>& part) { return part.empty(); });
    std::shuffle(parts.begin(), parts.end(), random);
    return parts;
}

class MergeTest : public ::testing::Test {
   protected:
    // In any order and in groups, the parts of a field are the field.
    template <class Expect>
    void check(const Runs& runs, CompareOptions options, Random& random, const Expect& expect) {
        const FieldResult whole = runs.compare(options);
        EXPECT_GT(whole.read.different, 0U);
        const ColumnOrder order(options.columns, 1);
        for (int round = 0; round < 6; ++round) {
            std::vector<FieldResult> parts;
            for (std::vector<Range>& ranges : divided(runs.a.size(), runs.unit(), random)) {
                options.ranges = std::move(ranges);
                parts.push_back(runs.compare(options));
            }
            expect(joined(parts, order).value(), whole);
            while (parts.size() > 1) {  // two at a time
                const FieldResult pair = joined({parts.back(), parts.front()}, order).value();
                parts.pop_back();
                parts.front() = pair;
                std::shuffle(parts.begin(), parts.end(), random);
            }
            expect(parts.front(), whole);
        }
    }

    testing::TestFolder folder_;
};

TEST_F(MergeTest, RangesOfElementsAreTheWhole) {
    Random random(test_seed(1));
    for (const std::size_t items : {std::size_t{600}, std::size_t{5000}, std::size_t{40'000}}) {
        const Runs runs(folder_, items, false, 0, random);
        CompareOptions options;
        for (const DifferenceRule& rule : {DifferenceRule{{1e-3, 0}}, DifferenceRule{{0, 1e-6}, false}}) {
            options.rule = rule;
            check(runs, options, random, expect_same);
        }
    }
}

TEST_F(MergeTest, RangesOfColumnsAreTheWhole) {
    Random random(test_seed(2));
    const Runs runs(folder_, std::size_t{96} * 240, false, 0, random);
    CompareOptions options;
    options.rule = {{1e-3, 0}};
    for (const std::vector<std::uint64_t>& columns : {std::vector<std::uint64_t>{96, 240}, {240, 4, 24}}) {
        options.columns = columns;
        check(runs, options, random, expect_same);
    }
}

TEST_F(MergeTest, RangesThatTheTreeDecidesAreTheWhole) {
    Random random(test_seed(3));
    const Runs runs(folder_, 50'000, true, 0, random);
    CompareOptions options;
    options.rule = {{1e-3, 0}};
    check(runs, options, random, expect_same);
}

// Sketches of few chunks are not worth reading, so it depends on the ranges which elements are read. The verdict does not.
TEST_F(MergeTest, RangesThatResiduesDecideHaveTheSameVerdict) {
    Random random(test_seed(4));
    const Runs runs(folder_, 150'000, true, 4, random);
    CompareOptions options;
    options.rule = {{1e-3, 0}};
    double largest = 0;
    for (std::size_t i = 0; i < runs.a.size(); ++i) {
        const double d = std::fabs(runs.a[i] - runs.b[i]);
        if (std::isfinite(d)) largest = std::max(largest, d);
    }
    check(runs, options, random, [&](const FieldResult& found, const FieldResult& whole) {
        expect_same_verdict(found, whole);
        EXPECT_GE(found.max_abs, largest);
    });
}

// A result as a comparison of the scalars that are `own` modulo 5 may give it, with ties between parts.
FieldResult any_result(std::uint64_t own, Random& random) {
    const auto place = [&] { return 5 * (random() % 100) + own; };
    const std::array<double, 4> sizes{0, 1, 2, INFINITY};
    FieldResult r;
    r.method = Method::staged;
    r.reason = random() % 2 == 0 ? "" : "because";
    r.io = std::array{"", "none", "pread"}[random() % 3];
    r.device = std::array{"cpu", "cuda:0", "cpu, cuda:1"}[random() % 3];
    r.device_reason = "why " + std::to_string(own);
    r.device_seconds = static_cast<double>(random() % 8);
    r.scalars = 100 + random() % 9;
    r.chunks = random() % 9;
    r.read.scalars = random() % 100;
    r.read.different = random() % 3;
    if (r.read.different != 0) {
        r.read.first = place();
        r.first_bits_a = random();
        r.first_bits_b = random();
        r.read.max_rel_different = sizes[1 + random() % 3];
        r.read.max_rel_different_at = place();
    }
    r.read.max_abs = sizes[random() % 4];
    r.read.max_rel = sizes[random() % 4];
    if (r.read.max_abs > 0) {
        r.read.max_abs_at = place();
        r.max_bits_a = random();
        r.max_bits_b = random();
    }
    if (r.read.max_rel > 0) r.read.max_rel_at = place();
    r.read.largest = static_cast<double>(10 * (random() % 20) + own);
    r.warnings = {"of " + std::to_string(own)};
    r.read.sum_squares = static_cast<double>(random() % 100);
    r.read.all[random() % kHistogramBins] = random() % 9;
    r.read.over[random() % kHistogramBins] = random() % 9;
    r.proven = {random() % 9, {random() % 9, random() % 9}, 0.5, 2};
    r.max_abs_unread = std::array{0.0, 1.5, 1.75, kNaN}[random() % 4];
    if (random() % 4 == 0) {
        r.unread_different = 1 + random() % 3;
        r.unread_begin = place();
        r.unread_end = r.unread_begin + 1 + random() % 4;
        r.max_abs_unread = kNaN;
    }
    r.tree = {true, random() % 9, random() % 9, random() % 9, 1};
    r.sketch = {random() % 2 == 0, random() % 9, random() % 9, random() % 9, 2};
    r.elements = {random() % 2 == 0, random() % 9, random() % 9, random() % 9, 4};
    return r;
}

TEST(Merging, DoesNotDependOnTheOrderOfParts) {
    Random random(test_seed(5));
    for (int round = 0; round < 300; ++round) {
        std::vector<FieldResult> parts;
        for (std::uint64_t own = 0; own < 4; ++own)
            parts.push_back(any_result(own, random));
        const FieldResult whole = joined(parts).value();
        std::shuffle(parts.begin(), parts.end(), random);
        const FieldResult once = joined(parts).value();
        const FieldResult twice =
            joined({joined({parts[0], parts[1]}).value(), joined({parts[2], parts[3]}).value()}).value();
        for (const FieldResult& found : {once, twice}) {
            EXPECT_EQ(found.read.first, whole.read.first);
            EXPECT_EQ(found.first_bits_a, whole.first_bits_a);
            EXPECT_EQ(found.first_bits_b, whole.first_bits_b);
            EXPECT_EQ(found.read.max_abs, whole.read.max_abs);
            EXPECT_EQ(found.read.max_abs_at, whole.read.max_abs_at);
            EXPECT_EQ(found.max_bits_a, whole.max_bits_a);
            EXPECT_EQ(found.max_bits_b, whole.max_bits_b);
            EXPECT_EQ(found.read.max_rel, whole.read.max_rel);
            EXPECT_EQ(found.read.max_rel_at, whole.read.max_rel_at);
            EXPECT_EQ(found.read.max_rel_different, whole.read.max_rel_different);
            EXPECT_EQ(found.read.max_rel_different_at, whole.read.max_rel_different_at);
            EXPECT_EQ(found.read.largest, whole.read.largest);
            EXPECT_EQ(found.warnings, whole.warnings);
            EXPECT_EQ(found.reason, whole.reason);
            EXPECT_EQ(found.device, whole.device);
            EXPECT_EQ(found.read.all, whole.read.all);
            EXPECT_EQ(found.read.over, whole.read.over);
            EXPECT_EQ(found.read.sum_squares, whole.read.sum_squares);  // whole numbers
            EXPECT_EQ(found.scalars, whole.scalars);
            EXPECT_EQ(found.unread_different, whole.unread_different);
            EXPECT_EQ(found.unread_begin, whole.unread_begin);
            EXPECT_EQ(found.unread_end, whole.unread_end);
            EXPECT_EQ(found.proven.by_tree, whole.proven.by_tree);
            EXPECT_EQ(found.proven.by_cells, whole.proven.by_cells);
            EXPECT_EQ(found.max_abs_is_bound, whole.max_abs_is_bound);
            EXPECT_TRUE(found.max_abs == whole.max_abs ||
                        (std::isnan(found.max_abs) && std::isnan(whole.max_abs)));
            EXPECT_EQ(found.elements.ran, whole.elements.ran);
            EXPECT_EQ(found.sketch.bytes_read, whole.sketch.bytes_read);
            EXPECT_EQ(found.tree.seconds, 4);
        }
    }
}

TEST(Merging, BoundsMergeLikeWhatTheyBound) {
    for (const double read : {0.0, 1.0, 2.0, static_cast<double>(INFINITY)}) {
        for (const double unread : {0.0, 1.0, 2.0, kNaN}) {
            std::vector<FieldResult> parts(3);
            parts[0].read.max_abs = read;
            parts[1].max_abs_unread = unread;
            parts[2].read.max_abs = 0.5;
            parts[2].max_abs_unread = 0.25;
            do {
                const FieldResult whole = joined(parts).value();
                const double most = std::max(read, 0.5);
                if (std::isnan(unread)) {
                    EXPECT_TRUE(whole.max_abs_is_bound);
                    EXPECT_TRUE(std::isinf(most) ? std::isinf(whole.max_abs) : std::isnan(whole.max_abs));
                } else {
                    EXPECT_EQ(whole.max_abs_is_bound, unread > most);
                    EXPECT_EQ(whole.max_abs, std::max(unread, most));
                }
                std::rotate(parts.begin(), parts.begin() + 1, parts.end());
            } while (parts[0].read.max_abs != read);
        }
    }
}

TEST(Merging, KeepsTheWordsThatSayMost) {
    std::vector<FieldResult> parts(3);
    parts[0].device_reason = "nothing was left to choose a device for";
    parts[0].io = "none";
    parts[1].device_reason = "small";
    parts[1].elements.ran = true;
    parts[1].io = "pread";
    parts[1].reason = "no metadata at hand";
    parts[1].read.largest = 3;
    parts[1].warnings = {"wide"};
    parts[2].device = "cuda:0";
    parts[2].device_reason = "large";
    parts[2].elements.ran = true;
    parts[2].io = "uring";
    parts[2].read.largest = 2;
    parts[2].warnings = {"narrow"};
    const FieldResult whole = joined(parts).value();
    EXPECT_EQ(whole.device, "cpu, cuda:0");
    EXPECT_EQ(whole.device_reason, "large");
    EXPECT_EQ(whole.io, "pread");
    EXPECT_EQ(whole.reason, "no metadata at hand");
    EXPECT_EQ(whole.warnings, std::vector<std::string>{"wide"});
    EXPECT_EQ(joined({parts[0], parts[1]}).value().device_reason, "small");
    EXPECT_EQ(joined({parts[0], parts[0]}).value().device_reason, parts[0].device_reason);
    EXPECT_EQ(joined({parts[0], parts[0]}).value().io, "none");
    EXPECT_EQ(joined({whole, parts[2]}).value().device, "cpu, cuda:0");
}

TEST(Merging, RefusesWhatDoesNotBelongTogether) {
    FieldResult one;
    FieldResult other = one;
    other.method = Method::staged;
    EXPECT_EQ(joined({one, other}).error().code, ErrorCode::internal);
    other = one;
    other.proven.cell = 0.5;
    EXPECT_FALSE(joined({one, other}));
    EXPECT_FALSE(joined({}));
    EXPECT_TRUE(joined({other}));
}

TEST(Renumbering, MovesThePlacesThatThereAre) {
    FieldResult r;
    r.read.first = 3;
    r.read.max_rel_at = 5;
    const FieldResult moved = renumbered(r, [](std::uint64_t at) { return at + 10; });
    EXPECT_EQ(moved.read.first, 13U);
    EXPECT_EQ(moved.read.max_rel_at, 15U);
    EXPECT_EQ(moved.read.max_abs_at, kNowhere);
    EXPECT_EQ(moved.read.max_rel_different_at, kNowhere);
}

TEST(ResultOfKeys, CountsThoseWithoutAPartner) {
    const FieldResult alike = result_of_keys(7, 0);
    EXPECT_TRUE(alike.same());
    EXPECT_EQ(alike.scalars, 7U);
    EXPECT_EQ(alike.max_abs, 0);
    EXPECT_EQ(alike.read.first, kNowhere);
    EXPECT_EQ(alike.read.all.front(), 7U);
    const FieldResult others = result_of_keys(7, 2);
    EXPECT_EQ(others.scalars, 9U);
    EXPECT_EQ(others.read.different, 2U);
    EXPECT_EQ(others.read.infinite, 2U);
    EXPECT_EQ(others.read.over.back(), 2U);
    EXPECT_EQ(std::accumulate(others.read.all.begin(), others.read.all.end(), std::uint64_t{0}), 9U);
    EXPECT_TRUE(std::isinf(others.max_abs) && !others.max_abs_is_bound);
    EXPECT_EQ(others.read.first, 0U);
}

}  // namespace
}  // namespace twinrun
