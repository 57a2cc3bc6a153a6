// SPDX-License-Identifier: Apache-2.0
// What the tests of oranges share.
#pragma once

#include <string_view>
#include <vector>

#include "oranges/graph.hpp"
#include "oranges/random.hpp"

namespace oranges {

// Each pair is joined with that probability.
inline Graph random_graph(Vertex vertices, double density, std::uint64_t seed) {
    Random random(seed);
    std::vector<Edge> edges;
    for (Vertex a = 0; a < vertices; ++a)
        for (Vertex b = a + 1; b < vertices; ++b)
            if (random.unit() < density) edges.push_back({a, b});
    return Graph(vertices, edges);
}

// "01 12 2a": vertices as hexadecimal digits.
inline Graph graph_of(Vertex vertices, std::string_view text) {
    const auto digit = [](char c) { return static_cast<Vertex>(c <= '9' ? c - '0' : c - 'a' + 10); };
    std::vector<Edge> edges;
    for (std::size_t at = 0; at + 1 < text.size(); at += 3)
        edges.push_back({digit(text[at]), digit(text[at + 1])});
    return Graph(vertices, edges);
}

inline bool connected(const Graph& graph) {
    std::vector<bool> seen(graph.vertices(), false);
    std::vector<Vertex> found{0};
    seen[0] = true;
    for (std::size_t i = 0; i < found.size(); ++i)
        for (const Vertex u : graph.neighbours(found[i]))
            if (!seen[u]) {
                seen[u] = true;
                found.push_back(u);
            }
    return found.size() == graph.vertices();
}

}  // namespace oranges
