#include "aggregate/mpi/rank_places.hpp"

#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "aggregate/topology/hosts.hpp"
#include "aggregate/topology/hwloc.hpp"
#include "base/caught.hpp"

namespace twinrun::aggregation {

namespace {

struct HostWire {
    char name[256];
    char address[512];
    char pattern[256];
};

// [collective] The hosts of all nodes, in the order of nodes.
Result<std::vector<Host>> all_hosts(Team& team) {
    struct Wires {
        HostWire own = {};
        std::vector<HostWire> all;
    };
    const Kept<Wires> kept(team);
    kept->all.resize(team.nodes());
    std::vector<HostWire>& wires = kept->all;
    const auto bytes = static_cast<int>(sizeof(HostWire));
    if (team.leader()) {
        const Host host = this_host();
        HostWire& own = kept->own;
        std::snprintf(own.name, sizeof own.name, "%s", host.name.c_str());
        std::snprintf(own.address, sizeof own.address, "%s", host.address.c_str());
        std::snprintf(own.pattern, sizeof own.pattern, "%s", host.pattern.c_str());
        if (team.leaders() == MPI_COMM_NULL) {
            wires[0] = own;
        } else {
            MPI_Request request = MPI_REQUEST_NULL;
            TWR_MPI("MPI_Iallgather", MPI_Iallgather(&own, bytes, MPI_BYTE, wires.data(), bytes, MPI_BYTE,
                                                     team.leaders(), &request));
            TWR_CHECK(team.finish(request, "the other nodes"));
        }
    }
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(bytes, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    const int code =
        MPI_Ibcast(wires.data(), static_cast<int>(wires.size()), type, 0, team.node_comm(), &request);
    MPI_Type_free(&type);
    TWR_MPI("MPI_Ibcast", code);
    TWR_CHECK(team.finish(request, "the leader of this node"));
    std::vector<Host> hosts;
    for (const HostWire& wire : wires)
        hosts.push_back({wire.name, wire.address, wire.pattern});
    return hosts;
}

// [collective] Rank 0 finds the topology. If that takes scontrol, the others find theirs in the
// text that rank 0 read and broadcast.
Result<std::shared_ptr<const Topology>> find_topology(Team& team, const std::string& description) {
    TWR_TRY(const std::vector<Host> hosts, all_hosts(team));
    std::optional<Result<std::string>> output;  // of scontrol
    Result<std::shared_ptr<const Topology>> found = std::shared_ptr<const Topology>();
    if (team.rank() == 0) {
        found = topology_of_hosts(description, hosts, [&] {
            output = run_scontrol();
            return *output;
        });
    }
    const auto broadcast = [&](void* bytes, std::size_t count) -> Result<> {
        MPI_Request request = MPI_REQUEST_NULL;
        TWR_MPI("MPI_Ibcast", MPI_Ibcast(bytes, static_cast<int>(count), MPI_BYTE, 0, team.comm(), &request));
        return team.finish(request, "rank 0");
    };
    struct Wires {
        // The text's length behind: 0 where scontrol did not run, 1 where it gave the text, 2 + an
        // error's code where the text is the error's.
        std::uint64_t about[2] = {0, 0};
        std::string text;
    };
    const Kept<Wires> kept(team);
    std::uint64_t(&about)[2] = kept->about;
    std::string& text = kept->text;
    if (output) {
        text = output->ok() ? output->value() : output->error().message;
        if (text.size() > (std::size_t{1} << 30)) text.clear();
        about[0] = output->ok() ? 1 : 2 + static_cast<std::uint64_t>(output->error().code);
        about[1] = text.size();
    }
    TWR_CHECK(broadcast(about, sizeof about));
    text.resize(about[1]);
    if (about[1] != 0) TWR_CHECK(broadcast(text.data(), text.size()));
    if (team.rank() == 0) return found;
    return topology_of_hosts(description, hosts, [&]() -> Result<std::string> {
        if (about[0] == 1) return text;
        if (about[0] == 0) return Error{ErrorCode::internal, "rank 0 did not ask scontrol"};
        return Error{static_cast<ErrorCode>(about[0] - 2), text};
    });
}

// [collective] A topology whose nodes are places within hosts, as hwloc describes each host.
// Between hosts: as "auto", or with the latency and bandwidths that the description sets.
Result<RankPlaces> divided_nodes(Team& team, const std::string& description) {
    TWR_TRY(const HwlocDescription d, parse_hwloc(description));  // the same everywhere
    if (d.hosts != 0)
        return Error{ErrorCode::invalid_argument,
                     "topology '" + description + "': hosts= is for plans; here MPI knows the hosts"};
    Team::Vote vote;
    struct Wires {
        InnerPlace own;
        std::vector<InnerPlace> all;
    };
    const Kept<Wires> kept(team);
    InnerPlace& own = kept->own;
    std::vector<InnerPlace>& all = kept->all;
    vote.mine = caught([&]() -> Result<> {
        all.resize(static_cast<std::size_t>(team.ranks()));
        TWR_TRY(own, place_of_process(d, static_cast<std::uint32_t>(team.node_rank_of(team.rank()))));
        return success();
    });
    TWR_CHECK(team.agree(vote));
    MPI_Request request = MPI_REQUEST_NULL;
    constexpr int kWords = InnerPlace::kLevels;
    TWR_MPI("MPI_Iallgather", MPI_Iallgather(own.parts.data(), kWords, MPI_UINT32_T, all.data(), kWords,
                                             MPI_UINT32_T, team.comm(), &request));
    TWR_CHECK(team.finish(request, "the other ranks' places"));
    std::shared_ptr<const Topology> hosts;
    if (d.network.latency || d.network.bandwidth || d.network.gateway_bandwidth) {
        hosts = make_flat(team.nodes(), d.network);
    } else {
        TWR_TRY(hosts, find_topology(team, "auto"));
    }
    RankPlaces placed;
    std::vector<HostPlace> places;
    std::map<HostPlace, std::uint32_t> numbers;  // in the order of their first ranks
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const HostPlace place{team.node_of()[rank], all[rank]};
        const auto [at, added] = numbers.try_emplace(place, static_cast<std::uint32_t>(places.size()));
        if (added) places.push_back(place);
        placed.node_of.push_back(at->second);
    }
    const std::string name = "hwloc, " + std::to_string(places.size()) + " places in " + hosts->name();
    TWR_TRY(placed.topology, make_places(std::move(hosts), std::move(places), d.inner, name));
    return placed;
}

}  // namespace

Result<RankPlaces> place_ranks(Team& team, const std::string& description) {
    if (is_hwloc(description)) return divided_nodes(team, description);
    TWR_TRY(auto topology, find_topology(team, description));
    return RankPlaces{std::move(topology), {team.node_of().begin(), team.node_of().end()}};
}

}  // namespace twinrun::aggregation
