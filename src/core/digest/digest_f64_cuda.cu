#include "digest/digest_kernel.cuh"

namespace twinrun::gpu {

KernelChoice f64_kernel(CellKind kind, unsigned bits, KeyBits left) {
    constexpr std::size_t kShared = shared_bytes<F64>(F64::kItemShift);
    return {kernel_of<F64>(kind, bits, left), kShared, kShared};
}

KernelChoice integers64_kernel() {
    constexpr std::size_t kShared = shared_bytes<Integers64>(Integers64::kItemShift);
    return {digest_blocks<Integers64, CellKind::words, 0>, kShared, kShared};
}

}  // namespace twinrun::gpu
