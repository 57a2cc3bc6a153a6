// SPDX-License-Identifier: Apache-2.0
// How particles of several ranks share a file.
#pragma once

#include <array>
#include <cstdint>

#include "haccio/particles.hpp"

namespace haccio {

enum class Layout : std::uint8_t {
    records,    // interleaved: a particle's nine values, then the next particle's; rank after rank
    blocks,     // rank after rank; of each, one variable after the other
    variables,  // one variable of all ranks, then the next
};
inline constexpr std::array<const char*, 3> kLayoutNames = {"records", "blocks", "variables"};

// A rank's values of one variable in the file: the first, and bytes from one to the next.
struct Place {
    std::uint64_t offset = 0;
    std::uint64_t stride = 0;
};

// The share of one rank: `count` particles after the `before` of lower ranks, of `total` in the
// file.
struct Share {
    std::uint64_t before = 0, count = 0, total = 0;
};
std::array<Place, kVariables> places(Layout layout, const Share& share);

// All particles as one piece of a file of this layout (not of `variables`, where a rank has nine),
// and back.
void pack(const Particles& particles, Layout layout, std::byte* bytes);
void unpack(const std::byte* bytes, Layout layout, Particles& particles);

}  // namespace haccio
