#include "digest/digest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "digest/coefficients.hpp"
#include "digest/field61.hpp"
#include "element/exact.hpp"
#include "platform/float_environment.hpp"
#include "support/numbers.hpp"
#include "support/seed.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace twinrun {
namespace {

using testing::kInfinity;

using Random = std::mt19937_64;
double unit(Random& random) { return static_cast<double>(static_cast<std::int64_t>(random())) * 0x1p-63; }

std::vector<Backend> backends() {
    std::vector<Backend> all;
    for (const Backend b : {Backend::portable, Backend::avx2, Backend::avx512}) {
        if (backend_available(b)) all.push_back(b);
    }
    return all;
}

CellRule rule_of(const Tolerance& tolerance, unsigned bits) {
    return *cell_rule(tolerance, bits).operator->();
}

std::string describe(const CellRule& rule, std::size_t n) {
    return "kind " + std::to_string(static_cast<int>(rule.kind)) + ", bits " +
           std::to_string(rule.residue_bits) + ", coarse shift " + std::to_string(rule.coarse_shift) +
           ", exponent " + std::to_string(rule.fine_exponent) + ", origin " +
           std::to_string(rule.key_origin) + ", n " + std::to_string(n);
}

// ---- values ----

// A value that could go wrong: near a boundary of the rule's cells or of what kernels do fast, or special.
template <class T>
T awkward(const CellRule& rule, Random& random) {
    const int e = std::clamp(rule.kind == CellKind::absolute ? rule.fine_exponent : -20, -1070, 1000);
    switch (random() % 12) {
        case 0: return std::numeric_limits<T>::quiet_NaN();
        case 1: return std::numeric_limits<T>::infinity();
        case 2: return -std::numeric_limits<T>::infinity();
        case 3: return T(0);
        case 4: return -T(0);
        case 5:
            return std::numeric_limits<T>::denorm_min() * static_cast<T>(static_cast<int>(random() % 5) - 2);
        case 6: return std::numeric_limits<T>::max() * static_cast<T>(unit(random));
        case 7: return static_cast<T>(1e36);
        case 8: {  // any bits at all
            // Among doubles also the denormal ones whose bits are the seeds of special tokens.
            constexpr std::array<std::uint64_t, 3> seeds = {kNanSeed, kPositiveInfinitySeed,
                                                            kNegativeInfinitySeed};
            const std::uint64_t bits = sizeof(T) == 8 && random() % 3 == 0 ? seeds[random() % 3] : random();
            T value;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        }
        case 9: {  // where tokens, or wider multiplications, begin
            constexpr std::array<int, 8> exponents = {26, 27, 28, 39, 40, 51, 52, 59};
            const double x =
                std::ldexp(1.0, std::min(e + exponents[random() % 8] + static_cast<int>(random() % 2), 1023));
            const double y = std::nextafter(x, (random() & 1) != 0 ? kInfinity : -kInfinity);
            return static_cast<T>((random() & 1) != 0 ? y : -y);
        }
        case 10: return static_cast<T>(std::ldexp(unit(random), e + static_cast<int>(random() % 64)));
        default: {  // a boundary of cells, and its neighbours
            const auto k = static_cast<double>(static_cast<std::int64_t>(random()) >> (8 + random() % 55));
            const T x = static_cast<T>(std::ldexp(k, e));
            switch (random() % 3) {
                case 0: return x;
                case 1: return std::nextafter(x, std::numeric_limits<T>::infinity());
                default: return std::nextafter(x, -std::numeric_limits<T>::infinity());
            }
        }
    }
}

// Values at x + offset bytes, so that nothing is aligned.
template <class T>
class Values {
   public:
    Values(std::size_t n, std::size_t offset) : memory_(n * sizeof(T) + offset), offset_(offset) {}
    void set(std::size_t i, T value) {
        std::memcpy(memory_.data() + offset_ + i * sizeof(T), &value, sizeof(T));
    }
    [[nodiscard]] const T* data() const { return reinterpret_cast<const T*>(memory_.data() + offset_); }

