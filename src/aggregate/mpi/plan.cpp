#include "aggregate/mpi/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "base/checked.hpp"

namespace twinrun::aggregation {

namespace {

// Buffers when nobody says how large (measured with 16 ranks on two cores): small enough that a partition takes several windows, so
// that gathering and writing overlap; large enough that meeting for each costs little.
constexpr std::uint64_t kLargestBuffer = std::uint64_t{8} << 20;
constexpr std::uint64_t kSmallestBuffer = std::uint64_t{1} << 20;
constexpr std::uint64_t kWindows = 4;

// Rounds of the election by MPI_Allreduce; what is still open then, every rank settles for itself, with the same result.
constexpr int kRounds = 4;

// Of aggregators' memory, whatever the block is.
constexpr std::uint64_t kAlignment = 64;

struct WireSet {
    std::uint64_t offset, width, count, stride;
};

}  // namespace

const char* members_name(Members members) {
    switch (members) {
        case Members::node: return "node memory";
        case Members::split: return "one coloured split";
        case Members::file: return "communicator of the file";
    }
    return "";
}

Plan::~Plan() {
    if (team_.broken()) return;
    free_window();
    free_memory();
}

Result<> Plan::reduce(void* values, int count, MPI_Datatype type, MPI_Op op) {
    MPI_Request request = MPI_REQUEST_NULL;
    TWR_MPI("MPI_Iallreduce", MPI_Iallreduce(MPI_IN_PLACE, values, count, type, op, group_.comm, &request));
    return team_.finish(request, "the ranks of its file");
}

Result<> Plan::declare(Result<std::vector<RankSet>> sets, std::uint64_t variables) {
    declared_ = false;
    Team::Vote first;
    std::vector<StridedSet> shape;
    if (sets) {
        shape = shape_of(*sets);
    } else {
        first.mine = sets.error();
    }
    TWR_CHECK(team_.agree(first));
    sets_ = std::move(*sets);
    variables_ = variables;
    Team::Vote second;
    second.mine = gather_table(shape);
    if (second.mine) second.mine = check_overlaps();
    TWR_CHECK(team_.agree(second));
    TWR_CHECK(arrange());
    declared_ = true;
    return success();
}

Result<> Plan::adapt(const StorageTraits& traits) {
    if (traits == traits_) return success();
    traits_ = traits;
    if (!declared_) return success();
    declared_ = false;
    TWR_CHECK(arrange());
    declared_ = true;
    return success();
}

Result<> Plan::gather_table(const std::vector<StridedSet>& shape) {
    const auto ranks = static_cast<std::size_t>(group_.ranks);
    std::vector<int> counts(ranks);
    std::vector<int> starts(ranks);
    const int count = static_cast<int>(shape.size());
    MPI_Request request = MPI_REQUEST_NULL;
    TWR_MPI("MPI_Iallgather",
            MPI_Iallgather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, group_.comm, &request));
    TWR_CHECK(team_.finish(request, "the declarations of the ranks of its file"));
    std::uint64_t total = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        starts[rank] = static_cast<int>(total);
        total += static_cast<std::uint64_t>(counts[rank]);
    }
    if (total > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
        return Error{ErrorCode::unsupported, "more than 2^31 sets are declared"};
    }
    MPI_Datatype four = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(4, MPI_UINT64_T, &four);
    MPI_Type_commit(&four);
    std::vector<WireSet> own;
    for (const StridedSet& set : shape)
        own.push_back({set.offset, set.width, set.count, set.stride});
    std::vector<WireSet> all(total);
    TWR_MPI("MPI_Iallgatherv", MPI_Iallgatherv(own.data(), count, four, all.data(), counts.data(),
                                               starts.data(), four, group_.comm, &request));
    MPI_Type_free(&four);
    TWR_CHECK(team_.finish(request, "the declarations of the ranks of its file"));
    std::vector<OwnedSet> sets;
    sets.reserve(total);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (int i = 0; i < counts[rank]; ++i) {
            const WireSet& set = all[static_cast<std::size_t>(starts[rank] + i)];
            sets.push_back(
                {{set.offset, set.width, set.count, set.stride}, static_cast<std::uint32_t>(rank)});
        }
    }
    table_ = FileTable(std::move(sets));
    return success();
}

