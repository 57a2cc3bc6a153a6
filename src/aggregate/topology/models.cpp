#include "aggregate/topology/models.hpp"

#include <algorithm>
#include <cstdlib>

#include "aggregate/topology/defaults.hpp"

namespace twinrun {

namespace {

using topology_defaults::kLink;
using topology_defaults::kMemory;
using topology_defaults::kSwitch;

// Blue Gene/Q. Links and those from bridge nodes to the I/O node: 1.8 GB/s each (Tessier and
// Vishwanath, section III-C; 2 GB/s less 10% of packets' overhead). A hop: 40 ns (Chen et al., "The
// IBM Blue Gene/Q interconnection network and message unit", SC'11). Memory: half of the 28 GB/s
// that STREAM gives on a node, since a copy reads and writes.
constexpr float kTorusLink = 1.8e9F;
constexpr float kTorusHop = 4e-8F;
constexpr float kTorusMemory = 14e9F;
constexpr std::uint32_t kPset = 128;

// Aries, of the Cray XC series ("Cray XC Series Network", WP-Aries01-1112): 5.25 GB/s a local link
// and direction, 4.7 GB/s a global one, 0.1 us a router. Injection: PCIe 3 x16, shared by the
// router's nodes.
constexpr float kDragonflyLocal = 5.25e9F;
constexpr float kDragonflyGlobal = 4.7e9F;
constexpr float kDragonflyInjection = 10e9F;

class Flat final : public Topology {
   public:
    Flat(std::uint32_t nodes, const ModelSettings& s)
        : nodes_(nodes),
          latency_(s.latency.value_or(kSwitch)),
          bandwidth_(s.bandwidth.value_or(kLink)),
          memory_(s.memory.value_or(kMemory)),
          storage_(s.gateway_bandwidth.value_or(bandwidth_)) {}
    std::string name() const override { return "flat " + std::to_string(nodes_); }
    std::uint32_t nodes() const override { return nodes_; }
    std::uint32_t gateways() const override { return 1; }
    float latency() const override { return latency_; }
    std::uint32_t distance(std::uint32_t from, std::uint32_t to) const override { return from == to ? 0 : 1; }
    float bandwidth(std::uint32_t from, std::uint32_t to) const override {
        return from == to ? memory_ : bandwidth_;
    }
    std::uint32_t distance_to_gateway(std::uint32_t, std::uint32_t) const override { return 1; }
    float bandwidth_to_gateway(std::uint32_t, std::uint32_t) const override { return storage_; }
    std::uint32_t gateway_of(std::uint32_t) const override { return 0; }
    bool bridge(std::uint32_t) const override { return true; }
    float gateway_capacity(std::uint32_t) const override {
        return storage_ * static_cast<float>(nodes_);  // no shared link is known
    }
    std::uint32_t diameter() const override { return 1; }
    float least_bandwidth() const override { return bandwidth_; }

