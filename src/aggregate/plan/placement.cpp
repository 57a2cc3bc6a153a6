#include "aggregate/plan/placement.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

namespace twinrun {
inline namespace aggregate_plan {

namespace {

constexpr std::array<std::pair<Placement, const char*>, 5> kNames{{{Placement::cost, "cost"},
                                                                   {Placement::rank, "rank"},
                                                                   {Placement::bridge, "bridge"},
                                                                   {Placement::random, "random"},
                                                                   {Placement::worst, "worst"}}};

// SplitMix64 (Steele, Lea, Flood, 2014): a number from a number.
std::uint64_t mixed(std::uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

float term(float latency, std::uint32_t hops, float bytes, float bandwidth) {
    return latency * static_cast<float>(hops) + bytes / bandwidth;
}

float larger(float a, float b) { return a < b ? b : a; }

// Adds in one order everywhere: ascending ranks.
float bytes_of(std::span<const Contribution> contributions) {
    double sum = 0;
    for (const Contribution& c : contributions)
        sum += static_cast<double>(c.bytes);
    return static_cast<float>(sum);
}

float write_term(const Topology& topology, float latency, std::uint32_t node, std::uint32_t gateway,
                 float bytes, std::size_t nodes) {
    return term(latency, topology.distance_to_gateway(node, gateway), bytes,
                static_cast<float>(nodes) * topology.bandwidth_to_gateway(node, gateway));
}

}  // namespace

const char* placement_name(Placement placement) {
    for (const auto& [value, name] : kNames) {
        if (value == placement) return name;
    }
    return "";
}

Result<Placement> placement_of(const std::string& name) {
    for (const auto& [value, word] : kNames) {
        if (name == word) return value;
    }
    return Error{ErrorCode::invalid_argument,
                 "'" + name + "' is not a placement: cost, rank, bridge, random or worst"};
}

PlacementCost placement_cost(const Topology& topology, std::span<const Contribution> contributions,
                             std::size_t candidate, std::uint32_t gateway, bool hops) {
    const std::uint32_t node = contributions[candidate].node;
    const float latency = hops ? topology.latency() : 0;
    std::vector<std::uint32_t> nodes;
    nodes.reserve(contributions.size());
    PlacementCost cost;
    for (std::size_t i = 0; i < contributions.size(); ++i) {
        const Contribution& c = contributions[i];
        const std::uint32_t host = topology.host_of(c.node);
        if (nodes.empty() || nodes.back() != host) nodes.push_back(host);
        if (i == candidate) continue;
        cost.gather = larger(cost.gather, term(latency, topology.distance(c.node, node), c.bytes,
                                               topology.bandwidth(c.node, node)));
    }
    std::sort(nodes.begin(), nodes.end());
    const auto distinct = static_cast<std::size_t>(std::unique(nodes.begin(), nodes.end()) - nodes.begin());
    cost.write = write_term(topology, latency, node, gateway, bytes_of(contributions), distinct);
    return cost;
}

PartitionCosts::PartitionCosts(const Topology& topology, std::span<const Contribution> contributions,
                               std::uint32_t gateway, bool hops)
    : topology_(&topology),
      contributions_(contributions),
      gateway_(gateway),
      latency_(hops ? topology.latency() : 0),
      bytes_(bytes_of(contributions)) {
    members_.resize(contributions.size());
    std::iota(members_.begin(), members_.end(), 0U);
    const auto by_node = [&](std::uint32_t a, std::uint32_t b) {
        return contributions[a].node < contributions[b].node;
    };
    if (!std::is_sorted(members_.begin(), members_.end(), by_node))
        std::stable_sort(members_.begin(), members_.end(), by_node);
    for (std::uint32_t k = 0; k < members_.size(); ++k) {
        const Contribution& c = contributions[members_[k]];
        if (nodes_.empty() || nodes_.back().node != c.node)
            nodes_.push_back({c.node, k, 0, members_[k], c.bytes, 0});
        Node& node = nodes_.back();
        if (node.count++ == 0) continue;
        if (c.bytes > node.most) {
            node.second = node.most;
            node.most = c.bytes;
            node.top = members_[k];
        } else {
            node.second = larger(node.second, c.bytes);
        }
    }
    std::vector<std::uint32_t> hosts(nodes_.size());
    for (std::size_t k = 0; k < nodes_.size(); ++k)
        hosts[k] = topology.host_of(nodes_[k].node);
    if (!std::is_sorted(hosts.begin(), hosts.end())) std::sort(hosts.begin(), hosts.end());
    hosts_ = static_cast<std::size_t>(std::unique(hosts.begin(), hosts.end()) - hosts.begin());
    heaviest_.resize(nodes_.size());
    std::iota(heaviest_.begin(), heaviest_.end(), 0U);
    // Shuffles nodes of equal weight: then the first few are far from most candidates, and give
    // good bounds.
    std::vector<std::uint32_t> shuffled(nodes_.size());
    for (std::size_t k = 0; k < nodes_.size(); ++k)
        shuffled[k] = static_cast<std::uint32_t>(mixed(nodes_[k].node));
    std::sort(heaviest_.begin(), heaviest_.end(), [&](std::uint32_t a, std::uint32_t b) {
        if (nodes_[a].most != nodes_[b].most) return nodes_[a].most > nodes_[b].most;
        return shuffled[a] != shuffled[b] ? shuffled[a] < shuffled[b] : a < b;
    });
    const std::uint32_t diameter = topology.diameter();
    const float least = topology.least_bandwidth();
    bounds_.resize(nodes_.size());
    for (std::size_t k = 0; k < nodes_.size(); ++k) {
        // Rounding is monotonic, so a bound of the operands bounds the result.
        const float most = nodes_[heaviest_[k]].most;
        bounds_[k] =
            least > 0 ? term(latency_, diameter, most, least) : std::numeric_limits<float>::infinity();
    }
}

float PartitionCosts::write_cost(std::uint32_t node) const {
    return write_term(*topology_, latency_, node, gateway_, bytes_, hosts_);
}

// The term of the other ranks on the candidate's node.
float PartitionCosts::own_term(const Node& node, std::size_t candidate) const {
    if (node.count < 2) return 0;
    return term(latency_, topology_->distance(node.node, node.node),
                candidate == node.top ? node.second : node.most, topology_->bandwidth(node.node, node.node));
}

// The term of the other nodes. Stops early once it exceeds `limit` together with `write`.
float PartitionCosts::others_term(std::uint32_t place, float write, float limit) const {
    const std::uint32_t to = nodes_[place].node;
    float most = 0;
    for (std::size_t k = 0; k < heaviest_.size(); ++k) {
        if (most >= bounds_[k]) break;  // the bound also holds for all that follow
        if (heaviest_[k] == place) continue;
        const Node& from = nodes_[heaviest_[k]];
        most = larger(most, term(latency_, topology_->distance(from.node, to), from.most,
                                 topology_->bandwidth(from.node, to)));
        if (most + write > limit) break;
    }
    return most;
}

PlacementCost PartitionCosts::of(std::size_t candidate) const {
    const std::uint32_t node = contributions_[candidate].node;
    const auto found = std::lower_bound(nodes_.begin(), nodes_.end(), node,
                                        [](const Node& a, std::uint32_t b) { return a.node < b; });
    const auto place = static_cast<std::uint32_t>(found - nodes_.begin());
    return {
        larger(own_term(*found, candidate), others_term(place, 0, std::numeric_limits<float>::infinity())),
        write_cost(node)};
}

PartitionCosts::Found PartitionCosts::cheapest(std::span<const bool> eligible, std::size_t start) const {
    // In the order of the cost to write: good candidates that are found early bound the rest.
    std::vector<std::pair<float, std::uint32_t>> order;
    order.reserve(nodes_.size());
    for (std::uint32_t place = 0; place < nodes_.size(); ++place)
        order.emplace_back(write_cost(nodes_[place].node), place);
    std::sort(order.begin(), order.end());
    const auto turn = [&](std::size_t candidate) {
        return candidate < start ? candidate + contributions_.size() - start : candidate - start;
    };
    Found best;
    float least = std::numeric_limits<float>::infinity();
    bool any = false;
    for (const auto& [write, place] : order) {
        if (any && write > least) break;
        const Node& node = nodes_[place];
        // All ranks except the top one have the same cost, so the first stands for all.
        std::array<std::size_t, 2> candidates{};
        std::size_t count = eligible[node.top] ? 1 : 0;
        candidates[0] = node.top;
        bool other = false;
        for (std::uint32_t k = node.first; k < node.first + node.count; ++k) {
            const std::uint32_t i = members_[k];
            if (!eligible[i] || i == node.top) continue;
            if (!other) ++count;
            if (!other || turn(i) < turn(candidates[count - 1])) candidates[count - 1] = i;
            other = true;
        }
        if (count == 0) continue;
        const float others = others_term(place, write, least);
        for (std::size_t k = 0; k < count; ++k) {
            const PlacementCost cost{larger(others, own_term(node, candidates[k])), write};
            const float total = cost.total();
            if (any && (total > least || (total == least && turn(candidates[k]) > turn(best.candidate))))
                continue;
            any = true;
            least = total;
            best = {candidates[k], cost};
        }
    }
    return best;
}

PartitionCosts::Found PartitionCosts::dearest(std::span<const bool> eligible) const {
    std::vector<std::pair<float, std::uint32_t>> order;
    order.reserve(nodes_.size());
    for (std::uint32_t place = 0; place < nodes_.size(); ++place)
        order.emplace_back(-write_cost(nodes_[place].node), place);
    std::sort(order.begin(), order.end());
    Found best;
    float most = 0;
    bool any = false;
    for (const auto& [minus_write, place] : order) {
        const float write = -minus_write;
        const Node& node = nodes_[place];
        std::array<std::size_t, 2> candidates{};
        std::size_t count = 0;
        bool other = false;
        float own = 0;
        for (std::uint32_t k = node.first; k < node.first + node.count; ++k) {
            const std::uint32_t i = members_[k];
            if (!eligible[i] || (i != node.top && other)) continue;
            other = other || i != node.top;
            own = larger(own, own_term(node, i));
            candidates[count++] = i;
        }
        if (count == 0) continue;
        const std::size_t first = *std::min_element(candidates.begin(), candidates.begin() + count);
        const float bound = larger(own, bounds_[0]) + write;
        if (any && (bound < most || (bound == most && first > best.candidate))) continue;
        const float others = others_term(place, 0, std::numeric_limits<float>::infinity());
        for (std::size_t k = 0; k < count; ++k) {
            const PlacementCost cost{larger(others, own_term(node, candidates[k])), write};
            const float total = cost.total();
            if (any && (total < most || (total == most && candidates[k] > best.candidate))) continue;
            any = true;
            most = total;
            best = {candidates[k], cost};
        }
    }
    return best;
}

void Turns::eligible(std::span<const Contribution> contributions, std::uint32_t link,
                     std::span<bool> eligible) const {
    const auto of = [](const std::vector<std::uint32_t>& times, std::uint32_t number) {
        return number < times.size() ? times[number] : 0U;
    };
    using Times = std::array<std::uint32_t, 4>;
    const auto times = [&](const Contribution& c) {
        const bool other = link != Exit::kAnyLink && topology_->link_of(c.node) != link;
        return Times{of(ranks_, c.rank), of(hosts_, topology_->host_of(c.node)), other ? 1U : 0U,
                     of(nodes_, c.node)};
    };
    Times least{~0U, ~0U, ~0U, ~0U};
    for (const Contribution& c : contributions)
        least = std::min(least, times(c));
    for (std::size_t i = 0; i < contributions.size(); ++i)
        eligible[i] = times(contributions[i]) == least;
}

void Turns::elected(const Contribution& aggregator) {
    const auto count = [](std::vector<std::uint32_t>& times, std::uint32_t number) {
        if (times.size() <= number) times.resize(std::size_t{number} + 1, 0);
        ++times[number];
    };
    count(ranks_, aggregator.rank);
    count(hosts_, topology_->host_of(aggregator.node));
    count(nodes_, aggregator.node);
}

void Turns::reserve(std::uint32_t ranks) {
    ranks_.resize(std::max<std::size_t>(ranks_.size(), ranks), 0);
    hosts_.resize(std::max<std::size_t>(hosts_.size(), topology_->nodes()), 0);
    nodes_.resize(std::max<std::size_t>(nodes_.size(), topology_->nodes()), 0);
}

void RankOrder::add(std::span<const Contribution> contributions) {
    first_ = std::min(first_, contributions.front().rank);
    last_ = std::max(last_, contributions.back().rank);
    ++partitions_;
}

std::size_t RankOrder::start(std::span<const Contribution> contributions, std::size_t p) const {
    if (partitions_ == 0) return 0;
    const std::uint64_t goal = first_ + (std::uint64_t{last_} - first_ + 1) * p / partitions_;
    const auto at = std::lower_bound(contributions.begin(), contributions.end(), goal,
                                     [](const Contribution& c, std::uint64_t r) { return c.rank < r; });
    return at == contributions.end() ? 0 : static_cast<std::size_t>(at - contributions.begin());
}

std::vector<Election> elect(const Topology& topology, Placement placement,
                            std::span<const std::vector<Contribution>> partitions,
                            std::span<const Exit> exits, std::uint64_t seed) {
    RankOrder rank_order;
    std::size_t most = 0;
    for (const auto& contributions : partitions) {
        rank_order.add(contributions);
        most = std::max(most, contributions.size());
    }
    Turns turns(topology);
    const auto flags = std::make_unique<bool[]>(most);
    std::vector<bool> bridged(topology.gateways(), false);
    std::vector<Election> elections;
    elections.reserve(partitions.size());
    for (std::size_t p = 0; p < partitions.size(); ++p) {
        const std::span<const Contribution> contributions = partitions[p];
        const std::span<bool> eligible{flags.get(), contributions.size()};
        const std::uint32_t gateway = exits[p].gateway;
        turns.eligible(contributions, exits[p].link, eligible);
        // The first eligible candidate from `start` on, wrapping around.
        const auto next_from = [&](std::size_t start) {
            const auto from = eligible.begin() + static_cast<std::ptrdiff_t>(start);
            auto at = std::find(from, eligible.end(), true);
            if (at == eligible.end()) at = std::find(eligible.begin(), eligible.end(), true);
            return static_cast<std::size_t>(at - eligible.begin());
        };
        const auto in_rank_order = [&] { return next_from(rank_order.start(contributions, p)); };
        const auto on_bridge = [&] {
            for (std::size_t i = 0; i < contributions.size() && !bridged[gateway]; ++i) {
                const std::uint32_t node = contributions[i].node;
                if (!eligible[i] || !topology.bridge(node) || topology.gateway_of(node) != gateway) continue;
                bridged[gateway] = true;
                return i;
            }
            return in_rank_order();
        };
        const auto at_random = [&] {
            const auto count = std::count(eligible.begin(), eligible.end(), true);
            std::size_t at = next_from(0);
            for (auto skip = mixed(mixed(seed) + p) % static_cast<std::uint64_t>(count); skip > 0; --skip)
                at = next_from(at + 1);
            return at;
        };
        PartitionCosts::Found found;
        const auto take = [&](std::size_t candidate) {
            found = {candidate, placement_cost(topology, contributions, candidate, gateway)};
        };
        switch (placement) {
            case Placement::cost:
                if (exits[p].limits) {
                    take(PartitionCosts(topology, contributions, gateway, false)
                             .cheapest(eligible, rank_order.start(contributions, p))
                             .candidate);
                } else {
                    found = PartitionCosts(topology, contributions, gateway).cheapest(eligible);
                }
                break;
            case Placement::worst:
                found = PartitionCosts(topology, contributions, gateway).dearest(eligible);
                break;
            case Placement::rank: take(in_rank_order()); break;
            case Placement::bridge: take(on_bridge()); break;
            case Placement::random: take(at_random()); break;
        }
        turns.elected(contributions[found.candidate]);
        elections.push_back({contributions[found.candidate].rank, found.cost, gateway});
    }
    return elections;
}

}  // namespace aggregate_plan
}  // namespace twinrun
