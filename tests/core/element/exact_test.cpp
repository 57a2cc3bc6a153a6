#include "element/exact.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "support/seed.hpp"

namespace twinrun {
namespace {

#if defined(__SIZEOF_FLOAT128__)
using Wide = __float128;
#else
using Wide = long double;  // 113 bits of significand on the machines without __float128
#endif

// a + b if the sum is exact (Knuth's two-sum finds no rest).
bool exact_sum(Wide a, Wide b, Wide* sum) {
    *sum = a + b;
    const Wide part = *sum - a;
    return (a - (*sum - part)) + (b - part) == 0;
}

// The verdict where 113 bits hold every step.
bool known(double a, double b, const Tolerance& t, bool* exceeds) {
    const Wide magnitude = a < 0 ? -static_cast<Wide>(a) : static_cast<Wide>(a);
    Wide difference = 0;
    Wide allowed = 0;
    if (!exact_sum(a, -static_cast<Wide>(b), &difference)) return false;
    if (!exact_sum(t.atol, static_cast<Wide>(t.rtol) * magnitude, &allowed)) return false;
    if (difference < 0) difference = -difference;
    *exceeds = difference > allowed;
    return true;
}

double after(double x) { return std::nextafter(x, std::numeric_limits<double>::infinity()); }

// ---- a sum over an array of all limbs, of any sizes ----

class FixedPoint {
   public:
    void add(unsigned __int128 magnitude, int exponent, bool negative) {
        const int bit = exponent + 2148;  // the smallest product of two float64
        std::size_t limb = static_cast<std::size_t>(bit) / 32;
        const unsigned shift = static_cast<unsigned>(bit) % 32;
        std::uint64_t carry = 0;
        while (magnitude != 0 || carry != 0) {
            const std::uint64_t part = (static_cast<std::uint64_t>(magnitude & 0xFFFFFFFFU) << shift) + carry;
            const auto low = static_cast<std::int64_t>(part & 0xFFFFFFFFU);
            limbs_[limb++] += negative ? -low : low;
            carry = part >> 32;
            magnitude >>= 32;
        }
    }
    [[nodiscard]] bool positive() const {
        std::int64_t carry = 0;
        bool nonzero = false;
        for (const std::int64_t limb : limbs_) {
            const std::int64_t sum = limb + carry;
            nonzero = nonzero || (sum & 0xFFFFFFFF) != 0;
            carry = sum >> 32;
        }
        return carry == 0 && nonzero;
    }

