// Which link to storage each partition's data leave by, so that equal links get equal shares.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aggregate/plan/placement.hpp"
#include "aggregate/topology/topology.hpp"

namespace twinrun {
inline namespace aggregate_plan {

// The gateway of a partition: the one whose nodes have the most of its bytes; ties go to the first.
[[nodiscard]] std::uint32_t gateway_of_partition(const Topology& topology,
                                                 std::span<const Contribution> contributions);

// The exits of all partitions of a file, in their order. Every rank finds the same.
//
// Placement::cost: each partition has one of the links that its nodes use. At first it is that of
// the rank that rank order takes. Then partitions move to other links until the largest load is the
// least possible, and no partition alone can go from a link to one that is less loaded afterwards.
// The load of a link: its partitions, divided by its capacity. A partition may have only links
// whose nodes have at least half as many of its bytes as those of the link with most: otherwise few
// of its nodes could aggregate.
//
// Other placements: the gateway of gateway_of_partition, and any link.
[[nodiscard]] std::vector<Exit> exits_of(const Topology& topology, Placement placement,
                                         std::span<const std::vector<Contribution>> partitions);

}  // namespace aggregate_plan
}  // namespace twinrun
