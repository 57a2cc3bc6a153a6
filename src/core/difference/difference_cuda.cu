// Element by element on a device: the launches. The kernels are in difference_kernels.cuh.
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/gpu.hpp"
#include "difference/difference_device.hpp"
#include "difference/difference_kernels.cuh"

namespace twinrun {

namespace {

unsigned most_blocks(int device) {
    int multiprocessors = 0;
    if (cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        multiprocessors = 128;
    }
    return static_cast<unsigned>(multiprocessors) * kMostBlocksEach;
}

// The kernels take 2^-1074 for an atol of 0, so that d = 0 never equals what is allowed (which
// would leave a doubt). It changes no verdict where every a - b and rtol |a| are multiples of it:
// not for float64, for which d = 0 is tested; and, as the values of other types are multiples of
// 2^-149, not where rtol is far below any that is meant.
double least_atol(Kind kind, const Tolerance& tolerance) {
    if (kind == Kind::f64 || tolerance.atol != 0) return tolerance.atol;
    return std::numeric_limits<double>::denorm_min();
}
// Whether the tolerance is an absolute one that no rounded difference of two scalars equals.
// float64 differs: its kernels look for such ties.
bool is_absolute(Kind kind, const Tolerance& tolerance) {
    if (tolerance.rtol != 0) return false;
    switch (kind) {
        case Kind::f32:
        case Kind::bf16: {
            // A float64 rounds a difference only where the smaller number is below 2^-28 of the
            // larger one. Then d is the larger one, but for that share.
            const double atol = tolerance.atol;
            if (atol == 0) return true;
            const double beside = std::fabs(atol - static_cast<double>(static_cast<float>(atol)));
            return beside > 0x1p-27 * atol && atol < 0x1p127;
        }
        case Kind::whole: return tolerance.atol < 0x1p53;  // differences below it are exact
        default: return true;                              // so are those of narrow types
    }
}
bool all_exactly(Kind kind, const Tolerance& tolerance) {
    return kind != Kind::f64 && tolerance.rtol != 0 && tolerance.rtol < 0x1p-800;
}

Kind kind_of(DType scalar) {
    switch (scalar) {
        case DType::f32: return Kind::f32;
        case DType::f64: return Kind::f64;
        case DType::i32:
        case DType::u32:
        case DType::i64:
        case DType::u64: return Kind::whole;
        case DType::f16: return Kind::f16;
        case DType::bf16: return Kind::bf16;
        default: return Kind::narrow;
    }
}
// Calls take(a constant of this kind).
template <class Take>
auto with_kind(Kind kind, const Take& take) {
    switch (kind) {
        case Kind::f32: return take(std::integral_constant<Kind, Kind::f32>{});
        case Kind::f64: return take(std::integral_constant<Kind, Kind::f64>{});
        case Kind::f16: return take(std::integral_constant<Kind, Kind::f16>{});
        case Kind::bf16: return take(std::integral_constant<Kind, Kind::bf16>{});
        case Kind::narrow: return take(std::integral_constant<Kind, Kind::narrow>{});
        default: return take(std::integral_constant<Kind, Kind::whole>{});
    }
}
unsigned group_of(Kind kind) {
    return with_kind(kind, [](auto k) { return Stored<k()>::kPairs * kLanes; });
}
unsigned tile_of(Kind kind) { return kTileGroups * group_of(kind); }

bool has_circles(DType scalar, const Measure& measure) {
    if (!is_floating(scalar)) return false;
    for (const double length : measure.period) {
        if (length > 0) return true;
    }
    return false;
}
// Calls take(a constant of the rule). Integers have no measures.
template <class Take>
auto with_rule(DType scalar, const Measure& measure, const Take& take) {
    if (has_circles(scalar, measure)) return take(std::integral_constant<Rule, Rule::circles>{});
    if (!is_floating(scalar) || measure.plain()) return take(std::integral_constant<Rule, Rule::plain>{});
    return take(std::integral_constant<Rule, Rule::steps>{});
}
// Bits of a type's numbers below those of the float that stands for them.
unsigned bits_below(DType scalar) { return scalar == DType::f16 ? 13 : scalar == DType::bf16 ? 16 : 0; }
// Whether the kernels tell such numbers of steps by few operations: they are far below the bits of
// all numbers. More steps are a factor of 2 and above.
bool has_quick_steps(DType scalar, const Measure& measure) {
    const unsigned bits = scalar == DType::f64 ? 52 : scalar == DType::f16 ? 29 : 24;
    return measure.ulps == Measure::kNoUlps || measure.ulps < 1ULL << (bits - bits_below(scalar));
}
Measured measured_of(DType scalar, const Measure& measure) {
    Measured m{};
    m.ulps = measure.ulps;
    if (measure.ulps != Measure::kNoUlps && has_quick_steps(scalar, measure)) {
        m.quick_offset = measure.ulps << bits_below(scalar);
        m.quick_limit = 2 * m.quick_offset;
        m.quick_far = m.quick_offset < 1ULL << (scalar == DType::f64 ? 52 : 23);
    }
    double near = kInfiniteDistance;
    m.components = measure.components;
    bool equal = true;
    for (std::uint32_t c = 0; c < measure.components; ++c) {
        const double length = m.period[c] = measure.period[c];
        equal &= length == measure.period[0];
        if (length > 0 && kHalfWay * length < near) near = kHalfWay * length;
    }
    if (equal) m.components = 1;
    m.near_squared = 0.999 * near * near;
    m.component_stride =
        m.components > 1 ? measure.component_stride : std::numeric_limits<std::uint64_t>::max();
    m.cycles = m.component_stride == 1;
    if (m.components > 1) m.reciprocal = static_cast<std::uint32_t>(((1ULL << 32) - 1) / m.components + 1);
    return m;
}

// How a kernel fits on a device: groups in shared memory a warp, and blocks at once, at most
// most_blocks(). Asked for once: the runtime's answers take longer than a small comparison.
struct Fit {
    unsigned stages;
    unsigned blocks;
};
template <Kind kKind, class Kernel>
DeviceStatus ask_for_fit(int device, Kernel kernel, Fit* fit) {
    int most = 0;
    int each = 0;
    TWR_GPU(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    const bool large = kMostBlocksEach * shared_bytes<kKind>(kMostStages) <= static_cast<std::size_t>(most);
    fit->stages = large ? kMostStages : kLeastStages;
    const std::size_t shared = shared_bytes<kKind>(fit->stages);
    TWR_GPU(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    TWR_GPU(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kThreads, shared));
    if (each == 0)
        return gpu_failure(ErrorCode::unsupported, device,
                           "the device has too little shared memory for comparisons");
    fit->blocks = most_blocks(device) / kMostBlocksEach * static_cast<unsigned>(each);
    return {};
}
// Each kernel has a memory of its own. (Two threads that ask at once get the same answer.)
template <Kind kKind, auto kKernel>
DeviceStatus fit_of(int device, Fit* fit) {
    static std::atomic<std::uint64_t> known[kMostDevices];
    const bool remembered = device < kMostDevices;
    if (remembered) {
        const std::uint64_t answer = known[device].load();
        *fit = {static_cast<unsigned>(answer >> 32), static_cast<unsigned>(answer)};
        if (answer != 0) return {};
    }
    const DeviceStatus status = ask_for_fit<kKind>(device, kKernel, fit);
    if (!status.failed && remembered) known[device] = std::uint64_t{fit->stages} << 32 | fit->blocks;
    return status;
}

// Integers have no other rule.
constexpr bool has_rule(Kind kind, Rule rule) {
    return rule == Rule::plain || (kind != Kind::whole && kind != Kind::narrow);
}
// At most `blocks` blocks, which becomes their number.
template <Rule kRule>
DeviceStatus start_kernel(int device, Kind kind, unsigned* blocks, cudaStream_t queue, const Work& work) {
    return with_kind(kind, [&](auto k) -> DeviceStatus {
        if constexpr (has_rule(k(), kRule)) {
            Fit fit{};
            const DeviceStatus status = fit_of<k(), compare_kernel<k(), kRule>>(device, &fit);
            if (status.failed) return status;
            if (fit.blocks < *blocks) *blocks = fit.blocks;
            Work fitted = work;
            fitted.stages = fit.stages;
            compare_kernel<k(), kRule><<<*blocks, kThreads, shared_bytes<k()>(fit.stages), queue>>>(fitted);
        }
        return {};
    });
}

// The arguments of the kernels for a comparison, except its parts and the places of results.
Work work_of(const DeviceDifference& what) {
    const Kind kind = kind_of(what.scalar);
    const std::uint64_t chunk = what.chunk_scalars == 0 ? 1 : what.chunk_scalars;
    Work work{};
    work.scalar = what.scalar;
    work.nan_equal = what.rule.nan_equal;
    work.exactly = all_exactly(kind, what.rule.tolerance);
    work.atol = what.rule.tolerance.atol;
    work.rtol = what.rule.tolerance.rtol;
    work.least_atol = least_atol(kind, what.rule.tolerance);
    work.absolute = is_absolute(kind, what.rule.tolerance);
    work.chunk_scalars = chunk;
    work.whole_groups = chunk % group_of(kind) == 0;
    work.measured = measured_of(what.scalar, what.rule.measure);
    work.exactly |= is_floating(what.scalar) && !has_quick_steps(what.scalar, what.rule.measure);
    return work;
}

// Scratch on the device: totals, marks of chunks (both cleared), then partials, parts.
struct Layout {
    std::uint64_t chunks = 0;
    std::uint64_t tiles = 0;
    std::uint64_t scalars = 0;
    std::size_t parts = 0;  // those that are not empty
    std::size_t marks_at = 0;
    std::size_t partials_at = 0;
    std::size_t parts_at = 0;
    std::size_t bytes = 0;

    Layout(int device, const DeviceDifference& what, const DevicePart* part, std::size_t n) {
        const unsigned tile = tile_of(kind_of(what.scalar));
        const std::uint64_t chunk = what.chunk_scalars == 0 ? 1 : what.chunk_scalars;
        for (std::size_t i = 0; i < n; ++i) {
            if (part[i].scalars == 0) continue;
            chunks += (part[i].scalars - 1) / chunk + 1;
            tiles += (part[i].scalars - 1) / tile + 1;
            scalars += part[i].scalars;
            ++parts;
        }
        marks_at = device_aligned(sizeof(Totals));
        partials_at = marks_at + device_aligned(chunks);
        parts_at = partials_at + device_aligned(most_blocks(device) * sizeof(Partial));
        bytes = parts_at + device_aligned(parts * sizeof(Part));
    }
};

void scratch(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
             std::size_t* device_bytes, std::size_t* host_bytes) {
    const Layout layout(device, what, parts, n);
    *device_bytes = layout.bytes;
    *host_bytes = device_aligned(layout.parts * sizeof(Part));
}

DeviceStatus compare(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                     DeviceDifferenceResult* result, void* scratch, void* host_scratch, StreamHandle stream) {
    const Layout layout(device, what, parts, n);
    if (layout.parts > std::numeric_limits<std::uint32_t>::max()) {
        return gpu_failure(ErrorCode::invalid_argument, device,
                           "comparison of more than 2^32 stretches in one call");
    }
    TWR_GPU_CURRENT(device);
    const cudaStream_t queue = gpu_stream(stream);
    auto* area = static_cast<std::byte*>(scratch);
    auto* totals = reinterpret_cast<Totals*>(area);
    auto* partials = reinterpret_cast<Partial*>(area + layout.partials_at);
    TWR_GPU(cudaMemsetAsync(area, 0, layout.partials_at, queue));
    unsigned blocks = 0;
    if (layout.tiles != 0) {
        const Kind kind = kind_of(what.scalar);
        const unsigned tile = tile_of(kind);
        const std::uint64_t chunk = what.chunk_scalars == 0 ? 1 : what.chunk_scalars;
        auto* table = static_cast<Part*>(host_scratch);
        std::uint64_t tiles = 0;
        std::uint64_t chunks = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const DevicePart& part = parts[i];
            if (part.scalars == 0) continue;
            *table++ = {static_cast<const std::byte*>(part.a),
                        static_cast<const std::byte*>(part.b),
                        part.scalars,
                        part.index,
                        tiles,
                        chunks};
            tiles += (part.scalars - 1) / tile + 1;
            chunks += (part.scalars - 1) / chunk + 1;
        }
        TWR_GPU(cudaMemcpyAsync(area + layout.parts_at, host_scratch, layout.parts * sizeof(Part),
                                cudaMemcpyHostToDevice, queue));
        Work work = work_of(what);
        work.parts = reinterpret_cast<const Part*>(area + layout.parts_at);
        work.part_count = static_cast<std::uint32_t>(layout.parts);
        work.tiles = tiles;
        work.chunk_differs = reinterpret_cast<std::uint8_t*>(area + layout.marks_at);
        work.totals = totals;
        work.partials = partials;
        const std::uint64_t needed = (tiles - 1) / kWarps + 1;
        blocks = most_blocks(device);
        if (needed < blocks) blocks = static_cast<unsigned>(needed);
        const DeviceStatus status = with_rule(what.scalar, what.rule.measure, [&](auto rule) {
            return start_kernel<rule()>(device, kind, &blocks, queue, work);
        });
        if (status.failed) return status;
        TWR_GPU_LAUNCHED("comparison of elements");
        const std::uint64_t words = device_aligned(chunks) / sizeof(uint4);
        const std::uint64_t counting = (words - 1) / kFinishThreads + 1;
        const unsigned counters = counting < 1024 ? static_cast<unsigned>(counting) : 1024;
        count_chunks<<<counters, kFinishThreads, 0, queue>>>(
            reinterpret_cast<const uint4*>(area + layout.marks_at), words, totals);
        TWR_GPU_LAUNCHED("count of chunks that differ");
    }
    finish<<<1, kFinishThreads, 0, queue>>>(partials, blocks, totals, layout.scalars, result);
    TWR_GPU_LAUNCHED("sum of the comparison of elements");
    return {};
}

// ---- many pairs of arrays ----

// Scratch on the device: totals of each pair, marks of chunks and the number of the next share (all
// cleared), then partials of shares, and what comes from the host: parts, the first share of each,
// shares.
struct PairsLayout {
    std::uint64_t tiles = 0;
    std::uint64_t marks = 0;
    std::uint64_t shares = 0;
    std::uint64_t most_words = 0;  // of marks, of one pair
    std::size_t marks_at = 0;
    std::size_t next_at = 0;
    std::size_t partials_at = 0;
    std::size_t tables_at = 0;
    // From tables_at on, and of the host's scratch.
    std::size_t first_at = 0;
    std::size_t shares_at = 0;
    std::size_t tables_bytes = 0;

