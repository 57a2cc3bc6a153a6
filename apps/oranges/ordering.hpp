// SPDX-License-Identifier: Apache-2.0
// New numbers for vertices, so that neighbours lie close together.
#pragma once

#include <span>
#include <vector>

#include "oranges/graph.hpp"

namespace oranges {

// All return the old number of each new vertex.

// Reverse Cuthill-McKee (Cuthill and McKee 1969, George 1971): breadth first, those of few
// neighbours first, from a vertex at the far end of each component; backwards.
std::vector<Vertex> reverse_cuthill_mckee(const Graph& graph);

// Gorder (Wei, Yu, Lu, Lin, SIGMOD 2016): next comes always the vertex that has most neighbours and
// common neighbours among the last 5 that were placed.
std::vector<Vertex> gorder(const Graph& graph);

// The same graph with vertex order[i] as vertex i. Throws std::runtime_error where order is no
// permutation.
Graph reordered(const Graph& graph, std::span<const Vertex> order);

}  // namespace oranges
