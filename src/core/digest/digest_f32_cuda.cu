#include "digest/digest_kernel.cuh"

namespace twinrun::gpu {

KernelChoice f32_kernel(CellKind kind, unsigned bits, KeyBits left) {
    constexpr std::size_t kShared = shared_bytes<F32>(F32::kItemShift);
    return {kernel_of<F32>(kind, bits, left), kShared, kShared};
}

}  // namespace twinrun::gpu
