// The shared state of the device's deduplicator: the device with its kernels, four streams,
// and counts that kernels make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.hpp"
#include "dedup/base_deduplicator.hpp"
#include "dedup/dedup_device.hpp"
#include "dedup/deduplicator.hpp"
#include "device/device.hpp"
#include "device/event.hpp"

namespace twinrun {

// The counts of one pass of kernels, as they lie in device memory and in their copy on the host.
struct DedupCounts {
    unsigned long long made = 0;  // entries of the table
    unsigned long long fresh = 0;
    unsigned long long entries = 0;  // runs
    unsigned long long continues = 0;
};

// Not thread-safe. prepare() first.
struct DedupContext {
    // Offsets in the control memory, behind DedupCounts: two of DeviceJoinState, and 256 counts by
    // use.
    static constexpr std::size_t kStateAt = 256;
    static constexpr std::size_t kUsesAt = 512;
    static constexpr std::size_t kControlBytes = kUsesAt + 256 * sizeof(unsigned long long);
    static_assert(sizeof(DedupCounts) <= kStateAt && kStateAt + 2 * sizeof(DeviceJoinState) <= kUsesAt);

    DedupContext(int on_device, const DedupOptions& given, const DeviceDedupKernels& with,
                 DeviceStream to_hash, DeviceStream to_count, DeviceStream to_work, DeviceStream to_copy)
        : device(on_device),
          options(given),
          chunk(given.chunk_bytes),
          runtime(*device_runtime()),
          kernels(with),
          mask(hash_mask(given.hash_bits)),
          hashing(std::move(to_hash)),
          counting(std::move(to_count)),
          working(std::move(to_work)),
          copying(std::move(to_copy)) {}
    DedupContext(const DedupContext&) = delete;
    DedupContext& operator=(const DedupContext&) = delete;

    Result<> prepare() {
        TWR_CHECK(counted.make(device));
        TWR_CHECK(control.reserve(device, kControlBytes));
        return control_host.reserve(kHostMemory, kControlBytes);
    }

    [[nodiscard]] bool looks_up() const { return twinrun::looks_up(options.method); }
    [[nodiscard]] bool keeps_image() const { return options.give_base; }

    Result<> wait(DeviceStream& stream) const { return to_result(runtime.wait_stream(device, stream.get())); }
    Result<> copy(void* to, const void* from, std::size_t bytes, DeviceStream& stream) const {
        return to_result(runtime.copy(device, to, from, bytes, stream.get()));
    }
    Result<> fill(void* to, int byte, std::size_t bytes, DeviceStream& stream) const {
        return to_result(runtime.fill(device, to, byte, bytes, stream.get()));
    }
    // Waits for all streams: afterwards no work of ours reads the image or writes. A stream that
    // fails is passed over, since this is called after errors too.
    void settle() {
        for (DeviceStream* stream : {&hashing, &counting, &working, &copying})
            static_cast<void>(runtime.wait_stream(device, stream->get()));
    }

    // An address on the device.
    [[nodiscard]] DedupCounts* device_counts() const { return control.as<DedupCounts>(); }
    // The one that next_join_state() was before. At first both are zeros.
    [[nodiscard]] DeviceJoinState* join_state() const {
        return control.as<DeviceJoinState>(kStateAt) + joined % 2;
    }
    [[nodiscard]] DeviceJoinState* next_join_state() {
        ++joined;
        return join_state();
    }
    Result<> clear_counts() { return fill(control.data(), 0, sizeof(DedupCounts), working); }
    // Brings to counts() what kernels counted since clear_counts(). Blocks.
    Result<> fetch_counts() {
        TWR_CHECK(ask_for_counts());
        return counted.wait_soon();
    }
    // The same, but counts() are there when `counted` is done.
    Result<> ask_for_counts() {
        TWR_CHECK(
            to_result(kernels.report(device, control_host.as<std::uint32_t>(), control.as<std::uint32_t>(),
                                     sizeof(DedupCounts) / sizeof(std::uint32_t), working.get())));
        return counted.record(working.get());
    }
    [[nodiscard]] const DedupCounts& counts() const { return *control_host.as<DedupCounts>(); }

    [[nodiscard]] std::uint64_t memory_bytes() const { return control.bytes() + control_host.bytes(); }

    const int device;
    const DedupOptions options;
    const std::uint64_t chunk;  // bytes
    const DeviceRuntime& runtime;
    const DeviceDedupKernels& kernels;
    const ChunkHash mask;
    DeviceMemory control;
    DeviceMemory control_host;  // counts and uses, as in control
    std::uint64_t joined = 0;   // slices
    DeviceEvent counted;
    // Last, so that streams end before memory is given back.
    DeviceStream hashing;
    DeviceStream counting;  // at how many chunks changed, while others are hashed
    DeviceStream working;
    DeviceStream copying;
};

}  // namespace twinrun
