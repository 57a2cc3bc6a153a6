// Places within hosts: packages, NUMA nodes, groups of cores with a cache of their own, cores. A topology whose nodes are places, on top
// of one whose nodes are hosts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregate/topology/topology.hpp"

namespace twinrun {

// Bytes a second that a copy gets from place to place of a host. Which of them counts, the smallest part that has both says.
struct PlaceBandwidths {
    std::optional<float> memory;  // within a NUMA node; not set: what the hosts' topology says of memory
    std::optional<float> cache;   // within a group that shares a cache; not set: as memory
    float numa = 20e9F;           // between NUMA nodes of a package
    float package = 15e9F;        // between packages
};

// A part of a host, and which.
struct HostPlace {
    std::uint32_t host = 0;
    InnerPlace inner;
    // clang-tidy 14 sees a null pointer in a defaulted <=>.
    // NOLINTNEXTLINE(modernize-use-nullptr)
    auto operator<=>(const HostPlace&) const = default;
};

// Every level up to the smallest part that has both places is a hop; another host is one level farther than all of its own. Places
// have their host's ways to storage. hosts: outlives nothing, it is kept. Errors: invalid_argument: no places, too many, a host that is
// not there, a bandwidth that is not positive.
Result<std::shared_ptr<const Topology>> make_places(std::shared_ptr<const Topology> hosts,
                                                    std::vector<HostPlace> places,
                                                    const PlaceBandwidths& bandwidths, std::string name);

}  // namespace twinrun
