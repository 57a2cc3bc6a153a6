// The published compaction, on the host: from a slice's changed chunks to regions. Source: Tan et
// al., ICPP'23, algorithm 1. Where all chunks of a slice are new, as in the first step, all its
// nodes are entered.
#pragma once

#include <cstdint>
#include <span>

#include "dedup/hash_table.hpp"
#include "dedup/host_image.hpp"
#include "dedup/join.hpp"
#include "platform/team.hpp"

namespace twinrun {

// A slice whose chunks are the leaves of a tree.
struct TreeSlice {
    std::uint32_t ordinal = 0;  // of the step
    std::uint64_t first = 0;    // chunks [first, last) of the image
    std::uint64_t last = 0;
    std::span<const std::uint64_t> changed;  // chunks, ascending
    std::span<const Location> sources;       // of each changed chunk
    std::uint64_t placed = 0;                // new chunks of the step before this slice
    bool verify = false;                     // as DedupOptions::verify
};

// Adds the regions of the slice to `joiner`, and enters the hashes of nodes in the table, which has
// room for as many as there are changed chunks. Throws std::bad_alloc.
void join_tree(const TreeSlice& slice, const HostImage& image, HashTable& table, Team& team,
               RunJoiner& joiner);

}  // namespace twinrun
