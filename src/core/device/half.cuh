// For kernels (*.cu, *.cuh): 16-bit floating-point values as float32, exactly.
#pragma once

#include <cstdint>

#include "device/gpu.hpp"

namespace twinrun::gpu {

// A float16. A NaN becomes some NaN.
__host__ __device__ inline float half_to_float(std::uint32_t half) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(half)));
    return value;
#else
    // The fraction and exponent of a half, as those of a float, are 2^112 too small; the product is
    // exact for denormals, too.
    const std::uint32_t size = (half & 0x7FFF) << 13;
    const float magnitude = size >= 0x0F800000 ? __builtin_bit_cast(float, size | 0x7F800000U)
                                               : __builtin_bit_cast(float, size) * 0x1p112F;
    return (half & 0x8000) != 0 ? -magnitude : magnitude;
#endif
}

}  // namespace twinrun::gpu
