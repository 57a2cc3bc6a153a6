#include "difference/difference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

#include "platform/float_environment.hpp"
#include "support/difference_stats.hpp"
#include "support/numbers.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::kInfinity;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- an independent model: written for reading, with exact arithmetic of its own ----

// A sum of non-negative terms, exact: units of 2^-2200.
class ExactSum {
   public:
    void add(unsigned __int128 magnitude, int exponent) {
        const int bit = exponent + 2200;
        for (int k = 0; k < 128; ++k) {
            if ((magnitude >> k & 1) != 0) add_bit(static_cast<std::size_t>(bit + k));
        }
    }
    bool operator>(const ExactSum& other) const {
        return std::lexicographical_compare(other.limbs_.rbegin(), other.limbs_.rend(), limbs_.rbegin(),
                                            limbs_.rend());
    }

   private:
    void add_bit(std::size_t bit) {
        std::size_t limb = bit / 64;
        std::uint64_t carry = 1ULL << bit % 64;
        while (carry != 0) {
            limbs_[limb] += carry;
            carry = limbs_[limb] < carry ? 1 : 0;
            ++limb;
        }
    }
    std::array<std::uint64_t, 72> limbs_{};
};

struct Term {
    unsigned __int128 magnitude;
    int exponent;
};
Term term(double x) {
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(x), &exponent);
    return {static_cast<std::uint64_t>(std::ldexp(fraction, 53)), exponent - 53};
}

// A scalar: a float64, or an integer that need not be exact in it.
struct Scalar {
    double value = 0;
    bool integer = false;
    __int128 whole = 0;

    static Scalar of(double x) { return {x, false, 0}; }
    static Scalar of_integer(__int128 x) { return {static_cast<double>(x), true, x}; }
    [[nodiscard]] Term term_of() const {
        return integer ? Term{static_cast<unsigned __int128>(whole < 0 ? -whole : whole), 0} : term(value);
    }
    [[nodiscard]] bool negative() const { return integer ? whole < 0 : value < 0; }
};

bool model_exceeds(const Scalar& a, const Scalar& b, const Tolerance& tolerance) {
    const Term ta = a.term_of();
    const Term tb = b.term_of();
    ExactSum allowed;
    const Term atol = term(tolerance.atol);
    const Term rtol = term(tolerance.rtol);
    allowed.add(atol.magnitude, atol.exponent);
    allowed.add(rtol.magnitude * ta.magnitude, rtol.exponent + ta.exponent);
    ExactSum left;
    if (a.negative() != b.negative()) {
        left.add(ta.magnitude, ta.exponent);
        left.add(tb.magnitude, tb.exponent);
        return left > allowed;
    }
    // ||a| - |b|| > allowed, without a subtraction
    ExactSum size_a;
    ExactSum size_b;
    size_a.add(ta.magnitude, ta.exponent);
    size_b.add(tb.magnitude, tb.exponent);
    const bool a_larger = size_a > size_b;
    const Term smaller = a_larger ? tb : ta;
    allowed.add(smaller.magnitude, smaller.exponent);
    return (a_larger ? size_a : size_b) > allowed;
}

std::size_t model_bin(double d) {
    if (d == 0) return 0;
    if (d == kInfinity) return kHistogramBins - 1;
    std::size_t bin = 1;
    for (const double edge : histogram_tables().edges)
        bin += d >= edge ? 1 : 0;
    return bin;
}

DifferenceStats model(const std::vector<Scalar>& a, const std::vector<Scalar>& b, std::uint64_t index,
                      const DifferenceRule& rule) {
    DifferenceStats s;
    s.scalars = a.size();
    const auto raise = [](double value, std::uint64_t at, double& maximum, std::uint64_t& place) {
        if (value > maximum) {
            maximum = value;
            place = at;
        }
    };
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double x = a[i].value;
        const double y = b[i].value;
        double d = 0;
        bool differs = false;
        if (std::isnan(x) && std::isnan(y)) {
            differs = !rule.nan_equal;
            d = differs ? kInfinity : 0;
        } else if (std::isnan(x) || std::isnan(y)) {
            differs = true;
            d = kInfinity;
        } else if (std::isinf(x) || std::isinf(y)) {
            differs = x != y;
            d = differs ? kInfinity : 0;
        } else {
            d = std::fabs(x - y);
            if (a[i].integer) {
                const __int128 exact = a[i].whole - b[i].whole;
                d = static_cast<double>(exact < 0 ? -exact : exact);
            }
            differs = model_exceeds(a[i], b[i], rule.tolerance);
        }
        if (std::isfinite(x)) s.largest = std::max(s.largest, std::fabs(x));
        const std::size_t bin = model_bin(d);
        ++s.all[bin];
        if (differs) {
            ++s.over[bin];
            ++s.different;
            s.infinite += std::isinf(d) ? 1 : 0;
            if (s.first == kNowhere) s.first = index + i;
        }
        if (d == 0) continue;
        const double relative = x == 0 || std::isinf(d) ? kInfinity : d / std::fabs(x);
        raise(d, index + i, s.max_abs, s.max_abs_at);
        raise(relative, index + i, s.max_rel, s.max_rel_at);
        if (differs) raise(relative, index + i, s.max_rel_different, s.max_rel_different_at);
        if (std::isfinite(d)) {
            s.sum_squares += d * d;
            if (differs) s.sum_squares_different += d * d;
        }
    }
    return s;
}

