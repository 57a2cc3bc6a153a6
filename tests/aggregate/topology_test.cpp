#include "aggregate/topology/topology.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <queue>
#include <random>

#include "aggregate/topologies.hpp"
#include "aggregate/topology/hosts.hpp"
#include "aggregate/topology/tree.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::made_up;
using testing::topology;

// What every topology promises.
void expect_sound(const Topology& t) {
    SCOPED_TRACE(t.name());
    ASSERT_GE(t.nodes(), 1U);
    ASSERT_GE(t.gateways(), 1U);
    EXPECT_GE(t.ports(), 1U);
    std::mt19937_64 random(test_seed(5));
    for (int k = 0; k < 2000; ++k) {
        const auto a = static_cast<std::uint32_t>(random() % t.nodes());
        const auto b = static_cast<std::uint32_t>(random() % t.nodes());
        ASSERT_EQ(t.distance(a, b), t.distance(b, a));
        ASSERT_EQ(t.distance(a, a), 0U);
        ASSERT_GT(t.bandwidth(a, b), 0);
        ASSERT_LE(t.distance(a, b), t.diameter());
        if (a != b) {
            ASSERT_GE(t.distance(a, b), 1U);
            ASSERT_GE(t.bandwidth(a, b), t.least_bandwidth());
        }
        const auto gateway = static_cast<std::uint32_t>(random() % t.gateways());
        ASSERT_GT(t.bandwidth_to_gateway(a, gateway), 0);
        ASSERT_GT(t.gateway_capacity(gateway), 0);
        ASSERT_LT(t.gateway_of(a), t.gateways());
        ASSERT_LT(t.link_of(a), t.links());
        ASSERT_EQ(t.gateway_of_link(t.link_of(a)), t.gateway_of(a));
        ASSERT_GT(t.link_capacity(t.link_of(a)), 0);
    }
}

using Graph = std::vector<std::vector<std::uint32_t>>;
std::vector<std::uint32_t> steps_from(const Graph& graph, std::uint32_t start) {
    std::vector<std::uint32_t> steps(graph.size(), ~0U);
    std::queue<std::uint32_t> next;
    steps[start] = 0;
    next.push(start);
    while (!next.empty()) {
        const std::uint32_t at = next.front();
        next.pop();
        for (const std::uint32_t to : graph[at]) {
            if (steps[to] != ~0U) continue;
            steps[to] = steps[at] + 1;
            next.push(to);
        }
    }
    return steps;
}

TEST(Topologies, AreSound) {
    for (const char* description :
         {"flat:1", "flat:7", "torus:4x4x4x4x2", "torus:4x4x4x4x2,pset=32", "torus:1", "torus:2",
          "torus:3x1x5,pset=4", "torus:17x3,pset=1", "dragonfly:9x4x2", "dragonfly:1x4x2", "dragonfly:2x1x1",
          "dragonfly:5x2x3,gateways=7", "dragonfly:30x3x2,gateways=1", "fattree:8,3", "fattree:4,1",
          "fattree:2,5", "fattree:5x1x3,gateways=2", "fattree:1",
          "torus:4x4,latency=0,bandwidth=1e9,memory=2e9,gateway_bandwidth=3e9"})
        expect_sound(*topology(description));
    std::mt19937_64 random(test_seed(6));
    for (int round = 0; round < 20; ++round)
        expect_sound(*made_up(random, 1 + static_cast<std::uint32_t>(random() % 12)));
}

TEST(Torus, DistancesAreThoseOfItsGraph) {
    for (const std::vector<std::uint32_t>& shape :
         {std::vector<std::uint32_t>{4, 4, 4, 4, 2}, {5}, {2, 3, 7}, {1, 6, 1}, {2, 2, 2, 2, 2, 2, 2, 2}}) {
        std::string description = "torus:";
        for (const std::uint32_t width : shape)
            description += (description.back() == ':' ? "" : "x") + std::to_string(width);
        const auto t = topology(description + ",pset=32");
        Graph graph(t->nodes());
        for (std::uint32_t node = 0; node < t->nodes(); ++node) {
            std::uint32_t stride = 1;  // the last dimension is the fastest
            for (std::size_t k = shape.size(); k-- > 0;) {
                const std::uint32_t place = node / stride % shape[k];
                const std::uint32_t up = node - place * stride + (place + 1) % shape[k] * stride;
                graph[node].push_back(up);
                graph[up].push_back(node);
                stride *= shape[k];
            }
        }
        for (const std::uint32_t start : {0U, t->nodes() / 3, t->nodes() - 1}) {
            const auto steps = steps_from(graph, start);
            for (std::uint32_t node = 0; node < t->nodes(); ++node)
                ASSERT_EQ(t->distance(start, node), steps[node]) << t->name();
        }
    }
}

