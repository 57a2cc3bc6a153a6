// What one and two threads get out of the kernels, beside what they can read and copy: arrays larger than any
// cache, one process. On a machine with neighbours run it with --benchmark_enable_random_interleaving
// --benchmark_repetitions=9, and compare medians with each other only. Rates are of stored data: of one side
// where two are compared.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "difference/difference.hpp"
#include "digest/digest.hpp"
#include "platform/float_environment.hpp"

namespace twinrun {

namespace {

// Some servers have 260 MiB of L3.
std::size_t data_bytes() { return std::getenv("BENCHMARK_SMOKE") != nullptr ? 4U << 20 : 1U << 30; }

enum class Data {
    plain,
    noisy,
    masked
};  // noisy: plain and a little noise; masked: fill values over a third of it

template <class T>
std::vector<T> make_data(Data kind) {
    std::vector<T> x(data_bytes() / sizeof(T));
    std::mt19937 random(20241202);
    std::uniform_real_distribution<double> uniform(-4, 4);
    constexpr std::size_t kDrawn = 1 << 18;
    for (std::size_t i = 0; i < x.size(); ++i) {
        // The same values again in another order: drawing all of them would take longer than the benchmark.
        x[i] = i < kDrawn ? static_cast<T>(uniform(random)) : x[(i * 2654435761U) % kDrawn];
    }
    if (kind == Data::noisy) {
        for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] += static_cast<T>(1e-4 * static_cast<double>((i * 2654435761U >> 7) % 1024) / 1024);
        }
    }
    if (kind == Data::masked) {
        for (std::size_t i = 0; i < x.size(); ++i) {
            if (i / 700 % 3 == 0)
                x[i] = i / 2100 % 2 == 0 ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(1e36);
        }
    }
    return x;
}

template <class T>
const std::vector<T>& data(Data kind) {
    static const std::vector<T> plain = make_data<T>(Data::plain);
    if (kind == Data::plain) return plain;
    if (kind == Data::noisy) {
        static const std::vector<T> noisy = make_data<T>(Data::noisy);
        return noisy;
    }
    static const std::vector<T> masked = make_data<T>(Data::masked);
    return masked;
}

