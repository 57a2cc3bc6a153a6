// SPDX-License-Identifier: Apache-2.0
// Partitions of consecutive ranks, and in how few rounds of disjoint ones they can be had. Knows
// nothing of MPI.
#pragma once

#include <cstdint>
#include <vector>

namespace haccio {

struct Partition {
    std::uint64_t begin = 0, end = 0;  // ranks
    [[nodiscard]] bool holds(std::uint64_t rank) const { return begin <= rank && rank < end; }
};

// `count` partitions of `size` ranks, evenly laid over all ranks: they overlap where count * size >
// ranks. size 0: a rank more than it takes to hold all ranks, so that neighbours share one (if
// there are ranks enough).
std::vector<Partition> overlapping(std::uint64_t ranks, std::uint64_t count, std::uint64_t size);
// Every rank in exactly one; some are empty where there are more partitions than ranks.
std::vector<Partition> disjoint(std::uint64_t ranks, std::uint64_t count);

// round[i] of partition i: partitions of a round do not overlap, and there are as many rounds as
// the most partitions that a rank is in. partitions: ascending by begin.
std::vector<std::uint64_t> rounds_of(const std::vector<Partition>& partitions);

}  // namespace haccio
