// The first tier: what was captured on devices waits in their memory, so that capture() returns at the speed of that memory;
// a thread brings it on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "capture/field.hpp"
#include "compare/device_build.hpp"
#include "platform/device.hpp"

namespace twinrun {

// What was taken of a step: copies of arrays, or, where only digests are kept, their sketches.
struct StagedArrays {
    std::vector<DeviceArray> copies;     // of each array; empty: sketches
    std::vector<DeviceSketch> sketches;  // of each array
    std::uint64_t bytes = 0;             // charged
    std::map<int, DeviceMemory> memory;  // of the copies
};

// Not thread-safe but for its own thread.
class DeviceStage {
   public:
    explicit DeviceStage(std::uint64_t limit) : limit_(limit) {}
    ~DeviceStage();  // what was handed over is done first

    // Takes arrays, when their streams are there: then they may change. Waits for room that earlier steps will give back
    // (`waited` grows by the seconds); nothing, if the arrays are larger than the limit, or there is no device memory for them.
    std::shared_ptr<StagedArrays> take(std::span<const FieldMetadata* const> fields,
                                       std::span<const DeviceArray* const> arrays, bool keep_data,
                                       double& waited);
    // work() on the stage's thread, in order; then the memory is free again.
    void hand_over(std::shared_ptr<StagedArrays> staged, std::function<void()> work);

   private:
    std::shared_ptr<StagedArrays> fill(std::span<const FieldMetadata* const> fields,
                                       std::span<const DeviceArray* const> arrays, bool keep_data);
    Result<std::shared_ptr<StagedArrays>> copy(std::span<const DeviceArray* const> arrays);
    void run();
    struct Task {
        std::shared_ptr<StagedArrays> staged;
        std::function<void()> work;
    };
    std::uint64_t limit_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t used_ = 0;
    std::map<int, std::vector<DeviceMemory>> free_;  // kept for the next steps
    std::deque<Task> tasks_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace twinrun
