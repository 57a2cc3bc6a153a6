// Checksums of stored bytes: XXH3-64 (xxHash). They find accidents (flipped bits, torn writes), not
// forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace twinrun {

[[nodiscard]] std::uint64_t xxh3(std::span<const std::byte> bytes, std::uint64_t seed = 0);
[[nodiscard]] std::uint64_t xxh3(std::string_view text);

// A checksum as 16 hexadecimal digits.
[[nodiscard]] std::string hex_of(std::uint64_t checksum);

// The same checksum of bytes that arrive in pieces. Not thread-safe.
class StreamingChecksum {
   public:
    StreamingChecksum();
    ~StreamingChecksum();
    StreamingChecksum(StreamingChecksum&&) noexcept;
    StreamingChecksum& operator=(StreamingChecksum&&) = delete;
    void update(std::span<const std::byte> bytes);
    [[nodiscard]] std::uint64_t value() const;

   private:
    void* state_;
};

}  // namespace twinrun