template <class T>
std::vector<Scalar> scalars(const std::vector<T>& x) {
    std::vector<Scalar> result;
    for (const T value : x) {
        if constexpr (std::is_floating_point_v<T>) {
            result.push_back(Scalar::of(static_cast<double>(value)));
        } else {
            result.push_back(Scalar::of_integer(value));
        }
    }
    return result;
}

void expect_same(const DifferenceStats& x, const DifferenceStats& y) {
    testing::expect_same_read(x, y, 1e-12);
}

// ---- data ----

template <class T>
std::vector<T> special_values() {
    using Limits = std::numeric_limits<T>;
    std::vector<T> values = {0,
                             Limits::denorm_min(),
                             3 * Limits::denorm_min(),
                             Limits::min(),
                             Limits::epsilon(),
                             1,
                             2,
                             3,
                             T(0.1),
                             1 - Limits::epsilon() / 2,
                             1 + Limits::epsilon(),
                             1000,
                             Limits::max() / 2,
                             Limits::max(),
                             Limits::infinity(),
                             Limits::quiet_NaN(),
                             Limits::signaling_NaN()};
    values.push_back(std::nextafter(Limits::min(), T(0)));
    values.push_back(std::nextafter(Limits::max(), T(0)));
    const std::size_t positive = values.size();
    for (std::size_t i = 0; i < positive; ++i)
        values.push_back(-values[i]);
    return values;
}

const std::vector<Tolerance>& tolerances() {
    static const std::vector<Tolerance> all = {
        {0, 0},       {1e-6, 0},   {0, 1e-6},   {1e-8, 1e-5},  {0.5, 0},     {1, 0},
        {0, 0.5},     {1, 0.5},    {0.25, 2},   {0, 1},        {5e-324, 0},  {1e-310, 0},
        {1e-300, 0},  {0, 1e-310}, {1, 1e-310}, {0, 0x1p-900}, {1e300, 0},   {0, 1e300},
        {1e308, 1e5}, {0, 3},      {1e-40, 0},  {0x1p-149, 0}, {1.7e308, 1}, {0, 0x1p-52},
    };
    return all;
}

enum class Kind { identical, sparse, dense, grid, special, threshold, bits, growing };
constexpr std::array kKinds = {Kind::identical, Kind::sparse,    Kind::dense, Kind::grid,
                               Kind::special,   Kind::threshold, Kind::bits,  Kind::growing};

template <class T>
struct Data {
    std::vector<T> a;
    std::vector<T> b;
};

template <class T>
T random_bits(std::mt19937_64& random) {
    const std::uint64_t bits = random();
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
Data<T> make(Kind kind, std::size_t n, const Tolerance& tolerance, std::mt19937_64& random) {
    static const std::vector<T> specials = special_values<T>();
    Data<T> data;
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < n; ++i) {
        auto a = static_cast<T>(normal(random));
        T b = a;
        switch (kind) {
            case Kind::identical: break;
            case Kind::sparse:
                if (random() % 50 == 0) b = static_cast<T>(a + normal(random) * 1e-5);
                if (random() % 200 == 0) a = b = specials[random() % specials.size()];
                break;
            case Kind::dense:
                b = static_cast<T>(a + normal(random) * std::pow(10.0, double(random() % 12) - 10));
                break;
            case Kind::grid:  // many ties, and thresholds that are met exactly
                a = static_cast<T>(double(random() % 9) / 4 - 1);
                b = static_cast<T>(double(random() % 9) / 4 - 1);
                break;
            case Kind::special:
                a = specials[random() % specials.size()];
                b = specials[random() % specials.size()];
                break;
            case Kind::threshold: {
                const double allowed = tolerance.atol + tolerance.rtol * std::fabs(double(a));
                b = static_cast<T>(double(a) + (random() % 2 != 0 ? allowed : -allowed));
                for (auto steps = random() % 3; steps > 0; --steps) {
                    b = std::nextafter(b, random() % 2 != 0 ? T(kInfinity) : -T(kInfinity));
                }
                if (random() % 4 == 0) {  // rounding of a - b matters
                    a = static_cast<T>(tolerance.atol);
                    b = static_cast<T>(double(normal(random)) * tolerance.atol * 0x1p-54);
                }
                break;
            }
            case Kind::bits:
                a = random_bits<T>(random);
                b = random() % 3 == 0   ? std::nextafter(a, T(0))
                    : random() % 2 == 0 ? a
                                        : random_bits<T>(random);
                break;
            case Kind::growing: b = static_cast<T>(a + 1e-3 * double(i)); break;
        }
        data.a.push_back(a);
        data.b.push_back(b);
    }
    return data;
}

const std::vector<std::size_t>& lengths() {
    static const std::vector<std::size_t> all = [] {
        std::vector<std::size_t> n;
        for (std::size_t i = 0; i <= 130; ++i)
            n.push_back(i);
        for (const std::size_t i : std::initializer_list<std::size_t>{
                 191, 192, 193, 511, 512, 513, 1023, 1024, 1025, 1087, 1088, 1089, 4096, 5000}) {
            n.push_back(i);
        }
        return n;
    }();
    return all;
}