// Each rank looks at a part of the file. Where something is found, those that know more say it: first whose bytes they are, then
// what these ranks call them.
Result<> Plan::check_overlaps() {
    const Range span = table_.span();
    const auto cut = [&](int part) {
        const auto ranks = static_cast<std::uint64_t>(group_.ranks);
        const auto number = static_cast<std::uint64_t>(part);
        return span.begin + span.bytes() / ranks * number + std::min(number, span.bytes() % ranks);
    };
    const auto found = find_overlap(table_, {cut(group_.rank), cut(group_.rank + 1)});
    // Offsets are below 2^63. Signed, for MPICH 4.0 takes unsigned numbers for signed ones when it looks for the least.
    std::int64_t least = found ? static_cast<std::int64_t>(found->offset) : INT64_MAX;
    TWR_CHECK(reduce(&least, 1, MPI_INT64_T, MPI_MIN));
    if (least == INT64_MAX) return success();
    const auto offset = static_cast<std::uint64_t>(least);
    // Ranks are below 2^31: 0 is "not me". More than one rank may have found this byte, or another one.
    std::int64_t ranks[2] = {0, 0};
    if (found && found->offset == offset) {
        ranks[0] = std::int64_t{found->ranks[0]} + 1;
        ranks[1] = std::int64_t{found->ranks[1]} + 1;
    }
    std::int64_t first = ranks[0];
    TWR_CHECK(reduce(&first, 1, MPI_INT64_T, MPI_MAX));
    ranks[0] = first;
    std::int64_t second =
        found && found->offset == offset && std::int64_t{found->ranks[0]} + 1 == first ? ranks[1] : 0;
    TWR_CHECK(reduce(&second, 1, MPI_INT64_T, MPI_MAX));
    ranks[1] = second;
    std::int64_t variables[2] = {0, 0};
    for (int i = 0; i < 2; ++i) {
        if (ranks[i] != group_.rank + 1) continue;
        if (const auto variable = variable_at(sets_, offset)) variables[i] = std::int64_t{*variable} + 1;
    }
    TWR_CHECK(reduce(variables, 2, MPI_INT64_T, MPI_MAX));
    if (ranks[0] != group_.rank + 1 && ranks[1] != group_.rank + 1) return success();
    const auto name = [&](int i) {
        const int rank = group_.team_rank[static_cast<std::size_t>(ranks[i] - 1)];
        return "variable " + std::to_string(variables[i] - 1) + " of rank " + std::to_string(rank);
    };
    return Error{ErrorCode::invalid_argument, name(0) + " and " + name(1) +
                                                  " both claim the byte at offset " + std::to_string(offset) +
                                                  " of the file: every byte may be declared once"};
}

// From the table to partitions, aggregators and their memory.
Result<> Plan::arrange() {
    const auto begin = Clock::now();
    std::uint64_t wanted = static_cast<std::uint64_t>(settings_.aggregators);
    if (wanted == 0) {
        wanted = default_aggregators(table_.bytes(), group_.nodes, static_cast<std::uint64_t>(group_.ranks));
    }
    partitions_.clear();
    std::uint64_t longest = 0;
    for (const Range& range : make_partitions(table_, wanted, traits_.block)) {
        Partition partition;
        partition.range = range;
        partition.members = contributions_to(table_, range, group_.node_of);
        partition.gateway = gateway_of_partition(topology_, partition.members);
        partitions_.push_back(std::move(partition));
        longest = std::max(longest, range.bytes());
    }
    buffer_bytes_ = settings_.buffer_bytes;
    if (buffer_bytes_ == 0) {
        buffer_bytes_ = std::clamp(divide_up(longest, kWindows), kSmallestBuffer, kLargestBuffer);
    }
    buffer_bytes_ = divide_up(buffer_bytes_, traits_.block) * traits_.block;
    TWR_CHECK(elect_aggregators());

    direct_.clear();
    for (const StridedSet& set : shape_of(sets_)) {
        if (const auto part = direct_part(set, traits_.direct)) direct_.push_back(*part);
    }
    // Where each aggregator's buffers lie, and who goes through which partition.
    const auto me = static_cast<std::uint32_t>(group_.rank);
    std::vector<std::uint64_t> used(static_cast<std::size_t>(group_.ranks), 0);
    std::vector<bool> seen(static_cast<std::size_t>(group_.ranks), false);
    bool disjoint = true;
    bool local = true;
    for (Partition& partition : partitions_) {
        partition.offset = used[partition.aggregator];
        used[partition.aggregator] +=
            kHeader + round_up(buffer_bytes_ * static_cast<std::uint64_t>(settings_.buffers), kAlignment);
        bool mine = false;
        for (std::size_t i = 0; i < partition.members.size(); ++i) {
            const Contribution& member = partition.members[i];
            mine = mine || member.rank == me;
            disjoint = disjoint && !seen[member.rank];
            seen[member.rank] = true;
            local = local && member.node == partition.members.front().node;
        }
        if (mine) {
            partition.plan.emplace(table_, partition.range, traits_.direct, buffer_bytes_, traits_.block);
        }
    }
    members_ = local ? Members::node : disjoint ? Members::split : Members::file;
    for (Partition& partition : partitions_) {
        const auto at =
            std::find_if(partition.members.begin(), partition.members.end(),
                         [&](const Contribution& member) { return member.rank == partition.aggregator; });
        partition.target = members_ == Members::split ? static_cast<int>(at - partition.members.begin())
                                                      : static_cast<int>(partition.aggregator);
    }
    const std::uint64_t needed = used[me];
    Team::Vote vote;
    vote.figures.largest[0] = needed > capacity_ ? 1 : 0;
    vote.figures.largest[1] = seconds_since(begin);
    free_window();
    TWR_TRY(const Outcome outcome, team_.agree(vote));
    seconds_ = outcome.figures.largest[1];
    if (outcome.figures.largest[0] != 0) {
        Team::Vote made;
        made.mine = make_memory(std::max(needed, capacity_));
        TWR_CHECK(team_.agree(made));
    }
    for (const Partition& partition : partitions_) {
        if (partition.aggregator == me) new (&duty(partition)) Duty;
    }
    Team::Vote made;
    if (members_ != Members::node) made.mine = make_window();
    if (team_.nodes() > 1) {
        TWR_CHECK(team_.agree(made));
    }
    return success();
}

