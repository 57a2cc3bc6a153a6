// Aggregation: topologies and the planner. Nothing here needs MPI.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "aggregate/plan/planner.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

Result<VolumeModel::Kind> volume_kind_of(const std::string& name) {
    if (name == "uniform") return VolumeModel::Kind::uniform;
    if (name == "lognormal") return VolumeModel::Kind::lognormal;
    if (name == "linear") return VolumeModel::Kind::linear;
    if (name == "heavy") return VolumeModel::Kind::heavy;
    return Error{ErrorCode::invalid_argument, "no volumes are called '" + name + "'"};
}

nb::dict topology_dict(const Topology& t) {
    nb::list gateway_of;
    nb::list bridges;
    nb::list places;
    for (std::uint32_t node = 0; node < t.nodes(); ++node) {
        const InnerPlace inner = t.inner_place(node);
        if (inner != InnerPlace()) {
            const auto part = [&](std::size_t level) {
                return inner.parts[level] == InnerPlace::kAny ? nb::object(nb::none())
                                                              : nb::object(nb::int_(inner.parts[level]));
            };
            places.append(nb::make_tuple(t.host_of(node), part(0), part(1), part(2), part(3)));
        }
        gateway_of.append(t.gateway_of(node));
        if (t.bridge(node)) bridges.append(node);
    }
    nb::dict d;
    d["name"] = nb::str(t.name().c_str(), t.name().size());
    d["nodes"] = t.nodes();
    d["gateways"] = t.gateways();
    d["diameter"] = t.diameter();
    d["latency"] = t.latency();
    d["gateway_of"] = gateway_of;
    d["bridges"] = bridges;
    d["places"] = places;
    return d;
}

nb::dict partition_dict(const PlannedPartition& part) {
    nb::dict d;
    d["file"] = part.file;
    d["number"] = part.number;
    d["offset"] = part.offset;
    d["bytes"] = part.bytes;
    d["ranks"] = part.contributions.size();
    d["first_rank"] = part.contributions.front().rank;
    d["last_rank"] = part.contributions.back().rank;
    d["nodes"] = part.nodes;
    d["gateway"] = part.gateway;
    return d;
}

nb::dict placement_dict(const PlannedPlacement& planned, std::uint32_t ranks_per_node) {
    nb::list aggregators;
    for (const Election& election : planned.elections)
        aggregators.append(nb::make_tuple(election.rank, election.rank / ranks_per_node,
                                          static_cast<double>(election.cost.gather),
                                          static_cast<double>(election.cost.write)));
    nb::dict d;
    d["placement"] = placement_name(planned.placement);
    d["sum"] = planned.prediction.sum;
    d["most"] = planned.prediction.most;
    d["seconds"] = planned.prediction.seconds;
    d["aggregators"] = aggregators;
    return d;
}

}  // namespace

void define_aggregation(nb::module_& m) {
    m.def(
        "make_volumes",
        [](const std::string& kind, std::uint32_t ranks, std::uint64_t mean, std::uint64_t unit,
           double spread, std::uint32_t every, std::uint64_t seed) {
            const VolumeModel model{take(volume_kind_of(kind)), mean, unit, spread, every, seed};
            return take(volumes_of(model, ranks));
        },
        "kind"_a, "ranks"_a, "mean"_a, "unit"_a, "spread"_a, "every"_a, "seed"_a);
    m.def(
        "topology_nodes",
        [](const std::string& description, std::uint32_t nodes) {
            return take(make_topology(description, nodes))->nodes();
        },
        "description"_a, "nodes"_a);
    m.def(
        "plan_aggregation",
        [](const std::string& description, std::uint32_t nodes, const std::vector<std::uint64_t>& volumes,
           std::uint32_t ranks_per_node, std::uint32_t aggregators, std::uint32_t nodes_per_file,
           const std::string& layout, const std::vector<std::uint64_t>& item_bytes, std::uint64_t block,
           const std::vector<std::string>& placements, std::uint64_t seed) {
            const auto topology = take(make_topology(description, nodes));
            PlanSettings settings;
            settings.ranks_per_node = ranks_per_node;
            settings.aggregators = aggregators;
            settings.nodes_per_file = nodes_per_file;
            settings.layout = take(plan_layout_of(layout));
            settings.item_bytes = item_bytes;
            settings.block = block;
            settings.seed = seed;
            std::vector<Placement> chosen;
            for (const std::string& name : placements)
                chosen.push_back(take(placement_of(name)));
            const auto made = [&] {
                const nb::gil_scoped_release released;
                return make_plan(*topology, volumes, settings, chosen);
            };
            const Plan plan = take(made());
            nb::list partitions;
            for (const PlannedPartition& part : plan.partitions)
                partitions.append(partition_dict(part));
            nb::list all;
            for (const PlannedPlacement& planned : plan.placements)
                all.append(placement_dict(planned, ranks_per_node));
            nb::list of_nodes;
            for (const std::uint32_t part : plan.partition_of_node)
                of_nodes.append(part == kNoPartition ? nb::object(nb::none()) : nb::object(nb::int_(part)));
            nb::dict d;
            d["topology"] = topology_dict(*topology);
            d["ranks"] = plan.ranks;
            d["files"] = plan.files;
            d["bytes"] = plan.bytes;
            d["partitions"] = partitions;
            d["placements"] = all;
            d["partition_of_node"] = of_nodes;
            return d;
        },
        "topology"_a, "nodes"_a, "volumes"_a, "ranks_per_node"_a, "aggregators"_a, "nodes_per_file"_a,
        "layout"_a, "item_bytes"_a, "block"_a, "placements"_a, "seed"_a);
}

}  // namespace twinrun
