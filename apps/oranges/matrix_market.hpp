// SPDX-License-Identifier: Apache-2.0
// Graphs from Matrix Market files (https://math.nist.gov/MatrixMarket/formats.html), as the
// SuiteSparse collection has them.
#pragma once

#include <filesystem>
#include <string_view>

#include "oranges/graph.hpp"

namespace oranges {

// The graph of a square matrix in coordinate format, of any kind of number and any symmetry:
// vertices i and j are joined where there is an entry (i, j) or (j, i), whatever its value. Throws
// std::runtime_error with the line's number where the text is anything else.
Graph parse_matrix_market(std::string_view text);

// The same of a file; messages begin with its name.
Graph read_matrix_market(const std::filesystem::path& path);

}  // namespace oranges
