// The host's one copy, compiled for every processor.
#include "element/exact.hpp"

#include <initializer_list>

namespace twinrun {

bool exceeds_exactly(double a, double b, const Tolerance& tolerance) {
    return exceeds_exactly(split(a), split(b), tolerance);
}

bool exceeds_exactly(std::uint64_t magnitude_a, bool negative_a, std::uint64_t magnitude_b, bool negative_b,
                     const Tolerance& tolerance) {
    return exceeds_exactly(Magnitude{magnitude_a, 0, negative_a}, Magnitude{magnitude_b, 0, negative_b},
                           tolerance);
}

bool exceeds_exactly_on_circle(double a, double b, double period, double turns, const Tolerance& tolerance) {
    const Magnitude at_a = split(a);
    const Magnitude at_b = split(b);
    const Magnitude length = split(period);
    const Magnitude count = split(turns);
    const Magnitude atol = split(tolerance.atol);
    const Magnitude rtol = split(tolerance.rtol);
    for (const bool turned : {false, true}) {  // the distance, and its negative
        const ExactTerm terms[5] = {
            {at_a.magnitude, at_a.exponent, at_a.negative != turned},
            {at_b.magnitude, at_b.exponent, at_b.negative == turned},
            {static_cast<unsigned __int128>(length.magnitude) * count.magnitude,
             length.exponent + count.exponent, count.negative == turned},
            {atol.magnitude, atol.exponent, true},
            {static_cast<unsigned __int128>(rtol.magnitude) * at_a.magnitude, rtol.exponent + at_a.exponent,
             true},
        };
        if (sum_is_positive(terms)) return true;
    }
    return false;
}

}  // namespace twinrun
