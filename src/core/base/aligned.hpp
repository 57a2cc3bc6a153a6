// Bytes that direct reads and writes can work on.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "base/large_pages.hpp"

namespace twinrun {

// Memory aligned to 4096 bytes that grows and never shrinks; of large pages where it is large. What
// it held is lost when it grows.
// Throws std::bad_alloc.
class AlignedBytes {
   public:
    static constexpr std::size_t kAlignment = 4096;
    [[nodiscard]] std::byte* data() const { return memory_.get(); }
    std::byte* reserve(std::size_t bytes) {
        if (bytes > bytes_) {
            memory_.reset();
            bytes_ = 0;
            const bool large = wants_large_pages(bytes);
            const std::align_val_t alignment{large ? kLargePage : kAlignment};
            memory_ = {new (alignment) std::byte[bytes], Free{alignment}};
            if (large) ask_for_large_pages(memory_.get(), bytes);
            bytes_ = bytes;
        }
        return memory_.get();
    }

   private:
    struct Free {
        std::align_val_t alignment;
        void operator()(std::byte* bytes) const { ::operator delete[](bytes, alignment); }
    };
    std::unique_ptr<std::byte[], Free> memory_;
    std::size_t bytes_ = 0;
};

}  // namespace twinrun
