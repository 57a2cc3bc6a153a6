#include "digest/digest_kernel.cuh"

namespace twinrun::gpu {

namespace {

template <class Source>
KernelChoice choice() {
    constexpr std::size_t kShared = shared_bytes<Source>(Source::kItemShift);
    return {digest_blocks<Source, CellKind::absolute, 0>, kShared, kShared};
}

}  // namespace

KernelChoice words_kernel(unsigned item_shift) {
    switch (item_shift) {
        case 0: return choice<Word8>();
        case 1: return choice<Word16>();
        default: return choice<Word32>();
    }
}

}  // namespace twinrun::gpu
