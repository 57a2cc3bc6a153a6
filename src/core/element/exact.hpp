// The verdict on one pair of elements: |a - b| > atol + rtol |a|, decided as if in infinite
// precision. One definition for host and device, of integer arithmetic only: no rounding mode and
// no treatment of denormals changes it.
#pragma once

#include <cstdint>

#include "element/cell.hpp"
#include "element/tolerance.hpp"

namespace twinrun {

// +-magnitude * 2^exponent.
struct ExactTerm {
    unsigned __int128 magnitude;  // up to 117 bits: 53 of rtol by 64 of a
    int exponent;                 // -2148 (the smallest product of two float64) or more
    bool negative;

    // Bits [32 limb, 32 limb + 32) of the magnitude in fixed point with the unit 2^-2148.
    [[nodiscard]] TWR_HOST_DEVICE inline std::int64_t bits_at(int limb) const {
        const int from = 32 * limb - (exponent + 2148);  // of the magnitude's bits
        if (from <= -32 || from >= 128) return 0;
        const auto bits = static_cast<std::uint32_t>(from < 0 ? magnitude << -from
                                                              : magnitude >> static_cast<unsigned>(from));
        return negative ? -static_cast<std::int64_t>(bits) : static_cast<std::int64_t>(bits);
    }
};

// Whether a sum of terms is above 0. They are added limb by limb from the lowest, the carry alone
// kept: on a device an array of all limbs would be a stack frame of every thread.
template <int N>
TWR_HOST_DEVICE inline bool sum_is_positive(const ExactTerm (&terms)[N]) {
    int lowest = 4096;
    int highest = -4096;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int i = 0; i < N; ++i) {
        if (terms[i].magnitude == 0) continue;
        lowest = terms[i].exponent < lowest ? terms[i].exponent : lowest;
        highest = terms[i].exponent > highest ? terms[i].exponent : highest;
    }
    std::int64_t carry = 0;
    bool nonzero = false;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int limb = (lowest + 2148) / 32; limb <= (highest + 2148 + 127) / 32; ++limb) {
        std::int64_t sum = carry;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
        for (int i = 0; i < N; ++i)
            sum += terms[i].bits_at(limb);
        nonzero = nonzero || (sum & 0xFFFFFFFF) != 0;
        carry = sum >> 32;  // arithmetic: floors
    }
    return carry > 0 || (carry == 0 && nonzero);  // a negative sum leaves a negative carry
}

// |a - b| > atol + rtol |a|.
TWR_HOST_DEVICE inline bool exceeds_exactly(const Magnitude& a, const Magnitude& b,
                                            const Tolerance& tolerance) {
    const bool a_is_farther = a.exponent != b.exponent ? a.exponent > b.exponent : a.magnitude > b.magnitude;
    const bool a_is_larger = a.negative != b.negative ? b.negative : a.negative != a_is_farther;
    const Magnitude atol = split(tolerance.atol);
    const Magnitude rtol = split(tolerance.rtol);
    const ExactTerm terms[4] = {
        {a.magnitude, a.exponent, a.negative == a_is_larger},
        {b.magnitude, b.exponent, b.negative != a_is_larger},
        {atol.magnitude, atol.exponent, true},
        {static_cast<unsigned __int128>(rtol.magnitude) * a.magnitude, rtol.exponent + a.exponent, true},
    };
    return sum_is_positive(terms);
}

// |a - b - turns period| > atol + rtol |a|.
TWR_HOST_DEVICE inline bool exceeds_exactly_on_circle(const Magnitude& a, const Magnitude& b,
                                                      const Magnitude& period, const Magnitude& turns,
                                                      const Tolerance& tolerance) {
    const Magnitude atol = split(tolerance.atol);
    const Magnitude rtol = split(tolerance.rtol);
    for (int way = 0; way < 2; ++way) {  // the distance, and its negative
        const bool turned = way != 0;
        const ExactTerm terms[5] = {
            {a.magnitude, a.exponent, a.negative != turned},
            {b.magnitude, b.exponent, b.negative == turned},
            {static_cast<unsigned __int128>(period.magnitude) * turns.magnitude,
             period.exponent + turns.exponent, turns.negative == turned},
            {atol.magnitude, atol.exponent, true},
            {static_cast<unsigned __int128>(rtol.magnitude) * a.magnitude, rtol.exponent + a.exponent, true},
        };
        if (sum_is_positive(terms)) return true;
    }
    return false;
}

// Finite operands. Slow (hundreds of steps): kernels call it only where rounding could decide.
#if defined(__CUDACC__)
// Values, no references: what lies in a kernel's parameters then needs no copy that has an address.
__noinline__ TWR_HOST_DEVICE inline bool exceeds_exactly_by_value(double a, double b, double atol,
                                                                  double rtol) {
    return exceeds_exactly(split(a), split(b), {atol, rtol});
}
__noinline__ TWR_HOST_DEVICE inline bool exceeds_exactly_by_value(std::uint64_t magnitude_a, bool negative_a,
                                                                  std::uint64_t magnitude_b, bool negative_b,
                                                                  double atol, double rtol) {
    return exceeds_exactly(Magnitude{magnitude_a, 0, negative_a}, Magnitude{magnitude_b, 0, negative_b},
                           {atol, rtol});
}
__noinline__ TWR_HOST_DEVICE inline bool exceeds_exactly_on_circle_by_value(double a, double b, double period,
                                                                            double turns, double atol,
                                                                            double rtol) {
    return exceeds_exactly_on_circle(split(a), split(b), split(period), split(turns), {atol, rtol});
}
TWR_HOST_DEVICE inline bool exceeds_exactly(double a, double b, const Tolerance& tolerance) {
    return exceeds_exactly_by_value(a, b, tolerance.atol, tolerance.rtol);
}
TWR_HOST_DEVICE inline bool exceeds_exactly(std::uint64_t magnitude_a, bool negative_a,
                                            std::uint64_t magnitude_b, bool negative_b,
                                            const Tolerance& tolerance) {
    return exceeds_exactly_by_value(magnitude_a, negative_a, magnitude_b, negative_b, tolerance.atol,
                                    tolerance.rtol);
}
TWR_HOST_DEVICE inline bool exceeds_exactly_on_circle(double a, double b, double period, double turns,
                                                      const Tolerance& tolerance) {
    return exceeds_exactly_on_circle_by_value(a, b, period, turns, tolerance.atol, tolerance.rtol);
}
#else
[[nodiscard]] bool exceeds_exactly(double a, double b, const Tolerance& tolerance);
[[nodiscard]] bool exceeds_exactly(std::uint64_t magnitude_a, bool negative_a, std::uint64_t magnitude_b,
                                   bool negative_b, const Tolerance& tolerance);
// turns: an integer, |turns| < 2^53; period > 0.
[[nodiscard]] bool exceeds_exactly_on_circle(double a, double b, double period, double turns,
                                             const Tolerance& tolerance);
#endif

}  // namespace twinrun