    PairsLayout(int device, const DeviceDifference& what, const DevicePart* part, std::size_t n) {
        const unsigned tile = tile_of(kind_of(what.scalar));
        const std::uint64_t chunk = what.chunk_scalars == 0 ? 1 : what.chunk_scalars;
        for (std::size_t i = 0; i < n; ++i) {
            tiles += (part[i].scalars - 1) / tile + 1;
            const std::uint64_t own = marks_of(part[i], chunk);
            marks += own;
            if (own / sizeof(uint4) > most_words) most_words = own / sizeof(uint4);
        }
        each_share(device, what, part, n, [&](const Share&) { ++shares; });
        marks_at = device_aligned(n * sizeof(Totals));
        next_at = marks_at + device_aligned(marks);
        partials_at = next_at + device_aligned(sizeof(std::uint32_t));
        tables_at = partials_at + device_aligned(shares * sizeof(Partial));
        first_at = device_aligned(n * sizeof(Part));
        shares_at = first_at + device_aligned((n + 1) * sizeof(std::uint32_t));
        tables_bytes = shares_at + device_aligned(shares * sizeof(Share));
    }
    // Calls take(share) for each, in order. The first are large, so that a block seldom begins
    // anew; the last are small, so that all blocks end at nearly the same time.
    template <typename Take>
    void each_share(int device, const DeviceDifference& what, const DevicePart* part, std::size_t n,
                    const Take& take) const {
        const unsigned tile = tile_of(kind_of(what.scalar));
        const std::uint64_t parts_of_left = std::uint64_t{most_blocks(device)} * kSharesEach;
        std::uint64_t at = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const std::uint64_t end = at + (part[i].scalars - 1) / tile + 1;
            while (at != end) {
                std::uint64_t size = (tiles - at) / parts_of_left / kWarps * kWarps;
                if (size < kWarps) size = kWarps;
                if (size > kMostShareTiles) size = kMostShareTiles;
                if (size > kWarps ? size + size / 2 >= end - at : size > end - at) size = end - at;
                take(Share{at, static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(i)});
                at += size;
            }
        }
    }
    // Room for the marks of a part's chunks, in words of 16.
    static std::uint64_t marks_of(const DevicePart& part, std::uint64_t chunk) {
        return ((part.scalars - 1) / chunk + sizeof(uint4)) / sizeof(uint4) * sizeof(uint4);
    }
};

void pairs_scratch(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                   std::size_t* device_bytes, std::size_t* host_bytes) {
    const PairsLayout layout(device, what, parts, n);
    *device_bytes = layout.tables_at + layout.tables_bytes;
    *host_bytes = layout.tables_bytes;
}

// Only where pairs are compared one by one.
DeviceStatus no_circles(int device) {
    return gpu_failure(ErrorCode::invalid_argument, device, "comparison of pairs on circles");
}
template <Rule kRule>
DeviceStatus start_pairs(int device, Kind kind, cudaStream_t queue, const Work& work, const Share* shares,
                         std::uint32_t count, std::uint32_t* next) {
    return with_kind(kind, [&](auto k) -> DeviceStatus {
        if constexpr (kRule == Rule::circles) {
            return no_circles(device);
        } else if constexpr (has_rule(k(), kRule)) {
            Fit fit{};
            const DeviceStatus status = fit_of<k(), compare_pairs_kernel<k(), kRule>>(device, &fit);
            if (status.failed) return status;
            const unsigned blocks = fit.blocks < count ? fit.blocks : count;
            Work fitted = work;
            fitted.stages = fit.stages;
            compare_pairs_kernel<k(), kRule>
                <<<blocks, kThreads, shared_bytes<k()>(fit.stages), queue>>>(fitted, shares, count, next);
        }
        return {};
    });
}

DeviceStatus put_pairs(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                       void* scratch, void* host_scratch, StreamHandle stream) {
    if (n == 0) return {};
    if (has_circles(what.scalar, what.rule.measure)) return no_circles(device);
    const PairsLayout layout(device, what, parts, n);
    if (n >= kAnyPart || layout.shares > std::numeric_limits<std::int32_t>::max()) {
        return gpu_failure(ErrorCode::invalid_argument, device,
                           "comparison of more than 2^32 pairs in one call");
    }
    TWR_GPU_CURRENT(device);
    const cudaStream_t queue = gpu_stream(stream);
    auto* area = static_cast<std::byte*>(scratch);
    auto* host = static_cast<std::byte*>(host_scratch);
    TWR_GPU(cudaMemsetAsync(area, 0, layout.partials_at, queue));
    const Work work = work_of(what);
    auto* const part_table = reinterpret_cast<Part*>(host);
    auto* const first_share = reinterpret_cast<std::uint32_t*>(host + layout.first_at);
    auto* const share_table = reinterpret_cast<Share*>(host + layout.shares_at);
    const unsigned tile = tile_of(kind_of(what.scalar));
    std::uint64_t marks = 0;
    std::uint64_t tiles = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const DevicePart& part = parts[i];
        part_table[i] = {static_cast<const std::byte*>(part.a),
                         static_cast<const std::byte*>(part.b),
                         part.scalars,
                         part.index,
                         tiles,
                         marks};
        tiles += (part.scalars - 1) / tile + 1;
        marks += PairsLayout::marks_of(part, work.chunk_scalars);
    }
    std::uint32_t shares = 0;
    std::size_t begun = 0;
    layout.each_share(device, what, parts, n, [&](const Share& share) {
        while (begun <= share.part)
            first_share[begun++] = shares;
        share_table[shares++] = share;
    });
    first_share[n] = shares;
    TWR_GPU(
        cudaMemcpyAsync(area + layout.tables_at, host, layout.tables_bytes, cudaMemcpyHostToDevice, queue));
    return {};
}

