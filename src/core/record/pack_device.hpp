// Packing on devices: blocks of payload become Zstandard frames where they lie, so that only these
// come to the host. The work is done by a library that is looked for when it is needed: nvCOMP 5 or
// 6 (libnvcomp.so, or what TWINRUN_NVCOMP names).
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.hpp"

namespace twinrun {

inline constexpr std::uint32_t kDeviceStoredBlock = 0x80000000U;  // of a size: kept as it is
// Of payload, unpacked: smaller than the host's (kPackedBlockBytes), so that a step has blocks for
// all multiprocessors. On an H200 half of it packs little faster, and four times as much takes
// twice as long; the sizes differ by 3%.
inline constexpr std::uint32_t kDevicePackedBlockBytes = 32U << 10;
inline constexpr std::size_t kPackedAlignment = 16;  // of blocks in DevicePack::to

struct DevicePack {
    const std::byte* from = nullptr;  // 256-byte aligned
    std::uint64_t bytes = 0;
    std::uint32_t block_bytes = 0;  // the last block may have fewer
    std::byte* scratch = nullptr;   // what scratch() says
    std::size_t scratch_bytes = 0;
    // One block after another, each at the next multiple of kPackedAlignment; room for as many
    // bytes as `from`, aligned.
    std::byte* to = nullptr;
    // Of each block as it lies in `to`, with kDeviceStoredBlock where it did not become smaller;
    // behind them the end of the last one, in bytes. 8-byte aligned; room for blocks() sizes,
    // rounded up to two, and 8 bytes.
    std::uint32_t* sizes = nullptr;

    [[nodiscard]] std::uint64_t blocks() const { return (bytes + block_bytes - 1) / block_bytes; }
    [[nodiscard]] static std::size_t end_at(std::uint64_t blocks) { return (blocks + 1) / 2 * 8; }
    [[nodiscard]] static std::size_t sizes_bytes(std::uint64_t blocks) { return end_at(blocks) + 8; }
};

struct DevicePackKernels {
    // Which library it is: "nvCOMP 6.0.0". Unsupported: there is none, and why.
    DeviceStatus (*library)(const char** name);
    DeviceStatus (*scratch)(int device, std::uint32_t block_bytes, std::uint64_t blocks, std::size_t* bytes,
                            StreamHandle stream);
    DeviceStatus (*pack)(int device, const DevicePack& what, StreamHandle stream);
};
[[nodiscard]] inline const DevicePackKernels* device_pack_kernels() {
    return static_cast<const DevicePackKernels*>(device_table("pack"));
}

}  // namespace twinrun
