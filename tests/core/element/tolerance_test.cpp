#include "element/tolerance.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "element/cell.hpp"
#include "element/exact.hpp"

#include "platform/float_environment.hpp"
#include "support/numbers.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::kInfinity;
using testing::kTiny;
constexpr double kHuge = std::numeric_limits<double>::max();
constexpr std::array<unsigned, 3> kBits = {0, 2, 4};

CellRule rule_of(const Tolerance& tolerance, unsigned bits) {
    return *cell_rule(tolerance, bits).operator->();
}
std::int64_t key_of(double x, const CellRule& rule) {
    return static_cast<std::int64_t>(cell_of(x, rule, 0).bits);
}

TEST(Tolerance, RejectsWhatIsNone) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const Tolerance& bad : {Tolerance{-1, 0}, Tolerance{0, -1}, Tolerance{nan, 0}, Tolerance{0, nan},
                                 Tolerance{kInfinity, 0}, Tolerance{0, kInfinity}, Tolerance{-kTiny, 1}}) {
        EXPECT_FALSE(cell_rule(bad, 4).ok()) << bad.atol << ' ' << bad.rtol;
    }
    for (const unsigned bits : {1U, 3U, 5U, 8U})
        EXPECT_FALSE(cell_rule({1, 0}, bits).ok());
    EXPECT_TRUE(cell_rule({kHuge, kHuge}, 4).ok());
}

TEST(Tolerance, ZeroIsTokens) {
    for (const unsigned bits : kBits) {
        const CellRule rule = rule_of({0, 0}, bits);
        EXPECT_EQ(rule.kind, CellKind::tokens);
        EXPECT_EQ(rule.residue_bits, 0);
    }
    // No key proves anything below about 2^-50: the absolute part alone is sound.
    EXPECT_EQ(rule_of({0, 0x1p-52}, 4).kind, CellKind::tokens);
    EXPECT_EQ(rule_of({1, 0x1p-52}, 4).kind, CellKind::absolute);
    EXPECT_EQ(rule_of({1e300, 1e-10}, 4).kind, CellKind::absolute);  // the origin would be infinite
}

TEST(Tolerance, ZeroIsWhatScalarsStandForThemselvesBy) {
    for (const DType scalar : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i64, DType::u64,
                               DType::i32, DType::u32, DType::i8, DType::u8, DType::boolean}) {
        const bool narrow = scalar == DType::f16 || scalar == DType::bf16 || scalar == DType::f32;
        const bool wide = scalar == DType::f64 || scalar == DType::i64 || scalar == DType::u64;
        for (const unsigned bits : kBits) {
            const CellRule rule = *cell_rule({0, 0}, bits, scalar);
            EXPECT_EQ(rule.kind, narrow ? CellKind::binary32 : wide ? CellKind::words : CellKind::integers);
            EXPECT_TRUE(is_exact(rule.kind));
            EXPECT_EQ(rule.residue_bits, 0);
            EXPECT_EQ(*cell_rule({1e-3, 0}, bits, scalar), rule_of({1e-3, 0}, bits));
            EXPECT_EQ(*cell_rule({1e-3, 1e-3}, bits, scalar), rule_of({1e-3, 1e-3}, bits));
        }
    }
    EXPECT_FALSE(cell_rule({0, 0}, 3, DType::f32).ok());
    EXPECT_TRUE(proof_reach(*cell_rule({0, 0}, 0, DType::f32), {0, 0}, {0, 0}).coarse_proves);
}

TEST(Tolerance, AbsoluteCellsAreTheWidestThatAreSound) {
    std::mt19937_64 random(test_seed(12));
    for (int round = 0; round < 20000; ++round) {
        const double atol = round == 0   ? kTiny
                            : round == 1 ? kHuge
                                         : std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52,
                                                      static_cast<int>(random() % 2090) - 1074);
        for (const unsigned bits : kBits) {
            const CellRule rule = rule_of({atol, 0}, bits);
            ASSERT_EQ(rule.kind, CellKind::absolute);
            // In units of the fine cell.
            const auto cells =
                static_cast<double>(std::ldexp(static_cast<long double>(atol), -rule.fine_exponent));
            const double coarse = std::ldexp(1.0, rule.coarse_shift);
            ASSERT_LE(coarse, cells) << atol;
            ASSERT_GT(2 * coarse, cells) << atol;
            ASSERT_GE(rule.widest, 0);
            ASSERT_LE(rule.widest + 1, cells) << atol << ' ' << bits;
            ASSERT_LE(rule.widest, bits == 0 ? 0 : (1 << (bits - 1)) - 1);
            ASSERT_LE(rule.coarse_shift, bits);
            // No other shift proves more.
            for (unsigned k = 0; k <= bits; ++k) {
                const double other = cells * std::ldexp(1.0, static_cast<int>(k) - rule.coarse_shift);
                const double widest = std::min(std::floor(other) - 1,
                                               static_cast<double>(bits == 0 ? 0 : (1 << (bits - 1)) - 1));
                ASSERT_LE(widest / other, rule.widest / cells) << atol << ' ' << bits << ' ' << k;
            }
        }
    }
}

