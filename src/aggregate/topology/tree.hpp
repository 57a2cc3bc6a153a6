// Switches in a tree, with nodes and gateways below them: fat trees, and the trees that Slurm and
// files describe.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "aggregate/topology/topology.hpp"

namespace twinrun {

struct TreePlan {
    static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
    struct Switch {
        // kNone: at the top; if several are, one more switch joins them
        std::uint32_t parent = kNone;
        float bandwidth = 0;  // of its links up
    };
    struct Node {
        std::uint32_t leaf = 0;  // the switch
        float bandwidth = 0;
    };
    struct Gateway {
        std::uint32_t at = kNone;  // the switch; kNone: the top switch
        float bandwidth = 0;       // of the path from one node
        float capacity = 0;        // from all
    };
    std::string name;
    float latency = 0;  // of a hop; every link is one hop
    float memory = 0;   // bytes a second within a node
    std::vector<Switch> switches;
    std::vector<Node> nodes;
    std::vector<Gateway> gateways;
    // By node; empty: the nearest, equally near ones in equal shares.
    std::vector<std::uint32_t> gateway_of;
};

// Errors: invalid_argument: no node, a circle, more than kMostNodes nodes or switches, more than 64
// levels, numbers out of range.
Result<std::shared_ptr<const Topology>> make_tree(TreePlan plan);

}  // namespace twinrun
