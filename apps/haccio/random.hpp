// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on any machine and on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace haccio {

// SplitMix64: Steele, Lea and Flood, OOPSLA 2014.
constexpr std::uint64_t mix(std::uint64_t z) {
    z += 0x9E37'79B9'7F4A'7C15;
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EB;
    return z ^ (z >> 31);
}

// 0 to items - 1 in an order that `seed` and `round` decide.
inline std::vector<std::size_t> shuffled(std::size_t items, std::uint64_t seed, std::uint64_t round) {
    std::vector<std::size_t> order(items);
    for (std::size_t i = 0; i < items; ++i)
        order[i] = i;
    std::uint64_t state = mix(mix(seed) ^ round);
    for (std::size_t i = items; i > 1; --i) {
        state = mix(state);
        std::swap(order[i - 1], order[static_cast<std::size_t>(state % i)]);
    }
    return order;
}

}  // namespace haccio
