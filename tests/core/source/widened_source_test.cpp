#include "source/widened_source.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace twinrun {
namespace {

template <class To>
std::vector<To> widened(DType to, DType from, std::uint64_t items, const void* data, std::uint64_t stride,
                        std::uint64_t first, std::uint64_t count) {
    auto below = std::make_shared<MemorySource>(from, items, data, stride, false);
    auto source = WidenedSource::create(to, below);
    EXPECT_TRUE(source) << source.error().message;
    std::vector<To> values(count * scalars_per_item(to));
    const auto done = read_items(**source, first, count, reinterpret_cast<std::byte*>(values.data()));
    EXPECT_TRUE(done);
    return values;
}

// A number of a 16-bit floating-point type, from its definition.
double of_bits(std::uint16_t bits, int fraction_bits, int bias) {
    const int exponent = (bits & 0x7FFF) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (0x7FFF >> fraction_bits))
        return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
    return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

TEST(WidenedSource, HoldsEveryNumberOf16Bits) {
    std::vector<std::uint16_t> codes(65536);
    std::iota(codes.begin(), codes.end(), std::uint16_t{0});
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // denormals count as zero, as -ffast-math asks for
#endif
    const auto half = widened<double>(DType::f64, DType::f16, 65536, codes.data(), 2, 0, 65536);
    const auto brain = widened<double>(DType::f64, DType::bf16, 65536, codes.data(), 2, 0, 65536);
#if defined(__x86_64__)
    _mm_setcsr(before);
#endif
    for (std::size_t i = 0; i < codes.size(); ++i) {
        const double expected_half = of_bits(codes[i], 10, 15);
        const double expected_brain = of_bits(codes[i], 7, 127);
        if (std::isnan(expected_half)) {
            EXPECT_TRUE(std::isnan(half[i]));
        } else {
            EXPECT_EQ(std::memcmp(&half[i], &expected_half, 8), 0) << i;
        }
        if (std::isnan(expected_brain)) {
            EXPECT_TRUE(std::isnan(brain[i]));
        } else {
            EXPECT_EQ(std::memcmp(&brain[i], &expected_brain, 8), 0) << i;
        }
    }
}

TEST(WidenedSource, ReadsPartsOfStridedIntegers) {
    std::vector<std::int16_t> rows(6000);
    std::iota(rows.begin(), rows.end(), std::int16_t{-3000});
    const auto whole = widened<std::int64_t>(DType::i64, DType::i16, 3000, rows.data(), 4, 17, 2900);
    for (std::size_t i = 0; i < whole.size(); ++i)
        ASSERT_EQ(whole[i], rows[2 * (i + 17)]);
    const auto numbers = widened<double>(DType::f64, DType::i16, 3000, rows.data(), 4, 2999, 1);
    EXPECT_EQ(numbers.front(), 2998.0);
    const std::vector<std::uint32_t> large = {0, 4294967295U};
    EXPECT_EQ(widened<std::uint64_t>(DType::u64, DType::u32, 2, large.data(), 4, 1, 1).front(), 4294967295U);
    EXPECT_EQ(widened<double>(DType::f64, DType::u32, 2, large.data(), 4, 1, 1).front(), 4294967295.0);
}

TEST(WidenedSource, WidensBothPartsOfComplexNumbers) {
    const std::vector<float> parts = {1, -2, 0.5F, 1e-45F};
    const auto wide = widened<double>(DType::c128, DType::c64, 2, parts.data(), 8, 0, 2);
    for (std::size_t i = 0; i < parts.size(); ++i)
        EXPECT_EQ(wide[i], static_cast<double>(parts[i]));
}

TEST(WidenedSource, RefusesTypesThatDoNotHoldAllValues) {
    const std::int64_t value = 1;
    const auto create = [&](DType to, DType from) {
        return WidenedSource::create(to, std::make_shared<MemorySource>(from, 1, &value, 8, false));
    };
    EXPECT_FALSE(create(DType::f64, DType::i64));
    EXPECT_FALSE(create(DType::f64, DType::u64));
    EXPECT_FALSE(create(DType::u64, DType::i8));
    EXPECT_FALSE(create(DType::i64, DType::u64));
    EXPECT_FALSE(create(DType::i64, DType::f16));
    EXPECT_FALSE(create(DType::f64, DType::c64));
    EXPECT_FALSE(create(DType::c128, DType::f64));
    EXPECT_FALSE(create(DType::f32, DType::f16));  // this is not one of the wide types
    EXPECT_TRUE(create(DType::u64, DType::boolean));
}

}  // namespace
}  // namespace twinrun
