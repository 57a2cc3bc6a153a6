// Placements on a model of a machine, without MPI: which ranks would aggregate for which, and the
// predicted time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aggregate/plan/placement.hpp"
#include "aggregate/topology/topology.hpp"
#include "base/result.hpp"

namespace twinrun {
inline namespace aggregate_plan {

// Bytes by rank.
struct VolumeModel {
    enum class Kind : std::uint8_t {
        uniform,
        lognormal,  // exp(spread * a normal number), scaled to the mean
        linear,     // rank r: proportional to r + 1/2
        // One rank in `every`, drawn by seed, has `spread` times the bytes of the others.
        heavy,
    };
    Kind kind = Kind::uniform;
    std::uint64_t mean = 0;    // bytes a rank
    std::uint64_t unit = 1;    // volumes are multiples of it: the bytes of a record
    double spread = 1;         // of lognormal and heavy
    std::uint32_t every = 16;  // of heavy
    std::uint64_t seed = 1;
};
Result<std::vector<std::uint64_t>> volumes_of(const VolumeModel& model, std::uint32_t ranks);

enum class PlanLayout : std::uint8_t {
    records,  // array of structs, rank after rank
    // Rank after rank, variable after variable in each: the same ranks in each partition.
    blocks,
    variables,    // struct of arrays: a variable of all ranks, then the next
    interleaved,  // every rank has a part of every partition
};
Result<PlanLayout> plan_layout_of(const std::string& name);

struct PlanSettings {
    std::uint32_t ranks_per_node = 1;
    std::uint32_t aggregators = 1;     // a file
    std::uint32_t nodes_per_file = 0;  // 0: one file
    PlanLayout layout = PlanLayout::records;
    std::vector<std::uint64_t> item_bytes{1};  // of the variables of a record
    std::uint64_t block = 4096;                // partitions begin at its multiples
    std::uint64_t seed = 1;                    // of Placement::random
};

struct PlannedPartition {
    std::uint32_t file = 0;
    std::uint32_t number = 0;  // in the file
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t nodes = 0;
    std::uint32_t gateway = 0;                // of the nodes with the most of its bytes
    std::vector<Contribution> contributions;  // ascending by rank
};

// The predicted time of a set of aggregators, in seconds.
struct Prediction {
    double sum = 0;   // of C1 + C2 over all partitions; the election minimizes each term
    double most = 0;  // the largest C1 + C2, as if each partition were alone
    // All partitions at once, first gathering, then writing; they divide links that they share:
    //   gather: as C1, but at least the time in which the aggregator's node receives all its data
    //   through its ports write:  the latency, and the longer of two times: the node sends all its
    //   data, the gateway receives all of its
    double seconds = 0;
};
Prediction predict(const Topology& topology, std::span<const PlannedPartition> partitions,
                   std::span<const Election> elections, std::uint32_t ranks_per_node);

struct PlannedPlacement {
    Placement placement = Placement::cost;
    std::vector<Election> elections;  // by partition
    Prediction prediction;
};

struct Plan {
    std::uint32_t ranks = 0;
    std::uint32_t files = 0;
    std::uint64_t bytes = 0;
    std::vector<PlannedPartition> partitions;  // none without bytes
    std::vector<PlannedPlacement> placements;
    // The partition with the most bytes of the node; kNoPartition: none.
    std::vector<std::uint32_t> partition_of_node;
};
inline constexpr std::uint32_t kNoPartition = 0xFFFFFFFF;

// volumes: by rank; rank r is on node r / ranks_per_node. Errors: invalid_argument: more ranks than
// the nodes hold, no bytes, a volume that is not a multiple of a record, more than 2^26
// contributions.
Result<Plan> make_plan(const Topology& topology, std::span<const std::uint64_t> volumes,
                       const PlanSettings& settings, std::span<const Placement> placements);

}  // namespace aggregate_plan
}  // namespace twinrun
