#include "jobs.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <string_view>
#include <utility>

#include "aggregate/plan/exits.hpp"

namespace twinrun::simulation {

namespace {

// Bytes of HACC's variables: xx yy zz vx vy vz phi, pid, mask.
constexpr std::array<std::uint64_t, 9> kItems{4, 4, 4, 4, 4, 4, 4, 8, 2};
constexpr std::uint64_t kRecord = 38;

Error wrong(const std::string& text) { return Error{ErrorCode::invalid_argument, text}; }

bool whole(std::string_view text, std::uint64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

// "0-31+64-95"
bool nodes_of(std::string_view text, std::uint32_t count, std::vector<std::uint32_t>& nodes) {
    while (!text.empty()) {
        const std::size_t plus = std::min(text.find('+'), text.size());
        const std::string_view part = text.substr(0, plus);
        const std::size_t dash = part.find('-');
        std::uint64_t first = 0;
        std::uint64_t last = 0;
        if (dash == std::string_view::npos || !whole(part.substr(0, dash), first) ||
            !whole(part.substr(dash + 1), last) || first > last || last >= count)
            return false;
        for (std::uint64_t node = first; node <= last; ++node)
            nodes.push_back(static_cast<std::uint32_t>(node));
        text.remove_prefix(std::min(plus + 1, text.size()));
    }
    return !nodes.empty();
}

Result<std::vector<std::uint64_t>> bytes_of_ranks(const Job& job, std::uint32_t ranks) {
    VolumeModel model{.kind = VolumeModel::Kind::uniform,
                      .mean = job.particles * kRecord,
                      .unit = kRecord,
                      .seed = job.seed};
    const std::size_t colon = std::min(job.volumes.find(':'), job.volumes.size());
    const std::string name = job.volumes.substr(0, colon);
    std::uint64_t number = 0;
    if (colon < job.volumes.size() && !whole(std::string_view(job.volumes).substr(colon + 1), number))
        return wrong("volumes: a whole number behind the colon");
    if (name == "lognormal") {
        model.kind = VolumeModel::Kind::lognormal;
        model.spread = static_cast<double>(number);
    } else if (name == "skewed") {  // as `twinrun aggregate plan` has it
        model.kind = VolumeModel::Kind::heavy;
        model.spread = 64;
        model.every = 256;
    } else if (name != "uniform") {
        return wrong("volumes: uniform, lognormal:N or skewed");
    }
    return volumes_of(model, ranks);
}

// The dense sets of a file's ranks; `only`: of one variable, else of all.
class File {
   public:
    File(const Job& job, std::vector<std::uint64_t> volumes, std::uint32_t first_rank)
        : job_(job), volumes_(std::move(volumes)), first_rank_(first_rank) {
        total_ = std::accumulate(volumes_.begin(), volumes_.end(), std::uint64_t{0});
        if (job.layout == PlanLayout::variables) {
            std::uint64_t offset = 0;
            for (const std::uint64_t item : kItems)
                offset = add_variable(item, kRecord, offset);
        } else {
            add_variable(1, 1, 0);
        }
        for (const OwnedSet& owned : sets_)
            ends_.push_back(owned.set.end());
    }
    [[nodiscard]] std::uint64_t total() const { return total_; }
    [[nodiscard]] const std::vector<OwnedSet>& sets() const { return sets_; }
    [[nodiscard]] std::uint32_t node(std::uint32_t rank) const {
        return job_.nodes[rank / job_.ranks_per_node];
    }
    [[nodiscard]] std::uint32_t first_rank() const { return first_rank_; }
    [[nodiscard]] const std::vector<std::uint64_t>& volumes() const { return volumes_; }

    // The bytes of each node in a range; of each only `part` of `whole`.
    [[nodiscard]] std::vector<NodeBytes> within(Range range, std::uint64_t part, std::uint64_t whole) const {
        std::vector<NodeBytes> found;
        auto at = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), range.begin) -
                                           ends_.begin());
        for (; at < sets_.size() && sets_[at].set.begin() < range.end; ++at) {
            const std::uint64_t bytes = bytes_in(sets_[at].set, range);
            const std::uint32_t where = node(sets_[at].rank);
            if (found.empty() || found.back().node != where) found.push_back({where, 0});
            found.back().bytes += bytes;
        }
        std::stable_sort(found.begin(), found.end(),
                         [](const NodeBytes& a, const NodeBytes& b) { return a.node < b.node; });
        std::vector<NodeBytes> joined;
        for (const NodeBytes& one : found) {
            if (joined.empty() || joined.back().node != one.node) joined.push_back({one.node, 0});
            joined.back().bytes += one.bytes;
        }
        for (NodeBytes& one : joined)
            one.bytes = (one.bytes * part + whole - 1) / whole;
        return joined;
    }

