// Which bytes to read for a set of chunks: neighbours become one read, and a gap that is cheaper to
// read through than to seek over is read through. So the chunk size decides how finely differences
// are found, not how they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tree/walk.hpp"

namespace twinrun {

// Chunks read as one: [begin, end). Only those in `parts` are used.
struct Window {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::size_t first_part = 0;  // in ReadPlan::parts
    std::size_t last_part = 0;   // exclusive
};

struct ReadPlan {
    std::vector<Range> parts;         // chunks to read, cut to windows
    std::vector<Window> windows;      // ascending
    std::vector<Range> slices;        // windows of each slice
    std::uint64_t largest_slice = 0;  // chunks in the windows of the largest slice
    std::uint64_t most_windows = 0;   // of any slice
    std::uint64_t chunks_read = 0;
};

// chunks: sorted, disjoint. gap: in bytes. A slice has windows of at most `slice_bytes` in all (but
// at least one chunk) and at most `most_windows` of them. grain: no window holds chunks of both
// sides of a multiple of it; 0: any may.
ReadPlan plan_reads(std::span<const Range> chunks, std::uint64_t bytes_per_chunk, std::uint64_t slice_bytes,
                    std::uint64_t gap, std::uint64_t most_windows, std::uint64_t grain = 0);

}  // namespace twinrun
