#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tree/layout.hpp"

namespace twinrun {

// The flattened array of the tree over these leaves (node_words(kind) words a node, leaves
// included).
std::vector<std::uint64_t> build_tree(DigestKind kind, std::size_t blocks_per_chunk,
                                      std::span<const std::uint64_t> leaves);

}  // namespace twinrun