   private:
    std::array<std::int64_t, 140> limbs_{};
};

struct Term {
    unsigned __int128 magnitude;
    int exponent;
    bool negative;
};
Term term(double x) {
    int exponent = 0;
    static_cast<void>(std::frexp(x, &exponent));
    exponent = std::max(exponent - 53, -1074);  // of the last bit
    return {static_cast<std::uint64_t>(std::ldexp(std::fabs(x), -exponent)), exponent, x < 0};
}

// In one direction or the other: |x| > y is x > y or -x > y.
bool summed(const Term& a, const Term& b, const Tolerance& t) {
    const Term atol = term(t.atol);
    const Term rtol = term(t.rtol);
    for (const bool turned : {false, true}) {
        FixedPoint sum;
        sum.add(a.magnitude, a.exponent, a.negative != turned);
        sum.add(b.magnitude, b.exponent, b.negative == turned);
        sum.add(atol.magnitude, atol.exponent, true);
        sum.add(rtol.magnitude * a.magnitude, rtol.exponent + a.exponent, true);
        if (sum.positive()) return true;
    }
    return false;
}

TEST(Exact, EqualsASumOfAllLimbs) {
    std::mt19937_64 random(test_seed(7));
    const auto any = [&] {  // any bits of a finite number, or few bits, or an extreme
        switch (random() % 5) {
            case 0:
                return std::ldexp(static_cast<double>(random() % 16),
                                  static_cast<int>(random() % 2090) - 1074);
            case 1: return random() % 2 != 0 ? 0.0 : -0.0;
            case 2:
                return random() % 2 != 0 ? std::numeric_limits<double>::max()
                                         : std::numeric_limits<double>::denorm_min();
            default: break;
        }
        const std::uint64_t bits =
            random() % 3 == 0 ? random() % (1ULL << 53) : random();  // denormals, or all
        double x = 0;
        std::memcpy(&x, &bits, sizeof x);
        return std::isfinite(x) ? x : 1.0;
    };
    int over = 0;
    constexpr int rounds = 300000;
    for (int round = 0; round < rounds; ++round) {
        const double a = any();
        double b = any();
        Tolerance t{std::fabs(any()), random() % 3 == 0 ? 0 : std::fabs(any())};
        if (random() % 2 == 0 && t.rtol > 4) t.rtol = std::ldexp(t.rtol, -1 - std::ilogb(t.rtol));
        if (random() % 2 == 0) {  // near the threshold
            const double step = t.atol + t.rtol * std::fabs(a);
            b = random() % 2 != 0 ? a + step : a - step;
            if (random() % 3 == 0) b = after(b);
            if (random() % 3 == 0) b = -after(-b);
            if (!std::isfinite(b)) continue;
        }
        const bool expected = summed(term(a), term(b), t);
        over += expected ? 1 : 0;
        ASSERT_EQ(exceeds_exactly(a, b, t), expected)
            << std::hexfloat << a << ' ' << b << ' ' << t.atol << ' ' << t.rtol;
        const std::uint64_t whole_a = random() >> random() % 64;
        const std::uint64_t whole_b =
            random() % 2 != 0 ? whole_a + random() % 5 - 2 : random() >> random() % 64;
        const bool negative_a = random() % 2 != 0;
        const bool negative_b = random() % 2 != 0;
        ASSERT_EQ(exceeds_exactly(whole_a, negative_a, whole_b, negative_b, t),
                  summed({whole_a, 0, negative_a}, {whole_b, 0, negative_b}, t))
            << std::hexfloat << whole_a << ' ' << whole_b << ' ' << t.atol << ' ' << t.rtol;
    }
    EXPECT_GT(over, rounds / 8);
    EXPECT_LT(over, rounds / 8 * 7);
}

TEST(Exact, EqualsQuadruplePrecisionWhereThatIsExact) {
    std::mt19937_64 random(test_seed(3));
    int checked = 0;
    int over = 0;
    for (int round = 0; round < 200000; ++round) {
        const auto draw = [&](int bits, int exponent) {
            const auto size = static_cast<double>(random() >> (64 - bits));
            return std::ldexp((random() & 1) != 0 ? -size : size, exponent);
        };
        const int bits = 1 + static_cast<int>(random() % 53);
        const int scale = static_cast<int>(random() % 1600) - 800;
        const Tolerance t{
            std::fabs(draw(1 + static_cast<int>(random() % 40), scale - static_cast<int>(random() % 40))),
            random() % 3 == 0 ? 0 : std::fabs(draw(1 + static_cast<int>(random() % 30), -60))};
        const double a = draw(bits, scale);
        double b = draw(bits, scale);
        if (random() % 2 == 0) {  // near the threshold
            const double step = t.atol + t.rtol * std::fabs(a);
            b = (random() & 1) != 0 ? a + step : a - step;
            if (random() % 3 == 0) b = after(b);
            if (random() % 3 == 0) b = -after(-b);
        }
        bool expected = false;
        if (!known(a, b, t, &expected)) continue;
        ++checked;
        over += expected ? 1 : 0;
        ASSERT_EQ(exceeds_exactly(a, b, t), expected) << a << ' ' << b << ' ' << t.atol << ' ' << t.rtol;
    }
    EXPECT_GT(checked, 50000);
    EXPECT_GT(over, 10000);
    EXPECT_GT(checked - over, 10000);
}

TEST(Exact, EqualityIsNotOver) {
    // a - b = atol + rtol a exactly, at every binade: b = a - 3u - a/4 with u the scale, a = 16 u.
    for (int e = -1074; e <= 1018; ++e) {
        const double u = std::ldexp(1.0, e);
        for (const double sign : {1.0, -1.0}) {
            const double a = sign * 16 * u;
            const double b = sign * (16 - 3 - 4) * u;
            const Tolerance t{3 * u, 0.25};
            ASSERT_FALSE(exceeds_exactly(a, b, t)) << e;
            ASSERT_EQ(exceeds_exactly(a, -after(-b), t), sign > 0) << e;
            ASSERT_EQ(exceeds_exactly(a, after(b), t), sign < 0) << e;
            ASSERT_FALSE(exceeds_exactly(a, sign * (16 + 3 + 4) * u, t)) << e;
            // The smallest step of the tolerance decides.
            ASSERT_TRUE(exceeds_exactly(a, b, {std::nextafter(3 * u, 0.0), 0.25})) << e;
            ASSERT_TRUE(exceeds_exactly(a, b, {3 * u, std::nextafter(0.25, 0.0)})) << e;
            ASSERT_FALSE(exceeds_exactly(a, b, {after(3 * u), 0.25})) << e;
        }
    }
}

TEST(Exact, TermsOfVeryDifferentSizesCount) {
    constexpr double tiny = std::numeric_limits<double>::denorm_min();
    constexpr double huge = std::numeric_limits<double>::max();
    EXPECT_FALSE(exceeds_exactly(0, 0, {0, 0}));
    EXPECT_FALSE(exceeds_exactly(0.0, -0.0, {0, 0}));
    EXPECT_TRUE(exceeds_exactly(0, tiny, {0, 0}));
    EXPECT_TRUE(exceeds_exactly(0, -tiny, {0, 1}));
    EXPECT_FALSE(exceeds_exactly(0, tiny, {tiny, 0}));
    // 1 apart, and a tolerance of 1 less or more 2^-1074.
    EXPECT_FALSE(exceeds_exactly(2, 1, {1, 0}));
    EXPECT_TRUE(exceeds_exactly(2, tiny, {2 - std::ldexp(1.0, -52), 0}));
    EXPECT_FALSE(exceeds_exactly(2, tiny, {2, 0}));
    EXPECT_TRUE(exceeds_exactly(2, -tiny, {2, 0}));      // 2 + 2^-1074 > 2
    EXPECT_FALSE(exceeds_exactly(2, -tiny, {2, tiny}));  // <= 2 + 2 * 2^-1074
    EXPECT_TRUE(exceeds_exactly(0.25, -tiny, {0.25, tiny}));
    // Beyond the range of float64: the difference is 2 max, the product up to max^2.
    EXPECT_TRUE(exceeds_exactly(huge, -huge, {huge, 0}));
    EXPECT_TRUE(exceeds_exactly(huge, -huge, {huge, std::nextafter(1.0, 0.0)}));
    EXPECT_FALSE(exceeds_exactly(huge, -huge, {huge, 1}));
    EXPECT_FALSE(exceeds_exactly(huge, -huge, {0, huge}));
    EXPECT_FALSE(exceeds_exactly(huge, -huge, {0, 2}));
    EXPECT_TRUE(exceeds_exactly(huge, -huge, {0, std::nextafter(2.0, 0.0)}));
    EXPECT_FALSE(exceeds_exactly(huge, -huge, {tiny, 2}));
}

TEST(Exact, IsOfTheReference) {
    // 10 against 11: 1 > 0.0999 * 10, but not > 0.0999 * 11.
    const Tolerance t{0, 0.0999};
    EXPECT_TRUE(exceeds_exactly(10.0, 11.0, t));
    EXPECT_FALSE(exceeds_exactly(11.0, 10.0, t));
    EXPECT_TRUE(exceeds_exactly(std::uint64_t{10}, false, std::uint64_t{11}, false, t));
    EXPECT_FALSE(exceeds_exactly(std::uint64_t{11}, false, std::uint64_t{10}, false, t));
}

TEST(Exact, Integers) {
    std::mt19937_64 random(test_seed(4));
    constexpr std::array<std::uint64_t, 8> edges = {
        0, 1, (1ULL << 53) - 1, 1ULL << 53, (1ULL << 53) + 1, 1ULL << 63, ~0ULL - 1, ~0ULL};
    for (int round = 0; round < 100000; ++round) {
        const auto draw = [&] {
            return random() % 4 == 0 ? edges[random() % edges.size()] : random() >> random() % 64;
        };
        const std::uint64_t a = draw();
        std::uint64_t b = draw();
        const bool negative_a = (random() & 1) != 0;
        const bool negative_b = (random() & 1) != 0;
        // rtol = k / 64, atol = m / 64, in units of 1/64.
        const std::uint64_t k = random() % 4 == 0 ? random() % 130 : 0;
        const std::uint64_t m = random() >> (11 + random() % 53);
        if (random() % 3 == 0) b = a + m / 64 + random() % 3 - 1;
        const Tolerance t{static_cast<double>(m) / 64, static_cast<double>(k) / 64};
        const __int128 value_a = negative_a ? -static_cast<__int128>(a) : static_cast<__int128>(a);
        const __int128 value_b = negative_b ? -static_cast<__int128>(b) : static_cast<__int128>(b);
        const __int128 difference = value_a > value_b ? value_a - value_b : value_b - value_a;
        const bool expected = difference * 64 > static_cast<__int128>(m) + static_cast<__int128>(k) * a;
        ASSERT_EQ(exceeds_exactly(a, negative_a, b, negative_b, t), expected)
            << negative_a << ' ' << a << ' ' << negative_b << ' ' << b << ' ' << m << ' ' << k;
    }
}

}  // namespace
}  // namespace twinrun
