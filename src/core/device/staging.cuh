// For kernels (*.cu, *.cuh): bytes on their way from global to shared memory while a kernel works
// (cp.async).
#pragma once

#include <cstddef>
#include <cstdint>

namespace twinrun::gpu {

// How the L2 cache treats what is read once.
struct ReadPolicy {
    std::uint64_t bits = 0;
    // It makes room first: what is written, and what is read again, stays.
    __device__ static ReadPolicy evict_first() {
        ReadPolicy policy;
#if defined(__CUDA_ARCH__)
        asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy.bits));
#endif
        return policy;
    }
};

// Starts the copy of 16 bytes; both addresses are multiples of 16. The L2 cache brings whole lines:
// the warp asks for their other parts at once. EvictFirst: by `policy`.
template <bool EvictFirst = true>
__device__ inline void stage_16(std::byte* to, const void* from, ReadPolicy policy) {
#if defined(__CUDA_ARCH__)
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (EvictFirst) {
        asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(address),
                     "l"(from), "l"(policy.bits)
                     : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(address), "l"(from)
                     : "memory");
    }
#else
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
#endif
}
// The same where only the first `valid` bytes are there, which may be none (or negative) or all (or
// more): zeros take the others' place, and nothing else is read.
template <bool EvictFirst = true>
__device__ inline void stage_some(std::byte* to, const void* from, int valid, ReadPolicy policy) {
    const int bytes = valid < 0 ? 0 : valid > 16 ? 16 : valid;
#if defined(__CUDA_ARCH__)
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (EvictFirst) {
        asm volatile(
            "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(address),
            "l"(from), "r"(bytes), "l"(policy.bits)
            : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                     "r"(bytes)
                     : "memory");
    }
#else
    for (int i = 0; i < 16; ++i)
        to[i] = i < bytes ? static_cast<const std::byte*>(from)[i] : std::byte{0};
#endif
}
// Brings the line of 128 bytes that holds this address to the L2 cache.
__device__ inline void fetch_line(const void* at) {
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
    static_cast<void>(at);
#endif
}
// Ends a group of copies, which may be empty.
__device__ inline void stage_commit() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all but the newest `Left` groups are there.
template <int Left>
__device__ inline void stage_wait() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
}

}  // namespace twinrun::gpu
