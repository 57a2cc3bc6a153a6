// Bytes that direct reads and writes can work on.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace twinrun {

// Memory aligned to 4096 bytes that grows and never shrinks. What it held is lost when it grows.
// Throws std::bad_alloc.
class AlignedBytes {
   public:
    static constexpr std::size_t kAlignment = 4096;
    [[nodiscard]] std::byte* data() const { return memory_.get(); }
    std::byte* reserve(std::size_t bytes) {
        if (bytes > bytes_) {
            memory_.reset();
            bytes_ = 0;
            memory_.reset(new (std::align_val_t{kAlignment}) std::byte[bytes]);
            bytes_ = bytes;
        }
        return memory_.get();
    }

   private:
    struct Free {
        void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{kAlignment}); }
    };
    std::unique_ptr<std::byte[], Free> memory_;
    std::size_t bytes_ = 0;
};

}  // namespace twinrun
