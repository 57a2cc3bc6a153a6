#include "network.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>
#include <utility>

namespace twinrun::simulation {

namespace {

using Shape = std::vector<std::uint32_t>;

Error wrong(const std::string& text) { return Error{ErrorCode::invalid_argument, text}; }

// The numbers of "4x4x2" or "16,3", up to a word that is no number.
Shape numbers_of(std::string_view text) {
    Shape shape;
    for (std::size_t at = 0; at < text.size();) {
        std::uint32_t value = 0;
        const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
        if (error != std::errc()) break;
        shape.push_back(value);
        at = static_cast<std::size_t>(end - text.data()) + 1;
    }
    return shape;
}

std::string named(const char* kind, std::uint32_t from, const char* mark, std::uint32_t to) {
    return std::string(kind) + ":" + std::to_string(from) + mark + std::to_string(to);
}

class Shared : public Network {
   public:
    Shared(const Topology& topology, const NetworkSettings& settings, Links& links)
        : topology_(topology), settings_(settings), links_(links) {}

   protected:
    std::uint32_t memory(std::uint32_t node) {
        return links_.of("memory:" + std::to_string(node),
                         static_cast<double>(topology_.bandwidth(node, node)));
    }
    // A node's only link, in one direction.
    std::uint32_t port(std::uint32_t node, bool out, double capacity) {
        return links_.of((out ? "send:" : "receive:") + std::to_string(node), capacity);
    }
    std::uint32_t storage(const std::string& name, double capacity) {
        return links_.of(name, capacity * settings_.gateway_factor);
    }
    const Topology& topology_;
    NetworkSettings settings_;
    Links& links_;
};

// Nodes at one switch that never blocks; storage behind each node's link.
class FlatNetwork final : public Shared {
   public:
    using Shared::Shared;
    Route between(std::uint32_t from, std::uint32_t to) override {
        if (from == to) return {memory(from)};
        return {port(from, true, static_cast<double>(topology_.bandwidth(from, to)))};
    }
    Route to_gateway(std::uint32_t node, std::uint32_t gateway) override {
        return {storage("gateway-in:" + std::to_string(node),
                        static_cast<double>(topology_.bandwidth_to_gateway(node, gateway)))};
    }
    Route from_gateway(std::uint32_t gateway, std::uint32_t node) override {
        return {storage("gateway-out:" + std::to_string(node),
                        static_cast<double>(topology_.bandwidth_to_gateway(node, gateway)))};
    }
};

class TorusNetwork final : public Shared {
   public:
    TorusNetwork(Shape shape, const Topology& topology, const NetworkSettings& settings, Links& links)
        : Shared(topology, settings, links), shape_(std::move(shape)) {
        bridges_.resize(topology.gateways());
        first_.resize(topology.gateways() + std::size_t{1}, topology.nodes());
        for (std::uint32_t node = topology.nodes(); node-- > 0;)
            first_[topology.gateway_of(node)] = node;
        for (std::uint32_t node = 0; node < topology.nodes(); ++node) {
            if (topology.bridge(node)) bridges_[topology.gateway_of(node)].push_back(node);
        }
    }
    Route between(std::uint32_t from, std::uint32_t to) override {
        if (from == to) return {memory(from)};
        Route route;
        walk(from, to, route);
        return route;
    }
    Route to_gateway(std::uint32_t node, std::uint32_t gateway) override {
        const std::uint32_t bridge = bridge_of(node, gateway);
        Route route;
        walk(node, bridge, route);
        route.push_back(io_link("gateway-in", bridge, gateway));
        return route;
    }
    Route from_gateway(std::uint32_t gateway, std::uint32_t node) override {
        const std::uint32_t bridge = bridge_of(node, gateway);
        Route route{io_link("gateway-out", bridge, gateway)};
        walk(bridge, node, route);
        return route;
    }

