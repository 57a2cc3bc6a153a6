// The coefficients of a block's scalars, once for all backends, and the sums that kernels correct
// by.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "digest/digest.hpp"

namespace twinrun {

inline constexpr std::size_t kLargestBlock = 4096;  // scalars: of 8-bit types
// Low part for kernels that multiply 52-bit parts.
inline constexpr unsigned kLowBits = 48;

struct Coefficients {
    alignas(64) std::array<std::uint64_t, kLargestBlock> r;       // coefficient(i)
    alignas(64) std::array<std::uint64_t, kLargestBlock> low48;   // r mod 2^48
    alignas(64) std::array<std::uint64_t, kLargestBlock> high12;  // r >> 48
    // low 30 bits of r, and its high 30 bits << 32
    alignas(64) std::array<std::uint64_t, kLargestBlock> halves;
    // sums[k] = sum of r over the first 8 k scalars, mod p
    std::array<std::uint64_t, kLargestBlock / 8 + 1> sums;
};

// Built at first use, then constant.
const Coefficients& coefficients();
// The sum of the coefficients of the first n scalars of a block, mod p.
std::uint64_t coefficients_until(std::size_t n);

}  // namespace twinrun
