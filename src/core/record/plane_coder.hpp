// How the bytes of one plane are packed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.hpp"
#include "record/compression.hpp"

namespace twinrun {

enum class PlaneCoder : std::uint8_t {
    unknown,   // what is smallest is looked for, and noted
    kept,      // as they are
    literals,  // by the frequencies of byte values alone
    searched,  // repeats are looked for too
};
using PlaneCoders = std::array<PlaneCoder, 8>;

// In the sizes of planes: the plane is as it is.
inline constexpr std::uint32_t kPlaneStored = std::uint32_t{1} << 31;

// Writes a plane to the begin of `to`, and what to say of its size. Returns the bytes written, or
// nothing where they would not fit. coder: unknown becomes what was chosen.
std::optional<std::size_t> pack_plane(Compressor& compressor, std::span<const std::byte> plane, int level,
                                      PlaneCoder& coder, std::span<std::byte> to, std::uint32_t& said);

// Takes a plane of into.size() bytes from the begin of `left`, which becomes what is behind it.
Result<> unpack_plane(Compressor& compressor, std::uint32_t said, std::span<const std::byte>& left,
                      std::span<std::byte> into);

void put_plane_number(std::byte* to, std::uint32_t number);  // little-endian

}  // namespace twinrun
