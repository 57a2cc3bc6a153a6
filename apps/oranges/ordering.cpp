// SPDX-License-Identifier: Apache-2.0
#include "oranges/ordering.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace oranges {

namespace {

constexpr Vertex kNone = std::numeric_limits<Vertex>::max();

// Appends the component of start to order, breadth first, and marks its vertices with round.
// Returns the first place of the last level, and how many levels there are.
struct Levels {
    std::size_t last = 0;
    std::size_t count = 0;
};

Levels breadth_first(const Graph& graph, Vertex start, std::vector<Vertex>& round, Vertex number,
                     std::vector<Vertex>& order) {
    Levels levels{order.size(), 0};
    const auto fewer_neighbours = [&](Vertex a, Vertex b) {
        return graph.degree(a) != graph.degree(b) ? graph.degree(a) < graph.degree(b) : a < b;
    };
    order.push_back(start);
    round[start] = number;
    for (std::size_t begin = levels.last, end = order.size(); begin < end; begin = end, end = order.size()) {
        levels.last = begin;
        ++levels.count;
        for (std::size_t i = begin; i < end; ++i) {
            const std::size_t found = order.size();
            for (const Vertex u : graph.neighbours(order[i]))
                if (round[u] != number) {
                    round[u] = number;
                    order.push_back(u);
                }
            std::sort(order.begin() + static_cast<std::ptrdiff_t>(found), order.end(), fewer_neighbours);
        }
    }
    return levels;
}

}  // namespace

std::vector<Vertex> reverse_cuthill_mckee(const Graph& graph) {
    std::vector<Vertex> order;
    order.reserve(graph.vertices());
    std::vector<Vertex> round(graph.vertices(), 0);
    Vertex number = 0;
    for (Vertex v = 0; v < graph.vertices(); ++v) {
        if (round[v] != 0) continue;
        // From the last level's vertex of fewest neighbours again, as long as that finds more
        // levels.
        const std::size_t begin = order.size();
        Vertex start = v;
        for (std::size_t most = 0;;) {
            order.resize(begin);
            const Levels levels = breadth_first(graph, start, round, ++number, order);
            if (levels.count <= std::max<std::size_t>(most, 1)) break;
            most = levels.count;
            start = *std::min_element(order.begin() + static_cast<std::ptrdiff_t>(levels.last), order.end(),
                                      [&](Vertex a, Vertex b) { return graph.degree(a) < graph.degree(b); });
        }
    }
    std::reverse(order.begin(), order.end());
    return order;
}

namespace {

// Vertices by score, which changes by one at a time: a doubly linked list a score. Of equals, the
// one that got there last is first.
class ScoreLists {
   public:
    explicit ScoreLists(Vertex vertices) : score_(vertices, 0), next_(vertices), previous_(vertices) {
        for (Vertex v = vertices; v-- > 0;)
            link(v);
    }
    void change(Vertex v, int by) {
        unlink(v);
        score_[v] = static_cast<Vertex>(static_cast<int>(score_[v]) + by);
        link(v);
    }
    bool holds(Vertex v) const { return score_[v] != kNone; }
    Vertex take_best() {
        while (first_[best_] == kNone)
            --best_;
        const Vertex v = first_[best_];
        unlink(v);
        score_[v] = kNone;
        return v;
    }

   private:
    void link(Vertex v) {
        const Vertex score = score_[v];
        if (score >= first_.size()) first_.resize(score + 1, kNone);
        best_ = std::max(best_, score);
        previous_[v] = kNone;
        next_[v] = first_[score];
        if (next_[v] != kNone) previous_[next_[v]] = v;
        first_[score] = v;
    }
    void unlink(Vertex v) {
        if (previous_[v] == kNone)
            first_[score_[v]] = next_[v];
        else
            next_[previous_[v]] = next_[v];
        if (next_[v] != kNone) previous_[next_[v]] = previous_[v];
    }

    std::vector<Vertex> score_, next_, previous_;
    std::vector<Vertex> first_;
    Vertex best_ = 0;
};

}  // namespace

std::vector<Vertex> gorder(const Graph& graph) {
    constexpr std::size_t kWindow = 5;
    // Having a neighbour in common does not count where that has more neighbours than this: it
    // would be so for very many, and take the square of their number to find.
    constexpr std::uint64_t kHub = 1000;
    ScoreLists lists(graph.vertices());
    std::vector<Vertex> order;
    order.reserve(graph.vertices());
    const auto rate = [&](Vertex v, int by) {
        for (const Vertex u : graph.neighbours(v)) {
            if (lists.holds(u)) lists.change(u, by);
            if (graph.degree(u) > kHub) continue;
            for (const Vertex w : graph.neighbours(u))
                if (lists.holds(w)) lists.change(w, by);
        }
    };
    for (Vertex i = 0; i < graph.vertices(); ++i) {
        const Vertex v = lists.take_best();
        order.push_back(v);
        rate(v, +1);
        if (order.size() > kWindow) rate(order[order.size() - 1 - kWindow], -1);
    }
    return order;
}

Graph reordered(const Graph& graph, std::span<const Vertex> order) {
    if (order.size() != graph.vertices()) throw std::runtime_error("an order must name every vertex once");
    std::vector<Vertex> number(order.size(), kNone);
    for (Vertex i = 0; i < order.size(); ++i) {
        if (order[i] >= order.size() || number[order[i]] != kNone)
            throw std::runtime_error("an order must name every vertex once");
        number[order[i]] = i;
    }
    std::vector<Edge> edges = graph.edge_list();
    for (Edge& edge : edges)
        edge = {number[edge.a], number[edge.b]};
    return Graph(order.size(), edges);
}

}  // namespace oranges