TEST(Torus, PsetsAreThoseOfBlueGene) {
    const auto t = topology("torus:4x4x4x4x2");  // 512 nodes
    EXPECT_EQ(t->name(), "torus 4x4x4x4x2");
    EXPECT_EQ(t->gateways(), 4U);
    EXPECT_EQ(t->diameter(), 9U);
    EXPECT_EQ(t->ports(), 9U);
    EXPECT_EQ(t->bandwidth(0, 300), 1.8e9F);
    EXPECT_EQ(t->gateway_capacity(2), 3.6e9F);  // two bridge nodes with 1.8 GB/s each
    for (std::uint32_t pset = 0; pset < 4; ++pset) {
        std::vector<std::uint32_t> bridges;
        for (std::uint32_t node = 128 * pset; node < 128 * (pset + 1); ++node) {
            EXPECT_EQ(t->gateway_of(node), pset);
            if (t->bridge(node)) bridges.push_back(node);
        }
        ASSERT_EQ(bridges.size(), 2U);
        for (std::uint32_t node = 0; node < t->nodes(); ++node) {
            EXPECT_EQ(t->distance_to_gateway(node, pset),
                      1 + std::min(t->distance(node, bridges[0]), t->distance(node, bridges[1])));
        }
    }
    const auto small = topology("torus:10,pset=4");  // the last Pset has two nodes
    EXPECT_EQ(small->gateways(), 3U);
    EXPECT_TRUE(small->bridge(8));
    EXPECT_TRUE(small->bridge(9));
    const auto one = topology("torus:5,pset=4");  // and here one, with one link
    EXPECT_EQ(one->gateway_capacity(1), 1.8e9F);
    EXPECT_EQ(one->distance_to_gateway(4, 1), 1U);
}

TEST(Dragonfly, DistancesAreThoseOfRoutesWithOneGlobalLink) {
    struct Shape {
        std::uint32_t groups, routers, nodes;
    };
    for (const Shape& s : {Shape{9, 4, 2}, {5, 4, 1}, {7, 2, 3}, {2, 3, 2}, {1, 5, 2}, {12, 1, 2}}) {
        const auto t = topology("dragonfly:" + std::to_string(s.groups) + "x" + std::to_string(s.routers) +
                                "x" + std::to_string(s.nodes));
        const std::uint32_t routers = s.groups * s.routers;
        // Routers before and behind their global link; each two groups are joined once, at both ends by turns.
        Graph graph(2 * std::size_t{routers});
        for (std::uint32_t a = 0; a < routers; ++a) {
            for (std::uint32_t b = 0; b < routers; ++b) {
                if (a == b || a / s.routers != b / s.routers) continue;
                graph[a].push_back(b);
                graph[routers + a].push_back(routers + b);
            }
        }
        for (std::uint32_t g = 0; g < s.groups; ++g) {
            for (std::uint32_t h = 0; h < s.groups; ++h) {
                if (g == h) continue;
                const std::uint32_t there = (h + s.groups - g) % s.groups - 1;
                const std::uint32_t back = (g + s.groups - h) % s.groups - 1;
                graph[g * s.routers + there % s.routers].push_back(routers + h * s.routers +
                                                                   back % s.routers);
            }
        }
        for (std::uint32_t from = 0; from < t->nodes(); ++from) {
            const auto steps = steps_from(graph, from / s.nodes);
            for (std::uint32_t to = 0; to < t->nodes(); ++to) {
                const std::uint32_t router = to / s.nodes;
                const std::uint32_t expected =
                    from == to ? 0 : 2 + std::min(steps[router], steps[routers + router]);
                ASSERT_EQ(t->distance(from, to), expected) << t->name() << ": " << from << " to " << to;
            }
        }
    }
}

