// SPDX-License-Identifier: Apache-2.0
// The same counts found in other ways: slow, for checks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "oranges/graph.hpp"
#include "oranges/orbits.hpp"

namespace oranges {

// Row of one vertex: grows all connected sets around it, and recognises each by trying all
// permutations of each graphlet.
std::array<std::uint64_t, kOrbits> reference_row(const Graph& graph, Vertex v);

// Checks complete counts: rows of some vertices against reference_row(), degrees, and that for each
// graphlet the sums over all vertices of its orbits show the same number of graphlets. Returns
// what is wrong, in one line; nothing where all is right.
std::string find_error(const Graph& graph, std::span<const std::uint32_t> counts, std::size_t rows,
                       std::uint64_t seed);

}  // namespace oranges
