// Places within hosts: packages, NUMA nodes, groups of cores with a cache of their own, cores. A
// topology whose nodes are places, on top of one whose nodes are hosts.
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

// Bandwidths of copies between places of one host, in bytes a second. The smallest part that
// contains both places decides which one counts.
struct PlaceBandwidths {
    // Within a NUMA node; not set: the memory bandwidth of the hosts' topology.
    std::optional<float> memory;
    std::optional<float> cache;  // within a group that shares a cache; not set: as memory
    float numa = 20e9F;          // between NUMA nodes of a package
    float package = 15e9F;       // between packages
};

// A host and a part of it.
struct HostPlace {
    std::uint32_t host = 0;
    InnerPlace inner;
    // clang-tidy 14 sees a null pointer in a defaulted <=>.
    // NOLINTNEXTLINE(modernize-use-nullptr)
    auto operator<=>(const HostPlace&) const = default;
};

// Distances: a hop for each level up to the smallest part that contains both places. A place on
// another host is one level farther than any on the same host. Places have the distances and
// bandwidths to storage of their host. hosts: the topology keeps it alive. Errors:
// invalid_argument: no places, more than kMostNodes, a host that `hosts` lacks, a bandwidth that is
// not positive.
Result<std::shared_ptr<const Topology>> make_places(std::shared_ptr<const Topology> hosts,
                                                    std::vector<HostPlace> places,
                                                    const PlaceBandwidths& bandwidths, std::string name);

}  // namespace twinrun
