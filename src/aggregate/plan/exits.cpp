#include "aggregate/plan/exits.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace twinrun {
inline namespace aggregate_plan {

namespace {

// The places (gateways or links) that `place_of` gives for the nodes of a partition, the one with
// the most bytes first; of equal ones the first. Places with less than half of the first one's
// bytes are left out.
template <class PlaceOf>
std::vector<std::uint32_t> by_bytes(std::span<const Contribution> contributions, PlaceOf&& place_of) {
    std::vector<std::pair<std::uint32_t, double>> runs;
    for (std::size_t i = 0; i < contributions.size();) {
        const std::uint32_t node = contributions[i].node;
        double sum = 0;
        for (; i < contributions.size() && contributions[i].node == node; ++i)
            sum += static_cast<double>(contributions[i].bytes);
        const std::uint32_t place = place_of(node);
        if (runs.empty() || runs.back().first != place) runs.emplace_back(place, 0);
        runs.back().second += sum;
    }
    const auto by_place = [](const auto& a, const auto& b) { return a.first < b.first; };
    std::stable_sort(runs.begin(), runs.end(), by_place);
    std::vector<std::pair<std::uint32_t, double>> sums;
    for (const auto& [place, bytes] : runs) {
        if (sums.empty() || sums.back().first != place) sums.emplace_back(place, 0);
        sums.back().second += bytes;
    }
    std::stable_sort(sums.begin(), sums.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::vector<std::uint32_t> places;
    places.reserve(sums.size());
    for (const auto& [place, bytes] : sums) {
        if (2 * bytes >= sums.front().second) places.push_back(place);
    }
    return places;
}

// Partitions and the links that they may have, as the two sides of a graph: a semi-matching, whose
// loads are lowered along alternating paths (Harvey, Ladner, Lovasz and Tamir, "Semi-matchings for
// bipartite graphs and load balancing", 2006).
class Sharing {
   public:
    Sharing(const Topology& topology, std::span<const std::vector<Contribution>> partitions)
        : topology_(topology), users_(topology.links()), before_(topology.links()) {
        RankOrder rank_order;
        for (const auto& contributions : partitions)
            rank_order.add(contributions);
        for (const auto& contributions : partitions) {
            std::vector<std::uint32_t> choices =
                by_bytes(contributions, [&](std::uint32_t node) { return topology.link_of(node); });
            const std::size_t start = rank_order.start(contributions, links_.size());
            const auto first =
                std::find(choices.begin(), choices.end(), topology.link_of(contributions[start].node));
            if (first != choices.end()) std::rotate(choices.begin(), first, first + 1);
            choices_.push_back(std::move(choices));
            const auto partition = static_cast<std::uint32_t>(links_.size());
            links_.push_back(choices_.back().front());
            users_[links_.back()].push_back(partition);
        }
    }
    const std::vector<std::uint32_t>& balanced() {
        while (lower_largest()) {
        }
        for (bool moved = true; moved;) {
            moved = false;
            for (std::uint32_t link = 0; link < users_.size(); ++link)
                moved = relieve(link, false) || moved;
        }
        return links_;
    }

    // Bytes a second of a link for each of its partitions.
    [[nodiscard]] double share(std::uint32_t link) const { return 1 / load(link, 0); }

   private:
    static constexpr std::uint32_t kUnseen = std::numeric_limits<std::uint32_t>::max();

    [[nodiscard]] double load(std::uint32_t link, std::size_t more) const {
        return static_cast<double>(users_[link].size() + more) /
               static_cast<double>(topology_.link_capacity(link));
    }
    // Relieves all links with the largest load, or none if one of them cannot be relieved.
    bool lower_largest() {
        double largest = 0;
        for (std::uint32_t link = 0; link < users_.size(); ++link)
            largest = std::max(largest, load(link, 0));
        const auto links = links_;
        const auto users = users_;
        for (std::uint32_t link = 0; link < users_.size(); ++link) {
            if (load(link, 0) < largest || relieve(link, true)) continue;
            links_ = links;
            users_ = users;
            return false;
        }
        return largest > 0;
    }
    // Moves a partition of this link to the one that then has the least load, if that is less than
    // what this one has. far: also along a path, on which one partition makes room for another.
    bool relieve(std::uint32_t from, bool far) {
        double least = std::numeric_limits<double>::infinity();  // of any link
        for (std::uint32_t link = 0; link < users_.size(); ++link)
            least = std::min(least, load(link, 1));
        double best = load(from, 0);
        if (!(least < best)) return false;
        std::fill(before_.begin(), before_.end(), kUnseen);
        std::vector<std::uint32_t> queue{from};
        std::optional<std::uint32_t> goal;
        for (std::size_t at = 0; at < (far ? queue.size() : 1) && best > least; ++at) {
            for (const std::uint32_t partition : users_[queue[at]]) {
                for (const std::uint32_t link : choices_[partition]) {
                    if (link == from || before_[link] != kUnseen) continue;
                    before_[link] = partition;
                    queue.push_back(link);
                    if (!(load(link, 1) < best)) continue;
                    best = load(link, 1);
                    goal = link;
                }
                if (!(best > least)) break;
            }
        }
        if (!goal) return false;
        for (std::uint32_t link = *goal; link != from;) {
            const std::uint32_t partition = before_[link];
            const std::uint32_t old = links_[partition];
            std::erase(users_[old], partition);
            auto& users = users_[link];
            users.insert(std::lower_bound(users.begin(), users.end(), partition), partition);
            links_[partition] = link;
            link = old;
        }
        return true;
    }

    const Topology& topology_;
    std::vector<std::vector<std::uint32_t>> choices_;  // links by partition
    std::vector<std::uint32_t> links_;                 // by partition
    std::vector<std::vector<std::uint32_t>> users_;    // partitions by link, ascending
    std::vector<std::uint32_t> before_;                // by link: the partition that reaches it
};

// Bytes a second from the nodes that use the exit's link to its gateway, of the slowest one.
double slowest_to(const Topology& topology, std::span<const Contribution> contributions, const Exit& exit) {
    float least = std::numeric_limits<float>::infinity();
    for (const Contribution& c : contributions) {
        if (topology.link_of(c.node) == exit.link)
            least = std::min(least, topology.bandwidth_to_gateway(c.node, exit.gateway));
    }
    return static_cast<double>(least);
}

}  // namespace

std::uint32_t gateway_of_partition(const Topology& topology, std::span<const Contribution> contributions) {
    if (topology.gateways() == 1) return 0;
    return by_bytes(contributions, [&](std::uint32_t node) { return topology.gateway_of(node); }).front();
}

std::vector<Exit> exits_of(const Topology& topology, Placement placement,
                           std::span<const std::vector<Contribution>> partitions) {
    std::vector<Exit> exits;
    exits.reserve(partitions.size());
    if (placement != Placement::cost || topology.links() == 1) {
        for (const auto& contributions : partitions)
            exits.push_back({gateway_of_partition(topology, contributions), Exit::kAnyLink});
        return exits;
    }
    Sharing sharing(topology, partitions);
    const std::vector<std::uint32_t>& links = sharing.balanced();
    for (std::size_t p = 0; p < partitions.size(); ++p) {
        const Exit exit{topology.gateway_of_link(links[p]), links[p]};
        exits.push_back(
            {exit.gateway, exit.link, sharing.share(exit.link) <= slowest_to(topology, partitions[p], exit)});
    }
    return exits;
}

}  // namespace aggregate_plan
}  // namespace twinrun
