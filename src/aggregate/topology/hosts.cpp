#include "aggregate/topology/hosts.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "aggregate/topology/models.hpp"

namespace twinrun {

namespace {

// Some nodes of a topology, in an order of their own.
class Chosen final : public Topology {
   public:
    Chosen(std::shared_ptr<const Topology> all, std::vector<std::uint32_t> nodes)
        : all_(std::move(all)), nodes_(std::move(nodes)) {}
    std::string name() const override { return all_->name(); }
    std::uint32_t nodes() const override { return static_cast<std::uint32_t>(nodes_.size()); }
    std::uint32_t gateways() const override { return all_->gateways(); }
    float latency() const override { return all_->latency(); }
    std::uint32_t distance(std::uint32_t from, std::uint32_t to) const override {
        return all_->distance(nodes_[from], nodes_[to]);
    }
    float bandwidth(std::uint32_t from, std::uint32_t to) const override {
        return all_->bandwidth(nodes_[from], nodes_[to]);
    }
    std::uint32_t distance_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return all_->distance_to_gateway(nodes_[node], gateway);
    }
    float bandwidth_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return all_->bandwidth_to_gateway(nodes_[node], gateway);
    }
    std::uint32_t gateway_of(std::uint32_t node) const override { return all_->gateway_of(nodes_[node]); }
    bool bridge(std::uint32_t node) const override { return all_->bridge(nodes_[node]); }
    float gateway_capacity(std::uint32_t gateway) const override { return all_->gateway_capacity(gateway); }
    std::uint32_t ports() const override { return all_->ports(); }
    std::uint32_t diameter() const override { return all_->diameter(); }
    float least_bandwidth() const override { return all_->least_bandwidth(); }

   private:
    std::shared_ptr<const Topology> all_;
    std::vector<std::uint32_t> nodes_;
};

std::string short_name(const std::string& name) { return name.substr(0, name.find('.')); }

Result<std::shared_ptr<const Topology>> by_name(const NamedTopology& named, std::span<const Host> hosts) {
    std::unordered_map<std::string, std::uint32_t> numbers;
    for (std::uint32_t k = 0; k < named.names.size(); ++k)
        numbers.try_emplace(named.names[k], k);
    for (std::uint32_t k = 0; k < named.names.size(); ++k)
        numbers.try_emplace(short_name(named.names[k]), k);
    std::vector<std::uint32_t> nodes;
    std::vector<bool> taken(named.names.size(), false);
    for (const Host& host : hosts) {
        auto at = numbers.find(host.name);
        if (at == numbers.end()) at = numbers.find(short_name(host.name));
        if (at == numbers.end()) {
            return Error{ErrorCode::invalid_argument,
                         "topology '" + named.topology->name() + "' has no node called '" + host.name + "'"};
        }
        if (taken[at->second]) {
            return Error{ErrorCode::invalid_argument, "topology '" + named.topology->name() +
                                                          "': two nodes are called '" + host.name + "'"};
        }
        taken[at->second] = true;
        nodes.push_back(at->second);
    }
    return std::shared_ptr<const Topology>(std::make_shared<Chosen>(named.topology, std::move(nodes)));
}

}  // namespace

Result<std::shared_ptr<const Topology>> topology_of_hosts(
    const std::string& description, std::span<const Host> hosts,
    const std::function<Result<std::string>()>& scontrol) {
    const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(hosts.size(), kMostNodes + 1));
    if (count == 0 || count > kMostNodes)
        return Error{ErrorCode::invalid_argument, "no nodes, or too many of them"};
    const auto addressed = [&] {  // more than the node's own name
        return std::all_of(hosts.begin(), hosts.end(), [](const Host& host) {
            return !host.address.empty() && host.address.find('.') != std::string::npos &&
                   (host.pattern.empty() || host.pattern.find('.') != std::string::npos);
        });
    };
    if (description == "auto" && addressed()) {
        const auto named = parse_slurm_addresses(hosts);
        if (named) return named->topology;
    }
    if (description == "auto" || description == "node" || description == "flat") return make_flat(count, {});
    if (description == "slurm") {
        if (addressed()) {
            TWR_TRY(NamedTopology named, parse_slurm_addresses(hosts));
            return std::move(named.topology);
        }
        TWR_TRY(const std::string text, scontrol());
        TWR_TRY(const NamedTopology named, parse_scontrol_topology(text));
        return by_name(named, hosts);
    }
    if (description.starts_with("file:")) {
        TWR_TRY(const NamedTopology named, read_topology_file(description.substr(5)));
        return by_name(named, hosts);
    }
    TWR_TRY(std::shared_ptr<const Topology> model, make_topology(description, count));
    if (model->nodes() == count) return model;
    if (model->nodes() < count) {
        return Error{ErrorCode::invalid_argument, "topology '" + description + "' has " +
                                                      std::to_string(model->nodes()) +
                                                      " nodes, and there are " + std::to_string(count)};
    }
    std::vector<std::uint32_t> nodes(count);
    for (std::uint32_t k = 0; k < count; ++k)
        nodes[k] = k;
    return std::shared_ptr<const Topology>(std::make_shared<Chosen>(std::move(model), std::move(nodes)));
}

}  // namespace twinrun
