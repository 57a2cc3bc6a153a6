#include "element/cell.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/numbers.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

#if defined(__SIZEOF_FLOAT128__)
using Wide = __float128;
#else
using Wide = long double;  // 113 bits of significand and 15 of exponent on the machines without __float128
#endif

using testing::kInfinity;
using testing::kTiny;

CellRule absolute(int exponent) {
    CellRule rule;
    rule.kind = CellKind::absolute;
    rule.fine_exponent = exponent;
    return rule;
}
CellRule relative(int shift, double origin) {
    CellRule rule;
    rule.kind = CellKind::relative;
    rule.fine_exponent = shift;
    rule.key_origin = origin;
    return rule;
}

// x * 2^k, exact.
Wide scaled(Wide x, int k) {
    for (; k > 0; k -= std::min(k, 1000))
        x *= static_cast<Wide>(std::ldexp(1.0, std::min(k, 1000)));
    for (; k < 0; k += std::min(-k, 1000))
        x *= static_cast<Wide>(std::ldexp(1.0, -std::min(-k, 1000)));
    return x;
}

// floor(x / 2^e) by quadruple precision, or no cell.
Cell expected_cell(double x, int e) {
    const Wide y = scaled(x, -e);
    const Wide limit = static_cast<Wide>(kTokenLimit);
    if (!(y < limit + 1 && y > -limit - 1)) return {value_token(x), true};
    auto q = static_cast<std::int64_t>(y);
    if (static_cast<Wide>(q) > y) --q;
    if (q >= static_cast<std::int64_t>(kTokenLimit) || q <= -static_cast<std::int64_t>(kTokenLimit)) {
        return {value_token(x), true};
    }
    return {static_cast<std::uint64_t>(q), false};
}

void expect_same(const Cell& a, const Cell& b, double x, int e) {
    EXPECT_EQ(a.token, b.token) << x << " / 2^" << e;
    EXPECT_EQ(a.bits, b.bits) << x << " / 2^" << e;
}

TEST(Splitmix, IsTheKnownGenerator) {
    // The first outputs for seed 1234567, as published with the generator's reference code.
    std::uint64_t state = 1234567;
    for (const std::uint64_t expected :
         {6457827717110365317ULL, 3203168211198807973ULL, 9817491932198370423ULL}) {
        EXPECT_EQ(splitmix64(state), expected);
        state += 0x9E3779B97F4A7C15ULL;
    }
}

TEST(Cell, IsTheFloor) {
    std::mt19937_64 random(test_seed(7));
    for (int round = 0; round < 200000; ++round) {
        double x = std::bit_cast<double>(random());
        if (random() % 2 == 0) x = std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())), -63);
        if (!std::isfinite(x)) continue;
        const int near = x == 0 ? 0 : std::ilogb(x);
        const int e = random() % 3 == 0 ? static_cast<int>(random() % 2150) - 1078
                                        : std::clamp(near - static_cast<int>(random() % 70) + 4, -1078, 1023);
        expect_same(cell_of(x, absolute(e), 0), expected_cell(x, e), x, e);
        if (HasFailure()) return;
    }
}

TEST(Cell, BoundariesBelongToTheUpperCell) {
    for (const int e : {-1078, -1074, -1060, -1023, -1022, -500, -30, -1, 0, 1, 30, 500, 960}) {
        for (const std::int64_t k :
             {-3LL, -2LL, -1LL, 0LL, 1LL, 2LL, 3LL, 1000LL, -1000LL, (1LL << 52) - 1, -(1LL << 52)}) {
            const double x = std::ldexp(static_cast<double>(k), e);
            for (const double y : {x, std::nextafter(x, kInfinity), std::nextafter(x, -kInfinity)}) {
                expect_same(cell_of(y, absolute(e), 0), expected_cell(y, e), y, e);
            }
            if (std::ldexp(x, -e) == static_cast<double>(k)) {
                EXPECT_EQ(static_cast<std::int64_t>(cell_of(x, absolute(e), 0).bits), k) << e;
            }
        }
        // However small, a negative number is below cell 0.
        EXPECT_EQ(static_cast<std::int64_t>(cell_of(-kTiny, absolute(std::max(e, -1073)), 0).bits), -1);
        EXPECT_EQ(cell_of(kTiny, absolute(std::max(e, -1073)), 0).bits, 0U);
    }
}

