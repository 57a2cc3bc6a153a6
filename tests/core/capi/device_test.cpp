// Arrays on devices through the C interface.
#include <dlfcn.h>

#include <cstddef>
#include <numeric>
#include <vector>

#include <twinrun/compare.h>

#include "core/capi/support.hpp"
#include "support/device.hpp"

namespace twinrun {
namespace {

using DeviceCapi = testing::CapiTest;

TEST_F(DeviceCapi, ArraysAreFoundWhereTheyLieAndComeBackThere) {
    TWR_TEST_DEVICE(device);
    std::vector<double> values(60);
    std::iota(values.begin(), values.end(), 0.5);
    OnDevice x(device, std::span<const double>(values));
    OnDevice y(device, std::span<const double>(values));
    std::vector<double> on_host = values;
    const std::uint64_t shape[] = {6, 10};
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    twr_array array = TWR_ARRAY_INIT;
    array.dimensions = 2;
    array.shape = shape;
    array.name = "detected";
    array.data = x.data();
    TWR_EXPECT_OK(twr_protect_array(run, &array));
    array.name = "named";
    array.data = y.data();
    array.device = device;
    TWR_EXPECT_OK(twr_protect_array(run, &array));
    array.name = "host";
    array.data = on_host.data();
    array.device = TWR_DETECT;
    TWR_EXPECT_OK(twr_protect_array(run, &array));
    array.device = TWR_DETECT_DEVICE;
    TWR_EXPECT_ERROR(twr_protect_array(run, &array), TWR_ERROR_INVALID_ARGUMENT, "'host'");
    TWR_EXPECT_OK(twr_capture(run, 1));
    TWR_EXPECT_OK(twr_wait(run));
    const std::vector<double> zeros(60, 0.0);
    x.put(zeros.data(), 480);
    y.put(zeros.data(), 480);
    on_host = zeros;
    TWR_EXPECT_OK(twr_restore(run, 1));
    EXPECT_EQ(x.values<double>(), values);
    EXPECT_EQ(y.values<double>(), values);
    EXPECT_EQ(on_host, values);
    TWR_EXPECT_OK(twr_close(run));
}

// Without our library for GPUs: what the application's driver says is on a device is not read as if it were the host's.
TEST_F(DeviceCapi, MemoryThatTheHostCannotReadIsRefused) {
    if (device_runtime() != nullptr) GTEST_SKIP() << "there is a library for GPUs";
    void* const driver = dlopen(TWINRUN_FAKE_DRIVER, RTLD_NOW);
    ASSERT_NE(driver, nullptr) << dlerror();
    const auto place = reinterpret_cast<void (*)(const void*, bool)>(dlsym(driver, "fake_driver_place"));
    ASSERT_NE(place, nullptr);
    double x = 1;
    double y = 2;
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    place(&x, false);
    TWR_EXPECT_ERROR(twr_protect(run, "x", &x, TWR_F64, 0, nullptr), TWR_ERROR_UNSUPPORTED,
                     "libtwinrun_cuda.so");
    TWR_EXPECT_OK(twr_protect(run, "y", &y, TWR_F64, 0, nullptr));
    place(&x, true);  // managed: the host can
    TWR_EXPECT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
    TWR_EXPECT_OK(twr_close(run));
    dlclose(driver);
}

// A device's column-major array, dense or not, is kept in the order in which the host's is.
TEST_F(DeviceCapi, OrderAndStridesAreThoseOfTheHost) {
    TWR_TEST_DEVICE(device);
    std::vector<double> values(6 * 10);
    std::iota(values.begin(), values.end(), 0.5);
    const OnDevice on_device(device, std::span<const double>(values));
    set("stop_on_divergence", "true");
    set("atol", "0");
    const std::uint64_t shape[] = {3, 5};
    const std::vector<std::vector<std::int64_t>> layouts = {
        {}, {8, 24}, {40, 8}, {160, 16}, {16, 160 - 16 * 4}, {-80, 8}};
    for (const int order : {TWR_ROW_MAJOR, TWR_COLUMN_MAJOR}) {
        for (std::size_t l = 0; l < layouts.size(); ++l) {
            const std::string name = std::to_string(order) + "-" + std::to_string(l);
            for (const bool there : {false, true}) {
                set("reference", there ? path("host-" + name) : "");
                twr_run* run = open((there ? "device-" : "host-") + name);
                ASSERT_NE(run, nullptr);
                twr_array array = TWR_ARRAY_INIT;
                array.name = "x";
                array.order = order;
                array.dimensions = 2;
                array.shape = shape;
                array.strides = layouts[l].empty() ? nullptr : layouts[l].data();
                array.data = (there ? on_device.as<double>() : values.data()) + (l == 5 ? 30 : 0);
                TWR_EXPECT_OK(twr_protect_array(run, &array));
                EXPECT_EQ(twr_capture(run, 1), TWR_OK) << name << ": " << twr_error_message();
                TWR_EXPECT_OK(twr_close(run));
            }
        }
    }
}

// Arrays of any order and strides, on the host or on a device: the same values are the same, and the first difference is the first one row
// by row.
TEST_F(DeviceCapi, ComparedWhereTheyLie) {
    TWR_TEST_DEVICE(device);
    std::vector<double> values(6 * 10);
    std::iota(values.begin(), values.end(), 0.5);
    const std::uint64_t shape[] = {3, 5};
    const std::vector<std::vector<std::int64_t>> layouts = {{},        {8, 24},  {40, 8},
                                                            {160, 16}, {16, 48}, {-80, 8}};
    const auto item = [&](const std::vector<std::int64_t>& strides, int order, std::size_t r, std::size_t c) {
        if (strides.empty()) return order == TWR_ROW_MAJOR ? r * 5 + c : c * 3 + r;
        const std::size_t first = strides[0] < 0 ? 30 : 0;
        return first + static_cast<std::size_t>((strides[0] * static_cast<std::int64_t>(r) +
                                                 strides[1] * static_cast<std::int64_t>(c)) /
                                                8);
    };
    // A matrix of 10 r + c, but at two places, where `by` is added.
    const auto filled = [&](const std::vector<std::int64_t>& strides, int order, double by) {
        std::vector<double> all(values.size(), -1);
        for (std::size_t r = 0; r < 3; ++r) {
            for (std::size_t c = 0; c < 5; ++c)
                all[item(strides, order, r, c)] = 10.0 * static_cast<double>(r) + static_cast<double>(c);
        }
        all[item(strides, order, 2, 0)] += by;
        all[item(strides, order, 0, 4)] += by;
        return all;
    };
    for (const int order_a : {TWR_ROW_MAJOR, TWR_COLUMN_MAJOR}) {
        for (const int order_b : {TWR_ROW_MAJOR, TWR_COLUMN_MAJOR}) {
            for (std::size_t l = 0; l < layouts.size(); ++l) {
                for (const double by : {0.0, 2.0}) {
                    for (const int on_device : {1, 2, 3}) {
                        const auto& of_a = layouts[(l + 1) % layouts.size()];
                        const auto& of_b = layouts[l];
                        std::vector<double> host_a = filled(of_a, order_a, 0);
                        std::vector<double> host_b = filled(of_b, order_b, by);
                        const OnDevice there_a(device, std::span<const double>(host_a));
                        const OnDevice there_b(device, std::span<const double>(host_b));
                        const auto array = [&](const std::vector<std::int64_t>& strides, int order,
                                               double* data) {
                            twr_array made = TWR_ARRAY_INIT;
                            made.name = "x";
                            made.order = order;
                            made.dimensions = 2;
                            made.shape = shape;
                            made.strides = strides.empty() ? nullptr : strides.data();
                            made.data = data + item(strides, order, 0, 0);
                            return made;
                        };
                        const twr_array a =
                            array(of_a, order_a, (on_device & 1) != 0 ? there_a.as<double>() : host_a.data());
                        const twr_array b =
                            array(of_b, order_b, (on_device & 2) != 0 ? there_b.as<double>() : host_b.data());
                        twr_comparison* found = nullptr;
                        EXPECT_EQ(twr_compare_arrays(&a, 1, &b, 1, nullptr, &found),
                                  by == 0 ? TWR_OK : TWR_DIFFERENT)
                            << twr_error_message() << ", layout " << l << ", orders " << order_a << order_b
                            << ", on device " << on_device;
                        if (by != 0 && found != nullptr) {
                            twr_field_report field{};
                            field.size = sizeof field;
                            TWR_EXPECT_OK(twr_comparison_field(found, 0, &field));
                            EXPECT_EQ(field.different, 2U);
                            EXPECT_EQ(field.first_index[0], 0U);
                            EXPECT_EQ(field.first_index[1], 4U);
                            EXPECT_EQ(field.first_a.of.real, 4);
                            EXPECT_EQ(field.first_b.of.real, 6);
                        }
                        twr_comparison_destroy(found);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace twinrun
