#include "aggregate/plan/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <random>

#include "aggregate/plan/exits.hpp"
#include "aggregate/topologies.hpp"
#include "support/device.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::made_up;
using testing::topology;
using Partitions = std::vector<std::vector<Contribution>>;

// Section III-B of the paper, word for word.
PlacementCost direct(const Topology& t, const std::vector<Contribution>& all, std::size_t candidate,
                     std::uint32_t gateway, bool hops = true) {
    const float latency = hops ? t.latency() : 0;
    const Contribution& a = all[candidate];
    PlacementCost cost;
    std::map<std::uint32_t, bool> nodes;
    double sum = 0;
    for (const Contribution& i : all) {
        nodes[t.host_of(i.node)] = true;
        sum += static_cast<double>(i.bytes);
        if (i.rank == a.rank) continue;
        cost.gather = std::max(cost.gather, latency * static_cast<float>(t.distance(i.node, a.node)) +
                                                i.bytes / t.bandwidth(i.node, a.node));
    }
    cost.write = latency * static_cast<float>(t.distance_to_gateway(a.node, gateway)) +
                 static_cast<float>(sum) /
                     (static_cast<float>(nodes.size()) * t.bandwidth_to_gateway(a.node, gateway));
    return cost;
}

std::vector<Election> direct_election(const Topology& t, bool dearest, const Partitions& partitions,
                                      const std::vector<Exit>& exits) {
    std::map<std::uint32_t, std::uint32_t> ranks;
    std::map<std::uint32_t, std::uint32_t> hosts;
    std::map<std::uint32_t, std::uint32_t> nodes;
    std::uint32_t first = ~0U;
    std::uint32_t last = 0;
    for (const auto& all : partitions) {
        first = std::min(first, all.front().rank);
        last = std::max(last, all.back().rank);
    }
    std::vector<Election> elections;
    for (std::size_t p = 0; p < partitions.size(); ++p) {
        const auto& all = partitions[p];
        const Exit exit = exits[p];
        const auto times = [&](const Contribution& c) {
            const bool other = exit.link != Exit::kAnyLink && t.link_of(c.node) != exit.link;
            return std::array{ranks[c.rank], hosts[t.host_of(c.node)], other ? 1U : 0U, nodes[c.node]};
        };
        std::array least{~0U, ~0U, ~0U, ~0U};
        for (const Contribution& c : all)
            least = std::min(least, times(c));
        // Rank order begins at an even share of the ranks, and goes on with the first one.
        const std::uint64_t goal = first + (std::uint64_t{last} - first + 1) * p / partitions.size();
        std::vector<std::size_t> order;
        for (const bool behind : {false, true}) {
            for (std::size_t i = 0; i < all.size(); ++i) {
                if (exit.limits ? (all[i].rank < goal) == behind : !behind) order.push_back(i);
            }
        }
        std::size_t best = all.size();
        float lowest = 0;
        for (const std::size_t i : order) {
            if (times(all[i]) != least) continue;
            const float here = direct(t, all, i, exit.gateway, dearest || !exit.limits).total();
            if (best != all.size() && (dearest ? here <= lowest : here >= lowest)) continue;
            best = i;
            lowest = here;
        }
        ++ranks[all[best].rank];
        ++hosts[t.host_of(all[best].node)];
        ++nodes[all[best].node];
        elections.push_back({all[best].rank, direct(t, all, best, exit.gateway), exit.gateway});
    }
    return elections;
}

// Ranks on nodes in blocks, round robin or by chance; some ranks in some partitions; volumes of many kinds, many of them equal.
Partitions made_up_partitions(std::mt19937_64& random, std::uint32_t nodes) {
    const auto up_to = [&](std::uint64_t most) { return static_cast<std::uint32_t>(random() % (most + 1)); };
    const std::uint32_t ranks = 1 + up_to(60);
    const std::uint32_t mapping = up_to(2);
    const std::uint32_t first = up_to(1000);
    const std::uint32_t kind = up_to(3);
    std::vector<Contribution> all(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r) {
        all[r].rank = first + r;
        all[r].node = mapping == 0   ? static_cast<std::uint32_t>(std::uint64_t{r} * nodes / ranks)
                      : mapping == 1 ? r % nodes
                                     : up_to(nodes - 1);
    }
    Partitions partitions(1 + up_to(20));
    for (auto& partition : partitions) {
        const std::uint32_t share = up_to(3);
        while (partition.empty()) {
            for (Contribution c : all) {
                if (share != 3 && up_to(2) > share) continue;
                c.bytes = kind == 0   ? 1e6F
                          : kind == 1 ? static_cast<float>(up_to(4)) * 5e5F
                          : kind == 2 ? static_cast<float>(random() % 100'000'000)
                                      : std::exp(static_cast<float>(up_to(1000)) / 50.0F);
                partition.push_back(c);
            }
        }
    }
    return partitions;
}

bool same_bits(const PlacementCost& a, const PlacementCost& b) {
    return std::bit_cast<std::uint32_t>(a.gather) == std::bit_cast<std::uint32_t>(b.gather) &&
           std::bit_cast<std::uint32_t>(a.write) == std::bit_cast<std::uint32_t>(b.write);
}