TEST(Cell, TheLimitIsExact) {
    for (const int e : {-1000, -12, 0, 900}) {
        const double limit = std::ldexp(1.0, 59 + e);
        EXPECT_TRUE(cell_of(limit, absolute(e), 0).token);
        EXPECT_TRUE(cell_of(-limit, absolute(e), 0).token);
        EXPECT_FALSE(cell_of(std::nextafter(limit, 0.0), absolute(e), 0).token);
        EXPECT_FALSE(cell_of(-std::nextafter(limit, 0.0), absolute(e), 0).token);
        EXPECT_FALSE(cell_of(limit, absolute(e), 1).token);  // a coarse cell is one binade further
    }
}

TEST(Cell, CoarseIsFineShifted) {
    std::mt19937_64 random(test_seed(8));
    const std::vector<CellRule> rules = {absolute(-20),      absolute(3),          relative(20, 0),
                                         relative(33, 1e-3), relative(40, 1e-300), relative(50, 1e5)};
    for (int round = 0; round < 100000; ++round) {
        const double x = std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())),
                                    static_cast<int>(random() % 120) - 120);
        for (const CellRule& rule : rules) {
            const Cell fine = cell_of(x, rule, 0);
            if (fine.token) continue;
            for (int k = 1; k <= 4; ++k) {
                const Cell coarse = cell_of(x, rule, k);
                ASSERT_FALSE(coarse.token);
                ASSERT_EQ(static_cast<std::int64_t>(coarse.bits), static_cast<std::int64_t>(fine.bits) >> k)
                    << x;
            }
        }
    }
}

TEST(Cell, KeysAreMonotone) {
    std::mt19937_64 random(test_seed(9));
    for (const double origin : {0.0, 1e-320, 1e-290, 1e-3, 1.0, 1e10, 1e290}) {
        for (const int shift : {10, 30, 45}) {
            const CellRule rule = relative(shift, origin);
            for (int round = 0; round < 20000; ++round) {
                const double scale =
                    std::max(origin, 1e-200) * std::pow(10.0, static_cast<double>(random() % 20) - 10);
                const double x = static_cast<double>(static_cast<std::int64_t>(random())) * 0x1p-63 * scale;
                const double y =
                    random() % 2 == 0
                        ? std::nextafter(x, kInfinity)
                        : static_cast<double>(static_cast<std::int64_t>(random())) * 0x1p-63 * scale;
                const Cell a = cell_of(std::min(x, y), rule, 0);
                const Cell b = cell_of(std::max(x, y), rule, 0);
                if (a.token || b.token) continue;
                ASSERT_LE(static_cast<std::int64_t>(a.bits), static_cast<std::int64_t>(b.bits))
                    << x << ' ' << y;
            }
        }
    }
}

