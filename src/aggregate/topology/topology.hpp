// Where processes and storage lie, and what it costs to get from one to another: what the election of aggregators asks.
//
// A topology knows nodes, by number, and gateways to storage (an I/O node, a router, the file server itself), by number. Ranks
// are put on nodes by whoever asks. Costs are those of Tessier and Vishwanath, "Reproducibility and Variability of I/O
// Performance on BG/Q", 2017, section III-B: hops d, latency l, bandwidth B.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

// Where in a host: a package, a NUMA node, a group of cores that shares an L3 cache, a core, by their numbers in the host; kAny where none
// of that level has it all, or none is known.
struct InnerPlace {
    static constexpr std::uint32_t kLevels = 4;
    static constexpr std::uint32_t kAny = std::numeric_limits<std::uint32_t>::max();
    std::array<std::uint32_t, kLevels> parts{kAny, kAny, kAny, kAny};
    // clang-tidy 14 sees a null pointer in a defaulted <=>.
    // NOLINTNEXTLINE(modernize-use-nullptr)
    auto operator<=>(const InnerPlace&) const = default;
};

// Thread-safe: nothing changes after it was made.
class Topology {
   public:
    virtual ~Topology() = default;
    [[nodiscard]] virtual std::string name() const = 0;  // "torus 4x4x4x4x2", as a picture's title has it
    [[nodiscard]] virtual std::uint32_t nodes() const = 0;
    [[nodiscard]] virtual std::uint32_t gateways() const = 0;  // at least one
    // Of one hop, in seconds.
    [[nodiscard]] virtual float latency() const = 0;
    // Hops between nodes: 0 within a node, symmetric.
    [[nodiscard]] virtual std::uint32_t distance(std::uint32_t from, std::uint32_t to) const = 0;
    // Bytes a second from node to node (within a node: of memory).
    [[nodiscard]] virtual float bandwidth(std::uint32_t from, std::uint32_t to) const = 0;
    // Hops from a node to a gateway to storage, and bytes a second on that way.
    [[nodiscard]] virtual std::uint32_t distance_to_gateway(std::uint32_t node,
                                                            std::uint32_t gateway) const = 0;
    [[nodiscard]] virtual float bandwidth_to_gateway(std::uint32_t node, std::uint32_t gateway) const = 0;
    // The gateway that a node uses when nothing else is said.
    [[nodiscard]] virtual std::uint32_t gateway_of(std::uint32_t node) const = 0;
    // Whether this node is linked to its gateway directly (a bridge node).
    [[nodiscard]] virtual bool bridge(std::uint32_t node) const = 0;
    // Bytes a second that a gateway takes from all nodes together.
    [[nodiscard]] virtual float gateway_capacity(std::uint32_t /*gateway*/) const {
        return std::numeric_limits<float>::infinity();
    }
    // Links that a node takes data from at the same time, each with the bandwidth above.
    [[nodiscard]] virtual std::uint32_t ports() const { return 1; }
    // No two nodes are farther apart, and none of their ways is slower. They let elections leave out most pairs.
    [[nodiscard]] virtual std::uint32_t diameter() const { return std::numeric_limits<std::uint32_t>::max(); }
    [[nodiscard]] virtual float least_bandwidth() const { return 0; }
    // Where nodes are places within hosts (places.hpp): whose links and memory it uses, and where it is. Else each is a host.
    [[nodiscard]] virtual std::uint32_t host_of(std::uint32_t node) const { return node; }
    [[nodiscard]] virtual InnerPlace inner_place(std::uint32_t /*node*/) const { return {}; }
};

// More nodes than this, in a description, a file or what Slurm says, are an error.
inline constexpr std::uint32_t kMostNodes = 1U << 20;

// A topology from its description:
//   "flat[:NODES]"                    every node one hop from every other, and from storage
//   "torus:AxBxCxDxE[,pset=128]"      torus of up to 8 dimensions, nodes numbered with the last dimension fastest; Psets of that
//                                     many consecutive nodes, two bridge nodes and an I/O node each (Blue Gene/Q)
//   "dragonfly:GROUPSxROUTERSxNODES[,gateways=N]"  fully connected groups, a link between every two groups
//   "fattree:RADIX,LEVELS[,gateways=N]"            switches of RADIX ports
//   "fattree:AxBxC[,gateways=N]"                   A nodes a leaf switch, B of those a switch above, ...
//   "file:PATH"                       what docs/aggregate.md defines
//   "hwloc[:synthetic:TEXT|:xml:PATH][,hosts=N]"   a host's cores, as hwloc.hpp says
// To all models: [,latency=S][,bandwidth=B][,memory=B][,gateway_bandwidth=B], seconds and bytes a second.
// nodes: of a description that leaves them open. Errors: invalid_argument, what the words should be; those of the file.
Result<std::shared_ptr<const Topology>> make_topology(const std::string& description, std::uint32_t nodes);

}  // namespace twinrun