TEST(Dragonfly, GatewaysAreAtRouters) {
    const auto t = topology("dragonfly:9x4x2");
    EXPECT_EQ(t->gateways(), 9U);
    for (std::uint32_t gateway = 0; gateway < 9; ++gateway) {
        std::uint32_t near = 0;
        for (std::uint32_t node = 0; node < t->nodes(); ++node) {
            EXPECT_EQ(t->gateway_of(node), node / 8);
            if (node / 8 != gateway) continue;
            EXPECT_EQ(t->bridge(node), t->distance_to_gateway(node, gateway) == 2);
            near += t->bridge(node) ? 1 : 0;
        }
        EXPECT_EQ(near, 2U);
    }
}

TEST(FatTree, DistancesAreTwiceTheLevelThatJoins) {
    const auto t = topology("fattree:8,3");  // 4 x 4 x 8
    ASSERT_EQ(t->nodes(), 128U);
    for (std::uint32_t a = 0; a < 128; ++a) {
        for (std::uint32_t b = 0; b < 128; ++b) {
            const std::uint32_t expected = a == b ? 0 : a / 4 == b / 4 ? 2 : a / 16 == b / 16 ? 4 : 6;
            ASSERT_EQ(t->distance(a, b), expected);
        }
    }
    EXPECT_EQ(t->diameter(), 6U);
    EXPECT_EQ(topology("fattree:3x5x2")->nodes(), 30U);
}

TEST(Trees, DistancesAndBandwidthsAreThoseOfTheOneWay) {
    std::mt19937_64 random(test_seed(7));
    for (int round = 0; round < 100; ++round) {
        TreePlan plan;
        plan.name = "tree";
        plan.latency = 1;
        plan.memory = 1e9F;
        const auto switches = static_cast<std::uint32_t>(1 + random() % 12);
        const auto rate = [&] { return static_cast<float>(1 + random() % 100); };
        for (std::uint32_t k = 0; k < switches; ++k)
            plan.switches.push_back(
                {k == 0 ? TreePlan::kNone : static_cast<std::uint32_t>(random() % k), rate()});
        const auto nodes = static_cast<std::uint32_t>(1 + random() % 20);
        for (std::uint32_t k = 0; k < nodes; ++k)
            plan.nodes.push_back({static_cast<std::uint32_t>(random() % switches), rate()});
        for (std::uint32_t k = 0; k <= random() % 4; ++k)
            plan.gateways.push_back({static_cast<std::uint32_t>(random() % switches), rate(), rate()});
        // Nodes, then gateways, then switches; the least bandwidth on the way beside the steps.
        const auto gateways = static_cast<std::uint32_t>(plan.gateways.size());
        const std::uint32_t base = nodes + gateways;
        std::vector<std::vector<std::pair<std::uint32_t, float>>> links(base + switches);
        const auto link = [&](std::uint32_t a, std::uint32_t b, float r) {
            links[a].emplace_back(b, r);
            links[b].emplace_back(a, r);
        };
        for (std::uint32_t k = 0; k < nodes; ++k)
            link(k, base + plan.nodes[k].leaf, plan.nodes[k].bandwidth);
        for (std::uint32_t k = 0; k < gateways; ++k)
            link(nodes + k, base + plan.gateways[k].at, plan.gateways[k].bandwidth);
        for (std::uint32_t k = 1; k < switches; ++k)
            link(base + k, base + plan.switches[k].parent, plan.switches[k].bandwidth);
        const auto made = make_tree(plan);
        ASSERT_TRUE(made.ok()) << made.error().message;
        const Topology& t = **made;
        expect_sound(t);
        for (std::uint32_t from = 0; from < nodes; ++from) {
            std::vector<std::pair<std::uint32_t, float>> found(links.size(), {~0U, 0.0F});
            found[from] = {0, 1e9F};
            std::queue<std::uint32_t> next;
            next.push(from);
            while (!next.empty()) {
                const std::uint32_t at = next.front();
                next.pop();
                for (const auto& [to, r] : links[at]) {
                    if (found[to].first != ~0U) continue;
                    found[to] = {found[at].first + 1, std::min(found[at].second, r)};
                    next.push(to);
                }
            }
            std::uint32_t nearest = ~0U;
            for (std::uint32_t to = 0; to < nodes; ++to) {
                ASSERT_EQ(t.distance(from, to), found[to].first);
                ASSERT_EQ(t.bandwidth(from, to), found[to].second);
            }
            for (std::uint32_t k = 0; k < gateways; ++k) {
                ASSERT_EQ(t.distance_to_gateway(from, k), found[nodes + k].first);
                ASSERT_EQ(t.bandwidth_to_gateway(from, k), found[nodes + k].second);
                nearest = std::min(nearest, found[nodes + k].first);
            }
            ASSERT_EQ(t.distance_to_gateway(from, t.gateway_of(from)), nearest);
        }
    }
}

