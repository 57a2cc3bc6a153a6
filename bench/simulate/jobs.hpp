// What jobs move: the plans of the library, window by window, and what other methods do with the
// same data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aggregate/plan/partition.hpp"
#include "aggregate/plan/planner.hpp"
#include "aggregate/topology/topology.hpp"
#include "base/result.hpp"

namespace twinrun::simulation {

enum class Method : std::uint8_t {
    aggregate,  // the library: all data declared, buffers filled while others are written
    // One collective call a variable, as ROMIO does it: all ranks begin a round together, and a
    // round gathers, then writes. Where a call leaves holes in a window, the window is read first.
    calls,
    posix,  // each rank writes its data itself
};

// Who aggregates.
enum class Choice : std::uint8_t {
    elected,  // by a placement of the library
    first,    // the first rank of each of the first nodes: ROMIO's cb_nodes
    nodes,    // one aggregator a node, which is ROMIO's default without hints
};

struct Job {
    Method method = Method::aggregate;
    Choice choice = Choice::elected;
    Placement placement = Placement::cost;
    PlanLayout layout = PlanLayout::records;  // or variables
    std::uint64_t particles = 0;              // a rank: the mean
    std::string volumes = "uniform";          // or a model with its numbers: "lognormal:1.5"
    std::vector<std::uint32_t> nodes;         // of the topology, by the job's ranks
    std::uint32_t ranks_per_node = 16;
    std::uint32_t ranks = 0;           // 0: all that the nodes hold
    std::uint32_t nodes_per_file = 0;  // 0: one file
    std::uint32_t aggregators = 1;     // a file
    std::uint32_t buffers = 2;
    std::uint64_t buffer_bytes = 16U << 20;
    std::uint64_t block = 8U << 20;
    std::uint64_t seed = 1;
    double start = 0;         // seconds
    bool own_gateway = true;  // data leave by the aggregator's gateway; or by the partition's
};

// "method=aggregate,placement=cost,particles=5000,nodes=0-63,..."
Result<Job> job_of(const std::string& text, const Topology& topology);

struct NodeBytes {
    std::uint32_t node = 0;
    std::uint64_t bytes = 0;
};

struct MovedWindow {
    Range range;  // of the file, written as a whole
    bool read_first = false;
    std::vector<NodeBytes> gathered;  // by node
    std::uint32_t round = 0;          // of calls: those of one round begin together
};

// One aggregator's windows, in their order.
struct MovedPartition {
    std::uint32_t file = 0;
    std::uint32_t rank = 0;  // who aggregates
    std::uint32_t node = 0;
    std::uint32_t gateway = 0;
    std::vector<MovedWindow> windows;
};

struct Moved {
    std::uint64_t bytes = 0;  // of the job's data
    std::uint32_t ranks = 0;
    std::vector<MovedPartition> partitions;
};

Result<Moved> moved_by(const Job& job, const Topology& topology);

}  // namespace twinrun::simulation
