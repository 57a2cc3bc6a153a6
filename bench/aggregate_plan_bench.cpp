// Electing aggregators: all partitions of a file at once, on one core. The goal: 16,384 ranks (1024 nodes of a 5D torus, 16 ranks
// each) in 64 partitions in less than 50 ms. Volumes: uniform (many ties, the hardest to prune), lognormal.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "aggregate/plan/exits.hpp"
#include "aggregate/plan/planner.hpp"

namespace {

using namespace twinrun;

struct Case {
    std::shared_ptr<const Topology> topology;
    std::vector<std::vector<Contribution>> partitions;
};

Case make_case(const char* description, PlanLayout layout, VolumeModel::Kind kind,
               std::uint32_t aggregators) {
    constexpr std::uint32_t kRanksPerNode = 16;
    Case made;
    made.topology = *make_topology(description, 0);
    const std::uint32_t ranks = made.topology->nodes() * kRanksPerNode;
    PlanSettings settings{.ranks_per_node = kRanksPerNode, .aggregators = aggregators, .layout = layout};
    settings.item_bytes = {4, 4, 4, 4, 4, 4, 4, 8, 2};
    const auto volumes = *volumes_of({.kind = kind, .mean = 950'000, .unit = 38, .spread = 1.5}, ranks);
    auto plan = *make_plan(*made.topology, volumes, settings, {});
    for (PlannedPartition& part : plan.partitions)
        made.partitions.push_back(std::move(part.contributions));
    return made;
}

void elections(benchmark::State& state, const char* description, PlanLayout layout, VolumeModel::Kind kind,
               Placement placement) {
    const bool smoke = std::getenv("BENCHMARK_SMOKE") != nullptr;
    const Case made = make_case(smoke ? "torus:2x2x2" : description, layout, kind, smoke ? 4 : 64);
    for (auto _ : state) {
        const std::vector<Exit> exits = exits_of(*made.topology, placement, made.partitions);
        benchmark::DoNotOptimize(elect(*made.topology, placement, made.partitions, exits, 1));
    }
    state.counters["partitions"] = static_cast<double>(made.partitions.size());
    std::size_t contributions = 0;
    for (const auto& all : made.partitions)
        contributions += all.size();
    state.counters["contributions"] = static_cast<double>(contributions);
}

constexpr const char* kTorus = "torus:4x4x4x8x2";
constexpr const char* kDragonfly = "dragonfly:8x16x8";
constexpr const char* kFatTree = "fattree:16,3";

#define ELECTION(machine, layout, volumes, placement)                                                       \
    BENCHMARK_CAPTURE(elections, machine##_##layout##_##volumes##_##placement, machine, PlanLayout::layout, \
                      VolumeModel::Kind::volumes, Placement::placement)                                     \
        ->Unit(benchmark::kMillisecond)
ELECTION(kTorus, records, uniform, cost);
ELECTION(kTorus, records, lognormal, cost);
ELECTION(kTorus, variables, uniform, cost);
ELECTION(kTorus, variables, lognormal, cost);
ELECTION(kTorus, interleaved, uniform, cost);
ELECTION(kTorus, interleaved, lognormal, cost);
ELECTION(kTorus, interleaved, uniform, worst);
ELECTION(kTorus, interleaved, lognormal, worst);
ELECTION(kDragonfly, variables, lognormal, cost);
ELECTION(kDragonfly, interleaved, uniform, cost);
ELECTION(kFatTree, variables, lognormal, cost);
ELECTION(kFatTree, interleaved, uniform, cost);

// Volumes, partitions, the election of all placements and their predictions.
void plan(benchmark::State& state) {
    const bool smoke = std::getenv("BENCHMARK_SMOKE") != nullptr;
    const auto topology = *make_topology(smoke ? "torus:2x2x2" : "torus:8x8x8x8x2", 0);
    const std::uint32_t ranks = topology->nodes() * 16;
    PlanSettings settings{.ranks_per_node = 16, .aggregators = 512, .layout = PlanLayout::variables};
    settings.item_bytes = {4, 4, 4, 4, 4, 4, 4, 8, 2};
    constexpr std::array kAll{Placement::cost, Placement::rank, Placement::bridge, Placement::random,
                              Placement::worst};
    for (auto _ : state) {
        const auto volumes =
            *volumes_of({.kind = VolumeModel::Kind::lognormal, .mean = 950'000, .unit = 38}, ranks);
        benchmark::DoNotOptimize(make_plan(*topology, volumes, settings, kAll));
    }
    state.counters["ranks"] = ranks;
}
BENCHMARK(plan)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