TEST(Trees, SeveralTopsAreJoined) {
    TreePlan plan{"two",
                  1,
                  1,
                  {{TreePlan::kNone, 2}, {TreePlan::kNone, 3}},
                  {{0, 5}, {1, 5}, {1, 5}},
                  {{TreePlan::kNone, 1, 1}},
                  {}};
    const auto made = make_tree(plan);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ((*made)->distance(0, 1), 4U);
    EXPECT_EQ((*made)->distance(1, 2), 2U);
    EXPECT_EQ((*made)->bandwidth(0, 1), 2);
    EXPECT_EQ((*made)->distance_to_gateway(0, 0), 3U);
}

TEST(Trees, WhatIsNoneIsRefused) {
    const TreePlan good{"t", 0, 1, {{TreePlan::kNone, 1}, {0, 1}}, {{1, 1}}, {{0, 1, 1}}, {}};
    ASSERT_TRUE(make_tree(good).ok());
    const auto refused = [&](const auto& change) {
        TreePlan plan = good;
        change(plan);
        const auto made = make_tree(plan);
        return !made.ok() && made.error().code == ErrorCode::invalid_argument;
    };
    EXPECT_TRUE(refused([](TreePlan& p) { p.nodes.clear(); }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.gateways.clear(); }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.nodes[0].leaf = 2; }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.gateways[0].at = 9; }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.switches[0].parent = 1; }));  // a circle
    EXPECT_TRUE(refused([](TreePlan& p) { p.switches[1].parent = 1; }));  // one beside the top
    EXPECT_TRUE(refused([](TreePlan& p) { p.switches[1].parent = 5; }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.switches[1].bandwidth = 0; }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.nodes[0].bandwidth = -1; }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.memory = NAN; }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.latency = INFINITY; }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.gateway_of = {1}; }));
    EXPECT_TRUE(refused([](TreePlan& p) { p.gateway_of = {0, 0}; }));
    EXPECT_TRUE(refused([](TreePlan& p) {
        for (std::uint32_t k = 0; k < 100; ++k)
            p.switches.push_back({k + 1, 1});
    }));
}

TEST(Descriptions, ThatAreWrongSayWhatIsRight) {
    for (const char* description : {"",
                                    "torus",
                                    "torus:",
                                    "torus:x",
                                    "torus:4x",
                                    "torus:0x4",
                                    "torus:-4",
                                    "torus:4x4x4x4x4x4x4x4x4",
                                    "torus:4096x4096",
                                    "torus:4294967296",
                                    "torus:4x4,pset=0",
                                    "torus:4x4,pset",
                                    "torus:4x4,gateways=2",
                                    "torus:4x4,8",
                                    "torus:4x4,latency=-1",
                                    "torus:4x4,latency=nan",
                                    "torus:4x4,latency=1e999",
                                    "torus:4x4,bandwidth=0",
                                    "dragonfly:4x4",
                                    "dragonfly:4x4x4x4",
                                    "dragonfly:4x4x4,gateways=65",
                                    "dragonfly:1024x1024x1024",
                                    "fattree:7,2",
                                    "fattree:8",
                                    "fattree:8,",
                                    "fattree:8,40",
                                    "fattree:64,9",
                                    "fattree:8,3,2",
                                    "fattree:8x8,2",
                                    "flat",
                                    "flat:",
                                    "flat:0",
                                    "flat:1,2",
                                    "flat:99999999",
                                    "ring:4",
                                    "Torus:4",
                                    " torus:4",
                                    "torus:4 ",
                                    "torus:4x4,=3",
                                    "torus:4x4,,",
                                    "file:",
                                    "file:/nowhere/at/all"}) {
        // fattree:8 alone is a tree of one level
        if (std::string(description) == "fattree:8") continue;
        const auto made = make_topology(description, 0);
        EXPECT_FALSE(made.ok()) << description;
        if (!made.ok()) {
            EXPECT_FALSE(made.error().message.empty());
        }
    }
    EXPECT_EQ(topology("flat", 5)->nodes(), 5U);
    EXPECT_EQ(topology("torus:4x4,pset=8,latency=1e-3")->latency(), 1e-3F);
}

