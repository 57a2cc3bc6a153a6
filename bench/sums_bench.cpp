// What sums of digests add to the digests of a part of a larger array, one thread, data in memory: whole planes, rows of the
// global array that are cut short, and particles by ID. Compare lines of one run:
//     bench_sums --benchmark_enable_random_interleaving --benchmark_repetitions=9 --benchmark_report_aggregates_only
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sketch/build.hpp"

namespace twinrun {

namespace {

using Shape = std::vector<std::uint64_t>;
using Ids = std::shared_ptr<const std::vector<std::uint64_t>>;

std::uint64_t scalars() { return std::getenv("BENCHMARK_SMOKE") != nullptr ? 1U << 15 : 1U << 23; }

template <class T>
const std::vector<T>& data() {
    static const std::vector<T> values = [] {
        std::mt19937_64 random(20261122);
        std::vector<T> x(scalars());
        for (T& value : x)
            value = static_cast<T>(static_cast<std::int64_t>(random())) * static_cast<T>(0x1p-62);
        return x;
    }();
    return values;
}

enum class Kind { alone, planes, rows_of_64, rows_of_8, sorted_ids, shuffled_ids };

FieldPlan plan_of(Kind kind) {
    const std::uint64_t n = scalars();
    FieldPlan plan;
    plan.name = "x";
    switch (kind) {
        case Kind::alone: plan.shape = {n}; break;
        case Kind::planes:
            plan.shape = {n / 4096, 4096};
            plan.global_shape = {n / 1024, 4096};
            plan.global_offset = {n / 4096, 0};
            break;
        case Kind::rows_of_64:
            plan.shape = {n / 64, 64};
            plan.global_shape = {n / 64, 512};
            plan.global_offset = {0, 64};
            break;
        case Kind::rows_of_8:
            plan.shape = {n / 8, 8};
            plan.global_shape = {n / 8, 4096};
            plan.global_offset = {0, 8};
            break;
        case Kind::sorted_ids:
        case Kind::shuffled_ids:
            plan.shape = {n / 4, 4};
            plan.key = "id";
            break;
    }
    return plan;
}

// Of a quarter of all particles, as one of four ranks has them.
Ids ids_of(Kind kind) {
    if (kind != Kind::sorted_ids && kind != Kind::shuffled_ids) return nullptr;
    std::mt19937_64 random(7);
    std::vector<std::uint64_t> ids(scalars());
    std::iota(ids.begin(), ids.end(), std::uint64_t{1});
    std::shuffle(ids.begin(), ids.end(), random);
    ids.resize(scalars() / 4);
    if (kind == Kind::sorted_ids) std::sort(ids.begin(), ids.end());
    return std::make_shared<const std::vector<std::uint64_t>>(std::move(ids));
}

template <class T>
void digests(benchmark::State& state, DType dtype, Tolerance tolerance, Kind kind) {
    FieldPlan plan = plan_of(kind);
    plan.dtype = dtype;
    plan.tolerance = tolerance;
    const auto field = plan_field(std::move(plan));
    if (!field) return state.SkipWithError(field.error().message.c_str());
    const Ids ids = ids_of(kind);
    const std::vector<T>& x = data<T>();
    std::vector<std::byte> residues;
    for (auto _ : state) {
        FieldDigests made(*field.operator->(), false, false, ids);
        for (std::uint64_t s = 0; s < made.slices(); ++s) {
            residues.resize(made.residue_bytes(s));
            made.make(s, dense_view(dtype, x.data() + made.first_item(s)), residues.data());
        }
        benchmark::DoNotOptimize(made.bytes());
    }
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * x.size() * sizeof(T)));
}

const bool kRegistered = [] {
    const std::vector<std::pair<const char*, Tolerance>> rules = {
        {"atol", {1e-6, 0}}, {"rtol", {0, 1e-5}}, {"exact", {0, 0}}};
    const std::vector<std::pair<const char*, Kind>> kinds = {
        {"alone", Kind::alone},           {"planes", Kind::planes},
        {"rows of 64", Kind::rows_of_64}, {"rows of 8", Kind::rows_of_8},
        {"sorted IDs", Kind::sorted_ids}, {"shuffled IDs", Kind::shuffled_ids}};
    for (const auto& [rule, tolerance] : rules) {
        for (const auto& [name, kind] : kinds) {
            const std::string label = std::string(rule) + "/" + name;
            benchmark::RegisterBenchmark(("f64/" + label).c_str(), digests<double>, DType::f64, tolerance,
                                         kind);
            benchmark::RegisterBenchmark(("f32/" + label).c_str(), digests<float>, DType::f32, tolerance,
                                         kind);
        }
    }
    return true;
}();

}  // namespace

}  // namespace twinrun

BENCHMARK_MAIN();
