// Checks of what kernels are given: addresses, and scratch memory that must stay until their work is done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "support/fake_device/memory.hpp"
#include "support/fake_device/streams.hpp"

namespace twinrun::fake {

constexpr std::size_t kScratch = 512;  // bytes an item: what overlaps them shows

// Checks what a kernel is given.
class Checker {
   public:
    Checker(int device, const char* kernel) : device_(device), kernel_(kernel) {}
    void memory(const void* at, std::size_t bytes, std::size_t alignment, const char* what) {
        if (bytes == 0) return;
        if (!lies_on(device_, at, bytes)) fail(what, "is not memory of this device");
        aligned(at, alignment, what);
    }
    void memory_or_locked(const void* at, std::size_t bytes, std::size_t alignment, const char* what) {
        if (bytes == 0) return;
        if (!lies_on(device_, at, bytes) && !lies_on(kHostMemory, at, bytes))
            fail(what, "is neither memory of this device nor page-locked");
        aligned(at, alignment, what);
    }
    void locked(const void* at, std::size_t bytes, const char* what) {
        if (!lies_on(kHostMemory, at, bytes)) fail(what, "is not page-locked");
    }
    void require(bool holds, const char* what, const char* why) {
        if (!holds) fail(what, why);
    }
    [[nodiscard]] bool ok() const { return ok_; }

   private:
    void aligned(const void* at, std::size_t alignment, const char* what) {
        if (reinterpret_cast<std::uintptr_t>(at) % alignment != 0) fail(what, "is misaligned");
    }
    void fail(const char* what, const char* why) {
        ok_ = false;
        trouble(device_, std::string(kernel_) + ": " + what + " " + why);
    }
    int device_;
    const char* kernel_;
    bool ok_ = true;
};

// The scratch memory of a call: rubbish on the device; on the host something that must still be there when its work is done.
class Scratch {
   public:
    Scratch(void* device_memory, std::size_t device_bytes, void* host_memory, std::size_t host_bytes)
        : device_memory_(device_memory),
          device_bytes_(device_bytes),
          host_memory_(static_cast<std::uint8_t*>(host_memory)),
          host_bytes_(host_bytes) {
        static std::uint8_t next = 0;
        value_ = ++next;
    }
    // When the call is made.
    void prepare() const {
        if (host_bytes_ != 0) std::memset(host_memory_, value_, host_bytes_);
    }
    // When its work is done.
    void check(Checker& checker) const {
        checker.memory(device_memory_, device_bytes_, 16, "scratch memory");
        checker.locked(host_memory_, host_bytes_, "scratch memory on the host");
        if (!checker.ok()) return;
        checker.require(std::all_of(host_memory_, host_memory_ + host_bytes_,
                                    [this](std::uint8_t x) { return x == value_; }),
                        "scratch memory on the host", "changed before its work was done");
        if (device_bytes_ != 0) std::memset(device_memory_, 0xEE, device_bytes_);
    }

   private:
    void* device_memory_;
    std::size_t device_bytes_;
    std::uint8_t* host_memory_;
    std::size_t host_bytes_;
    std::uint8_t value_;
};

}  // namespace twinrun::fake
