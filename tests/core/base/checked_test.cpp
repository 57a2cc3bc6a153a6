#include "base/checked.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, AddsUpToTheLastNumber) {
    EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
    EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
    EXPECT_EQ(checked_add(kMax, kMax), std::nullopt);
}

TEST(Checked, MultipliesUpToTheLastNumber) {
    EXPECT_EQ(checked_multiply(1ULL << 32, (1ULL << 32) - 1), (1ULL << 32) * ((1ULL << 32) - 1));
    EXPECT_EQ(checked_multiply(1ULL << 32, 1ULL << 32), std::nullopt);
    EXPECT_EQ(checked_multiply(kMax, 0), 0U);
}

TEST(Checked, ProductOfNothingIsOneAndZeroWinsOverOverflow) {
    EXPECT_EQ(checked_product({}), 1U);
    const std::vector<std::uint64_t> with_zero{kMax, kMax, 0};
    EXPECT_EQ(checked_product(with_zero), 0U);
    const std::vector<std::uint64_t> too_large{kMax, 2};
    EXPECT_EQ(checked_product(too_large), std::nullopt);
    const std::vector<std::uint64_t> shape{3, 1ULL << 33, 5};
    EXPECT_EQ(checked_product(shape), 15ULL << 33);
}

TEST(Checked, AgreesWithWideArithmetic) {
    std::mt19937_64 random(test_seed(1));
    for (int i = 0; i < 10000; ++i) {
        const std::uint64_t a = random() >> (random() % 64);
        const std::uint64_t b = random() >> (random() % 64);
        const unsigned __int128 sum = static_cast<unsigned __int128>(a) + b;
        const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
        ASSERT_EQ(checked_add(a, b).has_value(), sum <= kMax);
        ASSERT_EQ(checked_multiply(a, b).has_value(), product <= kMax);
        if (b != 0) {
            ASSERT_EQ(divide_up(a, b), (static_cast<unsigned __int128>(a) + b - 1) / b);
        }
    }
}

TEST(Checked, RoundsUp) {
    EXPECT_EQ(round_up(0, 4096), 0U);
    EXPECT_EQ(round_up(1, 4096), 4096U);
    EXPECT_EQ(round_up(4096, 4096), 4096U);
    EXPECT_EQ(divide_up(kMax, 1), kMax);
    EXPECT_EQ(divide_up(0, 7), 0U);
}

}  // namespace
}  // namespace twinrun
