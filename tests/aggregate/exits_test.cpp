#include "aggregate/plan/exits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "aggregate/plan/planner.hpp"
#include "aggregate/topologies.hpp"
#include "support/device.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::made_up;
using testing::topology;
using Partitions = std::vector<std::vector<Contribution>>;

// Ranks on nodes by chance, or in blocks; each partition has a stretch of the ranks, or some of them.
Partitions shared_partitions(std::mt19937_64& random, std::uint32_t nodes) {
    const auto up_to = [&](std::uint64_t most) { return static_cast<std::uint32_t>(random() % (most + 1)); };
    const std::uint32_t ranks = 1 + up_to(60);
    const bool blocks = up_to(1) == 0;
    std::vector<std::uint32_t> node_of(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r)
        node_of[r] = blocks ? static_cast<std::uint32_t>(std::uint64_t{r} * nodes / ranks) : up_to(nodes - 1);
    const bool stretches = up_to(1) == 0;
    Partitions partitions(1 + up_to(14));
    for (std::size_t p = 0; p < partitions.size(); ++p) {
        while (partitions[p].empty()) {
            for (std::uint32_t r = 0; r < ranks; ++r) {
                const bool here =
                    stretches ? std::uint64_t{r} * partitions.size() / ranks == p : up_to(3) == 0;
                if (here) partitions[p].push_back({r, node_of[r], static_cast<float>(1 + up_to(4))});
            }
            if (stretches && partitions[p].empty()) partitions[p].push_back({0, node_of[0], 1});
        }
    }
    return partitions;
}

std::shared_ptr<const Topology> some_links(std::mt19937_64& random) {
    switch (random() % 7) {
        case 0: return topology("torus:4x3x2x2,pset=16");
        case 1: return topology("torus:5x7,pset=9");
        case 2: return topology("dragonfly:5x4x3");
        case 3: return topology("fattree:4,3,gateways=3");
        case 4: return testing::made_up_places(random);
        default: return made_up(random, 1 + static_cast<std::uint32_t>(random() % 24));
    }
}

// The links that a partition may have: those whose nodes have half as many of its bytes as any.
std::set<std::uint32_t> choices_of(const Topology& t, const std::vector<Contribution>& all) {
    std::map<std::uint32_t, double> bytes;
    for (const Contribution& c : all)
        bytes[t.link_of(c.node)] += static_cast<double>(c.bytes);
    double most = 0;
    for (const auto& [link, sum] : bytes)
        most = std::max(most, sum);
    std::set<std::uint32_t> choices;
    for (const auto& [link, sum] : bytes) {
        if (2 * sum >= most) choices.insert(link);
    }
    return choices;
}

// Whether all partitions can have links of which each has at most so many: matching by augmenting paths.
bool fits(const std::vector<std::set<std::uint32_t>>& choices, const std::vector<std::size_t>& room) {
    std::vector<std::vector<std::size_t>> users(room.size());
    std::set<std::uint32_t> seen;
    const std::function<bool(std::size_t)> place = [&](std::size_t p) {
        for (const std::uint32_t link : choices[p]) {
            if (!seen.insert(link).second) continue;
            if (users[link].size() < room[link]) {
                users[link].push_back(p);
                return true;
            }
            for (std::size_t& user : users[link]) {
                if (!place(user)) continue;
                user = p;
                return true;
            }
        }
        return false;
    };
    for (std::size_t p = 0; p < choices.size(); ++p) {
        seen.clear();
        if (!place(p)) return false;
    }
    return true;
}

TEST(Exits, TheLargestLoadIsTheLeastPossible) {
    std::mt19937_64 random(test_seed(1));
    int several = 0;
    for (int round = 0; round < test_rounds(600); ++round) {
        const auto t = some_links(random);
        ASSERT_NE(t, nullptr);
        const Partitions partitions = shared_partitions(random, t->nodes());
        const auto exits = exits_of(*t, Placement::cost, partitions);
        ASSERT_EQ(exits.size(), partitions.size());
        if (t->links() == 1) continue;
        std::vector<std::set<std::uint32_t>> choices;
        std::vector<std::size_t> users(t->links(), 0);
        for (std::size_t p = 0; p < partitions.size(); ++p) {
            choices.push_back(choices_of(*t, partitions[p]));
            ASSERT_TRUE(choices[p].contains(exits[p].link)) << t->name() << ", partition " << p;
            ASSERT_EQ(exits[p].gateway, t->gateway_of_link(exits[p].link));
            ++users[exits[p].link];
            several += choices[p].size() > 1 ? 1 : 0;
        }
        const auto load = [&](std::uint32_t link, std::size_t count) {
            return static_cast<double>(count) / static_cast<double>(t->link_capacity(link));
        };
        double largest = 0;
        for (std::uint32_t link = 0; link < users.size(); ++link)
            largest = std::max(largest, load(link, users[link]));
        std::vector<std::size_t> room(users.size(), 0);  // with less than that on each link
        for (std::uint32_t link = 0; link < users.size(); ++link) {
            while (room[link] < partitions.size() && load(link, room[link] + 1) < largest)
                ++room[link];
        }
        ASSERT_FALSE(fits(choices, room)) << t->name() << ", round " << round;
        for (std::size_t p = 0; p < partitions.size(); ++p) {
            for (const std::uint32_t link : choices[p]) {
                const std::uint32_t own = exits[p].link;
                ASSERT_TRUE(link == own || load(link, users[link] + 1) >= load(own, users[own]))
                    << t->name() << ": partition " << p << " should have link " << link;
            }
        }
        ASSERT_EQ(exits_of(*t, Placement::cost, partitions), exits);
    }
    EXPECT_GT(several, 100);
}