   private:
    std::vector<std::byte> memory_;
    std::size_t offset_;
};

template <class T>
Values<T> make_values(std::size_t n, const CellRule& rule, Random& random) {
    Values<T> values(n, random() % 64);
    const int e = std::clamp(rule.kind == CellKind::absolute ? rule.fine_exponent : -20, -1070, 1000);
    const int span = static_cast<int>(random() % 70);
    const unsigned kind = static_cast<unsigned>(random() % 5);
    const T fill = kind == 2 ? std::numeric_limits<T>::quiet_NaN() : awkward<T>(rule, random);
    const std::size_t region = random() % 2 == 0 ? 64 : 50 + random() % 200;
    for (std::size_t i = 0; i < n; ++i) {
        T value = static_cast<T>(std::ldexp(unit(random), e + span));
        if (kind == 0 || (kind == 1 && random() % 64 == 0)) value = awkward<T>(rule, random);
        if ((kind == 2 || kind == 3) && i / region % 2 != 0) value = fill;  // regions without data
        values.set(i, value);
    }
    return values;
}

// Rules as tolerances give them, and any others that kernels accept.
CellRule make_rule(Random& random) {
    constexpr std::array<unsigned, 3> bits = {0, 2, 4};
    const auto any = [&] {
        return std::ldexp(1 + std::fabs(unit(random)), static_cast<int>(random() % 60) - 45);
    };
    switch (random() % 6) {
        case 0: return rule_of({any(), 0}, bits[random() % 3]);
        case 1: return rule_of({random() % 3 == 0 ? 0 : any(), std::min(any(), 0.5)}, bits[random() % 3]);
        case 2:
            return rule_of({std::fabs(std::bit_cast<double>(random() & ~(1ULL << 62))), 0},
                           bits[random() % 3]);
        case 3: {
            CellRule rule;  // equal values only, with residues as well
            rule.residue_bits = static_cast<std::uint8_t>(bits[random() % 3]);
            rule.coarse_shift = static_cast<std::uint8_t>(random() % 5);
            return rule;
        }
        case 4: {
            CellRule rule;
            rule.kind = CellKind::absolute;
            rule.residue_bits = static_cast<std::uint8_t>(bits[random() % 3]);
            rule.coarse_shift = static_cast<std::uint8_t>(random() % 5);
            rule.fine_exponent = static_cast<int>(random() % 2098) - 1078;
            return rule;
        }
        default: {
            CellRule rule;
            rule.kind = CellKind::relative;
            rule.residue_bits = static_cast<std::uint8_t>(bits[random() % 3]);
            rule.coarse_shift = static_cast<std::uint8_t>(random() % 5);
            rule.fine_exponent = static_cast<int>(random() % 56);
            constexpr std::array<double, 8> origins = {0, 5e-324, 1e-310, 0x1p-1000, 1e-6, 1, 1e20, 1e300};
            rule.key_origin = origins[random() % origins.size()];
            return rule;
        }
    }
}

Rounding rounding_of(const CellRule& rule) {
    return rule.kind == CellKind::relative ? Rounding::to_nearest : Rounding::downward;
}

struct Made {
    BlockDigest digest;
    std::vector<std::byte> residues;
    bool operator==(const Made& other) const {
        return digest.fine == other.digest.fine && digest.coarse == other.digest.coarse &&
               digest.counts.nans == other.digest.counts.nans &&
               digest.counts.tokens == other.digest.counts.tokens && residues == other.residues;
    }
};

template <class T>
Made make(const DigestKernels& kernels, const T* x, std::size_t n, const CellRule& rule) {
    Made made;
    const std::size_t bytes = residue_bytes(n, rule.residue_bits);
    made.residues.assign(bytes + kResidueLine, std::byte{0xA5});  // what lies behind must stay
    const FloatEnvironment guard(rounding_of(rule));
    if constexpr (sizeof(T) == 4) {
        kernels.block_f32(x, n, rule, &made.digest, rule.residue_bits == 0 ? nullptr : made.residues.data());
    } else {
        kernels.block_f64(x, n, rule, &made.digest, rule.residue_bits == 0 ? nullptr : made.residues.data());
    }
    return made;
}

// ---- every backend equals the portable one ----

TEST(DigestDispatch, GivesTheBackendAskedFor) {
    EXPECT_EQ(&digest_kernels(Backend::portable), &kPortableDigest);
#if defined(TWINRUN_X86)
    EXPECT_EQ(&digest_kernels(Backend::avx2), &kAvx2Digest);
    EXPECT_EQ(&digest_kernels(Backend::avx512), &kAvx512Digest);
    EXPECT_NE(kAvx2Digest.block_f32, kPortableDigest.block_f32);
    EXPECT_NE(kAvx512Digest.block_f32, kPortableDigest.block_f32);
#endif
    EXPECT_EQ(&digest_kernels(), &digest_kernels(active_backend()));
}

class Backends : public ::testing::TestWithParam<Backend> {
   protected:
    void SetUp() override {
        if (!backend_available(GetParam())) GTEST_SKIP() << "not on this machine";
    }
    template <class T>
    void expect_portable(const T* x, std::size_t n, const CellRule& rule) {
        const Made expected = make(kPortableDigest, x, n, rule);
        const Made made = make(digest_kernels(GetParam()), x, n, rule);
        EXPECT_EQ(made.digest.fine, expected.digest.fine) << describe(rule, n);
        EXPECT_EQ(made.digest.coarse, expected.digest.coarse) << describe(rule, n);
        ASSERT_EQ(made, expected) << describe(rule, n);
    }
};

TEST_P(Backends, EqualThePortableOneForAnyValuesAndRules) {
    Random random(test_seed(20));
    for (int round = 0; round < 6000; ++round) {
        const CellRule rule = make_rule(random);
        const std::size_t n = random() % 8 == 0 ? random() % (kLargestBlock + 1) : random() % 700;
        expect_portable(make_values<float>(n, rule, random).data(), n, rule);
        expect_portable(make_values<double>(n, rule, random).data(), n, rule);
        if (HasFatalFailure()) return;
    }
}

CellRule rule_of_kind(CellKind kind) {
    CellRule rule;
    rule.kind = kind;
    return rule;
}
CellRule binary32_rule() { return rule_of_kind(CellKind::binary32); }
CellRule words_rule() { return rule_of_kind(CellKind::words); }

TEST_P(Backends, EqualThePortableOneForNumbersByTheirBits) {
    Random random(test_seed(25));
    const CellRule rule = binary32_rule();
    for (int round = 0; round < 3000; ++round) {
        const std::size_t n = random() % 8 == 0 ? random() % (kLargestBlock + 1) : random() % 700;
        expect_portable(make_values<float>(n, rule, random).data(), n, rule);
        if (HasFatalFailure()) return;
    }
    // The largest products there are, in every place.
    for (const std::uint32_t bits : {0xFF7FFFFFU, 0x7F7FFFFFU, 0xFFFFFFFFU, 0x80000001U, 0x80000000U, 0U}) {
        const std::vector<float> x(kLargestBlock, std::bit_cast<float>(bits));
        expect_portable(x.data(), x.size(), rule);
    }
}

TEST_P(Backends, EqualThePortableOneForScalarsByTheirHalves) {
    Random random(test_seed(26));
    const CellRule rule = words_rule();
    for (int round = 0; round < 3000; ++round) {
        const std::size_t n = random() % 8 == 0 ? random() % (kLargestBlock + 1) : random() % 700;
        const Values<double> x = make_values<double>(n, rule, random);
        expect_portable(x.data(), n, rule);
        if (HasFatalFailure()) return;
        // The same bits as integers.
        const auto* bits = reinterpret_cast<const std::uint64_t*>(x.data());
        BlockDigest expected;
        BlockDigest made;
        kPortableDigest.block_words(bits, n, &expected);
        digest_kernels(GetParam()).block_words(bits, n, &made);
        ASSERT_EQ(made.fine, expected.fine) << n;
        ASSERT_EQ(made.coarse, expected.fine) << n;
        ASSERT_EQ(made.counts.nans + made.counts.tokens, 0U);
    }
    // The largest products there are, in every place.
    for (const std::uint64_t bits :
         {0xFFEFFFFFFFFFFFFFULL, 0xFFFFFFFFFFFFFFFFULL, 0x8000000000000001ULL, 0x8000000000000000ULL}) {
        const std::vector<double> x(kLargestBlock, std::bit_cast<double>(bits));
        expect_portable(x.data(), x.size(), rule);
        BlockDigest expected;
        BlockDigest made;
        const std::vector<std::uint64_t> words(kLargestBlock, bits);
        kPortableDigest.block_words(words.data(), words.size(), &expected);
        digest_kernels(GetParam()).block_words(words.data(), words.size(), &made);
        EXPECT_EQ(made.fine, expected.fine);
    }
}

TEST_P(Backends, EqualThePortableOneForSmallIntegers) {
    Random random(test_seed(27));
    const CellRule rule = rule_of_kind(CellKind::integers);
    for (int round = 0; round < 500; ++round) {
        const std::size_t n = random() % 8 == 0 ? random() % (kLargestBlock + 1) : random() % 700;
        std::vector<float> x(n);  // of up to 16 bits
        std::vector<double> y(n);
        for (std::size_t i = 0; i < n; ++i) {
            x[i] = static_cast<float>(static_cast<std::int16_t>(random()));
            y[i] = random() % 2 == 0 ? static_cast<double>(static_cast<std::int32_t>(random()))
                                     : static_cast<double>(static_cast<std::uint32_t>(random()));
        }
        expect_portable(x.data(), n, rule);
        expect_portable(y.data(), n, rule);
        if (HasFatalFailure()) return;
        EXPECT_EQ(make(digest_kernels(GetParam()), y.data(), n, rule).digest.counts.tokens, 0U);
    }
}

// Digests of dense scalars as they are stored, at an address that is no multiple of anything.
void expect_portable_stored(Backend backend, DType scalar, const CellRule& rule,
                            std::span<const std::byte> bytes, std::size_t offset,
                            std::uint32_t chunk_bytes = 8192) {
    std::vector<std::byte> memory(offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(), memory.begin() + static_cast<std::ptrdiff_t>(offset));
    const std::size_t n = bytes.size() / item_bytes(scalar);
    const std::size_t first = chunk_bytes == 8192 ? 0 : n / 3;  // where the digests begin
    const auto digests = [&](Backend with) {
        DigestSettings settings;
        settings.rule = rule;
        settings.chunk_bytes = chunk_bytes;
        Digester digester(settings, scalar, with);
        std::vector<ChunkDigest> all(bytes.size() / chunk_bytes + 1);
        std::vector<std::byte> residues(residue_bytes(n, 4) + 16 * kResidueLine);
        ElementCounts counts;
        digester.chunks(dense_view(scalar, memory.data() + offset), first, n - first, all.data(),
                        rule.residue_bits == 0 ? nullptr : residues.data(), &counts);
        return std::tuple(all, residues, counts.nans, counts.tokens);
    };
    ASSERT_TRUE(digests(backend) == digests(Backend::portable))
        << dtype_name(scalar) << ", " << describe(rule, n) << ", offset " << offset;
}

constexpr DType kStored[] = {DType::boolean, DType::i8,  DType::u8,   DType::i16, DType::u16,
                             DType::i32,     DType::u32, DType::bf16, DType::f16};

TEST_P(Backends, EqualThePortableOneForScalarsAsTheyAreStored) {
    Random random(test_seed(28));
    for (const DType scalar : kStored) {
        const std::size_t size = item_bytes(scalar);
        std::vector<CellRule> rules = {*cell_rule({}, 4, scalar).operator->()};
        if (is_floating(scalar)) {
            rules.push_back(rule_of({1e-3, 0}, 4));
            rules.push_back(rule_of({1e-3, 1e-3}, 2));
        }
        for (const CellRule& rule : rules) {
            // Every length up to a few steps of any kernel, and around a block and a chunk.
            for (std::size_t n = 1; n < 300; ++n) {
                std::vector<std::byte> bytes(n * size);
                for (std::byte& b : bytes)
                    b = static_cast<std::byte>(random() >> 20);
                expect_portable_stored(GetParam(), scalar, rule, bytes, random() % 64);
                if (HasFatalFailure()) return;
            }
            for (int round = 0; round < 60; ++round) {
                std::vector<std::byte> bytes((4096 * (1 + random() % 4) + random() % 400) / size * size -
                                             200 / size * size);
                const auto repeated = static_cast<std::byte>(random() >> 20);
                for (std::byte& b : bytes)
                    b = round % 3 == 0 ? repeated : static_cast<std::byte>(random() >> 20);
                expect_portable_stored(GetParam(), scalar, rule, bytes, random() % 64);
                if (HasFatalFailure()) return;
            }
            // Chunks of many blocks.
            for (const std::uint32_t chunk : {4096U, 65536U, 1U << 20}) {
                std::vector<std::byte> bytes((1 << 18) + 4096 * (random() % 30) + 600 * size);
                for (std::byte& b : bytes)
                    b = static_cast<std::byte>(random() >> 20);
                expect_portable_stored(GetParam(), scalar, rule, bytes, random() % 64, chunk);
                if (HasFatalFailure()) return;
            }
            // The largest sums there are, in every place; zeros of both signs; NaN.
            for (const unsigned value : {0x00U, 0xFFU, 0x7FU, 0x80U}) {
                expect_portable_stored(GetParam(), scalar, rule,
                                       std::vector<std::byte>(8192, static_cast<std::byte>(value)), 0);
                if (HasFatalFailure()) return;
            }
            if (size != 2) continue;
            std::vector<std::byte> every(2U << 16);
            for (std::uint32_t bits = 0; bits < 1U << 16; ++bits) {
                every[2 * bits] = static_cast<std::byte>(bits & 0xFF);
                every[2 * bits + 1] = static_cast<std::byte>(bits >> 8);
            }
            expect_portable_stored(GetParam(), scalar, rule, every, 2);
            if (HasFatalFailure()) return;
        }
    }
}

TEST_P(Backends, EqualThePortableOneAtEveryLength) {
    Random random(test_seed(21));
    for (const CellRule& rule : {rule_of({1e-3, 0}, 4), rule_of({1e-3, 0}, 2), rule_of({1e-3, 1e-4}, 4),
                                 CellRule{}, binary32_rule(), words_rule()}) {
        const Values<float> x = make_values<float>(kLargestBlock, rule, random);
        const Values<double> y = make_values<double>(kLargestBlock, rule, random);
        std::vector<std::size_t> lengths(300);
        std::iota(lengths.begin(), lengths.end(), 0);
        for (const std::size_t whole : {512U, 1024U, 2048U, 4096U}) {
            for (std::size_t n = whole - 9; n <= std::min<std::size_t>(whole + 9, kLargestBlock); ++n)
                lengths.push_back(n);
        }
        for (const std::size_t n : lengths) {
            expect_portable(x.data(), n, rule);
            expect_portable(y.data(), n, rule);
            if (HasFatalFailure()) return;
        }
    }
}

TEST_P(Backends, EqualThePortableOneAtCellBoundaries) {
    Random random(test_seed(22));
    for (int round = 0; round < 300; ++round) {
        const double atol = std::ldexp(1 + std::fabs(unit(random)), static_cast<int>(random() % 40) - 30);
        const CellRule rule = rule_of({atol, 0}, 4);
        Values<double> x(512, 8);
        Values<float> y(1024, 4);
        const auto boundary = [&] {
            return std::ldexp(
                static_cast<double>(static_cast<std::int64_t>(random()) >> (40 + random() % 23)),
                rule.fine_exponent);
        };
        for (std::size_t i = 0; i < 512; i += 4) {
            const double b = boundary();
            x.set(i, b);
            x.set(i + 1, std::nextafter(b, kInfinity));
            x.set(i + 2, std::nextafter(b, -kInfinity));
            x.set(i + 3, -b);
        }
        for (std::size_t i = 0; i < 1024; i += 4) {
            const auto b = static_cast<float>(boundary());
            y.set(i, b);
            y.set(i + 1, std::nextafter(b, std::numeric_limits<float>::infinity()));
            y.set(i + 2, std::nextafter(b, -std::numeric_limits<float>::infinity()));
            y.set(i + 3, -b);
        }
        expect_portable(x.data(), 512, rule);
        expect_portable(y.data(), 1024, rule);
        if (HasFatalFailure()) return;
    }
}

TEST_P(Backends, EqualThePortableSketch) {
    Random random(test_seed(23));
    const DigestKernels& kernels = digest_kernels(GetParam());
    for (int round = 0; round < 6000; ++round) {
        const unsigned bits = (random() & 1) != 0 ? 2 : 4;
        const std::size_t n = random() % 4 == 0 ? random() % (kLargestBlock + 1) : random() % 600;
        const std::size_t bytes = residue_bytes(n, bits);
        const std::size_t offset = random() % 64;
        std::vector<std::byte> a(bytes + offset);
        std::vector<std::byte> b(bytes + offset);
        const unsigned noise = static_cast<unsigned>(random() % 5);
        for (std::size_t i = 0; i < a.size(); ++i) {
            a[i] = static_cast<std::byte>(random());
            b[i] = noise == 0 || random() % 8 < noise ? static_cast<std::byte>(random()) : a[i];
            if (noise == 4) b[i] = a[i] ^ std::byte{0x88};  // every difference -8, or -2
        }
        SketchBlock expected;
        SketchBlock made;
        kPortableDigest.sketch(a.data() + offset, b.data() + offset, n, bits, &expected);
        kernels.sketch(a.data() + offset, b.data() + offset, n, bits, &made);
        ASSERT_EQ(made.correction, expected.correction) << bits << ' ' << n;
        ASSERT_EQ(made.beyond, expected.beyond) << bits << ' ' << n;
        ASSERT_EQ(made.counts, expected.counts) << bits << ' ' << n;
    }
}

#if defined(__x86_64__)
// What an application compiled for speed, or an interval library, may leave in the register.
TEST_P(Backends, DoNotDependOnTheCallersFloatEnvironment) {
    Random random(test_seed(24));
    const unsigned saved = _mm_getcsr();
    for (int round = 0; round < 200; ++round) {
        DigestSettings settings;
        settings.rule = round % 8 == 1 ? binary32_rule() : round % 8 == 2 ? words_rule() : make_rule(random);
        settings.tolerance = {1, 0};
        settings.kind = round % 10 == 0 ? DigestKind::published : DigestKind::linear;
        std::vector<double> x(1000);
        std::vector<float> y(1000);
        for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] = random() % 4 == 0 ? unit(random) * 1e-308 : awkward<double>(settings.rule, random);
            y[i] = random() % 4 == 0 ? static_cast<float>(unit(random) * 1e-38)
                                     : awkward<float>(settings.rule, random);
        }
        for (const DType dtype : {DType::f32, DType::f64}) {
            if (dtype == DType::f64 && settings.rule.kind == CellKind::binary32) continue;
            if (dtype == DType::f32 && settings.rule.kind == CellKind::words) continue;
            const ElementView view =
                dense_view(dtype, dtype == DType::f32 ? static_cast<const void*>(y.data()) : x.data());
            std::array<ChunkDigest, 4> expected;
            std::vector<std::byte> expected_residues(
                chunk_residue_bytes(dtype, 1000, settings.rule.residue_bits));
            Digester portable(settings, dtype, Backend::portable);
            portable.chunks(view, 0, 1000, expected.data(), expected_residues.data(), nullptr);
            for (const unsigned state :
                 {0x9FC0U /* FTZ, DAZ */, 0x5F80U /* up */, 0x7F80U /* to zero */, 0xFFC0U}) {
                std::array<ChunkDigest, 4> made;
                Digester digester(settings, dtype, GetParam());
                std::vector<std::byte> residues(expected_residues.size());
                _mm_setcsr(state);
                digester.chunks(view, 0, 1000, made.data(), residues.data(), nullptr);
                const unsigned left = _mm_getcsr();
                _mm_setcsr(saved);
                ASSERT_EQ(left & ~0x3FU, state) << "the caller's environment was not restored";
                ASSERT_EQ(made, expected) << describe(settings.rule, 1000);
                ASSERT_EQ(residues, expected_residues) << describe(settings.rule, 1000);
            }
        }
    }
}
#endif