   private:
    std::uint64_t add_variable(std::uint64_t item, std::uint64_t record, std::uint64_t offset) {
        for (std::uint32_t r = 0; r < volumes_.size(); ++r) {
            const std::uint64_t bytes = volumes_[r] / record * item;
            if (bytes != 0) sets_.push_back({StridedSet{offset, bytes, 1, bytes}, first_rank_ + r});
            offset += bytes;
        }
        return offset;
    }
    const Job& job_;
    std::vector<std::uint64_t> volumes_;
    std::uint32_t first_rank_;
    std::uint64_t total_ = 0;
    std::vector<OwnedSet> sets_;  // ascending, without gaps
    std::vector<std::uint64_t> ends_;
};

// The ranks that aggregate the parts of a file, which lie in this order.
struct Aggregators {
    std::vector<std::uint32_t> ranks;
    std::vector<std::uint32_t> gateways;  // of the partitions, for these aggregators
};

Aggregators choose(const Job& job, const Topology& topology, const File& file,
                   const std::vector<std::vector<Contribution>>& sets, std::uint32_t number) {
    Aggregators chosen;
    if (job.choice == Choice::elected) {
        const std::vector<Exit> exits = exits_of(topology, job.placement, sets);
        for (const Election& one : elect(topology, job.placement, sets, exits, job.seed + number)) {
            chosen.ranks.push_back(one.rank);
            chosen.gateways.push_back(one.gateway);
        }
        return chosen;
    }
    for (const auto& contributions : sets)
        chosen.gateways.push_back(gateway_of_partition(topology, contributions));
    const auto nodes =
        static_cast<std::uint32_t>((file.volumes().size() + job.ranks_per_node - 1) / job.ranks_per_node);
    for (std::uint32_t p = 0; p < sets.size(); ++p)
        chosen.ranks.push_back(file.first_rank() + p % nodes * job.ranks_per_node);
    return chosen;
}

std::uint64_t parts_of(const Job& job, const File& file) {
    if (job.choice != Choice::nodes) return job.aggregators;
    return (file.volumes().size() + job.ranks_per_node - 1) / job.ranks_per_node;
}

// Cuts a range of the file, chooses aggregators, and adds their windows.
void add_windows(const Job& job, const Topology& topology, const File& file, const FileTable& table,
                 std::uint32_t number, Moved& moved) {
    const std::vector<Range> ranges = make_partitions(table, parts_of(job, file), job.block);
    std::vector<std::uint32_t> node_of(moved.ranks);
    for (std::uint32_t r = 0; r < moved.ranks; ++r)
        node_of[r] = file.node(r);
    std::vector<std::vector<Contribution>> sets;
    for (const Range& range : ranges)
        sets.push_back(contributions_to(table, range, node_of));
    const Aggregators chosen = choose(job, topology, file, sets, number);
    for (std::size_t p = 0; p < ranges.size(); ++p) {
        MovedPartition part{number, chosen.ranks[p], node_of[chosen.ranks[p]], chosen.gateways[p], {}};
        if (job.own_gateway) part.gateway = topology.gateway_of(part.node);
        const PartitionPlan plan(table, ranges[p], DirectRule{}, job.buffer_bytes, job.block);
        for (const Window& window : plan.windows()) {
            const Range range = window.data;
            part.windows.push_back({range, false, file.within(range, 1, 1), 0});
        }
        moved.partitions.push_back(std::move(part));
    }
}

