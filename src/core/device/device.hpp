// GPUs. Everything that needs a toolkit or a driver lives in a shared library of its own,
// libtwinrun_cuda.so, which is looked for and opened at run time: the same build works where there
// is no GPU, no driver and no toolkit.
//
// The library gives tables of functions, one a room: DeviceRuntime here, DeviceDigestKernels in
// digest/, and so on. Tables are plain data and their functions neither throw nor print. Every
// function may be called from any thread; each names its device, and leaves the calling thread's
// current device as it was.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

inline constexpr std::uint32_t kDeviceAbi = 9;  // raised with every change of a table
inline constexpr int kHostMemory = -1;          // in place of a device's number

// Parts of a device's memory, and of the host's that goes there, begin at multiples of this:
// kernels take it so.
inline constexpr std::size_t kDeviceAlignment = 256;
constexpr std::size_t device_aligned(std::size_t bytes) {
    return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

// The status that a function of the library returns.
struct [[nodiscard]] DeviceStatus {
    bool failed = false;
    ErrorCode code = ErrorCode::internal;
    char text[248] = {};  // "cuda:0: cudaMalloc of 4096 bytes: out of memory"
};
[[nodiscard]] inline Result<> to_result(const DeviceStatus& status) {
    if (!status.failed) return success();
    return Error{status.code, status.text};
}

// Order of work on one device: a cudaStream_t. Null is the device's default stream, which waits for
// all others.
using StreamHandle = void*;
using EventHandle = void*;

struct DeviceFacts {
    char name[128] = {};
    char bus[32] = {};
    int compute_major = 0;
    int compute_minor = 0;
    int multiprocessors = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t free_bytes = 0;
    bool usable = false;    // a kernel of this library ran on it
    char reason[248] = {};  // why not
};

struct DeviceRuntime {
    const char* name;                                     // "CUDA"
    DeviceStatus (*versions)(int* runtime, int* driver);  // as 13000 for 13.0; driver 0: none
    DeviceStatus (*count)(int* devices);
    DeviceStatus (*describe)(int device, DeviceFacts* facts);
    DeviceStatus (*free_memory)(int device, std::uint64_t* free_bytes);
    // Where memory lies: a device's number, or kHostMemory (memory that the driver does not know
    // counts as such).
    DeviceStatus (*place_of)(const void* memory, int* device);
    // Host memory that devices copy from at full speed.
    DeviceStatus (*page_locked)(const void* memory, bool* is);
    DeviceStatus (*allocate)(int device, std::size_t bytes, void** memory);
    void (*release)(int device, void* memory);
    // Page-locked host memory, which all devices copy from and to at full speed.
    DeviceStatus (*allocate_host)(std::size_t bytes, void** memory);
    void (*release_host)(void* memory);
    // Does not wait for the default stream.
    DeviceStatus (*make_stream)(int device, StreamHandle* stream);
    void (*drop_stream)(int device, StreamHandle stream);
    DeviceStatus (*wait_stream)(int device, StreamHandle stream);  // blocks the thread
    DeviceStatus (*make_event)(int device, bool timed, EventHandle* event);
    void (*drop_event)(int device, EventHandle event);
    DeviceStatus (*record)(int device, EventHandle event, StreamHandle stream);
    // Later work waits; the thread does not.
    DeviceStatus (*stream_wait)(int device, StreamHandle stream, EventHandle event);
    // Blocks the thread, without spinning.
    DeviceStatus (*wait_event)(int device, EventHandle event);
    DeviceStatus (*elapsed)(int device, EventHandle begin, EventHandle end, float* milliseconds);
    // Asynchronous, between any two places. Host memory that is not page-locked makes it
    // synchronous.
    DeviceStatus (*copy)(int device, void* to, const void* from, std::size_t bytes, StreamHandle stream);
    DeviceStatus (*fill)(int device, void* to, int byte, std::size_t bytes, StreamHandle stream);
    DeviceStatus (*event_done)(int device, EventHandle event, bool* done);  // does not wait
};

// ---- the host's side ----

// The devices that were found, and why some are not used. Looked for once; thread-safe.
struct DeviceProbe {
    std::string library;  // path; empty: none was opened
    std::string reason;   // why no device can be used; empty: one can
    int runtime_version = 0;
    int driver_version = 0;
    std::vector<DeviceFacts> devices;
    [[nodiscard]] std::vector<int> usable() const;  // numbers
};
const DeviceProbe& probe_devices();
// Null where no library could be opened. Does not look for devices: that alone costs tenths of a
// second.
const DeviceRuntime* device_runtime();
// A table of the library by its name, or null.
const void* device_table(const char* name);

// Owned device memory that grows and never shrinks: no allocation in the steady state. Move-only;
// not thread-safe.
class DeviceMemory {
   public:
    DeviceMemory() = default;
    explicit DeviceMemory(int device) : device_(device) {}
    ~DeviceMemory() { clear(); }
    DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
    DeviceMemory& operator=(DeviceMemory&& other) noexcept {
        swap(other);
        return *this;
    }
    // At least `bytes`, aligned to 256; what it held is lost if it must grow. device: kHostMemory
    // for page-locked memory.
    Result<> reserve(int device, std::size_t bytes);
    void clear();
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }
    template <class T>
    [[nodiscard]] T* as(std::size_t offset = 0) const {
        return reinterpret_cast<T*>(data_ + offset);
    }

   private:
    void swap(DeviceMemory& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }
    int device_ = kHostMemory;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// Blocks the thread until the device has reached the event. Until kSpinsUntil it asks all the time.
// Until kNapsUntil it asks every 64th of the time so far, or as often as the system's timer wakes
// it up, which is some 0.07 ms. Then it calls the device's wait, which takes no processor time, but
// wakes up 0.06 to 0.2 ms late (H200, a virtual machine).
inline constexpr std::chrono::microseconds kSpinsUntil{250};
inline constexpr std::chrono::milliseconds kNapsUntil{20};
Result<> wait_soon(int device, EventHandle event);

// A stream of our own and events, owned.
class DeviceStream {
   public:
    static Result<DeviceStream> create(int device);
    ~DeviceStream();
    DeviceStream(DeviceStream&& other) noexcept
        : device_(other.device_),
          stream_(std::exchange(other.stream_, nullptr)),
          event_(std::exchange(other.event_, nullptr)) {}
    DeviceStream& operator=(DeviceStream&&) = delete;
    [[nodiscard]] int device() const { return device_; }
    [[nodiscard]] StreamHandle get() const { return stream_; }
    // Work put into this stream from now on waits for what is in `other` (of the same device) now.
    Result<> follow(StreamHandle other);
    // Work put into `other` from now on waits for what is in this stream now.
    Result<> lead(StreamHandle other);
    // Blocks the thread until all work put in so far is done.
    Result<> wait();
    // The same, sooner: see twinrun::wait_soon.
    Result<> wait_soon();

   private:
    DeviceStream(int device, StreamHandle stream, EventHandle event)
        : device_(device), stream_(stream), event_(event) {}
    int device_;
    StreamHandle stream_;
    EventHandle event_;
};

}  // namespace twinrun
