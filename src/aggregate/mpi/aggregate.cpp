// The C interface of the aggregation: arguments in, results out, and the order of what happens between.
#include <twinrun/aggregate.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aggregate/mpi/index.hpp"
#include "aggregate/mpi/pipeline.hpp"
#include "aggregate/mpi/plan.hpp"
#include "aggregate/mpi/settings.hpp"
#include "aggregate/mpi/storage.hpp"
#include "aggregate/mpi/target.hpp"
#include "aggregate/mpi/team.hpp"
#include "aggregate/plan/layout.hpp"
#include "aggregate/topology/hosts.hpp"
#include "aggregate/topology/hwloc.hpp"
#include "base/caught.hpp"
#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/sized.hpp"

using namespace twinrun;
using namespace twinrun::aggregation;

static_assert(TWR_ERROR_OTHER_RANK == static_cast<int>(ErrorCode::other_rank));
static_assert(TWR_ERROR_INTERNAL == static_cast<int>(ErrorCode::internal));
static_assert(TWR_ERROR_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument));

namespace {

// Figures of an agreement at the end of a transfer.
enum Sum : std::size_t { kShared, kRemote, kDirect, kWindows };
enum Largest : std::size_t { kGather, kDirectSeconds, kStorage, kWait, kSync, kTotal };

struct Transfer {
    std::string path;
    Figures figures;
    double rename_seconds = 0;
};

}  // namespace

struct twr_aggregate_settings {
    Settings values;
};

struct twr_aggregate {
    Settings settings;
    std::unique_ptr<Team> team;
    FileGroup group;
    std::shared_ptr<const Topology> topology;
    std::unique_ptr<Plan> plan;
    std::uint64_t seed_of_names = 0;  // of partial files: rank 0's, the same on all
    std::uint64_t writes = 0;
    std::optional<Transfer> written;
    std::optional<Transfer> read;
    std::string report;
};

