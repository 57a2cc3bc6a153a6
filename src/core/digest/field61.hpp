// Arithmetic modulo the Mersenne prime p = 2^61 - 1, the field of every digest.
#pragma once

#include <cstdint>

#include "element/cell.hpp"

namespace twinrun {

inline constexpr std::uint64_t kPrime = kMersenne61;

TWR_HOST_DEVICE constexpr std::uint64_t reduce61(std::uint64_t x) {
    x = (x & kPrime) + (x >> 61);
    return x >= kPrime ? x - kPrime : x;
}
TWR_HOST_DEVICE constexpr std::uint64_t add61(std::uint64_t a, std::uint64_t b) {
    const std::uint64_t sum = a + b;
    return sum >= kPrime ? sum - kPrime : sum;
}
TWR_HOST_DEVICE constexpr std::uint64_t subtract61(std::uint64_t a, std::uint64_t b) {
    return a >= b ? a - b : a + kPrime - b;
}
// a, b < 2^61.
TWR_HOST_DEVICE constexpr std::uint64_t multiply61(std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    const std::uint64_t low = static_cast<std::uint64_t>(product) & kPrime;
    const auto high = static_cast<std::uint64_t>(product >> 61);
    return add61(low, reduce61(high));
}
TWR_HOST_DEVICE constexpr std::uint64_t reduce61_wide(unsigned __int128 x) {
    const std::uint64_t low = static_cast<std::uint64_t>(x) & kPrime;
    const auto middle = static_cast<std::uint64_t>(x >> 61) & kPrime;
    const auto high = static_cast<std::uint64_t>(x >> 122);
    return add61(add61(low == kPrime ? 0 : low, middle == kPrime ? 0 : middle), high);
}
// The field value of a signed cell.
TWR_HOST_DEVICE constexpr std::uint64_t signed61(std::int64_t q) {
    return q >= 0 ? reduce61(static_cast<std::uint64_t>(q))
                  : subtract61(0, reduce61(static_cast<std::uint64_t>(-q)));
}
TWR_HOST_DEVICE constexpr std::uint64_t power61(std::uint64_t base, std::uint64_t exponent) {
    std::uint64_t result = 1;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1) != 0) result = multiply61(result, base);
        base = multiply61(base, base);
    }
    return result;
}
// 2^-k mod p, k <= 61: the inverse of a power of two is a power of two, as 2^61 = 1.
TWR_HOST_DEVICE constexpr std::uint64_t inverse_power_of_two(unsigned k) {
    return k == 0 ? 1 : 1ULL << (61 - k);
}

}  // namespace twinrun