// One MPI_Allreduce elects for all partitions, of the ranks whose turn it is. A winner settles its partition if all before it are
// settled and none of them was won on its node, which could have changed whose turn it was; the rest is elected again. So the result
// is that of elect(), which goes from one partition to the next.
Result<> Plan::elect_aggregators() {
    const std::size_t count = partitions_.size();
    std::vector<std::vector<Contribution>> members;
    std::vector<std::uint32_t> gateways;
    const auto elect_here = [&] {
        for (const Partition& partition : partitions_) {
            members.push_back(partition.members);
            gateways.push_back(partition.gateway);
        }
        const auto elections = elect(topology_, settings_.placement, members, gateways, settings_.seed);
        for (std::size_t p = 0; p < count; ++p) {
            partitions_[p].aggregator = elections[p].rank;
            partitions_[p].cost = elections[p].cost;
        }
    };
    election_rounds_ = 0;
    const bool dearest = settings_.placement == Placement::worst;
    if (settings_.placement != Placement::cost && !dearest) {
        elect_here();
        return success();
    }
    struct Bid {
        float cost;
        int rank;
    };
    const auto me = static_cast<std::uint32_t>(group_.rank);
    constexpr float kNever = std::numeric_limits<float>::infinity();
    constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
    std::vector<float> costs(count, kNever);
    std::vector<std::size_t> own(count, kNone);  // this rank among the partition's
    for (std::size_t p = 0; p < count; ++p) {
        const auto& ranks = partitions_[p].members;
        const auto at = std::lower_bound(ranks.begin(), ranks.end(), me,
                                         [](const Contribution& a, std::uint32_t b) { return a.rank < b; });
        if (at == ranks.end() || at->rank != me) continue;
        own[p] = static_cast<std::size_t>(at - ranks.begin());
        const float cost = placement_cost(topology_, ranks, own[p], partitions_[p].gateway).total();
        costs[p] = dearest ? -cost : cost;
    }
    Turns turns;
    std::size_t most = 0;
    for (const Partition& partition : partitions_)
        most = std::max(most, partition.members.size());
    const auto flags = std::make_unique<bool[]>(most);
    std::vector<Bid> bids(count);
    std::size_t settled = 0;
    while (settled < count) {
        if (election_rounds_ == kRounds) {
            elect_here();
            return success();
        }
        for (std::size_t p = settled; p < count; ++p) {
            bids[p] = {kNever, std::numeric_limits<int>::max()};
            if (own[p] == kNone) continue;
            const auto& ranks = partitions_[p].members;
            turns.eligible(ranks, {flags.get(), ranks.size()});
            if (flags[own[p]]) bids[p] = {costs[p], group_.rank};
        }
        TWR_CHECK(
            reduce(bids.data() + settled, static_cast<int>(count - settled), MPI_FLOAT_INT, MPI_MINLOC));
        ++election_rounds_;
        std::vector<Contribution> won;
        for (; settled < count; ++settled) {
            const auto winner = static_cast<std::uint32_t>(bids[settled].rank);
            const std::uint32_t node = group_.node_of[winner];
            const bool again = std::any_of(won.begin(), won.end(),
                                           [&](const Contribution& other) { return other.node == node; });
            if (again) break;
            won.push_back({winner, node, 0});
            partitions_[settled].aggregator = winner;
        }
        for (const Contribution& winner : won)
            turns.elected(winner);
    }
    for (Partition& partition : partitions_) {
        const auto at =
            std::lower_bound(partition.members.begin(), partition.members.end(), partition.aggregator,
                             [](const Contribution& a, std::uint32_t b) { return a.rank < b; });
        partition.cost =
            placement_cost(topology_, partition.members,
                           static_cast<std::size_t>(at - partition.members.begin()), partition.gateway);
    }
    return success();
}

