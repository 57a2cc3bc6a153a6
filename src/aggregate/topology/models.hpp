// Models of machines, for make_topology. Their shapes are exact. Their constants are those of one
// machine each, named in models.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregate/topology/topology.hpp"
#include "aggregate/topology/tree.hpp"

namespace twinrun {

// Settings of a description. Each model has its own defaults.
struct ModelSettings {
    std::optional<float> latency;            // of a hop, in seconds
    std::optional<float> bandwidth;          // of links, bytes a second
    std::optional<float> memory;             // within a node
    std::optional<float> gateway_bandwidth;  // of a link to a gateway
    std::optional<std::uint32_t> gateways;   // for shapes that do not determine it
    std::optional<std::uint32_t> pset;       // torus: nodes an I/O node
};

// make_topology has checked that sizes are at least 1, and nodes at most kMostNodes.
std::shared_ptr<const Topology> make_flat(std::uint32_t nodes, const ModelSettings& settings);
std::shared_ptr<const Topology> make_torus(const std::vector<std::uint32_t>& shape,
                                           const ModelSettings& settings);
std::shared_ptr<const Topology> make_dragonfly(std::uint32_t groups, std::uint32_t routers,
                                               std::uint32_t nodes, const ModelSettings& settings);
// widths: children of a switch, leaf switches first.
Result<std::shared_ptr<const Topology>> make_fat_tree(const std::vector<std::uint32_t>& widths,
                                                      const std::string& name, const ModelSettings& settings);

}  // namespace twinrun
