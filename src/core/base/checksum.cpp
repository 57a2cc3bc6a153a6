#include "base/checksum.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cinttypes>
#include <cstdio>
#include <new>
#include <utility>

namespace twinrun {

std::uint64_t xxh3(std::span<const std::byte> bytes, std::uint64_t seed) {
    return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t xxh3(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string hex_of(std::uint64_t checksum) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016" PRIx64, checksum);
    return digits;
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
