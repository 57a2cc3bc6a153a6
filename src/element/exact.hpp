// The verdict on one pair of elements: |a - b| > atol + rtol |a|, decided as if in infinite precision.
#pragma once

#include <cstdint>

#include "element/tolerance.hpp"

namespace twinrun {

// Finite operands. Slow (a fixed-point sum of some 4,400 bits): kernels call it only where rounding could decide.
[[nodiscard]] bool exceeds_exactly(double a, double b, const Tolerance& tolerance);
[[nodiscard]] bool exceeds_exactly(std::uint64_t magnitude_a, bool negative_a, std::uint64_t magnitude_b,
                                   bool negative_b, const Tolerance& tolerance);

}  // namespace twinrun
