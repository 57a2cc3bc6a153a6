// SPDX-License-Identifier: Apache-2.0
#include "oranges/generators.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "oranges/random.hpp"

namespace oranges {

namespace {

constexpr std::int32_t kSide = std::int32_t{1} << Point::kBits;

// Streams of random numbers of one seed. The events of iteration i draw from stream kIterations +
// i.
enum Stream : std::uint64_t { kPoints, kBubbles, kRoads, kRanks, kIterations };

Point random_point(Random& random) {
    const std::uint64_t bits = random.next();
    return {static_cast<std::int32_t>(bits >> 32 & (kSide - 1)),
            static_cast<std::int32_t>(bits & (kSide - 1))};
}

// Points that draw() gives, those that were there already drawn again.
template <class Draw>
std::vector<Point> different_points(std::uint64_t count, Draw&& draw) {
    if (count > Graph::kMostVertices)
        throw std::runtime_error(std::to_string(count) + " points are too many: at most " +
                                 std::to_string(Graph::kMostVertices));
    std::vector<Point> points(static_cast<std::size_t>(count));
    std::generate(points.begin(), points.end(), draw);
    std::vector<std::pair<std::uint64_t, std::uint32_t>> keys(points.size());
    for (bool again = true; again;) {
        again = false;
        for (std::uint32_t i = 0; i < points.size(); ++i)
            keys[i] = {std::uint64_t(points[i].x) << 32 | std::uint32_t(points[i].y), i};
        std::sort(keys.begin(), keys.end());
        for (std::size_t i = 1; i < keys.size(); ++i)
            if (keys[i].first == keys[i - 1].first) {
                points[keys[i].second] = draw();
                again = true;
            }
    }
    return points;
}

void require(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
}

// The first of a set stands for all of it.
class DisjointSets {
   public:
    explicit DisjointSets(std::size_t count) : parent_(count) {
        std::iota(parent_.begin(), parent_.end(), Vertex{0});
    }
    // False where both were in one set already.
    bool join(Vertex a, Vertex b) {
        a = find(a);
        b = find(b);
        parent_[std::max(a, b)] = std::min(a, b);
        return a != b;
    }

   private:
    Vertex find(Vertex v) {
        while (parent_[v] != v)
            v = parent_[v] = parent_[parent_[v]];
        return v;
    }
    std::vector<Vertex> parent_;
};

std::uint64_t distance2(Point a, Point b) {
    const std::int64_t x = a.x - b.x, y = a.y - b.y;
    return static_cast<std::uint64_t>(x * x + y * y);
}

// Sorted by length, ties by vertex.
std::vector<Edge> shortest_first(std::span<const Point> points, std::vector<Edge> edges) {
    std::sort(edges.begin(), edges.end(), [&](const Edge& e, const Edge& f) {
        const std::uint64_t le = distance2(points[e.a], points[e.b]),
                            lf = distance2(points[f.a], points[f.b]);
        return std::tuple(le, e.a, e.b) < std::tuple(lf, f.a, f.b);
    });
    return edges;
}

// Moves the edges of a spanning forest to the front, in their order, and returns how many they are.
std::size_t forest_first(std::size_t vertices, std::vector<Edge>& edges) {
    DisjointSets sets(vertices);
    return static_cast<std::size_t>(
        std::stable_partition(edges.begin(), edges.end(),
                              [&](const Edge& e) { return sets.join(e.a, e.b); }) -
        edges.begin());
}

template <class T>
void shuffle(std::span<T> values, Random& random) {
    for (std::size_t i = values.size(); i > 1; --i)
        std::swap(values[i - 1], values[random.below(i)]);
}

void check(const EventOptions& options) {
    require(options.ranks >= 2 && options.ranks <= 4096, "an event graph has from 2 to 4096 ranks");
    require(options.iterations <= 1u << 24, "an event graph has at most 16777216 iterations");
    require(options.other <= 1u << 24, "an event graph has at most 16777216 other events a rank");
}

// Numbers of the events of all ranks: rank r has those from begin[r] on, of which the first to be
// sent or received is body(r).
struct Timelines {
    std::uint64_t before = 0;
    std::vector<std::uint64_t> begin{0};

    explicit Timelines(const EventOptions& options) : before(options.other / 2) {}
    void append(std::uint64_t events) { begin.push_back(begin.back() + events); }
    std::uint64_t body(std::uint64_t rank) const { return begin[rank] + before; }
    std::uint64_t vertices() const { return begin.back(); }

