// For tests that need a device: which one, or why they are skipped.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "device/device_workspace.hpp"

namespace twinrun {

// The first device that can be used; in a test: if there is none, the test is skipped with the reason.
#define TWR_TEST_DEVICE(name)                                                                           \
    if (::twinrun::probe_devices().usable().empty()) GTEST_SKIP() << ::twinrun::probe_devices().reason; \
    [[maybe_unused]] const int name = ::twinrun::probe_devices().usable().front()

// TWINRUN_TEST_ROUNDS: fewer rounds of random inputs, for slow tools; the default where it is not set.
inline int test_rounds(int rounds) {
    const char* text = std::getenv("TWINRUN_TEST_ROUNDS");
    return text == nullptr ? rounds : std::min(rounds, std::max(1, std::atoi(text)));
}

// Bytes on a device, `skew` bytes behind an aligned address.
class OnDevice {
   public:
    OnDevice(int device, std::size_t bytes, std::size_t skew = 0)
        : device_(device), bytes_(bytes), skew_(skew) {
        auto made = memory_.reserve(device, bytes + skew + 64);
        if (!made) {  // earlier tests on many cores may have left a small device full
            DeviceWorkspaces::release_all_idle(device);
            made = memory_.reserve(device, bytes + skew + 64);
        }
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
        // What is not written is seen.
        EXPECT_FALSE(device_runtime()->fill(device, memory_.data(), 0xA5, bytes + skew + 64, nullptr).failed);
        EXPECT_FALSE(device_runtime()->wait_stream(device, nullptr).failed);
    }
    template <class T>
    OnDevice(int device, std::span<const T> values, std::size_t skew = 0)
        : OnDevice(device, values.size_bytes(), skew) {
        put(values.data(), values.size_bytes());
    }
    void put(const void* from, std::size_t bytes) {
        EXPECT_FALSE(device_runtime()->copy(device_, data(), from, bytes, nullptr).failed);
        EXPECT_FALSE(device_runtime()->wait_stream(device_, nullptr).failed);
    }
    [[nodiscard]] std::byte* data() const { return memory_.data() + skew_; }
    template <class T>
    [[nodiscard]] T* as() const {
        return reinterpret_cast<T*>(data());
    }
    template <class T>
    [[nodiscard]] std::vector<T> values() const {
        std::vector<T> all(bytes_ / sizeof(T));
        EXPECT_FALSE(
            device_runtime()->copy(device_, all.data(), data(), all.size() * sizeof(T), nullptr).failed);
        EXPECT_FALSE(device_runtime()->wait_stream(device_, nullptr).failed);
        return all;
    }

   private:
    int device_;
    std::size_t bytes_;
    std::size_t skew_;
    DeviceMemory memory_;
};

}  // namespace twinrun
