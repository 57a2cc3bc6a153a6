// The election of a partition's aggregator among the ranks that have data in it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "aggregate/topology/topology.hpp"
#include "base/result.hpp"

namespace twinrun {
inline namespace aggregate_plan {

enum class Placement : std::uint8_t {
    cost,  // the smallest C1 + C2 (topology aware)
    rank,  // rank order: evenly spread over the communicator, or the next rank of the partition
    // For each gateway the first rank on a bridge node, then rank order (MPICH's on Blue Gene).
    bridge,
    random,  // by a seed
    worst,   // the largest C1 + C2: shows how much placement matters
};
[[nodiscard]] const char* placement_name(Placement placement);
Result<Placement> placement_of(const std::string& name);

// The bytes of one rank in a partition.
struct Contribution {
    std::uint32_t rank = 0;  // of the communicator that elects
    std::uint32_t node = 0;  // of the topology
    float bytes = 0;
};

// The cost in seconds if a candidate were the aggregator:
//   C1 = max over i != A of (l d(i, A) + w(i, A) / B(i, A))
//   C2 = l d(A, IO) + w(A, IO) / (|V_C| B(A, IO))
// V_C: the nodes that contribute; hosts, if nodes are places within hosts. Equations of section
// III-B of the paper, float arithmetic, volumes in bytes. hops = false: with l = 0.
struct PlacementCost {
    float gather = 0;  // C1
    float write = 0;   // C2
    [[nodiscard]] float total() const { return gather + write; }
};
[[nodiscard]] PlacementCost placement_cost(const Topology& topology,
                                           std::span<const Contribution> contributions, std::size_t candidate,
                                           std::uint32_t gateway, bool hops = true);

// The costs of all candidates of a partition. Works on nodes instead of ranks, so that the costs of
// all ranks are cheap. Equals placement_cost bit for bit.
class PartitionCosts {
   public:
    // contributions: ascending by rank, one for each rank, not empty. They and the topology must
    // outlive this object.
    PartitionCosts(const Topology& topology, std::span<const Contribution> contributions,
                   std::uint32_t gateway, bool hops = true);
    [[nodiscard]] PlacementCost of(std::size_t candidate) const;

    struct Found {
        std::size_t candidate = 0;
        PlacementCost cost;
    };
    // The candidate with the lowest or the highest cost among those with eligible[i]; ties go to
    // the first, counted from `start` on, and then from 0. At least one must be eligible.
    [[nodiscard]] Found cheapest(std::span<const bool> eligible, std::size_t start = 0) const;
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

// Where the data of a partition leave for storage (exits.hpp).
struct Exit {
    static constexpr std::uint32_t kAnyLink = std::numeric_limits<std::uint32_t>::max();
    std::uint32_t gateway = 0;      // IO of C2
    std::uint32_t link = kAnyLink;  // of the topology; its users are preferred as aggregators
    // The link gives each of its partitions no more than a node can send: the way to it is not what
    // takes time. Then costs leave out hops, and of equal ones the first in rank order is taken.
    bool limits = false;
    bool operator==(const Exit&) const = default;
};

// Spreads aggregators: which ranks of a partition may be elected. Of its ranks those that were
// elected least often so far; of these the ones on hosts elected least often; of these the ones
// that use the partition's link, if any does; of these the ones in places (nodes of the topology)
// elected least often. So no rank is elected twice while another rank of its partition was not
// elected. And no host gets two aggregators, which would share its links, while another host could
// take one.
class Turns {
   public:
    // The topology must outlive this object.
    explicit Turns(const Topology& topology) : topology_(&topology) {}
    // Sets eligible[i] for contribution i. At least one becomes true.
    void eligible(std::span<const Contribution> contributions, std::uint32_t link,
                  std::span<bool> eligible) const;
    void elected(const Contribution& aggregator);
    // Reserves memory for ranks below this number, so that elected() and eligible() allocate none.
    void reserve(std::uint32_t ranks);

   private:
    const Topology* topology_;
    std::vector<std::uint32_t> ranks_;  // elections so far, by number
    std::vector<std::uint32_t> hosts_;
    std::vector<std::uint32_t> nodes_;
};

// Aggregators evenly spread over the ranks that have data.
class RankOrder {
   public:
    void add(std::span<const Contribution> contributions);  // of each partition, in their order
    // The contribution that is the first in rank order, for partition p of those added.
    [[nodiscard]] std::size_t start(std::span<const Contribution> contributions, std::size_t p) const;

   private:
    std::uint32_t first_ = std::numeric_limits<std::uint32_t>::max();
    std::uint32_t last_ = 0;
    std::uint64_t partitions_ = 0;
};

struct Election {
    std::uint32_t rank = 0;
    PlacementCost cost;
    std::uint32_t gateway = 0;  // that the cost is to
};

// Elects the aggregators of consecutive partitions, in their order, among the ranks that Turns
// allows; ties go to the lowest rank, or where Exit::limits to the first in rank order. It is the
// serial form of the election by MPI_Allreduce with MPI_MINLOC in aggregate/mpi, whose tests
// compare both.
// partitions: contributions ascending by rank, none empty. exits: one for each partition.
std::vector<Election> elect(const Topology& topology, Placement placement,
                            std::span<const std::vector<Contribution>> partitions,
                            std::span<const Exit> exits, std::uint64_t seed);

}  // namespace aggregate_plan
}  // namespace twinrun
