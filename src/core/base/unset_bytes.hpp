// Bytes that are written before they are read.
#pragma once

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "base/large_pages.hpp"

namespace twinrun {

// resize() leaves new elements as they are: a thread that would set gigabytes to 0, before others
// write to them, takes longer than these.
template <class T>
class UnsetAllocator {
   public:
    using value_type = T;
    UnsetAllocator() = default;
    template <class U>
    UnsetAllocator(const UnsetAllocator<U>&) {}

    T* allocate(std::size_t n) {
        if (!is_large(n)) return static_cast<T*>(::operator new(n * sizeof(T)));
        void* const memory = ::operator new (n * sizeof(T), std::align_val_t{kLargePage});
        ask_for_large_pages(memory, n * sizeof(T));
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, std::size_t n) {
        if (!is_large(n)) return ::operator delete(memory);
        ::operator delete (memory, std::align_val_t{kLargePage});
    }
    template <class U, class... Arguments>
    void construct(U* at, Arguments&&... arguments) {
        if constexpr (sizeof...(Arguments) == 0) {
            ::new (static_cast<void*>(at)) U;
        } else {
            ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
        }
    }
    bool operator==(const UnsetAllocator&) const { return true; }

   private:
    static bool is_large(std::size_t n) { return wants_large_pages(n * sizeof(T)); }
};

using UnsetBytes = std::vector<std::byte, UnsetAllocator<std::byte>>;

}  // namespace twinrun
