// Takes a fuzzer's bytes apart. Past the end come zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace twinrun::fuzz {

class Input {
   public:
    Input(const std::uint8_t* data, std::size_t size) : bytes_(data, size) {}
    template <class T>
    T take() {
        T value{};
        const std::size_t n = bytes_.size() < sizeof(T) ? bytes_.size() : sizeof(T);
        if (n != 0) std::memcpy(&value, bytes_.data(), n);
        bytes_ = bytes_.subspan(n);
        return value;
    }
    [[nodiscard]] std::size_t left() const { return bytes_.size(); }
    // The next `count` bytes in memory of their own, so that a sanitizer sees reads past their end;
    // zeros past the input.
    std::vector<std::byte> take_bytes(std::size_t count) {
        std::vector<std::byte> out(count);
        const std::size_t n = bytes_.size() < count ? bytes_.size() : count;
        if (n != 0) std::memcpy(out.data(), bytes_.data(), n);
        bytes_ = bytes_.subspan(n);
        return out;
    }

   private:
    std::span<const std::uint8_t> bytes_;
};

inline void require(bool holds) {
    if (!holds) std::abort();
}

}  // namespace twinrun::fuzz
