// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on any machine, which those of the standard library's
// distributions are not.
#pragma once

#include <cstdint>

namespace oranges {

class Random {
   public:
    // Streams of one seed are independent of each other.
    explicit Random(std::uint64_t seed, std::uint64_t stream = 0) : state_(seed) {
        state_ = next() ^ mix(stream);
    }

    // SplitMix64: Steele, Lea and Flood, OOPSLA 2014.
    std::uint64_t next() { return mix(state_ += 0x9E37'79B9'7F4A'7C15); }
    // In [0, bound), bound below 2^32. Its bias, below 2^-32, does not matter here.
    std::uint32_t below(std::uint64_t bound) {
        return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32);
    }
    // In [0, 1).
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

   private:
    static std::uint64_t mix(std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9;
        z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EB;
        return z ^ (z >> 31);
    }

    std::uint64_t state_;
};

}  // namespace oranges
