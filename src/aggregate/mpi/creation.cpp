// Creating and releasing an aggregate.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregate/mpi/aggregate.hpp"
#include "aggregate/mpi/index.hpp"
#include "aggregate/mpi/rank_places.hpp"
#include "aggregate/mpi/refusal.hpp"
#include "aggregate/mpi/target.hpp"
#include "base/caught.hpp"

namespace twinrun::aggregation {

namespace {

// After MPI_Finalize no function of MPI may be called, not even to free our own objects.
bool mpi_runs() {
    int initialised = 0;
    int finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return initialised != 0 && finalised == 0;
}

Result<> make_group(twr_aggregate& a) {
    Team& team = *a.team;
    FileGroup& group = a.group;
    const auto file_of = [&](int rank) {
        switch (a.settings.files) {
            case Files::one: return 0;
            case Files::node:
                return static_cast<int>(team.node_of()[static_cast<std::size_t>(rank)]) /
                       a.settings.nodes_per_file;
            case Files::rank: return rank;
        }
        return 0;
    };
    group.file = file_of(team.rank());
    std::vector<bool> nodes(team.nodes(), false);
    group.nodes = 0;
    for (int rank = 0; rank < team.ranks(); ++rank) {
        group.files = std::max(group.files, file_of(rank) + 1);
        a.file_of.push_back(file_of(rank));
        if (file_of(rank) != group.file) continue;
        if (rank == team.rank()) group.rank = static_cast<int>(group.team_rank.size());
        const std::uint32_t node = team.node_of()[static_cast<std::size_t>(rank)];
        group.team_rank.push_back(rank);
        group.node_of.push_back(node);
        if (!nodes[node]) ++group.nodes;
        nodes[node] = true;
    }
    group.ranks = static_cast<int>(group.team_rank.size());
    return success();
}

// places: of each rank in the topology.
void make_everyone(twr_aggregate& a, std::vector<std::uint32_t> places) {
    Team& team = *a.team;
    FileGroup& group = a.everyone;
    group.comm = team.comm();
    group.rank = team.rank();
    group.ranks = team.ranks();
    for (int rank = 0; rank < team.ranks(); ++rank)
        group.team_rank.push_back(rank);
    group.node_of.assign(team.node_of().begin(), team.node_of().end());
    group.place_of = std::move(places);
    group.nodes = team.nodes();
}

// [collective]
Result<> make_group_comm(twr_aggregate& a) {
    Team& team = *a.team;
    FileGroup& group = a.group;
    if (group.files == 1) {
        group.comm = team.comm();
        return success();
    }
    const Watchdog::Guard guard(team.watchdog());
    TWR_MPI("MPI_Comm_split", MPI_Comm_split(team.comm(), group.file, team.rank(), &group.comm));
    MPI_Comm_set_errhandler(group.comm, MPI_ERRORS_RETURN);
    return success();
}

}  // namespace

void release(twr_aggregate* aggregate) {
    std::unique_ptr<twr_aggregate> a(aggregate);
    if (!a || !a->team) return;
    settle(*a);
    a->background.reset();
    // MPI's objects stay: freeing them would need the other ranks.
    if (!mpi_runs() || a->team->broken() || a->team->abandoned()) {
        static_cast<void>(a->plan.release());
        Team::leave(std::move(a->team));
        static_cast<void>(a.release());  // the plan refers to its members
        return;
    }
    a->stored.reset();
    a->whole.reset();
    a->plan.reset();
    if (a->group.comm != MPI_COMM_NULL && a->group.comm != a->team->comm()) {
        const Watchdog::Guard guard(a->team->watchdog());
        MPI_Comm_free(&a->group.comm);
    }
}

Result<> create(twr_aggregate** aggregate, MPI_Comm comm, const std::function<Result<Settings>()>& given) {
    if (aggregate == nullptr) return refuse("aggregate is NULL");
    *aggregate = nullptr;
    if (!mpi_runs()) return refuse("MPI is not initialised, or finalised already");
    if (comm == MPI_COMM_NULL) return refuse("the communicator is MPI_COMM_NULL");
    int between_groups = 0;
    MPI_Comm_test_inter(comm, &between_groups);
    if (between_groups != 0)
        return refuse("the communicator joins two groups: merge it with MPI_Intercomm_merge");
    // From here on every rank takes part, whatever its arguments.
    Result<Settings> settings = caught([&]() -> Result<Settings> {
        TWR_CHECK(not_refused());
        TWR_TRY(Settings own, given());
        return complete(std::move(own));
    });
    struct Release {
        void operator()(twr_aggregate* a) const { release(a); }
    };
    std::unique_ptr<twr_aggregate, Release> a;
    Result<> ready = caught([&]() -> Result<> {
        a.reset(new twr_aggregate);
        return success();
    });
    // The agreement below reports wrong arguments of this rank; until then the default time limit
    // counts.
    const double limit = settings ? settings->time_limit : kTimeLimit;
    auto team = Team::create(comm, limit, std::move(ready));
    if (!team) return team.error();
    a->team = std::move(*team);
    Team::Vote vote;
    vote.differs = "settings differ from those of rank 0";
    vote.mine = caught([&]() -> Result<> {
        if (!settings) return settings.error();
        a->settings = std::move(*settings);
        vote.same = hash_of(a->settings);
        return make_group(*a);
    });
    vote.on_root = [](Outcome& outcome) -> Result<> {
        outcome.payload[0] = random_number();
        return success();
    };
    TWR_TRY(const Outcome outcome, a->team->agree(vote));
    a->seed_of_names = outcome.payload[0];
    // An exception must not run destructors that are collective.
    try {
        TWR_CHECK(make_group_comm(*a));
        auto placed = place_ranks(*a->team, a->settings.topology);
        if (a->team->broken()) return a->team->why_broken();
        Team::Vote second;
        second.mine = caught([&]() -> Result<> {
            if (!placed) return placed.error();
            a->topology = std::move(placed->topology);
            for (const int rank : a->group.team_rank)
                a->group.place_of.push_back(placed->node_of[static_cast<std::size_t>(rank)]);
            make_everyone(*a, std::move(placed->node_of));
            a->plan = std::make_unique<Plan>(*a->team, a->settings, a->group, *a->topology);
            if (!a->settings.plan.empty()) {
                a->plan->keep_at(
                    a->group.files == 1
                        ? a->settings.plan
                        : sub_file_name(a->settings.plan, static_cast<std::size_t>(a->group.file)));
            }
            if (a->settings.whole && a->group.files > 1)
                a->whole = std::make_unique<Plan>(*a->team, a->settings, a->everyone, *a->topology);
            return success();
        });
        TWR_CHECK(a->team->agree(second));
    } catch (...) {
        Error error = caught_error();
        a->team->abandon(error);
        return error;
    }
    *aggregate = a.release();
    return success();
}

}  // namespace twinrun::aggregation
