#include "elections.hpp"

#include <twinrun/aggregate.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "aggregate/plan/exits.hpp"
#include "aggregate/plan/partition.hpp"
#include "aggregate/plan/placement.hpp"
#include "aggregate/topology/hosts.hpp"
#include "declarations.hpp"
#include "job.hpp"

namespace aggregate_ranks {

void same_election_on(const twinrun::Topology& topology, twr_aggregate* aggregate, const Declarations& all,
                      const twr_aggregate_options& options, const std::vector<std::uint32_t>& node_of,
                      std::uint64_t nodes) {
    const nlohmann::json said = report(aggregate).at("declared");
    std::vector<twinrun::OwnedSet> sets;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        std::vector<twinrun::DeclaredVariable> declared;
        for (const Variable& v : all[rank])
            declared.push_back(
                {v.v.item_bytes, v.v.items, v.v.file_offset, v.v.file_stride, v.v.memory_stride});
        for (const twinrun::StridedSet& set : twinrun::shape_of(*twinrun::rank_sets(declared)))
            sets.push_back({set, static_cast<std::uint32_t>(rank)});
    }
    const twinrun::FileTable table(sets);
    std::uint64_t wanted = static_cast<std::uint64_t>(options.aggregators);
    if (wanted == 0) wanted = twinrun::default_aggregators(table.bytes(), nodes, all.size());
    std::vector<std::vector<twinrun::Contribution>> members;
    const auto ranges = twinrun::make_partitions(table, wanted, said.at("block_bytes").get<std::uint64_t>());
    for (const twinrun::Range& range : ranges)
        members.push_back(twinrun::contributions_to(table, range, node_of));
    const twinrun::Placement placement = *twinrun::placement_of(options.placement);
    const auto exits = twinrun::exits_of(topology, placement, members);
    const auto elected = twinrun::elect(topology, placement, members, exits, options.seed);
    const nlohmann::json& partitions = said.at("partitions");
    expect(partitions.size() == elected.size(), "the number of partitions: " + said.dump());
    for (std::size_t p = 0; p < elected.size(); ++p) {
        expect(partitions[p].at("begin") == ranges[p].begin && partitions[p].at("end") == ranges[p].end,
               "the range of partition " + std::to_string(p) + ": " + said.dump());
        std::string costs;
        for (std::size_t i = 0; i < members[p].size(); ++i) {
            const auto cost = twinrun::placement_cost(topology, members[p], i, exits[p].gateway);
            costs += " " + std::to_string(members[p][i].rank) + ": " + std::to_string(1e9F * cost.total());
        }
        expect(partitions[p].at("aggregator") == elected[p].rank,
               "costs" + costs + ": rank " + std::to_string(elected[p].rank) +
                   " should aggregate for partition " + std::to_string(p) + ": " + said.dump());
        expect(partitions[p].at("gateway") == exits[p].gateway,
               "the gateway of partition " + std::to_string(p));
        expect(partitions[p].at("cost").at("gather").get<float>() == elected[p].cost.gather &&
                   partitions[p].at("cost").at("write").get<float>() == elected[p].cost.write,
               "the cost of partition " + std::to_string(p));
    }
}

void same_election(twr_aggregate* aggregate, const Declarations& all, const twr_aggregate_options& options,
                   const std::vector<std::uint32_t>& node_of) {
    const std::uint32_t nodes = *std::max_element(node_of.begin(), node_of.end()) + 1;
    const auto topology = twinrun::topology_of_hosts(options.topology, std::vector<twinrun::Host>(nodes));
    expect(topology.ok(), "the topology");
    same_election_on(**topology, aggregate, all, options, node_of, nodes);
}

}  // namespace aggregate_ranks
