// SPDX-License-Identifier: Apache-2.0
#include "oranges/generators.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "apps/oranges/support.hpp"

namespace oranges {
namespace {

std::uint64_t fingerprint(const Graph& graph) {
    std::uint64_t hash = 0xCBF2'9CE4'8422'2325;  // FNV-1a of 32-bit words
    const auto add = [&](Vertex v) { hash = (hash ^ v) * 0x0000'0100'0000'01B3; };
    add(graph.vertices());
    for (const Edge& edge : graph.edge_list()) {
        add(edge.a);
        add(edge.b);
    }
    return hash;
}

std::uint64_t most_neighbours(const Graph& graph) {
    std::uint64_t most = 0;
    for (Vertex v = 0; v < graph.vertices(); ++v)
        most = std::max(most, graph.degree(v));
    return most;
}

RaceOptions race(std::uint64_t ranks, std::uint64_t iterations, std::uint64_t messages,
                 std::uint64_t other = 14) {
    RaceOptions options;
    options.ranks = ranks;
    options.iterations = iterations;
    options.messages = messages;
    options.other = other;
    return options;
}

ExchangeOptions exchange(std::uint64_t ranks, std::uint64_t iterations, std::uint64_t pairs,
                         std::uint64_t other = 14) {
    ExchangeOptions options;
    options.ranks = ranks;
    options.iterations = iterations;
    options.pairs = pairs;
    options.other = other;
    return options;
}

TEST(Random, IsTheSameOnAnyMachine) {
    Random random(1);
    EXPECT_EQ(random.next(), 6791897765849424158u);
    EXPECT_EQ(random.below(1000), 943u);
    EXPECT_NEAR(random.unit(), 0.045257, 1e-6);
    EXPECT_NE(Random(1, 1).next(), Random(1, 2).next());
    EXPECT_NE(Random(1, 1).next(), Random(2, 1).next());
}

// A change here makes other graphs of the same seeds: what was measured on them is no longer comparable.
TEST(Generators, AreTheSameOnAnyMachine) {
    EXPECT_EQ(fingerprint(delaunay_graph(3000, 1)), 8761721167694007915u);
    EXPECT_EQ(fingerprint(bubble_graph(3000, 1)), 14128572958905633767u);
    EXPECT_EQ(fingerprint(road_graph(3000, 1)), 12373036331513868153u);
    EXPECT_EQ(fingerprint(race_graph(race(8, 20, 3), 1)), 15382634613644681383u);
    EXPECT_EQ(fingerprint(exchange_graph(exchange(8, 20, 12), 1)), 17728722236671134811u);
}

TEST(Generators, DifferBySeed) {
    EXPECT_NE(delaunay_graph(300, 1), delaunay_graph(300, 2));
    EXPECT_NE(bubble_graph(300, 1), bubble_graph(300, 2));
    EXPECT_NE(road_graph(300, 1), road_graph(300, 2));
    EXPECT_NE(race_graph(race(4, 5, 3), 1), race_graph(race(4, 5, 3), 2));
    EXPECT_NE(exchange_graph(exchange(6, 5, 9), 1), exchange_graph(exchange(6, 5, 9), 2));
}

TEST(DelaunayGraph, HasSixNeighboursOnAverage) {
    for (const std::uint64_t vertices : {3u, 4u, 10u, 1000u, 20'000u}) {
        const Graph graph = delaunay_graph(vertices, vertices);
        EXPECT_EQ(graph.vertices(), vertices);
        EXPECT_TRUE(connected(graph));
        EXPECT_LE(graph.edges(), 3 * vertices - 6);
        EXPECT_GE(graph.edges() + 60,
                  3 * vertices);  // 3 n - 3 less those on the hull, of which there are few
    }
    EXPECT_THROW(delaunay_graph(2, 1), std::runtime_error);
    EXPECT_THROW(delaunay_graph(Graph::kMostVertices + 1, 1), std::runtime_error);
}

TEST(BubbleGraph, HasThreeNeighboursExceptAtTheBorder) {
    for (const std::uint64_t vertices : {10u, 1000u, 20'000u}) {
        const Graph graph = bubble_graph(vertices, 7);
        EXPECT_NEAR(graph.vertices(), static_cast<double>(vertices), 60.0);
        EXPECT_TRUE(connected(graph));
        EXPECT_LE(most_neighbours(graph), 3u);
        EXPECT_GE(2 * graph.edges() + 60, 3 * graph.vertices());
    }
}

TEST(RoadGraph, IsSparseAndConnected) {
    for (const std::uint64_t vertices : {64u, 65u, 1000u, 20'000u}) {
        const Graph graph = road_graph(vertices, 3);
        EXPECT_EQ(graph.vertices(), vertices);
        EXPECT_TRUE(connected(graph));
        EXPECT_NEAR(static_cast<double>(graph.edges()) / static_cast<double>(vertices), 1.0637,
                    0.02);  // asia_osm
        EXPECT_LE(most_neighbours(graph), 16u);
    }
    EXPECT_THROW(road_graph(63, 1), std::runtime_error);
}

TEST(EventGraphs, HaveThePapersSizes) {
    // Edges: a chain has one less than it has events, and each message adds one.
    EXPECT_EQ(race_vertices({}), 11'174'336u);
    EXPECT_EQ(race_vertices({}) - 32 + 31 * 11 * 16384, 16'761'248u);
    EXPECT_EQ(exchange_vertices({}), 14'418'368u);
    EXPECT_EQ(exchange_vertices({}) - 32 + 2 * 220 * 16384, 21'627'296u);
}

TEST(RaceGraph, JoinsSendsToReceivesInTheOrderOfEachRank) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        Random random(seed);
        const RaceOptions options =
            race(2 + random.below(6), random.below(8), 1 + random.below(4), random.below(6));
        const Graph graph = race_graph(options, seed);
        const std::uint64_t arrivals = (options.ranks - 1) * options.messages, before = options.other / 2;
        ASSERT_EQ(graph.vertices(), race_vertices(options));
        const std::uint64_t silent = options.other == 0 && options.iterations == 0 ? options.ranks : 0;
        EXPECT_EQ(graph.edges(), graph.vertices() + silent - options.ranks + arrivals * options.iterations);
        const std::uint64_t root_events = options.other + options.iterations * arrivals;
        std::set<Vertex> receives;
        for (std::uint64_t rank = 1; rank < options.ranks; ++rank) {
            const std::uint64_t begin =
                root_events + (rank - 1) * (options.other + options.iterations * options.messages) + before;
            std::uint64_t last = 0;
            for (std::uint64_t send = 0; send < options.iterations * options.messages; ++send) {
                const auto list = graph.neighbours(static_cast<Vertex>(begin + send));
                const Vertex receive = list.front();  // the others lie in its own chain
                EXPECT_TRUE(receives.insert(receive).second);
                EXPECT_GE(receive, before + send / options.messages * arrivals);
                EXPECT_LT(receive, before + (send / options.messages + 1) * arrivals);
                EXPECT_TRUE(send == 0 || receive > last);
                last = receive;
            }
        }
        EXPECT_EQ(receives.size(), arrivals * options.iterations);
    }
}

TEST(RaceGraph, AllOrdersOfArrivalAreLikely) {
    std::set<std::vector<Vertex>> orders;
    const Graph graph = race_graph(race(4, 200, 1, 0), 1);  // 3 messages: 6 orders
    for (Vertex iteration = 0; iteration < 200; ++iteration) {
        std::vector<Vertex> order;
        for (Vertex rank = 0; rank < 3; ++rank)
            order.push_back(graph.neighbours(600 + rank * 200 + iteration).front() - 3 * iteration);
        orders.insert(order);
    }
    EXPECT_EQ(orders.size(), 6u);
}

TEST(ExchangeGraph, JoinsTheSendsOfAnIterationToReceivesOfTheSame) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        Random random(seed);
        const std::uint64_t ranks = 2 + random.below(6), most = ranks * (ranks - 1) / 2;
        const ExchangeOptions options =
            exchange(ranks, random.below(8), ranks - 1 + random.below(most - ranks + 2), random.below(6));
        const Graph graph = exchange_graph(options, seed);
        ASSERT_EQ(graph.vertices(), exchange_vertices(options));
        const std::uint64_t silent = options.other == 0 && options.iterations == 0 ? ranks : 0;
        EXPECT_EQ(graph.edges(), graph.vertices() + silent - ranks + 2 * options.pairs * options.iterations);
        EXPECT_LE(most_neighbours(graph), 3u);
        EXPECT_TRUE(options.iterations == 0 || connected(graph));
    }
    EXPECT_EQ(exchange_graph(exchange(2, 0, 1, 0), 1).vertices(), 0u);
}

// Two ranks, one message each way at an iteration: s r s r, joined crosswise.
TEST(ExchangeGraph, OfTwoRanks) {
    EXPECT_EQ(exchange_graph(exchange(2, 2, 1, 2), 1),
              graph_of(12, "01 12 23 34 45 67 78 89 9a ab 18 27 3a 49"));
}

TEST(EventGraphs, RefuseWhatIsTooLarge) {
    EXPECT_THROW(race_graph(race(1, 1, 1), 1), std::runtime_error);
    EXPECT_THROW(race_graph(race(5000, 1, 1), 1), std::runtime_error);
    EXPECT_THROW(race_graph(race(4096, 1u << 24, 1u << 16), 1), std::runtime_error);
    EXPECT_THROW(race_graph(race(32, 1u << 24, 11), 1), std::runtime_error);
    EXPECT_THROW(race_graph(race(4, 1, (1u << 16) + 1), 1), std::runtime_error);
    EXPECT_THROW(race_graph(race(4, 1, 1, (1u << 24) + 1), 1), std::runtime_error);
    EXPECT_THROW(exchange_graph(exchange(4, 1, 2), 1), std::runtime_error);
    EXPECT_THROW(exchange_graph(exchange(4, 1, 7), 1), std::runtime_error);
    EXPECT_THROW(exchange_graph(exchange(32, 1u << 24, 220), 1), std::runtime_error);
}

}  // namespace
}  // namespace oranges