void run(const DifferenceKernels& kernels, const float* a, const float* b, std::size_t n, std::uint64_t index,
         const DifferenceRule& rule, DifferenceStats* stats) {
    kernels.f32(a, b, n, index, rule, stats);
}
void run(const DifferenceKernels& kernels, const double* a, const double* b, std::size_t n,
         std::uint64_t index, const DifferenceRule& rule, DifferenceStats* stats) {
    kernels.f64(a, b, n, index, rule, stats);
}

// ---- the tests ----

TEST(Histogram, BinsFollowTheEdges) {
    const auto& edges = histogram_tables().edges;
    for (int k = 0; k <= kDecades; ++k) {
        // Decimal text is converted with correct rounding.
        EXPECT_EQ(edges[static_cast<std::size_t>(k)], std::stod("1e" + std::to_string(kFirstDecade + k)));
    }
    const auto check = [](double d) { EXPECT_EQ(histogram_bin(d), model_bin(d)) << d; };
    for (const double edge : edges) {
        double below = edge;
        double above = edge;
        for (int i = 0; i < 5; ++i) {
            check(below);
            check(above);
            below = std::nextafter(below, 0.0);
            above = std::nextafter(above, kInfinity);
        }
    }
    for (int e = -1074; e < 1024; ++e) {
        const double power = std::ldexp(1.0, e);
        check(power);
        check(std::nextafter(power, 0.0));
        check(std::nextafter(power, kInfinity));
    }
    for (const double d : {0.0, 5e-324, 1e-41, 1e41, std::numeric_limits<double>::max(), kInfinity})
        check(d);
    EXPECT_EQ(histogram_bin(0), 0U);
    EXPECT_EQ(histogram_bin(1e-41), 1U);
    EXPECT_EQ(histogram_bin(1e-40), 2U);
    EXPECT_EQ(histogram_bin(1), 42U);
    EXPECT_EQ(histogram_bin(1e40), 82U);
    EXPECT_EQ(histogram_bin(kInfinity), 83U);
}

class DifferenceBackend : public ::testing::TestWithParam<Backend> {
   protected:
    void SetUp() override {
        if (!backend_available(GetParam())) GTEST_SKIP() << "not on this machine";
    }
    [[nodiscard]] const DifferenceKernels& kernels() const { return difference_kernels(GetParam()); }
    FloatEnvironment environment_{Rounding::to_nearest};
};
INSTANTIATE_TEST_SUITE_P(All, DifferenceBackend,
                         ::testing::Values(Backend::portable, Backend::avx2, Backend::avx512),
                         [](const auto& chosen) { return std::string(backend_name(chosen.param)); });

template <class T>
void equals_model(const DifferenceKernels& kernels) {
    std::mt19937_64 random(test_seed(1));
    for (const Tolerance& tolerance : tolerances()) {
        for (const Kind kind : kKinds) {
            for (const bool nan_equal : {true, false}) {
                const DifferenceRule rule{tolerance, nan_equal};
                const std::size_t n = 100 + random() % 400;
                const Data<T> data = make<T>(kind, n, tolerance, random);
                const std::uint64_t index = random() % 1000;
                DifferenceStats stats;
                run(kernels, data.a.data(), data.b.data(), n, index, rule, &stats);
                SCOPED_TRACE(::testing::Message()
                             << "atol " << tolerance.atol << " rtol " << tolerance.rtol << " kind "
                             << static_cast<int>(kind) << " nan_equal " << nan_equal);
                expect_same(stats, model(scalars(data.a), scalars(data.b), index, rule));
                if (::testing::Test::HasFailure()) return;
            }
        }
    }
}
TEST_P(DifferenceBackend, EqualsTheModelF32) { equals_model<float>(kernels()); }
TEST_P(DifferenceBackend, EqualsTheModelF64) { equals_model<double>(kernels()); }

// Whole blocks lie in one decade, at its edges, in a few, or reach to infinity.
TEST_P(DifferenceBackend, CountsBlocksOfFewDecades) {
    std::mt19937_64 random(test_seed(6));
    const auto& edges = histogram_tables().edges;
    for (std::size_t at = 0; at < edges.size(); ++at) {
        for (const std::size_t decades : {1, 2, 5, 12}) {
            std::vector<double> a(300);
            std::vector<double> b(a.size());
            for (double& value : b) {
                value = edges[std::min(at + random() % decades, edges.size() - 1)];
                if (random() % 3 == 0) value = std::nextafter(value, random() % 2 == 0 ? 0.0 : kInfinity);
                if (random() % 3 == 0) value = -value;
            }
            if (at % 7 == 3) b[random() % b.size()] = kInfinity;
            const DifferenceRule rule{{edges[std::min(at + random() % 3, edges.size() - 1)], 0}, true};
            DifferenceStats stats;
            run(kernels(), a.data(), b.data(), a.size(), 0, rule, &stats);
            SCOPED_TRACE(::testing::Message() << "from " << edges[at] << ", decades " << decades);
            expect_same(stats, model(scalars(a), scalars(b), 0, rule));
            if (::testing::Test::HasFailure()) return;
        }
    }
}

