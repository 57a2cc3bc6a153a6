// Streams, which are as lazy as they may be, and what goes wrong in their work.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "support/fake_device/faults.hpp"

namespace twinrun::fake {

struct Stream {
    int device;
    std::deque<std::function<void()>> work;
    std::uint64_t put = 0;
    std::uint64_t done = 0;

    void push(std::function<void()> what) {
        work.push_back(std::move(what));
        ++put;
    }
    void run(std::uint64_t until) {
        while (done < until && !work.empty()) {
            const auto what = std::move(work.front());
            work.pop_front();
            ++done;
            what();
        }
    }
    void finish() { run(put); }
};

// Null: no stream of the library. A null handle: the default stream of the device.
std::shared_ptr<Stream> stream_of(int device, StreamHandle handle);
StreamHandle add_stream(int device);
void drop_stream(StreamHandle handle);
std::uint64_t stream_count();
// Does all work of the device.
void finish_all(int device);
// Forgets what is under way on the device.
void abandon(int device);
// Puts work into a stream.
DeviceStatus push(int device, StreamHandle handle, std::function<void()> what);

// A kernel went wrong: who waits for the device is told.
void trouble(int device, const std::string& text);
DeviceStatus after_waiting(int device);

}  // namespace twinrun::fake
