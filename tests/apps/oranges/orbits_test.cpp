// SPDX-License-Identifier: Apache-2.0
#include "oranges/orbits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <set>
#include <vector>

namespace oranges {
namespace {

template <std::size_t kVertices>
unsigned renamed(unsigned bits, const std::array<std::size_t, kVertices>& name) {
    unsigned result = 0;
    for (std::size_t i = 0; i < kVertices; ++i)
        for (std::size_t j = i + 1; j < kVertices; ++j)
            if (bits & adjacency_bit(i, j)) result |= adjacency_bit(name[i], name[j]);
    return result;
}

template <std::size_t kVertices>
bool is_connected(unsigned bits) {
    unsigned reached = 1;
    for (std::size_t round = 0; round < kVertices; ++round)
        for (std::size_t i = 0; i < kVertices; ++i)
            for (std::size_t j = 0; j < kVertices; ++j)
                if (i != j && reached >> i & 1 && bits & adjacency_bit(i, j)) reached |= 1u << j;
    return reached == (1u << kVertices) - 1;
}

// Vertices of two graphs share an orbit exactly if an isomorphism takes one to the other.
template <std::size_t kVertices>
void check_table(const OrbitTable<kVertices>& table, std::size_t connected_graphs, std::uint8_t first,
                 std::uint8_t last) {
    std::set<std::uint8_t> orbits;
    std::map<std::pair<unsigned, std::size_t>, std::uint8_t> orbit_of;  // of the smallest renaming
    std::map<std::uint8_t, std::pair<unsigned, std::size_t>> graph_of;
    std::size_t connected = 0;
    for (unsigned bits = 0; bits < table.size(); ++bits) {
        if (!is_connected<kVertices>(bits)) {
            for (const std::uint8_t orbit : table[bits])
                EXPECT_EQ(orbit, kNoOrbit);
            continue;
        }
        ++connected;
        for (std::size_t v = 0; v < kVertices; ++v) {
            std::array<std::size_t, kVertices> name{};
            std::iota(name.begin(), name.end(), std::size_t{0});
            auto smallest = std::pair(~0u, kVertices);
            do
                smallest = std::min(smallest, std::pair(renamed<kVertices>(bits, name), name[v]));
            while (std::next_permutation(name.begin(), name.end()));
            const std::uint8_t orbit = table[bits][v];
            orbits.insert(orbit);
            EXPECT_EQ(orbit_of.emplace(smallest, orbit).first->second, orbit);
            EXPECT_EQ(graph_of.emplace(orbit, smallest).first->second, smallest);
        }
    }
    EXPECT_EQ(connected, connected_graphs);  // OEIS A001187
    EXPECT_EQ(orbits.size(), last - first + 1u);
    EXPECT_EQ(*orbits.begin(), first);
    EXPECT_EQ(*orbits.rbegin(), last);
}

TEST(Orbits, AreClassesOfIsomorphicPlaces) {
    check_table<3>(kOrbitsOf3, 4, 1, 3);
    check_table<4>(kOrbitsOf4, 38, 4, 14);
    check_table<5>(kOrbitsOf5, 728, 15, 72);
}

TEST(Orbits, AreNumberedByGraphletAndGraphletsBySize) {
    std::uint8_t next = 0;
    std::pair<std::size_t, std::size_t> before{0, 0};
    for (const Graphlet& graphlet : kGraphlets) {
        const std::pair size{graphlet.vertices, (graphlet.edges.size() + 1) / 3};
        EXPECT_LE(before, size);
        before = size;
        for (std::size_t i = 0; i < graphlet.vertices; ++i) {
            if (graphlet.orbits[i] == next) ++next;
            EXPECT_EQ(graphlet.orbits[i], next - 1);
        }
    }
    EXPECT_EQ(next, kOrbits);
}

// Neighbours, within the graphlet, of a vertex of each orbit, in the literature's figures. The last test of graphlets_test.cpp
// pins the numbers further, by counts that ORCA made.
TEST(Orbits, HaveTheLiteraturesNumbers) {
    constexpr std::array<std::size_t, kOrbits> kDegrees{
        1, 1, 2, 2, 1, 2, 1, 3, 2, 1, 2, 3, 2, 3, 3,                             // 2 to 4 vertices
        1, 2, 2, 1, 1, 2, 3, 1, 4, 1, 2, 3, 1, 2, 2, 3, 1, 2, 4, 2, 1, 2, 2, 3,  // G9 to G16
        1, 2, 3, 4, 2, 4, 1, 2, 3, 3, 2, 3, 2, 2, 3, 2, 4, 1, 3, 4, 2, 3, 4,     // G17 to G24
        2, 3, 3, 2, 3, 4, 3, 4, 3, 4, 4};                                        // G25 to G29
    for (const Graphlet& graphlet : kGraphlets)
        for (std::size_t i = 0; i < graphlet.vertices; ++i)
            EXPECT_EQ(static_cast<std::size_t>(std::count(graphlet.edges.begin(), graphlet.edges.end(),
                                                          static_cast<char>('0' + i))),
                      kDegrees[graphlet.orbits[i]])
                << int(graphlet.orbits[i]);
}

}  // namespace
}  // namespace oranges
