// Arrays on devices through the C interface.
#include <dlfcn.h>

#include <cstddef>
#include <numeric>
#include <vector>

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

}  // namespace
}  // namespace twinrun