std::shared_ptr<const Topology> some_topology(std::mt19937_64& random) {
    switch (random() % 9) {
        case 8: return testing::made_up_places(random);
        case 0: return topology("flat:" + std::to_string(1 + random() % 9));
        case 1: return topology("torus:4x3x2x2,pset=16");
        case 2: return topology("torus:5x7,pset=9,latency=1e-3");
        case 3: return topology("dragonfly:5x4x3");
        case 4: return topology("fattree:4,3,gateways=2");
        case 5: return topology("fattree:3x2x4,latency=0");
        default: return made_up(random, 1 + static_cast<std::uint32_t>(random() % 24));
    }
}

TEST(Placement, NamesComeBack) {
    for (const Placement placement :
         {Placement::cost, Placement::rank, Placement::bridge, Placement::random, Placement::worst}) {
        const auto found = placement_of(placement_name(placement));
        ASSERT_TRUE(found.ok());
        EXPECT_EQ(*found, placement);
    }
    EXPECT_FALSE(placement_of("best").ok());
    EXPECT_FALSE(placement_of("").ok());
}

TEST(Placement, CostsAreTheFormula) {
    std::mt19937_64 random(test_seed(1));
    for (int round = 0; round < test_rounds(300); ++round) {
        const auto t = some_topology(random);
        ASSERT_NE(t, nullptr);
        for (const auto& all : made_up_partitions(random, t->nodes())) {
            const auto gateway = static_cast<std::uint32_t>(random() % t->gateways());
            const PartitionCosts costs(*t, all, gateway);
            for (std::size_t i = 0; i < all.size(); ++i) {
                const PlacementCost expected = direct(*t, all, i, gateway);
                ASSERT_TRUE(same_bits(placement_cost(*t, all, i, gateway), expected)) << t->name();
                ASSERT_TRUE(same_bits(costs.of(i), expected)) << t->name();
            }
        }
    }
}

TEST(Placement, ElectionsAreThoseOfTheFormula) {
    std::mt19937_64 random(test_seed(2));
    for (int round = 0; round < test_rounds(600); ++round) {
        const auto t = some_topology(random);
        ASSERT_NE(t, nullptr);
        const Partitions partitions = made_up_partitions(random, t->nodes());
        for (const bool dearest : {false, true}) {
            std::vector<Exit> exits;
            for (std::size_t p = 0; p < partitions.size(); ++p) {
                exits.push_back({static_cast<std::uint32_t>(random() % t->gateways())});
                if (dearest || random() % 2 == 0) continue;
                exits.back().link = static_cast<std::uint32_t>(random() % t->links());
                exits.back().limits = random() % 2 == 0;
            }
            const auto expected = direct_election(*t, dearest, partitions, exits);
            const auto found = elect(*t, dearest ? Placement::worst : Placement::cost, partitions, exits, 1);
            ASSERT_EQ(found.size(), expected.size());
            for (std::size_t p = 0; p < found.size(); ++p) {
                ASSERT_EQ(found[p].rank, expected[p].rank) << t->name() << ", partition " << p;
                ASSERT_TRUE(same_bits(found[p].cost, expected[p].cost)) << t->name() << ", partition " << p;
            }
        }
    }
}

TEST(Placement, AllTakeTurns) {
    std::mt19937_64 random(test_seed(3));
    for (int round = 0; round < test_rounds(200); ++round) {
        const auto t = some_topology(random);
        ASSERT_NE(t, nullptr);
        const Partitions partitions = made_up_partitions(random, t->nodes());
        std::vector<Exit> exits;
        for (const auto& all : partitions)
            exits.push_back({gateway_of_partition(*t, all)});
        for (const Placement placement :
             {Placement::cost, Placement::rank, Placement::bridge, Placement::random, Placement::worst}) {
            const auto elections = elect(*t, placement, partitions, exits, 7);
            std::map<std::uint32_t, std::uint32_t> times;
            for (std::size_t p = 0; p < partitions.size(); ++p) {
                const auto& all = partitions[p];
                const auto at = std::find_if(all.begin(), all.end(), [&](const Contribution& c) {
                    return c.rank == elections[p].rank;
                });
                ASSERT_NE(at, all.end());
                for (const Contribution& c : all)
                    ASSERT_LE(times[at->rank], times[c.rank]) << placement_name(placement);
                ++times[at->rank];
                const PlacementCost expected =
                    direct(*t, all, static_cast<std::size_t>(at - all.begin()), exits[p].gateway);
                ASSERT_TRUE(same_bits(elections[p].cost, expected)) << placement_name(placement);
            }
            // The same again; random ones by their seed.
            const auto again = elect(*t, placement, partitions, exits, 7);
            for (std::size_t p = 0; p < partitions.size(); ++p)
                ASSERT_EQ(again[p].rank, elections[p].rank);
        }
    }
}

