#include "device/device.hpp"

#include <gtest/gtest.h>

#include "support/device.hpp"

namespace twinrun {
namespace {

// Wherever it runs, the probe answers, and says why a device cannot be used.
TEST(Probe, SaysWhatIsThereOrWhyNot) {
    const DeviceProbe& found = probe_devices();
    EXPECT_EQ(found.usable().empty(), !found.reason.empty());
    if (found.library.empty()) {
        EXPECT_EQ(device_runtime(), nullptr);
        EXPECT_EQ(device_table("digest"), nullptr);
    }
    for (const DeviceFacts& d : found.devices)
        EXPECT_NE(d.usable, d.reason[0] != '\0') << d.name;
}

TEST(Probe, UnknownTablesAreNotThere) { EXPECT_EQ(device_table("nothing of this name"), nullptr); }

TEST(DeviceMemoryTest, WithoutALibraryItIsAnError) {
    if (device_runtime() != nullptr) GTEST_SKIP() << "there is a device library";
    DeviceMemory memory;
    const auto made = memory.reserve(0, 100);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, ErrorCode::unsupported);
    EXPECT_FALSE(DeviceStream::create(0).ok());
}

TEST(DeviceMemoryTest, GrowsAndStays) {
    TWR_TEST_DEVICE(device);
    DeviceMemory memory;
    ASSERT_TRUE(memory.reserve(device, 1000).ok());
    const std::byte* first = memory.data();
    ASSERT_TRUE(memory.reserve(device, 500).ok());
    EXPECT_EQ(memory.data(), first);
    EXPECT_EQ(memory.bytes(), 1000U);
    int place = kHostMemory;
    ASSERT_FALSE(device_runtime()->place_of(memory.data(), &place).failed);
    EXPECT_EQ(place, device);
    int on_stack = 0;
    ASSERT_FALSE(device_runtime()->place_of(&on_stack, &place).failed);
    EXPECT_EQ(place, kHostMemory);
}

TEST(DeviceMemoryTest, TooMuchIsAnErrorAndNothingIsLost) {
    TWR_TEST_DEVICE(device);
    DeviceMemory memory;
    const auto made = memory.reserve(device, 1ULL << 50);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, ErrorCode::out_of_memory) << made.error().message;
    ASSERT_TRUE(memory.reserve(device, 4096).ok());
    EXPECT_FALSE(device_runtime()->fill(device, memory.data(), 1, 4096, nullptr).failed);
}

TEST(DeviceStreamTest, FollowsAnother) {
    TWR_TEST_DEVICE(device);
    auto first = DeviceStream::create(device);
    auto second = DeviceStream::create(device);
    ASSERT_TRUE(first.ok() && second.ok());
    DeviceMemory on_device;
    DeviceMemory on_host;
    constexpr std::size_t bytes = 64 << 20;
    ASSERT_TRUE(on_device.reserve(device, bytes).ok());
    ASSERT_TRUE(on_host.reserve(kHostMemory, bytes).ok());
    for (int round = 1; round < 20; ++round) {
        ASSERT_FALSE(device_runtime()->fill(device, on_device.data(), round, bytes, first->get()).failed);
        ASSERT_TRUE(second->follow(first->get()).ok());
        ASSERT_FALSE(
            device_runtime()->copy(device, on_host.data(), on_device.data(), bytes, second->get()).failed);
        ASSERT_TRUE(second->lead(first->get()).ok());
        ASSERT_TRUE(second->wait().ok());
        EXPECT_EQ(on_host.data()[bytes - 1], static_cast<std::byte>(round));
    }
}

}  // namespace
}  // namespace twinrun
