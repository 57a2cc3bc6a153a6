// Streams and memory for work on devices, kept from call to call: after the first few calls of a
// kind nothing is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.hpp"
#include "device/device.hpp"
#include "device/event.hpp"

namespace twinrun {

// One stream of ours with memory of its own, on the device and page-locked on the host. Used by one
// thread at a time.
class DeviceWorkspace {
   public:
    static Result<std::unique_ptr<DeviceWorkspace>> create(int device);
    DeviceWorkspace(const DeviceWorkspace&) = delete;
    DeviceWorkspace& operator=(const DeviceWorkspace&) = delete;

    [[nodiscard]] int device() const { return stream_.device(); }
    [[nodiscard]] DeviceStream& stream() { return stream_; }
    // What they held is lost if they must grow; then no work may be under way. A little more is
    // taken, up to `most`.
    Result<> reserve_device(std::size_t bytes, std::size_t most = std::numeric_limits<std::size_t>::max());
    Result<> reserve_host(std::size_t bytes);
    [[nodiscard]] std::byte* device_memory() const { return memory_.data(); }
    [[nodiscard]] std::size_t device_bytes() const { return memory_.bytes(); }
    [[nodiscard]] std::byte* host_memory() const { return pinned_.data(); }
    // Marks what is in the stream now as number 0 or 1; waits, without spinning, until that is
    // done.
    Result<> mark(std::size_t number);
    Result<> wait_mark(std::size_t number);

   private:
    friend class DeviceWorkspaces;
    explicit DeviceWorkspace(DeviceStream stream) : stream_(std::move(stream)) {}
    DeviceStream stream_;
    DeviceMemory memory_;
    DeviceMemory pinned_;
    std::array<DeviceEvent, 2> marks_;
};

// Workspaces of all devices that nobody uses now. Thread-safe. Those of the process are never
// destroyed: the driver may be gone before they would be.
class DeviceWorkspaces {
   public:
    // Gives the workspace back when it ends, after waiting for what is in its stream. Where that
    // cannot be waited for, it is not used again.
    class Lease {
       public:
        Lease() = default;
        Lease(Lease&& other) noexcept = default;
        Lease& operator=(Lease&& other) noexcept {
            std::swap(pool_, other.pool_);
            std::swap(workspace_, other.workspace_);
            return *this;
        }
        ~Lease();
        DeviceWorkspace* operator->() const { return workspace_.get(); }
        DeviceWorkspace& operator*() const { return *workspace_; }
        explicit operator bool() const { return workspace_ != nullptr; }

       private:
        friend class DeviceWorkspaces;
        Lease(DeviceWorkspaces& pool, std::unique_ptr<DeviceWorkspace> workspace)
            : pool_(&pool), workspace_(std::move(workspace)) {}
        DeviceWorkspaces* pool_ = nullptr;
        std::unique_ptr<DeviceWorkspace> workspace_;
    };
    // Of those that are free the smallest one with so much memory on the device, else the largest;
    // or a new one.
    Result<Lease> lease(int device, std::size_t bytes = std::numeric_limits<std::size_t>::max());
    // Gives the memory of those that nobody uses back to the devices. device: kHostMemory for all.
    void release_idle(int device = kHostMemory);
    // The same of all pools of the process.
    static void release_all_idle(int device = kHostMemory);

    static DeviceWorkspaces& builds();    // digests, trees, walks
    static DeviceWorkspaces& sketches();  // what a DeviceSketch keeps
    static DeviceWorkspaces& copies();    // elements to the host
    static DeviceWorkspaces& slices();    // slices of comparisons
    static DeviceWorkspaces& buffers();   // page-locked, for what slices read

   private:
    void give_back(std::unique_ptr<DeviceWorkspace> workspace);
    std::mutex mutex_;
    std::map<int, std::vector<std::unique_ptr<DeviceWorkspace>>> idle_;
};

// How often workspaces were made and their memory grew, in all: does not change in the steady
// state.
[[nodiscard]] std::uint64_t device_workspace_allocations();

}  // namespace twinrun
