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

}  // namespace twinrun
