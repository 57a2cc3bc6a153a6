#include "aggregate/topology/places.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace twinrun {

namespace {

constexpr std::uint32_t kLevels = InnerPlace::kLevels;

// Levels from the place up to the whole host.
std::uint32_t height(std::uint32_t level_count) { return kLevels - level_count; }

// The smallest part that contains both places: 0 the host, 1 a package, … kLevels a core.
std::uint32_t common_level(const InnerPlace& a, const InnerPlace& b) {
    for (std::uint32_t level = kLevels; level > 0; --level) {
        const std::uint32_t part = a.parts[level - 1];
        if (part != InnerPlace::kAny && part == b.parts[level - 1]) return level;
    }
    return 0;
}

class Places final : public Topology {
   public:
    Places(std::shared_ptr<const Topology> hosts, std::vector<HostPlace> places, const PlaceBandwidths& b,
           std::string name)
        : hosts_(std::move(hosts)), places_(std::move(places)), bandwidths_(b), name_(std::move(name)) {}
    std::string name() const override { return name_; }
    std::uint32_t nodes() const override { return static_cast<std::uint32_t>(places_.size()); }
    std::uint32_t gateways() const override { return hosts_->gateways(); }
    float latency() const override { return hosts_->latency(); }
    std::uint32_t distance(std::uint32_t from, std::uint32_t to) const override {
        if (from == to) return 0;
        const HostPlace& a = places_[from];
        const HostPlace& b = places_[to];
        if (a.host != b.host) return kLevels + hosts_->distance(a.host, b.host);
        return height(common_level(a.inner, b.inner));
    }
    float bandwidth(std::uint32_t from, std::uint32_t to) const override {
        const HostPlace& a = places_[from];
        const HostPlace& b = places_[to];
        if (a.host != b.host) return hosts_->bandwidth(a.host, b.host);
        const float memory = bandwidths_.memory.value_or(hosts_->bandwidth(a.host, a.host));
        // Both may be anywhere in the host, so that this host counts as one node.
        if (from == to && a.inner == InnerPlace()) return memory;
        switch (common_level(a.inner, b.inner)) {
            case 0: return bandwidths_.package;
            case 1: return bandwidths_.numa;
            case 2: return memory;
            default: return bandwidths_.cache.value_or(memory);
        }
    }
    std::uint32_t distance_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return hosts_->distance_to_gateway(places_[node].host, gateway);
    }
    float bandwidth_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return hosts_->bandwidth_to_gateway(places_[node].host, gateway);
    }
    std::uint32_t gateway_of(std::uint32_t node) const override {
        return hosts_->gateway_of(places_[node].host);
    }
    std::uint32_t links() const override { return hosts_->links(); }
    std::uint32_t link_of(std::uint32_t node) const override { return hosts_->link_of(places_[node].host); }
    std::uint32_t gateway_of_link(std::uint32_t link) const override { return hosts_->gateway_of_link(link); }
    float link_capacity(std::uint32_t link) const override { return hosts_->link_capacity(link); }
    bool bridge(std::uint32_t node) const override { return hosts_->bridge(places_[node].host); }
    float gateway_capacity(std::uint32_t gateway) const override { return hosts_->gateway_capacity(gateway); }
    std::uint32_t ports() const override { return hosts_->ports(); }
    std::uint32_t diameter() const override {
        constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
        return hosts_->diameter() > kMost - kLevels ? kMost : hosts_->diameter() + kLevels;
    }
    float least_bandwidth() const override {
        const float hosts = hosts_->least_bandwidth();  // 0: not known
        float least = std::min({hosts, bandwidths_.package, bandwidths_.numa});
        if (bandwidths_.cache) least = std::min(least, *bandwidths_.cache);
        if (bandwidths_.memory) return std::min(least, *bandwidths_.memory);
        for (const HostPlace& place : places_)
            least = std::min(least, hosts_->bandwidth(place.host, place.host));
        return least;
    }
    std::uint32_t host_of(std::uint32_t node) const override { return places_[node].host; }
    InnerPlace inner_place(std::uint32_t node) const override { return places_[node].inner; }

   private:
    std::shared_ptr<const Topology> hosts_;
    std::vector<HostPlace> places_;
    PlaceBandwidths bandwidths_;
    std::string name_;
};

}  // namespace

Result<std::shared_ptr<const Topology>> make_places(std::shared_ptr<const Topology> hosts,
                                                    std::vector<HostPlace> places,
                                                    const PlaceBandwidths& bandwidths, std::string name) {
    const auto wrong = [](const char* what) { return Error{ErrorCode::invalid_argument, what}; };
    if (places.empty() || places.size() > kMostNodes) return wrong("no places within hosts, or too many");
    for (const HostPlace& place : places) {
        if (place.host >= hosts->nodes()) return wrong("a place in a host that is not there");
    }
    const auto usable = [](float rate) { return std::isfinite(rate) && rate > 0; };
    if (!usable(bandwidths.numa) || !usable(bandwidths.package) || !usable(bandwidths.memory.value_or(1)) ||
        !usable(bandwidths.cache.value_or(1)))
        return wrong("bandwidths must be positive");
    return std::shared_ptr<const Topology>(
        std::make_shared<Places>(std::move(hosts), std::move(places), bandwidths, std::move(name)));
}

}  // namespace twinrun
