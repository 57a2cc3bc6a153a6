// SPDX-License-Identifier: Apache-2.0
#include "oranges/delaunay.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace oranges {

namespace {

// Twice the area of abc, positive where it is counter-clockwise: at most 55 bits.
std::int64_t orientation(Point a, Point b, Point c) {
    return std::int64_t{b.x - a.x} * (c.y - a.y) - std::int64_t{b.y - a.y} * (c.x - a.x);
}

// Is d inside the circle through a, b, c (counter-clockwise)? Differences have 27 bits with sign,
// so that the products have at most 110.
bool in_circle(Point a, Point b, Point c, Point d) {
    __extension__ using Wide = __int128;
    const std::int64_t ax = a.x - d.x, ay = a.y - d.y;
    const std::int64_t bx = b.x - d.x, by = b.y - d.y;
    const std::int64_t cx = c.x - d.x, cy = c.y - d.y;
    return Wide{ax * ax + ay * ay} * (bx * cy - cx * by) + Wide{bx * bx + by * by} * (cx * ay - ax * cy) +
               Wide{cx * cx + cy * cy} * (ax * by - bx * ay) >
           0;
}

constexpr std::array<std::size_t, 5> kAround{0, 1, 2, 0, 1};

}  // namespace

std::uint64_t hilbert_key(Point p) {
    auto x = static_cast<std::uint32_t>(p.x), y = static_cast<std::uint32_t>(p.y);
    std::uint64_t key = 0;
    for (std::uint32_t bit = 1u << (Point::kBits - 1); bit != 0; bit >>= 1) {
        const bool right = (x & bit) != 0, upper = (y & bit) != 0;
        key = key << 2 | (right ? (upper ? 2u : 3u) : (upper ? 1u : 0u));
        if (!upper) {
            if (right) {
                x = ~x;
                y = ~y;
            }
            std::swap(x, y);
        }
    }
    return key;
}

Delaunay::Delaunay(std::span<const Point> points)
    : points_(points), ghost_(static_cast<Vertex>(points.size())) {
    if (points.size() < 3) throw std::runtime_error("a triangulation needs at least 3 points");
    if (points.size() > Graph::kMostVertices) throw std::runtime_error("too many points for a triangulation");
    // Along the curve, each point is found in a few steps from the one before.
    std::vector<std::pair<std::uint64_t, Vertex>> order(points.size());
    for (Vertex v = 0; v < points.size(); ++v)
        order[v] = {hilbert_key(points[v]), v};
    std::sort(order.begin(), order.end());
    for (std::size_t i = 1; i < order.size(); ++i)
        if (order[i].first == order[i - 1].first)
            throw std::runtime_error("a triangulation needs points that are all different");
    const Vertex a = order[0].second, b = order[1].second;
    const auto apex = std::find_if(order.begin() + 2, order.end(), [&](const auto& entry) {
        return orientation(points[a], points[b], points[entry.second]) != 0;
    });
    if (apex == order.end()) throw std::runtime_error("all points lie on one line");

    triangles_.reserve(2 * points.size());
    in_cavity_.reserve(2 * points.size());
    spoke_.resize(points.size() + 1);
    const Vertex c = apex->second;
    start(orientation(points[a], points[b], points[c]) > 0 ? std::array{a, b, c} : std::array{b, a, c});
    for (auto entry = order.begin() + 2; entry != order.end(); ++entry)
        if (entry != apex) insert(entry->second);
}

void Delaunay::start(std::array<Vertex, 3> corners) {
    // Triangle i + 1 lies beyond the edge opposite corner i.
    triangles_.push_back({corners, {1, 2, 3}});
    for (std::size_t i = 0; i < 3; ++i)
        triangles_.push_back({{ghost_, corners[kAround[i + 2]], corners[kAround[i + 1]]},
                              {0, static_cast<std::uint32_t>(kAround[i + 2]) + 1,
                               static_cast<std::uint32_t>(kAround[i + 1]) + 1}});
    in_cavity_.assign(triangles_.size(), 0);
}

bool Delaunay::real(const Triangle& t) const {
    return t.corner[0] != ghost_ && t.corner[1] != ghost_ && t.corner[2] != ghost_;
}

