#include "digest/field61.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>

#include "support/seed.hpp"

namespace twinrun {
namespace {

// The definition: division with remainder.
std::uint64_t remainder(unsigned __int128 x) { return static_cast<std::uint64_t>(x % kPrime); }

constexpr std::array<std::uint64_t, 12> kEdges = {
    0,          1,          2,          kPrime - 2, kPrime - 1, kPrime,
    kPrime + 1, 1ULL << 60, 2 * kPrime, 1ULL << 62, 1ULL << 63, std::numeric_limits<std::uint64_t>::max()};

TEST(Field61, EqualsDivisionAtTheEdges) {
    for (const std::uint64_t x : kEdges) {
        EXPECT_EQ(reduce61(x), remainder(x)) << x;
        for (const std::uint64_t y : kEdges) {
            EXPECT_EQ(reduce61_wide(static_cast<unsigned __int128>(x) << 64 | y),
                      remainder(static_cast<unsigned __int128>(x) << 64 | y));
            if (x >= kPrime || y >= kPrime) continue;
            EXPECT_EQ(add61(x, y), remainder(static_cast<unsigned __int128>(x) + y)) << x << ' ' << y;
            EXPECT_EQ(subtract61(x, y), remainder(static_cast<unsigned __int128>(x) + kPrime - y))
                << x << ' ' << y;
            EXPECT_EQ(multiply61(x, y), remainder(static_cast<unsigned __int128>(x) * y)) << x << ' ' << y;
        }
    }
}

TEST(Field61, EqualsDivisionForRandomNumbers) {
    std::mt19937_64 random(test_seed(1));
    for (int round = 0; round < 100000; ++round) {
        const std::uint64_t x = random();
        const std::uint64_t y = random();
        ASSERT_EQ(reduce61(x), remainder(x));
        ASSERT_EQ(reduce61_wide(static_cast<unsigned __int128>(x) << 64 | y),
                  remainder(static_cast<unsigned __int128>(x) << 64 | y));
        const std::uint64_t a = reduce61(x);
        const std::uint64_t b = reduce61(y);
        ASSERT_EQ(add61(a, b), remainder(static_cast<unsigned __int128>(a) + b));
        ASSERT_EQ(add61(subtract61(a, b), b), a);
        ASSERT_EQ(multiply61(a, b), remainder(static_cast<unsigned __int128>(a) * b));
    }
}

TEST(Field61, SignedNumbersAreInverses) {
    std::mt19937_64 random(test_seed(2));
    for (int round = 0; round < 10000; ++round) {
        const auto q = static_cast<std::int64_t>(random()) >> (random() % 64);
        if (q == std::numeric_limits<std::int64_t>::min()) continue;
        ASSERT_EQ(add61(signed61(q), signed61(-q)), 0U) << q;
        ASSERT_LT(signed61(q), kPrime);
    }
    EXPECT_EQ(signed61(-1), kPrime - 1);
    EXPECT_EQ(signed61(0), 0U);
}

TEST(Field61, PowersOfTwoHaveInverses) {
    for (unsigned k = 0; k <= 61; ++k) {
        EXPECT_EQ(multiply61(power61(2, k), inverse_power_of_two(k)), 1U) << k;
    }
    EXPECT_EQ(power61(3, 0), 1U);
    EXPECT_EQ(power61(3, kPrime - 1), 1U);  // Fermat
    EXPECT_EQ(multiply61(power61(7, kPrime - 2), 7), 1U);
}

}  // namespace
}  // namespace twinrun