   private:
    std::uint32_t io_link(const char* name, std::uint32_t bridge, std::uint32_t gateway) {
        return storage(named(name, gateway, "/", bridge),
                       static_cast<double>(topology_.bandwidth_to_gateway(bridge, gateway)));
    }
    // Of a node of another Pset, and without halves, the bridge node with fewer hops; of equal ones
    // the node's number chooses.
    [[nodiscard]] std::uint32_t bridge_of(std::uint32_t node, std::uint32_t gateway) const {
        const auto& bridges = bridges_[gateway];
        if (settings_.halves && topology_.gateway_of(node) == gateway) {
            const std::uint32_t size = first_[gateway + std::size_t{1}] - first_[gateway];
            return 2 * (node - first_[gateway]) < size ? bridges.front() : bridges.back();
        }
        const auto hops = [&](std::uint32_t bridge) { return topology_.distance(node, bridge); };
        if (bridges.size() == 1 || hops(bridges[0]) < hops(bridges[1])) return bridges[0];
        if (hops(bridges[0]) > hops(bridges[1])) return bridges[1];
        return bridges[node % 2];
    }
    void walk(std::uint32_t from, std::uint32_t to, Route& route) {
        std::uint32_t at = from;
        std::uint32_t step = topology_.nodes();  // between neighbours of a dimension, in node numbers
        for (const std::uint32_t width : shape_) {
            step /= width;
            const std::uint32_t goal = to / step % width;
            std::uint32_t place = at / step % width;
            const std::uint32_t up = (goal + width - place) % width;
            const bool upward = 2 * up < width || (2 * up == width && (from + to) % 2 == 0);
            while (place != goal) {
                const std::uint32_t next = upward ? (place + 1) % width : (place + width - 1) % width;
                const std::uint32_t neighbour = at - place * step + next * step;
                // Two nodes of a ring of two have one link, whichever way it is crossed.
                route.push_back(links_.of(named("torus", at, ">", neighbour),
                                          static_cast<double>(topology_.bandwidth(at, neighbour))));
                at = neighbour;
                place = next;
            }
        }
    }
    Shape shape_;
    std::vector<std::vector<std::uint32_t>> bridges_;  // by gateway
    std::vector<std::uint32_t> first_;                 // node of each Pset, and the end
};

// As the library's model: groups whose routers are all linked, and one link between two groups.
class DragonflyNetwork final : public Shared {
   public:
    DragonflyNetwork(const Shape& shape, const Topology& topology, const NetworkSettings& settings,
                     Links& links)
        : Shared(topology, settings, links), groups_(shape[0]), routers_(shape[1]), width_(shape[2]) {}
    Route between(std::uint32_t from, std::uint32_t to) override {
        if (from == to) return {memory(from)};
        Route route{port(from, true, injection())};
        walk(from / width_, to / width_, route);
        route.push_back(port(to, false, injection()));
        return route;
    }
    Route to_gateway(std::uint32_t node, std::uint32_t gateway) override {
        Route route{port(node, true, injection())};
        walk(node / width_, router_of(gateway), route);
        route.push_back(io_link("gateway-in:", gateway));
        return route;
    }
    Route from_gateway(std::uint32_t gateway, std::uint32_t node) override {
        Route route{io_link("gateway-out:", gateway)};
        walk(router_of(gateway), node / width_, route);
        route.push_back(port(node, false, injection()));
        return route;
    }

   private:
    // Rates are those of pairs of nodes that cross only this kind of link, or a faster one.
    [[nodiscard]] double injection() const {
        return width_ > 1 ? static_cast<double>(topology_.bandwidth(0, 1)) : local();
    }
    [[nodiscard]] double local() const {
        return static_cast<double>(routers_ > 1 ? topology_.bandwidth(0, width_)
                                                : topology_.least_bandwidth());
    }
    [[nodiscard]] double global(std::uint32_t a, std::uint32_t b) const {
        return static_cast<double>(topology_.bandwidth(a * width_, b * width_));
    }
    std::uint32_t io_link(const char* name, std::uint32_t gateway) {
        return storage(name + std::to_string(gateway),
                       static_cast<double>(topology_.gateway_capacity(gateway)));
    }
    [[nodiscard]] std::uint32_t router_of(std::uint32_t gateway) const {
        return static_cast<std::uint32_t>((2 * std::uint64_t{gateway} + 1) * groups_ * routers_ /
                                          (2 * std::uint64_t{topology_.gateways()}));
    }
    [[nodiscard]] std::uint32_t exit_of(std::uint32_t from, std::uint32_t to) const {
        return from * routers_ + ((to + groups_ - from) % groups_ - 1) % routers_;
    }
    void walk(std::uint32_t a, std::uint32_t b, Route& route) {
        const std::uint32_t from = a / routers_;
        const std::uint32_t to = b / routers_;
        const auto cross = [&](std::uint32_t x, std::uint32_t y) {
            if (x != y) route.push_back(links_.of(named("local", x, ">", y), local()));
        };
        if (from == to) return cross(a, b);
        const std::uint32_t out = exit_of(from, to);
        const std::uint32_t in = exit_of(to, from);
        cross(a, out);
        route.push_back(links_.of(named("global", out, ">", in), global(out, in)));
        cross(in, b);
    }
    std::uint32_t groups_, routers_, width_;
};

// The links from a switch to those above it are one bundle: no two routes share one of them while
// another is free. It carries what the nodes below can send, divided by the taper.
class FatTreeNetwork final : public Shared {
   public:
    FatTreeNetwork(const Shape& widths, const Topology& topology, const NetworkSettings& settings,
                   Links& links)
        : Shared(topology, settings, links) {
        std::uint32_t below = 1;
        for (const std::uint32_t width : widths)
            below_.push_back(below *= width);
    }
    Route between(std::uint32_t from, std::uint32_t to) override {
        if (from == to) return {memory(from)};
        Route route{port(from, true, link())};
        walk(from, to, route);
        route.push_back(port(to, false, link()));
        return route;
    }
    Route to_gateway(std::uint32_t node, std::uint32_t gateway) override {
        Route route{port(node, true, link())};
        walk(node, place_of(gateway), route);
        route.push_back(io_link("gateway-in:", gateway));
        return route;
    }
    Route from_gateway(std::uint32_t gateway, std::uint32_t node) override {
        Route route{io_link("gateway-out:", gateway)};
        walk(place_of(gateway), node, route);
        route.push_back(port(node, false, link()));
        return route;
    }

