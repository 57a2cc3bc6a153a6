// twr_array: growth by its size, and what is refused.
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "core/capi/support.hpp"
#include "device/device.hpp"
#include "history/history.hpp"

namespace twinrun {
namespace {

class ArrayTest : public testing::CapiTest {
   protected:
    void SetUp() override {
        CapiTest::SetUp();
        run_ = open("run");
        ASSERT_NE(run_, nullptr);
        array_.name = "x";
        array_.data = values_.data();
        array_.dimensions = 2;
        array_.shape = shape_;
    }
    void TearDown() override {
        TWR_EXPECT_OK(twr_close(run_));
        CapiTest::TearDown();
    }
    int protect() { return twr_protect_array(run_, &array_); }
    // The array's metadata as it was captured.
    FieldMetadata captured() {
        FieldMetadata none;
        const std::int64_t step = ++step_;
        if (twr_capture(run_, step) != TWR_OK || twr_wait(run_) != TWR_OK) {
            ADD_FAILURE() << twr_error_message();
            return none;
        }
        const auto history = History::open(path("run"));
        if (!history) {
            ADD_FAILURE() << history.error().message;
            return none;
        }
        const HistoryStep& last = history->steps.back();
        const auto file = MetadataFile::open(path("run") + "/" + last.folder + "/" + last.ranks[0].metadata);
        if (!file) {
            ADD_FAILURE() << file.error().message;
            return none;
        }
        EXPECT_EQ((*file)->directory().fields.size(), 1U);
        return (*file)->directory().fields[0];
    }

    twr_run* run_ = nullptr;
    std::vector<double> values_ = std::vector<double>(24, 1.5);
    std::uint64_t shape_[2] = {4, 6};
    twr_array array_ = TWR_ARRAY_INIT;
    std::int64_t step_ = 0;
};

TEST_F(ArrayTest, AnOlderCallersTailTakesDefaults) {
    array_.size = offsetof(twr_array, strides);
    // What lies behind is not looked at.
    std::memset(reinterpret_cast<char*>(&array_) + array_.size, 0x5A, sizeof array_ - array_.size);
    TWR_EXPECT_OK(protect());
    const FieldMetadata field = captured();
    EXPECT_EQ(field.shape, (std::vector<std::uint64_t>{4, 6}));
    EXPECT_TRUE(field.global_shape.empty());
    EXPECT_EQ(field.order, ArrayOrder::row_major);
}

TEST_F(ArrayTest, ANewerCallersTailMustBeZero) {
    struct {
        twr_array array = TWR_ARRAY_INIT;
        std::uint64_t later = 0;
    } newer;
    newer.array = array_;
    newer.array.size = sizeof newer;
    TWR_EXPECT_OK(twr_protect_array(run_, &newer.array));
    newer.later = 1;
    TWR_EXPECT_ERROR(twr_protect_array(run_, &newer.array), TWR_ERROR_UNSUPPORTED, "twr_array");
}

TEST_F(ArrayTest, ASizeThatNoVersionHasIsRefused) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, offsetof(twr_array, shape), sizeof array_ - 1, sizeof array_ + 4,
          std::size_t{1} << 40, ~std::size_t{0}}) {
        array_.size = size;
        TWR_EXPECT_ERROR(protect(), TWR_ERROR_INVALID_ARGUMENT, "sizeof");
    }
}

TEST_F(ArrayTest, WhatHasNoMeaningIsRefused) {
    const auto refused = [&](auto member, auto value, const char* word, const char* also) {
        const twr_array good = array_;
        array_.*member = value;
        TWR_EXPECT_ERROR(protect(), TWR_ERROR_INVALID_ARGUMENT, word);
        TWR_EXPECT_ERROR(protect(), TWR_ERROR_INVALID_ARGUMENT, also);
        array_ = good;
    };
    for (const int dtype : {-1, 0, 16, 99, 256 + 4, INT32_MAX, INT32_MIN})
        refused(&twr_array::dtype, dtype, "dtype", "'x'");
    for (const int order : {-1, 2})
        refused(&twr_array::order, order, "order", "'x'");
    for (const int dimensions : {-1, 33, INT32_MAX})
        refused(&twr_array::dimensions, dimensions, "dimensions", "'x'");
    for (const int device : {-4, INT32_MIN})
        refused(&twr_array::device, device, "device", "'x'");
    refused(&twr_array::rtol, 1.0, "rtol", "'x'");  // without atol
    refused(&twr_array::atol, std::nan(""), "olerance", "x");
    refused(&twr_array::atol, std::numeric_limits<double>::infinity(), "olerance", "x");
    refused(&twr_array::name, "", "name", "twr_protect_array");
    const std::uint64_t place[2] = {8, 6};
    refused(&twr_array::global_shape, place, "global_offset", "'x'");
    refused(&twr_array::global_offset, place, "global_shape", "'x'");
    const std::uint64_t huge[2] = {1ULL << 33, 1ULL << 33};
    refused(&twr_array::shape, huge, "shape", "'x'");
    const std::uint64_t large[2] = {1ULL << 31, 1ULL << 31};  // its bytes are too many
    refused(&twr_array::shape, large, "shape", "'x'");
    TWR_EXPECT_OK(protect());
}