INSTANTIATE_TEST_SUITE_P(Digest, Backends,
                         ::testing::Values(Backend::portable, Backend::avx2, Backend::avx512),
                         [](const auto& each) { return std::string(backend_name(each.param)); });

// ---- what a digest is ----

TEST(Digest, IsTheSumOverItsCells) {
    Random random(test_seed(30));
    for (int round = 0; round < 500; ++round) {
        const CellRule rule = make_rule(random);
        const std::size_t n = random() % 700;
        const Values<double> x = make_values<double>(n, rule, random);
        std::uint64_t fine = 0;
        std::uint64_t coarse = 0;
        for (std::size_t i = 0; i < n; ++i) {
            double value;
            std::memcpy(&value, reinterpret_cast<const std::byte*>(x.data()) + i * 8, 8);
            const auto term = [&](const Cell& cell) {
                const auto q = static_cast<std::int64_t>(cell.bits);
                const auto size =
                    static_cast<unsigned __int128>(cell.token || q >= 0 ? cell.bits : ~cell.bits + 1);
                const auto product = static_cast<std::uint64_t>(size % kPrime * coefficient(i) % kPrime);
                return cell.token || q >= 0 ? product : (kPrime - product) % kPrime;
            };
            fine = (fine + term(cell_of(value, rule, 0))) % kPrime;
            coarse = (coarse + term(cell_of(value, rule, rule.coarse_shift))) % kPrime;
        }
        for (const Backend backend : backends()) {
            const Made made = make(digest_kernels(backend), x.data(), n, rule);
            ASSERT_EQ(made.digest.fine, fine) << describe(rule, n);
            ASSERT_EQ(made.digest.coarse, coarse) << describe(rule, n);
        }
    }
}