TEST(Cell, SpecialValues) {
    const std::array<CellRule, 5> rules = {CellRule{}, absolute(-12), absolute(1000), relative(20, 0),
                                           relative(20, 1e-6)};
    for (const CellRule& rule : rules) {
        for (const std::uint64_t payload :
             {0x7FF8000000000000ULL, 0x7FF0000000000001ULL, 0xFFFFFFFFFFFFFFFFULL}) {
            const Cell nan = cell_of(std::bit_cast<double>(payload), rule, 0);
            EXPECT_TRUE(nan.token);
            EXPECT_EQ(nan.bits, kNanToken);
        }
        EXPECT_EQ(cell_of(kInfinity, rule, 0).bits, kPositiveInfinityToken);
        EXPECT_EQ(cell_of(-kInfinity, rule, 0).bits, kNegativeInfinityToken);
        EXPECT_EQ(cell_of(0.0, rule, 0).bits, cell_of(-0.0, rule, 0).bits);
        EXPECT_EQ(cell_of(0.0, rule, 0).token, cell_of(-0.0, rule, 0).token);
    }
    EXPECT_EQ(cell_of(0.0, CellRule{}, 0).bits, splitmix64(0));
    for (const std::uint64_t seed : {kNanSeed, kPositiveInfinitySeed, kNegativeInfinitySeed}) {
        EXPECT_NE(cell_of(std::bit_cast<double>(seed), CellRule{}, 0).bits, splitmix64(seed));
    }
    EXPECT_NE(cell_of(kTiny, CellRule{}, 0).bits, cell_of(0.0, CellRule{}, 0).bits);
    EXPECT_NE(cell_of(1.0, CellRule{}, 0).bits, cell_of(-1.0, CellRule{}, 0).bits);
    // Sums that are too small for relative steps: tokens, but 0 where 0 is the origin.
    EXPECT_TRUE(cell_of(0x1p-1001, relative(20, 0), 0).token);
    EXPECT_FALSE(cell_of(0x1p-1000, relative(20, 0), 0).token);
    EXPECT_FALSE(cell_of(0.0, relative(20, 0), 0).token);
    EXPECT_TRUE(cell_of(0.0, relative(20, 0x1p-1010), 0).token);
    EXPECT_TRUE(
        cell_of(std::numeric_limits<double>::max(), relative(20, 1e300), 0).token);  // the sum is infinite
}

TEST(Cell, IntegersEqualTheirFloats) {
    std::mt19937_64 random(test_seed(10));
    for (const CellRule& rule : {CellRule{}, absolute(0), absolute(3), absolute(-2), relative(30, 5.0)}) {
        for (int round = 0; round < 20000; ++round) {
            const std::uint64_t magnitude = random() >> (11 + random() % 53);  // at most 2^53
            const bool negative = (random() & 1) != 0;
            const double x = negative ? -static_cast<double>(magnitude) : static_cast<double>(magnitude);
            const Cell integer = cell_of_integer(magnitude, negative, rule, 0);
            const Cell real = cell_of(x, rule, 0);
            ASSERT_EQ(integer.bits, real.bits);
            ASSERT_EQ(integer.token, real.token);
        }
    }
}

TEST(Cell, LargeIntegers) {
    // Neighbours beyond 2^53 have tokens of their own, and their cells are exact.
    const std::uint64_t large = (1ULL << 53) + 1;
    EXPECT_NE(cell_of_integer(large, false, CellRule{}, 0).bits,
              cell_of_integer(large - 1, false, CellRule{}, 0).bits);
    EXPECT_NE(cell_of_integer(large, false, CellRule{}, 0).bits,
              cell_of_integer(large, true, CellRule{}, 0).bits);
    std::mt19937_64 random(test_seed(11));
    for (int round = 0; round < 50000; ++round) {
        const std::uint64_t magnitude = random() >> random() % 11;
        const bool negative = (random() & 1) != 0;
        const int e = static_cast<int>(random() % 70) - 4;
        const Cell cell = cell_of_integer(magnitude, negative, absolute(e), 0);
        const __int128 value =
            negative ? -static_cast<__int128>(magnitude) : static_cast<__int128>(magnitude);
        const __int128 q = e >= 0 ? value >> e : value * (1 << -e);
        const __int128 size = q < 0 ? -q : q;
        ASSERT_EQ(cell.token, size >= static_cast<__int128>(kTokenLimit))
            << magnitude << ' ' << negative << ' ' << e;
        if (!cell.token) {
            ASSERT_EQ(static_cast<std::int64_t>(cell.bits), static_cast<std::int64_t>(q))
                << magnitude << ' ' << negative << ' ' << e;
        }
    }
}

}  // namespace
}  // namespace twinrun
