// SPDX-License-Identifier: Apache-2.0
#include "haccio/particles.hpp"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "haccio/random.hpp"

namespace haccio {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian, and arrays are written as they are");

namespace {

constexpr std::size_t kPotential = 6, kIdentifier = 7;

// 24 bits make a float exactly, and so does a power of two of it.
std::uint64_t float_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

}  // namespace

std::uint64_t value_bits(std::uint64_t rank, std::uint64_t index, std::size_t variable) {
    if (variable == kIdentifier) return (rank << 40) + index;
    const std::uint64_t random = mix(mix(rank) ^ (index * kVariables + variable));
    const auto mantissa = static_cast<float>(random >> 40);
    if (variable < 3) return float_bits(mantissa * 0x1p-16f);  // a place: [0, 256)
    // A velocity: [-1024, 1024).
    if (variable < kPotential) return float_bits((mantissa - 0x1p23f) * 0x1p-13f);
    if (variable == kPotential) return float_bits(mantissa * -0x1p-10f);
    return random >> 48;
}

std::string text(const WrongValue& wrong) {
    const Variable& variable = kVariable[wrong.variable];
    char values[80];
    std::snprintf(values, sizeof values, "0x%0*llx instead of 0x%0*llx", static_cast<int>(2 * variable.bytes),
                  static_cast<unsigned long long>(wrong.found), static_cast<int>(2 * variable.bytes),
                  static_cast<unsigned long long>(wrong.expected));
    return "particle " + std::to_string(wrong.index) + ", " + variable.name + ": " + values;
}

void Check::add(const Check& other) {
    wrong += other.wrong;
    if (other.first && (!first || other.first->index < first->index ||
                        (other.first->index == first->index && other.first->variable < first->variable))) {
        first = other.first;
    }
}

Check check_values(std::span<const std::byte> bytes, std::uint64_t stride, std::uint64_t rank,
                   std::uint64_t first, std::uint64_t items, std::size_t variable) {
    Check check;
    for (std::uint64_t i = 0; i < items; ++i) {
        std::uint64_t found = 0;
        std::memcpy(&found, bytes.data() + i * stride, kVariable[variable].bytes);
        const std::uint64_t expected = value_bits(rank, first + i, variable);
        if (found == expected) continue;
        if (check.wrong++ == 0) check.first = WrongValue{first + i, variable, found, expected};
    }
    return check;
}

Particles::Particles(std::uint64_t rank, std::uint64_t count) : rank_(rank), count_(count) {
    for (std::size_t v = 0; v < kVariables; ++v)
        arrays_[v].resize(count * kVariable[v].bytes);
    fill();
}

void Particles::fill() {
    for (std::size_t v = 0; v < kVariables; ++v) {
        std::byte* to = arrays_[v].data();
        for (std::uint64_t i = 0; i < count_; ++i, to += kVariable[v].bytes) {
            const std::uint64_t bits = value_bits(rank_, i, v);
            std::memcpy(to, &bits, kVariable[v].bytes);
        }
    }
}

void Particles::poison() {
    // Of every value, the opposite of what it should be.
    for (std::size_t v = 0; v < kVariables; ++v) {
        std::byte* to = arrays_[v].data();
        for (std::uint64_t i = 0; i < count_; ++i, to += kVariable[v].bytes) {
            const std::uint64_t bits = ~value_bits(rank_, i, v);
            std::memcpy(to, &bits, kVariable[v].bytes);
        }
    }
}

Check Particles::check() const {
    Check check;
    for (std::size_t v = 0; v < kVariables; ++v)
        check.add(check_values(arrays_[v], kVariable[v].bytes, rank_, 0, count_, v));
    return check;
}

std::uint64_t particles_of(const std::vector<std::uint64_t>& counts, double skew, std::uint64_t seed,
                           std::uint64_t rank) {
    const std::uint64_t count = counts[rank % counts.size()];
    if (skew == 0) return count;
    const double u = static_cast<double>(mix(mix(seed) ^ rank) >> 11) * 0x1p-52 - 1;
    return static_cast<std::uint64_t>(std::floor(static_cast<double>(count) * (1 + skew * u)));
}

}  // namespace haccio
