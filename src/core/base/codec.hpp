// Little-endian encoding of small structures, and a decoder that never reads past its input.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

template <class T>
[[nodiscard]] inline T byte_swap(T value) {
    static_assert(std::is_unsigned_v<T>);
    if constexpr (sizeof(T) == 1) {
        return value;
    } else if constexpr (sizeof(T) == 2) {
        return __builtin_bswap16(value);
    } else if constexpr (sizeof(T) == 4) {
        return __builtin_bswap32(value);
    } else {
        return __builtin_bswap64(value);
    }
}

class Encoder {
   public:
    template <class T>
    requires std::is_unsigned_v<T>
    void put(T value) {
        if constexpr (std::endian::native == std::endian::big) value = byte_swap(value);
        const auto* raw = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), raw, raw + sizeof(T));
    }
    void put_i64(std::int64_t value) { put(static_cast<std::uint64_t>(value)); }
    void put_i32(std::int32_t value) { put(static_cast<std::uint32_t>(value)); }
    void put_f64(double value) { put(std::bit_cast<std::uint64_t>(value)); }
    // Text as its length (32 bits) and its bytes.
    void put_text(std::string_view text) {
        put(static_cast<std::uint32_t>(text.size()));
        const auto* raw = reinterpret_cast<const std::byte*>(text.data());
        bytes_.insert(bytes_.end(), raw, raw + text.size());
    }
    void put_bytes(std::span<const std::byte> bytes) {
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
    [[nodiscard]] std::size_t size() const { return bytes_.size(); }

   private:
    std::vector<std::byte> bytes_;
};

// After a failed read every further read gives zeros, and failed() stays true: check once at the
// end of a structure, and before using a count to allocate.
class Decoder {
   public:
    explicit Decoder(std::span<const std::byte> bytes) : bytes_(bytes) {}

    template <class T>
    requires std::is_unsigned_v<T>
    [[nodiscard]] T get() {
        T value = 0;
        if (remaining() < sizeof(T)) {
            failed_ = true;
            position_ = bytes_.size();
            return 0;
        }
        std::memcpy(&value, bytes_.data() + position_, sizeof(T));
        position_ += sizeof(T);
        if constexpr (std::endian::native == std::endian::big) value = byte_swap(value);
        return value;
    }
    [[nodiscard]] std::int64_t get_i64() { return static_cast<std::int64_t>(get<std::uint64_t>()); }
    [[nodiscard]] std::int32_t get_i32() { return static_cast<std::int32_t>(get<std::uint32_t>()); }
    [[nodiscard]] double get_f64() { return std::bit_cast<double>(get<std::uint64_t>()); }
    [[nodiscard]] std::string get_text(std::size_t limit) {
        const std::size_t size = get<std::uint32_t>();
        if (failed_ || size > limit || remaining() < size) {
            failed_ = true;
            position_ = bytes_.size();
            return {};
        }
        std::string text(reinterpret_cast<const char*>(bytes_.data() + position_), size);
        position_ += size;
        return text;
    }
    void skip(std::size_t bytes) {
        if (bytes > remaining()) failed_ = true;
        position_ += std::min(bytes, remaining());
    }
    [[nodiscard]] std::size_t remaining() const { return bytes_.size() - position_; }
    [[nodiscard]] bool failed() const { return failed_; }
    void fail() { failed_ = true; }

   private:
    std::span<const std::byte> bytes_;
    std::size_t position_ = 0;
    bool failed_ = false;
};

}  // namespace twinrun
