#include "aggregate/topology/topology_file.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "aggregate/topology/defaults.hpp"
#include "aggregate/topology/description.hpp"
#include "aggregate/topology/models.hpp"
#include "aggregate/topology/slurm.hpp"
#include "aggregate/topology/tree.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLargestFile = std::uint64_t{64} << 20;
constexpr std::size_t kMostOfMatrix = 4096;  // nodes with a distance for each pair
constexpr std::size_t kMostGateways = 1024;  // of a file with a matrix
using topology_defaults::kLink;
using topology_defaults::kMemory;
using topology_defaults::kSwitch;

// A topology from matrices: one distance for each pair of nodes, and for each node and gateway.
class Matrix final : public Topology {
   public:
    struct Gateway {
        std::vector<std::uint32_t> distances;  // by node
        float bandwidth = 0;
        float capacity = 0;
    };
    std::string name_;
    std::uint32_t nodes_ = 0;
    float latency_ = 0;
    std::vector<std::uint32_t> distances_;
    std::vector<float> bandwidths_;
    std::vector<Gateway> gateways_;
    std::vector<std::uint32_t> gateway_of_;
    std::vector<bool> bridges_;
    std::uint32_t diameter_ = 0;
    float least_ = std::numeric_limits<float>::max();

    void bound() {
        for (std::uint32_t from = 0; from < nodes_; ++from) {
            for (std::uint32_t to = 0; to < nodes_; ++to) {
                if (from == to) continue;
                diameter_ = std::max(diameter_, distance(from, to));
                least_ = std::min(least_, bandwidth(from, to));
            }
        }
    }
    std::string name() const override { return name_; }
    std::uint32_t nodes() const override { return nodes_; }
    std::uint32_t gateways() const override { return static_cast<std::uint32_t>(gateways_.size()); }
    float latency() const override { return latency_; }
    std::uint32_t distance(std::uint32_t from, std::uint32_t to) const override {
        return distances_[std::size_t{from} * nodes_ + to];
    }
    float bandwidth(std::uint32_t from, std::uint32_t to) const override {
        return bandwidths_[std::size_t{from} * nodes_ + to];
    }
    std::uint32_t distance_to_gateway(std::uint32_t node, std::uint32_t gateway) const override {
        return gateways_[gateway].distances[node];
    }
    float bandwidth_to_gateway(std::uint32_t, std::uint32_t gateway) const override {
        return gateways_[gateway].bandwidth;
    }
    std::uint32_t gateway_of(std::uint32_t node) const override { return gateway_of_[node]; }
    bool bridge(std::uint32_t node) const override { return bridges_[node]; }
    float gateway_capacity(std::uint32_t gateway) const override { return gateways_[gateway].capacity; }
    std::uint32_t diameter() const override { return diameter_; }
    float least_bandwidth() const override { return least_; }
};

class Reader {
   public:
    explicit Reader(const Json& all) : all_(all) {}

    Result<NamedTopology> read() {
        if (!all_.is_object()) return wrong("a topology is a JSON object");
        TWR_CHECK(known(all_,
                        {"name", "latency", "memory", "bandwidth", "nodes", "switches", "distances",
                         "bandwidths", "gateways"},
                        "the file"));
        TWR_TRY(name_, text(all_, "name", "topology of a file"));
        TWR_TRY(latency_, rate(all_, "latency", kSwitch, true));
        TWR_TRY(memory_, rate(all_, "memory", kMemory, false));
        TWR_TRY(link_, rate(all_, "bandwidth", kLink, false));
        if (all_.contains("nodes")) {
            const Json& nodes = all_.at("nodes");
            if (nodes.is_number_unsigned() && nodes.get<std::uint64_t>() <= kMostNodes) {
                for (std::uint64_t k = 0; k < nodes.get<std::uint64_t>(); ++k)
                    names_.push_back("node" + std::to_string(k));
            } else {
                TWR_TRY(names_, list(all_, "nodes"));
            }
            for (std::uint32_t k = 0; k < names_.size(); ++k) {
                if (!numbers_.try_emplace(names_[k], k).second)
                    return wrong("nodes: '" + names_[k] + "' is there twice");
            }
        }
        if (all_.contains("gateways") && (!all_.at("gateways").is_array() || all_.at("gateways").empty()))
            return wrong("gateways: must be an array, not empty");
        if (all_.contains("distances")) {
            if (all_.contains("switches")) return wrong("either switches or distances");
            return matrix();
        }
        if (all_.contains("bandwidths")) return wrong("bandwidths: go with distances");
        return tree();
    }