// Whether holes lie between what a call writes: all ranks have one variable of each record.
bool holes(const Job& job) { return job.layout != PlanLayout::variables; }

// A call a variable. File domains: the range of the call in equal shares, cut at blocks.
void add_calls(const Job& job, const Topology& topology, const File& file, std::uint32_t number,
               Moved& moved) {
    const std::size_t first = moved.partitions.size();
    std::uint32_t round = 0;
    std::uint64_t offset = 0;
    for (const std::uint64_t item : kItems) {
        Range call{0, file.total()};
        if (!holes(job)) call = {offset, offset + file.total() / kRecord * item};
        offset = call.end;
        std::vector<OwnedSet> sets;
        for (const OwnedSet& owned : file.sets()) {
            if (owned.set.begin() >= call.begin && owned.set.begin() < call.end) sets.push_back(owned);
        }
        Moved of_call{moved.bytes, moved.ranks, {}};
        add_windows(job, topology, file, FileTable(std::move(sets)), number, of_call);
        std::uint32_t rounds = 0;
        for (std::size_t p = 0; p < of_call.partitions.size(); ++p) {
            MovedPartition& part = of_call.partitions[p];
            if (first + p == moved.partitions.size())
                moved.partitions.push_back({number, part.rank, part.node, part.gateway, {}});
            rounds = std::max(rounds, static_cast<std::uint32_t>(part.windows.size()));
            for (std::size_t w = 0; w < part.windows.size(); ++w) {
                MovedWindow& window = part.windows[w];
                window.round = round + static_cast<std::uint32_t>(w);
                window.read_first = holes(job);
                if (holes(job)) window.gathered = file.within(window.range, item, kRecord);
                moved.partitions[first + p].windows.push_back(std::move(window));
            }
        }
        round += rounds;
    }
}

// Ranks of a node are one flow; nobody gathers.
void add_posix(const Job& job, const Topology& topology, const File& file, std::uint32_t number,
               Moved& moved) {
    std::vector<std::vector<Range>> of_node;
    for (const OwnedSet& owned : file.sets()) {
        const std::uint32_t at = (owned.rank - file.first_rank()) / job.ranks_per_node;
        if (of_node.size() <= at) of_node.resize(at + 1);
        auto& ranges = of_node[at];
        if (!ranges.empty() && ranges.back().end == owned.set.begin()) {
            ranges.back().end = owned.set.end();
        } else {
            ranges.push_back({owned.set.begin(), owned.set.end()});
        }
    }
    for (std::uint32_t at = 0; at < of_node.size(); ++at) {
        const std::uint32_t rank = file.first_rank() + at * job.ranks_per_node;
        const std::uint32_t node = file.node(rank);
        MovedPartition part{number, rank, node, topology.gateway_of(node), {}};
        for (const Range& range : of_node[at])
            part.windows.push_back({range, false, {}, 0});
        moved.partitions.push_back(std::move(part));
    }
}

}  // namespace

Result<Moved> moved_by(const Job& job, const Topology& topology) {
    if (job.layout != PlanLayout::variables && job.layout != PlanLayout::records)
        return wrong("layout: records or variables");
    const std::uint64_t room = job.nodes.size() * job.ranks_per_node;
    Moved moved;
    moved.ranks = job.ranks == 0 ? static_cast<std::uint32_t>(room) : job.ranks;
    if (moved.ranks > room) return wrong("more ranks than the nodes hold");
    TWR_TRY(const std::vector<std::uint64_t> volumes, bytes_of_ranks(job, moved.ranks));
    const std::uint32_t per_file =
        job.nodes_per_file == 0 ? moved.ranks : job.nodes_per_file * job.ranks_per_node;
    std::uint32_t number = 0;
    for (std::uint32_t begin = 0; begin < moved.ranks; begin += per_file, ++number) {
        const std::uint32_t end = std::min(moved.ranks, begin + per_file);
        const File file(job, {volumes.begin() + begin, volumes.begin() + end}, begin);
        moved.bytes += file.total();
        if (file.total() == 0) continue;
        switch (job.method) {
            case Method::aggregate:
                add_windows(job, topology, file, FileTable(file.sets()), number, moved);
                break;
            case Method::calls: add_calls(job, topology, file, number, moved); break;
            case Method::posix: add_posix(job, topology, file, number, moved); break;
        }
    }
    return moved;
}

