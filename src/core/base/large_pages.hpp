// Large pages for large memory, where the system has them: of small ones, new memory comes at
// 2 GB/s.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace twinrun {

inline constexpr std::size_t kLargePage = 2 << 20;

// Whether memory of so many bytes is worth it. Then it begins at a multiple of kLargePage.
[[nodiscard]] constexpr bool wants_large_pages(std::size_t bytes) { return bytes >= 2 * kLargePage; }

// If the system refuses, the memory is of small pages.
inline void ask_for_large_pages(void* memory, std::size_t bytes) {
    static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));
}

}  // namespace twinrun
