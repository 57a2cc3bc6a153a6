// The host's one copy, compiled for every processor.
#include "element/exact.hpp"

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
    return exceeds_exactly_on_circle(split(a), split(b), split(period), split(turns), tolerance);
}

}  // namespace twinrun
