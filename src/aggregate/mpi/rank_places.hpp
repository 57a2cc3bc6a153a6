// Where each rank of a team is in the topology.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aggregate/mpi/team.hpp"
#include "aggregate/topology/topology.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

struct RankPlaces {
    std::shared_ptr<const Topology> topology;
    std::vector<std::uint32_t> node_of;  // of each rank: the topology's node
};

// [collective] description: the setting `topology`. Errors: a description that is invalid or does
// not fit this machine.
Result<RankPlaces> place_ranks(Team& team, const std::string& description);

}  // namespace twinrun::aggregation
