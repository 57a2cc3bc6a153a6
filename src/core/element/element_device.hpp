// Elements on a device: the table "element" of the device library (element_cuda.cu).
#pragma once

#include "device/device.hpp"
#include "element/dtype.hpp"

namespace twinrun {

inline constexpr int kMostGatherDimensions = 8;

// Items of an array with any strides, in row-major order. Neighbouring dimensions that lie densely
// should be merged by the caller.
struct DeviceGather {
    const void* from = nullptr;
    int dimensions = 0;  // 0: one item
    std::uint64_t shape[kMostGatherDimensions] = {};
    std::int64_t strides[kMostGatherDimensions] = {};  // bytes; may be negative or 0
    std::uint32_t item_bytes = 0;                      // 1, 2, 4, 8 or 16
    // Reverse each of this many bytes (2, 4 or 8); 0: none.
    std::uint32_t swap_bytes = 0;
    std::uint64_t first = 0;  // of the items in row-major order
    std::uint64_t count = 0;
    void* to = nullptr;  // dense
};

// Bytes that are copied within one device, at any addresses.
struct DeviceCopy {
    const void* from = nullptr;
    void* to = nullptr;
    std::uint64_t bytes = 0;
};

struct DeviceElementKernels {
    DeviceStatus (*gather)(int device, const DeviceGather& gather, StreamHandle stream);
    // Copies that do not overlap, with one launch for many of them. `copies` is read before it
    // returns.
    DeviceStatus (*copy_all)(int device, const DeviceCopy* copies, std::size_t count, StreamHandle stream);
};
[[nodiscard]] inline const DeviceElementKernels* device_element_kernels() {
    return static_cast<const DeviceElementKernels*>(device_table("element"));
}

}  // namespace twinrun
