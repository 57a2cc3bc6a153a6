// SPDX-License-Identifier: Apache-2.0
#include "haccio/partitions.hpp"

#include <algorithm>
#include <cstddef>

namespace haccio {

std::vector<Partition> overlapping(std::uint64_t ranks, std::uint64_t count, std::uint64_t size) {
    if (size == 0) size = (ranks + count - 1) / count + (count > 1 ? 1 : 0);
    size = std::min(size, ranks);
    std::vector<Partition> result;
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t begin = count > 1 ? i * (ranks - size) / (count - 1) : 0;
        result.push_back({begin, begin + size});
    }
    return result;
}

std::vector<Partition> disjoint(std::uint64_t ranks, std::uint64_t count) {
    std::vector<Partition> result;
    for (std::uint64_t i = 0; i < count; ++i)
        result.push_back({i * ranks / count, (i + 1) * ranks / count});
    return result;
}

std::vector<std::uint64_t> rounds_of(const std::vector<Partition>& partitions) {
    std::vector<std::uint64_t> rounds, ends;  // ends: of the last partition in each round
    for (const Partition& partition : partitions) {
        const auto free =
            std::find_if(ends.begin(), ends.end(), [&](std::uint64_t end) { return end <= partition.begin; });
        rounds.push_back(static_cast<std::uint64_t>(free - ends.begin()));
        if (free == ends.end()) {
            ends.push_back(partition.end);
        } else {
            *free = partition.end;
        }
    }
    return rounds;
}

}  // namespace haccio
