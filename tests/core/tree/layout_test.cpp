#include "tree/layout.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace twinrun {
namespace {

TEST(TreeLayout, HoldsEveryNodeOnceRootFirstLeavesLast) {
    for (std::uint64_t leaves = 1; leaves <= 600; ++leaves) {
        const TreeLayout layout{leaves};
        std::vector<std::uint64_t> widths{leaves};
        while (widths.back() > 1)
            widths.push_back((widths.back() + 1) / 2);
        ASSERT_EQ(layout.levels(), widths.size()) << leaves;
        std::uint64_t position = 0;
        for (std::size_t level = widths.size(); level-- > 0;) {
            ASSERT_EQ(layout.width(static_cast<unsigned>(level)), widths[level]) << leaves;
            ASSERT_EQ(layout.first(static_cast<unsigned>(level)), position) << leaves;
            position += widths[level];
        }
        ASSERT_EQ(layout.nodes(), position) << leaves;
    }
}

TEST(TreeLayout, OfNothingIsNothing) {
    const TreeLayout layout{0};
    EXPECT_EQ(layout.levels(), 0U);
    EXPECT_EQ(layout.nodes(), 0U);
    EXPECT_EQ(layout.width(0), 0U);
}

TEST(TreeLayout, HoldsForSizesThatNoMemoryHas) {
    const TreeLayout layout{(1ULL << 46) + 1};  // 2^58 bytes in chunks of 4 KiB, and one more
    EXPECT_EQ(layout.levels(), 48U);
    EXPECT_EQ(layout.first(47), 0U);
    EXPECT_EQ(layout.width(46), 2U);
    EXPECT_EQ(layout.nodes(), layout.first(0) + layout.leaves);
}

}  // namespace
}  // namespace twinrun