template <class T>
void equals_portable(const DifferenceKernels& kernels) {
    std::mt19937_64 random(test_seed(2));
    std::vector<std::byte> bytes_a(5000 * sizeof(T) + 64);
    std::vector<std::byte> bytes_b(bytes_a.size());
    for (const std::size_t n : lengths()) {
        for (const Kind kind : kKinds) {
            const Tolerance tolerance = tolerances()[random() % tolerances().size()];
            const DifferenceRule rule{tolerance, random() % 2 != 0};
            const Data<T> data = make<T>(kind, n, tolerance, random);
            DifferenceStats expected;
            run(kPortableDifference, data.a.data(), data.b.data(), n, 7, rule, &expected);
            // At any address.
            std::byte* at_a = bytes_a.data() + random() % 64;
            std::byte* at_b = bytes_b.data() + random() % 64;
            if (n != 0) {
                std::memcpy(at_a, data.a.data(), n * sizeof(T));
                std::memcpy(at_b, data.b.data(), n * sizeof(T));
            }
            DifferenceStats stats;
            run(kernels, reinterpret_cast<const T*>(at_a), reinterpret_cast<const T*>(at_b), n, 7, rule,
                &stats);
            SCOPED_TRACE(::testing::Message()
                         << "n " << n << " atol " << tolerance.atol << " rtol " << tolerance.rtol << " kind "
                         << static_cast<int>(kind) << " nan_equal " << rule.nan_equal);
            expect_same(stats, expected);
            if (::testing::Test::HasFailure()) return;
        }
    }
}
TEST_P(DifferenceBackend, EqualsPortableForEveryLengthAndAlignmentF32) { equals_portable<float>(kernels()); }
TEST_P(DifferenceBackend, EqualsPortableForEveryLengthAndAlignmentF64) { equals_portable<double>(kernels()); }

// Pieces in any order, into one statistic or merged from several, give what one call gives.
template <class T>
void cuts(const DifferenceKernels& kernels) {
    std::mt19937_64 random(test_seed(3));
    for (int round = 0; round < 120; ++round) {
        const Kind kind = kKinds[static_cast<std::size_t>(round) % kKinds.size()];
        const Tolerance tolerance = tolerances()[random() % tolerances().size()];
        const DifferenceRule rule{tolerance, random() % 2 != 0};
        const std::size_t n = 1 + random() % 3000;
        const Data<T> data = make<T>(kind, n, tolerance, random);
        DifferenceStats whole;
        run(kPortableDifference, data.a.data(), data.b.data(), n, 11, rule, &whole);
        std::vector<std::pair<std::size_t, std::size_t>> pieces;
        for (std::size_t at = 0; at < n;) {
            const std::size_t end = std::min(n, at + 1 + random() % (round % 2 != 0 ? 100 : 1500));
            pieces.emplace_back(at, end);
            at = end;
        }
        if (random() % 3 != 0) std::shuffle(pieces.begin(), pieces.end(), random);
        DifferenceStats one;
        std::array<DifferenceStats, 3> several;
        for (const auto& [begin, end] : pieces) {
            const T* a = data.a.data() + begin;
            const T* b = data.b.data() + begin;
            run(kernels, a, b, end - begin, 11 + begin, rule, &one);
            run(kernels, a, b, end - begin, 11 + begin, rule, &several[random() % several.size()]);
        }
        SCOPED_TRACE(::testing::Message() << "round " << round << " kind " << static_cast<int>(kind));
        expect_same(one, whole);
        DifferenceStats merged = several[2];
        merged.merge(several[0]);
        merged.merge(several[1]);
        merged.merge(DifferenceStats{});
        expect_same(merged, whole);
        if (::testing::Test::HasFailure()) return;
    }
}
TEST_P(DifferenceBackend, ResultsDoNotDependOnTheCutF32) { cuts<float>(kernels()); }
TEST_P(DifferenceBackend, ResultsDoNotDependOnTheCutF64) { cuts<double>(kernels()); }

