// Element by element on a device: the launches. The kernels are in difference_kernels.cuh.
#include <cstddef>
#include <cstdint>
#include <limits>

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
    return static_cast<unsigned>(multiprocessors) * kBlocksEach;
}

// The kernels take 2^-1074 for an atol of 0, so that d = 0 never equals what is allowed (which
// would leave a doubt). It changes no verdict where every a - b and rtol |a| are multiples of it:
// not for float64, for which d = 0 is tested; and, as the values of other types are multiples of
// 2^-149, not where rtol is far below any that is meant.
double least_atol(Kind kind, const Tolerance& tolerance) {
    if (kind == Kind::f64 || tolerance.atol != 0) return tolerance.atol;
    return std::numeric_limits<double>::denorm_min();
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
        default: return Kind::narrow;
    }
}
unsigned group_of(Kind kind) {
    return kind == Kind::f64 || kind == Kind::whole ? Warp<Kind::f64, Rule::plain>::kGroup
                                                    : Warp<Kind::f32, Rule::plain>::kGroup;
}
unsigned tile_of(Kind kind) {
    return kind == Kind::f64 || kind == Kind::whole ? Warp<Kind::f64, Rule::plain>::kTile
                                                    : Warp<Kind::f32, Rule::plain>::kTile;
}
static_assert(Warp<Kind::f64, Rule::plain>::kTile == Warp<Kind::whole, Rule::plain>::kTile &&
              Warp<Kind::f32, Rule::plain>::kTile == Warp<Kind::narrow, Rule::plain>::kTile);

// Integers have no measures.
bool is_plain(DType scalar, const Measure& measure) { return !is_floating(scalar) || measure.plain(); }
bool has_circles(DType scalar, const Measure& measure) {
    if (!is_floating(scalar)) return false;
    for (const double length : measure.period) {
        if (length > 0) return true;
    }
    return false;
}
Measured measured_of(DType scalar, const Measure& measure) {
    Measured m{};
    m.ulps = measure.ulps;
    // Narrow numbers are looked at as floats. Bits of numbers of two signs are at least `apart`
    // apart, either way round.
    unsigned below = 0;  // bits of the float below those of the type
    std::uint64_t apart = 1ULL << 23;
    m.key_scale = 1;
    if (scalar == DType::f16) {
        below = 13;
        apart = 1ULL << 30;
        m.key_scale = 0x1p-112F;
    } else if (scalar == DType::bf16) {
        below = 16;
    } else if (scalar == DType::f64) {
        apart = 1ULL << 52;
    }
    const std::uint64_t largest = scalar == DType::f64 ? std::numeric_limits<std::uint64_t>::max()
                                                       : std::numeric_limits<std::uint32_t>::max();
    if (measure.ulps != Measure::kNoUlps) {
        const bool fits = measure.ulps < largest >> below;
        m.least_steps = fits ? (measure.ulps << below) + 1 : largest;
        if (fits && m.least_steps <= apart) {
            m.quick_offset = m.least_steps - 1;
            m.quick_limit = 2 * m.quick_offset;
        }
    }
    double near = kInfiniteDistance;
    m.components = measure.components;
    for (std::uint32_t c = 0; c < measure.components; ++c) {
        const double length = m.period[c] = measure.period[c];
        if (length > 0 && kHalfWay * length < near) near = kHalfWay * length;
    }
    m.near_squared = 0.999 * near * near;
    m.component_stride =
        m.components > 1 ? measure.component_stride : std::numeric_limits<std::uint64_t>::max();
    m.cycles = m.component_stride == 1;
    if (m.components > 1) m.reciprocal = static_cast<std::uint32_t>(((1ULL << 32) - 1) / m.components + 1);
    return m;
}

template <Rule kRule>
void start_kernel(Kind kind, unsigned blocks, cudaStream_t queue, const Work& work) {
    switch (kind) {
        case Kind::f32: compare_kernel<Kind::f32, kRule><<<blocks, kThreads, 0, queue>>>(work); break;
        case Kind::f64: compare_kernel<Kind::f64, kRule><<<blocks, kThreads, 0, queue>>>(work); break;
        case Kind::narrow: compare_kernel<Kind::narrow, kRule><<<blocks, kThreads, 0, queue>>>(work); break;
        case Kind::whole:
            if constexpr (kRule == Rule::plain)  // integers have no others
                compare_kernel<Kind::whole, kRule><<<blocks, kThreads, 0, queue>>>(work);
            break;
    }
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
    work.chunk_scalars = chunk;
    work.whole_groups = chunk % group_of(kind) == 0;
    work.measured = measured_of(what.scalar, what.rule.measure);
    return work;
}

// Scratch on the device: totals, marks of chunks (both cleared), then partials (of each kernel),
// groups that are left, parts.
struct Layout {
    bool circles;
    std::uint64_t chunks = 0;
    std::uint64_t tiles = 0;
    std::uint64_t scalars = 0;
    std::size_t parts = 0;  // those that are not empty
    std::size_t marks_at = 0;
    std::size_t partials_at = 0;
    std::size_t left_at = 0;
    std::size_t parts_at = 0;
    std::size_t bytes = 0;

