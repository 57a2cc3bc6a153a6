// The value of a scalar in a digest: its cell, or its token, as a number modulo p.
#pragma once

#include <cstdint>

#include "digest/field61.hpp"
#include "element/cell.hpp"
#include "platform/float_environment.hpp"

namespace twinrun {

// The floating-point environment that kernels expect.
[[nodiscard]] inline Rounding environment_of(const CellRule& rule) {
    return rule.kind == CellKind::relative ? Rounding::to_nearest : Rounding::downward;
}

TWR_HOST_DEVICE inline Cell cell_for(float x, const CellRule& rule, int shift) {
    return cell_of(static_cast<double>(x), rule, shift);
}
TWR_HOST_DEVICE inline Cell cell_for(double x, const CellRule& rule, int shift) {
    return cell_of(x, rule, shift);
}
TWR_HOST_DEVICE inline Cell cell_for(std::int64_t x, const CellRule& rule, int shift) {
    const bool negative = x < 0;
    const std::uint64_t magnitude =
        negative ? ~static_cast<std::uint64_t>(x) + 1 : static_cast<std::uint64_t>(x);
    return cell_of_integer(magnitude, negative, rule, shift);
}
TWR_HOST_DEVICE inline Cell cell_for(std::uint64_t x, const CellRule& rule, int shift) {
    return cell_of_integer(x, false, rule, shift);
}

TWR_HOST_DEVICE inline std::uint64_t field_value(const Cell& cell) {
    return cell.token ? reduce61(cell.bits) : signed61(static_cast<std::int64_t>(cell.bits));
}

}  // namespace twinrun
