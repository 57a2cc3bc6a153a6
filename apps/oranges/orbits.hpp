// SPDX-License-Identifier: Apache-2.0
// The 30 connected graphs of 2 to 5 vertices and their 73 orbits, numbered as by Przulj
// (Bioinformatics 23, 2007) and by ORCA: vertices of a graphlet that an automorphism maps to each
// other share an orbit.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace oranges {

inline constexpr std::size_t kOrbits = 73;

struct Graphlet {
    std::size_t vertices;
    std::array<std::uint8_t, 5> orbits;  // of vertex 0, 1, ...
    std::string_view edges;              // "01 12": 0 - 1, 1 - 2
};

// G0 to G29.
inline constexpr std::array<Graphlet, 30> kGraphlets{{
    {2, {0, 0}, "01"},
    {3, {1, 1, 2}, "02 12"},
    {3, {3, 3, 3}, "01 02 12"},
    {4, {4, 4, 5, 5}, "02 13 23"},
    {4, {6, 6, 6, 7}, "03 13 23"},
    {4, {8, 8, 8, 8}, "01 02 13 23"},
    {4, {9, 10, 10, 11}, "03 12 13 23"},
    {4, {12, 12, 13, 13}, "02 03 12 13 23"},
    {4, {14, 14, 14, 14}, "01 02 03 12 13 23"},
    {5, {15, 15, 16, 16, 17}, "02 13 24 34"},
    {5, {18, 19, 19, 20, 21}, "03 14 24 34"},
    {5, {22, 22, 22, 22, 23}, "04 14 24 34"},
    {5, {24, 24, 25, 26, 26}, "03 14 23 24 34"},
    {5, {27, 28, 29, 29, 30}, "01 14 23 24 34"},
    {5, {31, 31, 32, 32, 33}, "04 14 23 24 34"},
    {5, {34, 34, 34, 34, 34}, "01 02 13 24 34"},
    {5, {35, 36, 37, 37, 38}, "04 12 13 24 34"},
    {5, {39, 40, 40, 41, 42}, "04 13 14 23 24 34"},
    {5, {43, 43, 43, 43, 44}, "01 04 14 23 24 34"},
    {5, {45, 46, 47, 48, 48}, "02 13 14 23 24 34"},
    {5, {49, 49, 49, 50, 50}, "03 04 13 14 23 24"},
    {5, {51, 51, 52, 53, 53}, "01 03 14 23 24 34"},
    {5, {54, 54, 54, 55, 55}, "03 04 13 14 23 24 34"},
    {5, {56, 57, 57, 57, 58}, "04 12 13 14 23 24 34"},
    {5, {59, 59, 60, 60, 61}, "02 04 13 14 23 24 34"},
    {5, {62, 63, 63, 64, 64}, "01 02 13 14 23 24 34"},
    {5, {65, 66, 66, 67, 67}, "03 04 12 13 14 23 24 34"},
    {5, {68, 68, 68, 68, 69}, "01 02 04 13 14 23 24 34"},
    {5, {70, 70, 71, 71, 71}, "02 03 04 12 13 14 23 24 34"},
    {5, {72, 72, 72, 72, 72}, "01 02 03 04 12 13 14 23 24 34"},
}};

// A graph of up to five vertices as bits: i - j, i < j, is bit j (j - 1) / 2 + i, so that the bits
// that a further vertex brings are the highest.
constexpr unsigned adjacency_bit(std::size_t i, std::size_t j) {
    const std::size_t low = std::min(i, j), high = std::max(i, j);
    return 1u << (high * (high - 1) / 2 + low);
}

inline constexpr std::uint8_t kNoOrbit = 255;  // of graphs that are not connected

// Orbits of the vertices of each graph of that many vertices, by its bits.
template <std::size_t kVertices>
using OrbitTable =
    std::array<std::array<std::uint8_t, kVertices>, std::size_t{1} << (kVertices * (kVertices - 1) / 2)>;

template <std::size_t kVertices>
constexpr OrbitTable<kVertices> make_orbit_table() {
    OrbitTable<kVertices> table{};
    for (auto& orbits : table)
        orbits.fill(kNoOrbit);
    for (const Graphlet& graphlet : kGraphlets) {
        if (graphlet.vertices != kVertices) continue;
        std::array<std::size_t, kVertices> name{};
        for (std::size_t i = 0; i < kVertices; ++i)
            name[i] = i;
        do {
            unsigned bits = 0;
            for (std::size_t at = 0; at < graphlet.edges.size(); at += 3)
                bits |= adjacency_bit(name[static_cast<std::size_t>(graphlet.edges[at] - '0')],
                                      name[static_cast<std::size_t>(graphlet.edges[at + 1] - '0')]);
            for (std::size_t i = 0; i < kVertices; ++i)
                table[bits][name[i]] = graphlet.orbits[i];
        } while (std::next_permutation(name.begin(), name.end()));
    }
    return table;
}

// Not constexpr: Clang limits the steps of that, GCC makes them constants anyway.
inline const OrbitTable<3> kOrbitsOf3 = make_orbit_table<3>();
inline const OrbitTable<4> kOrbitsOf4 = make_orbit_table<4>();
inline const OrbitTable<5> kOrbitsOf5 = make_orbit_table<5>();

}  // namespace oranges
