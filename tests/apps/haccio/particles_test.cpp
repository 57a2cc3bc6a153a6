// SPDX-License-Identifier: Apache-2.0
#include "haccio/particles.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <string>

#include "haccio/layout.hpp"

namespace haccio {
namespace {

TEST(Particles, RecordsHave38BytesAndNoHoles) {
    std::uint32_t bytes = 0;
    for (const Variable& variable : kVariable) {
        EXPECT_EQ(variable.record_offset, bytes) << variable.name;
        bytes += variable.bytes;
    }
    EXPECT_EQ(bytes, kParticleBytes);
}

TEST(Particles, ValuesFitTheirTypes) {
    for (std::uint64_t rank : {0, 1, 2, 1'000'000}) {
        for (std::uint64_t index = 0; index < 2000; ++index) {
            for (std::size_t v = 0; v < kVariables; ++v) {
                const std::uint64_t bits = value_bits(rank, index, v);
                if (kVariable[v].bytes < 8) {
                    EXPECT_EQ(bits >> (8 * kVariable[v].bytes), 0u);
                }
                if (v < 7) {
                    EXPECT_TRUE(std::isfinite(std::bit_cast<float>(static_cast<std::uint32_t>(bits))));
                }
            }
        }
    }
}

TEST(Particles, ValuesTellRanksAndIndicesApart) {
    std::set<std::uint64_t> identifiers, places;
    for (std::uint64_t rank = 0; rank < 20; ++rank) {
        for (std::uint64_t index = 0; index < 100; ++index) {
            identifiers.insert(value_bits(rank, index, 7));
            places.insert(value_bits(rank, index, 0) << 32 | value_bits(rank, index, 1));
        }
    }
    EXPECT_EQ(identifiers.size(), 2000u);
    EXPECT_EQ(places.size(), 2000u);
}

TEST(Particles, EveryFlippedBitIsFoundWhereItIs) {
    Particles particles(3, 50);
    EXPECT_EQ(particles.check().wrong, 0u);
    for (std::size_t v = 0; v < kVariables; ++v) {
        for (std::uint64_t bit = 0; bit < 50 * 8 * kVariable[v].bytes; bit += 7) {
            std::byte& byte = particles.data(v)[bit / 8];
            byte ^= std::byte{1} << (bit % 8);
            const Check check = particles.check();
            ASSERT_EQ(check.wrong, 1u);
            EXPECT_EQ(check.first->variable, v);
            EXPECT_EQ(check.first->index, bit / 8 / kVariable[v].bytes);
            EXPECT_EQ(std::popcount(check.first->found ^ check.first->expected), 1);
            byte ^= std::byte{1} << (bit % 8);
        }
    }
    EXPECT_EQ(particles.check().wrong, 0u);
}

TEST(Particles, APoisonedArrayIsWrongThroughout) {
    Particles particles(1, 77);
    particles.poison();
    const Check check = particles.check();
    EXPECT_EQ(check.wrong, 77u * kVariables);
    EXPECT_EQ(check.first->index, 0u);
    EXPECT_EQ(check.first->variable, 0u);
    particles.fill();
    EXPECT_EQ(particles.check().wrong, 0u);
}

TEST(Particles, WrongValuesAreToldInTheWidthOfTheirType) {
    EXPECT_EQ(text({17, 3, 0x42f7, 0x42f60000}), "particle 17, vx: 0x000042f7 instead of 0x42f60000");
    EXPECT_EQ(text({0, 8, 1, 0xffff}), "particle 0, mask: 0x0001 instead of 0xffff");
}

TEST(Particles, SkewKeepsToItsBoundsAndChangesSomething) {
    std::set<std::uint64_t> counts;
    for (std::uint64_t rank = 0; rank < 500; ++rank) {
        const std::uint64_t count = particles_of({1000}, 0.5, 7, rank);
        EXPECT_GE(count, 500u);
        EXPECT_LT(count, 1500u);
        counts.insert(count);
        EXPECT_EQ(particles_of({1000}, 0, 7, rank), 1000u);
        EXPECT_EQ(particles_of({1, 2, 3}, 0, 7, rank), 1 + rank % 3);
    }
    EXPECT_GT(counts.size(), 200u);
    EXPECT_LT(*counts.begin(), 550u);
    EXPECT_GT(*counts.rbegin(), 1450u);
}

// By the definition of the three layouts, one value after the other.
std::vector<std::byte> file_of(Layout layout, const std::vector<std::uint64_t>& counts) {
    std::vector<std::byte> file;
    const auto put = [&](std::uint64_t rank, std::uint64_t index, std::size_t v) {
        const std::uint64_t bits = value_bits(rank, index, v);
        for (std::uint32_t i = 0; i < kVariable[v].bytes; ++i)
            file.push_back(static_cast<std::byte>(bits >> (8 * i)));
    };
    for (std::size_t outer = 0; outer < (layout == Layout::variables ? kVariables : 1); ++outer) {
        for (std::uint64_t rank = 0; rank < counts.size(); ++rank) {
            if (layout == Layout::records) {
                for (std::uint64_t i = 0; i < counts[rank]; ++i)
                    for (std::size_t v = 0; v < kVariables; ++v)
                        put(rank, i, v);
            } else if (layout == Layout::blocks) {
                for (std::size_t v = 0; v < kVariables; ++v)
                    for (std::uint64_t i = 0; i < counts[rank]; ++i)
                        put(rank, i, v);
            } else {
                for (std::uint64_t i = 0; i < counts[rank]; ++i)
                    put(rank, i, outer);
            }
        }
    }
    return file;
}

TEST(Layout, PlacesAreThoseOfTheDefinition) {
    const std::vector<std::uint64_t> counts = {3, 0, 5, 1};
    for (const Layout layout : {Layout::records, Layout::blocks, Layout::variables}) {
        const std::vector<std::byte> file = file_of(layout, counts);
        ASSERT_EQ(file.size(), 9 * kParticleBytes);
        std::uint64_t before = 0, found = 0;
        for (std::uint64_t rank = 0; rank < counts.size(); ++rank) {
            const auto at = places(layout, {before, counts[rank], 9});
            for (std::size_t v = 0; v < kVariables && counts[rank] > 0; ++v) {
                const Check check = check_values(std::span(file).subspan(at[v].offset), at[v].stride, rank, 0,
                                                 counts[rank], v);
                EXPECT_EQ(check.wrong, 0u) << kLayoutNames[static_cast<std::size_t>(layout)] << " " << rank;
                found += counts[rank] * kVariable[v].bytes;
            }
            before += counts[rank];
        }
        EXPECT_EQ(found, file.size());
    }
}

TEST(Layout, PackedPiecesAreTheFile) {
    const std::vector<std::uint64_t> counts = {3, 0, 5, 1};
    for (const Layout layout : {Layout::records, Layout::blocks}) {
        std::vector<std::byte> file(9 * kParticleBytes);
        std::uint64_t before = 0;
        for (std::uint64_t rank = 0; rank < counts.size(); ++rank) {
            const Particles particles(rank, counts[rank]);
            pack(particles, layout, file.data() + before * kParticleBytes);
            Particles back(rank, counts[rank]);
            back.poison();
            unpack(file.data() + before * kParticleBytes, layout, back);
            EXPECT_EQ(back.check().wrong, 0u);
            before += counts[rank];
        }
        EXPECT_EQ(file, file_of(layout, counts));
    }
}

}  // namespace
}  // namespace haccio
