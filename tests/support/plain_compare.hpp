// What comparing two arrays must find, worked out in the plainest way: scalar by scalar, with sums
// of whole numbers of 4,544 bits for the verdict. It shares no code with the kernels, so that a
// mistake in these cannot hide here.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "difference/difference.hpp"
#include "element/dtype.hpp"

namespace twinrun::plain {

// A number of at least 0 in fixed point: bit 0 is worth 2^-2150, less than the smallest product of
// two float64.
class Fixed {
   public:
    // value: finite; its sign is left out.
    static Fixed of(double value) {
        int exponent = 0;
        const double fraction = std::frexp(std::fabs(value), &exponent);
        Fixed made;
        made.add_shifted(static_cast<std::uint64_t>(std::ldexp(fraction, 53)), exponent - 53 + kPoint);
        return made;
    }
    static Fixed of_whole(std::uint64_t value) {
        Fixed made;
        made.add_shifted(value, kPoint);
        return made;
    }
    // The product of two finite float64, or of one and a whole number, without signs.
    static Fixed product(double factor, double value) {
        int exponent = 0;
        const double fraction = std::frexp(std::fabs(value), &exponent);
        return product(factor, static_cast<std::uint64_t>(std::ldexp(fraction, 53)), exponent - 53);
    }
    static Fixed product(double factor, std::uint64_t whole, int shift = 0) {
        int exponent = 0;
        const double fraction = std::frexp(std::fabs(factor), &exponent);
        const auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
        Fixed made;
        // Digit by digit, as on paper.
        for (int bit = 0; bit < 64; ++bit) {
            if ((whole >> bit & 1) != 0) made.add_shifted(mantissa, exponent - 53 + shift + bit + kPoint);
        }
        return made;
    }
    Fixed plus(const Fixed& other) const {
        Fixed sum;
        std::uint64_t carry = 0;
        for (std::size_t i = 0; i < kLimbs; ++i) {
            const std::uint64_t here = std::uint64_t{limbs_[i]} + other.limbs_[i] + carry;
            sum.limbs_[i] = static_cast<std::uint32_t>(here);
            carry = here >> 32;
        }
        return sum;
    }
    bool above(const Fixed& other) const {
        for (std::size_t i = kLimbs; i-- > 0;) {
            if (limbs_[i] != other.limbs_[i]) return limbs_[i] > other.limbs_[i];
        }
        return false;
    }

   private:
    static constexpr int kPoint = 2150;
    static constexpr std::size_t kLimbs = 142;
    void add_shifted(std::uint64_t value, int shift) {
        if (value == 0) return;
        for (int bit = 0; bit < 64; ++bit) {
            if ((value >> bit & 1) == 0) continue;
            std::uint64_t carry = std::uint64_t{1} << (shift + bit) % 32;
            for (auto at = static_cast<std::size_t>((shift + bit) / 32); carry != 0; ++at) {
                carry += limbs_[at];
                limbs_[at] = static_cast<std::uint32_t>(carry);
                carry >>= 32;
            }
        }
    }
    std::array<std::uint32_t, kLimbs> limbs_{};
};

// |a - b| > atol + rtol |a|, of numbers by sign and magnitude: then both sides are sums of numbers of at least 0.
inline bool exceeds(const Fixed& a, bool negative_a, const Fixed& b, bool negative_b, const Fixed& allowed) {
    if (negative_a != negative_b) return a.plus(b).above(allowed);
    return a.above(b.plus(allowed)) || b.above(a.plus(allowed));
}

// A scalar as a number: a whole one of 64 bits, or a float64 that has its value.
struct Number {
    bool whole = false;
    bool negative = false;
    std::uint64_t magnitude = 0;
    double value = 0;
};

// Of an IEEE format with so many bits of exponent and fraction.
inline double small_float(std::uint64_t bits, int exponent_bits, int fraction_bits) {
    const bool negative = (bits >> (exponent_bits + fraction_bits) & 1) != 0;
    const int most = (1 << exponent_bits) - 1;
    const int exponent = static_cast<int>(bits >> fraction_bits) & most;
    const auto fraction = static_cast<double>(bits & ((std::uint64_t{1} << fraction_bits) - 1));
    const int bias = most / 2;
    double value = 0;
    if (exponent == most) {
        value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
    } else if (exponent == 0) {
        value = std::ldexp(fraction, 1 - bias - fraction_bits);
    } else {
        value = std::ldexp(1 + std::ldexp(fraction, -fraction_bits), exponent - bias);
    }
    return negative ? -value : value;
}

// `scalar`: no complex type. bytes: native.
inline Number number(DType scalar, const std::byte* bytes) {
    const auto load = [&]<class T>(T value) {
        std::memcpy(&value, bytes, sizeof value);
        return value;
    };
    const auto real = [](double value) { return Number{false, std::signbit(value), 0, value}; };
    const auto whole = [](std::int64_t value) {
        return Number{true, value < 0,
                      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value),
                      static_cast<double>(value)};
    };
    switch (scalar) {
        case DType::f32: return real(load(float{}));
        case DType::f64: return real(load(double{}));
        case DType::f16: return real(small_float(load(std::uint16_t{}), 5, 10));
        case DType::bf16: return real(small_float(load(std::uint16_t{}), 8, 7));
        case DType::i8: return whole(load(std::int8_t{}));
        case DType::i16: return whole(load(std::int16_t{}));
        case DType::i32: return whole(load(std::int32_t{}));
        case DType::i64: return whole(load(std::int64_t{}));
        case DType::u8:
        case DType::boolean: return whole(load(std::uint8_t{}));
        case DType::u16: return whole(load(std::uint16_t{}));
        case DType::u32: return whole(load(std::uint32_t{}));
        case DType::u64: {
            const auto value = load(std::uint64_t{});
            return Number{true, false, value, static_cast<double>(value)};
        }
        default: std::abort();
    }
}

