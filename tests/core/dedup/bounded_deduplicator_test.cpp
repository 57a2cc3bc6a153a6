// Deduplication within an error bound: errors do not add up, and what is stored again had to be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dedup/deduplicator.hpp"
#include "support/dedup.hpp"
#include "support/record.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::bytes_of;
using testing::ModelRecord;
using testing::options_for;
using testing::RecordBytes;
using testing::TestImage;

template <class T>
long double distance(T a, T b) {
    if (a == b) return 0;
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) && std::isnan(b)) return 0;
        if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<long double>::infinity();
    }
    const long double d = static_cast<long double>(a) - static_cast<long double>(b);
    return d < 0 ? -d : d;
}

struct Drift {
    std::uint64_t stored = 0;
    std::uint64_t seen = 0;
};

// Steps that drift: each one within eps of what is restored, and a chunk is stored again exactly when it would not be.
template <class T, class Change>
void drift(RecordMethod method, DType dtype, double eps, std::vector<T> values, int steps, Change change,
           Drift& facts, unsigned shift = 0) {
    constexpr std::uint32_t kChunk = 64;
    DedupOptions options = options_for(method, kChunk);
    options.keep_base = true;
    options.slice_chunks = 16;
    options.threads = 2;
    ModelRecord record(options);
    DifferenceRule rule;
    rule.tolerance.atol = eps;
    std::vector<T> restored;
    for (int step = 0; step < steps; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        TestImage image = {{"x", bytes_of(values), shift, rule, dtype}};
        const auto outcome = record.add(image);
        ASSERT_TRUE(outcome.ok()) << outcome.error().message;
        const std::vector<T> before = restored;
        const RecordBytes bytes = record.restore(record.last())[0].bytes;
        restored.resize(values.size());
        ASSERT_EQ(bytes.size(), values.size() * sizeof(T));
        std::memcpy(restored.data(), bytes.data(), bytes.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_LE(distance(values[i], restored[i]), static_cast<long double>(eps)) << "element " << i;
        }
        if (step == 0) {
            ASSERT_EQ(bytes, image[0].bytes);
        } else {
            std::uint64_t needed = 0;
            constexpr std::size_t kItems = kChunk / sizeof(T);
            for (std::size_t first = 0; first < values.size(); first += kItems) {
                bool beyond = false;
                for (std::size_t i = first; i < std::min(values.size(), first + kItems); ++i)
                    beyond = beyond || distance(values[i], before[i]) > static_cast<long double>(eps);
                needed += beyond ? 1 : 0;
                // A chunk that is stored again is stored as it is.
                for (std::size_t i = first; beyond && i < std::min(values.size(), first + kItems); ++i)
                    ASSERT_EQ(std::memcmp(&values[i], &restored[i], sizeof(T)), 0);
            }
            ASSERT_EQ(outcome->changed, needed);
            facts.stored += needed;
            facts.seen += divide_up(values.size(), kItems);
        }
        change(values);
    }
}

class Bounded : public ::testing::TestWithParam<RecordMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, Bounded,
                         ::testing::Values(RecordMethod::basic, RecordMethod::list, RecordMethod::tree,
                                           RecordMethod::runs),
                         [](const auto& each) { return std::string(method_name(each.param)); });

TEST_P(Bounded, NeverAccumulatesInF64) {
    std::mt19937_64 random(test_seed(47));
    std::vector<double> start(203);
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (double& value : start)
        value = uniform(random);
    Drift facts;
    // 0.3 of the bound a step: three steps are within, the fourth is not.
    drift<double>(
        GetParam(), DType::f64, 1e-3, start, 200,
        [&](std::vector<double>& values) {
            for (double& value : values)
                value += 0.3e-3;
        },
        facts);
    EXPECT_LT(facts.stored, facts.seen / 3);
    EXPECT_GT(facts.stored, facts.seen / 5);
}

TEST_P(Bounded, NeverAccumulatesInF32OfAnyAlignment) {
    std::mt19937_64 random(test_seed(53));
    std::uniform_real_distribution<float> uniform(-100, 100);
    for (const unsigned shift : {0U, 1U, 2U, 5U}) {
        std::vector<float> start(333);
        for (float& value : start)
            value = uniform(random);
        Drift facts;
        drift<float>(
            GetParam(), DType::f32, 0.01, start, 200,
            [&](std::vector<float>& values) {
                for (std::size_t i = 0; i < values.size(); ++i)
                    values[i] +=
                        static_cast<float>(i % 32 == 0 ? 0.004 : 0.0001) * (random() % 3 == 0 ? 1.0F : 0.5F);
            },
            facts, shift);
        EXPECT_GT(facts.stored, 0U);
        EXPECT_LT(facts.stored, facts.seen);
        if (HasFailure()) return;
    }
}

