// Whether comparisons of a field found the same.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "engine/compare.hpp"
#include "support/difference_stats.hpp"

namespace twinrun::testing {

// The same number, or NaN twice.
inline void expect_same_number(double x, double y) {
    EXPECT_TRUE(x == y || (std::isnan(x) && std::isnan(y))) << x << " and " << y;
}

// What was proven without reading.
inline void expect_same_proof(const FieldResult& x, const FieldResult& y) {
    EXPECT_EQ(x.proven.by_tree, y.proven.by_tree);
    EXPECT_EQ(x.proven.by_cells, y.proven.by_cells);
    EXPECT_EQ(x.proven.cell, y.proven.cell);
    EXPECT_EQ(x.proven.coarse_cell, y.proven.coarse_cell);
    EXPECT_EQ(x.max_abs_is_bound, y.max_abs_is_bound);
    expect_same_number(x.max_abs, y.max_abs);
    expect_same_number(x.max_abs_unread, y.max_abs_unread);
}

// The values at the first and at the largest difference.
inline void expect_same_values(const FieldResult& x, const FieldResult& y) {
    EXPECT_EQ(x.first_bits_a, y.first_bits_a);
    EXPECT_EQ(x.first_bits_b, y.first_bits_b);
    EXPECT_EQ(x.max_bits_a, y.max_bits_a);
    EXPECT_EQ(x.max_bits_b, y.max_bits_b);
}

inline void expect_same_stage(const StageFacts& x, const StageFacts& y) {
    EXPECT_EQ(x.ran, y.ran);
    EXPECT_EQ(x.chunks_in, y.chunks_in);
    EXPECT_EQ(x.chunks_out, y.chunks_out);
}

// All but what was used, what was read of files, and times. sums: as above.
inline void expect_same_result(const FieldResult& x, const FieldResult& y, double sums = 0) {
    EXPECT_EQ(x.method, y.method);
    EXPECT_EQ(x.reason, y.reason);
    EXPECT_EQ(x.scalars, y.scalars);
    EXPECT_EQ(x.chunks, y.chunks);
    EXPECT_EQ(x.warnings, y.warnings);
    expect_same_read(x.read, y.read, sums);
    expect_same_proof(x, y);
    expect_same_values(x, y);
    expect_same_stage(x.tree, y.tree);
    expect_same_stage(x.sketch, y.sketch);
    expect_same_stage(x.elements, y.elements);
}

}  // namespace twinrun::testing
