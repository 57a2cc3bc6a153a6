// What tests may ask of the fake device library (fake_device/fake_device.cpp), where that is the one in use.
#pragma once

#include <cstdint>

#include "device/device.hpp"

namespace twinrun::testing {

// What the library holds for its caller.
struct FakeDeviceHeld {
    std::uint64_t blocks = 0;  // of memory, on devices and page-locked
    std::uint64_t streams = 0;
    std::uint64_t events = 0;
    friend bool operator==(const FakeDeviceHeld&, const FakeDeviceHeld&) = default;
};

struct FakeDeviceControl {
    // Makes a call fail, as TWINRUN_FAKE_DEVICE_FAIL does; counting begins now. "": no call, and lost devices work again.
    // False: not understood.
    bool (*fail)(const char* fault);
    // Calls that failed because of the last fail().
    std::uint64_t (*failed)();
    // Calls of a function since the last fail(); of all: "any".
    std::uint64_t (*calls)(const char* function);
    // Names of the functions that can fail, up to null.
    const char* const* functions;
    void (*held)(FakeDeviceHeld* held);
    // From now on one of so many events is done when it is asked for the first time; 0: none is.
    void (*work_ahead)(unsigned every);
};

// Every third event is done when it is asked for the first time, as long as this lives and the fake device is in use.
class DeviceWorksAhead {
   public:
    DeviceWorksAhead() { set(3); }
    ~DeviceWorksAhead() { set(0); }
    DeviceWorksAhead(const DeviceWorksAhead&) = delete;
    DeviceWorksAhead& operator=(const DeviceWorksAhead&) = delete;

   private:
    static void set(unsigned every) {
        const auto* const fake = static_cast<const FakeDeviceControl*>(device_table("fake"));
        if (fake != nullptr) fake->work_ahead(every);
    }
};

// Null: another library is in use, or none.
[[nodiscard]] inline const FakeDeviceControl* fake_device() {
    return static_cast<const FakeDeviceControl*>(device_table("fake"));
}

}  // namespace twinrun::testing
