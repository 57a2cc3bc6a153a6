// The first tier: device memory. Arrays that were captured on devices are copied there, so that
// capture() returns at the speed of that memory; a thread copies them to the host later.
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
#include "sketch/started_sketches.hpp"

namespace twinrun {

// A step's arrays in device memory: copies of them, or their sketches if only digests are kept.
// When the last owner releases it, its memory returns to the stage, for later steps.
struct StagedArrays {
    struct Sketched {
        std::vector<std::size_t> numbers;  // of the arrays, which lie on one device
        std::unique_ptr<StartedSketches> sketches;
    };
    std::vector<DeviceArray> copies;     // of each array; empty: there are sketches
    std::vector<Sketched> sketches;      // of all arrays; empty: there are copies
    std::uint64_t bytes = 0;             // charged against the stage's limit
    std::map<int, DeviceMemory> memory;  // holds the copies, by device
};

// A session's member. take() and hand_over() are called by the capturing thread; the stage has one
// thread of its own. Staged arrays may outlive it.
class DeviceStage {
   public:
    // limit: bytes of device memory, all devices together.
    explicit DeviceStage(std::uint64_t limit) : limit_(limit), pool_(std::make_shared<Pool>()) {}
    ~DeviceStage();  // does the work that was handed over first

    // Whether copies of these arrays, and `more` bytes, are within the limit.
    [[nodiscard]] bool holds(std::span<const DeviceArray> arrays, std::uint64_t more) const;
    // Copies the arrays within their devices, or starts to sketch them if keep_data is false, after
    // the earlier work of their streams. When it returns, work that is put into these streams may
    // change the arrays; where one is not `ordered`, any other work too. The fields must stay as
    // long as what is returned. Waits while earlier steps hold the memory; `waited` grows by the
    // seconds of waiting. The sketches of one step may exceed the limit, alone. Null: copies exceed
    // the limit, or there is no device memory or thread for the arrays; the caller then takes them
    // at once. more: bytes that will be made of the copies on their devices, and kept as long.
    std::shared_ptr<StagedArrays> take(std::span<const FieldMetadata* const> fields,
                                       std::span<const DeviceArray* const> arrays, bool keep_data,
                                       std::uint64_t more, double& waited);
    // Calls work() on the stage's thread, in the order of these calls; keeps `staged` until it
    // returns. After take() only.
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
    // Device memory. Staged arrays return theirs to it from any thread, also after the stage is
    // gone.
    struct Pool {
        std::mutex mutex;
        std::condition_variable changed;
        std::uint64_t used = 0;                         // bytes, all devices together
        std::map<int, std::vector<DeviceMemory>> free;  // by device; kept for the next steps
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