TEST_P(DifferenceBackend, DecidesWhereRoundingCannot) {
    struct Case {
        double a, b;
        Tolerance tolerance;
        bool differs;
    };
    const double next = std::nextafter(0.1, 1.0);
    const std::vector<Case> cases = {
        {1, 1.5, {0.5, 0}, false},
        {1, 1.5, {std::nextafter(0.5, 0.0), 0}, true},
        {1, -0x1p-60, {1, 0}, true},  // a - b rounds to atol from above
        {1, 0x1p-60, {1, 0}, false},  // and from below
        {-1, 0x1p-1074, {1, 0}, true},
        {-1, -0x1p-1074, {1, 0}, false},
        {0, 5e-324, {5e-324, 0}, false},
        {0, 1e-323, {5e-324, 0}, true},
        {0, 5e-324, {0, 1}, true},
        {8, 12, {0, 0.5}, false},
        {8, std::nextafter(12.0, 13.0), {0, 0.5}, true},
        {8, 13, {1, 0.5}, false},
        {8, std::nextafter(13.0, 14.0), {1, 0.5}, true},
        {3, 3 + 0.3, {0, 0.1}, false},  // 3 + 0.3 lies below 3.3 exactly: 0.1 is rounded up
        {1, 1 + next, {0, 0.1}, true},
        {0x1p-1000, 0x1.8p-1000, {0, 0.5}, false},
        {0x1p-1070, 0x1.8p-1070, {0, 0.5}, false},
        {0x1p-1070, 0x1.9p-1070, {0, 0.5}, true},
        {1.7e308, -1.7e308, {0, 1}, true},  // a - b is beyond float64
        {1.7e308, -1.7e308, {0, 2}, false},
        {1.7e308, -1.7e308, {1.7e308, 1}, false},
        {1.7e308, -1.7e308, {std::nextafter(1.7e308, 0.0), 1}, true},
    };
    for (const Case& c : cases) {
        SCOPED_TRACE(::testing::Message()
                     << c.a << ' ' << c.b << ' ' << c.tolerance.atol << ' ' << c.tolerance.rtol);
        ASSERT_EQ(model_exceeds(Scalar::of(c.a), Scalar::of(c.b), c.tolerance), c.differs);
        for (std::size_t at = 0; at < 70; ++at) {
            std::vector<double> a(70, 4);
            std::vector<double> b(70, 4);
            a[at] = c.a;
            b[at] = c.b;
            DifferenceStats stats;
            kernels().f64(a.data(), b.data(), a.size(), 0, {c.tolerance, true}, &stats);
            ASSERT_EQ(stats.different, c.differs ? 1U : 0U);
            ASSERT_EQ(stats.first, c.differs ? at : kNowhere);
            ASSERT_EQ(stats.max_abs_at, at);
        }
    }
}

void expect_verdict(const DifferenceKernels& kernels, double a, double b, const Tolerance& tolerance) {
    DifferenceStats stats;
    kernels.f64(&a, &b, 1, 0, {tolerance, true}, &stats);
    ASSERT_EQ(stats.different == 1, model_exceeds(Scalar::of(a), Scalar::of(b), tolerance))
        << std::hexfloat << a << ' ' << b << ' ' << tolerance.atol << ' ' << tolerance.rtol;
}

// Thresholds within a few units of the last place where sums leave float64.
TEST_P(DifferenceBackend, DecidesNextToOverflow) {
    std::mt19937_64 random(test_seed(5));
    std::uniform_real_distribution<double> uniform(0.75, 1);
    constexpr double top = std::numeric_limits<double>::max();
    const auto sign = [&] { return random() % 2 != 0 ? 1.0 : -1.0; };
    for (int round = 0; round < 20000; ++round) {
        const double a = top * uniform(random);
        const double b =
            -(top - a + std::ldexp(sign() * uniform(random), 970 - static_cast<int>(random() % 3)));
        const double rtol = uniform(random);
        const double atol =
            top - rtol * a + sign() * std::ldexp(uniform(random), 971 - static_cast<int>(random() % 4));
        if (!(atol >= 0)) continue;
        expect_verdict(kernels(), a, b, {atol, rtol});
        if (HasFatalFailure()) return;
    }
}

// And where float64 has steps of one size only.
TEST_P(DifferenceBackend, DecidesAmongDenormals) {
    std::mt19937_64 random(test_seed(6));
    std::uniform_real_distribution<double> uniform(0, 2);
    for (int round = 0; round < 20000; ++round) {
        const int scale = -1074 + static_cast<int>(random() % 3) * 40;
        const auto any = [&] { return std::ldexp(static_cast<double>(random() % 16), scale); };
        const double a = any();
        const double b = random() % 2 != 0 ? any() : -any();
        const double rtol = random() % 2 != 0 ? static_cast<double>(random() % 5) / 4 : uniform(random);
        expect_verdict(kernels(), a, b, {random() % 3 != 0 ? any() : 0, rtol});
        if (HasFatalFailure()) return;
    }
}

TEST_P(DifferenceBackend, NansAndInfinities) {
    const std::vector<double> a = {kNan, kNan, 1, kInfinity, kInfinity, -kInfinity, 0, 2};
    const std::vector<double> b = {-kNan, 1, kNan, kInfinity, -kInfinity, 3, -0.0, 2};
    for (const bool nan_equal : {true, false}) {
        DifferenceStats stats;
        kernels().f64(a.data(), b.data(), a.size(), 0, {{1e308, 1e308}, nan_equal}, &stats);
        EXPECT_EQ(stats.different, nan_equal ? 4U : 5U);
        EXPECT_EQ(stats.infinite, stats.different);
        EXPECT_EQ(stats.first, nan_equal ? 1U : 0U);
        EXPECT_EQ(stats.max_abs, kInfinity);
        EXPECT_EQ(stats.max_abs_at, stats.first);
        EXPECT_EQ(stats.max_rel_different_at, stats.first);
        EXPECT_EQ(stats.over[kHistogramBins - 1], stats.different);
        EXPECT_EQ(stats.all[0], a.size() - stats.different);
        EXPECT_EQ(stats.largest, 2);
        EXPECT_EQ(stats.sum_squares, 0);
    }
}

