// SPDX-License-Identifier: Apache-2.0
#include "oranges/reference.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

#include "oranges/random.hpp"

namespace oranges {

namespace {

// Orbit of vertices[0] in the subgraph that they induce.
std::uint8_t orbit_of_first(const Graph& graph, std::span<const Vertex> vertices) {
    std::size_t edges = 0;
    for (std::size_t i = 0; i < vertices.size(); ++i)
        for (std::size_t j = i + 1; j < vertices.size(); ++j)
            edges += graph.adjacent(vertices[i], vertices[j]);
    for (const Graphlet& graphlet : kGraphlets) {
        if (graphlet.vertices != vertices.size() || graphlet.edges.size() + 1 != 3 * edges) continue;
        // The place of each vertex of the graphlet among these.
        std::array<std::size_t, 5> place{0, 1, 2, 3, 4};
        do {
            bool same = true;
            for (std::size_t at = 0; same && at < graphlet.edges.size(); at += 3)
                same =
                    graph.adjacent(vertices[place[static_cast<std::size_t>(graphlet.edges[at] - '0')]],
                                   vertices[place[static_cast<std::size_t>(graphlet.edges[at + 1] - '0')]]);
            if (same)
                return graphlet.orbits[static_cast<std::size_t>(std::find(place.begin(), place.end(), 0u) -
                                                                place.begin())];
        } while (std::next_permutation(place.begin(),
                                       place.begin() + static_cast<std::ptrdiff_t>(graphlet.vertices)));
    }
    throw std::runtime_error("a connected graph is no graphlet");
}

}  // namespace

std::array<std::uint64_t, kOrbits> reference_row(const Graph& graph, Vertex v) {
    std::array<std::uint64_t, kOrbits> row{};
    std::set<std::vector<Vertex>> sets{{v}};
    for (std::size_t size = 2; size <= 5; ++size) {
        std::set<std::vector<Vertex>> grown;
        for (const std::vector<Vertex>& set : sets)
            for (const Vertex member : set)
                for (const Vertex u : graph.neighbours(member)) {
                    if (std::find(set.begin(), set.end(), u) != set.end()) continue;
                    std::vector<Vertex> larger = set;
                    larger.push_back(u);
                    std::sort(larger.begin() + 1, larger.end());  // v stays first
                    grown.insert(std::move(larger));
                }
        for (const std::vector<Vertex>& set : grown)
            ++row[orbit_of_first(graph, set)];
        sets = std::move(grown);
    }
    return row;
}

std::string find_error(const Graph& graph, std::span<const std::uint32_t> counts, std::size_t rows,
                       std::uint64_t seed) {
    if (counts.size() != graph.vertices() * kOrbits) return "the counts are not [vertices][73]";
    std::array<std::uint64_t, kOrbits> sums{};
    for (Vertex v = 0; v < graph.vertices(); ++v) {
        const auto row = counts.subspan(v * kOrbits, kOrbits);
        if (row[0] != graph.degree(v))
            return "vertex " + std::to_string(v) + " has " + std::to_string(graph.degree(v)) +
                   " neighbours, counted were " + std::to_string(row[0]);
        for (std::size_t orbit = 0; orbit < kOrbits; ++orbit)
            sums[orbit] += row[orbit];
    }
    for (std::size_t g = 0; g < kGraphlets.size(); ++g) {
        const auto orbits = std::span(kGraphlets[g].orbits).first(kGraphlets[g].vertices);
        const auto number_of = [&](std::uint8_t orbit) {
            return static_cast<std::uint64_t>(std::count(orbits.begin(), orbits.end(), orbit));
        };
        for (const std::uint8_t orbit : orbits)
            if (sums[orbit] % number_of(orbit) != 0 ||
                sums[orbit] / number_of(orbit) != sums[orbits[0]] / number_of(orbits[0]))
                return "graphlet " + std::to_string(g) + " is counted " + std::to_string(sums[orbits[0]]) +
                       " / " + std::to_string(number_of(orbits[0])) + " times by orbit " +
                       std::to_string(orbits[0]) + ", " + std::to_string(sums[orbit]) + " / " +
                       std::to_string(number_of(orbit)) + " times by orbit " + std::to_string(orbit);
    }
    // Near hubs there are too many sets to look at one by one.
    constexpr std::uint64_t kMostSets = 200'000;
    Random random(seed);
    for (std::size_t i = 0; i < rows && graph.vertices() > 0; ++i) {
        const Vertex v = random.below(graph.vertices());
        const auto row = counts.subspan(v * kOrbits, kOrbits);
        if (std::accumulate(row.begin(), row.end(), std::uint64_t{0}) > kMostSets) continue;
        if (!std::ranges::equal(row, reference_row(graph, v)))
            return "the counts of vertex " + std::to_string(v) + " are not those of a slow count";
    }
    return {};
}

}  // namespace oranges