   private:
    std::uint32_t nodes_;
    float latency_, bandwidth_, memory_, storage_;
};

class Torus final : public Topology {
   public:
    Torus(const std::vector<std::uint32_t>& shape, const ModelSettings& s)
        : shape_(shape),
          pset_(s.pset.value_or(kPset)),
          latency_(s.latency.value_or(kTorusHop)),
          bandwidth_(s.bandwidth.value_or(kTorusLink)),
          memory_(s.memory.value_or(kTorusMemory)),
          storage_(s.gateway_bandwidth.value_or(kTorusLink)) {
        for (const std::uint32_t width : shape) {
            nodes_ *= width;
            diameter_ += width / 2;
        }
        places_.resize(std::size_t{nodes_} * shape.size());
        for (std::uint32_t node = 0; node < nodes_; ++node) {
            std::uint32_t rest = node;
            for (std::size_t k = shape.size(); k-- > 0;) {
                places_[node * shape.size() + k] = rest % shape[k];
                rest /= shape[k];
            }
        }
    }
    std::string name() const override {
        std::string text = "torus ";
        for (std::size_t k = 0; k < shape_.size(); ++k)
            text += (k == 0 ? "" : "x") + std::to_string(shape_[k]);
        return text;
    }
    std::uint32_t nodes() const override { return nodes_; }
    std::uint32_t gateways() const override { return (nodes_ - 1) / pset_ + 1; }
    float latency() const override { return latency_; }
    std::uint32_t distance(std::uint32_t from, std::uint32_t to) const override {
        const std::size_t n = shape_.size();
        const std::uint32_t* a = &places_[from * n];
        const std::uint32_t* b = &places_[to * n];
        std::uint32_t hops = 0;
        for (std::size_t k = 0; k < n; ++k) {
            const std::uint32_t there = a[k] < b[k] ? b[k] - a[k] : a[k] - b[k];
            hops += std::min(there, shape_[k] - there);
        }
        return hops;
    }
    float bandwidth(std::uint32_t from, std::uint32_t to) const override {
        return from == to ? memory_ : bandwidth_;
    }
    std::uint32_t distance_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        const auto bridges = bridges_of(gateway);
        return std::min(distance(node, bridges[0]), distance(node, bridges[1])) + 1;
    }
    float bandwidth_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        const auto bridges = bridges_of(gateway);
        return node == bridges[0] || node == bridges[1] ? storage_ : std::min(bandwidth_, storage_);
    }
    std::uint32_t gateway_of(std::uint32_t node) const override { return node / pset_; }
    // The first half of a Pset uses the link of the first bridge node, the second half the other.
    std::uint32_t links() const override { return 2 * gateways(); }
    std::uint32_t link_of(std::uint32_t node) const override {
        const std::uint32_t first = node / pset_ * pset_;
        const std::uint32_t size = std::min(pset_, nodes_ - first);
        return 2 * (node / pset_) + (2 * std::uint64_t{node - first} < size ? 0 : 1);
    }
    std::uint32_t gateway_of_link(std::uint32_t link) const override { return link / 2; }
    float link_capacity(std::uint32_t) const override { return storage_; }
    bool bridge(std::uint32_t node) const override {
        const auto bridges = bridges_of(node / pset_);
        return node == bridges[0] || node == bridges[1];
    }
    float gateway_capacity(std::uint32_t gateway) const override {
        const auto bridges = bridges_of(gateway);
        return bridges[0] == bridges[1] ? storage_ : 2 * storage_;
    }
    std::uint32_t ports() const override {
        std::uint32_t links = 0;  // to both neighbours, one if they are the same node
        for (const std::uint32_t width : shape_)
            links += std::min(width - 1, 2U);
        return std::max(links, 1U);
    }
    std::uint32_t diameter() const override { return diameter_; }
    float least_bandwidth() const override { return bandwidth_; }

   private:
    // The middle of each half of the Pset. Real machines differ in which nodes these are.
    [[nodiscard]] std::array<std::uint32_t, 2> bridges_of(std::uint32_t gateway) const {
        const std::uint32_t first = gateway * pset_;
        const std::uint32_t size = std::min(pset_, nodes_ - first);
        return {first + size / 4, first + size - 1 - size / 4};
    }
    std::vector<std::uint32_t> shape_;
    std::uint32_t pset_;
    float latency_, bandwidth_, memory_, storage_;
    std::uint32_t nodes_ = 1;
    std::uint32_t diameter_ = 0;
    std::vector<std::uint32_t> places_;  // coordinates by node
};