TEST_P(DifferenceBackend, FindsOneDifferenceAnywhere) {
    for (const std::size_t n : {1U, 63U, 64U, 65U, 1024U, 1100U}) {
        std::vector<float> a(n, 1);
        for (std::size_t at = 0; at < n; ++at) {
            std::vector<float> b = a;
            b[at] = 1.25F;
            DifferenceStats stats;
            kernels().f32(a.data(), b.data(), n, 1000, {{0.2, 0}, true}, &stats);
            ASSERT_EQ(stats.different, 1U);
            ASSERT_EQ(stats.first, 1000 + at);
            ASSERT_EQ(stats.max_abs, 0.25);
            ASSERT_EQ(stats.max_rel_at, 1000 + at);
            ASSERT_EQ(stats.all[0], n - 1);
            ASSERT_EQ(stats.over[histogram_bin(0.25)], 1U);
            ASSERT_EQ(stats.sum_squares_different, 0.0625);
        }
    }
}

// ---- compare_elements: every type, byte order and stride ----

struct Stored {
    std::vector<std::byte> bytes;
    ElementView view;
};

// Bits of one scalar of this type, often close to `other`.
std::uint64_t random_scalar(DType scalar, std::uint64_t other, std::mt19937_64& random) {
    const auto bits = static_cast<unsigned>(8 * item_bytes(scalar));
    const std::uint64_t mask = bits == 64 ? ~0ULL : (1ULL << bits) - 1;
    static const std::vector<std::uint64_t> extremes = {0,
                                                        1,
                                                        ~0ULL,
                                                        1ULL << 63,
                                                        (1ULL << 63) - 1,
                                                        1ULL << 53,
                                                        (1ULL << 53) + 1,
                                                        ~(1ULL << 53),
                                                        1ULL << 51,
                                                        (1ULL << 51) - 1,
                                                        ~(1ULL << 51),
                                                        0ULL - (1ULL << 51),
                                                        1000};
    switch (random() % 4) {
        case 0: return other & mask;
        case 1: return (other + random() % 5 - 2) & mask;
        case 2: return extremes[random() % extremes.size()] >> (random() % 2 != 0 ? 64 - bits : 0) & mask;
        default: return random() & mask;
    }
}

Scalar decode(DType scalar, std::uint64_t bits) {
    switch (scalar) {
        case DType::f16: {
            const double sign = (bits & 0x8000) != 0 ? -1 : 1;
            const int exponent = static_cast<int>(bits >> 10 & 31);
            const auto fraction = static_cast<double>(bits & 1023);
            if (exponent == 31) return Scalar::of(fraction != 0 ? kNan : sign * kInfinity);
            if (exponent == 0) return Scalar::of(sign * std::ldexp(fraction, -24));
            return Scalar::of(sign * std::ldexp(fraction + 1024, exponent - 25));
        }
        case DType::bf16:
            return Scalar::of(
                static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits << 16))));
        case DType::f32:
        case DType::c64:
            return Scalar::of(static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits))));
        case DType::f64:
        case DType::c128: return Scalar::of(std::bit_cast<double>(bits));
        case DType::i8: return Scalar::of_integer(static_cast<std::int8_t>(bits));
        case DType::i16: return Scalar::of_integer(static_cast<std::int16_t>(bits));
        case DType::i32: return Scalar::of_integer(static_cast<std::int32_t>(bits));
        case DType::i64: return Scalar::of_integer(static_cast<std::int64_t>(bits));
        case DType::boolean: return Scalar::of_integer(bits != 0 ? 1 : 0);
        default: return Scalar::of_integer(bits);
    }
}

Stored lay_out(DType dtype, const std::vector<std::uint64_t>& bits, std::uint64_t stride, bool swap) {
    Stored stored;
    const std::size_t pair = scalars_per_item(dtype);
    const std::size_t size = item_bytes(scalar_type(dtype));
    stored.bytes.assign(bits.size() / pair * stride + 1, std::byte{0x5A});
    stored.view = dense_view(dtype, stored.bytes.data() + 1);
    stored.view.stride = stride;
    stored.view.swap = swap;
    for (std::size_t i = 0; i < bits.size(); ++i) {
        std::byte* to = stored.bytes.data() + 1 + i / pair * stride + i % pair * size;
        for (std::size_t k = 0; k < size; ++k) {
            to[k] = static_cast<std::byte>(bits[i] >> 8 * (swap ? size - 1 - k : k) & 0xFF);
        }
    }
    return stored;
}

