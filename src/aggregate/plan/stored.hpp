// Bytes of a whole file that lie in several files: which bytes each of them has, and where a reader
// finds those that it wants, whoever wrote them. No MPI, no I/O.
//
// All sub-files one behind the other are the stored stream. A sub-file has one set of the whole
// file behind the other, without holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregate/plan/layout.hpp"
#include "aggregate/plan/stream.hpp"
#include "base/result.hpp"

namespace twinrun {
inline namespace aggregate_plan {

// A set of the whole file, and where its first byte lies in the stored stream.
struct StoredSet {
    StridedSet where;
    std::uint64_t at = 0;
};

// Items that two sets have in common.
struct Common {
    StridedSet where;
    bool across_a = false;  // one in each item of the first set; otherwise all in one item of it
    bool across_b = false;  // the same for the second
};
// Adds what both sets have in common. Errors: unsupported: `to` would have more than `most` pieces.
Result<> add_common(const StridedSet& a, const StridedSet& b, std::vector<Common>& to,
                    std::size_t most = kMostRuns);

// One rank's items, as they lie in the stored stream.
struct FoundSets {
    std::vector<RankSet> sets;  // ascending
    // Numbers of the given sets that have bytes which nobody stored: holes of the whole file.
    std::vector<std::size_t> with_holes;
};
// stored: ascending by place in the whole file, no byte twice.
// Errors: unsupported: more than 2^22 pieces.
Result<FoundSets> find_stored(std::span<const RankSet> sets, std::span<const StoredSet> stored);

// The sets of one rank without holes, one behind the other from `at` on: how they lie in a
// sub-file.
[[nodiscard]] std::vector<RankSet> packed_sets(std::span<const RankSet> sets, std::uint64_t at);

}  // namespace aggregate_plan
}  // namespace twinrun