   private:
    // Unknown keys are errors, because a misspelt key would be ignored otherwise.
    static Result<> known(const Json& object, const std::set<std::string>& keys, const std::string& where) {
        for (const auto& item : object.items()) {
            if (!keys.contains(item.key())) {
                std::string said =
                    where + ": nothing there is called '" + item.key().substr(0, 80) + "', but";
                for (const std::string& key : keys)
                    said += " " + key;
                return wrong(said);
            }
        }
        return success();
    }
    static Result<std::string> text(const Json& object, const char* key, const std::string& otherwise) {
        if (!object.contains(key)) return otherwise;
        if (!object.at(key).is_string()) return wrong(std::string(key) + ": must be text");
        return object.at(key).get<std::string>().substr(0, 200);
    }
    static Result<float> positive(const Json& value, const std::string& key, bool zero) {
        if (value.is_number()) {
            const auto found = static_cast<float>(value.get<double>());
            if (std::isfinite(found) && (found > 0 || (zero && found == 0))) return found;
        }
        return wrong(key + ": must be a number, " + (zero ? "not negative" : "positive"));
    }
    static Result<float> rate(const Json& object, const char* key, float otherwise, bool zero) {
        if (!object.contains(key)) return otherwise;
        return positive(object.at(key), key, zero);
    }
    // Names of nodes: a hostlist, or an array of hostlists.
    static Result<std::vector<std::string>> list(const Json& object, const char* key) {
        if (!object.contains(key)) return std::vector<std::string>{};
        const Json& value = object.at(key);
        std::vector<std::string> names;
        const auto add = [&](const Json& one) -> Result<> {
            if (!one.is_string())
                return wrong(std::string(key) + ": must be names, as \"n[0-3],m1\", or an array of them");
            auto some = expand_hostlist(one.get_ref<const std::string&>(), kMostNodes - names.size());
            if (!some) return std::move(some).error().at(key);
            names.insert(names.end(), some->begin(), some->end());
            return success();
        };
        if (value.is_array()) {
            for (const Json& one : value)
                TWR_CHECK(add(one));
        } else {
            TWR_CHECK(add(value));
        }
        return names;
    }
    [[nodiscard]] Result<std::vector<std::uint32_t>> nodes_of(const Json& object, const char* key) const {
        TWR_TRY(const std::vector<std::string> names, list(object, key));
        std::vector<std::uint32_t> nodes;
        for (const std::string& name : names) {
            const auto at = numbers_.find(name);
            if (at == numbers_.end()) return wrong(std::string(key) + ": there is no node '" + name + "'");
            nodes.push_back(at->second);
        }
        return nodes;
    }
    // A tree while it is read.
    struct TreeParts {
        TreePlan plan;
        // Of each node its switch and its bandwidth.
        std::vector<std::uint32_t> leaves;
        std::vector<float> links;
        std::unordered_map<std::string, std::uint32_t> switches;  // by name
    };
    Result<> add_switches(const Json& all, TreeParts& parts) const {
        if (!all.is_array() || all.empty() || all.size() > kMostNodes)
            return wrong("switches: must be an array, not empty");
        for (const Json& one : all) {
            if (!one.is_object()) return wrong("switches: each must be an object");
            TWR_CHECK(known(one, {"name", "nodes", "switches", "bandwidth", "node_bandwidth"}, "switches"));
            TWR_TRY(const std::string name, text(one, "name", ""));
            TWR_TRY(const float bandwidth, rate(one, "bandwidth", link_, false));
            if (name.empty()) return wrong("switches: each must have a name");
            const auto number = static_cast<std::uint32_t>(parts.plan.switches.size());
            if (!parts.switches.try_emplace(name, number).second)
                return wrong("switches: '" + name + "' is there twice");
            parts.plan.switches.push_back({TreePlan::kNone, bandwidth});
        }
        return success();
    }
    // The nodes at switch k. Where the file names no nodes, this does.
    Result<> add_nodes_at(const Json& at_switch, std::uint32_t k, TreeParts& parts) {
        const bool named = all_.contains("nodes");
        TWR_TRY(const float bandwidth, rate(at_switch, "node_bandwidth", link_, false));
        TWR_TRY(const std::vector<std::string> nodes, list(at_switch, "nodes"));
        for (const std::string& name : nodes) {
            if (!named && numbers_.size() < kMostNodes &&
                numbers_.try_emplace(name, static_cast<std::uint32_t>(names_.size())).second) {
                names_.push_back(name);
                parts.leaves.push_back(TreePlan::kNone);
                parts.links.push_back(bandwidth);
            }
            const auto at = numbers_.find(name);
            if (at == numbers_.end()) return wrong("switches: there is no node '" + name + "'");
            if (parts.leaves[at->second] != TreePlan::kNone)
                return wrong("switches: node '" + name + "' is there twice");
            parts.leaves[at->second] = k;
            parts.links[at->second] = bandwidth;
        }
        return success();
    }
    Result<> add_switches_below(const Json& at_switch, std::uint32_t k, TreeParts& parts) const {
        TWR_TRY(const std::vector<std::string> below, list(at_switch, "switches"));
        for (const std::string& name : below) {
            const auto at = parts.switches.find(name);
            if (at == parts.switches.end()) return wrong("switches: there is no switch '" + name + "'");
            if (parts.plan.switches[at->second].parent != TreePlan::kNone)
                return wrong("switches: '" + name + "' is below two others");
            parts.plan.switches[at->second].parent = k;
        }
        return success();
    }
    // gateway_of: set for nodes that a gateway names.
    Result<> add_gateways_of_tree(const Json& all, TreeParts& parts,
                                  std::vector<std::uint32_t>& gateway_of) const {
        for (std::uint32_t k = 0; k < all.size(); ++k) {
            if (!all[k].is_object()) return wrong("gateways: each must be an object");
            TWR_CHECK(known(all[k], {"name", "switch", "bandwidth", "capacity", "nodes"}, "gateways"));
            TWR_TRY(const std::string at, text(all[k], "switch", ""));
            if (!at.empty() && !parts.switches.contains(at))
                return wrong("gateways: there is no switch '" + at + "'");
            TWR_TRY(const float bandwidth, rate(all[k], "bandwidth", link_, false));
            TWR_TRY(const float capacity, rate(all[k], "capacity", bandwidth, false));
            parts.plan.gateways.push_back(
                {at.empty() ? TreePlan::kNone : parts.switches.at(at), bandwidth, capacity});
            TWR_CHECK(take_users(all[k], k, gateway_of));
        }
        return success();
    }
    // The nodes that gateway k names as its own.
    Result<> take_users(const Json& gateway, std::uint32_t k, std::vector<std::uint32_t>& gateway_of) const {
        TWR_TRY(const std::vector<std::uint32_t> users, nodes_of(gateway, "nodes"));
        for (const std::uint32_t node : users) {
            if (gateway_of[node] != TreePlan::kNone)
                return wrong("gateways: node '" + names_[node] + "' has two");
            gateway_of[node] = k;
        }
        return success();
    }
    Result<NamedTopology> tree() {
        TreeParts parts;
        TreePlan& plan = parts.plan;
        plan.name = name_;
        plan.latency = latency_;
        plan.memory = memory_;
        parts.leaves.assign(names_.size(), TreePlan::kNone);
        parts.links.assign(names_.size(), link_);
        if (all_.contains("switches")) {
            const Json& all = all_.at("switches");
            TWR_CHECK(add_switches(all, parts));
            for (std::uint32_t k = 0; k < all.size(); ++k) {
                TWR_CHECK(add_nodes_at(all[k], k, parts));
                TWR_CHECK(add_switches_below(all[k], k, parts));
            }
        } else {  // all nodes at one switch
            plan.switches.push_back({TreePlan::kNone, link_});
            std::fill(parts.leaves.begin(), parts.leaves.end(), 0);
        }
        for (std::uint32_t node = 0; node < names_.size(); ++node) {
            if (parts.leaves[node] == TreePlan::kNone)
                return wrong("switches: none has node '" + names_[node] + "'");
            plan.nodes.push_back({parts.leaves[node], parts.links[node]});
        }
        std::vector<std::uint32_t> gateway_of(names_.size(), TreePlan::kNone);
        if (all_.contains("gateways")) {
            TWR_CHECK(add_gateways_of_tree(all_.at("gateways"), parts, gateway_of));
        } else {
            plan.gateways.push_back({TreePlan::kNone, link_, std::numeric_limits<float>::max()});
        }
        const bool some = std::any_of(gateway_of.begin(), gateway_of.end(),
                                      [](std::uint32_t gateway) { return gateway != TreePlan::kNone; });
        if (some) {  // nodes without a gateway use the nearest, which the tree finds
            TreePlan again = plan;
            TWR_TRY(const auto first, make_tree(std::move(again)));
            for (std::uint32_t node = 0; node < gateway_of.size(); ++node) {
                if (gateway_of[node] == TreePlan::kNone) gateway_of[node] = first->gateway_of(node);
            }
            plan.gateway_of = std::move(gateway_of);
        }
        TWR_TRY(auto made, make_tree(std::move(plan)));
        return NamedTopology{std::move(made), std::move(names_)};
    }