TEST_P(DifferenceBackend, EveryTypeOrderAndStride) {
    std::mt19937_64 random(test_seed(4));
    for (std::uint8_t number = 1; number <= 15; ++number) {
        const DType dtype = *dtype_from_number(number);
        const DType scalar = scalar_type(dtype);
        for (int round = 0; round < 24; ++round) {
            const std::size_t pair = scalars_per_item(dtype);
            const std::size_t n = (1 + random() % (round == 0 ? 9000 : 600)) * pair;
            const bool small = random() % 2 != 0;  // 64-bit integers that float64 holds
            std::vector<std::uint64_t> bits_a(n);
            std::vector<std::uint64_t> bits_b(n);
            for (std::size_t i = 0; i < n; ++i) {
                bits_a[i] = random_scalar(scalar, random(), random);
                if (small && item_bytes(scalar) == 8 && !is_floating(scalar)) bits_a[i] %= 1ULL << 40;
                bits_b[i] = random_scalar(scalar, bits_a[i], random);
                if (small && item_bytes(scalar) == 8 && !is_floating(scalar)) bits_b[i] %= 1ULL << 40;
            }
            const std::size_t item = item_bytes(dtype);
            const Stored a =
                lay_out(dtype, bits_a, item + (random() % 2 != 0 ? random() % 20 : 0), random() % 2 != 0);
            const Stored b =
                lay_out(dtype, bits_b, item + (random() % 2 != 0 ? random() % 20 : 0), random() % 2 != 0);
            const DifferenceRule rule{tolerances()[random() % tolerances().size()], random() % 2 != 0};
            const std::uint64_t first = random() % n;
            const std::uint64_t count = n - first - random() % (n - first);
            std::vector<Scalar> values_a;
            std::vector<Scalar> values_b;
            for (std::size_t i = first; i < first + count; ++i) {
                values_a.push_back(decode(scalar, bits_a[i]));
                values_b.push_back(decode(scalar, bits_b[i]));
            }
            DifferenceStats stats;
            compare_elements(kernels(), a.view, b.view, first, count, 5 + first, rule, &stats);
            SCOPED_TRACE(::testing::Message()
                         << dtype_name(dtype) << " round " << round << " n " << n << " atol "
                         << rule.tolerance.atol << " rtol " << rule.tolerance.rtol);
            expect_same(stats, model(values_a, values_b, 5 + first, rule));
            if (HasFailure()) return;
        }
    }
}

TEST_P(DifferenceBackend, IntegersOfTwoTypes) {
    std::vector<std::int64_t> a = {std::numeric_limits<std::int64_t>::min(), -1, 0, 1LL << 53, 7, -9, 3};
    std::vector<std::uint64_t> b = {~0ULL, ~0ULL, 0, (1ULL << 53) + 1, 7, 9, 1ULL << 63};
    std::mt19937_64 random(test_seed(77));
    for (int i = 0; i < 3000; ++i) {  // the last ones in the part that float64 holds, and beyond
        a.push_back(static_cast<std::int64_t>(random()) >> (random() % 64));
        b.push_back(random() % 3 == 0 ? static_cast<std::uint64_t>(a.back()) + random() % 3
                                      : random() >> (random() % 64));
    }
    for (const Tolerance& tolerance : {Tolerance{0, 0}, {1, 0}, {0x1p64, 0}, {0, 1}, {0.5, 0.25}}) {
        const DifferenceRule rule{tolerance, true};
        DifferenceStats stats;
        compare_elements(kernels(), dense_view(DType::i64, a.data()), dense_view(DType::u64, b.data()), 0,
                         a.size(), 4, rule, &stats);
        expect_same(stats, model(scalars(a), scalars(b), 4, rule));
        DifferenceStats other;
        compare_elements(kernels(), dense_view(DType::u64, b.data()), dense_view(DType::i64, a.data()), 0,
                         a.size(), 4, rule, &other);
        expect_same(other, model(scalars(b), scalars(a), 4, rule));
    }
}

TEST_P(DifferenceBackend, IntegersAgainstNumbers) {
    struct Case {
        std::int64_t a;
        double b;
        double distance;
    };
    constexpr std::int64_t odd = (1LL << 53) + 1;
    const std::vector<Case> cases = {
        {odd, 0x1p53, 1},
        {odd, 0, 0x1p53},  // a tie, to even
        // Just beside the tie: a sum that was rounded before would not see it.
        {odd, 0x1p-60, 0x1p53},
        {odd, -0x1p-60, 0x1p53 + 2},
        {odd + 2, 0x1p-1074, 0x1p53 + 2},
        {odd + 2, -0x1p-1074, 0x1p53 + 4},
        {std::numeric_limits<std::int64_t>::max(), 0x1p63, 1},
        {std::numeric_limits<std::int64_t>::min(), -0x1p63, 0},
        {-1, 0.5, 1.5},
        {0, -0.0, 0},
        {0, 0x1p-1074, 0x1p-1074},
        {5, std::numeric_limits<double>::max(), std::numeric_limits<double>::max()},
        {5, kInfinity, kInfinity},
        {5, std::nan(""), kInfinity},
        {1LL << 62, 0x1p62, 0},
    };
    for (const Case& c : cases) {
        for (const std::int64_t beyond : {std::int64_t{0}, std::int64_t{1} << 60}) {
            // A second pair forces the way for large integers.
            const std::vector<std::int64_t> whole = {c.a, beyond};
            const std::vector<double> numbers = {c.b, static_cast<double>(beyond)};
            DifferenceStats stats;
            compare_elements(kernels(), dense_view(DType::i64, whole.data()),
                             dense_view(DType::f64, numbers.data()), 0, 2, 0, {}, &stats);
            EXPECT_EQ(stats.max_abs, c.distance) << c.a << ' ' << c.b;
            EXPECT_EQ(stats.different, c.distance != 0 ? 1 : 0);
            EXPECT_EQ(stats.infinite, std::isinf(c.distance) ? 1 : 0);
            DifferenceStats other;
            compare_elements(kernels(), dense_view(DType::f64, numbers.data()),
                             dense_view(DType::i64, whole.data()), 0, 2, 0, {}, &other);
            EXPECT_EQ(other.max_abs, c.distance) << c.a << ' ' << c.b;
            EXPECT_EQ(other.different, stats.different);
            if (c.distance == 0 || std::isinf(c.distance)) continue;
            // The verdict is exact: at a tolerance that the distance was rounded to, either may hold.
            const DifferenceRule wider{{std::nextafter(c.distance, kInfinity), 0}, true};
            const DifferenceRule narrower{{std::nextafter(c.distance, 0), 0}, true};
            DifferenceStats within;
            DifferenceStats without;
            compare_elements(kernels(), dense_view(DType::i64, whole.data()),
                             dense_view(DType::f64, numbers.data()), 0, 2, 0, wider, &within);
            compare_elements(kernels(), dense_view(DType::i64, whole.data()),
                             dense_view(DType::f64, numbers.data()), 0, 2, 0, narrower, &without);
            EXPECT_EQ(within.different, 0);
            EXPECT_EQ(without.different, 1);
        }
    }
    // Exactly 2^53 + 1 - 2^-60 apart, which no float64 is.
    const std::int64_t whole = odd;
    const double number = 0x1p-60;
    for (const auto& [atol, different] : {std::pair{0x1p53, 1U}, {0x1p53 + 2, 0U}}) {
        DifferenceStats stats;
        compare_elements(kernels(), dense_view(DType::i64, &whole), dense_view(DType::f64, &number), 0, 1, 0,
                         {{atol, 0}, true}, &stats);
        EXPECT_EQ(stats.different, different);
    }
}