// Digests of numbers that stand for themselves are equal where the numbers are, and differ where one
// number or two places do. nan: bits of a NaN, to which up to `more` may be added. block: scalars.
template <class T, class BitsOf>
void tells_equal_numbers(Random& random, const CellRule& rule, BitsOf nan, BitsOf more, T far,
                         std::size_t block) {
    for (const Backend backend : backends()) {
        const auto digest = [&](const std::vector<T>& x) {
            return make(digest_kernels(backend), x.data(), x.size(), rule).digest;
        };
        for (int round = 0; round < 400; ++round) {
            std::vector<T> x(2 + random() % (block - 1));
            for (T& value : x)
                value = awkward<T>(rule, random);
            const BlockDigest of_x = digest(x);
            std::vector<T> same = x;
            std::uint64_t nans = 0;
            for (T& value : same) {
                if (value == 0) value = -value;
                if (std::isnan(value))
                    value =
                        std::bit_cast<T>(static_cast<BitsOf>(nan + (static_cast<BitsOf>(random()) & more)));
                nans += std::isnan(value) ? 1 : 0;
            }
            ASSERT_EQ(digest(same).fine, of_x.fine);
            ASSERT_EQ(of_x.coarse, of_x.fine);
            ASSERT_EQ(of_x.counts.nans, nans);
            ASSERT_EQ(of_x.counts.tokens, 0U);
            const std::size_t at = random() % x.size();
            std::vector<T> other = x;
            other[at] = std::nextafter(x[at], random() % 2 == 0 ? -far : far);
            if (other[at] == x[at]) other[at] += 1;
            if (!std::isnan(x[at]) && other[at] != x[at]) {
                ASSERT_NE(digest(other).fine, of_x.fine);
            }
            other = x;
            std::swap(other[0], other[x.size() - 1]);
            const bool alike = x[0] == x.back() || (std::isnan(x[0]) && std::isnan(x.back()));
            ASSERT_EQ(digest(other).fine == of_x.fine, alike);
        }
    }
}
TEST(Digest, ByBitsTellsEqualNumbers) {
    Random random(test_seed(33));
    tells_equal_numbers<float, std::uint32_t>(random, binary32_rule(), 0xFF800001U, 0xFFFFU, 1e38F, 1024);
}
TEST(Digest, ByHalvesTellsEqualNumbers) {
    Random random(test_seed(34));
    tells_equal_numbers<double, std::uint64_t>(random, words_rule(), 0xFFF0000000000001ULL, 0xFFFFFFFFFFULL,
                                               1e300, 512);
}