// The stretch of this thread, in blocks of 1 MiB.
struct Part {
    std::size_t first;
    std::size_t count;
};
template <class T>
Part part_of(const benchmark::State& state, const std::vector<T>& x) {
    constexpr std::size_t kUnit = (1 << 20) / sizeof(T);
    const std::size_t units = x.size() / kUnit;
    const auto index = static_cast<std::size_t>(state.thread_index());
    const auto threads = static_cast<std::size_t>(state.threads());
    const std::size_t first = units * index / threads;
    return {first * kUnit, (units * (index + 1) / threads - first) * kUnit};
}
void count_bytes(benchmark::State& state, std::size_t bytes) {
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

// ---- the ceiling ----

// Sum of 64-bit words, in four streams: more than one stream keeps more prefetchers busy.
std::uint64_t read_words(const std::uint64_t* words, std::size_t count) {
    constexpr std::size_t kStreams = 4;
    constexpr std::size_t kWide = 8;
    const std::size_t part = count / kStreams / kWide * kWide;
    std::uint64_t sums[kStreams][kWide] = {};
    for (std::size_t i = 0; i < part; i += kWide) {
        for (std::size_t s = 0; s < kStreams; ++s) {
            for (std::size_t j = 0; j < kWide; ++j)
                sums[s][j] += words[s * part + i + j];
        }
    }
    std::uint64_t all = 0;
    for (const auto& stream : sums) {
        for (const std::uint64_t sum : stream)
            all += sum;
    }
    return all;
}

void memory_read(benchmark::State& state) {
    const std::vector<float>& x = data<float>(Data::plain);
    const Part part = part_of(state, x);
    const auto* from = reinterpret_cast<const std::uint64_t*>(x.data() + part.first);
    for (auto _ : state)
        benchmark::DoNotOptimize(read_words(from, part.count / 2));
    count_bytes(state, part.count * sizeof(float));
}

void memory_copy(benchmark::State& state) {
    const std::vector<float>& x = data<float>(Data::plain);
    const Part part = part_of(state, x);
    std::vector<float> copy(part.count);
    for (auto _ : state) {
        std::memcpy(copy.data(), x.data() + part.first, part.count * sizeof(float));
        benchmark::ClobberMemory();
    }
    count_bytes(state, part.count * sizeof(float));
}

// ---- digests ----

template <class T>
constexpr DType dtype_of() {
    return sizeof(T) == 4 ? DType::f32 : DType::f64;
}

template <class T>
void digest(benchmark::State& state, Backend backend, const DigestSettings& settings, Data kind) {
    const std::vector<T>& x = data<T>(kind);
    const Part part = part_of(state, x);
    Digester digester(settings, dtype_of<T>(), backend);
    std::vector<ChunkDigest> digests(part.count / digester.shape().chunk_scalars);
    std::vector<std::byte> residues(
        chunk_residue_bytes(dtype_of<T>(), part.count, settings.rule.residue_bits) + 1);
    const ElementView view = dense_view(dtype_of<T>(), x.data());
    for (auto _ : state) {
        digester.chunks(view, part.first, part.count, digests.data(), residues.data(), nullptr);
        benchmark::ClobberMemory();
    }
    count_bytes(state, part.count * sizeof(T));
}

// Numbers of 16 bits are the upper halves of floats, or what is nearest to them; scalars of other types are made of the bits of
// doubles.
const std::vector<std::uint16_t>& halves(DType scalar) {
    const auto make = [](bool binary16) {
        const std::vector<float>& from = data<float>(Data::plain);
        std::vector<std::uint16_t> x(2 * from.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
            const auto bits = std::bit_cast<std::uint32_t>(from[i / 2] + static_cast<float>(i % 2));
            // Below 8, and not denormal in binary16: the exponent's bias is another one.
            const std::uint32_t small =
                std::bit_cast<float>(bits & 0x7FFFFFFF) < 0x1p-14F ? 112U << 23 : bits;
            x[i] = static_cast<std::uint16_t>(
                binary16 ? (bits >> 16 & 0x8000) | ((small & 0x7FFFFFFF) - (112U << 23)) >> 13 : bits >> 16);
        }
        return x;
    };
    static const std::vector<std::uint16_t> bf16 = make(false);
    static const std::vector<std::uint16_t> f16 = make(true);
    return scalar == DType::bf16 ? bf16 : f16;
}

void digest_stored(benchmark::State& state, Backend backend, const DigestSettings& settings, DType scalar) {
    const bool is_half = is_floating(scalar);
    const void* const memory = is_half ? static_cast<const void*>(halves(scalar).data())
                                       : static_cast<const void*>(data<double>(Data::plain).data());
    const Part part = part_of(state, data<double>(Data::plain));
    const std::size_t each = sizeof(double) / item_bytes(scalar);
    Digester digester(settings, scalar, backend);
    std::vector<ChunkDigest> digests(part.count * each / digester.shape().chunk_scalars);
    std::vector<std::byte> residues(
        chunk_residue_bytes(scalar, part.count * each, settings.rule.residue_bits) + 1);
    const ElementView view = dense_view(scalar, memory);
    for (auto _ : state) {
        digester.chunks(view, part.first * each, part.count * each, digests.data(), residues.data(), nullptr);
        benchmark::ClobberMemory();
    }
    count_bytes(state, part.count * sizeof(double));
}

template <class T>
void sketch(benchmark::State& state, Backend backend, unsigned bits) {
    DigestSettings settings;
    settings.tolerance = {1e-3, 0};
    settings.rule = *cell_rule(settings.tolerance, bits).operator->();
    const Part part = part_of(state, data<T>(Data::plain));
    Digester digester(settings, dtype_of<T>(), backend);
    const ChunkShape& shape = digester.shape();
    std::vector<ChunkDigest> digests[2];
    std::vector<std::byte> residues[2];
    for (const Data kind : {Data::plain, Data::noisy}) {
        const auto side = static_cast<std::size_t>(kind == Data::noisy);
        digests[side].resize(part.count / shape.chunk_scalars);
        residues[side].resize(chunk_residue_bytes(dtype_of<T>(), part.count, bits));
        digester.chunks(dense_view(dtype_of<T>(), data<T>(kind).data()), part.first, part.count,
                        digests[side].data(), residues[side].data(), nullptr);
    }
    const DigestKernels& kernels = digest_kernels(backend);
    std::size_t proven = 0;
    for (auto _ : state) {
        proven = 0;
        for (std::size_t i = 0; i < digests[0].size(); ++i) {
            const std::size_t at = i * shape.residue_bytes_per_chunk;
            proven += check_sketch(kernels, shape, shape.chunk_scalars, bits, settings.rule.widest,
                                   digests[0][i].fine, digests[1][i].fine, residues[0].data() + at,
                                   residues[1].data() + at)
                              .proven
                          ? 1
                          : 0;
        }
    }
    state.counters["proven"] =
        benchmark::Counter(static_cast<double>(proven) / static_cast<double>(digests[0].size()),
                           benchmark::Counter::kAvgThreads);
    count_bytes(state, part.count * sizeof(T));
}

// ---- differences ----

template <class T>
void difference(benchmark::State& state, Backend backend, const Tolerance& tolerance, Data a_kind,
                Data b_kind) {
    const std::vector<T>& a = data<T>(a_kind);
    const std::vector<T>& b = data<T>(b_kind);
    const Part part = part_of(state, a);
    DifferenceRule rule;
    rule.tolerance = tolerance;
    std::uint64_t different = 0;
    for (auto _ : state) {
        DifferenceStats stats;
        compare_elements(difference_kernels(backend), dense_view(dtype_of<T>(), a.data()),
                         dense_view(dtype_of<T>(), b.data()), part.first, part.count, part.first, rule,
                         &stats);
        different = stats.different;
        benchmark::DoNotOptimize(stats);
    }
    state.counters["different"] = benchmark::Counter(
        static_cast<double>(different) / static_cast<double>(part.count), benchmark::Counter::kAvgThreads);
    count_bytes(state, part.count * sizeof(T));
}

// ---- what runs ----

template <class Run>
void add(const std::string& name, Run run) {
    for (const int threads : {1, 2}) {
        benchmark::RegisterBenchmark(name.c_str(), run)
            ->Threads(threads)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
    }
}

template <class T>
void add_type(const std::string& type, const std::string& backend_text, Backend backend) {
    struct Rule {
        const char* name;
        Tolerance tolerance;
        std::vector<unsigned> bits;
    };
    const std::vector<Rule> rules = {{"equal", {0, 0}, {0}},
                                     {"tokens", {0, 0}, {0}},
                                     {"absolute", {1e-3, 0}, {0, 2, 4}},
                                     {"relative", {1e-6, 1e-4}, {0, 2, 4}}};
    for (const Rule& rule : rules) {
        for (const unsigned bits : rule.bits) {
            for (const std::uint32_t chunk : {4096U, 65536U}) {
                DigestSettings settings;
                settings.tolerance = rule.tolerance;
                settings.rule =
                    (std::strcmp(rule.name, "tokens") == 0 ? cell_rule(rule.tolerance, bits)
                                                           : cell_rule(rule.tolerance, bits, dtype_of<T>()))
                        .value();
                settings.chunk_bytes = chunk;
                const std::string name = "digest/" + type + '/' + rule.name +
                                         "/bits:" + std::to_string(bits) + "/chunk:" + std::to_string(chunk) +
                                         '/' + backend_text;
                add(name, [=](benchmark::State& s) { digest<T>(s, backend, settings, Data::plain); });
                if (chunk == 4096 && bits == 4) {
                    add("masked_" + name,
                        [=](benchmark::State& s) { digest<T>(s, backend, settings, Data::masked); });
                }
            }
        }
    }
    for (const unsigned bits : {2U, 4U}) {
        add("sketch/" + type + "/bits:" + std::to_string(bits) + '/' + backend_text,
            [=](benchmark::State& s) { sketch<T>(s, backend, bits); });
    }
    struct Pair {
        const char* name;
        Tolerance tolerance;
        Data a;
        Data b;
    };
    const std::vector<Pair> pairs = {{"identical", {1e-3, 0}, Data::plain, Data::plain},
                                     {"identical_masked", {1e-3, 0}, Data::masked, Data::masked},
                                     {"noise_within", {1e-3, 0}, Data::plain, Data::noisy},
                                     {"noise_half_over", {5e-5, 0}, Data::plain, Data::noisy},
                                     {"noise_relative", {1e-6, 1e-3}, Data::plain, Data::noisy},
                                     {"noise_equal_wanted", {0, 0}, Data::plain, Data::noisy}};
    for (const Pair& pair : pairs) {
        add("difference/" + type + '/' + pair.name + '/' + backend_text,
            [=](benchmark::State& s) { difference<T>(s, backend, pair.tolerance, pair.a, pair.b); });
    }
}

void add_stored(const std::string& backend_text, Backend backend) {
    for (const DType scalar :
         {DType::i64, DType::i32, DType::i16, DType::u8, DType::boolean, DType::bf16, DType::f16}) {
        const auto add_rule = [&](const std::string& name, const Tolerance& tolerance, unsigned bits,
                                  const CellRule& rule) {
            DigestSettings settings;
            settings.tolerance = tolerance;
            settings.rule = rule;
            add("digest/" + std::string(dtype_name(scalar)) + '/' + name + "/bits:" + std::to_string(bits) +
                    "/chunk:4096/" + backend_text,
                [=](benchmark::State& s) { digest_stored(s, backend, settings, scalar); });
        };
        add_rule("tokens", {}, 0, CellRule{});
        add_rule("equal", {}, 0, cell_rule({0, 0}, 0, scalar).value());
        if (is_floating(scalar)) add_rule("absolute", {1e-3, 0}, 4, cell_rule({1e-3, 0}, 4, scalar).value());
    }
}

void add_all() {
    add("memory/read", memory_read);
    add("memory/copy", memory_copy);
    DigestSettings published;
    published.kind = DigestKind::published;
    published.tolerance = {1e-3, 0};
    add("digest/f32/published/chunk:4096",
        [=](benchmark::State& s) { digest<float>(s, Backend::portable, published, Data::plain); });
    add("digest/f64/published/chunk:4096",
        [=](benchmark::State& s) { digest<double>(s, Backend::portable, published, Data::plain); });
    for (const Backend backend : {Backend::portable, Backend::avx2, Backend::avx512}) {
        if (!backend_available(backend)) continue;
        const std::string text(backend_name(backend));
        add_type<float>("f32", text, backend);
        add_type<double>("f64", text, backend);
        add_stored(text, backend);
    }
}

}  // namespace

}  // namespace twinrun

int main(int argc, char** argv) {
    twinrun::add_all();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
