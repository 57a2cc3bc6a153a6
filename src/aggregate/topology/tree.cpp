#include "aggregate/topology/tree.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "aggregate/topology/description.hpp"

namespace twinrun {

namespace {

constexpr std::uint32_t kMostLevels = 64;
constexpr std::uint64_t kMostWays = std::uint64_t{1} << 26;  // nodes times gateways

bool usable(float rate) { return std::isfinite(rate) && rate > 0; }

class Tree final : public Topology {
   public:
    // depths: of switches, 0 at the top.
    Tree(TreePlan plan, std::vector<std::uint32_t> depths)
        : plan_(std::move(plan)), depths_(std::move(depths)) {
        for (const TreePlan::Switch& s : plan_.switches) {
            if (s.parent != TreePlan::kNone) least_ = std::min(least_, s.bandwidth);
        }
        for (const TreePlan::Node& node : plan_.nodes) {
            least_ = std::min(least_, node.bandwidth);
            diameter_ = std::max(diameter_, 2 * (depths_[node.leaf] + 1));
        }
        if (plan_.gateway_of.empty()) nearest();
    }
    std::string name() const override { return plan_.name; }
    std::uint32_t nodes() const override { return static_cast<std::uint32_t>(plan_.nodes.size()); }
    std::uint32_t gateways() const override { return static_cast<std::uint32_t>(plan_.gateways.size()); }
    float latency() const override { return plan_.latency; }
    std::uint32_t distance(std::uint32_t from, std::uint32_t to) const override {
        return from == to ? 0 : 2 + way(plan_.nodes[from].leaf, plan_.nodes[to].leaf).hops;
    }
    float bandwidth(std::uint32_t from, std::uint32_t to) const override {
        if (from == to) return plan_.memory;
        return std::min({plan_.nodes[from].bandwidth, plan_.nodes[to].bandwidth,
                         way(plan_.nodes[from].leaf, plan_.nodes[to].leaf).least});
    }
    std::uint32_t distance_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return 2 + way(plan_.nodes[node].leaf, plan_.gateways[gateway].at).hops;
    }
    float bandwidth_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return std::min({plan_.nodes[node].bandwidth, plan_.gateways[gateway].bandwidth,
                         way(plan_.nodes[node].leaf, plan_.gateways[gateway].at).least});
    }
    std::uint32_t gateway_of(std::uint32_t node) const override { return plan_.gateway_of[node]; }
    bool bridge(std::uint32_t node) const override {
        return plan_.gateways[plan_.gateway_of[node]].at == plan_.nodes[node].leaf;
    }
    float gateway_capacity(std::uint32_t gateway) const override { return plan_.gateways[gateway].capacity; }
    std::uint32_t diameter() const override { return diameter_; }
    float least_bandwidth() const override { return least_; }

   private:
    struct Way {
        std::uint32_t hops = 0;
        float least = std::numeric_limits<float>::infinity();
    };
    [[nodiscard]] Way way(std::uint32_t a, std::uint32_t b) const {
        Way found;
        while (a != b) {
            std::uint32_t& lower = depths_[a] >= depths_[b] ? a : b;
            const TreePlan::Switch& s = plan_.switches[lower];
            found.least = std::min(found.least, s.bandwidth);
            ++found.hops;
            lower = s.parent;
        }
        return found;
    }
    void nearest() {
        plan_.gateway_of.resize(plan_.nodes.size());
        std::vector<std::uint32_t> equal;
        for (std::uint32_t node = 0; node < plan_.nodes.size(); ++node) {
            equal.clear();
            std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
            for (std::uint32_t k = 0; k < plan_.gateways.size(); ++k) {
                const std::uint32_t hops = distance_to_gateway(node, k);
                if (hops < least) equal.clear();
                if (hops <= least) equal.push_back(k);
                least = std::min(least, hops);
            }
            plan_.gateway_of[node] = equal[std::uint64_t{node} * equal.size() / plan_.nodes.size()];
        }
    }
    TreePlan plan_;
    std::vector<std::uint32_t> depths_;
    std::uint32_t diameter_ = 0;
    float least_ = std::numeric_limits<float>::max();
};

}  // namespace

Result<std::shared_ptr<const Topology>> make_tree(TreePlan plan) {
    if (plan.nodes.empty()) return wrong("a topology without nodes");
    if (plan.gateways.empty()) return wrong("a topology without gateways to storage");
    if (plan.nodes.size() > kMostNodes || plan.switches.size() > kMostNodes ||
        std::uint64_t{plan.nodes.size()} * plan.gateways.size() > kMostWays)
        return wrong("too many nodes, switches or gateways");
    if (!std::isfinite(plan.latency) || plan.latency < 0 || !usable(plan.memory))
        return wrong("the latency must not be negative, bandwidths must be positive");
    const auto count = static_cast<std::uint32_t>(plan.switches.size());
    std::uint32_t tops = 0;
    std::uint32_t top = 0;
    float widest = 0;
    for (std::uint32_t k = 0; k < count; ++k) {
        const TreePlan::Switch& s = plan.switches[k];
        if (s.parent != TreePlan::kNone && s.parent >= count)
            return wrong("a switch above that is not there");
        if (!usable(s.bandwidth)) return wrong("bandwidths must be positive");
        widest = std::max(widest, s.bandwidth);
        if (s.parent == TreePlan::kNone) {
            ++tops;
            top = k;
        }
    }
    if (tops == 0) return wrong("no switch is at the top: they are in a circle");
    if (tops > 1) {  // one above joins them
        top = count;
        for (TreePlan::Switch& s : plan.switches) {
            if (s.parent == TreePlan::kNone) s.parent = top;
        }
        plan.switches.push_back({TreePlan::kNone, widest});
    }
    std::vector<std::uint32_t> depths(plan.switches.size(), TreePlan::kNone);
    depths[top] = 0;
    std::vector<std::uint32_t> up;
    for (std::uint32_t k = 0; k < plan.switches.size(); ++k) {
        up.clear();
        std::uint32_t at = k;
        while (depths[at] == TreePlan::kNone) {
            up.push_back(at);
            if (up.size() > kMostLevels) return wrong("more than 64 levels of switches, or a circle");
            at = plan.switches[at].parent;
        }
        std::uint32_t depth = depths[at];
        for (std::size_t i = up.size(); i-- > 0;)
            depths[up[i]] = ++depth;
        if (depth > kMostLevels) return wrong("more than 64 levels of switches");
    }
    for (const TreePlan::Node& node : plan.nodes) {
        if (node.leaf >= plan.switches.size()) return wrong("a node at a switch that is not there");
        if (!usable(node.bandwidth)) return wrong("bandwidths must be positive");
    }
    for (TreePlan::Gateway& gateway : plan.gateways) {
        if (gateway.at == TreePlan::kNone) gateway.at = top;
        if (gateway.at >= plan.switches.size()) return wrong("a gateway at a switch that is not there");
        if (!usable(gateway.bandwidth) || !usable(gateway.capacity))
            return wrong("bandwidths must be positive");
    }
    if (!plan.gateway_of.empty() && plan.gateway_of.size() != plan.nodes.size())
        return wrong("a gateway for each node, or for none");
    for (const std::uint32_t gateway : plan.gateway_of) {
        if (gateway >= plan.gateways.size()) return wrong("a node's gateway is not there");
    }
    return std::shared_ptr<const Topology>(std::make_shared<Tree>(std::move(plan), std::move(depths)));
}

}  // namespace twinrun
