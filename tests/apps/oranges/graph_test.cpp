// SPDX-License-Identifier: Apache-2.0
#include "oranges/graph.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "oranges/random.hpp"

namespace oranges {
namespace {

TEST(Graph, EqualsASetOfPairs) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Random random(seed);
        const Vertex vertices = 1 + random.below(20);
        std::vector<Edge> edges(random.below(80));
        std::set<std::pair<Vertex, Vertex>> pairs;
        for (Edge& edge : edges) {
            edge = {random.below(vertices), random.below(vertices)};
            if (edge.a != edge.b) pairs.insert(std::minmax(edge.a, edge.b));
        }
        const Graph graph(vertices, edges);
        ASSERT_EQ(graph.vertices(), vertices);
        ASSERT_EQ(graph.edges(), pairs.size());
        for (Vertex a = 0; a < vertices; ++a) {
            const auto list = graph.neighbours(a);
            EXPECT_EQ(list.size(), graph.degree(a));
            EXPECT_TRUE(std::ranges::is_sorted(list));
            for (Vertex b = 0; b < vertices; ++b) {
                const bool joined = a != b && pairs.contains(std::minmax(a, b));
                EXPECT_EQ(graph.adjacent(a, b), joined);
                EXPECT_EQ(std::ranges::count(list, b), joined ? 1 : 0);
            }
        }
        EXPECT_EQ(Graph(vertices, graph.edge_list()), graph);
        EXPECT_EQ(graph.edge_list().size(), graph.edges());
    }
}

TEST(Graph, MayBeEmpty) {
    EXPECT_EQ(Graph().vertices(), 0u);
    EXPECT_EQ(Graph(0, {}), Graph());
    EXPECT_EQ(Graph(3, {}).edges(), 0u);
}

TEST(Graph, RefusesWhatIsNoGraph) {
    const std::vector<Edge> edges{{0, 3}};
    EXPECT_THROW(Graph(3, edges), std::runtime_error);
    EXPECT_THROW(Graph(Graph::kMostVertices + 1, {}), std::runtime_error);
}

}  // namespace
}  // namespace oranges