TEST(Files, OfTreesAndMatrices) {
    const auto tree = parse_topology_file(R"({
        "name": "two racks", "latency": 2e-7, "memory": 3e10, "bandwidth": 1e10, "nodes": "n[0-5]",
        "switches": [{"name": "a", "nodes": "n[0-2]", "bandwidth": 2e10},
                     {"name": "b", "nodes": ["n3", "n[4-5]"], "node_bandwidth": 5e9},
                     {"name": "top", "switches": "a,b"}],
        "gateways": [{"switch": "a", "bandwidth": 4e9, "capacity": 8e9},
                     {"switch": "top", "nodes": "n5"}]})");
    ASSERT_TRUE(tree.ok()) << tree.error().message;
    const Topology& t = *tree->topology;
    expect_sound(t);
    EXPECT_EQ(t.name(), "two racks");
    EXPECT_EQ(tree->names, (std::vector<std::string>{"n0", "n1", "n2", "n3", "n4", "n5"}));
    EXPECT_EQ(t.distance(0, 1), 2U);
    EXPECT_EQ(t.distance(0, 3), 4U);
    EXPECT_EQ(t.bandwidth(0, 0), 3e10F);
    EXPECT_EQ(t.bandwidth(0, 1), 1e10F);
    EXPECT_EQ(t.bandwidth(3, 0), 5e9F);
    EXPECT_EQ(t.distance_to_gateway(0, 0), 2U);
    EXPECT_EQ(t.bandwidth_to_gateway(1, 0), 4e9F);
    EXPECT_EQ(t.gateway_capacity(0), 8e9F);
    EXPECT_EQ(t.gateway_of(5), 1U);  // said
    EXPECT_EQ(t.gateway_of(1), 0U);  // nearest
    EXPECT_TRUE(t.bridge(1));
    EXPECT_FALSE(t.bridge(3));

    const auto matrix = parse_topology_file(R"({"nodes": "x,y,z", "distances": [[0,1,2],[1,0,1],[2,1,0]],
        "bandwidths": [[null,2e9,1e9],[2e9,9e9,2e9],[1e9,2e9,null]],
        "gateways": [{"bridges": "z", "bandwidth": 1e9}, {"bridges": "x", "nodes": "y"}]})");
    ASSERT_TRUE(matrix.ok()) << matrix.error().message;
    const Topology& m = *matrix->topology;
    expect_sound(m);
    EXPECT_EQ(m.distance(0, 2), 2U);
    EXPECT_EQ(m.bandwidth(0, 2), 1e9F);
    EXPECT_EQ(m.bandwidth(1, 1), 9e9F);
    EXPECT_EQ(m.distance_to_gateway(0, 0), 3U);
    EXPECT_EQ(m.gateway_of(0), 1U);
    EXPECT_EQ(m.gateway_of(1), 1U);
    EXPECT_TRUE(m.bridge(0));
    EXPECT_FALSE(m.bridge(1));

    const auto flat = parse_topology_file(R"({"nodes": 3})");
    ASSERT_TRUE(flat.ok());
    EXPECT_EQ(flat->topology->distance(0, 2), 2U);
    EXPECT_EQ(flat->names.back(), "node2");
}

