#include "aggregate/plan/stripes.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

TEST(Stripes, ExampleOfTheHeader) {
    const StripeCut cut{2, 4};
    const StripePart part = stripe_at(cut, 9, 100);
    EXPECT_EQ(part.file, 0U);
    EXPECT_EQ(part.offset, 5U);
    EXPECT_EQ(part.bytes, 3U);
    EXPECT_EQ(length_in_file(cut, 0, 9), 5U);
    EXPECT_EQ(length_in_file(cut, 1, 9), 4U);
    const std::vector<std::vector<StridedSet>> places{{{0, 4, 1, 8}, {8, 1, 1, 1}}, {{4, 4, 1, 8}}};
    EXPECT_EQ(stripe_places(cut, 9), places);
}

// Each byte is in one file, where the index says, and each file is as long as its bytes.
TEST(Stripes, PlacesAreWhereBytesAreWritten) {
    std::mt19937_64 random(test_seed(1));
    for (int round = 0; round < 300; ++round) {
        const StripeCut cut{2 + random() % 4, 1 + random() % 9};
        const std::uint64_t whole = random() % 120;
        std::vector<std::vector<std::uint64_t>> files(cut.files);  // which byte of the whole is where
        for (std::uint64_t at = 0; at < whole;) {
            const StripePart part = stripe_at(cut, at, whole - at);
            ASSERT_GT(part.bytes, 0U);
            ASSERT_EQ(part.offset, files[part.file].size());
            for (std::uint64_t i = 0; i < part.bytes; ++i)
                files[part.file].push_back(at++);
        }
        const auto places = stripe_places(cut, whole);
        ASSERT_EQ(places.size(), cut.files);
        for (std::size_t file = 0; file < cut.files; ++file) {
            EXPECT_EQ(length_in_file(cut, file, whole), files[file].size());
            std::vector<std::uint64_t> named;
            for (const StridedSet& set : places[file]) {
                EXPECT_GE(set.stride, set.width);
                for (std::uint64_t i = 0; i < set.count; ++i) {
                    for (std::uint64_t b = 0; b < set.width; ++b)
                        named.push_back(set.offset + i * set.stride + b);
                }
            }
            EXPECT_EQ(named, files[file]);
        }
        const auto found = stripes_of(places, whole, 1 + random() % 20);
        ASSERT_TRUE(found);
        EXPECT_EQ(stripe_places(*found, whole), places);
        if (whole > cut.bytes) {
            EXPECT_EQ(*found, cut);
        }
    }
}

TEST(Stripes, OtherPlacesAreNone) {
    const StripeCut cut{3, 8};
    auto places = stripe_places(cut, 50);
    EXPECT_TRUE(stripes_of(places, 50, 8));
    EXPECT_FALSE(stripes_of(places, 49, 8));
    std::swap(places[1], places[2]);
    EXPECT_FALSE(stripes_of(places, 50, 8));
    EXPECT_FALSE(stripes_of({}, 0, 8));
    EXPECT_FALSE(stripes_of(stripe_places({1, 8}, 50), 50, 8));
    // A stripe whose length no file can have.
    const std::vector<std::vector<StridedSet>> far{{}, {{std::uint64_t{1} << 60, 1, 1, 1}}};
    EXPECT_FALSE(stripes_of(far, (std::uint64_t{1} << 60) + 1, 8));
}

}  // namespace
}  // namespace twinrun
