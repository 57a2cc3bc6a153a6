// The elections of aggregators that the report tells, against those of the serial functions.
#pragma once

#include <twinrun/aggregate.h>

#include <cstdint>
#include <vector>

#include "aggregate/topology/topology.hpp"
#include "declarations.hpp"

namespace aggregate_ranks {

// The report's partitions are the serial functions' own, and so are their aggregators.
void same_election_on(const twinrun::Topology& topology, twr_aggregate* aggregate, const Declarations& all,
                      const twr_aggregate_options& options, const std::vector<std::uint32_t>& node_of,
                      std::uint64_t nodes);
void same_election(twr_aggregate* aggregate, const Declarations& all, const twr_aggregate_options& options,
                   const std::vector<std::uint32_t>& node_of);

}  // namespace aggregate_ranks
