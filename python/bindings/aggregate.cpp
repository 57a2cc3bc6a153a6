// Aggregation: topologies and the planner. Nothing here needs MPI.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "aggregate/plan/overlap.hpp"
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

// A node that is a core of a host. Levels that hwloc did not say are none.
struct PlanPlace {
    std::uint32_t host;
    InnerPlace inner;

    [[nodiscard]] std::optional<std::uint32_t> part(std::size_t level) const {
        return inner.parts[level] == InnerPlace::kAny ? std::nullopt : std::optional(inner.parts[level]);
    }
};

struct PlanTopology {
    std::string name;
    std::uint32_t nodes;
    std::uint32_t gateways;
    std::vector<std::uint32_t> gateway_of;
    std::vector<std::uint32_t> bridges;
    std::vector<PlanPlace> places;
};

PlanTopology plan_topology(const Topology& t) {
    PlanTopology made{t.name(), t.nodes(), t.gateways(), {}, {}, {}};
    for (std::uint32_t node = 0; node < t.nodes(); ++node) {
        const InnerPlace inner = t.inner_place(node);
        if (inner != InnerPlace()) made.places.push_back({t.host_of(node), inner});
        made.gateway_of.push_back(t.gateway_of(node));
        if (t.bridge(node)) made.bridges.push_back(node);
    }
    return made;
}

struct PlanAggregator {
    std::uint32_t rank;
    std::uint32_t node;
    std::uint32_t gateway;
    double gather;
    double write;
};

struct PyPlan {
    PlanTopology topology;
    Plan plan;
    std::uint32_t ranks_per_node;

    [[nodiscard]] std::vector<std::optional<std::uint32_t>> partition_of_node() const {
        std::vector<std::optional<std::uint32_t>> of_nodes;
        for (const std::uint32_t part : plan.partition_of_node)
            of_nodes.push_back(part == kNoPartition ? std::nullopt : std::optional(part));
        return of_nodes;
    }
};

struct PyPlacement {
    PlannedPlacement planned;
    std::uint32_t ranks_per_node;

    [[nodiscard]] std::vector<PlanAggregator> aggregators() const {
        std::vector<PlanAggregator> made;
        for (const Election& election : planned.elections) {
            made.push_back({election.rank, election.rank / ranks_per_node, election.gateway,
                            static_cast<double>(election.cost.gather),
                            static_cast<double>(election.cost.write)});
        }
        return made;
    }
};

void define_plan(nb::module_& m) {
    nb::class_<PlanPlace>(m, "PlanPlace", "A node that is a core: None where hwloc does not say.")
        .def_ro("host", &PlanPlace::host)
        .def_prop_ro("package", [](const PlanPlace& self) { return self.part(0); })
        .def_prop_ro("numa", [](const PlanPlace& self) { return self.part(1); })
        .def_prop_ro("cache", [](const PlanPlace& self) { return self.part(2); })
        .def_prop_ro("core", [](const PlanPlace& self) { return self.part(3); });
    nb::class_<PlanTopology>(m, "PlanTopology", "The model of a machine.")
        .def_ro("name", &PlanTopology::name)
        .def_ro("nodes", &PlanTopology::nodes)
        .def_ro("gateways", &PlanTopology::gateways)
        .def_ro("gateway_of", &PlanTopology::gateway_of, "By node.")
        .def_ro("bridges", &PlanTopology::bridges, "Nodes.")
        .def_ro("places", &PlanTopology::places, "By node, where nodes are cores; else empty.");
    using P = PlannedPartition;
    nb::class_<P>(m, "PlannedPartition")
        .def_ro("file", &P::file)
        .def_ro("number", &P::number, "In the file.")
        .def_ro("offset", &P::offset)
        .def_ro("bytes", &P::bytes)
        .def_prop_ro("ranks", [](const P& self) { return self.contributions.size(); })
        .def_prop_ro("first_rank", [](const P& self) { return self.contributions.front().rank; })
        .def_prop_ro("last_rank", [](const P& self) { return self.contributions.back().rank; })
        .def_ro("nodes", &P::nodes)
        .def_ro("gateway", &P::gateway);
    nb::class_<PlanAggregator>(m, "PlanAggregator",
                               "Of a partition: who aggregates, and the predicted seconds.")
        .def_ro("rank", &PlanAggregator::rank)
        .def_ro("node", &PlanAggregator::node)
        .def_ro("gateway", &PlanAggregator::gateway)
        .def_ro("gather", &PlanAggregator::gather)
        .def_ro("write", &PlanAggregator::write);
    nb::class_<PyPlacement>(m, "PlannedPlacement")
        .def_prop_ro("placement",
                     [](const PyPlacement& self) { return placement_name(self.planned.placement); })
        .def_prop_ro("sum", [](const PyPlacement& self) { return self.planned.prediction.sum; })
        .def_prop_ro("most", [](const PyPlacement& self) { return self.planned.prediction.most; })
        .def_prop_ro("seconds", [](const PyPlacement& self) { return self.planned.prediction.seconds; })
        .def_prop_ro("aggregators", &PyPlacement::aggregators, "By partition.");
    nb::class_<PyPlan>(m, "AggregationPlan")
        .def_ro("topology", &PyPlan::topology)
        .def_prop_ro("ranks", [](const PyPlan& self) { return self.plan.ranks; })
        .def_prop_ro("files", [](const PyPlan& self) { return self.plan.files; })
        .def_prop_ro("bytes", [](const PyPlan& self) { return self.plan.bytes; })
        .def_prop_ro("partitions", [](const PyPlan& self) { return self.plan.partitions; })
        .def_prop_ro("placements",
                     [](const PyPlan& self) {
                         std::vector<PyPlacement> made;
                         for (const PlannedPlacement& planned : self.plan.placements)
                             made.push_back({planned, self.ranks_per_node});
                         return made;
                     })
        .def_prop_ro("partition_of_node", &PyPlan::partition_of_node);
}

}  // namespace

void define_aggregation(nb::module_& m) {
    define_plan(m);
    m.def(
        "make_volumes",
        [](const std::string& kind, std::uint32_t ranks, std::uint64_t mean, std::uint64_t unit,
           double spread, std::uint32_t every, std::uint64_t seed) {
            const VolumeModel model{take(volume_kind_of(kind)), mean, unit, spread, every, seed};
            return take(volumes_of(model, ranks));
        },
        "kind"_a, "ranks"_a, "mean"_a, "unit"_a, "spread"_a, "every"_a, "seed"_a);
    m.def(
        "first_overlap",
        [](const std::vector<SetNumbers>& sets) {
            auto looked = [&] {
                const nb::gil_scoped_release released;
                return first_overlap(std::span<const SetNumbers>(sets));
            }();
            return take(std::move(looked));
        },
        "sets"_a,
        "A byte that two strided sets (offset, width, count, stride) have in common; None: there is none.");
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
            return PyPlan{plan_topology(*topology), take(made()), ranks_per_node};
        },
        "topology"_a, "nodes"_a, "volumes"_a, "ranks_per_node"_a, "aggregators"_a, "nodes_per_file"_a,
        "layout"_a, "item_bytes"_a, "block"_a, "placements"_a, "seed"_a);
}

}  // namespace twinrun