TEST(Files, ThatAreWrongSayWhere) {
    const std::pair<const char*, const char*> cases[] = {
        {"", "JSON"},
        {"[", "JSON"},
        {"[]", "object"},
        {"{}", "nodes"},
        {R"({"nodes": 0})", "nodes"},
        {R"({"nodes": -1})", "nodes"},
        {R"({"nodes": 99999999999})", "nodes"},
        {R"({"nodes": "n[0-99999999]"})", "nodes"},
        {R"({"nodes": "a,a"})", "'a' is there twice"},
        {R"({"nodes": 2, "node": 1})", "'node'"},
        {R"({"nodes": 2, "latency": -1})", "latency"},
        {R"({"nodes": 2, "latency": "fast"})", "latency"},
        {R"({"nodes": 2, "bandwidth": 0})", "bandwidth"},
        {R"({"nodes": 2, "bandwidth": 1e300})", "bandwidth"},
        {R"({"nodes": 2, "gateways": []})", "gateways"},
        {R"({"nodes": 2, "gateways": [3]})", "gateways"},
        {R"({"nodes": 2, "gateways": [{"switch": "s"}]})", "'s'"},
        {R"({"nodes": "a,b", "switches": [{"name": "s", "nodes": "a"}]})", "'b'"},
        {R"({"nodes": "a", "switches": [{"name": "s", "nodes": "a,c"}]})", "'c'"},
        {R"({"switches": [{"name": "s", "nodes": "a"}, {"name": "t", "nodes": "a"}]})", "'a' is there twice"},
        {R"({"switches": [{"name": "s", "nodes": "a"}, {"name": "s"}]})", "'s' is there twice"},
        {R"({"switches": [{"nodes": "a"}]})", "name"},
        {R"({"switches": [{"name": "s", "nodes": "a", "switches": "s"}]})", "circle"},
        {R"({"switches": [{"name": "s", "nodes": "a", "switches": "t"}, {"name": "t", "switches": "s"}]})",
         "circle"},
        {R"({"switches": [{"name": "s", "nodes": "a", "switches": "u"}]})", "'u'"},
        {R"({"switches": [{"name": "s", "nodes": "a"}, {"name": "p", "switches": "s"}, {"name": "q", "switches": "s"}]})",
         "two"},
        {R"({"nodes": 2, "distances": [[0,1]]})", "rows"},
        {R"({"nodes": 2, "distances": [[0,1],[2,0]]})", "as long as back"},
        {R"({"nodes": 2, "distances": [[1,1],[1,0]]})", "0 from a node to itself"},
        {R"({"nodes": 2, "distances": [[0,1.5],[1.5,0]]})", "whole"},
        {R"({"nodes": 2, "distances": [[0,-1],[-1,0]]})", "whole"},
        {R"({"nodes": 5000, "distances": []})", "4096"},
        {R"({"nodes": 2, "distances": [[0,1],[1,0]], "bandwidths": [[1,1],[0,1]]})", "bandwidths"},
        {R"({"nodes": 2, "distances": [[0,1],[1,0]], "switches": []})", "either"},
        {R"({"nodes": 2, "bandwidths": []})", "distances"},
        {R"({"nodes": 2, "distances": [[0,1],[1,0]], "gateways": [{"distances": [1]}]})", "each node"},
        {R"({"nodes": 2, "distances": [[0,1],[1,0]], "gateways": [{"nodes": "node0"}, {"nodes": "node0"}]})",
         "two"},
    };
    for (const auto& [text, words] : cases) {
        const auto made = parse_topology_file(text);
        ASSERT_FALSE(made.ok()) << text;
        EXPECT_EQ(made.error().code, ErrorCode::invalid_argument) << text;
        EXPECT_NE(made.error().message.find(words), std::string::npos)
            << text << ": " << made.error().message;
    }
}

std::vector<Host> hosts_named(std::initializer_list<const char*> names) {
    std::vector<Host> hosts;
    for (const char* name : names)
        hosts.push_back({name, "", ""});
    return hosts;
}
Result<std::string> no_scontrol() { return Error{ErrorCode::unsupported, "no scontrol here"}; }

