// Private to difference_cuda.cu: what a launch of the kernels works on, and what it gives.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "device/gpu.hpp"
#include "difference/difference_device.hpp"
#include "difference/difference_histogram.hpp"
#include "difference/difference_pair.hpp"

namespace twinrun {

namespace {

// Sizes. Each warp has one or more groups of 2 KiB under way.
constexpr unsigned kLanes = 32;
constexpr unsigned kWarps = 8;
constexpr unsigned kThreads = kWarps * kLanes;
constexpr unsigned kMostBlocksEach = 2;  // on a multiprocessor; bounds the registers of a thread
constexpr unsigned kLeastStages = 2;
constexpr unsigned kMostStages = 4;
constexpr unsigned kTileGroups = 64;   // as many as marks_ has bits; more: fewer starts
constexpr unsigned kMostPending = 31;  // blocks of up to 8 pairs a lane whose counts fit 8 bits
constexpr unsigned kFinishThreads = 256;
constexpr unsigned kPairThreads = 256;  // that sum up one of many pairs
constexpr unsigned kMarksEach = 4;      // words of marks that such a thread counts, if blocks suffice
constexpr unsigned kMostFinishBlocks = 4096;
constexpr unsigned kSharesEach = 4;                 // a block, of the tiles that are left
constexpr std::uint64_t kMostShareTiles = 1 << 16;  // a block counts their scalars in 32 bits

// The compiler no longer knows where a value came from: what was computed from it before is not
// kept for later.
__device__ inline void forget(std::uint32_t& x) { asm volatile("" : "+r"(x)); }

using Count64 = unsigned long long;  // what atomic operations take
static_assert(sizeof(Count64) == sizeof(std::uint64_t));

__device__ inline double as_double(std::uint64_t bits) {
    return __longlong_as_double(static_cast<long long>(bits));
}

// ---- what a launch works on ----

struct Part {
    const std::byte* a;
    const std::byte* b;
    std::uint64_t scalars;
    std::uint64_t index;
    std::uint64_t tile;   // its first, of all
    std::uint64_t chunk;  // likewise
};

// Where a maximum is, and what it is. (The larger value wins, then the smaller place.)
struct Best {
    double value;
    std::uint64_t at;
};
__device__ inline void raise(Best& best, double value, std::uint64_t at) {
    twinrun::raise(value, at, best.value, best.at);
}

constexpr std::uint32_t kAnyPart = std::numeric_limits<std::uint32_t>::max();

// Consecutive tiles of one part. Where each part is a pair of arrays with a result of its own, a
// block takes share after share.
struct Share {
    std::uint64_t tile;  // its first
    std::uint32_t tiles;
    std::uint32_t part;
};

// The results of one thread block, or of one of its shares.
struct Partial {
    double sum;
    double sum_different;
    double largest;
    std::uint64_t first;
    Best best[3];
};

// The grid's, or of one pair of arrays; cleared before the launch.
struct Totals {
    Count64 bounds[3];  // bits of the largest distance and quotients so far
    Count64 chunks;
    Count64 counted;  // blocks that have added to chunks
    Count64 all[kHistogramBins];
    Count64 over[kHistogramBins];
};

// One circle that values lie on; on a line: 0, 0 and infinity.
struct alignas(16) Circle {
    double period;
    double inverse;
    double one_turn;  // values farther apart may be more than one turn apart
};

// Measure, as the kernels take it.
struct Measured {
    std::uint64_t ulps;          // Measure::kNoUlps: not asked for
    std::uint64_t quick_offset;  // see Warp::far_enough()
    std::uint64_t quick_limit;
    bool quick_far;  // bits of two signs are farther apart than quick_offset, either way round
    // Sums of squares below it: all distances are the shorter way on every circle.
    double near_squared;
    double period[Measure::kMostComponents];
    std::uint32_t components;
    std::uint32_t reciprocal;  // of components, times 2^32, rounded up
    bool cycles;               // from scalar to scalar
    std::uint64_t component_stride;
};

struct Work {
    const Part* parts;
    std::uint32_t part_count;
    DType scalar;
    bool nan_equal;
    bool exactly;  // every pair goes to the reference
    double atol;
    double rtol;
    double least_atol;  // see least_atol()
    bool absolute;      // see is_absolute()
    std::uint64_t tiles;
    std::uint64_t chunk_scalars;
    bool whole_groups;  // chunks are made of them
    unsigned stages;    // a warp's groups in shared memory: kLeastStages or kMostStages
    std::uint8_t* chunk_differs;
    Totals* totals;
    Partial* partials;
    Measured measured;
};

// From the exponent of a distance to its bin, as HistogramTables. A counter of 4 bits lies at
// slot + scale * (-base), or 4 further.
struct alignas(16) BinEntry {
    double next;         // distances at or above it are one bin further
    std::uint32_t slot;  // 4 * bin
    std::uint32_t scale;
};
// The slot of distance 0, which is not counted: it is beyond all counters, and not an outlier.
// (Denormal distances would have slots as large, but they never get here.)
constexpr std::uint32_t kNoSlot = 0x10000;
// Of slots less base beyond the first 32, or negative.
constexpr std::uint32_t kOutlierBits = 0xFFE0;
struct BinTable {
    BinEntry entries[2048];
};
constexpr BinTable make_bin_table() {
    BinTable table{};
    std::uint32_t edge = 0;
    for (std::uint64_t exponent = 0; exponent < 2048; ++exponent) {
        const double smallest = std::bit_cast<double>(exponent << 52);
        while (edge < kDecadeEdges.size() && kDecadeEdges[edge] <= smallest)
            ++edge;
        table.entries[exponent] = {
            edge < kDecadeEdges.size() ? kDecadeEdges[edge] : std::numeric_limits<double>::infinity(),
            4 * (1 + edge), 1};
    }
    table.entries[2047] = {std::numeric_limits<double>::quiet_NaN(), 4 * (kHistogramBins - 1), 1};
    table.entries[0] = {std::numeric_limits<double>::quiet_NaN(), kNoSlot, 0};
    return table;
}
__device__ const BinTable kBinTable = make_bin_table();

// The same for distances of floats, with a warp's counters themselves: 1 in the 4 bits of the
// distance's decade. The last 4 bits count those whose decade has no counter.
struct alignas(16) FloatBin {
    double next;  // distances at or above it count as `above`, others as `below`
    std::uint32_t below;
    std::uint32_t above;
};
constexpr std::uint32_t kOutsideCounters = 1U << 28;
// For the exponent of a float, 0 to 255, where the first counter stands for bin `base`.
__device__ inline FloatBin float_bin(unsigned exponent, std::uint32_t base) {
    // Distances below any normal float: 0 counts nowhere.
    if (exponent == 0) return {0x1p-1074, 0, kOutsideCounters};
    if (exponent == 255) return {0, kOutsideCounters, kOutsideCounters};
    const BinEntry entry = kBinTable.entries[exponent - 127 + 1023];
    const auto one = [&](std::uint32_t bin) {
        return bin - base < 7 ? 1U << 4 * (bin - base) : kOutsideCounters;
    };
    return {entry.next, one(entry.slot / 4), one(entry.slot / 4 + 1)};
}

}  // namespace

}  // namespace twinrun
