// A moment in a device's order of work, which other work and the host can wait for.
#pragma once

#include "base/result.hpp"
#include "device/device.hpp"

namespace twinrun {

// make() first; the other functions may be called from any thread after it. What waits for an event
// goes on waiting when the event is destroyed. Errors are the device's.
class DeviceEvent {
   public:
    DeviceEvent() = default;
    ~DeviceEvent() {
        if (event_ != nullptr) device_runtime()->drop_event(device_, event_);
    }
    DeviceEvent(const DeviceEvent&) = delete;
    DeviceEvent& operator=(const DeviceEvent&) = delete;

    // timed: seconds_since is asked for.
    Result<> make(int device, bool timed = false) {
        device_ = device;
        return to_result(device_runtime()->make_event(device, timed, &event_));
    }
    // Behind all work that is in the stream now. stream: of the event's device.
    Result<> record(StreamHandle stream) {
        return to_result(device_runtime()->record(device_, event_, stream));
    }
    // Blocks the thread until the device has reached the event.
    Result<> wait() const { return to_result(device_runtime()->wait_event(device_, event_)); }
    // As wait(), sooner: see twinrun::wait_soon.
    Result<> wait_soon() const { return twinrun::wait_soon(device_, event_); }
    // Whether the device has come to it; does not wait.
    Result<bool> done() const {
        bool is_done = false;
        TWR_CHECK(to_result(device_runtime()->event_done(device_, event_, &is_done)));
        return is_done;
    }
    // Later work of the stream, of any device, waits for the event; the thread does not.
    Result<> hold_up(int device, StreamHandle stream) const {
        return to_result(device_runtime()->stream_wait(device, stream, event_));
    }
    // Both have been waited for.
    Result<double> seconds_since(const DeviceEvent& earlier) const {
        float milliseconds = 0;
        TWR_CHECK(to_result(device_runtime()->elapsed(device_, earlier.event_, event_, &milliseconds)));
        return static_cast<double>(milliseconds) * 1e-3;
    }

   private:
    int device_ = 0;
    EventHandle event_ = nullptr;
};

}  // namespace twinrun
