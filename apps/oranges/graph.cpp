// SPDX-License-Identifier: Apache-2.0
#include "oranges/graph.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace oranges {

Graph::Graph(std::uint64_t vertices, std::span<const Edge> edges) {
    if (vertices > kMostVertices)
        throw std::runtime_error("a graph of " + std::to_string(vertices) +
                                 " vertices is too large: at most " + std::to_string(kMostVertices));
    begins_.assign(static_cast<std::size_t>(vertices) + 1, 0);
    for (const Edge& edge : edges) {
        if (edge.a >= vertices || edge.b >= vertices)
            throw std::runtime_error("an edge names vertex " + std::to_string(std::max(edge.a, edge.b)) +
                                     " of a graph that has " + std::to_string(vertices));
        if (edge.a == edge.b) continue;
        ++begins_[edge.a];
        ++begins_[edge.b];
    }
    // Each entry first becomes the end of its list. Filling the lists from their ends moves it to
    // the begin.
    std::uint64_t sum = 0;
    for (std::uint64_t& entry : begins_)
        entry = sum += entry;
    neighbours_.resize(static_cast<std::size_t>(sum));
    for (const Edge& edge : edges) {
        if (edge.a == edge.b) continue;
        neighbours_[--begins_[edge.a]] = edge.b;
        neighbours_[--begins_[edge.b]] = edge.a;
    }
    std::uint64_t kept = 0;
    for (std::size_t v = 0; v < vertices; ++v) {
        const auto at = [&](std::uint64_t i) { return neighbours_.begin() + static_cast<std::ptrdiff_t>(i); };
        const auto first = at(begins_[v]), last = at(begins_[v + 1]);
        std::sort(first, last);
        begins_[v] = kept;
        kept += static_cast<std::uint64_t>(std::unique_copy(first, last, at(kept)) - at(kept));
    }
    begins_.back() = kept;
    neighbours_.resize(static_cast<std::size_t>(kept));
}

bool Graph::adjacent(Vertex a, Vertex b) const { return std::ranges::binary_search(neighbours(a), b); }

std::vector<Edge> Graph::edge_list() const {
    std::vector<Edge> list;
    list.reserve(static_cast<std::size_t>(edges()));
    for (Vertex a = 0; a < vertices(); ++a)
        for (const Vertex b : neighbours(a))
            if (a < b) list.push_back({a, b});
    return list;
}

}  // namespace oranges
