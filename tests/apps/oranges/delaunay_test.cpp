// SPDX-License-Identifier: Apache-2.0
#include "oranges/delaunay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <utility>

#include "apps/oranges/support.hpp"

namespace oranges {
namespace {

__extension__ using Wide = __int128;

Wide area(Point a, Point b, Point c) { return Wide(b.x - a.x) * (c.y - a.y) - Wide(b.y - a.y) * (c.x - a.x); }

// On or outside the circle through a, b, c: the determinant of 4 rows (x, y, x^2 + y^2, 1), times the sign of abc.
bool outside(Point a, Point b, Point c, Point d) {
    Wide determinant = 0;
    const Point p[] = {a, b, c};
    for (std::size_t i = 0; i < 3; ++i) {
        const Point e = p[i], f = p[(i + 1) % 3], g = p[(i + 2) % 3];
        const auto dx = [&](Point q) { return Wide(q.x - d.x); };
        const auto dy = [&](Point q) { return Wide(q.y - d.y); };
        determinant += (dx(e) * dx(e) + dy(e) * dy(e)) * (dx(f) * dy(g) - dx(g) * dy(f));
    }
    return area(a, b, c) > 0 ? determinant <= 0 : determinant >= 0;
}

std::vector<Point> random_set(std::size_t count, std::int32_t side, Random& random) {
    std::vector<Point> points;
    while (points.size() < count) {
        // The corners of the square are likely: there, the numbers are largest.
        const auto coordinate = [&] {
            const std::uint32_t kind = random.below(8);
            return kind == 0   ? 0
                   : kind == 1 ? side - 1
                               : static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(side)));
        };
        const Point p{coordinate(), coordinate()};
        if (std::find(points.begin(), points.end(), p) == points.end()) points.push_back(p);
    }
    return points;
}

// Points on the boundary of the hull: those that some line through another point has all others on one side of, or on it.
std::size_t hull_points(const std::vector<Point>& points) {
    std::set<std::size_t> hull;
    for (std::size_t a = 0; a < points.size(); ++a)
        for (std::size_t b = 0; b < points.size(); ++b)
            if (a != b && std::all_of(points.begin(), points.end(),
                                      [&](Point p) { return area(points[a], points[b], p) >= 0; }))
                hull.insert({a, b});
    return hull.size();
}

// Small squares bring points on one line and on one circle, large ones large numbers.
TEST(Delaunay, HasTheEdgesOfEmptyCircles) {
    for (const std::int32_t side : {4, 5, 8, 1000, 1 << Point::kBits})
        for (std::uint64_t seed = 0; seed < 150; ++seed) {
            Random random(seed);
            const std::vector<Point> points = random_set(3 + random.below(side == 4 ? 12 : 14), side, random);
            const std::size_t n = points.size();
            const bool flat = [&] {
                for (std::size_t i = 2; i < n; ++i)
                    if (area(points[0], points[1], points[i]) != 0) return false;
                return true;
            }();
            if (flat) {
                EXPECT_THROW(Delaunay{points}, std::runtime_error);
                continue;
            }
            std::set<std::pair<Vertex, Vertex>> allowed;
            for (Vertex a = 0; a < n; ++a)
                for (Vertex b = a + 1; b < n; ++b)
                    for (Vertex c = b + 1; c < n; ++c)
                        if (area(points[a], points[b], points[c]) != 0 &&
                            std::all_of(points.begin(), points.end(),
                                        [&](Point p) { return outside(points[a], points[b], points[c], p); }))
                            allowed.insert({{a, b}, {a, c}, {b, c}});
            const Delaunay triangulation(points);
            const Graph graph(n, triangulation.edges());
            EXPECT_EQ(graph.edges(), triangulation.edges().size());
            for (const Edge& edge : graph.edge_list())
                EXPECT_TRUE(allowed.contains({edge.a, edge.b})) << side << " " << seed;
            // Euler: as many as any triangulation has.
            const std::size_t hull = hull_points(points);
            EXPECT_EQ(graph.edges(), 3 * n - 3 - hull) << side << " " << seed;
            EXPECT_EQ(triangulation.triangles(), 2 * n - 2 - hull);
            const Graph dual(triangulation.triangles(), triangulation.dual_edges());
            EXPECT_EQ(2 * dual.edges(), 3 * triangulation.triangles() - hull);
            EXPECT_TRUE(connected(dual));
            for (Vertex t = 0; t < dual.vertices(); ++t)
                EXPECT_LE(dual.degree(t), 3u);
        }
}

TEST(Delaunay, RefusesWhatHasNoTriangles) {
    const std::vector<Point> two{{0, 0}, {1, 0}}, line{{0, 0}, {2, 1}, {4, 2}, {6, 3}},
        twice{{0, 0}, {5, 1}, {0, 0}};
    EXPECT_THROW(Delaunay{two}, std::runtime_error);
    EXPECT_THROW(Delaunay{line}, std::runtime_error);
    EXPECT_THROW(Delaunay{twice}, std::runtime_error);
}

TEST(HilbertKey, StepsFromNeighbourToNeighbour) {
    constexpr std::int32_t kSide = 64;  // the first square of that size is filled before the curve goes on
    std::vector<Point> path(kSide * kSide);
    std::set<std::uint64_t> keys;
    for (std::int32_t x = 0; x < kSide; ++x)
        for (std::int32_t y = 0; y < kSide; ++y) {
            const std::uint64_t key = hilbert_key({x, y});
            ASSERT_LT(key, path.size());
            EXPECT_TRUE(keys.insert(key).second);
            path[key] = {x, y};
        }
    for (std::size_t i = 1; i < path.size(); ++i)
        EXPECT_EQ(std::abs(path[i].x - path[i - 1].x) + std::abs(path[i].y - path[i - 1].y), 1);
}

}  // namespace
}  // namespace oranges