    std::vector<Edge> chains(std::uint64_t messages) const {
        if (vertices() > Graph::kMostVertices)
            throw std::runtime_error("an event graph of " + std::to_string(vertices()) +
                                     " vertices is too large: fewer iterations or ranks have less");
        std::vector<Edge> edges;
        edges.reserve(static_cast<std::size_t>(vertices() + messages));
        for (std::size_t rank = 0; rank + 1 < begin.size(); ++rank)
            for (std::uint64_t v = begin[rank] + 1; v < begin[rank + 1]; ++v)
                edges.push_back({static_cast<Vertex>(v - 1), static_cast<Vertex>(v)});
        return edges;
    }
};

}  // namespace

std::vector<Point> random_points(std::uint64_t count, std::uint64_t seed) {
    Random random(seed, kPoints);
    return different_points(count, [&] { return random_point(random); });
}

Graph delaunay_graph(std::uint64_t vertices, std::uint64_t seed) {
    const std::vector<Point> points = random_points(vertices, seed);
    return Graph(vertices, Delaunay(points).edges());
}

Graph bubble_graph(std::uint64_t vertices, std::uint64_t seed) {
    Random random(seed, kBubbles);
    struct Bubble {
        double x, y, radius;
    };
    std::vector<Bubble> bubbles(24);
    for (Bubble& bubble : bubbles) {
        bubble.radius = 0.02 + 0.1 * random.unit();
        bubble.x = bubble.radius + (1 - 2 * bubble.radius) * random.unit();
        bubble.y = bubble.radius + (1 - 2 * bubble.radius) * random.unit();
    }
    const auto draw = [&]() -> Point {
        for (;;) {
            if (random.below(4) == 0) return random_point(random);
            const Bubble& bubble = bubbles[random.below(bubbles.size())];
            // A quarter of a circle without sine and cosine, whose last bit depends on the machine.
            const double t = random.unit(), c = (1 - t * t) / (1 + t * t), s = 2 * t / (1 + t * t);
            const double u = 2 * random.unit() - 1;
            const double r = bubble.radius * (1 + 0.5 * u * u * u);
            const std::uint32_t quarter = random.below(4);
            const double dx = quarter & 1 ? s : c, dy = quarter & 1 ? c : s;
            const double x = bubble.x + (quarter & 2 ? -r : r) * dx;
            const double y = bubble.y + (quarter == 1 || quarter == 2 ? -r : r) * dy;
            if (x >= 0 && x < 1 && y >= 0 && y < 1)
                return {static_cast<std::int32_t>(x * kSide), static_cast<std::int32_t>(y * kSide)};
        }
    };
    // A triangulation of n points has about 2 n triangles.
    const std::vector<Point> points = different_points(std::max<std::uint64_t>(vertices / 2, 2) + 1, draw);
    const Delaunay mesh(points);
    return Graph(mesh.triangles(), mesh.dual_edges());
}

Graph road_graph(std::uint64_t vertices, std::uint64_t seed) {
    require(vertices >= 64, "a road network has at least 64 vertices");
    // 0.4 roads a junction more than a tree has, and 3.8 vertices along a road, give 1.06 edges a
    // vertex, as asia_osm has.
    const std::uint64_t junctions = vertices * 10 / 63;
    const std::vector<Point> points = random_points(junctions, seed);
    std::vector<Edge> roads = shortest_first(points, Delaunay(points).edges());
    const std::size_t tree = forest_first(points.size(), roads);
    Random random(seed, kRoads);
    shuffle(std::span(roads).subspan(tree), random);
    roads.resize(std::min(roads.size(), tree + static_cast<std::size_t>(junctions * 2 / 5)));

    // The vertices along roads are shared out at random.
    std::vector<std::uint64_t> share(roads.size() + 1, 0);
    for (std::size_t i = 0; i < roads.size(); ++i)
        share[i + 1] = share[i] + random.below(1024);
    const std::uint64_t along = vertices - junctions;
    std::vector<Edge> edges;
    edges.reserve(roads.size() + static_cast<std::size_t>(along));
    std::uint64_t v = junctions;
    for (std::size_t i = 0; i < roads.size(); ++i) {
        const std::uint64_t end =
            junctions +
            (i + 1 == roads.size() ? along : share[i + 1] * along / std::max<std::uint64_t>(share.back(), 1));
        Vertex from = roads[i].a;
        for (; v < end; ++v) {
            edges.push_back({from, static_cast<Vertex>(v)});
            from = static_cast<Vertex>(v);
        }
        edges.push_back({from, roads[i].b});
    }
    return Graph(vertices, edges);
}

std::uint64_t race_vertices(const RaceOptions& options) {
    check(options);
    require(options.messages <= 1u << 16,
            "a message race has at most 65536 messages of a rank at an iteration");
    return options.ranks * options.other + 2 * (options.ranks - 1) * options.messages * options.iterations;
}

Graph race_graph(const RaceOptions& options, std::uint64_t seed) {
    const std::uint64_t vertices = race_vertices(options);
    const std::uint64_t arrivals = (options.ranks - 1) * options.messages;
    Timelines events(options);
    events.append(options.other + options.iterations * arrivals);
    for (std::uint64_t rank = 1; rank < options.ranks; ++rank)
        events.append(options.other + options.iterations * options.messages);
    std::vector<Edge> edges = events.chains(options.iterations * arrivals);

    std::vector<std::uint32_t> source(static_cast<std::size_t>(arrivals));
    std::vector<std::uint64_t> sent(options.ranks);
    for (std::uint64_t rank = 1; rank < options.ranks; ++rank)
        sent[rank] = events.body(rank);
    std::uint64_t received = events.body(0);
    for (std::uint64_t iteration = 0; iteration < options.iterations; ++iteration) {
        for (std::size_t i = 0; i < source.size(); ++i)
            source[i] = static_cast<std::uint32_t>(1 + i / options.messages);
        Random random(seed, kIterations + iteration);
        shuffle(std::span(source), random);
        for (const std::uint32_t rank : source)
            edges.push_back({static_cast<Vertex>(sent[rank]++), static_cast<Vertex>(received++)});
    }
    return Graph(vertices, edges);
}

std::uint64_t exchange_vertices(const ExchangeOptions& options) {
    check(options);
    require(options.pairs >= options.ranks - 1 && options.pairs <= options.ranks * (options.ranks - 1) / 2,
            "an exchange of N ranks has from N - 1 to N (N - 1) / 2 pairs of neighbours");
    return options.ranks * options.other + 4 * options.pairs * options.iterations;
}

Graph exchange_graph(const ExchangeOptions& options, std::uint64_t seed) {
    const std::uint64_t vertices = exchange_vertices(options);
    Random placing(seed, kRanks);
    std::vector<Point> places(options.ranks);
    for (Point& place : places)
        place = random_point(placing);
    std::vector<Edge> pairs;
    for (Vertex a = 0; a < options.ranks; ++a)
        for (Vertex b = a + 1; b < options.ranks; ++b)
            pairs.push_back({a, b});
    pairs = shortest_first(places, std::move(pairs));
    forest_first(places.size(), pairs);
    pairs.resize(static_cast<std::size_t>(options.pairs));
    const Graph ranks(options.ranks, pairs);

    Timelines events(options);
    for (Vertex rank = 0; rank < ranks.vertices(); ++rank)
        events.append(options.other + 2 * options.iterations * ranks.degree(rank));
    std::vector<Edge> edges = events.chains(2 * options.pairs * options.iterations);

    // Which of the sends of its neighbour is for this rank.
    std::vector<std::vector<std::uint64_t>> place_of(ranks.vertices());
    for (Vertex rank = 0; rank < ranks.vertices(); ++rank)
        for (const Vertex other : ranks.neighbours(rank)) {
            const auto list = ranks.neighbours(other);
            place_of[rank].push_back(
                static_cast<std::uint64_t>(std::ranges::lower_bound(list, rank) - list.begin()));
        }
    std::vector<std::uint32_t> arrival;
    for (std::uint64_t iteration = 0; iteration < options.iterations; ++iteration) {
        Random random(seed, kIterations + iteration);
        const auto first = [&](Vertex rank) {
            return events.body(rank) + 2 * iteration * ranks.degree(rank);
        };
        for (Vertex rank = 0; rank < ranks.vertices(); ++rank) {
            const auto neighbours = ranks.neighbours(rank);
            arrival.resize(neighbours.size());
            std::iota(arrival.begin(), arrival.end(), 0u);
            shuffle(std::span(arrival), random);
            std::uint64_t receive = first(rank) + neighbours.size();
            for (const std::uint32_t k : arrival)
                edges.push_back({static_cast<Vertex>(first(neighbours[k]) + place_of[rank][k]),
                                 static_cast<Vertex>(receive++)});
        }
    }
    return Graph(vertices, edges);
}

}  // namespace oranges
