// The links of a modelled machine, one by one, and the routes over them. The topologies of the
// library know distances and bandwidths of pairs; a simulation needs what several pairs share.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "aggregate/topology/topology.hpp"
#include "base/result.hpp"

namespace twinrun::simulation {

// Links in one direction, numbered in the order of their first use.
class Links {
   public:
    struct Link {
        std::string name;
        double capacity = 0;  // bytes a second
    };
    // The number of this link, which is made if it is new.
    std::uint32_t of(const std::string& name, double capacity);
    [[nodiscard]] const std::vector<Link>& all() const { return links_; }

   private:
    std::vector<Link> links_;
    std::unordered_map<std::string, std::uint32_t> numbers_;
};

struct NetworkSettings {
    double taper = 1;  // fat tree: what nodes below a switch can send, over what the switch can
    // Bytes a second that the links and the I/O nodes to storage carry, over what the model says.
    double gateway_factor = 1;
    // Torus: the nodes of a Pset's halves use one bridge node each, as Blue Gene/Q assigns them; or
    // each uses the nearest.
    bool halves = true;
};

using Route = std::vector<std::uint32_t>;  // numbers of links

// Every route has as many links as the topology counts hops, but for those to the bridge node of a
// half, which is not always the nearest. Routes are minimal and fixed: tori cross dimensions in
// order, and of two ways around a ring that are equally long a pair of nodes takes one by its
// numbers.
class Network {
   public:
    virtual ~Network() = default;
    // From a node to itself: its memory.
    [[nodiscard]] virtual Route between(std::uint32_t from, std::uint32_t to) = 0;
    [[nodiscard]] virtual Route to_gateway(std::uint32_t node, std::uint32_t gateway) = 0;
    [[nodiscard]] virtual Route from_gateway(std::uint32_t gateway, std::uint32_t node) = 0;
};

// description: that of `topology`: flat, torus, dragonfly or fattree. links and topology must
// outlive the network. Errors: invalid_argument: another kind, a shape that does not fit.
Result<std::unique_ptr<Network>> make_network(const std::string& description, const Topology& topology,
                                              const NetworkSettings& settings, Links& links);

}  // namespace twinrun::simulation