// Which scalars of 64 bits share a number follows from the shortest vectors of the lattice of lower
// and upper halves that give 0. They are far apart.
TEST(Digest, ScalarsOfOneNumberAreFarApart) {
    const auto number = [](std::int64_t lower, std::int64_t upper) {
        return add61(signed61(lower), multiply61(signed61(upper), kWordFactor));
    };
    // A reduced basis: the determinant is p, and neither of the two is much longer than need be.
    constexpr std::array<std::int64_t, 2> a = {91870199, 510546808};
    constexpr std::array<std::int64_t, 2> b = {4360441710, -866803529};
    ASSERT_EQ(number(a[0], a[1]), 0U);
    ASSERT_EQ(number(b[0], b[1]), 0U);
    const auto determinant = static_cast<__int128>(a[0]) * b[1] - static_cast<__int128>(a[1]) * b[0];
    ASSERT_TRUE(determinant == -static_cast<__int128>(kPrime) ||
                determinant == static_cast<__int128>(kPrime));
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    std::int64_t least_beside_the_sign = least;
    int found = 0;
    for (std::int64_t i = -40; i <= 40; ++i) {
        for (std::int64_t j = -40; j <= 40; ++j) {
            const std::int64_t lower = i * a[0] + j * b[0];
            const std::int64_t upper = i * a[1] + j * b[1];
            if ((i == 0 && j == 0) || std::abs(lower) >> 32 != 0 || std::abs(upper) >> 32 != 0) continue;
            ASSERT_TRUE(std::abs(i) < 40 && std::abs(j) < 40) << "there may be others";
            ++found;
            least = std::min(least, std::abs(upper));
            least_beside_the_sign =
                std::min(least_beside_the_sign, std::abs(std::abs(upper) - (std::int64_t{1} << 31)));
        }
    }
    EXPECT_EQ(found, 28);
    EXPECT_EQ(least, 510546808);
    // A power of two is 2^20 in the upper half.
    EXPECT_GE(least, 100 * (std::int64_t{1} << 20));
    EXPECT_GE(least_beside_the_sign, 100 * (std::int64_t{1} << 20));
    Random random(test_seed(35));
    for (int round = 0; round < 1000; ++round) {
        const std::uint64_t bits = random();
        EXPECT_EQ(words_value(bits), number(static_cast<std::int64_t>(bits & 0xFFFFFFFF),
                                            static_cast<std::int64_t>(bits >> 32)));
    }
    EXPECT_EQ(words_value(~0ULL), number(0xFFFFFFFF, 0xFFFFFFFF));
}