TEST(Placement, TiesGoToTheLowestRank) {
    const auto t = topology("flat:4");
    std::vector<Contribution> all;
    for (std::uint32_t r = 0; r < 8; ++r)
        all.push_back({10 + r, r / 2, 1e6F});
    const Partitions partitions(3, all);
    const std::vector<Exit> exits(3);
    const auto elections = elect(*t, Placement::cost, partitions, exits, 0);
    EXPECT_EQ(elections[0].rank, 10U);  // then one on another node
    EXPECT_EQ(elections[1].rank, 12U);
    EXPECT_EQ(elections[2].rank, 14U);
}

TEST(Placement, TheHeaviestKeepsItsData) {
    const auto t = topology("torus:4x4,pset=16");
    std::vector<Contribution> all;
    for (std::uint32_t r = 0; r < 16; ++r)
        all.push_back({r, r, r == 11 ? 1e9F : 1e6F});
    const Partitions partitions{all};
    const std::vector<Exit> exits(1);
    EXPECT_EQ(elect(*t, Placement::cost, partitions, exits, 0)[0].rank, 11U);
    EXPECT_NE(elect(*t, Placement::worst, partitions, exits, 0)[0].rank, 11U);
}

TEST(Placement, RankOrderIsSpreadOverTheCommunicator) {
    const auto t = topology("flat:16");
    Partitions partitions(4);
    for (std::uint32_t r = 0; r < 16; ++r)
        partitions[r / 4].push_back({r, r, 1});
    const std::vector<Exit> exits(4);
    const auto blocks = elect(*t, Placement::rank, partitions, exits, 0);
    std::vector<Contribution> all;
    for (std::uint32_t r = 0; r < 16; ++r)
        all.push_back({r, r, 1});
    const auto everywhere = elect(*t, Placement::rank, Partitions(4, all), exits, 0);
    for (std::uint32_t p = 0; p < 4; ++p) {
        EXPECT_EQ(blocks[p].rank, 4 * p);
        EXPECT_EQ(everywhere[p].rank, 4 * p);
    }
}

TEST(Placement, BridgeNodesComeFirstOnceAGateway) {
    const auto t = topology("torus:8x4,pset=16");
    std::vector<std::uint32_t> bridges;
    for (std::uint32_t node = 0; node < t->nodes(); ++node) {
        if (t->bridge(node)) bridges.push_back(node);
    }
    ASSERT_EQ(bridges.size(), 4U);
    Partitions partitions(4);  // two of each Pset, each with all of its nodes
    std::vector<Exit> exits;
    for (std::uint32_t p = 0; p < 4; ++p) {
        for (std::uint32_t node = 0; node < 16; ++node)
            partitions[p].push_back({p / 2 * 16 + node, p / 2 * 16 + node, 1});
        exits.push_back({p / 2});
    }
    const auto elections = elect(*t, Placement::bridge, partitions, exits, 0);
    EXPECT_EQ(elections[0].rank, bridges[0]);
    EXPECT_EQ(elections[1].rank, 8U);  // in rank order
    EXPECT_EQ(elections[2].rank, bridges[2]);
    EXPECT_EQ(elections[3].rank, 24U);
}

TEST(Placement, RandomOnesReachEveryRank) {
    const auto t = topology("flat:5");
    std::vector<Contribution> all;
    for (std::uint32_t r = 0; r < 5; ++r)
        all.push_back({r, r, 1});
    const Partitions partitions{all};
    const std::vector<Exit> exits(1);
    std::map<std::uint32_t, int> times;
    for (std::uint64_t seed = 0; seed < 500; ++seed)
        ++times[elect(*t, Placement::random, partitions, exits, seed)[0].rank];
    ASSERT_EQ(times.size(), 5U);
    for (const auto& [rank, count] : times)
        EXPECT_GT(count, 50) << rank;
}

TEST(Placement, ThePartitionsGatewayIsThatOfMostOfItsBytes) {
    const auto t = topology("torus:4x4,pset=4");
    EXPECT_EQ(gateway_of_partition(*t, std::vector<Contribution>{{0, 0, 5}, {1, 4, 3}, {2, 5, 3}, {3, 8, 5}}),
              1U);
    EXPECT_EQ(gateway_of_partition(*t, std::vector<Contribution>{{0, 13, 5}, {1, 2, 5}}), 0U);
    // Ranks not in the order of nodes.
    EXPECT_EQ(gateway_of_partition(*t, std::vector<Contribution>{{0, 13, 2}, {1, 2, 3}, {2, 14, 2}}), 3U);
    EXPECT_EQ(gateway_of_partition(*t, std::vector<Contribution>{{0, 9, 0}}), 2U);
}

TEST(Placement, ElectionsOfNothing) {
    const auto t = topology("flat:2");
    EXPECT_TRUE(elect(*t, Placement::cost, {}, {}, 0).empty());
    const Partitions one{{{7, 1, 0}}};
    const std::vector<Exit> exits(1);
    for (const Placement placement :
         {Placement::cost, Placement::rank, Placement::bridge, Placement::random, Placement::worst}) {
        const auto found = elect(*t, placement, one, exits, 3);
        EXPECT_EQ(found[0].rank, 7U);
        EXPECT_EQ(found[0].cost.gather, 0);
    }
}

}  // namespace
}  // namespace twinrun
