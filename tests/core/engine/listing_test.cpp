#include "engine/listing.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/compare.hpp"
#include "support/fields.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

TEST(Listing, NamesWhatTheComparisonCounts) {
    std::mt19937_64 random(test_seed(7));
    std::normal_distribution<double> normal;
    for (const std::size_t n : {0UL, 1UL, 63UL, 64UL, 65UL, 1000UL, 5000UL}) {
        std::vector<double> a(n);
        std::vector<double> b(n);
        std::vector<std::uint64_t> expected;
        for (std::size_t i = 0; i < n; ++i) {
            a[i] = b[i] = normal(random);
            if (random() % 20 == 0) b[i] += 1;
            if (random() % 100 == 0) b[i] = std::numeric_limits<double>::quiet_NaN();
            if (!(std::fabs(a[i] - b[i]) <= 0.5)) expected.push_back(i);
        }
        const auto of_a = testing::memory_of(DType::f64, a);
        const auto of_b = testing::memory_of(DType::f64, b);
        const DifferenceRule rule{{0.5, 0}, true};
        const auto listed = differing_scalars(*of_a, *of_b, 0, n, rule);
        ASSERT_TRUE(listed);
        EXPECT_EQ(*listed, expected);
        CompareOptions options;
        options.rule = rule;
        options.method = Method::direct;
        const auto compared = compare_field({of_a.get()}, {of_b.get()}, options);
        ASSERT_TRUE(compared);
        EXPECT_EQ(compared->read.different, expected.size());
        // A window is the same list, cut.
        const auto half = differing_scalars(*of_a, *of_b, n / 2, n - n / 2, rule);
        ASSERT_TRUE(half);
        std::erase_if(expected, [&](std::uint64_t at) { return at < n / 2; });
        EXPECT_EQ(*half, expected);
    }
}

TEST(Listing, RefusesWhatDoesNotFit) {
    const std::vector<float> a(10);
    const std::vector<float> b(9);
    const auto of_a = testing::memory_of(DType::f32, a);
    const auto of_b = testing::memory_of(DType::f32, b);
    EXPECT_EQ(differing_scalars(*of_a, *of_b, 0, 5, {}).error().code, ErrorCode::mismatch);
    EXPECT_EQ(differing_scalars(*of_a, *of_a, 6, 5, {}).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(differing_scalars(*of_a, *of_a, 0, ~0ULL, {}).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(differing_scalars(*of_a, *of_a, ~0ULL, 2, {}).error().code, ErrorCode::invalid_argument);
}

TEST(Measures, UlpsCountValuesOfTheType) {
    EXPECT_EQ(ulps_apart(DType::f64, 0.0, -0.0), 0U);
    EXPECT_EQ(ulps_apart(DType::f64, 1.0, std::nextafter(1.0, 2.0)), 1U);
    EXPECT_EQ(ulps_apart(DType::f64, -5e-324, 5e-324), 2U);
    EXPECT_EQ(ulps_apart(DType::f32, 1.0, 1.0 + 0x1p-22), 2U);
    EXPECT_EQ(ulps_apart(DType::bf16, 1.0, 1.0 + 0x1p-7), 1U);
    EXPECT_EQ(ulps_apart(DType::f16, 0.0, 0x1p-24), 1U);
    EXPECT_EQ(ulps_apart(DType::f16, 0x1p-14, 0x1p-14 - 0x1p-24), 1U);
    EXPECT_EQ(ulps_apart(DType::f64, -std::numeric_limits<double>::max(), std::numeric_limits<double>::max()),
              2 * 0x7FEFFFFFFFFFFFFFULL);
}

TEST(Measures, APeriodMustBeALength) {
    const std::vector<double> a(4);
    const auto of_a = testing::memory_of(DType::f64, a);
    CompareOptions options;
    options.method = Method::direct;
    for (const double wrong : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
        options.rule.measure.period = {wrong};
        EXPECT_EQ(compare_field({of_a.get()}, {of_a.get()}, options).error().code,
                  ErrorCode::invalid_argument);
    }
}

}  // namespace
}  // namespace twinrun
