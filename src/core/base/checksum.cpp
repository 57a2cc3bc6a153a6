#include "base/checksum.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <new>
#include <string_view>
#include <utility>

namespace twinrun {

std::uint64_t xxh3(std::span<const std::byte> bytes, std::uint64_t seed) {
    return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t xxh3(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string hex_of(std::uint64_t checksum) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text(16, '0');
    for (std::size_t at = text.size(); at-- > 0; checksum >>= 4)
        text[at] = kDigits[checksum & 15];
    return text;
}

StreamingChecksum::StreamingChecksum() : state_(XXH3_createState()) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}
StreamingChecksum::~StreamingChecksum() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
StreamingChecksum::StreamingChecksum(StreamingChecksum&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)) {}
void StreamingChecksum::update(std::span<const std::byte> bytes) {
    XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}
std::uint64_t StreamingChecksum::value() const {
    return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

}  // namespace twinrun
