// A machine's topology in a JSON file; docs/reference/aggregate.md defines it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aggregate/topology/topology.hpp"

namespace twinrun {

struct NamedTopology {
    std::shared_ptr<const Topology> topology;
    std::vector<std::string> names;  // of nodes, by number
};

// Errors: invalid_argument, with the key and what it should be.
Result<NamedTopology> parse_topology_file(std::string_view json);
// Errors: not_found and io too; all name the path.
Result<NamedTopology> read_topology_file(const std::string& path);

}  // namespace twinrun