// ---- memory ----

void Plan::free_window() {
    const Watchdog::Guard guard(team_.watchdog());
    if (window_ != MPI_WIN_NULL) {
        MPI_Win_unlock_all(window_);
        MPI_Win_free(&window_);
    }
    if (members_comm_ != MPI_COMM_NULL) MPI_Comm_free(&members_comm_);
}

void Plan::free_memory() {
    const Watchdog::Guard guard(team_.watchdog());
    if (memory_ != MPI_WIN_NULL) MPI_Win_free(&memory_);
    capacity_ = 0;
}

Result<> Plan::make_memory(std::uint64_t needed) {
    free_memory();
    const Watchdog::Guard guard(team_.watchdog());
    MPI_Info info = MPI_INFO_NULL;
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    void* base = nullptr;
    const std::uint64_t bytes = needed == 0 ? 0 : needed + kAlignment;
    const int code =
        MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, info, team_.node_comm(), &base, &memory_);
    MPI_Info_free(&info);
    TWR_MPI("MPI_Win_allocate_shared of " + std::to_string(needed) + " bytes", code);
    capacity_ = needed;
    int ranks = 0;
    MPI_Comm_size(team_.node_comm(), &ranks);
    bases_.assign(static_cast<std::size_t>(ranks), nullptr);
    for (int rank = 0; rank < ranks; ++rank) {
        MPI_Aint size = 0;
        int unit = 0;
        void* at = nullptr;
        TWR_MPI("MPI_Win_shared_query", MPI_Win_shared_query(memory_, rank, &size, &unit, &at));
        // The same place for all ranks: they have it at the same distance from a page's begin.
        const std::uint64_t beyond = reinterpret_cast<std::uintptr_t>(at) % kAlignment;
        bases_[static_cast<std::size_t>(rank)] =
            static_cast<std::byte*>(at) + (beyond == 0 ? 0 : kAlignment - beyond);
    }
    return success();
}

Result<> Plan::make_window() {
    const Watchdog::Guard guard(team_.watchdog());
    MPI_Comm comm = group_.comm;
    if (members_ == Members::split) {
        const auto me = static_cast<std::uint32_t>(group_.rank);
        int colour = MPI_UNDEFINED;
        for (std::size_t p = 0; p < partitions_.size(); ++p) {
            if (partitions_[p].plan) colour = static_cast<int>(p);
        }
        TWR_MPI("MPI_Comm_split", MPI_Comm_split(group_.comm, colour, static_cast<int>(me), &members_comm_));
        if (members_comm_ == MPI_COMM_NULL) return success();
        MPI_Comm_set_errhandler(members_comm_, MPI_ERRORS_RETURN);
        comm = members_comm_;
    }
    std::byte* const base =
        capacity_ == 0 ? nullptr : bases_[static_cast<std::size_t>(team_.node_rank_of(team_.rank()))];
    TWR_MPI("MPI_Win_create",
            MPI_Win_create(base, static_cast<MPI_Aint>(capacity_), 1, MPI_INFO_NULL, comm, &window_));
    MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
    TWR_MPI("MPI_Win_lock_all", MPI_Win_lock_all(MPI_MODE_NOCHECK, window_));
    return success();
}

Duty& Plan::duty(const Partition& partition) const {
    const int rank = group_.team_rank[partition.aggregator];
    return *reinterpret_cast<Duty*>(bases_[static_cast<std::size_t>(team_.node_rank_of(rank))] +
                                    partition.offset);
}

std::byte* Plan::buffer(const Partition& partition, std::uint64_t window) const {
    return reinterpret_cast<std::byte*>(&duty(partition)) + kHeader +
           window % static_cast<std::uint64_t>(settings_.buffers) * buffer_bytes_;
}

MPI_Aint Plan::displacement(const Partition& partition, std::uint64_t window) const {
    return static_cast<MPI_Aint>(partition.offset + kHeader +
                                 window % static_cast<std::uint64_t>(settings_.buffers) * buffer_bytes_);
}

}  // namespace twinrun::aggregation
