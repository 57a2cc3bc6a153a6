// Payload that is packed on a device (pack_device.hpp): collected until there are blocks enough to
// keep it busy, and brought to the host packed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "record/delta_writer.hpp"
#include "record/pack_device.hpp"

namespace twinrun {

// Not thread-safe.
class DevicePacker {
   public:
    // batch_bytes: what is collected; less where there is little memory. Errors: unsupported: no
    // library for it, and why.
    static Result<std::unique_ptr<DevicePacker>> create(int device, std::uint32_t block_bytes,
                                                        std::uint64_t batch_bytes = std::uint64_t{256} << 20);

    // Where the next bytes go, and how many have room: put there in `stream` order, then added().
    // With no room, pack() makes some.
    // expected: the fewest bytes that will come, for which more memory is taken while nothing
    // waits there.
    Result<std::byte*> reserve(std::uint64_t expected);
    [[nodiscard]] std::uint64_t room() const { return capacity_ - pending_; }
    void added(std::uint64_t bytes) { pending_ += bytes; }
    // Whole blocks of what was added, or all of it, to `take`, in order. The chunks of PackedBlock
    // are bytes / chunk_bytes. Waits.
    using Take = std::function<Result<>(std::span<const PackedBlock> blocks)>;
    Result<> pack(bool all, std::uint32_t chunk_bytes, DeviceStream& stream, const Take& take);
    // Forgets the chunks that were added.
    void clear() { pending_ = 0; }
    // And its memory is given back.
    void release();
    [[nodiscard]] std::uint64_t memory_bytes() const;

   private:
    DevicePacker(int device, std::uint32_t block_bytes, std::uint64_t batch_bytes,
                 const DevicePackKernels& kernels)
        : device_(device), block_bytes_(block_bytes), batch_bytes_(batch_bytes), kernels_(kernels) {}
    int device_;
    std::uint32_t block_bytes_;
    std::uint64_t batch_bytes_;
    const DevicePackKernels& kernels_;
    std::uint64_t capacity_ = 0;
    std::uint64_t pending_ = 0;
    DeviceMemory memory_;  // what waits
    DeviceMemory scratch_;
    DeviceMemory packed_;  // and the sizes, behind it
    DeviceMemory host_;
    std::vector<PackedBlock> blocks_;
};

}  // namespace twinrun
