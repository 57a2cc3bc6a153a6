// Arrays on devices as they are described: nothing here needs a device.
#include "source/device_array.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace twinrun {
namespace {

DeviceArray array_of(DType dtype, std::vector<std::uint64_t> shape, std::vector<std::int64_t> strides) {
    DeviceArray array;
    array.data = reinterpret_cast<const void*>(std::uintptr_t{4096});
    array.dtype = dtype;
    array.shape = std::move(shape);
    array.strides = std::move(strides);
    return array;
}

TEST(DeviceArrays, DenseIsSeen) {
    EXPECT_TRUE(array_of(DType::f64, {3, 4}, {}).dense());
    EXPECT_TRUE(array_of(DType::f64, {3, 4}, {32, 8}).dense());
    EXPECT_TRUE(array_of(DType::f64, {}, {}).dense());
    EXPECT_TRUE(array_of(DType::f64, {1, 4, 1}, {999, 8, 0}).dense());
    EXPECT_TRUE(array_of(DType::f64, {0, 4}, {1, 1}).dense());
    EXPECT_FALSE(array_of(DType::f64, {3, 4}, {8, 24}).dense());
    EXPECT_FALSE(array_of(DType::f64, {4}, {-8}).dense());
    EXPECT_FALSE(array_of(DType::f64, {4}, {0}).dense());
    DeviceArray swapped = array_of(DType::f64, {4}, {});
    swapped.swap = true;
    EXPECT_FALSE(swapped.dense());
    swapped.dtype = DType::u8;
    EXPECT_TRUE(swapped.dense());
    EXPECT_EQ(array_of(DType::f64, {3, 4}, {}).items(), 12U);
    EXPECT_EQ(array_of(DType::f64, {}, {}).items(), 1U);
}

TEST(DeviceArrays, GathersMergeDimensionsThatLieAsOne) {
    const DeviceGather all = gather_of(array_of(DType::c64, {2, 3, 4, 5}, {-480, 160, 40, 8}), 7, 9, nullptr);
    EXPECT_EQ(all.dimensions, 2);
    EXPECT_EQ(all.shape[0], 2U);
    EXPECT_EQ(all.strides[0], -480);
    EXPECT_EQ(all.shape[1], 60U);
    EXPECT_EQ(all.strides[1], 8);
    EXPECT_EQ(all.item_bytes, 8U);
    EXPECT_EQ(all.first, 7U);
    EXPECT_EQ(all.count, 9U);
    DeviceArray swapped = array_of(DType::c128, {5}, {32});
    swapped.swap = true;
    EXPECT_EQ(gather_of(swapped, 0, 5, nullptr).swap_bytes, 8U);
    EXPECT_EQ(gather_of(array_of(DType::f64, {1, 1}, {8, 8}), 0, 1, nullptr).dimensions, 0);
}

TEST(DeviceArrays, WhatCannotBeIsRefused) {
    EXPECT_TRUE(check_array(array_of(DType::f64, {3, 4}, {8, 24})));
    EXPECT_FALSE(check_array(array_of(DType::f64, {3, 4}, {8})));
    EXPECT_FALSE(check_array(array_of(DType::f64, {4}, {12})));
    EXPECT_TRUE(check_array(array_of(DType::c128, {4}, {24})));
    EXPECT_FALSE(check_array(array_of(DType::f64, {1ULL << 40, 1ULL << 40}, {})));
    EXPECT_FALSE(check_array(
        array_of(DType::u8, std::vector<std::uint64_t>(9, 2), {600, 290, 140, 66, 32, 15, 7, 3, 1})));
    DeviceArray odd = array_of(DType::f64, {4}, {});
    odd.data = reinterpret_cast<const void*>(std::uintptr_t{4100});
    EXPECT_FALSE(check_array(odd));
    odd.data = nullptr;
    EXPECT_FALSE(check_array(odd));
}

}  // namespace
}  // namespace twinrun
