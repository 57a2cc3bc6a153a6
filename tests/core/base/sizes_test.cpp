#include "base/sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace twinrun {
namespace {

using Plain = std::vector<std::uint64_t>;

TEST(Sizes, AreThoseOfAVector) {
    std::mt19937 random(7);
    Sizes sizes;
    Plain plain;
    for (int round = 0; round < 2000; ++round) {
        const std::size_t count = random() % 9;  // some in the object itself, some not
        switch (random() % 4) {
            case 0:
                plain.resize(count);
                std::generate(plain.begin(), plain.end(), [&] { return random() % 3; });
                sizes.assign(plain.begin(), plain.end());
                break;
            case 1:
                plain.assign(count, 0);
                sizes.resize(count);
                break;
            case 2:
                if (plain.empty()) break;
                plain[count % plain.size()] = sizes[count % plain.size()] = round;
                break;
            default: std::reverse(plain.begin(), plain.end()); std::reverse(sizes.begin(), sizes.end());
        }
        ASSERT_EQ(Plain(sizes), plain);
        ASSERT_EQ(sizes.size(), plain.size());
        ASSERT_EQ(sizes.empty(), plain.empty());
        const Sizes copy = sizes;
        ASSERT_TRUE(copy == sizes && copy == Sizes(plain));
        Plain other = plain;
        other.push_back(1);
        ASSERT_FALSE(copy == Sizes(other));
        if (plain.empty()) continue;
        other.pop_back();
        other.back() += 1;
        ASSERT_FALSE(copy == Sizes(other));
    }
    EXPECT_EQ(Plain(Sizes{5, 4}), (Plain{5, 4}));
}

}  // namespace
}  // namespace twinrun
