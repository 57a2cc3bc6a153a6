// Models of machines, for make_topology: their shapes are exact, their constants are of one machine each (models.cpp says which).
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

// What a description may set; each model has its own defaults.
struct ModelSettings {
    std::optional<float> latency;            // seconds a hop
    std::optional<float> bandwidth;          // of links, bytes a second
    std::optional<float> memory;             // within a node
    std::optional<float> gateway_bandwidth;  // of a link to a gateway
    std::optional<std::uint32_t> gateways;   // of those whose shape does not say
    std::optional<std::uint32_t> pset;       // torus: nodes an I/O node
};

// Sizes are at least 1, nodes at most kMostNodes: make_topology checks it.
std::shared_ptr<const Topology> make_flat(std::uint32_t nodes, const ModelSettings& settings);
std::shared_ptr<const Topology> make_torus(const std::vector<std::uint32_t>& shape,
                                           const ModelSettings& settings);
std::shared_ptr<const Topology> make_dragonfly(std::uint32_t groups, std::uint32_t routers,
                                               std::uint32_t nodes, const ModelSettings& settings);
// widths: children of a switch, leaf switches first.
Result<std::shared_ptr<const Topology>> make_fat_tree(const std::vector<std::uint32_t>& widths,
                                                      const std::string& name, const ModelSettings& settings);

}  // namespace twinrun
