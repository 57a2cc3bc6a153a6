#include "digest/digest_kernel.cuh"

namespace twinrun::gpu {

KernelChoice f16_kernel(CellKind kind, unsigned bits, KeyBits left) {
    constexpr std::size_t kShared = shared_bytes<F16>(F16::kItemShift);
    return {kernel_of<F16>(kind, bits, left), kShared, kShared};
}

KernelChoice bf16_kernel(CellKind kind, unsigned bits, KeyBits left) {
    constexpr std::size_t kShared = shared_bytes<BF16>(BF16::kItemShift);
    return {kernel_of<BF16>(kind, bits, left), kShared, kShared};
}

}  // namespace twinrun::gpu
