// SPDX-License-Identifier: Apache-2.0
#include "oranges/ordering.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "apps/oranges/support.hpp"
#include "oranges/generators.hpp"

namespace oranges {
namespace {

std::vector<Vertex> shuffled(Vertex count, std::uint64_t seed) {
    Random random(seed);
    std::vector<Vertex> order(count);
    std::iota(order.begin(), order.end(), Vertex{0});
    for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

std::uint64_t bandwidth(const Graph& graph) {
    std::uint64_t most = 0;
    for (const Edge& edge : graph.edge_list())
        most = std::max<std::uint64_t>(most, edge.b - edge.a);
    return most;
}

double mean_distance(const Graph& graph) {
    double sum = 0;
    for (const Edge& edge : graph.edge_list())
        sum += edge.b - edge.a;
    return sum / static_cast<double>(graph.edges());
}

TEST(Ordering, NamesEveryVertexOnce) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const Graph graph = random_graph(Random(seed).below(40), Random(seed, 1).unit() * 0.3, seed);
        for (const auto order : {reverse_cuthill_mckee, gorder}) {
            std::vector<Vertex> sorted = order(graph);
            const Graph same = reordered(graph, sorted);
            for (Vertex a = 0; a < graph.vertices(); ++a)
                for (Vertex b = 0; b < graph.vertices(); ++b)
                    EXPECT_EQ(same.adjacent(a, b), graph.adjacent(sorted[a], sorted[b]));
            std::sort(sorted.begin(), sorted.end());
            for (Vertex v = 0; v < sorted.size(); ++v)
                EXPECT_EQ(sorted[v], v);
        }
    }
}

TEST(Ordering, RefusesWhatIsNoPermutation) {
    const Graph graph = graph_of(3, "01 12");
    for (const std::vector<Vertex>& order :
         std::vector<std::vector<Vertex>>{{0, 1}, {0, 1, 1}, {0, 1, 3}, {0, 1, 2, 2}})
        EXPECT_THROW(reordered(graph, order), std::runtime_error);
}

TEST(ReverseCuthillMckee, FindsTheBandwidthOfPathsAndGrids) {
    std::vector<Edge> edges;
    for (Vertex v = 0; v + 1 < 500; ++v)
        edges.push_back({v, v + 1});
    const Graph path = reordered(Graph(500, edges), shuffled(500, 1));
    EXPECT_EQ(bandwidth(reordered(path, reverse_cuthill_mckee(path))), 1u);

    edges.clear();
    for (Vertex x = 0; x < 40; ++x)
        for (Vertex y = 0; y < 10; ++y) {
            if (x + 1 < 40) edges.push_back({x * 10 + y, x * 10 + y + 10});
            if (y + 1 < 10) edges.push_back({x * 10 + y, x * 10 + y + 1});
        }
    const Graph grid = reordered(Graph(400, edges), shuffled(400, 2));
    EXPECT_LE(bandwidth(reordered(grid, reverse_cuthill_mckee(grid))), 20u);
}

// At each place the score of the vertex that was chosen, counted anew, is the highest of all that were left.
TEST(Gorder, ChoosesTheBestEachTime) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const Graph graph = random_graph(30, 0.03 + 0.3 * Random(seed).unit(), seed);
        const std::vector<Vertex> order = gorder(graph);
        const auto score = [&](std::size_t place, Vertex v) {
            std::uint64_t sum = 0;
            for (std::size_t i = place < 5 ? 0 : place - 5; i < place; ++i) {
                sum += graph.adjacent(order[i], v);
                for (const Vertex u : graph.neighbours(order[i]))
                    sum += graph.adjacent(u, v);
            }
            return sum;
        };
        for (std::size_t place = 0; place < order.size(); ++place)
            for (std::size_t later = place + 1; later < order.size(); ++later)
                EXPECT_GE(score(place, order[place]), score(place, order[later])) << seed;
    }
}

TEST(Gorder, PassesOverHubs) {
    std::vector<Edge> edges;
    for (Vertex v = 1; v <= 20000; ++v)
        edges.push_back({0, v});
    const Graph star(20001, edges);
    EXPECT_EQ(reordered(star, gorder(star)).edges(), 20000u);
}

TEST(Ordering, BringsNeighboursOfAMeshTogether) {
    const Graph mesh = delaunay_graph(5000, 1);
    const double before = mean_distance(mesh);
    EXPECT_LT(mean_distance(reordered(mesh, reverse_cuthill_mckee(mesh))), before / 10);
    EXPECT_LT(mean_distance(reordered(mesh, gorder(mesh))), before / 3);
}

}  // namespace
}  // namespace oranges