TEST(Digest, IsLinear) {
    // D(a) - D(b) = sum of r * (cell of a - cell of b).
    Random random(test_seed(31));
    const CellRule rule = rule_of({1e-3, 0}, 4);
    for (const Backend backend : backends()) {
        for (int round = 0; round < 200; ++round) {
            const std::size_t n = 1 + random() % 512;
            Values<double> a(n, 0);
            Values<double> b(n, 0);
            std::uint64_t difference = 0;
            for (std::size_t i = 0; i < n; ++i) {
                const double x = unit(random) * std::pow(10, static_cast<double>(random() % 9));
                const double y = x + unit(random);
                a.set(i, x);
                b.set(i, y);
                const auto c = static_cast<std::int64_t>(cell_of(x, rule, 0).bits - cell_of(y, rule, 0).bits);
                difference = add61(difference, multiply61(coefficient(i), signed61(c)));
            }
            const std::uint64_t fine_a = make(digest_kernels(backend), a.data(), n, rule).digest.fine;
            const std::uint64_t fine_b = make(digest_kernels(backend), b.data(), n, rule).digest.fine;
            ASSERT_EQ(subtract61(fine_a, fine_b), difference);
        }
    }
}

TEST(Digest, CoefficientsAndTheirTablesAgree) {
    const Coefficients& table = coefficients();
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kLargestBlock; ++i) {
        ASSERT_EQ(table.r[i], coefficient(i));
        ASSERT_EQ(table.r[i] & 1, 1U);
        ASSERT_LT(table.r[i], 1ULL << 60);
        ASSERT_EQ(table.low48[i] + (table.high12[i] << 48), table.r[i]);
        ASSERT_EQ((table.halves[i] & 0xFFFFFFFF) + (table.halves[i] >> 32 << 30), table.r[i]);
        if (i % 8 == 0) {
            ASSERT_EQ(table.sums[i / 8], sum);
        }
        sum = add61(sum, table.r[i]);
    }
    EXPECT_EQ(table.sums[kLargestBlock / 8], sum);
}

