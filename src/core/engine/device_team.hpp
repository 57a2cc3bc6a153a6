// The workers and buffers of work on devices: what comparisons of elements and of sketches share.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device_workspace.hpp"
#include "device/event.hpp"
#include "device/gpu_direct_storage.hpp"
#include "difference/difference_device.hpp"
#include "source/device_array.hpp"
#include "source/plan.hpp"
#include "source/tuning.hpp"

namespace twinrun {

// One run's items of one window, on their way to the device. Offsets are into the lane's device
// memory.
struct DevicePiece {
    const std::byte* host = nullptr;  // to be copied from here, if `bytes` is not 0
    std::size_t bytes = 0;
    std::size_t raw = 0;                // where the copy goes
    std::size_t first = 0;              // where the first item lies then
    const std::byte* placed = nullptr;  // or where all of it lies already, dense and native
    std::uint64_t stride = 0;
    bool swap = false;
    bool gathers = false;  // dense and native at `dense` first
    std::size_t dense = 0;
};

// One slice on its device.
struct DeviceLane {
    DeviceWorkspaces::Lease space;
    DirectStorageBuffer registered;  // goes before the memory does
    const std::byte* registered_at = nullptr;
    DeviceEvent begin, end;
    std::array<std::vector<DevicePiece>, 2> pieces;
    std::vector<DevicePart> parts;
    std::vector<ReadRequest> requests;
};

// The lanes and buffers of all workers: worker w works on device w mod n.
class DeviceTeam {
   public:
    struct Worker {
        int device = 0;
        DeviceWorkspaces::Lease buffers;
        std::array<DeviceLane, kDeviceLanes> lanes;
        std::size_t begun = 0;
        std::size_t finished = 0;
        struct Interval {
            double begin, end;
        };
        std::vector<Interval> busy;
    };

    // arrays: whose streams all work waits for; may be null.
    static Result<std::unique_ptr<DeviceTeam>> create(std::span<const int> devices, int workers,
                                                      std::array<const DeviceArray*, 2> arrays);
    // Made at first use, by its own thread.
    Result<Worker*> worker(int number);
    // Page-locked, aligned for direct reads.
    Result<std::byte*> buffers(int number, std::size_t bytes);
    // Begins a slice in the worker's next lane: start(device, lane) puts its work into the lane's
    // stream.
    template <class Start>
    Result<bool> begin(int number, Start start) {
        TWR_TRY(Worker* const mine, worker(number));
        DeviceLane& lane = mine->lanes[mine->begun % kDeviceLanes];
        if (Result<> started = start(mine->device, lane); !started) {
            // What was put into the stream before it failed still uses the buffers.
            static_cast<void>(lane.space->stream().wait());
            return std::move(started).error();
        }
        ++mine->begun;
        return true;
    }
    // Waits for the oldest slice of a worker.
    Result<DeviceLane*> finish(int number);
    // While anything was under way, summed over devices.
    [[nodiscard]] double seconds() const;

   private:
    DeviceTeam() = default;
    std::vector<int> devices_;
    std::array<const DeviceArray*, 2> arrays_{};
    std::vector<DeviceEvent> origins_;  // of each device: zero of its clock
    std::vector<std::unique_ptr<Worker>> workers_;
};

// Error: this process has no device that works, or the device library lacks kernels.
Result<> check_device_tables();

// Workers for so many bytes; at least one a device.
int device_team_size(std::size_t devices, int a_device, std::uint64_t bytes, int threads);

// Half the size again and again, while the memory does not suffice; the smallest twice, as the
// first of these attempts may have failed for memory that other work kept.
template <class Attempt>
auto with_fitting_slices(std::size_t slice_bytes, Attempt attempt) -> decltype(attempt(slice_bytes)) {
    for (bool last = false;;) {
        auto result = attempt(slice_bytes);
        if (result || result.error().code != ErrorCode::out_of_memory) {
            // Nothing that belonged to a device in an unknown state is used again.
            if (!result &&
                (result.error().code == ErrorCode::io || result.error().code == ErrorCode::internal))
                DeviceWorkspaces::release_all_idle();
            return result;
        }
        DeviceWorkspaces::release_all_idle();
        if (last) {
            Error error = std::move(result).error();
            error.message +=
                ", even for slices of " + std::to_string(slice_bytes >> 20) +
                " MiB: free some of it (other arrays, other processes), or work on the CPU (device: cpu)";
            return error;
        }
        last = slice_bytes <= kSmallestDeviceSlice;
        slice_bytes = std::max(slice_bytes / 2, kSmallestDeviceSlice);
    }
}

}  // namespace twinrun