// Keys within W of each other are values within the tolerance, in both directions; values within half are within W.
TEST(Tolerance, KeysWithinTheirDistanceProve) {
    std::mt19937_64 random(test_seed(13));
    const std::array<Tolerance, 11> tolerances = {{{1e-6, 1e-6},
                                                   {0, 1e-6},
                                                   {1e-3, 1e-9},
                                                   {1e-300, 1e-3},
                                                   {1e-12, 0.1},
                                                   {5, 1e-12},
                                                   {0, 1e-12},
                                                   {0x1p-20, 0x1p-10},
                                                   {0, 0.9},
                                                   {1, 3},
                                                   {1e-310, 1e-5}}};
    int proven = 0;
    for (const Tolerance& t : tolerances) {
        const std::int64_t distance = widest_key_distance(t.rtol);
        CellRule keys = rule_of(t, 4);
        ASSERT_EQ(keys.kind, CellKind::relative);
        ASSERT_LE((std::int64_t{keys.widest} + 1) << keys.fine_exponent, distance + 1);
        ASSERT_LE(std::int64_t{1} << keys.coarse_exponent(), distance + 1);
        keys.fine_exponent = 0;
        const auto unit = [&] { return static_cast<double>(static_cast<std::int64_t>(random())) * 0x1p-63; };
        for (int round = 0; round < 20000; ++round) {
            const double c = t.atol / t.rtol;
            double a = unit() * (random() % 3 == 0 ? std::pow(10.0, unit() * 300)
                                                   : std::max(c, 1e-12) * std::pow(10.0, unit() * 6));
            if (random() % 5 == 0 && a != 0) a = std::ldexp(1.0, std::ilogb(a));  // at a binade's edge
            const double reach = t.atol + t.rtol * std::fabs(a);
            double b = a + 2 * unit() * reach;
            if (random() % 3 == 0)
                b = std::nextafter(a + (unit() > 0 ? reach : -reach), unit() > 0 ? kInfinity : -kInfinity);
            if (!std::isfinite(a) || !std::isfinite(b)) continue;
            // Keys beyond 2^59 are tokens to cell_of at shift 0: look at shift 5, and allow for its floors.
            CellRule shifted = keys;
            shifted.fine_exponent = 5;
            const Cell fine_a = cell_of(a, shifted, 0);
            const Cell fine_b = cell_of(b, shifted, 0);
            if (fine_a.token || fine_b.token) continue;
            const std::int64_t apart = std::llabs(static_cast<std::int64_t>(fine_a.bits - fine_b.bits));
            if (apart + 1 <= (distance + 1) >> 5) {
                ++proven;
                ASSERT_FALSE(exceeds_exactly(a, b, t)) << a << ' ' << b << ' ' << t.atol << ' ' << t.rtol;
                ASSERT_FALSE(exceeds_exactly(b, a, t)) << a << ' ' << b << ' ' << t.atol << ' ' << t.rtol;
            } else if (apart > 1 && distance > 10000) {
                ASSERT_GE(std::fabs(a - b), 0.49 / (1 + 2 * t.rtol) * reach)
                    << a << ' ' << b << ' ' << t.atol << ' ' << t.rtol;
            }
        }
    }
    EXPECT_GT(proven, 20000);
}

TEST(Tolerance, KeysAreSoundToTheLastOne) {
    // Keys exactly W apart, at all places of a binade.
    std::mt19937_64 random(test_seed(14));
    for (int round = 0; round < 50000; ++round) {
        const double rtol = std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52,
                                       -static_cast<int>(1 + random() % 46));
        const double origin = random() % 3 == 0
                                  ? 0
                                  : std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52,
                                               static_cast<int>(random() % 40) - 20);
        const Tolerance t{origin * rtol, rtol};
        CellRule keys = rule_of(t, 0);
        if (keys.kind != CellKind::relative || t.atol / t.rtol != keys.key_origin) continue;
        keys.fine_exponent = 0;
        const std::int64_t distance = widest_key_distance(rtol);
        const double sum =
            std::max(keys.key_origin, 0x1p-20) * (1 + static_cast<double>(random() >> 11) * 0x1p-50);
        const double a = sum - keys.key_origin;
        const double b =
            std::bit_cast<double>(std::bit_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(distance)) -
            keys.key_origin;
        if (a == 0 || keys.key_origin == 0) {
            ASSERT_FALSE(exceeds_exactly(a, b, t)) << a << ' ' << b << ' ' << t.atol << ' ' << rtol;
            continue;
        }
        if (std::llabs(key_of(a, keys) - key_of(b, keys)) > distance) continue;  // its sum rounded away
        ASSERT_FALSE(exceeds_exactly(a, b, t)) << a << ' ' << b << ' ' << t.atol << ' ' << rtol;
        ASSERT_FALSE(exceeds_exactly(b, a, t)) << a << ' ' << b << ' ' << t.atol << ' ' << rtol;
    }
}