DeviceStatus compare_pairs(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                           DevicePairResult* results, void* scratch, StreamHandle stream) {
    if (n == 0) return {};
    const PairsLayout layout(device, what, parts, n);
    TWR_GPU_CURRENT(device);
    const cudaStream_t queue = gpu_stream(stream);
    auto* area = static_cast<std::byte*>(scratch);
    const std::byte* const tables = area + layout.tables_at;
    const auto shares = static_cast<std::uint32_t>(layout.shares);
    Work work = work_of(what);
    work.parts = reinterpret_cast<const Part*>(tables);
    work.part_count = static_cast<std::uint32_t>(n);
    work.tiles = layout.tiles;
    work.chunk_differs = reinterpret_cast<std::uint8_t*>(area + layout.marks_at);
    work.totals = reinterpret_cast<Totals*>(area);
    work.partials = reinterpret_cast<Partial*>(area + layout.partials_at);
    const auto* const there = reinterpret_cast<const Share*>(tables + layout.shares_at);
    auto* const next = reinterpret_cast<std::uint32_t*>(area + layout.next_at);
    const Kind kind = kind_of(what.scalar);
    const DeviceStatus status = with_rule(what.scalar, what.rule.measure, [&](auto rule) {
        return start_pairs<rule()>(device, kind, queue, work, there, shares, next);
    });
    if (status.failed) return status;
    TWR_GPU_LAUNCHED("comparison of pairs of arrays");
    std::uint64_t counters = (layout.most_words - 1) / (std::uint64_t{kPairThreads} * kMarksEach) + 1;
    const std::uint64_t most = n < kMostFinishBlocks ? kMostFinishBlocks / n : 1;
    if (counters > most) counters = most;
    const dim3 finishers(static_cast<unsigned>(n), static_cast<unsigned>(counters));
    finish_pairs<<<finishers, kPairThreads, 0, queue>>>(
        work, reinterpret_cast<const std::uint32_t*>(tables + layout.first_at), results);
    TWR_GPU_LAUNCHED("sums of the comparison of pairs of arrays");
    return {};
}

}  // namespace

extern const DeviceDifferenceKernels kDeviceDifferenceTable;
const DeviceDifferenceKernels kDeviceDifferenceTable = {scratch, compare, pairs_scratch, put_pairs,
                                                        compare_pairs};

}  // namespace twinrun
