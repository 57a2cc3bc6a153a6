// Trees on a device: the table "tree" of the device library (tree_cuda.cu). Same nodes and same
// chunks as tree/build.hpp and tree/walk.hpp. Conventions as in digest/digest_device.hpp.
#pragma once

#include "device/device.hpp"
#include "tree/layout.hpp"

namespace twinrun {

// A flattened array (tree/layout.hpp) whose leaves are in place: build() fills in the nodes above
// them.
struct DeviceTreeItem {
    std::uint64_t* nodes = nullptr;
    std::uint64_t leaves = 0;
    DigestKind kind = DigestKind::linear;
    std::uint64_t blocks_per_chunk = 1;
};

// The roots of two trees, of `words` words each.
struct DeviceRoots {
    const std::uint64_t* a = nullptr;
    const std::uint64_t* b = nullptr;
    std::uint64_t words = 1;
};

struct DeviceTreeKernels {
    void (*build_scratch)(const DeviceTreeItem* items, std::size_t n, std::size_t* device_bytes,
                          std::size_t* host_bytes);
    // Any number of trees, a few launches in all.
    DeviceStatus (*build)(int device, const DeviceTreeItem* items, std::size_t n, void* scratch,
                          void* host_scratch, StreamHandle stream);
    std::size_t (*walk_scratch)(std::uint64_t leaves);
    // Leaves whose digests differ, ascending, to `chunks` (room for all leaves) and their number to
    // *count: pruned from a middle level down, and compacted. leaves < 2^32.
    DeviceStatus (*walk)(int device, const std::uint64_t* a, const std::uint64_t* b, std::uint64_t leaves,
                         DigestKind kind, std::uint32_t* chunks, std::uint64_t* count, void* scratch,
                         StreamHandle stream);
    // equal: of each pair 1 where its roots are, else 0. All memory is the device's.
    DeviceStatus (*equal_roots)(int device, const DeviceRoots* pairs, std::size_t n, std::uint8_t* equal,
                                StreamHandle stream);
};
[[nodiscard]] inline const DeviceTreeKernels* device_tree_kernels() {
    return static_cast<const DeviceTreeKernels*>(device_table("tree"));
}

}  // namespace twinrun