   private:
    [[nodiscard]] double link() const {
        return static_cast<double>(topology_.nodes() > 1 ? topology_.bandwidth(0, 1)
                                                         : topology_.least_bandwidth());
    }
    std::uint32_t io_link(const char* name, std::uint32_t gateway) {
        return storage(name + std::to_string(gateway),
                       static_cast<double>(topology_.gateway_capacity(gateway)));
    }
    // A node at the gateway's switch.
    [[nodiscard]] std::uint32_t place_of(std::uint32_t gateway) const {
        return static_cast<std::uint32_t>((2 * std::uint64_t{gateway} + 1) * topology_.nodes() /
                                          (2 * std::uint64_t{topology_.gateways()}));
    }
    void walk(std::uint32_t from, std::uint32_t to, Route& route) {
        std::size_t top = 0;
        while (from / below_[top] != to / below_[top])
            ++top;
        const auto bundle = [&](const char* way, std::size_t level, std::uint32_t node) {
            return links_.of(named(way, static_cast<std::uint32_t>(level), "/", node / below_[level]),
                             link() * below_[level] / settings_.taper);
        };
        for (std::size_t level = 0; level < top; ++level)
            route.push_back(bundle("up", level, from));
        for (std::size_t level = top; level-- > 0;)
            route.push_back(bundle("down", level, to));
    }
    std::vector<std::uint32_t> below_;  // nodes below a switch, by level
};

}  // namespace

std::uint32_t Links::of(const std::string& name, double capacity) {
    const auto [at, added] = numbers_.try_emplace(name, static_cast<std::uint32_t>(links_.size()));
    if (added) links_.push_back({name, capacity});
    return at->second;
}

Result<std::unique_ptr<Network>> make_network(const std::string& description, const Topology& topology,
                                              const NetworkSettings& settings, Links& links) {
    const std::size_t colon = std::min(description.find(':'), description.size());
    const std::string kind = description.substr(0, colon);
    Shape shape =
        colon < description.size() ? numbers_of(std::string_view(description).substr(colon + 1)) : Shape();
    if (kind == "flat") return std::unique_ptr<Network>(new FlatNetwork(topology, settings, links));
    const bool radix = kind == "fattree" && description.find('x') == std::string::npos && shape.size() >= 2;
    if (radix) {
        const std::uint32_t ports = shape[0];
        shape.assign(shape[1], ports / 2);
        shape.back() = ports;
    }
    const std::uint64_t nodes =
        std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
    if (shape.empty() || nodes != topology.nodes())
        return wrong(description + ": no shape of " + std::to_string(topology.nodes()) + " nodes");
    if (kind == "torus")
        return std::unique_ptr<Network>(new TorusNetwork(std::move(shape), topology, settings, links));
    if (kind == "dragonfly" && shape.size() == 3)
        return std::unique_ptr<Network>(new DragonflyNetwork(shape, topology, settings, links));
    if (kind == "fattree")
        return std::unique_ptr<Network>(new FatTreeNetwork(shape, topology, settings, links));
    return wrong(description + ": networks are modelled for flat, torus, dragonfly and fattree");
}

}  // namespace twinrun::simulation
