// SPDX-License-Identifier: Apache-2.0
#include "oranges/graphlets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>

#include "apps/oranges/support.hpp"
#include "oranges/generators.hpp"
#include "oranges/ordering.hpp"
#include "oranges/reference.hpp"

namespace oranges {
namespace {

using Counts = std::vector<std::uint32_t>;
using Row = std::map<std::size_t, std::uint32_t>;  // of orbits that are not 0

Counts copy(const GraphletCounter& counter) { return {counter.counts().begin(), counter.counts().end()}; }

Counts count(const Graph& graph, int threads = 1, const GatherLimits& limits = {}) {
    GraphletCounter counter(graph, threads, limits);
    counter.advance(graph.vertices());
    return copy(counter);
}

// All sets of up to five vertices whose smallest is below end.
Counts brute_force(const Graph& graph, Vertex end) {
    Counts counts(graph.vertices() * kOrbits);
    for (std::uint32_t set = 1; set < 1u << graph.vertices(); ++set) {
        const int size = std::popcount(set);
        if (size < 2 || size > 5 || static_cast<Vertex>(std::countr_zero(set)) >= end) continue;
        std::array<Vertex, 5> members{};
        std::size_t n = 0;
        for (Vertex v = 0; v < graph.vertices(); ++v)
            if (set >> v & 1) members[n++] = v;
        unsigned bits = 0;
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = i + 1; j < n; ++j)
                if (graph.adjacent(members[i], members[j])) bits |= adjacency_bit(i, j);
        for (std::size_t i = 0; i < n; ++i) {
            const std::uint8_t orbit = n == 2   ? (bits != 0 ? std::uint8_t{0} : kNoOrbit)
                                       : n == 3 ? kOrbitsOf3[bits][i]
                                       : n == 4 ? kOrbitsOf4[bits][i]
                                                : kOrbitsOf5[bits][i];
            if (orbit != kNoOrbit) ++counts[members[i] * kOrbits + orbit];
        }
    }
    return counts;
}

Row row_of(const Counts& counts, Vertex v) {
    Row row;
    for (std::size_t orbit = 0; orbit < kOrbits; ++orbit)
        if (const std::uint32_t n = counts[v * kOrbits + orbit]) row[orbit] = n;
    return row;
}

TEST(Graphlets, EqualBruteForceAtEveryCheckpoint) {
    std::uint64_t seed = 0;
    for (const double density : {0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0})
        for (const Vertex vertices : {0u, 1u, 2u, 3u, 4u, 5u, 7u, 10u, 14u}) {
            const Graph graph = random_graph(vertices, density, ++seed);
            const GatherLimits limits{1 + seed % 7, 1 + seed % 5 * 100};
            GraphletCounter counter(graph, 1 + static_cast<int>(seed % 3), limits);
            for (const Vertex end : {vertices / 3, vertices / 2, vertices}) {
                counter.advance(end);
                EXPECT_EQ(counter.done(), end);
                ASSERT_EQ(copy(counter), brute_force(graph, end)) << vertices << " " << density << " " << end;
            }
        }
}

TEST(Graphlets, EqualTheReferenceOnGeneratedGraphs) {
    RaceOptions race;
    race.ranks = 5;
    race.iterations = 3;
    ExchangeOptions exchange;
    exchange.ranks = 6;
    exchange.pairs = 9;
    exchange.iterations = 4;
    for (const Graph& graph : {delaunay_graph(150, 1), bubble_graph(200, 1), road_graph(300, 1),
                               race_graph(race, 1), exchange_graph(exchange, 1), random_graph(40, 0.15, 1)}) {
        const Counts counts = count(graph);
        for (Vertex v = 0; v < graph.vertices(); ++v)
            EXPECT_TRUE(
                std::ranges::equal(std::span(counts).subspan(v * kOrbits, kOrbits), reference_row(graph, v)));
        EXPECT_EQ(find_error(graph, counts, 20, 1), "");
    }
}

TEST(Graphlets, AreTheSameWithAnyNumberOfThreadsAtEveryCheckpoint) {
    const Graph graph = delaunay_graph(6000, 2);
    GraphletCounter one(graph, 1);
    std::vector<std::unique_ptr<GraphletCounter>> others;
    for (const int threads : {2, 3, 8})
        others.push_back(std::make_unique<GraphletCounter>(graph, threads, GatherLimits{500, 10'000}));
    for (Vertex end = 0; end <= graph.vertices(); end += 1500) {
        one.advance(end);
        for (const auto& other : others) {
            other->advance(end);
            ASSERT_EQ(copy(*other), copy(one));
            EXPECT_EQ(other->subgraphs(), one.subgraphs());
        }
    }
}

TEST(Graphlets, DoNotDependOnNumbersOfVertices) {
    const Graph graph = delaunay_graph(800, 3);
    const Counts counts = count(graph);
    for (const auto& order : {reverse_cuthill_mckee(graph), gorder(graph)}) {
        const Counts others = count(reordered(graph, order));
        for (Vertex v = 0; v < graph.vertices(); ++v)
            ASSERT_EQ(row_of(others, v), row_of(counts, order[v]));
    }
}

TEST(Graphlets, GoOnFromACheckpoint) {
    const Graph graph = random_graph(60, 0.1, 4);
    GraphletCounter first(graph, 1);
    first.advance(25);
    GraphletCounter second(graph, 2);
    second.restore(first.counts(), first.done());
    EXPECT_EQ(second.done(), 25u);
    second.advance(60);
    EXPECT_EQ(copy(second), count(graph));
    second.advance(10);  // no effect
    EXPECT_EQ(second.done(), 60u);
    EXPECT_THROW(second.restore(first.counts().first(73), 0), std::runtime_error);
    EXPECT_THROW(second.restore(first.counts(), 61), std::runtime_error);
}

TEST(Graphlets, SayWhereACountOverflows) {
    const Graph graph = graph_of(5, "01 12 23 34");
    for (const int threads : {1, 2}) {
        Counts counts(5 * kOrbits);
        counts[2 * kOrbits + 17] = std::numeric_limits<std::uint32_t>::max() - 1;
        GraphletCounter enough(graph, threads);
        enough.restore(counts, 0);
        enough.advance(5);
        EXPECT_EQ(enough.counts()[2 * kOrbits + 17], std::numeric_limits<std::uint32_t>::max());
        ++counts[2 * kOrbits + 17];
        GraphletCounter counter(graph, threads);
        counter.restore(counts, 0);
        try {
            counter.advance(5);
            FAIL();
        } catch (const std::overflow_error& error) {
            EXPECT_EQ(std::string(error.what()), "vertex 2 lies in orbit 17 more often than 32 bits count");
        }
    }
}

std::uint32_t choose(std::uint32_t n, std::uint32_t k) {
    std::uint64_t value = 1;
    for (std::uint32_t i = 0; i < k; ++i)
        value = value * (n - i) / (i + 1);
    return static_cast<std::uint32_t>(value);
}

TEST(Graphlets, OfACompleteGraph) {
    for (const Vertex n : {5u, 9u, 16u}) {
        const Counts counts = count(random_graph(n, 1.0, 0));
        for (Vertex v = 0; v < n; ++v)
            EXPECT_EQ(
                row_of(counts, v),
                (Row{{0, n - 1}, {3, choose(n - 1, 2)}, {14, choose(n - 1, 3)}, {72, choose(n - 1, 4)}}));
    }
}

TEST(Graphlets, OfACycle) {
    for (const Vertex n : {6u, 7u, 50u}) {
        std::vector<Edge> edges;
        for (Vertex v = 0; v < n; ++v)
            edges.push_back({v, (v + 1) % n});
        const Counts counts = count(Graph(n, edges));
        for (Vertex v = 0; v < n; ++v)
            EXPECT_EQ(row_of(counts, v),
                      (Row{{0, 2}, {1, 2}, {2, 1}, {4, 2}, {5, 2}, {15, 2}, {16, 2}, {17, 1}}));
    }
    EXPECT_EQ(row_of(count(graph_of(5, "01 12 23 34 40")), 0),
              (Row{{0, 2}, {1, 2}, {2, 1}, {4, 2}, {5, 2}, {34, 1}}));
    EXPECT_EQ(row_of(count(graph_of(4, "01 12 23 30")), 0), (Row{{0, 2}, {1, 2}, {2, 1}, {8, 1}}));
}

TEST(Graphlets, OfAPath) {
    const Counts counts = count(graph_of(9, "01 12 23 34 45 56 67 78"));
    EXPECT_EQ(row_of(counts, 0), (Row{{0, 1}, {1, 1}, {4, 1}, {15, 1}}));
    EXPECT_EQ(row_of(counts, 1), (Row{{0, 2}, {1, 1}, {2, 1}, {4, 1}, {5, 1}, {15, 1}, {16, 1}}));
    EXPECT_EQ(row_of(counts, 4), (Row{{0, 2}, {1, 2}, {2, 1}, {4, 2}, {5, 2}, {15, 2}, {16, 2}, {17, 1}}));
}

TEST(Graphlets, OfAStar) {
    constexpr Vertex n = 30;  // leaves
    for (const Vertex centre : {0u, 15u, 30u}) {
        std::vector<Edge> edges;
        for (Vertex v = 0; v <= n; ++v)
            if (v != centre) edges.push_back({v, centre});
        const Counts counts = count(Graph(n + 1, edges));
        for (Vertex v = 0; v <= n; ++v)
            if (v == centre)
                EXPECT_EQ(row_of(counts, v),
                          (Row{{0, n}, {2, choose(n, 2)}, {7, choose(n, 3)}, {23, choose(n, 4)}}));
            else
                EXPECT_EQ(row_of(counts, v),
                          (Row{{0, 1}, {1, n - 1}, {6, choose(n - 1, 2)}, {22, choose(n - 1, 3)}}));
    }
}

// Induced subgraphs of a set of A and one of B vertices have i + j = 2..5 of them.
TEST(Graphlets, OfACompleteBipartiteGraph) {
    constexpr Vertex a = 6, b = 8;
    std::vector<Edge> edges;
    for (Vertex i = 0; i < a; ++i)
        for (Vertex j = 0; j < b; ++j)
            edges.push_back({i, a + j});
    const Counts counts = count(Graph(a + b, edges));
    const auto expected = [](std::uint32_t own, std::uint32_t other) {
        return Row{{0, other},
                   {1, (own - 1) * other},
                   {2, choose(other, 2)},
                   {6, choose(own - 1, 2) * other},
                   {7, choose(other, 3)},
                   {8, (own - 1) * choose(other, 2)},
                   {22, choose(own - 1, 3) * other},
                   {23, choose(other, 4)},
                   {49, choose(own - 1, 2) * choose(other, 2)},
                   {50, (own - 1) * choose(other, 3)}};
    };
    for (Vertex v = 0; v < a + b; ++v)
        EXPECT_EQ(row_of(counts, v), v < a ? expected(a, b) : expected(b, a));
}

// A square grid, far from its border: fixed polyominoes, each by the places that a cell can have in it. Of 4 cells there are
// 2 I, 4 T, 8 L, 4 S and the square; of 5 cells there are 63 (OEIS A001168).
TEST(Graphlets, OfAGrid) {
    constexpr Vertex side = 12;
    std::vector<Edge> edges;
    for (Vertex x = 0; x < side; ++x)
        for (Vertex y = 0; y < side; ++y) {
            if (x + 1 < side) edges.push_back({x * side + y, x * side + y + side});
            if (y + 1 < side) edges.push_back({x * side + y, x * side + y + 1});
        }
    const Graph graph(side * side, edges);
    const Row row = row_of(count(graph), 5 * side + 6);
    Row small;
    std::uint32_t five = 0;
    for (const auto& [orbit, n] : row)
        if (orbit < 15)
            small[orbit] = n;
        else
            five += n;
    EXPECT_EQ(small, (Row{{0, 4}, {1, 12}, {2, 6}, {4, 28}, {5, 28}, {6, 12}, {7, 4}, {8, 4}}));
    EXPECT_EQ(five, 5u * 63);
    // 55 of the 63 are trees; the P pentomino's 8 are a square with a tail. A plus has one centre.
    EXPECT_EQ(row.at(35), 8u);
    EXPECT_EQ(row.at(23), 1u);
    EXPECT_EQ(row.at(22), 4u);
}

TEST(Reference, FindsACountThatIsWrong) {
    const Graph graph = random_graph(16, 0.3, 5);
    const Counts right = count(graph);
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        Random random(seed);
        Counts wrong = right;
        const std::size_t orbit = random.below(kOrbits);
        ++wrong[random.below(16) * kOrbits + orbit];
        // One more in an orbit that is all of its graphlet makes the sum indivisible; else two orbits disagree.
        EXPECT_NE(find_error(graph, wrong, 0, 0), "") << orbit;
        // Moved from one vertex to another, all sums are right.
        wrong = right;
        const Vertex from = random.below(16);
        if (orbit == 0 || wrong[from * kOrbits + orbit] == 0) continue;
        --wrong[from * kOrbits + orbit];
        ++wrong[(from + 1) % 16 * kOrbits + orbit];
        EXPECT_EQ(find_error(graph, wrong, 0, 0), "");
        EXPECT_NE(find_error(graph, wrong, 150, 0), "");
    }
    EXPECT_NE(find_error(graph, std::span(right).first(73), 0, 0), "");
}

// Sums over vertices v of (v + 1) times its count, from ORCA's program. All differ, so that they tell all orbits apart.
TEST(Graphlets, AreOrcas) {
    const Graph graph =
        graph_of(14,
                 "01 02 03 23 04 24 05 15 45 06 46 07 27 37 47 57 08 38 58 68 78 29 59 89 4a 6a 7a 9a "
                 "1b 6b 4c 9c ac 0d 2d 3d 4d 6d 7d 8d ad");
    constexpr std::array<std::uint32_t, kOrbits> kOrca{
        589,  1539, 728, 855,  2376, 2164, 731,  212, 710, 1131, 2075, 948,  889,  934, 512,
        1767, 1616, 767, 760,  1344, 626,  585,  29,  5,   1607, 759,  1398, 1048, 869, 1710,
        743,  374,  416, 151,  480,  432,  423,  806, 388, 562,  971,  597,  397,  436, 100,
        909,  633,  641, 1374, 133,  110,  1147, 443, 966, 120,  74,   379,  975,  252, 1010,
        1042, 509,  209, 333,  373,  343,  612,  682, 242, 58,   289,  481,  97};
    const Counts counts = count(graph);
    std::array<std::uint32_t, kOrbits> sums{};
    for (Vertex v = 0; v < graph.vertices(); ++v)
        for (std::size_t orbit = 0; orbit < kOrbits; ++orbit)
            sums[orbit] += (v + 1) * counts[v * kOrbits + orbit];
    EXPECT_EQ(sums, kOrca);
}

}  // namespace
}  // namespace oranges