struct Found {
    std::uint64_t scalars = 0;
    std::uint64_t different = 0;
    std::uint64_t infinite = 0;
    std::uint64_t first = kNowhere;
    double max_abs = 0;
    std::uint64_t max_abs_at = kNowhere;
    double max_rel_different = 0;  // of floating-point numbers
    double sum_squares = 0;
    double sum_squares_different = 0;
    Histogram all{}, over{};
};

inline std::size_t bin_of(double d) {
    if (d == 0) return 0;
    if (std::isinf(d)) return kHistogramBins - 1;
    static const std::vector<double> edges = [] {
        std::vector<double> made;
        for (int decade = kFirstDecade; decade <= kFirstDecade + kDecades; ++decade)
            made.push_back(std::strtod(("1e" + std::to_string(decade)).c_str(), nullptr));
        return made;
    }();
    std::size_t bin = 1;
    for (const double edge : edges)
        bin += d >= edge ? 1 : 0;
    return bin;
}

// scalars: numbers of `scalar` in each array.
inline Found compare(DType scalar, const std::byte* a, const std::byte* b, std::uint64_t scalars,
                     const Tolerance& tolerance, bool nan_equal) {
    Found found;
    found.scalars = scalars;
    const std::size_t bytes = item_bytes(scalar);
    for (std::uint64_t i = 0; i < scalars; ++i) {
        const Number x = number(scalar, a + i * bytes);
        const Number y = number(scalar, b + i * bytes);
        double d = 0;
        bool differs = false;
        // The same number: nothing to decide.
        if (x.value == y.value && x.magnitude == y.magnitude) {
        } else if (x.whole) {
            const bool apart = x.negative != y.negative;
            const std::uint64_t larger = std::max(x.magnitude, y.magnitude);
            const std::uint64_t smaller = std::min(x.magnitude, y.magnitude);
            d = static_cast<double>(apart ? larger + smaller : larger - smaller);
            const Fixed allowed = Fixed::of(tolerance.atol).plus(Fixed::product(tolerance.rtol, x.magnitude));
            differs = exceeds(Fixed::of_whole(x.magnitude), x.negative, Fixed::of_whole(y.magnitude),
                              y.negative, allowed);
        } else if (std::isnan(x.value) || std::isnan(y.value)) {
            differs = !(std::isnan(x.value) && std::isnan(y.value) && nan_equal);
            d = differs ? std::numeric_limits<double>::infinity() : 0;
        } else if (std::isinf(x.value) || std::isinf(y.value)) {
            differs = x.value != y.value;
            d = differs ? std::numeric_limits<double>::infinity() : 0;
        } else {
            d = std::fabs(x.value - y.value);
            const Fixed allowed = Fixed::of(tolerance.atol).plus(Fixed::product(tolerance.rtol, x.value));
            differs = exceeds(Fixed::of(x.value), x.negative, Fixed::of(y.value), y.negative, allowed);
        }
        if (d > found.max_abs) {
            found.max_abs = d;
            found.max_abs_at = i;
        }
        ++found.all[bin_of(d)];
        if (std::isfinite(d)) found.sum_squares += d * d;
        if (!differs) continue;
        ++found.different;
        ++found.over[bin_of(d)];
        if (found.first == kNowhere) found.first = i;
        if (std::isinf(d)) {
            ++found.infinite;
        } else {
            found.sum_squares_different += d * d;
        }
        const double relative =
            x.value == 0 || std::isinf(d) ? std::numeric_limits<double>::infinity() : d / std::fabs(x.value);
        found.max_rel_different = std::max(found.max_rel_different, relative);
    }
    return found;
}

}  // namespace twinrun::plain
