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

#include "device/device.hpp"
#include "history/field.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"

namespace twinrun {

// What was taken of a step: copies of arrays, or, where only digests are kept, their sketches. When its last owner lets go of
// it, its memory is the stage's again, for later steps.
struct StagedArrays {
    std::vector<DeviceArray> copies;     // of each array; empty: sketches
    std::vector<DeviceSketch> sketches;  // of each array
    std::uint64_t bytes = 0;             // charged
    std::map<int, DeviceMemory> memory;  // of the copies
};

// Not thread-safe but for its own thread. Staged arrays may outlive it.
class DeviceStage {
   public:
    explicit DeviceStage(std::uint64_t limit) : limit_(limit), pool_(std::make_shared<Pool>()) {}
    ~DeviceStage();  // what was handed over is done first

    // Takes arrays, when their streams are there: then they may change. Waits for room that earlier steps will give back
    // (`waited` grows by the seconds); nothing, if the arrays are larger than the limit, or there is no device memory for them.
    std::shared_ptr<StagedArrays> take(std::span<const FieldMetadata* const> fields,
                                       std::span<const DeviceArray* const> arrays, bool keep_data,
                                       double& waited);
    // work() on the stage's thread, in order.
    void hand_over(std::shared_ptr<StagedArrays> staged, std::function<void()> work);

   private:
    bool fill(StagedArrays& staged, std::span<const FieldMetadata* const> fields,
              std::span<const DeviceArray* const> arrays, bool keep_data);
    Result<> copy(StagedArrays& staged, std::span<const DeviceArray* const> arrays);
    void run();
    struct Task {
        std::shared_ptr<StagedArrays> staged;
        std::function<void()> work;
    };
    // Memory, which comes back from whoever lets go of staged arrays.
    struct Pool {
        std::mutex mutex;
        std::condition_variable changed;
        std::uint64_t used = 0;
        std::map<int, std::vector<DeviceMemory>> free;  // kept for the next steps
        void give_back(std::unique_ptr<StagedArrays> staged);
    };
    std::uint64_t limit_;
    std::shared_ptr<Pool> pool_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> tasks_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace twinrun
