// Metadata from an array in memory with all cores, as capture builds it, beside what these cores can read from memory.
// bench/compare_bench.py runs it with --benchmark_enable_random_interleaving, so that all lines share the machine's moods.
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <sys/mman.h>

#include <cstdlib>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "sketch/build.hpp"

namespace twinrun {

namespace {

// Larger than any cache: some servers have 260 MiB of L3.
std::size_t data_bytes() { return std::getenv("BENCHMARK_SMOKE") != nullptr ? 8U << 20 : 1U << 30; }

// N(0, 1), as the comparison's cases are, on huge pages, as numpy asks for them for its arrays.
std::span<const float> data() {
    static const std::span<const float> values = [] {
        constexpr std::size_t kHugePage = 2 << 20;
        auto* x = static_cast<float*>(std::aligned_alloc(kHugePage, data_bytes()));
        if (x == nullptr) std::abort();
        madvise(x, data_bytes(), MADV_HUGEPAGE);
        std::mt19937 generator(20241202);
        std::normal_distribution<float> normal;
        constexpr std::size_t kDrawn = 1 << 20;
        const std::size_t count = data_bytes() / sizeof(float);
        for (std::size_t i = 0; i < count; ++i) {
            // The same values again in another order: drawing all of them would take longer than the benchmark.
            x[i] = i < kDrawn ? normal(generator) : x[(i * 2654435761U) % kDrawn];
        }
        return std::span<const float>(x, count);
    }();
    return values;
}

// Sum of 64-bit words. Two streams: more than one keeps more prefetchers busy, and four were slower on a Sapphire Rapids.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
std::uint64_t
read_words(const std::uint64_t* words, std::size_t count) {
    constexpr std::size_t kWide = 32;
    const std::size_t half = count / 2 / kWide * kWide;
    std::uint64_t first[kWide] = {};
    std::uint64_t second[kWide] = {};
    for (std::size_t i = 0; i < half; i += kWide) {
        for (std::size_t j = 0; j < kWide; ++j) {
            first[j] += words[i + j];
            second[j] += words[half + i + j];
        }
    }
    std::uint64_t all = 0;
    for (std::size_t j = 0; j < kWide; ++j)
        all += first[j] + second[j];
    return all;
}

void memory_read(benchmark::State& state) {
    const std::span<const float> x = data();
    const auto threads = static_cast<std::size_t>(state.range(0));
    const std::size_t words = x.size() / 2;
    const auto* from = reinterpret_cast<const std::uint64_t*>(x.data());
    for (auto _ : state) {
        std::vector<std::jthread> team;
        const std::size_t part = words / threads;
        for (std::size_t t = 1; t < threads; ++t) {
            team.emplace_back([=] { benchmark::DoNotOptimize(read_words(from + t * part, part)); });
        }
        benchmark::DoNotOptimize(read_words(from, part));
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(x.size() * sizeof(float)));
}

void build(benchmark::State& state, DigestKind kind, unsigned bits) {
    const std::span<const float> x = data();
    StreamOptions options;
    options.threads = static_cast<int>(state.range(0));
    FieldPlan plan;
    plan.name = "x";
    plan.shape = {x.size()};
    plan.tolerance = {1e-3, 0};
    plan.residue_bits = bits;
    plan.kind = kind;
    auto field = plan_field(plan);
    if (!field) {
        state.SkipWithError(field.error().message.c_str());
        return;
    }
    MemorySource source(DType::f32, x.size(), x.data(), sizeof(float), false);
    BuiltField built;  // its memory is kept, as by a program that captures step after step
    for (auto _ : state) {
        const auto done = build_in_memory(*field, source, options, built);
        if (!done) {
            state.SkipWithError(done.error().message.c_str());
            return;
        }
        benchmark::DoNotOptimize(built.tree.data());
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(x.size() * sizeof(float)));
}

void register_all() {
    const int all = worker_count({});
    std::vector<std::int64_t> teams = {1};
    if (all > 1) teams.push_back(all);
    for (const std::int64_t threads : teams) {
        const auto add = [&](const char* name, auto function) {
            benchmark::RegisterBenchmark(name, function)
                ->Arg(threads)
                ->ArgName("threads")
                ->UseRealTime()
                ->Unit(benchmark::kMillisecond);
        };
        add("memory_read", memory_read);
        for (const unsigned bits : {0U, 2U, 4U}) {
            const std::string name = "build/linear_" + std::to_string(bits);
            add(name.c_str(), [bits](benchmark::State& state) { build(state, DigestKind::linear, bits); });
        }
        add("build/published", [](benchmark::State& state) { build(state, DigestKind::published, 0); });
    }
}

}  // namespace

}  // namespace twinrun

int main(int argc, char** argv) {
    // Freed buffers are kept: a program that captures step after step reuses them too.
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    twinrun::register_all();
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