TEST_F(ArrayTest, ItsPlaceMustLieInTheGlobalArray) {
    const std::uint64_t global_shape[2] = {8, 6};
    const std::uint64_t outside[2] = {5, 0};
    const std::uint64_t inside[2] = {4, 0};
    array_.global_shape = global_shape;
    array_.global_offset = outside;
    TWR_EXPECT_ERROR(protect(), TWR_ERROR_INVALID_ARGUMENT, "x");
    array_.global_offset = inside;
    TWR_EXPECT_OK(protect());
    const FieldMetadata field = captured();
    EXPECT_EQ(field.global_shape, (std::vector<std::uint64_t>{8, 6}));
    EXPECT_EQ(field.global_offset, (std::vector<std::uint64_t>{4, 0}));
}

TEST_F(ArrayTest, OrderAndToleranceArriveInTheMetadata) {
    array_.order = TWR_COLUMN_MAJOR;
    array_.atol = 0;
    array_.rtol = 0.5;
    TWR_EXPECT_OK(protect());
    FieldMetadata field = captured();
    EXPECT_EQ(field.order, ArrayOrder::column_major);
    EXPECT_EQ(field.settings.tolerance, (Tolerance{0, 0.5}));
    array_.atol = -1;
    array_.rtol = 0;
    array_.dimensions = 1;  // has one order: C's and Fortran's vectors compare
    TWR_EXPECT_OK(protect());
    field = captured();
    EXPECT_EQ(field.order, ArrayOrder::row_major);
    EXPECT_EQ(field.settings.tolerance, (Tolerance{1e-6, 0}));
}

TEST_F(ArrayTest, EmptyArraysAndSinglesAreArrays) {
    shape_[1] = 0;
    array_.data = nullptr;
    TWR_EXPECT_OK(protect());
    EXPECT_EQ(captured().items(), 0U);
    array_.dimensions = 0;
    array_.shape = nullptr;
    TWR_EXPECT_ERROR(protect(), TWR_ERROR_INVALID_ARGUMENT, "data");
    array_.data = values_.data();
    TWR_EXPECT_OK(protect());
    EXPECT_EQ(captured().items(), 1U);
}

TEST_F(ArrayTest, WhatTheArgumentsPointToIsCopied) {
    {
        std::string name = "y";
        std::vector<std::uint64_t> shape = {6, 4};
        std::vector<std::int64_t> strides = {8, 48};
        array_.name = name.c_str();
        array_.shape = shape.data();
        array_.strides = strides.data();
        TWR_EXPECT_OK(protect());
        name[0] = 'z';
        shape.assign({0, 0});
        strides.assign({-1, -1});
    }
    const FieldMetadata field = captured();
    EXPECT_EQ(field.name, "y");
    EXPECT_EQ(field.shape, (std::vector<std::uint64_t>{6, 4}));
}

TEST_F(ArrayTest, MemoryOfTheHostIsNotOnADevice) {
    array_.device = TWR_DETECT_DEVICE;
    if (probe_devices().usable().empty()) {
        // No library, or no driver: the words say which.
        const char* const why = device_runtime() == nullptr ? "libtwinrun_cuda.so" : "cuda";
        TWR_EXPECT_ERROR(protect(), TWR_ERROR_UNSUPPORTED, why);
        if (device_runtime() == nullptr) {
            array_.device = 0;
            TWR_EXPECT_ERROR(protect(), TWR_ERROR_UNSUPPORTED, why);
        }
    } else {
        TWR_EXPECT_ERROR(protect(), TWR_ERROR_INVALID_ARGUMENT, "TWR_DETECT_DEVICE");
    }
    for (const int device : {TWR_DETECT, TWR_HOST}) {
        array_.device = device;
        TWR_EXPECT_OK(protect());
    }
}

}  // namespace
}  // namespace twinrun
