// The shared state of the device's deduplicator: the device with its kernels, three streams,
// and counts that kernels make.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.hpp"
#include "dedup/base_deduplicator.hpp"
#include "dedup/dedup_device.hpp"
#include "dedup/deduplicator.hpp"
#include "device/device.hpp"

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
    // Offsets in the control memory, behind DedupCounts: a DeviceJoinState, and 256 counts by use.
    static constexpr std::size_t kStateAt = 256;
    static constexpr std::size_t kUsesAt = 512;
    static constexpr std::size_t kControlBytes = kUsesAt + 256 * sizeof(unsigned long long);

    DedupContext(int on_device, const DedupOptions& given, const DeviceDedupKernels& with,
                 DeviceStream to_hash, DeviceStream to_work, DeviceStream to_copy)
        : device(on_device),
          options(given),
          chunk(given.chunk_bytes),
          runtime(*device_runtime()),
          kernels(with),
          mask(hash_mask(given.hash_bits)),
          hashing(std::move(to_hash)),
          working(std::move(to_work)),
          copying(std::move(to_copy)) {}
    DedupContext(const DedupContext&) = delete;
    DedupContext& operator=(const DedupContext&) = delete;

    Result<> prepare() {
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
        for (DeviceStream* stream : {&hashing, &working, &copying})
            static_cast<void>(runtime.wait_stream(device, stream->get()));
    }

    // An address on the device.
    [[nodiscard]] DedupCounts* device_counts() const { return control.as<DedupCounts>(); }
    [[nodiscard]] DeviceJoinState* join_state() const { return control.as<DeviceJoinState>(kStateAt); }
    Result<> clear_counts() { return fill(control.data(), 0, sizeof(DedupCounts), working); }
    // Copies to counts() what kernels counted since clear_counts(). Blocks.
    Result<> fetch_counts() {
        TWR_CHECK(copy(control_host.data(), control.data(), sizeof(DedupCounts), working));
        return wait(working);
    }
    [[nodiscard]] const DedupCounts& counts() const { return *control_host.as<DedupCounts>(); }

    // Bytes of scratch memory that suffice for scans over this many items. The answer is kept: to
    // ask the library takes longer than a small kernel.
    std::size_t scan_bytes(std::uint64_t items) {
        if (items > scan_items) {
            scan_items = std::bit_ceil(items);
            scan_scratch_bytes = kernels.scan_scratch(device, scan_items);
        }
        return scan_scratch_bytes;
    }
    [[nodiscard]] std::uint64_t memory_bytes() const { return control.bytes() + control_host.bytes(); }

    const int device;
    const DedupOptions options;
    const std::uint64_t chunk;  // bytes
    const DeviceRuntime& runtime;
    const DeviceDedupKernels& kernels;
    const ChunkHash mask;
    std::uint64_t scan_items = 0;
    std::size_t scan_scratch_bytes = 0;
    DeviceMemory control;
    // The copy of control. DeviceImage keeps the counts of changed chunks of two slices where the
    // join state would be.
    DeviceMemory control_host;
    // Last, so that streams end before memory is given back.
    DeviceStream hashing;
    DeviceStream working;
    DeviceStream copying;
};

}  // namespace twinrun