TEST(Exits, AreAsBeforeWhereNothingIsShared) {
    std::mt19937_64 random(test_seed(2));
    for (int round = 0; round < test_rounds(200); ++round) {
        const auto t = some_links(random);
        ASSERT_NE(t, nullptr);
        const Partitions partitions = shared_partitions(random, t->nodes());
        const auto one = topology("flat:" + std::to_string(t->nodes()));
        for (const Exit& exit : exits_of(*one, Placement::cost, partitions))
            ASSERT_EQ(exit, Exit{});
        for (const Placement placement :
             {Placement::rank, Placement::bridge, Placement::random, Placement::worst}) {
            const auto exits = exits_of(*t, placement, partitions);
            for (std::size_t p = 0; p < partitions.size(); ++p)
                ASSERT_EQ(exits[p], Exit{gateway_of_partition(*t, partitions[p])});
        }
    }
    EXPECT_TRUE(exits_of(*topology("torus:4x4,pset=4"), Placement::cost, Partitions()).empty());
}

Plan plan_of(const Topology& t, std::uint32_t ranks, std::uint32_t aggregators, PlanLayout layout) {
    PlanSettings settings{.ranks_per_node = 16, .aggregators = aggregators, .layout = layout};
    settings.item_bytes = {4, 4, 4, 4, 4, 4, 4, 8, 2};
    settings.block = 8U << 20;
    const std::vector<std::uint64_t> volumes(ranks, 950'000);
    const std::array both{Placement::cost, Placement::rank};
    auto plan = make_plan(t, volumes, settings, both);
    EXPECT_TRUE(plan.ok());
    return std::move(*plan);
}

// How many aggregators the link with most and the one with fewest has, of the links that have any.
std::pair<std::uint32_t, std::uint32_t> of_links(const Topology& t, const PlannedPlacement& placement) {
    std::map<std::uint32_t, std::uint32_t> times;
    for (const Election& election : placement.elections)
        ++times[t.link_of(election.rank / 16)];
    std::uint32_t most = 0;
    std::uint32_t fewest = ~0U;
    for (const auto& [link, count] : times) {
        most = std::max(most, count);
        fewest = std::min(fewest, count);
    }
    return {most, fewest};
}

// Bridge nodes of a Pset, gateways of the others: none gets two aggregators more than another.
TEST(Exits, LinksGetEqualSharesOfAggregators) {
    struct Machine {
        const char* topology;
        std::uint32_t links;
    };
    for (const auto& [description, links] :
         {Machine{"torus:4x4x4x8x2", 16}, {"dragonfly:8x16x8", 8}, {"fattree:16,3", 8}}) {
        const auto t = topology(description);
        ASSERT_EQ(t->links(), links);
        const auto capacity = t->link_capacity(0);
        for (std::uint32_t link = 0; link < links; ++link)
            ASSERT_EQ(t->link_capacity(link), capacity);
        for (const std::uint32_t aggregators : {16U, 40U}) {
            const Plan plan = plan_of(*t, 16'384, aggregators, PlanLayout::interleaved);
            const auto [most, fewest] = of_links(*t, plan.placements[0]);
            EXPECT_LE(most - fewest, 1U) << description << ", " << aggregators;
        }
        for (const PlanLayout layout : {PlanLayout::records, PlanLayout::variables}) {
            const Plan plan = plan_of(*t, 16'384, 64, layout);
            const auto [most, fewest] = of_links(*t, plan.placements[0]);
            EXPECT_EQ(most, 64 / links) << description;
            EXPECT_EQ(fewest, 64 / links) << description;
            for (const Election& election : plan.placements[0].elections)
                EXPECT_EQ(election.gateway, t->gateway_of(election.rank / 16));
        }
    }
    // 390 partitions for 98 links; the last Pset is used in part.
    const auto large = topology("torus:8x8x8x8x2");
    const Plan plan = plan_of(*large, 100'000, 390, PlanLayout::records);
    EXPECT_EQ(of_links(*large, plan.placements[0]).first, 4U);
}

// Where links limit the rate, hops cost nothing, and uniform data leave rank order as it is. Where
// they do not, aggregators are near their gateway.
TEST(Exits, HopsCountWhereLinksDoNotLimit) {
    const auto slow = topology("torus:4x4x4x8x2");
    const Plan as_it_is = plan_of(*slow, 16'384, 64, PlanLayout::records);
    for (std::size_t p = 0; p < 64; ++p)
        EXPECT_EQ(as_it_is.placements[0].elections[p].rank, as_it_is.placements[1].elections[p].rank);
    const auto fast = topology("torus:4x4x4x8x2,gateway_bandwidth=28.8e9");
    const Plan told = plan_of(*fast, 16'384, 64, PlanLayout::records);
    const auto hops = [&](const PlannedPlacement& placement) {
        std::uint32_t sum = 0;
        for (const Election& election : placement.elections)
            sum += fast->distance_to_gateway(election.rank / 16, election.gateway);
        return sum;
    };
    EXPECT_LT(hops(told.placements[0]), hops(told.placements[1]));
}

}  // namespace
}  // namespace twinrun
