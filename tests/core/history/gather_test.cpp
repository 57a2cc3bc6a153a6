#include "history/gather.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

namespace twinrun {
namespace {

template <class T>
void check_order(DType dtype, unsigned seed) {
    std::mt19937_64 random(seed);
    const std::size_t n = random() % 500;
    const std::int64_t stride = seed % 3 == 0 ? -2 : 1 + static_cast<std::int64_t>(seed % 2);
    std::vector<T> memory(2 * n + 2);
    T* const base = stride < 0 ? memory.data() + 2 * n : memory.data();
    const std::uint64_t spread = seed % 4 == 0 ? 5 : std::numeric_limits<std::uint64_t>::max();
    std::vector<T> ids(n);
    for (std::size_t i = 0; i < n; ++i) {
        ids[i] = static_cast<T>(random() % spread);
        base[static_cast<std::ptrdiff_t>(i) * stride] = ids[i];
    }
    CapturedField field;
    field.name = "id";
    field.dtype = dtype;
    field.shape = {n};
    field.strides = {stride * static_cast<std::int64_t>(sizeof(T))};
    field.data = base;
    const auto order = order_by_ids(field);
    ASSERT_TRUE(order) << order.error().message;
    RowOrder expected(n);
    std::iota(expected.begin(), expected.end(), 0U);
    std::stable_sort(expected.begin(), expected.end(), [&](auto x, auto y) { return ids[x] < ids[y]; });
    if ((*order)->empty()) {
        EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    } else {
        EXPECT_EQ(**order, expected);
    }
}

TEST(OrderByIds, IsAStableSort) {
    for (unsigned seed = 0; seed < 60; ++seed) {
        check_order<std::int8_t>(DType::i8, seed);
        check_order<std::uint8_t>(DType::u8, seed);
        check_order<std::int16_t>(DType::i16, seed);
        check_order<std::uint16_t>(DType::u16, seed);
        check_order<std::int32_t>(DType::i32, seed);
        check_order<std::uint32_t>(DType::u32, seed);
        check_order<std::int64_t>(DType::i64, seed);
        check_order<std::uint64_t>(DType::u64, seed);
    }
    CapturedField field;
    field.dtype = DType::f32;
    field.shape = {3};
    EXPECT_FALSE(order_by_ids(field));
    field.dtype = DType::i32;
    field.shape = {3, 1};
    EXPECT_FALSE(order_by_ids(field));
}

// Any part, of any shape, strides (gaps, backwards, repeated), order and rows, against one item at a time.
TEST(FieldReader, CopiesWhatOneItemAtATimeGives) {
    for (unsigned seed = 0; seed < 600; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 random(seed);
        const DType dtype =
            std::array{DType::u8, DType::i16, DType::f32, DType::f64, DType::c128}[random() % 5];
        const auto item = static_cast<std::int64_t>(item_bytes(dtype));
        const std::size_t rank = random() % 5;
        CapturedField field;
        field.name = "x";
        field.dtype = dtype;
        field.order = random() % 2 == 0 ? ArrayOrder::row_major : ArrayOrder::column_major;
        std::uint64_t items = 1;
        for (std::size_t d = 0; d < rank; ++d) {
            field.shape.push_back(random() % 12 == 0 ? 0 : 1 + random() % 6);
            items *= field.shape.back();
        }
        std::vector<std::byte> memory(1 << 18);
        for (std::byte& b : memory)
            b = static_cast<std::byte>(random());
        std::byte* const base = memory.data() + memory.size() / 2;
        field.data = base;
        const int kind = static_cast<int>(random() % 3);
        std::vector<std::int64_t> strides(rank);
        std::int64_t dense = kind == 1 ? item * static_cast<std::int64_t>(1 + random() % 3) : item;
        if (kind == 1) field.stride = static_cast<std::uint64_t>(dense);
        for (std::size_t k = 0; k < rank; ++k) {
            const std::size_t d = field.order == ArrayOrder::row_major ? rank - 1 - k : k;
            strides[d] =
                kind == 2 ? (static_cast<std::int64_t>(random() % 9) - 4) * item * (random() % 2 == 0 ? 1 : 7)
                          : dense;
            dense *= static_cast<std::int64_t>(std::max<std::uint64_t>(field.shape[d], 1));
        }
        if (kind == 2) field.strides = strides;
        const std::size_t slow = field.order == ArrayOrder::row_major ? 0 : rank - 1;
        std::shared_ptr<RowOrder> rows;
        if (rank != 0 && random() % 2 == 0) {
            rows = std::make_shared<RowOrder>(field.shape[slow]);
            std::iota(rows->begin(), rows->end(), 0U);
            std::shuffle(rows->begin(), rows->end(), random);
        }
        // Where item i lies.
        const auto offset = [&](std::uint64_t i, bool sorted) {
            std::int64_t at = 0;
            for (std::size_t k = 0; k < rank; ++k) {
                const std::size_t d = field.order == ArrayOrder::row_major ? rank - 1 - k : k;
                std::uint64_t index = i % field.shape[d];
                i /= field.shape[d];
                if (d == slow && sorted && rows != nullptr) index = (*rows)[index];
                at += static_cast<std::int64_t>(index) * strides[d];
            }
            return at;
        };
        const auto reader = FieldReader::create(field, rows);
        ASSERT_TRUE(reader) << reader.error().message;
        const std::uint64_t first = items == 0 ? 0 : random() % items;
        const std::uint64_t count = items == 0 ? 0 : random() % (items - first + 1);
        const auto size = static_cast<std::size_t>(item);
        std::vector<std::byte> got(count * size);
        reader->copy(first, count, got.data());
        for (std::uint64_t i = 0; i < count; ++i)
            ASSERT_EQ(std::memcmp(got.data() + i * size, base + offset(first + i, true), size), 0) << i;
        // And back.
        std::vector<std::byte> expected = memory;
        for (std::uint64_t i = 0; i < count; ++i)
            std::memcpy(expected.data() + (base - memory.data()) + offset(first + i, false),
                        got.data() + i * size, size);
        ASSERT_TRUE(scatter(field, first, count, got.data(), base));
        ASSERT_TRUE(memory == expected);
    }
}

TEST(FieldReader, RefusesWhatDoesNotFit) {
    CapturedField field;
    field.name = "x";
    field.dtype = DType::f64;
    field.shape = {3, 4};
    field.strides = {8};
    EXPECT_FALSE(FieldReader::create(field, nullptr));
    field.strides.clear();
    EXPECT_FALSE(FieldReader::create(field, std::make_shared<RowOrder>(2)));
    field.stride = UINT64_MAX;
    EXPECT_FALSE(FieldReader::create(field, nullptr));
    field.stride = 0;
    field.shape = {UINT64_MAX, UINT64_MAX};
    EXPECT_FALSE(FieldReader::create(field, nullptr));
}

}  // namespace
}  // namespace twinrun
