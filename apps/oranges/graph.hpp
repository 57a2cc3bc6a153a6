// SPDX-License-Identifier: Apache-2.0
// An undirected simple graph as sorted neighbour lists in one array.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oranges {

using Vertex = std::uint32_t;

struct Edge {
    Vertex a = 0;
    Vertex b = 0;
    friend bool operator==(const Edge&, const Edge&) = default;
};

class Graph {
   public:
    static constexpr std::uint64_t kMostVertices = 0x7FFF'FFFF;

    Graph() = default;
    // Loops are left out, and an edge that is named several times, in either direction, is there
    // once. Throws std::runtime_error where there are too many vertices, or an edge names one that
    // is not there.
    Graph(std::uint64_t vertices, std::span<const Edge> edges);

    Vertex vertices() const { return static_cast<Vertex>(begins_.size() - 1); }
    std::uint64_t edges() const { return neighbours_.size() / 2; }
    std::uint64_t degree(Vertex v) const { return begins_[v + 1] - begins_[v]; }
    // Ascending.
    std::span<const Vertex> neighbours(Vertex v) const {
        return {neighbours_.data() + begins_[v], neighbours_.data() + begins_[v + 1]};
    }
    bool adjacent(Vertex a, Vertex b) const;
    // Each edge once, with a < b, ascending.
    std::vector<Edge> edge_list() const;

    friend bool operator==(const Graph&, const Graph&) = default;

   private:
    std::vector<std::uint64_t> begins_{0};  // vertices + 1
    std::vector<Vertex> neighbours_;
};

}  // namespace oranges