TEST(Digest, BlocksJoinByHorner) {
    Random random(test_seed(32));
    for (const Backend backend : backends()) {
        DigestSettings settings;
        settings.tolerance = {1e-3, 0};
        settings.rule = rule_of(settings.tolerance, 4);
        settings.chunk_bytes = 16384;
        Digester digester(settings, DType::f32, backend);
        const std::size_t n = 4096 * 2 + 1024 + 77;
        const Values<float> x = make_values<float>(n, settings.rule, random);
        std::array<ChunkDigest, 3> digests;
        std::vector<std::byte> residues(chunk_residue_bytes(DType::f32, n, 4));
        ElementCounts counts;
        digester.chunks(dense_view(DType::f32, x.data()), 0, n, digests.data(), residues.data(), &counts);
        std::array<ChunkDigest, 3> expected;
        std::vector<std::byte> expected_residues;
        ElementCounts expected_counts;
        for (std::size_t first = 0; first < n; first += 1024) {
            const std::size_t size = std::min<std::size_t>(1024, n - first);
            const auto* from =
                reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(x.data()) + first * 4);
            const Made block = make(kPortableDigest, from, size, settings.rule);
            ChunkDigest& chunk = expected[first / 4096];
            chunk.fine = add61(multiply61(chunk.fine, kRho), block.digest.fine);
            chunk.coarse = add61(multiply61(chunk.coarse, kRho), block.digest.coarse);
            expected_counts.add(block.digest.counts);
            expected_residues.insert(expected_residues.end(), block.residues.begin(),
                                     block.residues.end() - kResidueLine);
        }
        EXPECT_EQ(digests, expected);
        EXPECT_EQ(residues, expected_residues);
        EXPECT_EQ(counts.tokens, expected_counts.tokens);
        EXPECT_EQ(counts.nans, expected_counts.nans);
    }
}

TEST(Digest, LargeIntegersHaveCellsOfTheirOwn) {
    for (const Backend backend : backends()) {
        DigestSettings settings;  // equal values
        Digester exact(settings, DType::i64, backend);
        std::vector<std::int64_t> a(700, 5);
        std::vector<std::int64_t> b = a;
        a[600] = (1LL << 53) + 1;
        b[600] = 1LL << 53;
        std::array<ChunkDigest, 2> of_a;
        std::array<ChunkDigest, 2> of_b;
        exact.chunks(dense_view(DType::i64, a.data()), 0, a.size(), of_a.data(), nullptr, nullptr);
        exact.chunks(dense_view(DType::i64, b.data()), 0, b.size(), of_b.data(), nullptr, nullptr);
        EXPECT_EQ(of_a[0], of_b[0]);
        EXPECT_NE(of_a[1], of_b[1]);
    }
}

// ---- what the metadata of two runs proves ----

struct ProofCase {
    Tolerance made_for;
    double size;  // of the data
};

template <class T>
void check_proofs(DType dtype, const ProofCase& c, unsigned bits, Backend backend, Random& random) {
    DigestSettings settings;
    settings.tolerance = c.made_for;
    settings.rule = rule_of(c.made_for, bits);
    settings.chunk_bytes = (random() & 1) != 0 ? 4096 : 16384;
    Digester digester(settings, dtype, backend);
    const ChunkShape& shape = digester.shape();
    const CellRule& rule = settings.rule;
    for (const double strength : {0.0, 0.05, 0.3, 0.6, 0.9, 1.0, 1.1, 1.5, 9.0}) {
        const std::size_t n = random() % 3 == 0 ? 1 + random() % shape.chunk_scalars : shape.chunk_scalars;
        // Noise that reaches beyond the limit leaves no chunk of 1024 elements below it: then only a few get any.
        const std::uint64_t noisy = (random() & 1) != 0 ? 1 : 97;
        std::vector<T> a(n);
        std::vector<T> b(n);
        for (std::size_t i = 0; i < n; ++i) {
            const double x = unit(random) * c.size;
            a[i] = static_cast<T>(x);
            const double reach =
                rule.kind == CellKind::absolute
                    ? std::ldexp(1.0, rule.fine_exponent) * std::max(rule.widest, 1)
                    : c.made_for.atol + c.made_for.rtol * std::fabs(static_cast<double>(a[i]));
            b[i] = random() % noisy == 0
                       ? static_cast<T>(static_cast<double>(a[i]) + unit(random) * strength * reach)
                       : a[i];
            if (random() % 5000 == 0) a[i] = awkward<T>(rule, random);
        }
        ChunkDigest of_a;
        ChunkDigest of_b;
        std::vector<std::byte> residues_a(chunk_residue_bytes(dtype, n, rule.residue_bits));
        std::vector<std::byte> residues_b(residues_a.size());
        digester.chunks(dense_view(dtype, a.data()), 0, n, &of_a, residues_a.data(), nullptr);
        digester.chunks(dense_view(dtype, b.data()), 0, n, &of_b, residues_b.data(), nullptr);

        // What cells there are, and whether they are near enough for a proof, element by element.
        const auto apart = [&](std::size_t i, std::int64_t* cells) {
            const Cell ca = cell_of(static_cast<double>(a[i]), rule, 0);
            const Cell cb = cell_of(static_cast<double>(b[i]), rule, 0);
            *cells = ca.token ? 0 : std::llabs(static_cast<std::int64_t>(ca.bits - cb.bits));
            return ca.token != cb.token || (ca.token && ca.bits != cb.bits);
        };
        for (const double wider : {1.0, 0.4, 1.4, 3.0, 10.0}) {
            const Tolerance wanted{
                c.made_for.atol * wider,
                c.made_for.rtol * std::max(wider, rule.kind == CellKind::absolute ? 0.0 : wider)};
            const ProofReach reach = proof_reach(rule, c.made_for, wanted);
            if (!reach.usable) continue;
            bool differs = false;
            bool within_reach = true;
            for (std::size_t i = 0; i < n; ++i) {
                const auto x = static_cast<double>(a[i]);
                const auto y = static_cast<double>(b[i]);
                std::int64_t cells = 0;
                if (apart(i, &cells) || cells > reach.widest) within_reach = false;
                if (x == y || (x != x && y != y)) continue;
                differs = differs || !std::isfinite(x) || !std::isfinite(y) || exceeds_exactly(x, y, wanted);
            }
            if (reach.coarse_proves && of_a.coarse == of_b.coarse) {
                ASSERT_FALSE(differs) << "coarse, noise " << strength << ", wider " << wider;
            }
            if (of_a.fine == of_b.fine) {
                ASSERT_FALSE(differs) << "fine";
            }
            if (rule.residue_bits == 0) continue;
            const SketchVerdict verdict =
                check_sketch(digest_kernels(backend), shape, n, rule.residue_bits, reach.widest, of_a.fine,
                             of_b.fine, residues_a.data(), residues_b.data());
            ASSERT_EQ(verdict.proven, within_reach) << "sketch, noise " << strength << ", wider " << wider;
            if (verdict.proven) {
                ASSERT_FALSE(differs) << "sketch, noise " << strength << ", wider " << wider;
            }
            if (rule.kind == CellKind::absolute && strength <= 1 && wider >= 1 && rule.widest > 0) {
                bool special = false;
                for (std::size_t i = 0; i < n; ++i) {
                    const auto x = static_cast<double>(a[i]);
                    special = special || !(std::fabs(x - static_cast<double>(b[i])) <=
                                           std::ldexp(rule.widest, rule.fine_exponent));
                }
                ASSERT_TRUE(verdict.proven || special) << "noise below w * s must be proven: " << strength;
            }
            if (!verdict.consistent) continue;
            // The counts are those of the cells' differences.
            std::array<std::uint64_t, 8> counts{};
            for (std::size_t i = 0; i < n; ++i) {
                std::int64_t cells = 0;
                apart(i, &cells);
                if (cells < 8) ++counts[static_cast<std::size_t>(cells)];
            }
            ASSERT_EQ(verdict.counts, counts);
        }
    }
}

