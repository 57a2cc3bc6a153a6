// The share of arrays on a device in the digests of whole arrays: the table "sums" of the device
// library (sums_cuda.cu). Results equal those of PartialSums::add bit for bit. Conventions as in
// digest/digest_device.hpp.
#pragma once

#include <array>

#include "device/device.hpp"
#include "digest/digest.hpp"

namespace twinrun {

inline constexpr std::size_t kMostSumsAxes = 32;
inline constexpr std::uint64_t kSumsWords = 4;  // of a bucket: PartialSums::finish

// Scalars [first, first + count) of a part, dense and native. Where they lie in the whole array:
// RowPlacement of a box.
struct DeviceSumsItem {
    const void* data = nullptr;  // of scalar `first`; aligned to the scalar's size
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    DType scalar = DType::f32;  // not complex
    CellRule rule;
    std::uint64_t row_scalars = 0;
    std::uint64_t base = 0;  // index of the part's first scalar
    // Axes that number rows, fastest first: extent, and scalars of the whole array from one to the
    // next.
    struct Axis {
        std::uint64_t extent = 1;
        std::uint64_t stride = 0;
    };
    std::array<Axis, kMostSumsAxes> axes{};
    std::uint32_t axis_count = 0;
    // Buckets: whole numbers of blocks, a power of two. Those that these scalars lie in, in the
    // host's memory (read by the call itself): ascending; or a bit each from first_bucket on, and
    // how many there are before each word, less first_slot the number among these; or, where both
    // are null, consecutive ones from first_bucket on.
    std::uint64_t bucket_scalars = 0;
    std::uint64_t bucket_count = 0;
    const std::uint64_t* buckets = nullptr;
    std::uint64_t first_bucket = 0;
    const std::uint64_t* bits = nullptr;
    const std::uint32_t* before = nullptr;
    std::uint64_t words = 0;
    std::uint64_t first_slot = 0;
    std::uint64_t* halves = nullptr;  // kSumsWords of each bucket, added to: the caller clears them
};

struct DeviceSumsKernels {
    void (*scratch)(const DeviceSumsItem* items, std::size_t n, std::size_t* device_bytes,
                    std::size_t* host_bytes);
    // As DeviceDigestKernels::digest. Items of 0 scalars are left out.
    DeviceStatus (*add)(int device, const DeviceSumsItem* items, std::size_t n, void* scratch,
                        void* host_scratch, StreamHandle stream);
};
[[nodiscard]] inline const DeviceSumsKernels* device_sums_kernels() {
    return static_cast<const DeviceSumsKernels*>(device_table("sums"));
}

}  // namespace twinrun
