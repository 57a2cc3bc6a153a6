// For kernels (*.cu, *.cuh): exchange between the 32 lanes of a warp. All lanes of the warp call a
// function together.
#pragma once

#include <cstdint>

namespace twinrun::warp {

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

// Bit i: the value of lane i. With a mask: only the lanes of the mask call it, and have bits.
__device__ inline unsigned ballot(bool value, unsigned mask = kAllLanes) {
    return __ballot_sync(mask, value);
}
__device__ inline bool any(bool value) { return __any_sync(kAllLanes, value) != 0; }
// After it, all lanes see what lanes wrote before it.
__device__ inline void sync() { __syncwarp(kAllLanes); }

// The value of lane `lane`; of the lane whose number differs by the bits of `distance`; of the lane
// that is `by` lower, and where there is none the caller's own. The second also among the lanes of
// `mask` alone.
template <class T>
__device__ inline T from(T value, int lane) {
    return __shfl_sync(kAllLanes, value, lane, 32);
}
__device__ inline std::uint64_t across(std::uint64_t value, int distance, unsigned mask = kAllLanes) {
    return __shfl_xor_sync(mask, static_cast<unsigned long long>(value), distance, 32);
}
template <class T>
__device__ inline T up(T value, unsigned by = 1) {
    return __shfl_up_sync(kAllLanes, value, by, 32);
}

__device__ inline unsigned sum(unsigned value) { return __reduce_add_sync(kAllLanes, value); }
__device__ inline std::uint64_t sum(std::uint64_t value) {
    for (int distance = 16; distance != 0; distance /= 2)
        value += across(value, distance);
    return value;
}
// The bits that any lane has.
__device__ inline std::uint64_t united(std::uint64_t bits) {
    const auto low = static_cast<unsigned>(bits);
    const auto high = static_cast<unsigned>(bits >> 32);
    return std::uint64_t{__reduce_or_sync(kAllLanes, high)} << 32 | __reduce_or_sync(kAllLanes, low);
}
__device__ inline unsigned largest(unsigned value) { return __reduce_max_sync(kAllLanes, value); }

}  // namespace twinrun::warp
