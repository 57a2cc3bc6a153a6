// Which of the ranks that hold a partition's data carries it: the election of its aggregator.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aggregate/topology/topology.hpp"
#include "base/result.hpp"

namespace twinrun {

enum class Placement : std::uint8_t {
    cost,    // the least C1 + C2 (topology aware)
    rank,    // rank order: evenly spread over the communicator, or the next rank of the partition
    bridge,  // of each gateway, the first on a bridge node, then rank order (MPICH's on Blue Gene)
    random,  // by a seed
    worst,   // the largest C1 + C2: how much there is to lose
};
[[nodiscard]] const char* placement_name(Placement placement);
Result<Placement> placement_of(const std::string& name);

// What one rank brings to a partition.
struct Contribution {
    std::uint32_t rank = 0;  // of the communicator that elects
    std::uint32_t node = 0;  // of the topology
    float bytes = 0;
};

// A candidate's cost, in seconds, were it the aggregator:
//   C1 = max over i != A of (l d(i, A) + w(i, A) / B(i, A))
//   C2 = l d(A, IO) + w(A, IO) / (|V_C| B(A, IO))
// V_C: the nodes (hosts, where these are divided) that contribute. Equations of section III-B of the paper, float arithmetic, volumes in bytes.
struct PlacementCost {
    float gather = 0;  // C1
    float write = 0;   // C2
    [[nodiscard]] float total() const { return gather + write; }
};
[[nodiscard]] PlacementCost placement_cost(const Topology& topology,
                                           std::span<const Contribution> contributions, std::size_t candidate,
                                           std::uint32_t gateway);

// The costs of a partition's ranks: nodes are looked at, not ranks, so that asking for all of them is cheap. Equal to
// placement_cost, bit for bit.
class PartitionCosts {
   public:
    // contributions: ascending by rank, one a rank, not empty; they and the topology outlive this.
    PartitionCosts(const Topology& topology, std::span<const Contribution> contributions,
                   std::uint32_t gateway);
    [[nodiscard]] PlacementCost of(std::size_t candidate) const;

    struct Found {
        std::size_t candidate = 0;
        PlacementCost cost;
    };
    // The cheapest of the candidates with eligible[i], or the dearest; ties go to the first. At least one is eligible.
    [[nodiscard]] Found cheapest(std::span<const bool> eligible) const;
    [[nodiscard]] Found dearest(std::span<const bool> eligible) const;

   private:
    struct Node {
        std::uint32_t node = 0;
        std::uint32_t first = 0;  // of its contributions, in members_
        std::uint32_t count = 0;
        std::uint32_t top = 0;  // the contribution with the most bytes, the first of equal ones
        float most = 0;         // its bytes
        float second = 0;       // the most of the others
    };
    [[nodiscard]] float write_cost(std::uint32_t node) const;
    [[nodiscard]] float own_term(const Node& node, std::size_t candidate) const;
    [[nodiscard]] float others_term(std::uint32_t place, float write, float limit) const;

    const Topology* topology_;
    std::span<const Contribution> contributions_;
    std::uint32_t gateway_;
    float latency_;
    float bytes_ = 0;                      // of the partition
    std::size_t hosts_ = 0;                // |V_C|
    std::vector<Node> nodes_;              // ascending
    std::vector<std::uint32_t> members_;   // contributions by node
    std::vector<std::uint32_t> heaviest_;  // places in nodes_, descending by bytes
    std::vector<float> bounds_;            // no term of heaviest_[k] exceeds bounds_[k]
};

// The gateway of a partition: that of the nodes with the most of its bytes; of equal ones the first.
[[nodiscard]] std::uint32_t gateway_of_partition(const Topology& topology,
                                                 std::span<const Contribution> contributions);

// Whose turn it is: of a partition's ranks those that were elected least often so far, of them those on the hosts that were elected
// least often, and of them those in the places (nodes of the topology) that were. So no rank is elected twice while another one of
// its partition was not, and no host has two aggregators, which would share its links, while another one could have one.
class Turns {
   public:
    // Keeps the topology.
    explicit Turns(const Topology& topology) : topology_(&topology) {}
    // eligible[i]: of contribution i; at least one is.
    void eligible(std::span<const Contribution> contributions, std::span<bool> eligible) const;
    void elected(const Contribution& aggregator);
    // Room for ranks below this number: elected() and eligible() need no memory then.
    void reserve(std::uint32_t ranks);

   private:
    const Topology* topology_;
    std::vector<std::uint32_t> ranks_;  // elections so far, by number
    std::vector<std::uint32_t> hosts_;
    std::vector<std::uint32_t> nodes_;
};

struct Election {
    std::uint32_t rank = 0;
    PlacementCost cost;
};

// The aggregators of consecutive partitions, in their order, of those whose turn it is; ties go to the lowest rank. Serial form of what
// MPI_Allreduce with MPI_MINLOC decides (the MPI library elects by that, and its tests compare).
// partitions: contributions ascending by rank, none empty. gateways: of each partition.
std::vector<Election> elect(const Topology& topology, Placement placement,
                            std::span<const std::vector<Contribution>> partitions,
                            std::span<const std::uint32_t> gateways, std::uint64_t seed);

}  // namespace twinrun