// Minimal routes of "Technology-Driven, Highly-Scalable Dragonfly Topology" (Kim et al., ISCA'08):
// from a router to any other one of its group one hop, and one link between every two groups, at
// routers in turn. Hops count every link, a node's own too.
class Dragonfly final : public Topology {
   public:
    Dragonfly(std::uint32_t groups, std::uint32_t routers, std::uint32_t nodes, const ModelSettings& s)
        : groups_(groups),
          routers_(routers),
          width_(nodes),
          gateways_(s.gateways.value_or(groups)),
          latency_(s.latency.value_or(kSwitch)),
          local_(s.bandwidth.value_or(kDragonflyLocal)),
          global_(s.bandwidth ? *s.bandwidth : kDragonflyGlobal),
          injection_(s.bandwidth ? *s.bandwidth : kDragonflyInjection),
          memory_(s.memory.value_or(kMemory)),
          storage_(s.gateway_bandwidth.value_or(local_)) {}
    std::string name() const override {
        return "dragonfly " + std::to_string(groups_) + "x" + std::to_string(routers_) + "x" +
               std::to_string(width_);
    }
    std::uint32_t nodes() const override { return groups_ * routers_ * width_; }
    std::uint32_t gateways() const override { return gateways_; }
    float latency() const override { return latency_; }
    std::uint32_t distance(std::uint32_t from, std::uint32_t to) const override {
        return from == to ? 0 : 2 + hops(from / width_, to / width_);
    }
    float bandwidth(std::uint32_t from, std::uint32_t to) const override {
        return from == to ? memory_ : std::min(injection_, slowest(from / width_, to / width_));
    }
    std::uint32_t distance_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return 2 + hops(node / width_, router_of(gateway));
    }
    float bandwidth_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return std::min({injection_, storage_, slowest(node / width_, router_of(gateway))});
    }
    // Gateways have equal shares of consecutive nodes, and lie in their middle.
    std::uint32_t gateway_of(std::uint32_t node) const override {
        return static_cast<std::uint32_t>(std::uint64_t{node} * gateways_ / nodes());
    }
    bool bridge(std::uint32_t node) const override { return node / width_ == router_of(gateway_of(node)); }
    float gateway_capacity(std::uint32_t) const override { return storage_; }
    std::uint32_t diameter() const override { return groups_ == 1 ? 3 : 5; }
    float least_bandwidth() const override { return std::min({injection_, local_, global_}); }

   private:
    [[nodiscard]] std::uint32_t router_of(std::uint32_t gateway) const {
        return static_cast<std::uint32_t>((2 * std::uint64_t{gateway} + 1) * groups_ * routers_ /
                                          (2 * std::uint64_t{gateways_}));
    }
    // The router of group `from` with the link to group `to`. Both ends count from their own group.
    [[nodiscard]] std::uint32_t exit_of(std::uint32_t from, std::uint32_t to) const {
        return from * routers_ + ((to + groups_ - from) % groups_ - 1) % routers_;
    }
    // Links between two routers, by number in the whole machine.
    [[nodiscard]] std::uint32_t hops(std::uint32_t a, std::uint32_t b) const {
        if (a == b) return 0;
        const std::uint32_t from = a / routers_;
        const std::uint32_t to = b / routers_;
        if (from == to) return 1;
        return 1 + (a == exit_of(from, to) ? 0U : 1U) + (b == exit_of(to, from) ? 0U : 1U);
    }
    [[nodiscard]] float slowest(std::uint32_t a, std::uint32_t b) const {
        if (a == b) return injection_;
        const std::uint32_t from = a / routers_;
        const std::uint32_t to = b / routers_;
        if (from == to) return local_;
        return a == exit_of(from, to) && b == exit_of(to, from) ? global_ : std::min(local_, global_);
    }
    std::uint32_t groups_, routers_, width_, gateways_;
    float latency_, local_, global_, injection_, memory_, storage_;
};

}  // namespace

std::shared_ptr<const Topology> make_flat(std::uint32_t nodes, const ModelSettings& settings) {
    return std::make_shared<Flat>(nodes, settings);
}

std::shared_ptr<const Topology> make_torus(const std::vector<std::uint32_t>& shape,
                                           const ModelSettings& settings) {
    return std::make_shared<Torus>(shape, settings);
}

std::shared_ptr<const Topology> make_dragonfly(std::uint32_t groups, std::uint32_t routers,
                                               std::uint32_t nodes, const ModelSettings& settings) {
    return std::make_shared<Dragonfly>(groups, routers, nodes, settings);
}

Result<std::shared_ptr<const Topology>> make_fat_tree(const std::vector<std::uint32_t>& widths,
                                                      const std::string& name,
                                                      const ModelSettings& settings) {
    const float link = settings.bandwidth.value_or(kLink);
    TreePlan plan;
    plan.name = name;
    plan.latency = settings.latency.value_or(kSwitch);
    plan.memory = settings.memory.value_or(kMemory);
    std::uint32_t count = 1;
    for (const std::uint32_t width : widths)
        count *= width;
    const std::uint32_t nodes = count;
    // Switches by level, leaves first.
    std::uint32_t below = nodes;
    for (std::size_t level = 0; level < widths.size(); ++level) {
        below /= widths[level];
        const auto first = static_cast<std::uint32_t>(plan.switches.size());
        const bool top = level + 1 == widths.size();
        for (std::uint32_t k = 0; k < below; ++k)
            plan.switches.push_back({top ? TreePlan::kNone : first + below + k / widths[level + 1], link});
    }
    for (std::uint32_t node = 0; node < nodes; ++node)
        plan.nodes.push_back({node / widths[0], link});
    const std::uint32_t gateways = settings.gateways.value_or(std::max(1U, nodes / 128));
    for (std::uint32_t k = 0; k < gateways; ++k) {
        const auto middle =
            static_cast<std::uint32_t>((2 * std::uint64_t{k} + 1) * nodes / (2 * std::uint64_t{gateways}));
        const float storage = settings.gateway_bandwidth.value_or(link);
        plan.gateways.push_back({middle / widths[0], storage, storage});
    }
    for (std::uint32_t node = 0; node < nodes; ++node)
        plan.gateway_of.push_back(static_cast<std::uint32_t>(std::uint64_t{node} * gateways / nodes));
    return make_tree(std::move(plan));
}

}  // namespace twinrun