namespace {

// Sets what one word of a description names. False: unknown, or no value of that kind.
bool set_choice(Job& job, std::string_view name, const std::string& value) {
    if (name == "method") {
        constexpr std::array<std::string_view, 3> kNames{"aggregate", "calls", "posix"};
        const auto at = std::find(kNames.begin(), kNames.end(), value);
        job.method = static_cast<Method>(at - kNames.begin());
        return at != kNames.end();
    }
    if (name == "placement") {
        job.choice = value == "first" ? Choice::first : value == "nodes" ? Choice::nodes : Choice::elected;
        if (job.choice != Choice::elected) return true;
        const auto found = placement_of(value);
        if (found) job.placement = *found;
        return static_cast<bool>(found);
    }
    if (name == "layout") {
        const auto found = plan_layout_of(value);
        if (found) job.layout = *found;
        return static_cast<bool>(found);
    }
    if (name == "gateway") {
        job.own_gateway = value == "own";
        return value == "own" || value == "partition";
    }
    if (name == "volumes") job.volumes = value;
    return name == "volumes";
}

bool set_number(Job& job, std::string_view name, std::uint64_t value) {
    const std::array<std::pair<std::string_view, std::uint32_t*>, 5> small{
        {{"ranks_per_node", &job.ranks_per_node},
         {"ranks", &job.ranks},
         {"nodes_per_file", &job.nodes_per_file},
         {"aggregators", &job.aggregators},
         {"buffers", &job.buffers}}};
    for (const auto& [known, to] : small) {
        if (name == known) *to = static_cast<std::uint32_t>(value);
        if (name == known) return value <= kMostNodes;
    }
    const std::array<std::pair<std::string_view, std::uint64_t*>, 4> large{{{"particles", &job.particles},
                                                                            {"buffer", &job.buffer_bytes},
                                                                            {"block", &job.block},
                                                                            {"seed", &job.seed}}};
    for (const auto& [known, to] : large) {
        if (name == known) *to = value;
        if (name == known) return value <= std::uint64_t{1} << 40;
    }
    if (name == "start_ms") job.start = static_cast<double>(value) / 1000;
    return name == "start_ms";
}

}  // namespace

Result<Job> job_of(const std::string& text, const Topology& topology) {
    Job job;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        const std::string word = text.substr(begin, end - begin);
        begin = end + 1;
        const std::size_t equals = std::min(word.find('='), word.size());
        const std::string name = word.substr(0, equals);
        const std::string value = equals < word.size() ? word.substr(equals + 1) : std::string();
        std::uint64_t number = 0;
        const bool good = name == "nodes"        ? nodes_of(value, topology.nodes(), job.nodes)
                          : whole(value, number) ? set_number(job, name, number)
                                                 : set_choice(job, name, value);
        if (!good) return wrong("a job's '" + word + "': bench/simulate/README.md lists what it may have");
    }
    if (job.nodes.empty()) {
        job.nodes.resize(topology.nodes());
        std::iota(job.nodes.begin(), job.nodes.end(), 0U);
    }
    if (job.particles == 0 || job.ranks_per_node == 0 || job.aggregators == 0 || job.buffers == 0 ||
        job.block == 0 || job.buffer_bytes < job.block)
        return wrong("a job needs particles, and no number of 0; a buffer holds at least a block");
    return job;
}

}  // namespace twinrun::simulation