TEST(ProofReach, IsTheRuleForItsOwnTolerance) {
    std::mt19937_64 random(test_seed(15));
    for (int round = 0; round < 5000; ++round) {
        const double atol = std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52,
                                       static_cast<int>(random() % 2000) - 1000);
        const double rtol = random() % 2 == 0 ? 0 : std::ldexp(1.0, -static_cast<int>(random() % 45));
        const Tolerance t{random() % 4 == 0 && rtol > 0 ? 0 : atol, rtol};
        for (const unsigned bits : kBits) {
            const CellRule rule = rule_of(t, bits);
            const ProofReach reach = proof_reach(rule, t, t);
            ASSERT_TRUE(reach.usable);
            ASSERT_TRUE(reach.coarse_proves);
            ASSERT_EQ(reach.widest, rule.widest) << t.atol << ' ' << t.rtol << ' ' << bits;
        }
    }
}

TEST(ProofReach, OfOtherTolerances) {
    const Tolerance made{1.0, 0};
    const CellRule rule = rule_of(made, 4);
    const double s = std::ldexp(1.0, rule.fine_exponent);
    for (double wanted = s / 4; wanted < 40; wanted *= 1.17) {
        const ProofReach reach = proof_reach(rule, made, {wanted, 0.5});
        ASSERT_EQ(reach.usable, wanted >= s) << wanted;
        if (!reach.usable) continue;
        ASSERT_LE((reach.widest + 1) * s, wanted);
        ASSERT_TRUE(reach.widest == 7 || (reach.widest + 2) * s > wanted) << wanted;
        ASSERT_EQ(reach.coarse_proves, wanted >= std::ldexp(1.0, rule.coarse_exponent()));
    }
    EXPECT_FALSE(proof_reach(rule, made, {0, 0.5}).usable);
    EXPECT_FALSE(proof_reach(rule, made, {0, 0}).usable);
    EXPECT_EQ(proof_reach(rule, made, {kHuge, 0}).widest, 7);

    const CellRule tokens = rule_of({0, 0}, 4);
    EXPECT_TRUE(proof_reach(tokens, {0, 0}, {1, 1}).coarse_proves);
    EXPECT_TRUE(proof_reach(tokens, {0, 0}, {0, 0}).coarse_proves);

    const Tolerance combined{1e-6, 1e-3};
    const CellRule keys = rule_of(combined, 4);
    EXPECT_TRUE(proof_reach(keys, combined, {1e-6, 2e-3}).usable);
    EXPECT_TRUE(proof_reach(keys, combined, {2e-6, 1e-3}).coarse_proves);
    EXPECT_FALSE(proof_reach(keys, combined, {1e-7, 2e-3}).usable);
    EXPECT_FALSE(proof_reach(keys, combined, {1e-5, 9e-4}).usable);
}

TEST(CellRule, DoesNotDependOnTheHostsRounding) {
    for (const Tolerance& tolerance : {Tolerance{1e-6, 1e-6}, Tolerance{1e-3, 3e-9}, Tolerance{0.1, 0.7}}) {
        const CellRule expected = *cell_rule(tolerance, 4);
        const FloatEnvironment downward(Rounding::downward);
        EXPECT_EQ(*cell_rule(tolerance, 4), expected);
    }
}

TEST(Resolution, WarnsBelowTheSpacingOfNeighbours) {
    EXPECT_NE(resolution_warning(DType::f32, {1e-9, 0}, 1.0), "");
    EXPECT_EQ(resolution_warning(DType::f64, {1e-9, 0}, 1.0), "");
    EXPECT_EQ(resolution_warning(DType::f32, {1e-6, 0}, 1.0), "");
    EXPECT_NE(resolution_warning(DType::c64, {1e-6, 0}, 1000.0), "");
    EXPECT_EQ(resolution_warning(DType::f32, {0, 1e-6}, 1e30), "");
    EXPECT_NE(resolution_warning(DType::f32, {0, 1e-8}, 1e30), "");
    EXPECT_EQ(resolution_warning(DType::f32, {0, 0}, 1.0), "");
    EXPECT_EQ(resolution_warning(DType::i32, {1e-9, 0}, 1.0), "");
    EXPECT_EQ(resolution_warning(DType::f32, {1e-9, 0}, 0.0), "");
    EXPECT_EQ(resolution_warning(DType::f32, {1e-9, 0}, kInfinity), "");
}

}  // namespace
}  // namespace twinrun
