#include "element/convert.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

constexpr std::array<DType, 15> kAll = {DType::f16, DType::bf16, DType::f32, DType::f64,     DType::i8,
                                        DType::i16, DType::i32,  DType::i64, DType::u8,      DType::u16,
                                        DType::u32, DType::u64,  DType::c64, DType::boolean, DType::c128};

// The value by its definition: sign, fraction, exponent.
double half_value(unsigned bits, int exponent_bits, int fraction_bits) {
    const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const auto fraction = static_cast<double>(bits & ((1U << fraction_bits) - 1));
    const int bias = (1 << (exponent_bits - 1)) - 1;
    double size = 0;
    if (exponent == (1 << exponent_bits) - 1) {
        size = fraction == 0 ? std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
        size = std::ldexp(fraction, 1 - bias - fraction_bits);
    } else {
        size = std::ldexp(fraction + std::ldexp(1.0, fraction_bits), exponent - bias - fraction_bits);
    }
    return (bits >> 15) != 0 ? -size : size;
}

template <class T>
T at(const void* data, std::size_t i) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(data) + i * sizeof(T), sizeof(T));
    return value;
}

TEST(Convert, EveryHalf) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i)
        all[i] = static_cast<std::uint16_t>(i);
    std::vector<std::byte> staging(all.size() * 4);
    for (const DType dtype : {DType::f16, DType::bf16}) {
        ASSERT_EQ(compute_type(dtype), ComputeType::f32);
        const void* loaded = load(dense_view(dtype, all.data()), 0, all.size(), staging.data());
        for (unsigned i = 0; i < 65536; ++i) {
            const double expected = dtype == DType::f16 ? half_value(i, 5, 10) : half_value(i, 8, 7);
            const auto value = static_cast<double>(at<float>(loaded, i));
            if (std::isnan(expected)) {
                ASSERT_TRUE(std::isnan(value)) << i;
            } else {
                ASSERT_EQ(value, expected) << i;
                ASSERT_EQ(std::signbit(value), std::signbit(expected)) << i;
            }
        }
    }
}

template <class T>
void check_integers(DType dtype, ComputeType type) {
    ASSERT_EQ(compute_type(dtype), type);
    std::mt19937_64 random(test_seed(5));
    std::vector<T> values = {0, 1, std::numeric_limits<T>::min(), std::numeric_limits<T>::max(),
                             static_cast<T>(std::numeric_limits<T>::max() - 1)};
    while (values.size() < 1000)
        values.push_back(static_cast<T>(random()));
    std::vector<std::byte> staging(values.size() * compute_bytes(type));
    const void* loaded = load(dense_view(dtype, values.data()), 0, values.size(), staging.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (type == ComputeType::f32) {
            ASSERT_EQ(at<float>(loaded, i), static_cast<float>(values[i]));
            ASSERT_EQ(static_cast<T>(at<float>(loaded, i)), values[i]);
        } else if (type == ComputeType::f64) {
            ASSERT_EQ(static_cast<T>(at<double>(loaded, i)), values[i]);
        } else {
            ASSERT_EQ(at<T>(loaded, i), values[i]);
        }
    }
}

TEST(Convert, IntegersAreExact) {
    check_integers<std::int8_t>(DType::i8, ComputeType::f32);
    check_integers<std::uint8_t>(DType::u8, ComputeType::f32);
    check_integers<std::int16_t>(DType::i16, ComputeType::f32);
    check_integers<std::uint16_t>(DType::u16, ComputeType::f32);
    check_integers<std::int32_t>(DType::i32, ComputeType::f64);
    check_integers<std::uint32_t>(DType::u32, ComputeType::f64);
    check_integers<std::int64_t>(DType::i64, ComputeType::i64);
    check_integers<std::uint64_t>(DType::u64, ComputeType::u64);
}

TEST(Convert, AnyByteButZeroIsTrue) {
    std::array<std::uint8_t, 256> bytes;
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(i);
    std::vector<std::byte> staging(bytes.size() * 4);
    const void* loaded = load(dense_view(DType::boolean, bytes.data()), 0, bytes.size(), staging.data());
    for (std::size_t i = 0; i < bytes.size(); ++i)
        EXPECT_EQ(at<float>(loaded, i), i == 0 ? 0.0F : 1.0F);
}

TEST(Convert, DenseNativeDataStaysInPlace) {
    std::vector<std::byte> memory(1024);
    std::array<std::byte, 1024> staging;
    for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::u64, DType::c64, DType::c128}) {
        const ElementView view = dense_view(dtype, memory.data() + 1);
        EXPECT_TRUE(view.dense());
        EXPECT_EQ(load(view, 3, 5, staging.data()), memory.data() + 1 + 3 * item_bytes(scalar_type(dtype)));
    }
}

// Items of random bytes, each laid out with a stride and in a byte order, load as the dense native ones do.
TEST(Convert, StrideAndByteOrderDoNotMatter) {
    std::mt19937_64 random(test_seed(6));
    for (const DType dtype : kAll) {
        const std::size_t scalar = item_bytes(scalar_type(dtype));
        const std::size_t pair = scalars_per_item(dtype);
        const std::size_t item = scalar * pair;
        for (int round = 0; round < 60; ++round) {
            const std::size_t items = 1 + random() % 300;
            std::vector<std::byte> dense(items * item);
            for (auto& byte : dense)
                byte = static_cast<std::byte>(random());
            const std::size_t gap = random() % 3 == 0 ? 0 : random() % 20;
            const std::size_t before = random() % 9;
            const bool swap = (random() & 1) != 0;
            std::vector<std::byte> memory(before + items * (item + gap));
            for (std::size_t i = 0; i < items * pair; ++i) {
                std::byte* to = memory.data() + before + i / pair * (item + gap) + i % pair * scalar;
                const std::byte* from = dense.data() + i * scalar;
                std::copy(from, from + scalar, to);
                if (swap) std::reverse(to, to + scalar);
            }
            ElementView view = dense_view(dtype, memory.data() + before);
            view.stride += gap;
            view.swap = swap;
            ASSERT_EQ(view.scalar, scalar_type(dtype));
            const std::size_t first = random() % (items * pair);
            const std::size_t count = 1 + random() % (items * pair - first);
            const std::size_t bytes = count * compute_bytes(compute_type(scalar_type(dtype)));
            std::vector<std::byte> staging(bytes);
            std::vector<std::byte> staging_dense(bytes);
            const void* loaded = load(view, first, count, staging.data());
            const void* expected = load(dense_view(dtype, dense.data()), first, count, staging_dense.data());
            ASSERT_EQ(std::memcmp(loaded, expected, bytes), 0)
                << dtype_name(dtype) << " gap " << gap << " swap " << swap << " first " << first << " count "
                << count;
            std::uint64_t bits = 0;
            static_assert(std::endian::native == std::endian::little);
            std::memcpy(&bits, dense.data() + first * scalar, scalar);
            ASSERT_EQ(raw_bits(view, first), bits);
        }
    }
}

}  // namespace
}  // namespace twinrun