TEST(Proof, IsSoundAndComplete) {
    Random random(test_seed(40));
    const std::array<ProofCase, 9> cases = {{{{1e-3, 0}, 4},
                                             {{1e-7, 0}, 1e-5},
                                             {{0.37, 0}, 400},
                                             {{3.0, 0}, 1e5},
                                             {{0x1p-10, 0}, 1},
                                             {{1e-3, 1e-4}, 10},
                                             {{0, 1e-4}, 1},
                                             {{1e-6, 1e-6}, 1},
                                             {{0, 0}, 1}}};
    for (const Backend backend : backends()) {
        for (const ProofCase& c : cases) {
            for (const unsigned bits : {0U, 2U, 4U}) {
                SCOPED_TRACE(std::string(backend_name(backend)) + ", atol " +
                             std::to_string(c.made_for.atol) + ", rtol " + std::to_string(c.made_for.rtol) +
                             ", bits " + std::to_string(bits));
                for (int round = 0; round < 3; ++round) {
                    check_proofs<float>(DType::f32, c, bits, backend, random);
                    check_proofs<double>(DType::f64, c, bits, backend, random);
                }
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST(Proof, TellsSpecialValuesApart) {
    const std::array<float, 14> special = {0.0F,
                                           -0.0F,
                                           1.0F,
                                           std::numeric_limits<float>::quiet_NaN(),
                                           std::numeric_limits<float>::infinity(),
                                           -std::numeric_limits<float>::infinity(),
                                           1e30F,
                                           -1e30F,
                                           3.4e38F,
                                           1e-45F,
                                           -1e-45F,
                                           5e-4F,
                                           -5e-4F,
                                           1e36F};
    for (const Backend backend : backends()) {
        for (const Tolerance& tolerance :
             {Tolerance{1e-3, 0}, Tolerance{0, 1e-4}, Tolerance{1e-3, 1e-4}, Tolerance{}}) {
            DigestSettings settings;
            settings.tolerance = tolerance;
            settings.rule = rule_of(tolerance, 4);
            Digester digester(settings, DType::f32, backend);
            for (const float u : special) {
                for (const float v : special) {
                    const std::array<float, 4> a = {u, u, u, u};
                    const std::array<float, 4> b = {v, v, v, v};
                    ChunkDigest of_a;
                    ChunkDigest of_b;
                    alignas(64) std::array<std::byte, kResidueLine> residues_a{};
                    alignas(64) std::array<std::byte, kResidueLine> residues_b{};
                    digester.chunks(dense_view(DType::f32, a.data()), 0, 4, &of_a, residues_a.data(),
                                    nullptr);
                    digester.chunks(dense_view(DType::f32, b.data()), 0, 4, &of_b, residues_b.data(),
                                    nullptr);
                    const bool same = (u != u && v != v) || u == v;
                    const bool near =
                        same || (std::isfinite(u) && std::isfinite(v) &&
                                 !exceeds_exactly(static_cast<double>(u), static_cast<double>(v), tolerance));
                    if (same) {
                        EXPECT_EQ(of_a, of_b) << u << ' ' << v;
                    }
                    if (of_a.coarse == of_b.coarse || of_a.fine == of_b.fine) {
                        EXPECT_TRUE(near) << u << ' ' << v;
                    }
                    if (settings.rule.residue_bits != 0) {
                        const SketchVerdict verdict = check_sketch(
                            digest_kernels(backend), digester.shape(), 4, 4, settings.rule.widest, of_a.fine,
                            of_b.fine, residues_a.data(), residues_b.data());
                        if (verdict.proven) {
                            EXPECT_TRUE(near) << u << ' ' << v;
                        }
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace twinrun
