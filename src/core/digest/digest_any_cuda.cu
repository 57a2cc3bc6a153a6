#include "digest/digest_kernel.cuh"

namespace twinrun::gpu {

KernelChoice any_kernel(CellKind kind, unsigned bits, unsigned item_shift) {
    constexpr std::size_t kMost = shared_bytes<Any>(3);
    static_assert(kMost >= shared_bytes<Any>(0) && kMost >= shared_bytes<Any>(1) &&
                  kMost >= shared_bytes<Any>(2));
    return {kernel_of<Any>(kind, bits), shared_bytes<Any>(item_shift), kMost};
}

}  // namespace twinrun::gpu
