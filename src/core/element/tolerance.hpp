// From a user's tolerance to the integers ("cells") that digests are made of.
//
// Absolute: the cell of x is floor(x / 2^e). Two values in one cell differ by less than 2^e; values
// c cells apart by less than (|c| + 1) 2^e. Coarse cells have the largest e with 2^e <= atol. Fine
// cells, at most 4 binades finer, are those whose residues (the low 2 or 4 bits of each cell) prove
// the widest differences.
//
// Relative and combined (rtol > 0): with c = atol / rtol, the tolerance is rtol (|a| + c). The bits
// of the rounded float64 sum |x| + c, taken as an integer, are a piecewise linear logarithm: the
// key of x is their distance from the bits of c, with the sign of x. Keys W apart prove agreement;
// cells are key >> m.
//
// Exact: atol = rtol = 0 asks for equal values. A scalar then stands for itself (cell.hpp): a
// float16, bfloat16 or float32 by its bits as a binary32, a scalar of 64 bits by the two halves of
// its bits, a smaller integer by its value. Nothing is mixed, so that digests are made as fast as
// memory is read. Earlier versions made a pseudo-random token of most values.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "element/dtype.hpp"

namespace twinrun {

// Elements a (reference) and b differ when |a - b| > atol + rtol |a|, in infinite precision.
struct Tolerance {
    double atol = 0;
    double rtol = 0;
    bool operator==(const Tolerance&) const = default;
};

enum class CellKind : std::uint8_t {
    tokens = 0,
    absolute = 1,
    relative = 2,
    binary32 = 3,  // f16, bf16, f32
    words = 4,     // f64, i64, u64
    integers = 5,  // bool and integers of up to 32 bits
};

// How a value becomes its fine and its coarse integer. Plain data: it is stored in metadata and
// given to kernels.
struct CellRule {
    CellKind kind = CellKind::tokens;
    std::uint8_t residue_bits = 0;  // b: 0, 2 or 4
    // Coarse cell = fine cell >> coarse_shift (0 to 4), for values with both.
    std::uint8_t coarse_shift = 0;
    std::int32_t widest = 0;         // w: residue differences of at most w prove agreement
    std::int32_t fine_exponent = 0;  // absolute: e of the fine cell. relative: m, cell = key >> m
    double key_origin = 0;           // relative: c = atol / rtol
    bool operator==(const CellRule&) const = default;

    [[nodiscard]] std::int32_t coarse_exponent() const { return fine_exponent + coarse_shift; }
};

// The rule for a tolerance. residue_bits: 0, 2 or 4 (taken as 0 where the rule is tokens). Errors:
// a tolerance that is negative, NaN or infinite; other residue bits.
Result<CellRule> cell_rule(const Tolerance& tolerance, unsigned residue_bits);
// The same for scalars of this type: where the rule would be tokens, it is exact_kind().
Result<CellRule> cell_rule(const Tolerance& tolerance, unsigned residue_bits, DType scalar);
// How scalars of this type (not complex) stand for themselves in exact digests.
[[nodiscard]] CellKind exact_kind(DType scalar);
// Whether equal values in digests mean equal numbers, and nothing else.
[[nodiscard]] constexpr bool is_exact(CellKind kind) {
    return kind != CellKind::absolute && kind != CellKind::relative;
}

// True if metadata made with `rule` can prove agreement within `required` (which may be wider than
// what it was made for): `widest` becomes the widest residue difference that still proves,
// `coarse_proves` says whether equal coarse cells do.
struct ProofReach {
    bool usable = false;
    bool coarse_proves = false;
    std::int32_t widest = 0;
};
ProofReach proof_reach(const CellRule& rule, const Tolerance& made_for, const Tolerance& required);

// A warning text if the tolerance lies below what the dtype can resolve for values of this
// magnitude, otherwise "".
std::string resolution_warning(DType dtype, const Tolerance& tolerance, double largest_magnitude);

// W of a combined tolerance: keys that are at most W apart prove agreement; negative: rtol is too
// small for any.
[[nodiscard]] std::int64_t widest_key_distance(double rtol);

}  // namespace twinrun