    // `count` rows of `count` numbers.
    template <class Take>
    [[nodiscard]] Result<> rows(const char* key, Take take) const {
        const Json& all = all_.at(key);
        const std::string form =
            std::string(key) + ": must be " + std::to_string(names_.size()) + " rows of as many numbers";
        if (!all.is_array() || all.size() != names_.size()) return wrong(form);
        for (std::uint32_t a = 0; a < all.size(); ++a) {
            if (!all[a].is_array() || all[a].size() != names_.size()) return wrong(form);
            for (std::uint32_t b = 0; b < all.size(); ++b)
                TWR_CHECK(take(a, b, all[a][b]));
        }
        return success();
    }
    static std::optional<std::uint32_t> hops(const Json& value) {
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > 1'000'000) return std::nullopt;
        return value.get<std::uint32_t>();
    }

    Result<> take_distances(Matrix& made, std::uint32_t count) const {
        made.distances_.resize(std::size_t{count} * count);
        return rows("distances", [&](std::uint32_t a, std::uint32_t b, const Json& value) -> Result<> {
            const auto found = hops(value);
            if (!found || (a == b && *found != 0))
                return wrong("distances: must be whole numbers, at most 1000000, 0 from a node to itself");
            if (b < a && made.distance(b, a) != *found) {
                return wrong("distances: from '" + names_[b] + "' to '" + names_[a] +
                             "' must be as long as back");
            }
            made.distances_[std::size_t{a} * count + b] = *found;
            return success();
        });
    }
    Result<> take_bandwidths(Matrix& made, std::uint32_t count) const {
        made.bandwidths_.assign(std::size_t{count} * count, link_);
        for (std::uint32_t k = 0; k < count; ++k)
            made.bandwidths_[std::size_t{k} * count + k] = memory_;
        if (!all_.contains("bandwidths")) return success();
        return rows("bandwidths", [&](std::uint32_t a, std::uint32_t b, const Json& value) -> Result<> {
            if (a == b && value.is_null()) return success();
            TWR_TRY(made.bandwidths_[std::size_t{a} * count + b], positive(value, "bandwidths", false));
            return success();
        });
    }
    // How far a gateway is from each node.
    Result<std::vector<std::uint32_t>> distances_of(const Json& gateway, const Matrix& made,
                                                    const std::vector<std::uint32_t>& bridges) const {
        std::vector<std::uint32_t> distances(names_.size(), 1);
        if (gateway.contains("distances")) {
            const Json& row = gateway.at("distances");
            if (!row.is_array() || row.size() != distances.size())
                return wrong("gateways: a distance for each node");
            for (std::uint32_t node = 0; node < distances.size(); ++node) {
                const auto found = hops(row[node]);
                if (!found) return wrong("gateways: distances must be whole numbers, at most 1000000");
                distances[node] = *found;
            }
        } else if (!bridges.empty()) {  // one hop from bridge nodes
            for (std::uint32_t node = 0; node < distances.size(); ++node) {
                std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
                for (const std::uint32_t bridge : bridges)
                    least = std::min(least, made.distance(node, bridge) + 1);
                distances[node] = least;
            }
        }
        return distances;
    }
    Result<> add_gateways_of_matrix(const Json& all, Matrix& made) const {
        if (all.size() > kMostGateways) return wrong("gateways: more than 1024");
        for (std::uint32_t k = 0; k < all.size(); ++k) {
            if (!all[k].is_object()) return wrong("gateways: each must be an object");
            TWR_CHECK(known(all[k], {"name", "distances", "bandwidth", "capacity", "nodes", "bridges"},
                            "gateways"));
            Matrix::Gateway gateway;
            TWR_TRY(gateway.bandwidth, rate(all[k], "bandwidth", link_, false));
            TWR_TRY(gateway.capacity, rate(all[k], "capacity", gateway.bandwidth, false));
            TWR_TRY(const std::vector<std::uint32_t> bridges, nodes_of(all[k], "bridges"));
            for (const std::uint32_t node : bridges) {
                if (made.bridges_[node])
                    return wrong("gateways: node '" + names_[node] + "' is a bridge twice");
                made.bridges_[node] = true;
            }
            TWR_TRY(gateway.distances, distances_of(all[k], made, bridges));
            TWR_CHECK(take_users(all[k], k, made.gateway_of_));
            made.gateways_.push_back(std::move(gateway));
        }
        return success();
    }
    Result<NamedTopology> matrix() {
        if (names_.empty() || names_.size() > kMostOfMatrix)
            return wrong("distances: need nodes, 1 to " + std::to_string(kMostOfMatrix));
        auto made = std::make_shared<Matrix>();
        const auto count = static_cast<std::uint32_t>(names_.size());
        made->name_ = name_;
        made->nodes_ = count;
        made->latency_ = latency_;
        TWR_CHECK(take_distances(*made, count));
        TWR_CHECK(take_bandwidths(*made, count));
        made->gateway_of_.assign(count, TreePlan::kNone);
        made->bridges_.assign(count, false);
        if (all_.contains("gateways")) {
            TWR_CHECK(add_gateways_of_matrix(all_.at("gateways"), *made));
        } else {
            made->gateways_.push_back(
                {std::vector<std::uint32_t>(count, 1), link_, std::numeric_limits<float>::max()});
        }
        for (std::uint32_t node = 0; node < count; ++node) {
            if (made->gateway_of_[node] != TreePlan::kNone) continue;
            made->gateway_of_[node] = 0;
            for (std::uint32_t k = 1; k < made->gateways(); ++k) {
                if (made->distance_to_gateway(node, k) <
                    made->distance_to_gateway(node, made->gateway_of_[node]))
                    made->gateway_of_[node] = k;
            }
        }
        made->bound();
        return NamedTopology{std::move(made), std::move(names_)};
    }

    const Json& all_;
    std::string name_;
    float latency_ = 0;
    float memory_ = 0;
    float link_ = 0;
    std::vector<std::string> names_;
    std::unordered_map<std::string, std::uint32_t> numbers_;
};

}  // namespace

Result<NamedTopology> parse_topology_file(std::string_view json) {
    if (json.size() > kLargestFile) return wrong("more than 64 MiB");
    const Json all = Json::parse(json, nullptr, false);
    if (all.is_discarded()) return wrong("is not JSON");
    return Reader(all).read();
}

Result<NamedTopology> read_topology_file(const std::string& path) {
    TWR_TRY(const std::vector<std::byte> bytes, read_whole_file(path, kLargestFile));
    auto named = parse_topology_file({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!named) return std::move(named).error().at(path);
    return named;
}

}  // namespace twinrun
