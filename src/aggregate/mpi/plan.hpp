// The plan that follows from a declaration: the data of all ranks in this rank's file, partitions,
// aggregators and buffers.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregate/mpi/settings.hpp"
#include "aggregate/mpi/storage.hpp"
#include "aggregate/mpi/team.hpp"
#include "aggregate/plan/layout.hpp"
#include "aggregate/plan/partition.hpp"
#include "aggregate/plan/placement.hpp"
#include "aggregate/topology/topology.hpp"

namespace twinrun::aggregation {

// The file that this rank's data goes to, and the ranks that share it.
struct FileGroup {
    MPI_Comm comm = MPI_COMM_NULL;
    int file = 0;
    int files = 1;
    int rank = 0;  // in comm
    int ranks = 1;
    std::vector<int> team_rank;          // of each
    std::vector<std::uint32_t> node_of;  // of each: number of its node in the team
    // The node of each in the topology. Equals node_of unless the topology divides nodes into
    // places.
    std::vector<std::uint32_t> place_of;
    std::uint64_t nodes = 1;  // number of their nodes
};

// Block size and rule for direct stretches that suit the storage; rank 0 finds them.
struct StorageTraits {
    std::uint64_t block = 4096;
    DirectRule direct;
    bool operator==(const StorageTraits& other) const {
        return block == other.block && direct == other.direct;
    }
};

// How a partition's remote members reach its aggregator's buffers.
enum class Members : std::uint8_t {
    node,   // all ranks of each partition are on one node: its shared memory is enough
    split,  // partitions share no rank: one MPI_Comm_split gives each a communicator
    file,   // partitions share ranks: all use the communicator of the file
};
[[nodiscard]] const char* members_name(Members members);

inline constexpr std::uint64_t kHeader = 4096;  // bytes before an aggregator's buffers

// At the beginning of an aggregator's memory: tells ranks on its node which windows they may work
// on.
struct Duty {
    // Writing: number of windows whose buffers may be filled. Reading: number of windows whose
    // bytes have been read.
    std::atomic<std::uint64_t> ready{0};
    // For the current window of each buffer: ranks of this node that have not finished with it.
    std::atomic<std::uint32_t> left[kMostBuffers] = {};
};
static_assert(sizeof(Duty) <= kHeader);

struct Partition {
    Range range;
    std::vector<Contribution> members;  // ranks of the file
    Exit exit;
    std::uint32_t aggregator = 0;  // rank of the file
    PlacementCost cost;
    std::uint64_t offset = 0;           // of the Duty in its aggregator's memory
    int target = 0;                     // the aggregator's rank where `window` was made
    std::optional<PartitionPlan> plan;  // set if this rank takes part
};

class Plan {
   public:
    Plan(Team& team, const Settings& settings, const FileGroup& group, const Topology& topology);
    ~Plan();  // [collective] unless the team is broken
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    // [collective] sets: of this rank, or its error. After an error nothing is declared. shared:
    // several ranks may claim a byte, so that the plan can only be read.
    Result<> declare(Result<std::vector<RankSet>> sets, std::uint64_t variables, bool shared = false);
    // [collective] The part of declare() before the election: the sets of all ranks, and whether
    // two of them claim a byte. No data can be moved after it.
    Result<> collect(Result<std::vector<RankSet>> sets, std::uint64_t variables, bool shared = false);
    // Elections are taken from this file, or added to it.
    void keep_at(std::string path) { kept_at_ = std::move(path); }
    [[nodiscard]] bool taken() const { return taken_; }  // from that file
    // From now on nothing is declared.
    void forget() { declared_ = false; }
    // [collective] Plans again for storage with other traits; does nothing if they are equal.
    Result<> adapt(const StorageTraits& traits);

    [[nodiscard]] bool declared() const { return declared_; }
    [[nodiscard]] std::uint64_t variables() const { return variables_; }
    [[nodiscard]] const std::vector<RankSet>& sets() const { return sets_; }
    // This rank's, ascending.
    [[nodiscard]] const std::vector<Range>& direct() const { return direct_; }
    [[nodiscard]] const FileTable& table() const { return table_; }
    [[nodiscard]] const std::vector<Partition>& partitions() const { return partitions_; }
    [[nodiscard]] const StorageTraits& traits() const { return traits_; }
    [[nodiscard]] std::uint64_t buffer_bytes() const { return buffer_bytes_; }
    [[nodiscard]] Members members() const { return members_; }
    [[nodiscard]] int election_rounds() const { return election_rounds_; }
    [[nodiscard]] double seconds() const { return seconds_; }  // that the slowest rank took to plan

    // For an aggregator on this node.
    [[nodiscard]] Duty& duty(const Partition& partition) const;
    [[nodiscard]] std::byte* buffer(const Partition& partition, std::uint64_t window) const;
    // For an aggregator on another node: its buffer's displacement in its part of the MPI window.
    [[nodiscard]] MPI_Win window() const { return window_; }
    [[nodiscard]] MPI_Aint displacement(const Partition& partition, std::uint64_t window) const;

   private:
    struct Wire;  // sets as ranks exchange them
    Result<> gather_table(bool shared);
    Result<> check_overlaps(Result<> mine);
    Result<> arrange();
    Result<> cut();  // makes partitions; local
    // Places aggregators' memory, and finds the windows that concern this rank; local.
    void lay_out();
    struct Ballot;
    Result<> elect_aggregators(Ballot& ballot);
    [[nodiscard]] std::uint64_t election_key() const;
    Result<> offer_saved(std::vector<std::int32_t>& offer) const;
    Result<> take_or_elect(Ballot& ballot);
    void find_costs();
    Result<> make_memory(std::uint64_t needed);
    Result<> make_window();
    void free_window();
    void free_memory();
    Result<> reduce(void* values, int count, MPI_Datatype type, MPI_Op op);

    Team& team_;
    const Settings& settings_;
    const FileGroup& group_;
    const Topology& topology_;
    bool declared_ = false;
    std::uint64_t variables_ = 0;
    std::vector<RankSet> sets_;
    std::vector<Range> direct_;
    FileTable table_;
    StorageTraits traits_;
    std::vector<Partition> partitions_;
    std::uint64_t buffer_bytes_ = 0;
    Members members_ = Members::node;
    int election_rounds_ = 0;
    std::string kept_at_;  // file of saved plans; empty: none
    bool taken_ = false;
    std::uint64_t elected_key_ = 0;  // of the last one that this plan added there
    double seconds_ = 0;
    std::vector<std::uint64_t> used_;  // of each rank's memory
    // Buffers of nonblocking MPI calls. They are members, because the plan of a broken team is
    // never freed.
    std::unique_ptr<Wire> wire_;
    std::vector<std::byte> reduced_;

    MPI_Win memory_ = MPI_WIN_NULL;          // of this node's ranks
    std::uint64_t capacity_ = 0;             // of this rank's
    std::vector<std::byte*> bases_;          // of each rank of the node
    MPI_Comm members_comm_ = MPI_COMM_NULL;  // of Members::split
    MPI_Win window_ = MPI_WIN_NULL;          // the same memory, for ranks of other nodes
};

}  // namespace twinrun::aggregation
