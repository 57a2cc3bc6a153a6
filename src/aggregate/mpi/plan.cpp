#include "aggregate/mpi/plan.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>
#include <utility>

#include "aggregate/mpi/saved_plans.hpp"
#include "aggregate/plan/exits.hpp"
#include "base/caught.hpp"
#include "base/checked.hpp"
#include "base/checksum.hpp"

namespace twinrun::aggregation {

namespace {

// Default sizes of buffers (measured with 16 ranks on two cores): small enough that a partition
// takes several windows, so that gathering and writing overlap; large enough that synchronizing for
// each window costs little.
constexpr std::uint64_t kLargestBuffer = std::uint64_t{8} << 20;
constexpr std::uint64_t kSmallestBuffer = std::uint64_t{1} << 20;
constexpr std::uint64_t kWindowsOfAPartition = 4;

// Rounds of the election by MPI_Allreduce. Every rank decides the partitions that are open
// afterwards by itself, with the same result.
constexpr int kRounds = 4;

// Alignment of aggregators' memory, for any block size.
constexpr std::uint64_t kAlignment = 64;

}  // namespace

// Memory for the declarations of all ranks.
struct Plan::Wire {
    struct Set {
        std::uint64_t offset, width, count, stride;
    };
    int count = 0;
    std::vector<int> counts;
    std::vector<int> starts;
    std::vector<Set> own;
    std::vector<Set> all;
};

// Memory that an election needs on this rank, allocated before, so that nothing can fail between
// its rounds.
struct Plan::Ballot {
    struct Bid {
        float cost;
        int turn;  // of a member: its number, counted from `starts`
    };
    static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
    static constexpr float kNever = std::numeric_limits<float>::infinity();
    std::vector<float> costs;
    // Which member is the first among equal ones.
    std::vector<std::size_t> starts;
    // Number of this rank among the ranks of each partition; kNone: not among them.
    std::vector<std::size_t> own;
    std::unique_ptr<bool[]> flags;
    std::vector<Bid> bids;
    std::vector<Contribution> won;
    std::optional<Turns> turns;
    std::vector<std::int32_t> offer;  // a saved election: 1, and its aggregators; otherwise -1
};

const char* members_name(Members members) {
    switch (members) {
        case Members::node: return "node memory";
        case Members::split: return "one coloured split";
        case Members::file: return "communicator of the file";
    }
    return "";
}

Plan::Plan(Team& team, const Settings& settings, const FileGroup& group, const Topology& topology)
    : team_(team), settings_(settings), group_(group), topology_(topology), reduced_(64) {}

Plan::~Plan() {
    if (team_.broken()) return;
    free_window();
    free_memory();
}

// Reduces in memory that is kept if this rank gives up waiting.
Result<> Plan::reduce(void* values, int count, MPI_Datatype type, MPI_Op op) {
    int width = 0;
    MPI_Type_size(type, &width);
    const std::size_t bytes = static_cast<std::size_t>(count) * static_cast<std::size_t>(width);
    if (bytes > reduced_.size()) return Error{ErrorCode::internal, "more is reduced than there is room for"};
    std::memcpy(reduced_.data(), values, bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    TWR_MPI("MPI_Iallreduce",
            MPI_Iallreduce(MPI_IN_PLACE, reduced_.data(), count, type, op, group_.comm, &request));
    TWR_CHECK(team_.finish(request, "the ranks of its file"));
    std::memcpy(values, reduced_.data(), bytes);
    return success();
}

Result<> Plan::declare(Result<std::vector<RankSet>> sets, std::uint64_t variables, bool shared) {
    TWR_CHECK(collect(std::move(sets), variables, shared));
    TWR_CHECK(arrange());
    declared_ = true;
    return success();
}

Result<> Plan::collect(Result<std::vector<RankSet>> sets, std::uint64_t variables, bool shared) {
    declared_ = false;
    Team::Vote first;
    if (sets) {
        first.mine = caught([&]() -> Result<> {
            const auto ranks = static_cast<std::size_t>(group_.ranks);
            wire_ = std::make_unique<Wire>();
            wire_->counts.resize(ranks);
            wire_->starts.resize(ranks);
            for (const StridedSet& set : shape_of(*sets))
                wire_->own.push_back({set.offset, set.width, set.count, set.stride});
            wire_->count = static_cast<int>(wire_->own.size());
            return success();
        });
    } else {
        first.mine = sets.error();
    }
    TWR_CHECK(team_.agree(first));
    sets_ = std::move(*sets);
    variables_ = variables;
    auto gathered = gather_table(shared);
    if (team_.broken()) return gathered;
    wire_.reset();
    Team::Vote second;
    second.mine = shared ? std::move(gathered) : check_overlaps(std::move(gathered));
    if (team_.broken()) return team_.why_broken();
    TWR_CHECK(team_.agree(second));
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

Result<> Plan::gather_table(bool shared) {
    Wire& wire = *wire_;
    const auto ranks = static_cast<std::size_t>(group_.ranks);
    MPI_Request request = MPI_REQUEST_NULL;
    TWR_MPI("MPI_Iallgather",
            MPI_Iallgather(&wire.count, 1, MPI_INT, wire.counts.data(), 1, MPI_INT, group_.comm, &request));
    TWR_CHECK(team_.finish(request, "the declarations of the ranks of its file"));
    std::uint64_t total = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        wire.starts[rank] = static_cast<int>(total);
        total += static_cast<std::uint64_t>(wire.counts[rank]);
    }
    std::vector<OwnedSet> sets;
    Team::Vote room;
    room.mine = caught([&]() -> Result<> {
        if (total > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
            return Error{ErrorCode::unsupported, "more than 2^31 sets are declared"};
        wire.all.resize(total);
        sets.reserve(total);
        return success();
    });
    TWR_CHECK(team_.agree(room));
    MPI_Datatype four = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(4, MPI_UINT64_T, &four);
    MPI_Type_commit(&four);
    const int code = MPI_Iallgatherv(wire.own.data(), wire.count, four, wire.all.data(), wire.counts.data(),
                                     wire.starts.data(), four, group_.comm, &request);
    MPI_Type_free(&four);
    TWR_MPI("MPI_Iallgatherv", code);
    TWR_CHECK(team_.finish(request, "the declarations of the ranks of its file"));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (int i = 0; i < wire.counts[rank]; ++i) {
            const Wire::Set& set =
                wire.all[static_cast<std::size_t>(wire.starts[rank]) + static_cast<std::size_t>(i)];
            sets.push_back(
                {{set.offset, set.width, set.count, set.stride}, static_cast<std::uint32_t>(rank)});
        }
    }
    return caught([&]() -> Result<> {
        table_ = FileTable(std::move(sets), shared);
        return success();
    });
}

// Each rank checks a part of the file. If one finds an overlap, further reductions collect the
// details: first the two ranks, then from each of these the number of its variable. mine: an
// earlier error of this rank; the same reduction tells the others not to check.
Result<> Plan::check_overlaps(Result<> mine) {
    const Range span = table_.span();
    const auto cut = [&](int part) {
        const auto ranks = static_cast<std::uint64_t>(group_.ranks);
        const auto number = static_cast<std::uint64_t>(part);
        return span.begin + span.bytes() / ranks * number + std::min(number, span.bytes() % ranks);
    };
    std::optional<Overlap> found;
    if (mine) {
        mine = caught([&]() -> Result<> {
            found = find_overlap(table_, {cut(group_.rank), cut(group_.rank + 1)});
            return success();
        });
    }
    // Offsets are below 2^63. Signed: MPICH 4.0 compares unsigned numbers as signed ones in
    // MPI_MIN.
    std::int64_t least = !mine ? -1 : found ? static_cast<std::int64_t>(found->offset) : INT64_MAX;
    TWR_CHECK(reduce(&least, 1, MPI_INT64_T, MPI_MIN));
    if (least == INT64_MAX || least < 0) return mine;
    const auto offset = static_cast<std::uint64_t>(least);
    // Ranks are below 2^31; 0 means "not me". Several ranks may have found this byte, or other
    // bytes.
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

// Partitions, their ranks, and the memory that an election needs.
Result<> Plan::cut() {
    std::uint64_t most_partitions = static_cast<std::uint64_t>(settings_.aggregators);
    if (most_partitions == 0) {
        most_partitions =
            default_aggregators(table_.bytes(), group_.nodes, static_cast<std::uint64_t>(group_.ranks));
    }
    partitions_.clear();
    std::uint64_t longest = 0;
    std::vector<std::vector<Contribution>> members;
    const std::vector<Range> ranges = make_partitions(table_, most_partitions, traits_.block);
    for (const Range& range : ranges) {
        members.push_back(contributions_to(table_, range, group_.place_of));
        longest = std::max(longest, range.bytes());
    }
    const std::vector<Exit> exits = exits_of(topology_, settings_.placement, members);
    for (std::size_t p = 0; p < ranges.size(); ++p) {
        Partition partition;
        partition.range = ranges[p];
        partition.members = std::move(members[p]);
        partition.exit = exits[p];
        partitions_.push_back(std::move(partition));
    }
    buffer_bytes_ = settings_.buffer_bytes;
    if (buffer_bytes_ == 0) {
        buffer_bytes_ = std::clamp(divide_up(longest, kWindowsOfAPartition), kSmallestBuffer, kLargestBuffer);
    }
    buffer_bytes_ = divide_up(buffer_bytes_, traits_.block) * traits_.block;
    return success();
}

// Where the buffers of each aggregator lie, and which ranks take part in which partition.
void Plan::lay_out() {
    direct_.clear();
    const DirectRule rule = rule_for(table_, traits_.direct);
    for (const StridedSet& set : shape_of(sets_)) {
        if (const auto part = direct_part(set, rule)) direct_.push_back(*part);
    }
    const auto me = static_cast<std::uint32_t>(group_.rank);
    used_.assign(static_cast<std::size_t>(group_.ranks), 0);
    std::vector<bool> seen(static_cast<std::size_t>(group_.ranks), false);
    bool disjoint = true;
    bool local = true;
    for (Partition& partition : partitions_) {
        partition.offset = used_[partition.aggregator];
        used_[partition.aggregator] +=
            kHeader + round_up(buffer_bytes_ * static_cast<std::uint64_t>(settings_.buffers), kAlignment);
        bool mine = false;
        for (const Contribution& member : partition.members) {
            mine = mine || member.rank == me;
            disjoint = disjoint && !seen[member.rank];
            seen[member.rank] = true;
            local = local && group_.node_of[member.rank] == group_.node_of[partition.members.front().rank];
        }
        if (mine) {
            partition.plan.emplace(table_, partition.range, rule, buffer_bytes_, traits_.block);
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
}

// From the table to partitions, aggregators and their memory. Every allocation of this rank comes
// before an agreement, which reports its failure.
Result<> Plan::arrange() {
    const auto begin = Clock::now();
    Ballot ballot;
    std::size_t count = 0;
    Team::Vote planned;
    planned.mine = caught([&]() -> Result<> {
        TWR_CHECK(cut());
        count = partitions_.size();
        ballot.offer.assign(count + 1, -1);
        ballot.costs.resize(count);
        ballot.own.resize(count);
        ballot.starts.resize(count);
        ballot.bids.resize(count);
        ballot.won.reserve(count);
        std::size_t most = 0;
        for (const Partition& partition : partitions_)
            most = std::max(most, partition.members.size());
        ballot.flags = std::make_unique<bool[]>(most);
        ballot.turns.emplace(topology_);
        ballot.turns->reserve(static_cast<std::uint32_t>(group_.ranks));
        reduced_.resize(std::max<std::size_t>(64, count * sizeof(Ballot::Bid)));
        bases_.reserve(static_cast<std::size_t>(team_.ranks()));
        return success();
    });
    TWR_CHECK(team_.agree(planned));
    taken_ = false;
    auto elected = kept_at_.empty() || count == 0 ? elect_aggregators(ballot) : take_or_elect(ballot);
    if (team_.broken()) return elected;
    Team::Vote vote;
    vote.mine = elected ? caught([&]() -> Result<> {
        lay_out();
        return success();
    })
                        : std::move(elected);
    const auto me = static_cast<std::uint32_t>(group_.rank);
    const std::uint64_t needed = vote.mine ? used_[me] : 0;
    vote.figures.largest[0] = needed > capacity_ ? 1 : 0;
    vote.figures.largest[1] = seconds_since(begin);
    free_window();
    TWR_TRY(const Outcome outcome, team_.agree(vote));
    seconds_ = outcome.figures.largest[1];
    if (outcome.figures.largest[0] != 0) {
        Team::Vote made;
        made.mine = caught([&] { return make_memory(std::max(needed, capacity_)); });
        TWR_CHECK(team_.agree(made));
    }
    for (const Partition& partition : partitions_) {
        if (partition.aggregator == me) new (&duty(partition)) Duty;
    }
    Team::Vote made;
    if (members_ != Members::node) made.mine = caught([&] { return make_window(); });
    if (team_.nodes() > 1) {
        TWR_CHECK(team_.agree(made));
    }
    return success();
}

// One MPI_Allreduce elects for all open partitions, among the ranks that Turns allows. A winner is
// final if all partitions before it are final, and none of them was won on the winner's host, which
// could have changed what Turns allows. The other partitions are elected again. So the result
// equals that of elect(), which decides one partition after the other.
Result<> Plan::elect_aggregators(Ballot& ballot) {
    const std::size_t count = partitions_.size();
    const auto elect_here = [&]() -> Result<> {
        std::vector<std::vector<Contribution>> members;
        std::vector<Exit> exits;
        for (const Partition& partition : partitions_) {
            members.push_back(partition.members);
            exits.push_back(partition.exit);
        }
        const auto elections = elect(topology_, settings_.placement, members, exits, settings_.seed);
        for (std::size_t p = 0; p < count; ++p) {
            partitions_[p].aggregator = elections[p].rank;
            partitions_[p].cost = elections[p].cost;
        }
        return success();
    };
    election_rounds_ = 0;
    const bool dearest = settings_.placement == Placement::worst;
    if (settings_.placement != Placement::cost && !dearest) return caught(elect_here);
    const auto me = static_cast<std::uint32_t>(group_.rank);
    const auto cost_of = [&](const Partition& partition, std::size_t member) {
        const Exit& exit = partition.exit;
        return placement_cost(topology_, partition.members, member, exit.gateway, !exit.limits);
    };
    RankOrder rank_order;
    for (const Partition& partition : partitions_)
        rank_order.add(partition.members);
    for (std::size_t p = 0; p < count; ++p) {
        const Partition& partition = partitions_[p];
        ballot.starts[p] = partition.exit.limits ? rank_order.start(partition.members, p) : 0;
    }
    // A rank that fails here makes no bids, and reports its error in the next agreement.
    Result<> mine = caught([&]() -> Result<> {
        for (std::size_t p = 0; p < count; ++p) {
            const auto& ranks = partitions_[p].members;
            const auto at =
                std::lower_bound(ranks.begin(), ranks.end(), me,
                                 [](const Contribution& a, std::uint32_t b) { return a.rank < b; });
            ballot.costs[p] = Ballot::kNever;
            ballot.own[p] = Ballot::kNone;
            if (at == ranks.end() || at->rank != me) continue;
            const float cost = cost_of(partitions_[p], static_cast<std::size_t>(at - ranks.begin())).total();
            ballot.own[p] = static_cast<std::size_t>(at - ranks.begin());
            ballot.costs[p] = dearest ? -cost : cost;
        }
        return success();
    });
    std::size_t settled = 0;
    while (settled < count) {
        if (election_rounds_ == kRounds) {
            auto rest = caught(elect_here);
            return mine ? std::move(rest) : std::move(mine);
        }
        for (std::size_t p = settled; p < count; ++p) {
            ballot.bids[p] = {Ballot::kNever, std::numeric_limits<int>::max()};
            if (!mine || ballot.own[p] == Ballot::kNone) continue;
            const auto& ranks = partitions_[p].members;
            ballot.turns->eligible(ranks, partitions_[p].exit.link, {ballot.flags.get(), ranks.size()});
            if (!ballot.flags[ballot.own[p]]) continue;
            const std::size_t turn = (ballot.own[p] + ranks.size() - ballot.starts[p]) % ranks.size();
            ballot.bids[p] = {ballot.costs[p], static_cast<int>(turn)};
        }
        TWR_CHECK(reduce(ballot.bids.data() + settled, static_cast<int>(count - settled), MPI_FLOAT_INT,
                         MPI_MINLOC));
        ++election_rounds_;
        ballot.won.clear();
        for (; settled < count; ++settled) {
            const auto turn = static_cast<std::size_t>(ballot.bids[settled].turn);
            const auto& ranks = partitions_[settled].members;
            // No rank made a bid: the only candidate has failed. All ranks see this, and the next
            // agreement reports the error.
            if (turn >= ranks.size()) return mine;
            const std::uint32_t winner = ranks[(turn + ballot.starts[settled]) % ranks.size()].rank;
            const std::uint32_t place = group_.place_of[winner];
            const std::uint32_t host = topology_.host_of(place);
            const bool again =
                std::any_of(ballot.won.begin(), ballot.won.end(),
                            [&](const Contribution& other) { return topology_.host_of(other.node) == host; });
            if (again) break;
            ballot.won.push_back({winner, place, 0});
            partitions_[settled].aggregator = winner;
        }
        for (const Contribution& winner : ballot.won)
            ballot.turns->elected(winner);
    }
    if (!mine) return mine;
    return caught([&]() -> Result<> {
        find_costs();
        return success();
    });
}

namespace {

auto member_at(const Partition& partition, std::uint32_t rank) {
    return std::lower_bound(partition.members.begin(), partition.members.end(), rank,
                            [](const Contribution& a, std::uint32_t b) { return a.rank < b; });
}

}  // namespace

// Of the aggregators that are elected.
void Plan::find_costs() {
    for (Partition& partition : partitions_) {
        const auto at = member_at(partition, partition.aggregator) - partition.members.begin();
        partition.cost = placement_cost(topology_, partition.members, static_cast<std::size_t>(at),
                                        partition.exit.gateway);
    }
}

// A hash of all that decides an election.
std::uint64_t Plan::election_key() const {
    std::vector<std::uint64_t> all{static_cast<std::uint64_t>(group_.ranks),
                                   static_cast<std::uint64_t>(settings_.placement), settings_.seed,
                                   xxh3(std::string_view(settings_.topology)), topology_.nodes()};
    for (const Partition& partition : partitions_) {
        all.insert(all.end(), {partition.range.begin, partition.range.end, partition.exit.gateway,
                               partition.exit.link, partition.members.size()});
        for (const Contribution& member : partition.members) {
            all.insert(all.end(),
                       {member.rank, member.node, std::uint64_t{std::bit_cast<std::uint32_t>(member.bytes)}});
        }
    }
    return xxh3(std::as_bytes(std::span(all)));
}

// By the first rank of the file: the aggregators that the file of plans has for this declaration,
// after 1; or after 2 if this plan elected them itself, for storage with other traits.
Result<> Plan::offer_saved(std::vector<std::int32_t>& offer) const {
    const std::uint64_t key = election_key();
    TWR_TRY(const auto saved, saved_plan(kept_at_, key));
    if (!saved || saved->size() != partitions_.size()) return success();
    for (std::size_t p = 0; p < saved->size(); ++p) {
        const auto at = member_at(partitions_[p], (*saved)[p]);
        // Not among those that stood for election: another declaration with the same hash.
        if (at == partitions_[p].members.end() || at->rank != (*saved)[p]) return success();
        offer[p + 1] = static_cast<std::int32_t>((*saved)[p]);
    }
    offer[0] = key == elected_key_ ? 2 : 1;
    return success();
}

Result<> Plan::take_or_elect(Ballot& ballot) {
    // An error of the first rank's file: the others elect meanwhile, and the next agreement has it.
    Result<> mine = success();
    if (group_.rank == 0) mine = caught([&] { return offer_saved(ballot.offer); });
    if (!mine) std::fill(ballot.offer.begin(), ballot.offer.end(), -1);
    TWR_CHECK(reduce(ballot.offer.data(), static_cast<int>(ballot.offer.size()), MPI_INT32_T, MPI_MAX));
    taken_ = ballot.offer[0] == 1;
    if (ballot.offer[0] > 0) {
        if (taken_) election_rounds_ = 0;
        for (std::size_t p = 0; p < partitions_.size(); ++p)
            partitions_[p].aggregator = static_cast<std::uint32_t>(ballot.offer[p + 1]);
        return caught([&]() -> Result<> {
            find_costs();
            return success();
        });
    }
    TWR_CHECK(elect_aggregators(ballot));
    if (!mine) return mine;
    if (group_.rank != 0) return success();
    return caught([&]() -> Result<> {
        std::vector<std::uint32_t> elected;
        for (const Partition& partition : partitions_)
            elected.push_back(partition.aggregator);
        elected_key_ = election_key();
        return save_plan(kept_at_, elected_key_, elected);
    });
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
    int ranks = 0;
    MPI_Comm_size(team_.node_comm(), &ranks);
    const std::uint64_t bytes = needed == 0 ? 0 : needed + kAlignment;
    const int code =
        MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, info, team_.node_comm(), &base, &memory_);
    MPI_Info_free(&info);
    TWR_MPI("MPI_Win_allocate_shared of " + std::to_string(needed) + " bytes", code);
    capacity_ = needed;
    bases_.assign(static_cast<std::size_t>(ranks), nullptr);
    for (int rank = 0; rank < ranks; ++rank) {
        MPI_Aint size = 0;
        int unit = 0;
        void* at = nullptr;
        TWR_MPI("MPI_Win_shared_query", MPI_Win_shared_query(memory_, rank, &size, &unit, &at));
        // The same address within a page for all ranks of the node.
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