TEST_P(Bounded, Integers) {
    std::mt19937_64 random(test_seed(59));
    const auto up = [&](auto& values) {
        for (auto& value : values)
            value =
                static_cast<std::remove_reference_t<decltype(value)>>(value + (random() % 4 == 0 ? 1 : 0));
    };
    Drift facts;
    drift<std::int32_t>(GetParam(), DType::i32, 3, std::vector<std::int32_t>(97, -5), 60, up, facts);
    drift<std::uint8_t>(GetParam(), DType::u8, 2, std::vector<std::uint8_t>(200, 250), 60, up, facts,
                        3);  // wraps
    drift<std::int16_t>(GetParam(), DType::i16, 2, std::vector<std::int16_t>(97, 3), 60, up, facts, 1);
    // Beyond what a float64 holds.
    drift<std::int64_t>(GetParam(), DType::i64, 3, std::vector<std::int64_t>(41, (std::int64_t{1} << 60) + 1),
                        60, up, facts, 4);
    drift<std::uint64_t>(GetParam(), DType::u64, 3, std::vector<std::uint64_t>(41, ~std::uint64_t{0} - 100),
                         60, up, facts);
    EXPECT_GT(facts.stored, 0U);
    EXPECT_LT(facts.stored, facts.seen);
}

TEST_P(Bounded, NotANumberAndInfinity) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInf = std::numeric_limits<double>::infinity();
    std::mt19937_64 random(test_seed(61));
    std::vector<double> start(100, 1);
    Drift facts;
    drift<double>(
        GetParam(), DType::f64, 0.5, start, 60,
        [&](std::vector<double>& values) {
            static constexpr double kSome[] = {kNan, kInf, -kInf, 1, 1.25, 0, -0.0, 1e308, -1e308, 5e-324};
            values[random() % values.size()] = kSome[random() % 10];
        },
        facts);
    EXPECT_GT(facts.stored, 0U);
    EXPECT_LT(facts.stored, facts.seen);
    std::vector<float> floats(100, 1);
    drift<float>(
        GetParam(), DType::f32, 0.5, floats, 60,
        [&](std::vector<float>& values) {
            static constexpr float kSome[] = {std::numeric_limits<float>::quiet_NaN(),
                                              std::numeric_limits<float>::infinity(),
                                              -std::numeric_limits<float>::infinity(),
                                              1,
                                              1.25F,
                                              0,
                                              -0.0F,
                                              3e38F,
                                              -3e38F,
                                              1e-45F};
            values[random() % values.size()] = kSome[random() % 10];
        },
        facts);
}

// The last chunk of a segment, where the segment becomes shorter and longer: what lies behind its end is zeros.
TEST_P(Bounded, SegmentsThatGrowAndShrink) {
    DedupOptions options = options_for(GetParam(), 64);
    options.keep_base = true;
    ModelRecord record(options);
    DifferenceRule rule;
    rule.tolerance.atol = 0.5;
    std::mt19937_64 random(test_seed(67));
    for (const std::size_t items : {40U, 39U, 37U, 38U, 33U, 32U, 31U, 36U, 5U, 1U, 0U, 17U, 40U, 44U}) {
        std::vector<float> values(items);
        for (float& value : values)
            value = 1 + static_cast<float>(random() % 100) * 0.001F;
        const TestImage image = {{"x", bytes_of(values), 0, rule, DType::f32}};
        const auto outcome = record.add(image);
        ASSERT_TRUE(outcome.ok()) << outcome.error().message;
        const RecordBytes bytes = record.restore(record.last())[0].bytes;
        for (std::size_t i = 0; i < items; ++i) {
            float restored = 0;
            std::memcpy(&restored, bytes.data() + i * 4, 4);
            ASSERT_LE(distance(values[i], restored), 0.5L);
        }
    }
}

TEST_P(Bounded, RelativeAndComplex) {
    DedupOptions options = options_for(GetParam(), 64);
    options.keep_base = true;
    ModelRecord record(options);
    DifferenceRule rule;
    rule.tolerance.rtol = 0.01;
    std::vector<double> values(64, 1000);
    const auto add = [&] {
        const auto outcome = record.add({{"z", bytes_of(values), 3, rule, DType::c128}});
        EXPECT_TRUE(outcome.ok());
        return outcome.ok() ? outcome->changed : ~std::uint64_t{0};
    };
    EXPECT_EQ(add(), 8U);
    values[9] = 1009;  // the bound is relative to what is there now
    EXPECT_EQ(add(), 0U);
    values[9] = 1010.2;
    EXPECT_EQ(add(), 1U);
    values[63] = -1000;
    EXPECT_EQ(add(), 1U);
}

// A bound is of a segment; another one without is exact.
TEST_P(Bounded, OnlyWhereItIsAskedFor) {
    DedupOptions options = options_for(GetParam(), 64);
    options.keep_base = true;
    ModelRecord record(options);
    DifferenceRule rule;
    rule.tolerance.atol = 1;
    std::vector<float> values(100, 3);
    for (int step = 0; step < 5; ++step) {
        const auto outcome = record.add({{"bound", bytes_of(values), 0, rule, DType::f32},
                                         {"exact", bytes_of(values), 0, {}, DType::f32}});
        ASSERT_TRUE(outcome.ok());
        const TestImage restored = record.restore(record.last());
        EXPECT_EQ(restored[1].bytes, bytes_of(values));
        EXPECT_EQ(restored[0].bytes, bytes_of(std::vector<float>(100, 3)));
        for (float& value : values)
            value += 0.1F;
    }
}

}  // namespace
}  // namespace twinrun
