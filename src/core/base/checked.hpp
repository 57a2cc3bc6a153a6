// Arithmetic on sizes from outside: overflow is an answer, not an accident.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace twinrun {

[[nodiscard]] inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
    std::uint64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
    return sum;
}

[[nodiscard]] inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
    return product;
}

// Number of elements of an array: 1 for a 0-d array, nullopt when it does not fit 64 bits.
[[nodiscard]] inline std::optional<std::uint64_t> checked_product(std::span<const std::uint64_t> factors) {
    for (const std::uint64_t f : factors) {
        if (f == 0) return 0;
    }
    std::uint64_t product = 1;
    for (const std::uint64_t f : factors) {
        const auto next = checked_multiply(product, f);
        if (!next) return std::nullopt;
        product = *next;
    }
    return product;
}

[[nodiscard]] constexpr std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
    return a / b + (a % b != 0);
}
// Next multiple of a power of two; the caller has checked that it fits.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t a, std::uint64_t power) {
    return (a + power - 1) & ~(power - 1);
}

}  // namespace twinrun
