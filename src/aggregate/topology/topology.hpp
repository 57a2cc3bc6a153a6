// The distances and bandwidths between processes and storage, for the election of aggregators.
//
// A topology has numbered nodes and numbered gateways to storage (an I/O node, a router, the file
// server itself). It knows no ranks: callers map them to nodes. Costs are those of Tessier and
// Vishwanath, "Reproducibility and Variability of I/O Performance on BG/Q", 2017, section III-B:
// hops d, latency l, bandwidth B.
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

// A place in a host: the numbers of its package, NUMA node, group of cores that share an L3 cache,
// and core. kAny: no part of this level contains the whole place, or the part is unknown.
struct InnerPlace {
    static constexpr std::uint32_t kLevels = 4;
    static constexpr std::uint32_t kAny = std::numeric_limits<std::uint32_t>::max();
    std::array<std::uint32_t, kLevels> parts{kAny, kAny, kAny, kAny};
    // clang-tidy 14 sees a null pointer in a defaulted <=>.
    // NOLINTNEXTLINE(modernize-use-nullptr)
    auto operator<=>(const InnerPlace&) const = default;
};

// Thread-safe, because it never changes.
class Topology {
   public:
    virtual ~Topology() = default;
    [[nodiscard]] virtual std::string name() const = 0;  // for people: "torus 4x4x4x4x2"
    [[nodiscard]] virtual std::uint32_t nodes() const = 0;
    [[nodiscard]] virtual std::uint32_t gateways() const = 0;  // at least one
    // The latency of one hop, in seconds.
    [[nodiscard]] virtual float latency() const = 0;
    // Hops between two nodes: 0 from a node to itself; symmetric.
    [[nodiscard]] virtual std::uint32_t distance(std::uint32_t from, std::uint32_t to) const = 0;
    // Bytes a second between two nodes; from a node to itself the memory's.
    [[nodiscard]] virtual float bandwidth(std::uint32_t from, std::uint32_t to) const = 0;
    // Hops from a node to a gateway, and bytes a second on that path.
    [[nodiscard]] virtual std::uint32_t distance_to_gateway(std::uint32_t node,
                                                            std::uint32_t gateway) const = 0;
    [[nodiscard]] virtual float bandwidth_to_gateway(std::uint32_t node, std::uint32_t gateway) const = 0;
    // The gateway that a node uses by default.
    [[nodiscard]] virtual std::uint32_t gateway_of(std::uint32_t node) const = 0;
    // Links into gateways, numbered: one for each gateway, unless a model knows of several (those
    // of a Pset's two bridge nodes). What nodes send to storage shares them.
    [[nodiscard]] virtual std::uint32_t links() const { return gateways(); }
    // The link that a node uses by default; it leads to gateway_of(node).
    [[nodiscard]] virtual std::uint32_t link_of(std::uint32_t node) const { return gateway_of(node); }
    [[nodiscard]] virtual std::uint32_t gateway_of_link(std::uint32_t link) const { return link; }
    // Bytes a second over it.
    [[nodiscard]] virtual float link_capacity(std::uint32_t link) const { return gateway_capacity(link); }
    // Whether this node has a direct link to its gateway (a bridge node).
    [[nodiscard]] virtual bool bridge(std::uint32_t node) const = 0;
    // Bytes a second that a gateway accepts from all nodes together.
    [[nodiscard]] virtual float gateway_capacity(std::uint32_t /*gateway*/) const {
        return std::numeric_limits<float>::infinity();
    }
    // Links over which a node receives at the same time, each with the bandwidth above.
    [[nodiscard]] virtual std::uint32_t ports() const { return 1; }
    // Bounds: no two nodes are farther apart, and no path between two is slower. With them
    // elections skip most pairs.
    [[nodiscard]] virtual std::uint32_t diameter() const { return std::numeric_limits<std::uint32_t>::max(); }
    [[nodiscard]] virtual float least_bandwidth() const { return 0; }
    // If nodes are places within hosts (places.hpp): the host whose links and memory a node uses,
    // and the place. Otherwise each node is a host.
    [[nodiscard]] virtual std::uint32_t host_of(std::uint32_t node) const { return node; }
    [[nodiscard]] virtual InnerPlace inner_place(std::uint32_t /*node*/) const { return {}; }
};

// More nodes than this are an error, in descriptions, files and Slurm's output.
inline constexpr std::uint32_t kMostNodes = 1U << 20;

// Makes a topology from its description:
//   "flat[:NODES]"                    every node is one hop from every other and from storage
//   "torus:AxBxCxDxE[,pset=128]"      torus of up to 8 dimensions, nodes numbered with the last
//                                     dimension fastest; Psets of that many consecutive nodes, two
//                                     bridge nodes and an I/O node each (Blue Gene/Q)
//   "dragonfly:GROUPSxROUTERSxNODES[,gateways=N]"
//                                     fully connected groups, a link between every two groups
//   "fattree:RADIX,LEVELS[,gateways=N]"
//                                     switches of RADIX ports
//   "fattree:AxBxC[,gateways=N]"      A nodes a leaf switch, B of those a switch above, ...
//   "file:PATH"                       a JSON file (docs/reference/aggregate.md)
//   "hwloc[:synthetic:TEXT|:xml:PATH][,hosts=N]"   the cores of a host (hwloc.hpp)
// All models take [,latency=S][,bandwidth=B][,memory=B][,gateway_bandwidth=B], in seconds and bytes
// a second.
// nodes: their number, for a description without one. Errors: invalid_argument, with the form that
// is expected; those of read_topology_file.
Result<std::shared_ptr<const Topology>> make_topology(const std::string& description, std::uint32_t nodes);

}  // namespace twinrun
