// Private to digest_*cuda.cu and roots_cuda.cu: products of matrices of bytes.
#pragma once

#include <cstdint>

namespace twinrun::gpu {

// c += a b for one tile of 16 x 32 and 32 x 8 bytes, in 32-bit integers. Lane 4 g + t of a warp
// holds of rows g and g + 8 of c the columns 2 t and 2 t + 1; of a, 4 bytes of row g (a0) and of
// row g + 8 (a1), and 4 more of each (a2, a3); of b, those of column g in the same places (b0, b1).
// Which 8 of the 32 places belong to t is free, as long as a and b have the same.
__device__ inline void multiply_bytes(std::uint32_t (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                      std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                      std::uint32_t b1) {
#if defined(__CUDA_ARCH__)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
        "%1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

}  // namespace twinrun::gpu
