// SPDX-License-Identifier: Apache-2.0
// Graphs like those of "Scalable Incremental Checkpointing using GPU-Accelerated De-Duplication"
// (ICPP 2023), table 1. The same seed gives the same graph on any machine.
#pragma once

#include <cstdint>
#include <vector>

#include "oranges/delaunay.hpp"
#include "oranges/graph.hpp"

namespace oranges {

// Different random points of the unit square.
std::vector<Point> random_points(std::uint64_t count, std::uint64_t seed);

// Delaunay triangulation of random points, as delaunay_nXX of the SuiteSparse collection. At least
// 3 vertices.
Graph delaunay_graph(std::uint64_t vertices, std::uint64_t seed);

// The triangles of a mesh that is fine along the walls of bubbles, joined where they share a side,
// as hugebubbles-XXXXX: at most three neighbours. Has about that many vertices: the mesh has half
// as many corners.
Graph bubble_graph(std::uint64_t vertices, std::uint64_t seed);

// Roads between junctions, as asia_osm: short trees and few circuits, each road a chain of several
// vertices. At least 64.
Graph road_graph(std::uint64_t vertices, std::uint64_t seed);

// Events of the ranks of a message-passing program: those of a rank are a chain, and each send is
// joined to its receive. The defaults give the paper's numbers of vertices and edges.
struct EventOptions {
    std::uint64_t ranks = 32;
    std::uint64_t iterations = 16384;
    // Events of each rank beside sends and receives, half before and half after them.
    std::uint64_t other = 14;
};

// Every other rank sends messages to rank 0 at each iteration, which receives them in the order in
// which they happen to arrive; those of one rank do not overtake each other.
struct RaceOptions : EventOptions {
    std::uint64_t messages = 11;
};
std::uint64_t race_vertices(const RaceOptions& options);
Graph race_graph(const RaceOptions& options, std::uint64_t seed);

// Ranks own parts of an unstructured mesh. At each iteration a rank sends to each neighbour, then
// receives from them in the order of arrival. Neighbours are ranks whose parts are near, and all
// ranks are connected.
struct ExchangeOptions : EventOptions {
    std::uint64_t pairs = 220;  // of neighbours
};
std::uint64_t exchange_vertices(const ExchangeOptions& options);
Graph exchange_graph(const ExchangeOptions& options, std::uint64_t seed);

}  // namespace oranges