TEST(Hosts, AreNodesOfFilesByName) {
    const std::string path = ::testing::TempDir() + "twinrun_topology_test.json";
    std::ofstream(path)
        << R"({"switches": [{"name": "a", "nodes": "n[0-3]"}, {"name": "b", "nodes": "m[0-3]"},
                               {"name": "top", "switches": "a,b"}]})";
    const auto found =
        topology_of_hosts("file:" + path, hosts_named({"m2.example.org", "n3", "m0"}), no_scontrol);
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ((*found)->nodes(), 3U);
    EXPECT_EQ((*found)->distance(0, 1), 4U);
    EXPECT_EQ((*found)->distance(0, 2), 2U);
    EXPECT_LT((*found)->gateway_of(2), (*found)->gateways());
    const auto missing = topology_of_hosts("file:" + path, hosts_named({"n0", "k0"}), no_scontrol);
    ASSERT_FALSE(missing.ok());
    EXPECT_NE(missing.error().message.find("'k0'"), std::string::npos) << missing.error().message;
    EXPECT_FALSE(topology_of_hosts("file:" + path, hosts_named({"n0", "n0"}), no_scontrol).ok());
    std::filesystem::remove(path);
    const auto gone = topology_of_hosts("file:" + path, hosts_named({"n0"}), no_scontrol);
    ASSERT_FALSE(gone.ok());
    EXPECT_EQ(gone.error().code, ErrorCode::not_found);
}

TEST(Hosts, AreTheFirstNodesOfModels) {
    const auto exact = topology_of_hosts("torus:2x2", hosts_named({"a", "b", "c", "d"}), no_scontrol);
    ASSERT_TRUE(exact.ok());
    EXPECT_EQ((*exact)->distance(0, 3), 2U);
    const auto fewer = topology_of_hosts("torus:4x4", hosts_named({"a", "b", "c"}), no_scontrol);
    ASSERT_TRUE(fewer.ok());
    EXPECT_EQ((*fewer)->nodes(), 3U);
    EXPECT_EQ((*fewer)->distance(0, 2), 2U);
    EXPECT_FALSE(topology_of_hosts("torus:2", hosts_named({"a", "b", "c"}), no_scontrol).ok());
    EXPECT_FALSE(topology_of_hosts("nonsense", hosts_named({"a"}), no_scontrol).ok());
    EXPECT_FALSE(topology_of_hosts("auto", {}, no_scontrol).ok());
    for (const char* description : {"auto", "node", "flat"}) {
        const auto flat = topology_of_hosts(description, hosts_named({"a", "b"}), no_scontrol);
        ASSERT_TRUE(flat.ok());
        EXPECT_EQ((*flat)->nodes(), 2U);
        EXPECT_EQ((*flat)->distance(0, 1), 1U);
    }
}

TEST(Hosts, OfSlurm) {
    std::vector<Host> hosts{{"n0", "top.s0.n0", "switch.switch.node"},
                            {"n1", "top.s0.n1", "switch.switch.node"},
                            {"n2", "top.s1.n2", "switch.switch.node"}};
    for (const char* description : {"auto", "slurm"}) {
        const auto found = topology_of_hosts(description, hosts, no_scontrol);
        ASSERT_TRUE(found.ok()) << found.error().message;
        EXPECT_EQ((*found)->distance(0, 1), 2U);
        EXPECT_EQ((*found)->distance(0, 2), 4U);
    }
    // Without addresses that say more than names: auto does without, slurm asks.
    for (Host& host : hosts) {
        host.address = host.name;
        host.pattern = "node";
    }
    const auto flat = topology_of_hosts("auto", hosts, no_scontrol);
    ASSERT_TRUE(flat.ok());
    EXPECT_EQ((*flat)->distance(0, 2), 1U);
    EXPECT_FALSE(topology_of_hosts("slurm", hosts, no_scontrol).ok());
    const auto told = topology_of_hosts("slurm", hosts, []() -> Result<std::string> {
        return std::string(
            "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n0,x\n"
            "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-2],x Switches=s[0-1]\n");
    });
    ASSERT_TRUE(told.ok()) << told.error().message;
    EXPECT_EQ((*told)->nodes(), 3U);
    EXPECT_EQ((*told)->distance(0, 1), 4U);
    EXPECT_EQ((*told)->distance(1, 2), 2U);
}

}  // namespace
}  // namespace twinrun
