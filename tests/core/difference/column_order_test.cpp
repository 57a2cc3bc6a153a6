#include "difference/column_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "engine/compare.hpp"

namespace twinrun {
namespace {

using Shape = std::vector<std::uint64_t>;

std::uint64_t size_of(const Shape& shape) {
    std::uint64_t n = 1;
    for (const std::uint64_t s : shape)
        n *= s;
    return n;
}

// Of item `at` as it is stored, the slowest dimension of `stored` first: its place where the fastest one counts most.
std::uint64_t row_major_place(const Shape& stored, std::uint64_t at) {
    std::uint64_t place = 0;
    for (auto size = stored.rbegin(); size != stored.rend(); ++size) {
        place = place * *size + at % *size;
        at /= *size;
    }
    return place;
}

const std::vector<Shape> kShapes = {{7},       {1, 9},    {5, 4},    {4, 1, 5},       {3, 4, 5},
                                    {1, 1, 6}, {900, 11}, {11, 900}, {7, 1, 30, 3, 5}};

TEST(ColumnOrder, CountsRowByRow) {
    for (const Shape& shape : kShapes) {
        for (const std::uint64_t pair : {1UL, 2UL}) {
            const ColumnOrder order(shape, pair);
            for (std::uint64_t scalar = 0; scalar < size_of(shape) * pair; ++scalar)
                ASSERT_EQ(order.logical(scalar),
                          row_major_place(shape, scalar / pair) * pair + scalar % pair);
        }
    }
}

TEST(ColumnOrder, KnowsTheLeastOfAStretch) {
    std::mt19937_64 random(11);
    for (const Shape& shape : kShapes) {
        const ColumnOrder order(shape, 1);
        const std::uint64_t n = size_of(shape);
        for (int round = 0; round < 200; ++round) {
            const std::uint64_t begin = random() % n;
            const std::uint64_t end = begin + 1 + random() % std::min<std::uint64_t>(n - begin, 40);
            std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
            for (std::uint64_t at = begin; at < end; ++at)
                least = std::min(least, order.logical(at));
            ASSERT_EQ(order.least(begin, end), least);
        }
    }
}

// An array stored column by column is told as the same array stored row by row: also of values that are there often.
TEST(ColumnOrder, ComparesAsRowsDo) {
    std::mt19937_64 random(5);
    for (const Shape& shape : kShapes) {
        for (int round = 0; round < 12; ++round) {
            const std::uint64_t n = size_of(shape);
            std::vector<float> a(n);
            std::vector<float> b(n);
            for (std::uint64_t i = 0; i < n; ++i) {
                a[i] = b[i] = static_cast<float>(random() % 3);
                if (random() % (round % 3 == 0 ? 2 : 100) == 0) b[i] += static_cast<float>(random() % 4);
            }
            std::vector<float> rows_a(n);
            std::vector<float> rows_b(n);
            for (std::uint64_t i = 0; i < n; ++i) {
                rows_a[row_major_place(shape, i)] = a[i];
                rows_b[row_major_place(shape, i)] = b[i];
            }
            MemorySource of_a(DType::f32, n, a.data(), 4, false);
            MemorySource of_b(DType::f32, n, b.data(), 4, false);
            MemorySource of_rows_a(DType::f32, n, rows_a.data(), 4, false);
            MemorySource of_rows_b(DType::f32, n, rows_b.data(), 4, false);
            CompareOptions options;
            options.method = Method::direct;
            options.rule = {{round % 2 == 0 ? 0.0 : 1.5, 0}, true};
            options.stream.threads = 1 + round % 3;
            const auto rows = compare_field({&of_rows_a}, {&of_rows_b}, options);
            options.columns = shape;
            const auto columns = compare_field({&of_a}, {&of_b}, options);
            ASSERT_TRUE(rows);
            ASSERT_TRUE(columns);
            const ColumnOrder order(shape, 1);
            const auto place = [&](std::uint64_t at) { return at == kNowhere ? at : order.logical(at); };
            const DifferenceStats& x = rows->read;
            const DifferenceStats& y = columns->read;
            EXPECT_EQ(place(y.first), x.first);
            EXPECT_EQ(place(y.max_abs_at), x.max_abs_at);
            EXPECT_EQ(place(y.max_rel_at), x.max_rel_at);
            EXPECT_EQ(place(y.max_rel_different_at), x.max_rel_different_at);
            EXPECT_EQ(y.max_abs, x.max_abs);
            EXPECT_EQ(y.max_rel, x.max_rel);
            EXPECT_EQ(y.max_rel_different, x.max_rel_different);
            EXPECT_EQ(y.different, x.different);
            EXPECT_EQ(y.scalars, x.scalars);
            EXPECT_EQ(y.all, x.all);
            EXPECT_EQ(y.over, x.over);
            EXPECT_EQ(columns->first_bits_b, rows->first_bits_b);
            EXPECT_EQ(columns->max_bits_a, rows->max_bits_a);
        }
    }
}

TEST(ColumnOrder, RefusesAnotherShape) {
    const std::vector<float> a(10);
    MemorySource of_a(DType::f32, 10, a.data(), 4, false);
    CompareOptions options;
    options.columns = {3, 4};
    EXPECT_EQ(compare_field({&of_a}, {&of_a}, options).error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace twinrun
