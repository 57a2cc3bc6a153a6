#include "element/tolerance.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "platform/float_environment.hpp"

namespace twinrun {

namespace {

// atol = r0 * 2^coarse with 1 <= r0 < 2.
struct Scaled {
    int coarse;
    double r0;
};
Scaled scaled(double atol) {
    int exponent = 0;
    const double fraction = std::frexp(atol, &exponent);
    return {exponent - 1, 2 * fraction};
}

CellRule absolute_rule(double atol, unsigned bits) {
    const auto [coarse, r0] = scaled(atol);
    const int half = bits == 0 ? 1 : 1 << (bits - 1);
    CellRule rule;
    rule.kind = CellKind::absolute;
    rule.residue_bits = static_cast<std::uint8_t>(bits);
    double best = -1;
    for (unsigned k = 0; k <= bits; ++k) {
        const double r = std::ldexp(r0, static_cast<int>(k));  // atol in cells of 2^(coarse - k)
        const int widest = static_cast<int>(std::min(std::floor(r) - 1, static_cast<double>(half - 1)));
        if (widest / r > best) {  // how much of atol can be proven; the coarsest of equals
            best = widest / r;
            rule.coarse_shift = static_cast<std::uint8_t>(k);
            rule.widest = widest;
        }
    }
    rule.fine_exponent = coarse - rule.coarse_shift;
    return rule;
}

// (m, w) with (w + 1) 2^m <= W + 1 and the largest w 2^m; the largest m of equals.
struct ShiftAndWidest {
    int shift;
    std::int64_t widest;
};
ShiftAndWidest relative_cells(std::int64_t distance, unsigned bits) {
    const std::int64_t half = bits == 0 ? 0 : (1 << (bits - 1)) - 1;
    ShiftAndWidest best{0, -1};
    double best_reach = -1;
    for (int m = 0; m < 60; ++m) {
        const std::int64_t widest = std::min(((distance + 1) >> m) - 1, half);
        const double reach = std::ldexp(static_cast<double>(widest), m);
        if (widest >= 0 && reach >= best_reach) {
            best = {m, widest};
            best_reach = reach;
        }
    }
    return best;
}

}  // namespace

std::int64_t widest_key_distance(double rtol) {
    // In this order nothing overflows to infinity / infinity: an rtol near the largest float64
    // gives 0.
    return static_cast<std::int64_t>(std::floor(rtol / (1 + 2 * rtol) * 0x1p52)) - 4;
}

Result<CellRule> cell_rule(const Tolerance& tolerance, unsigned residue_bits) {
    // atol / rtol must not depend on the host's mode
    const FloatEnvironment guard(Rounding::to_nearest);
    const auto bad = [](double t) { return !(t >= 0) || !std::isfinite(t); };
    if (bad(tolerance.atol) || bad(tolerance.rtol)) {
        return Error{ErrorCode::invalid_argument, "tolerances must be finite and not negative"};
    }
    if (residue_bits != 0 && residue_bits != 2 && residue_bits != 4) {
        return Error{ErrorCode::invalid_argument, "residue bits must be 0, 2 or 4"};
    }
    CellRule tokens;
    if (tolerance.rtol == 0) {
        return tolerance.atol == 0 ? tokens : absolute_rule(tolerance.atol, residue_bits);
    }
    const std::int64_t distance = widest_key_distance(tolerance.rtol);
    // An atol of -0.0 gives +0.0.
    const double origin = tolerance.atol == 0 ? 0 : tolerance.atol / tolerance.rtol;
    if (distance < 0 || !std::isfinite(origin)) {
        // No two different keys prove anything: fall back to the absolute part, which is sound
        // alone.
        return tolerance.atol == 0 ? tokens : absolute_rule(tolerance.atol, residue_bits);
    }
    const ShiftAndWidest fine = relative_cells(distance, residue_bits);
    const ShiftAndWidest coarse = relative_cells(distance, 0);
    CellRule rule;
    rule.kind = CellKind::relative;
    rule.residue_bits = static_cast<std::uint8_t>(residue_bits);
    rule.coarse_shift = static_cast<std::uint8_t>(coarse.shift - fine.shift);
    rule.widest = static_cast<std::int32_t>(fine.widest);
    rule.fine_exponent = fine.shift;
    rule.key_origin = origin;
    return rule;
}

CellKind exact_kind(DType scalar) {
    switch (scalar) {
        case DType::f16:
        case DType::bf16:
        case DType::f32: return CellKind::binary32;
        case DType::f64:
        case DType::i64:
        case DType::u64: return CellKind::words;
        default: return CellKind::integers;
    }
}

Result<CellRule> cell_rule(const Tolerance& tolerance, unsigned residue_bits, DType scalar) {
    auto rule = cell_rule(tolerance, residue_bits);
    if (rule && rule->kind == CellKind::tokens) rule->kind = exact_kind(scalar);
    return rule;
}

ProofReach proof_reach(const CellRule& rule, const Tolerance& made_for, const Tolerance& required) {
    ProofReach reach;
    if (is_exact(rule.kind)) {  // equal values are within any tolerance
        reach.usable = reach.coarse_proves = true;
        return reach;
    }
    const std::int32_t half = rule.residue_bits == 0 ? 0 : (1 << (rule.residue_bits - 1)) - 1;
    if (rule.kind == CellKind::absolute) {
        // (|c| + 1) s <= required.atol; the relative part of `required` only widens it.
        if (required.atol == 0) return reach;
        const double cells = std::ldexp(required.atol, -rule.fine_exponent);
        if (cells < 1) return reach;
        reach.usable = true;
        reach.widest = static_cast<std::int32_t>(std::min(std::floor(cells) - 1, static_cast<double>(half)));
        reach.coarse_proves = std::ldexp(required.atol, -rule.coarse_exponent()) >= 1;
        return reach;
    }
    // Relative keys prove what they were made for, and so anything at least as wide.
    if (required.atol < made_for.atol || required.rtol < made_for.rtol) return reach;
    reach.usable = reach.coarse_proves = true;
    reach.widest = rule.widest;
    return reach;
}

std::string resolution_warning(DType dtype, const Tolerance& tolerance, double largest_magnitude) {
    if (!is_floating(dtype) || (tolerance.atol == 0 && tolerance.rtol == 0)) return {};
    if (!std::isfinite(largest_magnitude) || largest_magnitude == 0) return {};
    int exponent = 0;
    static_cast<void>(std::frexp(largest_magnitude, &exponent));
    // Of neighbours at this magnitude.
    const double spacing = std::ldexp(1.0, exponent - precision_bits(dtype));
    const double allowed = tolerance.atol + tolerance.rtol * largest_magnitude;
    if (allowed >= spacing) return {};
    char text[200];
    std::snprintf(text, sizeof text,
                  "the tolerance %.3g is below what %s resolves at |x| = %.3g (neighbours are %.3g apart): "
                  "there it asks "
                  "for equal values",
                  allowed, std::string(dtype_name(dtype)).c_str(), largest_magnitude, spacing);
    return text;
}

}  // namespace twinrun
