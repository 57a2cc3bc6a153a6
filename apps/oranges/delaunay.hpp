// SPDX-License-Identifier: Apache-2.0
// Delaunay triangulation of points with integer coordinates. Every decision is exact.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "oranges/graph.hpp"

namespace oranges {

struct Point {
    static constexpr int kBits = 26;  // coordinates in [0, 2^26): the unit square
    std::int32_t x = 0;
    std::int32_t y = 0;
    friend bool operator==(const Point&, const Point&) = default;
};

// Place on a Hilbert curve through all points: near places are near points.
std::uint64_t hilbert_key(Point p);

class Delaunay {
   public:
    // At least 3 points, all different, not all on one line; otherwise throws std::runtime_error.
    // Where four or more points lie on a circle, several triangulations are right: the same one
    // each time is made.
    explicit Delaunay(std::span<const Point> points);

    // Edges between points, each once.
    std::vector<Edge> edges() const;
    // The graph whose vertices are the triangles: edges between those that share a side, each once.
    std::vector<Edge> dual_edges() const;
    std::uint64_t triangles() const;

   private:
    struct Triangle {
        std::array<Vertex, 3> corner;  // counter-clockwise
        // The triangle on the other side of the edge opposite that corner.
        std::array<std::uint32_t, 3> next;
    };

    bool real(const Triangle& t) const;
    bool in_conflict(const Triangle& t, Point p) const;
    std::uint32_t locate(Point p) const;
    void start(std::array<Vertex, 3> corners);
    void insert(Vertex v);

    std::span<const Point> points_;
    Vertex ghost_;  // the vertex at infinity: beyond each edge of the hull lies a triangle with it
    std::vector<Triangle> triangles_;
    std::uint32_t last_ = 0;

    struct Rim {
        Vertex a, b;
        std::uint32_t beyond;
    };
    std::vector<std::uint32_t> cavity_;
    std::vector<std::uint8_t> in_cavity_;
    std::vector<Rim> rim_;
    // For a corner of the rim: the new triangle that begins there.
    std::vector<std::uint32_t> spoke_;
};

}  // namespace oranges
