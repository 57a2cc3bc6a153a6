#include "element/exact.hpp"

#include <array>
#include <cmath>

#include "element/cell.hpp"

namespace twinrun {

namespace {

// Fixed point with the unit 2^-2148 (the smallest product of two float64) and room for sums of a few products.
class FixedPoint {
   public:
    // Adds +-magnitude * 2^exponent.
    void add(unsigned __int128 magnitude, int exponent, bool negative) {
        const int bit = exponent + kUnit;
        std::size_t limb = static_cast<std::size_t>(bit) / 32;
        const unsigned shift = static_cast<unsigned>(bit) % 32;
        // The magnitude has at most 106 bits, so shifted by up to 31 it still fits 160: split in two steps.
        std::uint64_t carry = 0;
        while (magnitude != 0 || carry != 0) {
            const std::uint64_t part = (static_cast<std::uint64_t>(magnitude & 0xFFFFFFFFU) << shift) + carry;
            const auto low = static_cast<std::int64_t>(part & 0xFFFFFFFFU);
            limbs_[limb++] += negative ? -low : low;
            carry = part >> 32;
            magnitude >>= 32;
        }
    }
    [[nodiscard]] bool positive() {
        std::int64_t carry = 0;
        bool nonzero = false;
        for (auto& limb : limbs_) {
            const std::int64_t sum = limb + carry;
            nonzero = nonzero || (sum & 0xFFFFFFFF) != 0;
            carry = sum >> 32;  // arithmetic: floors
        }
        return carry == 0 && nonzero;  // a negative sum leaves a carry of -1
    }

   private:
    static constexpr int kUnit = 2148;
    std::array<std::int64_t, 140> limbs_{};
};

void subtract_tolerance(FixedPoint& sum, const Magnitude& a, const Tolerance& tolerance) {
    const Magnitude atol = split(tolerance.atol);
    const Magnitude rtol = split(tolerance.rtol);
    sum.add(atol.magnitude, atol.exponent, true);
    sum.add(static_cast<unsigned __int128>(rtol.magnitude) * a.magnitude, rtol.exponent + a.exponent, true);
}

bool exceeds(Magnitude a, Magnitude b, bool a_is_larger, const Tolerance& tolerance) {
    FixedPoint sum;
    sum.add(a.magnitude, a.exponent, a.negative == a_is_larger);
    sum.add(b.magnitude, b.exponent, b.negative != a_is_larger);
    subtract_tolerance(sum, a, tolerance);
    return sum.positive();
}

}  // namespace

bool exceeds_exactly(double a, double b, const Tolerance& tolerance) {
    return exceeds(split(a), split(b), a > b, tolerance);
}

bool exceeds_exactly(std::uint64_t magnitude_a, bool negative_a, std::uint64_t magnitude_b, bool negative_b,
                     const Tolerance& tolerance) {
    const bool a_is_larger = negative_a != negative_b ? negative_b
                             : negative_a             ? magnitude_a < magnitude_b
                                                      : magnitude_a > magnitude_b;
    return exceeds({magnitude_a, 0, negative_a}, {magnitude_b, 0, negative_b}, a_is_larger, tolerance);
}

}  // namespace twinrun
