// Whether two ways to compare elements found the same.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "difference/difference.hpp"

namespace twinrun::testing {

// What was read: counts, places, extremes and histograms are equal. Sums depend on the order of
// additions: they may differ by this part of them.
inline void expect_same_read(const DifferenceStats& x, const DifferenceStats& y, double sums = 0) {
    EXPECT_EQ(x.scalars, y.scalars);
    EXPECT_EQ(x.different, y.different);
    EXPECT_EQ(x.infinite, y.infinite);
    EXPECT_EQ(x.first, y.first);
    EXPECT_EQ(x.max_abs, y.max_abs);
    EXPECT_EQ(x.max_abs_at, y.max_abs_at);
    EXPECT_EQ(x.max_rel, y.max_rel);
    EXPECT_EQ(x.max_rel_at, y.max_rel_at);
    EXPECT_EQ(x.max_rel_different, y.max_rel_different);
    EXPECT_EQ(x.max_rel_different_at, y.max_rel_different_at);
    EXPECT_EQ(x.largest, y.largest);
    for (std::size_t bin = 0; bin < kHistogramBins; ++bin) {
        EXPECT_EQ(x.all[bin], y.all[bin]) << "bin " << bin;
        EXPECT_EQ(x.over[bin], y.over[bin]) << "bin " << bin;
    }
    for (const auto sum : {&DifferenceStats::sum_squares, &DifferenceStats::sum_squares_different}) {
        if (x.*sum != y.*sum) {
            EXPECT_LE(std::fabs(x.*sum - y.*sum), sums * std::fabs(y.*sum));
        }
    }
}

}  // namespace twinrun::testing