bool Delaunay::in_conflict(const Triangle& t, Point p) const {
    for (std::size_t i = 0; i < 3; ++i) {
        if (t.corner[i] != ghost_) continue;
        // The circle through two points and infinity: the half-plane outside, and the edge itself.
        const Point a = points_[t.corner[kAround[i + 1]]], b = points_[t.corner[kAround[i + 2]]];
        const std::int64_t side = orientation(a, b, p);
        if (side != 0) return side > 0;
        const auto between = [](std::int32_t low, std::int32_t x, std::int32_t high) {
            return std::min(low, high) <= x && x <= std::max(low, high);
        };
        return between(a.x, p.x, b.x) && between(a.y, p.y, b.y);
    }
    return in_circle(points_[t.corner[0]], points_[t.corner[1]], points_[t.corner[2]], p);
}

// Walks towards p. In a Delaunay triangulation this ends, whichever of the edges it crosses.
std::uint32_t Delaunay::locate(Point p) const {
    std::uint32_t t = last_;
    for (std::size_t i = 0; i < 3; ++i)
        if (triangles_[t].corner[i] == ghost_) {
            t = triangles_[t].next[i];
            break;
        }
    for (;;) {
        const Triangle& triangle = triangles_[t];
        if (!real(triangle)) return t;
        std::size_t i = 0;
        while (i < 3 && orientation(points_[triangle.corner[kAround[i + 1]]],
                                    points_[triangle.corner[kAround[i + 2]]], p) >= 0)
            ++i;
        if (i == 3) return t;
        t = triangle.next[i];
    }
}

// Bowyer and Watson: removes the triangles whose circles hold the point, and joins it to the rim of
// the hole.
void Delaunay::insert(Vertex v) {
    const Point p = points_[v];
    cavity_.assign(1, locate(p));
    in_cavity_[cavity_[0]] = 1;
    rim_.clear();
    for (std::size_t k = 0; k < cavity_.size(); ++k) {
        const Triangle triangle = triangles_[cavity_[k]];
        for (std::size_t i = 0; i < 3; ++i) {
            const std::uint32_t beyond = triangle.next[i];
            if (in_cavity_[beyond]) continue;
            if (in_conflict(triangles_[beyond], p)) {
                in_cavity_[beyond] = 1;
                cavity_.push_back(beyond);
            } else {
                rim_.push_back({triangle.corner[kAround[i + 1]], triangle.corner[kAround[i + 2]], beyond});
            }
        }
    }
    for (const std::uint32_t t : cavity_)
        in_cavity_[t] = 0;
    for (std::size_t k = 0; k < rim_.size(); ++k) {
        std::uint32_t t = 0;
        if (k < cavity_.size()) {
            t = cavity_[k];
        } else {
            t = static_cast<std::uint32_t>(triangles_.size());
            triangles_.emplace_back();
            in_cavity_.push_back(0);
        }
        const Rim& rim = rim_[k];
        triangles_[t] = {{v, rim.a, rim.b}, {rim.beyond, 0, 0}};
        Triangle& outer = triangles_[rim.beyond];
        for (std::size_t i = 0; i < 3; ++i)
            if (outer.corner[kAround[i + 1]] == rim.b && outer.corner[kAround[i + 2]] == rim.a)
                outer.next[i] = t;
        spoke_[rim.a] = t;
        last_ = t;
    }
    for (std::size_t k = 0; k < rim_.size(); ++k) {
        const std::uint32_t t = spoke_[rim_[k].a], following = spoke_[rim_[k].b];
        triangles_[t].next[1] = following;
        triangles_[following].next[2] = t;
    }
}

std::vector<Edge> Delaunay::edges() const {
    std::vector<Edge> list;
    list.reserve(3 * points_.size());
    // With those at infinity, triangles lie on both sides of each edge and see it in opposite
    // directions.
    for (const Triangle& t : triangles_)
        for (std::size_t i = 0; i < 3; ++i) {
            const Vertex a = t.corner[i], b = t.corner[kAround[i + 1]];
            if (a < b && b != ghost_) list.push_back({a, b});
        }
    return list;
}

std::uint64_t Delaunay::triangles() const {
    return static_cast<std::uint64_t>(
        std::count_if(triangles_.begin(), triangles_.end(), [&](const Triangle& t) { return real(t); }));
}

std::vector<Edge> Delaunay::dual_edges() const {
    std::vector<Vertex> number(triangles_.size());
    Vertex count = 0;
    for (std::size_t t = 0; t < triangles_.size(); ++t)
        if (real(triangles_[t])) number[t] = count++;
    std::vector<Edge> list;
    list.reserve(3 * points_.size());
    for (std::size_t t = 0; t < triangles_.size(); ++t)
        for (const std::uint32_t other : triangles_[t].next)
            if (t < other && real(triangles_[t]) && real(triangles_[other]))
                list.push_back({number[t], number[other]});
    return list;
}

}  // namespace oranges