namespace {

// The thread's text is libtwinrun's (core/capi/status.cpp says why): it cuts what is too long.
int failed(const char* function, const Error& error) noexcept {
    char message[5000];
    std::snprintf(message, sizeof message, "%s: %s", function, error.message.c_str());
    return twr_fail(static_cast<int>(error.code), message);
}

template <class Body>
int answer(const char* function, Body&& body) noexcept {
    const Result<> result = caught(std::forward<Body>(body));
    return result ? static_cast<int>(TWR_OK) : failed(function, result.error());
}

// The same of a call that all ranks make: those who wait for this one hear of an exception.
template <class Body>
int answer_of_all(const char* function, twr_aggregate* aggregate, Body&& body) noexcept {
    try {
        const Result<> result = std::forward<Body>(body)();
        return result ? static_cast<int>(TWR_OK) : failed(function, result.error());
    } catch (...) {
        const Error error = caught_error();
        if (aggregate != nullptr) aggregate->team->abandon(error);
        return failed(function, error);
    }
}

Error refuse(const std::string& what) { return Error{ErrorCode::invalid_argument, what}; }

// After MPI_Finalize no function may be called, not even to free what is ours.
bool mpi_runs() {
    int initialised = 0;
    int finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return initialised != 0 && finalised == 0;
}

// ---- topology ----

struct HostWire {
    char name[256];
    char address[512];
    char pattern[256];
};

// [collective] Of all nodes, in their order.
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

// [collective] What scontrol says, if it is asked, rank 0 hears and tells.
Result<std::shared_ptr<const Topology>> find_topology(Team& team, const std::string& description) {
    TWR_TRY(const std::vector<Host> hosts, all_hosts(team));
    std::optional<Result<std::string>> heard;
    Result<std::shared_ptr<const Topology>> found = std::shared_ptr<const Topology>();
    if (team.rank() == 0) {
        found = topology_of_hosts(description, hosts, [&] {
            heard = run_scontrol();
            return *heard;
        });
    }
    const auto tell = [&](void* bytes, std::size_t count) -> Result<> {
        MPI_Request request = MPI_REQUEST_NULL;
        TWR_MPI("MPI_Ibcast", MPI_Ibcast(bytes, static_cast<int>(count), MPI_BYTE, 0, team.comm(), &request));
        return team.finish(request, "rank 0");
    };
    struct Heard {
        std::uint64_t about[2] = {0, 0};  // 0: not asked, 1: an answer, else 2 + an error's code; the length
        std::string text;
    };
    const Kept<Heard> kept(team);
    std::uint64_t(&about)[2] = kept->about;
    std::string& text = kept->text;
    if (heard) {
        text = heard->ok() ? heard->value() : heard->error().message;
        if (text.size() > (std::size_t{1} << 30)) text.clear();
        about[0] = heard->ok() ? 1 : 2 + static_cast<std::uint64_t>(heard->error().code);
        about[1] = text.size();
    }
    TWR_CHECK(tell(about, sizeof about));
    text.resize(about[1]);
    if (about[1] != 0) TWR_CHECK(tell(text.data(), text.size()));
    if (team.rank() == 0) return found;
    return topology_of_hosts(description, hosts, [&]() -> Result<std::string> {
        if (about[0] == 1) return text;
        if (about[0] == 0) return Error{ErrorCode::internal, "rank 0 did not ask scontrol"};
        return Error{static_cast<ErrorCode>(about[0] - 2), text};
    });
}

// Where each rank of the team is in the topology.
struct Placed {
    std::shared_ptr<const Topology> topology;
    std::vector<std::uint32_t> node_of;
};

// [collective] Nodes divided by what hwloc says of each; between nodes as "auto", or as the description's settings say.
Result<Placed> divided_nodes(Team& team, const std::string& description) {
    TWR_TRY(const HwlocDescription d, parse_hwloc(description));  // the same everywhere
    if (d.hosts != 0)
        return refuse("topology '" + description + "': hosts= is for plans; here it is MPI that knows them");
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
    Placed placed;
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

// [collective]
Result<Placed> place_ranks(Team& team, const std::string& description) {
    if (is_hwloc(description)) return divided_nodes(team, description);
    TWR_TRY(auto topology, find_topology(team, description));
    return Placed{std::move(topology), {team.node_of().begin(), team.node_of().end()}};
}

// ---- create ----

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

void release(twr_aggregate* aggregate) {
    std::unique_ptr<twr_aggregate> a(aggregate);
    if (!a || !a->team) return;
    if (!mpi_runs() || a->team->broken() ||
        a->team->abandoned()) {  // what is MPI's stays: freeing it would need the others
        static_cast<void>(a->plan.release());
        Team::leave(std::move(a->team));
        static_cast<void>(a.release());  // what the plan refers to
        return;
    }
    a->plan.reset();
    if (a->group.comm != MPI_COMM_NULL && a->group.comm != a->team->comm()) {
        const Watchdog::Guard guard(a->team->watchdog());
        MPI_Comm_free(&a->group.comm);
    }
}

// given(): the settings, as this rank has them.
template <class Given>
Result<> create(twr_aggregate** aggregate, MPI_Comm comm, Given&& given) {
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
    // Wrong arguments of this rank are said below: the others' time limit counts until then.
    const double limit = settings ? settings->time_limit : kTimeLimit;
    auto team = Team::create(comm, limit, std::move(ready));
    if (!team) return team.error();
    a->team = std::move(*team);
    Team::Vote vote;
    vote.same_of = "settings";
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
    // An exception must not unwind what the others would have to unwind too.
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
            a->plan = std::make_unique<Plan>(*a->team, a->settings, a->group, *a->topology);
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

// ---- declare ----

Result<std::vector<RankSet>> sets_of(const twr_aggregate_variable* variables, int count) {
    if (count < 0) return refuse("count is negative");
    if (variables == nullptr && count != 0) return refuse("variables is NULL");
    std::vector<DeclaredVariable> declared;
    for (int i = 0; i < count; ++i) {
        const twr_aggregate_variable& v = variables[i];
        declared.push_back({v.item_bytes, v.items, v.file_offset, v.file_stride, v.memory_stride});
    }
    return rank_sets(declared);
}

Result<> declare(twr_aggregate* a, const twr_aggregate_variable* variables, int count) {
    if (a == nullptr) return refuse("aggregate is NULL");
    return a->plan->declare(caught([&] { return sets_of(variables, count); }),
                            static_cast<std::uint64_t>(std::max(count, 0)));
}

// Where the variables of records go that have `before` items of other ranks in front of them, of `total` in all. nullopt: beyond
// what can be counted.
std::optional<std::vector<twr_aggregate_variable>> records(const std::vector<std::uint64_t>& item_bytes,
                                                           std::uint64_t items, std::uint64_t before,
                                                           std::uint64_t total, int layout,
                                                           std::uint64_t offset) {
    std::uint64_t record = 0;
    for (const std::uint64_t bytes : item_bytes) {
        const auto sum = checked_add(record, bytes);
        if (!sum) return std::nullopt;
        record = *sum;
    }
    const auto all = checked_multiply(record, total);
    if (!all || !checked_add(*all, offset)) return std::nullopt;
    std::vector<twr_aggregate_variable> variables;
    std::uint64_t passed = 0;  // bytes of an item in the variables before
    for (const std::uint64_t bytes : item_bytes) {
        twr_aggregate_variable v = {bytes, items, 0, 0, 0};
        switch (layout) {
            case TWR_RECORDS:
                v.file_offset = offset + record * before + passed;
                v.file_stride = record;
                break;
            case TWR_BLOCKS: v.file_offset = offset + record * before + passed * items; break;
            default: v.file_offset = offset + passed * total + bytes * before; break;
        }
        variables.push_back(v);
        passed += bytes;
    }
    return variables;
}

Result<> declare_records(twr_aggregate* a, const std::uint64_t* item_bytes, int count, std::uint64_t items,
                         int layout, std::uint64_t offset) {
    if (a == nullptr) return refuse("aggregate is NULL");
    Team::Vote vote;
    vote.same_of = "item_bytes, count, layout or file_offset";
    std::vector<std::uint64_t> bytes;
    struct Wires {
        std::uint64_t items = 0;
        std::vector<std::uint64_t> all;
    };
    const Kept<Wires> kept(*a->team);
    kept->items = items;
    std::vector<std::uint64_t>& of_all = kept->all;
    vote.mine = caught([&]() -> Result<> {
        if (count < 0 || (item_bytes == nullptr && count != 0))
            return refuse("item_bytes is NULL, or count is negative");
        if (layout != TWR_RECORDS && layout != TWR_BLOCKS && layout != TWR_VARIABLES) {
            return refuse("layout is " + std::to_string(layout) +
                          ", and may be TWR_RECORDS, TWR_BLOCKS or TWR_VARIABLES");
        }
        bytes.assign(item_bytes, item_bytes + count);
        of_all.resize(static_cast<std::size_t>(a->group.ranks));
        std::vector<std::uint64_t> all = bytes;
        all.push_back(static_cast<std::uint64_t>(layout));
        all.push_back(offset);
        vote.same = xxh3(std::as_bytes(std::span(all)));
        if (std::find(bytes.begin(), bytes.end(), 0U) != bytes.end()) return refuse("an item has no bytes");
        return success();
    });
    TWR_CHECK(a->team->agree(vote));
    MPI_Request request = MPI_REQUEST_NULL;
    TWR_MPI("MPI_Iallgather", MPI_Iallgather(&kept->items, 1, MPI_UINT64_T, of_all.data(), 1, MPI_UINT64_T,
                                             a->group.comm, &request));
    TWR_CHECK(a->team->finish(request, "the other ranks' number of items"));
    std::uint64_t before = 0;
    std::uint64_t total = 0;
    bool countable = true;
    for (std::size_t rank = 0; rank < of_all.size(); ++rank) {
        if (rank == static_cast<std::size_t>(a->group.rank)) before = total;
        const auto sum = checked_add(total, of_all[rank]);
        countable = countable && sum.has_value();
        total = sum.value_or(0);
    }
    auto sets = caught([&]() -> Result<std::vector<RankSet>> {
        const auto variables =
            countable ? records(bytes, items, before, total, layout, offset) : std::nullopt;
        if (!variables) return refuse("the file would end behind 2^63");
        return sets_of(variables->data(), count);
    });
    return a->plan->declare(std::move(sets), static_cast<std::uint64_t>(count));
}

// ---- write and read ----

std::string path_of(const twr_aggregate& a, const char* path) {
    if (a.group.files == 1) return path;
    return sub_file_name(path, static_cast<std::size_t>(a.group.file));
}

std::string files_text(std::size_t count) {
    return count == 1 ? std::string("one file") : std::to_string(count) + " files";
}

// Of rank 0: what the index says of an earlier write; nullopt where there is none, or none is kept.
Result<std::optional<Index>> earlier_index(const twr_aggregate& a, const char* path) {
    if (!a.settings.index || a.team->rank() != 0) return std::optional<Index>();
    auto found = read_index(path);
    // Beside one file something of this name is nobody's concern.
    if (!found && a.group.files == 1 && found.error().code == ErrorCode::invalid_argument)
        return std::optional<Index>();
    return found;
}

Result<> same_number(const twr_aggregate& a, const char* path, const Index& index, const char* doing) {
    const auto files = static_cast<std::size_t>(a.group.files);
    if (index.size() == files) return success();
    return Error{ErrorCode::mismatch, std::string(path) + ": was written as " + files_text(index.size()) +
                                          " (" + index_name(path) + "), and " + files_text(files) +
                                          " would be " + doing +
                                          ": as many ranks, nodes or nodes_per_file are needed as wrote it"};
}

Result<> check_arguments(const twr_aggregate& a, const char* path, const void* const* data) {
    if (!a.plan->declared())
        return refuse("nothing is declared (twr_aggregate_declare), or the last declaration failed");
    if (path == nullptr || *path == '\0') return refuse("path is NULL or empty");
    if (data == nullptr && a.plan->variables() != 0) return refuse("data is NULL");
    for (const RankSet& set : a.plan->sets()) {
        for (const Field& field : set.fields) {
            if (data[field.variable] == nullptr) {
                return refuse("data of variable " + std::to_string(field.variable) +
                              " is NULL, and it has items");
            }
        }
    }
    return success();
}

// [collective] Before several files are read or updated: as many were written as this aggregate has, so says their index. Else a rank
// would look for a file that never was, or make it.
Result<> check_index(twr_aggregate& a, const char* path, const void* const* data, bool reads) {
    if (!a.settings.index) return success();
    Team::Vote vote;
    vote.mine = caught([&] { return check_arguments(a, path, data); });
    vote.on_root = [&](Outcome&) {
        return caught([&]() -> Result<> {
            TWR_TRY(const std::optional<Index> index, earlier_index(a, path));
            if (index) return same_number(a, path, *index, reads ? "read" : "updated");
            if (!reads) return success();  // the first write makes them
            return Error{
                ErrorCode::not_found,
                index_name(path) +
                    ": is not there: a write of these files did not end, or something else wrote them; "
                    "write them again, or set no_index"};
        });
    };
    TWR_CHECK(a.team->agree(vote));
    return success();
}

void put_traits(Outcome& outcome, const StorageTraits& traits) {
    outcome.payload[0] = traits.block;
    outcome.payload[1] = traits.direct.least_bytes;
    outcome.payload[2] = traits.direct.alignment;
}

StorageTraits traits_in(const Outcome& outcome) {
    return {outcome.payload[0], {outcome.payload[1], outcome.payload[2]}};
}

Figures figures_of(const Work& work, double seconds) {
    Figures figures;
    figures.sums[kShared] = work.shared_bytes;
    figures.sums[kRemote] = work.remote_bytes;
    figures.sums[kDirect] = work.direct_bytes;
    figures.sums[kWindows] = work.windows;
    figures.largest[kGather] = work.gather_seconds;
    figures.largest[kDirectSeconds] = work.direct_seconds;
    figures.largest[kStorage] = work.storage_seconds;
    figures.largest[kWait] = work.wait_seconds;
    figures.largest[kTotal] = seconds;
    return figures;
}

// For the report. What all have agreed on is done, whether there is memory for this or not.
void note_transfer(std::optional<Transfer>& to, const char* path, const Figures& figures, double renamed) {
    to.reset();
    const auto noted = caught([&]() -> Result<> {
        to = Transfer{path, figures, renamed};
        return success();
    });
    static_cast<void>(noted);
}

// The pipeline of a transfer, after all ranks have agreed to begin; where the storage is of another kind than the plan is for, with
// another plan. `mine`: what is wrong on this rank.
Result<std::unique_ptr<Pipeline>> begin(twr_aggregate& a, Mode mode, void* const* data, const char* path,
                                        Result<> mine, const std::string& looked_at) {
    std::unique_ptr<Pipeline> pipeline;
    const auto make = [&]() -> Result<> {
        return caught([&]() -> Result<> {
            pipeline = std::make_unique<Pipeline>(*a.team, a.settings, a.group, *a.plan, mode, data);
            return pipeline->prepare();
        });
    };
    Team::Vote vote;
    vote.same_of = "path";
    vote.mine = caught([&]() -> Result<> {
        if (path != nullptr) vote.same = xxh3(std::string_view(path));
        TWR_CHECK(std::move(mine));
        return make();
    });
    vote.on_root = [&](Outcome& outcome) -> Result<> {
        TWR_TRY(const StorageTraits traits,
                caught([&] { return storage_traits(looked_at, a.settings.block_bytes); }));
        put_traits(outcome, traits);
        return success();
    };
    TWR_TRY(const Outcome outcome, a.team->agree(vote));
    if (traits_in(outcome) == a.plan->traits()) return pipeline;
    pipeline.reset();
    TWR_CHECK(a.plan->adapt(traits_in(outcome)));
    Team::Vote again;
    again.mine = make();
    TWR_CHECK(a.team->agree(again));
    return pipeline;
}

// What the partial file of this write has in its name: as hard to guess as the seed, and the same on all ranks without asking.
std::uint64_t number_of_write(const twr_aggregate& a) {
    const std::array<std::uint64_t, 2> both{a.seed_of_names, a.writes};
    return xxh3(std::as_bytes(std::span(both)));
}

Result<> write(twr_aggregate* a, const char* given, const void* const* data) {
    if (a == nullptr) return refuse("aggregate is NULL");
    ++a->writes;
    const auto start = Clock::now();
    const Settings& settings = a->settings;
    const bool root = a->group.rank == 0;
    if (a->group.files > 1 && settings.update) TWR_CHECK(check_index(*a, given, data, false));
    std::string path;
    std::string target;
    PartialFile partial;  // whatever goes wrong from here on: it is removed
    std::optional<Index> earlier;
    Result<> mine = caught([&]() -> Result<> {
        TWR_CHECK(check_arguments(*a, given, data));
        path = path_of(*a, given);
        TWR_TRY(earlier, earlier_index(*a, given));
        if (settings.update && earlier) TWR_CHECK(same_number(*a, given, *earlier, "updated"));
        target = settings.update ? path : partial_name(path, number_of_write(*a));
        if (!root) return success();
        return settings.update ? touch_file(path) : partial.create(path, target);
    });
    TWR_TRY(const auto pipeline,
            begin(*a, Mode::write, const_cast<void* const*>(reinterpret_cast<const void* const*>(data)),
                  given, std::move(mine), target));

    Team::Vote written;
    written.mine = pipeline->run(target);
    if (a->team->broken()) return a->team->why_broken();
    double sync_seconds = 0;
    // Once a node is enough, by its leader when all have written, where these are of one file.
    const bool each = settings.files == Files::rank || settings.backend == Backend::mpiio;
    if (settings.sync && each && written.mine) {
        const auto begin = Clock::now();
        written.mine = caught([&] { return pipeline->sync(); });
        sync_seconds = seconds_since(begin);
    }
    if (auto closed = caught([&] { return pipeline->close(); }); written.mine && !closed)
        written.mine = std::move(closed);
    if (settings.sync && !each) {
        written.on_node = [&](Outcome& outcome) -> Result<> {
            const auto begin = Clock::now();
            auto done = caught([&] { return sync_file(target, settings.update); });
            outcome.figures.largest[kSync] = std::max(outcome.figures.largest[kSync], seconds_since(begin));
            return done;
        };
    }
    const auto commit = [&](std::uint64_t& nanoseconds) -> Result<> {
        if (settings.update) return success();
        const auto begin = Clock::now();
        TWR_CHECK(caught([&] { return partial.commit(settings.sync); }));
        nanoseconds = static_cast<std::uint64_t>(seconds_since(begin) * 1e9);
        return success();
    };
    const auto files = static_cast<std::size_t>(a->group.files);
    if (files == 1) {
        written.on_root = [&](Outcome& outcome) -> Result<> {
            TWR_CHECK(commit(outcome.payload[0]));
            if (!earlier || settings.update) return success();
            // The file is in place: sub-files of an earlier write are of the past.
            return caught([&]() -> Result<> {
                TWR_CHECK(remove_index(given, settings.sync));
                remove_sub_files(given, *earlier, 0);
                return success();
            });
        };
    } else if (earlier && !settings.update) {
        // From now until all are in place there is no index, for they are of two writes.
        written.on_root = [&](Outcome&) {
            return caught([&] { return remove_index(given, settings.sync); });
        };
    }
    written.figures = figures_of(pipeline->work(), seconds_since(start));
    written.figures.largest[kSync] = sync_seconds;
    TWR_TRY(Outcome outcome, a->team->agree(written));
    if (files > 1) {
        Team::Vote committed;
        if (root) committed.mine = commit(outcome.payload[0]);
        if (settings.index) {
            committed.on_root = [&](Outcome&) {
                return caught([&]() -> Result<> {
                    TWR_TRY(const Index index, look_at_sub_files(given, files));
                    TWR_CHECK(write_index(given, index, settings.update, settings.sync));
                    if (earlier) remove_sub_files(given, *earlier, files);
                    return success();
                });
            };
        }
        TWR_CHECK(a->team->agree(committed));
    }
    const double renamed = a->group.files == 1 ? static_cast<double>(outcome.payload[0]) * 1e-9 : 0;
    note_transfer(a->written, given, outcome.figures, renamed);
    return success();
}

Result<> read(twr_aggregate* a, const char* given, void* const* data) {
    if (a == nullptr) return refuse("aggregate is NULL");
    const auto start = Clock::now();
    if (a->group.files > 1) TWR_CHECK(check_index(*a, given, data, true));
    std::string path;
    Result<> mine = caught([&]() -> Result<> {
        TWR_CHECK(check_arguments(*a, given, data));
        path = path_of(*a, given);
        if (a->group.files == 1) {
            TWR_TRY(const std::optional<Index> index, earlier_index(*a, given));
            if (index) TWR_CHECK(same_number(*a, given, *index, "read"));
        }
        if (a->group.rank != 0) return success();
        TWR_TRY(const std::uint64_t size, file_size(path));
        const std::uint64_t end = a->plan->table().span().end;
        if (size >= end) return success();
        return Error{ErrorCode::damaged,
                     path + ": has " + std::to_string(size) + " bytes, and " + std::to_string(end) +
                         " are declared: it is not the file that was written, or it was cut"};
    });
    TWR_TRY(const auto pipeline, begin(*a, Mode::read, data, given, std::move(mine), path));
    Team::Vote done;
    done.mine = pipeline->run(path);
    if (a->team->broken()) return a->team->why_broken();
    if (auto closed = caught([&] { return pipeline->close(); }); done.mine && !closed)
        done.mine = std::move(closed);
    done.figures = figures_of(pipeline->work(), seconds_since(start));
    TWR_TRY(const Outcome outcome, a->team->agree(done));
    note_transfer(a->read, given, outcome.figures, 0);
    return success();
}

// ---- report ----

twr_aggregate_transfer figures_of(const Transfer& transfer) {
    const auto& sums = transfer.figures.sums;
    const auto& largest = transfer.figures.largest;
    const auto count = [](double value) { return static_cast<std::uint64_t>(value); };
    twr_aggregate_transfer figures{};
    figures.size = sizeof figures;
    figures.bytes = count(sums[kShared] + sums[kRemote] + sums[kDirect]);
    figures.bytes_by_node_memory = count(sums[kShared]);
    figures.bytes_from_other_nodes = count(sums[kRemote]);
    figures.bytes_direct = count(sums[kDirect]);
    figures.windows = count(sums[kWindows]);
    figures.total_seconds = largest[kTotal] + transfer.rename_seconds;
    figures.gather_seconds = largest[kGather];
    figures.direct_seconds = largest[kDirectSeconds];
    figures.storage_seconds = largest[kStorage];
    figures.wait_seconds = largest[kWait];
    figures.sync_seconds = largest[kSync];
    figures.rename_seconds = transfer.rename_seconds;
    return figures;
}

Result<> fill(const std::optional<Transfer>& done, const char* verb, twr_aggregate_transfer* to) {
    if (to == nullptr) return refuse("transfer is NULL");
    const std::size_t size = to->size;
    constexpr std::size_t kLeast =
        offsetof(twr_aggregate_transfer, rename_seconds) + sizeof to->rename_seconds;
    TWR_CHECK(check_size(size, sizeof(twr_aggregate_transfer), kLeast, "twr_aggregate_transfer"));
    if (!done) return Error{ErrorCode::not_found, std::string("nothing has been ") + verb + " yet"};
    twr_aggregate_transfer filled = figures_of(*done);
    filled.size = size;
    std::memset(to, 0, size);
    std::memcpy(to, &filled, std::min(size, sizeof filled));
    return success();
}

nlohmann::json transfer_report(const Transfer& transfer, bool written) {
    const twr_aggregate_transfer figures = figures_of(transfer);
    nlohmann::json seconds = {{"total", figures.total_seconds},
                              {"gather", figures.gather_seconds},
                              {"direct", figures.direct_seconds},
                              {"storage", figures.storage_seconds},
                              {"wait", figures.wait_seconds}};
    if (written) {
        seconds["sync"] = figures.sync_seconds;
        seconds["rename"] = figures.rename_seconds;
    }
    return {{"path", transfer.path},
            {"bytes", figures.bytes},
            {"bytes_by_node_memory", figures.bytes_by_node_memory},
            {"bytes_from_other_nodes", figures.bytes_from_other_nodes},
            {"bytes_direct", figures.bytes_direct},
            {"windows", figures.windows},
            {"seconds", seconds}};
}

std::string report_of(const twr_aggregate& a) {
    const Plan& plan = *a.plan;
    nlohmann::json report = {{"ranks", a.team->ranks()},
                             {"nodes", a.team->nodes()},
                             {"files", a.group.files},
                             {"file", a.group.file},
                             {"topology", a.topology->name()},
                             {"placement", placement_name(a.settings.placement)},
                             {"backend", backend_name(a.settings.backend)},
                             {"buffers", a.settings.buffers},
                             {"update", a.settings.update},
                             {"sync", a.settings.sync}};
    if (plan.declared()) {
        nlohmann::json partitions = nlohmann::json::array();
        for (const Partition& partition : plan.partitions()) {
            double bytes = 0;
            for (const Contribution& member : partition.members)
                bytes += static_cast<double>(member.bytes);
            nlohmann::json entry = {
                {"begin", partition.range.begin},
                {"end", partition.range.end},
                {"bytes", static_cast<std::uint64_t>(bytes)},
                {"ranks", partition.members.size()},
                {"aggregator", a.group.team_rank[partition.aggregator]},
                {"node", a.group.node_of[partition.aggregator]},
                {"gateway", partition.gateway},
                {"cost", {{"gather", partition.cost.gather}, {"write", partition.cost.write}}}};
            if (is_hwloc(a.settings.topology)) {
                entry["place"] = place_words(a.topology->inner_place(a.group.place_of[partition.aggregator]));
            }
            partitions.push_back(std::move(entry));
        }
        report["declared"] = {{"bytes", plan.table().bytes()},
                              {"sets", plan.table().sets().size()},
                              {"begin", plan.table().span().begin},
                              {"end", plan.table().span().end},
                              {"block_bytes", plan.traits().block},
                              {"buffer_bytes", plan.buffer_bytes()},
                              {"members", members_name(plan.members())},
                              {"election_rounds", plan.election_rounds()},
                              {"seconds", plan.seconds()},
                              {"partitions", std::move(partitions)}};
    }
    if (a.written) report["write"] = transfer_report(*a.written, true);
    if (a.read) report["read"] = transfer_report(*a.read, false);
    return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

extern "C" {

const char* twr_aggregate_error_message(void) { return twr_error_message(); }

int twr_aggregate_settings_create(twr_aggregate_settings** settings) {
    return answer("twr_aggregate_settings_create", [&]() -> Result<> {
        if (settings == nullptr) return refuse("settings is NULL");
        *settings = nullptr;
        *settings = new twr_aggregate_settings;
        return success();
    });
}

int twr_aggregate_settings_set(twr_aggregate_settings* settings, const char* name, const char* value) {
    return answer("twr_aggregate_settings_set", [&]() -> Result<> {
        if (settings == nullptr) return refuse("settings is NULL");
        if (name == nullptr) return refuse("name is NULL");
        if (value == nullptr) return refuse(std::string("the value of ") + name + " is NULL");
        return settings->values.set(name, value);
    });
}

int twr_aggregate_settings_load(twr_aggregate_settings* settings, const char* path) {
    return answer("twr_aggregate_settings_load", [&]() -> Result<> {
        if (settings == nullptr) return refuse("settings is NULL");
        if (path == nullptr) return refuse("path is NULL");
        return settings->values.load(path);
    });
}

void twr_aggregate_settings_destroy(twr_aggregate_settings* settings) { delete settings; }

int twr_aggregate_create(twr_aggregate** aggregate, MPI_Comm comm, const twr_aggregate_options* options) {
    return answer_of_all("twr_aggregate_create", nullptr,
                         [&] { return create(aggregate, comm, [&] { return settings_of(options); }); });
}

int twr_aggregate_create_with(twr_aggregate** aggregate, MPI_Comm comm,
                              const twr_aggregate_settings* settings) {
    return answer_of_all("twr_aggregate_create_with", nullptr, [&] {
        return create(aggregate, comm, [&]() -> Result<Settings> {
            return settings == nullptr ? Settings() : settings->values;
        });
    });
}

int twr_aggregate_file(const twr_aggregate* a, int* file, int* files, int* rank, int* ranks, MPI_Comm* comm) {
    return answer("twr_aggregate_file", [&]() -> Result<> {
        if (a == nullptr) return refuse("aggregate is NULL");
        if (file != nullptr) *file = a->group.file;
        if (files != nullptr) *files = a->group.files;
        if (rank != nullptr) *rank = a->group.rank;
        if (ranks != nullptr) *ranks = a->group.ranks;
        if (comm != nullptr) *comm = a->group.comm;
        return success();
    });
}

int twr_aggregate_declare(twr_aggregate* aggregate, const twr_aggregate_variable* variables, int count) {
    return answer_of_all("twr_aggregate_declare", aggregate,
                         [&] { return declare(aggregate, variables, count); });
}

int twr_aggregate_declare_records(twr_aggregate* aggregate, const uint64_t* item_bytes, int count,
                                  uint64_t items, int layout, uint64_t file_offset) {
    return answer_of_all("twr_aggregate_declare_records", aggregate, [&] {
        return declare_records(aggregate, item_bytes, count, items, layout, file_offset);
    });
}

int twr_aggregate_write(twr_aggregate* aggregate, const char* path, const void* const* data) {
    return answer_of_all("twr_aggregate_write", aggregate, [&] { return write(aggregate, path, data); });
}

int twr_aggregate_read(twr_aggregate* aggregate, const char* path, void* const* data) {
    return answer_of_all("twr_aggregate_read", aggregate, [&] { return read(aggregate, path, data); });
}

int twr_aggregate_last_write(const twr_aggregate* aggregate, twr_aggregate_transfer* transfer) {
    return answer("twr_aggregate_last_write", [&]() -> Result<> {
        if (aggregate == nullptr) return refuse("aggregate is NULL");
        return fill(aggregate->written, "written", transfer);
    });
}

int twr_aggregate_last_read(const twr_aggregate* aggregate, twr_aggregate_transfer* transfer) {
    return answer("twr_aggregate_last_read", [&]() -> Result<> {
        if (aggregate == nullptr) return refuse("aggregate is NULL");
        return fill(aggregate->read, "read", transfer);
    });
}

const char* twr_aggregate_report(twr_aggregate* aggregate) {
    if (aggregate == nullptr) return "{}";
    const auto made = caught([&]() -> Result<> {
        aggregate->report = report_of(*aggregate);
        return success();
    });
    return made ? aggregate->report.c_str() : "{}";
}

void twr_aggregate_free(twr_aggregate* aggregate) { release(aggregate); }

}  // extern "C"