TEST_P(DifferenceBackend, IntegerExtremes) {
    constexpr std::int64_t low = std::numeric_limits<std::int64_t>::min();
    constexpr std::int64_t high = std::numeric_limits<std::int64_t>::max();
    const std::vector<std::int64_t> a = {low, high, 0, 1LL << 53, (1LL << 53) + 1, -1, 9, low, high};
    const std::vector<std::int64_t> b = {high, low, low, (1LL << 53) + 1, 1LL << 53, 1, 9, low + 1, high - 1};
    for (const Tolerance& tolerance : {Tolerance{0, 0}, {1, 0}, {0x1p64, 0}, {0, 1}, {0, 2}, {0x1p63, 1}}) {
        const DifferenceRule rule{tolerance, true};
        DifferenceStats stats;
        compare_elements(kernels(), dense_view(DType::i64, a.data()), dense_view(DType::i64, b.data()), 0,
                         a.size(), 0, rule, &stats);
        expect_same(stats, model(scalars(a), scalars(b), 0, rule));
    }
    // Where the way to float64 ends.
    for (const int power : {50, 51, 52, 53, 62}) {
        for (const std::int64_t center : {std::int64_t{1} << power, -(std::int64_t{1} << power)}) {
            for (std::int64_t off = -2; off <= 2; ++off) {
                const std::vector<std::int64_t> x = {center + off};
                const std::vector<std::int64_t> y = {center};
                const std::vector<std::uint64_t> ux = {static_cast<std::uint64_t>(x[0])};
                const std::vector<std::uint64_t> uy = {static_cast<std::uint64_t>(y[0])};
                const DifferenceRule rule{{1, 0}, true};
                DifferenceStats stats;
                compare_elements(kernels(), dense_view(DType::i64, x.data()),
                                 dense_view(DType::i64, y.data()), 0, 1, 3, rule, &stats);
                expect_same(stats, model(scalars(x), scalars(y), 3, rule));
                DifferenceStats stats_u;
                compare_elements(kernels(), dense_view(DType::u64, ux.data()),
                                 dense_view(DType::u64, uy.data()), 0, 1, 3, rule, &stats_u);
                expect_same(stats_u, model(scalars(ux), scalars(uy), 3, rule));
            }
        }
    }
    const std::vector<std::uint64_t> c = {0, ~0ULL, 1ULL << 63, ~0ULL, 1ULL << 53, 0ULL - (1ULL << 51)};
    const std::vector<std::uint64_t> d = {~0ULL, 0, 1, ~0ULL - 1, (1ULL << 53) + 1, 0};
    for (const Tolerance& tolerance : {Tolerance{0, 0}, {1, 0}, {0x1p64, 0}, {0, 1}}) {
        const DifferenceRule rule{tolerance, true};
        DifferenceStats stats;
        compare_elements(kernels(), dense_view(DType::u64, c.data()), dense_view(DType::u64, d.data()), 0,
                         c.size(), 0, rule, &stats);
        expect_same(stats, model(scalars(c), scalars(d), 0, rule));
    }
}

TEST(Difference, TheActiveBackendIsTheOneInUse) {
    const DifferenceKernels& active = difference_kernels();
    EXPECT_EQ(&active, &difference_kernels(active_backend()));
    EXPECT_EQ(&difference_kernels(Backend::portable), &kPortableDifference);
}

}  // namespace
}  // namespace twinrun