    Layout(int device, const DeviceDifference& what, const DevicePart* part, std::size_t n)
        : circles(has_circles(what.scalar, what.rule.measure)) {
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
        const std::size_t kernels = circles ? 2 : 1;
        left_at = partials_at + device_aligned(kernels * most_blocks(device) * sizeof(Partial));
        parts_at = left_at + (circles ? device_aligned(tiles * sizeof(Count64)) : 0);
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
        if (layout.circles) work.measured.left = reinterpret_cast<Count64*>(area + layout.left_at);
        const std::uint64_t needed = (tiles - 1) / kWarps + 1;
        blocks = most_blocks(device);
        if (needed < blocks) blocks = static_cast<unsigned>(needed);
        if (is_plain(what.scalar, what.rule.measure)) {
            start_kernel<Rule::plain>(kind, blocks, queue, work);
        } else {
            start_kernel<Rule::measured>(kind, blocks, queue, work);
        }
        TWR_GPU_LAUNCHED("comparison of elements");
        if (layout.circles) {
            Work around = work;
            around.partials += blocks;
            start_kernel<Rule::around>(kind, blocks, queue, around);
            TWR_GPU_LAUNCHED("comparison of elements on circles");
            blocks *= 2;
        }
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
    std::uint64_t share_tiles = 0;
    std::uint64_t shares = 0;
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
            marks += marks_of(part[i], chunk);
        }
        // So small that the last ones end at nearly the same time, so large that a block's start
        // does not count.
        share_tiles = tiles / (std::uint64_t{most_blocks(device)} * kSharesEach);
        if (share_tiles < kWarps) share_tiles = kWarps;
        if (share_tiles > kMostShareTiles) share_tiles = kMostShareTiles;
        share_tiles -= share_tiles % kWarps;
        for (std::size_t i = 0; i < n; ++i)
            shares += ((part[i].scalars - 1) / tile) / share_tiles + 1;
        marks_at = device_aligned(n * sizeof(Totals));
        next_at = marks_at + device_aligned(marks);
        partials_at = next_at + device_aligned(sizeof(std::uint32_t));
        tables_at = partials_at + device_aligned(shares * sizeof(Partial));
        first_at = device_aligned(n * sizeof(Part));
        shares_at = first_at + device_aligned((n + 1) * sizeof(std::uint32_t));
        tables_bytes = shares_at + device_aligned(shares * sizeof(Share));
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

template <Rule kRule>
void start_pairs(Kind kind, unsigned blocks, cudaStream_t queue, const Work& work, const Share* shares,
                 std::uint32_t count, std::uint32_t* next) {
    switch (kind) {
        case Kind::f32:
            compare_pairs_kernel<Kind::f32, kRule><<<blocks, kThreads, 0, queue>>>(work, shares, count, next);
            break;
        case Kind::f64:
            compare_pairs_kernel<Kind::f64, kRule><<<blocks, kThreads, 0, queue>>>(work, shares, count, next);
            break;
        case Kind::narrow:
            compare_pairs_kernel<Kind::narrow, kRule>
                <<<blocks, kThreads, 0, queue>>>(work, shares, count, next);
            break;
        case Kind::whole:
            if constexpr (kRule == Rule::plain)
                compare_pairs_kernel<Kind::whole, kRule>
                    <<<blocks, kThreads, 0, queue>>>(work, shares, count, next);
            break;
    }
}

DeviceStatus put_pairs(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                       void* scratch, void* host_scratch, StreamHandle stream) {
    if (n == 0) return {};
    if (has_circles(what.scalar, what.rule.measure)) {
        return gpu_failure(ErrorCode::invalid_argument, device, "comparison of pairs on circles");
    }
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
    std::uint32_t shares = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const DevicePart& part = parts[i];
        part_table[i] = {static_cast<const std::byte*>(part.a),
                         static_cast<const std::byte*>(part.b),
                         part.scalars,
                         part.index,
                         tiles,
                         marks};
        first_share[i] = shares;
        const std::uint64_t own = (part.scalars - 1) / tile + 1;
        for (std::uint64_t at = 0; at < own; at += layout.share_tiles) {
            const std::uint64_t left = own - at;
            const auto count =
                static_cast<std::uint32_t>(left < layout.share_tiles ? left : layout.share_tiles);
            share_table[shares++] = {tiles + at, count, static_cast<std::uint32_t>(i)};
        }
        tiles += own;
        marks += PairsLayout::marks_of(part, work.chunk_scalars);
    }
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
    unsigned blocks = most_blocks(device);
    if (shares < blocks) blocks = shares;
    if (is_plain(what.scalar, what.rule.measure)) {
        start_pairs<Rule::plain>(kind, blocks, queue, work, there, shares, next);
    } else {
        start_pairs<Rule::measured>(kind, blocks, queue, work, there, shares, next);
    }
    TWR_GPU_LAUNCHED("comparison of pairs of arrays");
    finish_pairs<<<static_cast<unsigned>(n), kPairThreads, 0, queue>>>(
        work, reinterpret_cast<const std::uint32_t*>(tables + layout.first_at), results);
    TWR_GPU_LAUNCHED("sums of the comparison of pairs of arrays");
    return {};
}

}  // namespace

extern const DeviceDifferenceKernels kDeviceDifferenceTable;
const DeviceDifferenceKernels kDeviceDifferenceTable = {scratch, compare, pairs_scratch, put_pairs,
                                                        compare_pairs};

}  // namespace twinrun
