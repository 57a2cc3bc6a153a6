// Comparison of elements on a device: the table "difference" of the device library
// (difference_cuda.cu). Counts, places, maxima and histograms equal those of the portable kernels;
// the two sums may differ in their last bits, and are the same from call to call on one device.
// Conventions as in digest/digest_device.hpp.
#pragma once

#include "device/device.hpp"
#include "difference/difference.hpp"

namespace twinrun {

// A stretch of scalars of both runs, dense and native, that begins at a chunk's beginning.
struct DevicePart {
    const void* a = nullptr;  // aligned to the scalar's size
    const void* b = nullptr;
    std::uint64_t scalars = 0;
    std::uint64_t index = 0;  // of the first scalar in the field
};

struct DeviceDifference {
    DType scalar = DType::f32;  // not complex
    DifferenceRule rule;
    std::uint64_t chunk_scalars = 1024;  // what counts as a chunk in different_chunks
};

// The result of one call. Plain data that the device writes.
struct DeviceDifferenceResult {
    DifferenceStats stats;
    std::uint64_t different_chunks = 0;
};

// The result of one call for a part that is a pair of arrays of its own.
struct DevicePairResult {
    DeviceDifferenceResult found;
    // Raw bits, of a and b, of the scalars at found.stats.first and at max_abs_at; 0 where there is
    // none.
    std::uint64_t first_bits[2];  // no std::array: kernels fill them
    std::uint64_t largest_bits[2];
};

struct DeviceDifferenceKernels {
    void (*scratch)(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                    std::size_t* device_bytes, std::size_t* host_bytes);
    // result: device memory or page-locked host memory, overwritten. parts: the host's; any number
    // in one launch.
    DeviceStatus (*compare)(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                            DeviceDifferenceResult* result, void* scratch, void* host_scratch,
                            StreamHandle stream);
    // The same of many pairs of arrays at once, each part with a result of its own, as `compare` of
    // that part alone gives it. No part is empty, and no value lies on a circle. results: n of
    // them, device memory.
    void (*pairs_scratch)(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                          std::size_t* device_bytes, std::size_t* host_bytes);
    // What compare_pairs() needs in the scratch areas, put there by the stream.
    DeviceStatus (*put_pairs)(int device, const DeviceDifference& what, const DevicePart* parts,
                              std::size_t n, void* scratch, void* host_scratch, StreamHandle stream);
    // After put_pairs() of the same parts in the same stream.
    DeviceStatus (*compare_pairs)(int device, const DeviceDifference& what, const DevicePart* parts,
                                  std::size_t n, DevicePairResult* results, void* scratch,
                                  StreamHandle stream);
};
[[nodiscard]] inline const DeviceDifferenceKernels* device_difference_kernels() {
    return static_cast<const DeviceDifferenceKernels*>(device_table("difference"));
}

}  // namespace twinrun
