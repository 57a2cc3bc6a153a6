// SPDX-License-Identifier: Apache-2.0
// HACC's particles: nine variables, 38 bytes each. In memory an array a variable; every value
// follows from the rank and the index alone, so that a reader needs nothing to compare with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace haccio {

struct Variable {
    const char* name;
    std::uint32_t bytes;
    std::uint32_t record_offset;  // in a record of 38 bytes
};

inline constexpr std::size_t kVariables = 9;
inline constexpr std::uint64_t kParticleBytes = 38;
inline constexpr std::array<Variable, kVariables> kVariable = {{
    {"xx", 4, 0},
    {"yy", 4, 4},
    {"zz", 4, 8},
    {"vx", 4, 12},
    {"vy", 4, 16},
    {"vz", 4, 20},
    {"phi", 4, 24},
    {"pid", 8, 28},
    {"mask", 2, 36},
}};

// The little-endian bits of a value, in the low bytes. All floats are finite and come about without
// rounding.
std::uint64_t value_bits(std::uint64_t rank, std::uint64_t index, std::size_t variable);

struct WrongValue {
    std::uint64_t index = 0;
    std::size_t variable = 0;
    std::uint64_t found = 0, expected = 0;  // bits
};
// "particle 17, vx: 0x42f70000 instead of 0x42f60000"
std::string text(const WrongValue& wrong);

// How many values are wrong, and the first of them.
struct Check {
    std::uint64_t wrong = 0;
    std::optional<WrongValue> first;

    void add(const Check& other);
};
// `items` values of one variable, the first of index `first`, `stride` bytes apart.
Check check_values(std::span<const std::byte> bytes, std::uint64_t stride, std::uint64_t rank,
                   std::uint64_t first, std::uint64_t items, std::size_t variable);

class Particles {
   public:
    // Filled.
    Particles(std::uint64_t rank, std::uint64_t count);

    [[nodiscard]] std::uint64_t count() const { return count_; }
    [[nodiscard]] std::uint64_t bytes() const { return count_ * kParticleBytes; }
    [[nodiscard]] std::byte* data(std::size_t variable) { return arrays_[variable].data(); }
    [[nodiscard]] const std::byte* data(std::size_t variable) const { return arrays_[variable].data(); }

    void fill();
    void poison();  // before a read: what does not arrive is found
    [[nodiscard]] Check check() const;

   private:
    std::uint64_t rank_, count_;
    std::array<std::vector<std::byte>, kVariables> arrays_;
};

// Particles of each rank: counts[rank mod their number], times 1 + skew u, u in [-1, 1) by rank and
// seed.
std::uint64_t particles_of(const std::vector<std::uint64_t>& counts, double skew, std::uint64_t seed,
                           std::uint64_t rank);

}  // namespace haccio
