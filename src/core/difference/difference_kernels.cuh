// Private to difference_cuda.cu: the kernels. The algorithm is that of difference_lanes.hpp, over warps:
//
// for each tile of 8 groups, for each group of 32 lanes x 4 or 8 pairs:
//     bits of a and b the same  -> only the largest |a| is kept
//     else for each pair        -> d = |a - b| and verdict by float64; sums; a counter of the decade of d
//     what is rare leaves the loop, all lanes together: NaN, infinities, verdicts that rounding could decide (the whole
//     group is done anew, by compare_pair), new maxima, decades beyond the counters
//
// Counters of decades are 4 bits of a register (a group's), then 8 bits (31 groups'), then shared memory (a block's): they
// stand for 8 decades from a base that the warp chooses. Distances beyond those go to shared memory at once.
//
// Other measures have kernels of their own. Units in the last place: in the first look a pair can differ only if its bits are
// too far apart, in arithmetic modulo 2^32 or 2^64. Circles: pairs nearer than half-way round any circle, as nearly all are, lie
// as on a line. Groups in which some are not are marked, and a second kernel takes them the shorter way round: in the first
// one, what that needs would take its registers from all groups.
//
// The bound of a maximum is shared by the whole grid, so that few groups have a candidate. It decides only what is looked at:
// the sums of a group are made the same way whether it had a candidate or not, and are the same from call to call.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "device/gpu.hpp"
#include "device/warp.cuh"
#include "difference/difference_device.hpp"
#include "difference/difference_histogram.hpp"
#include "difference/difference_pair.hpp"

namespace twinrun {

namespace {

// Sizes. Two blocks of 256 threads with 128 registers each fill a multiprocessor: 16 warps with 2 KiB under way each.
constexpr unsigned kLanes = 32;
constexpr unsigned kWarps = 8;
constexpr unsigned kThreads = kWarps * kLanes;
constexpr unsigned kBlocksEach = 2;    // on a multiprocessor
constexpr unsigned kTileGroups = 64;   // as many as marks_ has bits; more: fewer starts
constexpr unsigned kFlushGroups = 31;  // 31 groups of up to 8 a lane fit 8 bits
constexpr unsigned kSlots = 8;         // decades that have counters in registers
constexpr unsigned kManyLanes = 8;     // so many lanes with distances beyond them, and the base moves
constexpr unsigned kFinishThreads = 256;
constexpr unsigned kPairThreads = 256;  // that sum up one of many pairs
constexpr unsigned kSharesEach = 32;    // of many pairs, a block
constexpr unsigned kMostShareTiles = 64;

// The compiler no longer knows where a value came from: what was computed from it before is not kept for later.
__device__ inline void forget(float& x) { asm volatile("" : "+f"(x)); }
__device__ inline void forget(double& x) { asm volatile("" : "+d"(x)); }

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

// Consecutive tiles of one part. Where each part is a pair of arrays with a result of its own, a block takes share after share.
struct Share {
    std::uint64_t tile;  // its first
    std::uint32_t tiles;
    std::uint32_t part;
};

// What one thread block found, or found in one share.
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
    Count64 all[kHistogramBins];
    Count64 over[kHistogramBins];
};

// One circle that values lie on; on a line: 0 and 0.
struct alignas(16) Circle {
    double period;
    double inverse;
};

// Measure, as the kernels take it.
struct Measured {
    std::uint64_t ulps;          // Measure::kNoUlps: not asked for
    std::uint64_t least_steps;   // keys nearer than this never differ; 0: all may
    std::uint64_t quick_offset;  // see Warp::may_differ()
    std::uint64_t quick_limit;
    float key_scale;      // from a narrow float to one that has the bits of its type on top
    double near_squared;  // sums of squares below it: all distances are the shorter way on every circle
    Count64* left;        // of each tile: groups for Rule::around; null: there are no circles
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
    std::uint64_t tiles;
    std::uint64_t chunk_scalars;
    bool whole_groups;  // chunks are made of them
    std::uint8_t* chunk_differs;
    Totals* totals;
    Partial* partials;
    Measured measured;
};

// From the exponent of a distance to its bin, as HistogramTables. A counter lies at slot + scale * (-base), or 4 further.
struct alignas(16) BinEntry {
    double next;         // distances at or above it are one bin further
    std::uint32_t slot;  // 4 * bin
    std::uint32_t scale;
};
// That of distance 0, which is not counted: beyond all counters, and no outlier. (As large are the denormal distances, but
// they never come to it.)
constexpr std::uint32_t kNoSlot = 0x10000;
constexpr std::uint32_t kOutlierBits = 0xFFE0;  // of slots less base beyond the first 32, or negative
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

// ---- pairs as they are stored ----

enum class Rule : std::uint8_t {
    plain,
    measured,  // by ulps, or on circles, or both: pairs that lie as on a line
    around,    // the groups that this left
};

enum class Kind : std::uint8_t {
    f32,
    f64,
    narrow,  // of 1 or 2 bytes; float32 holds them
    whole,   // integers of 4 or 8 bytes; float64 holds them up to 2^53
};

template <Kind kKind>
struct Stored {
    using Value = float;
    static constexpr unsigned kPairs = 8;  // of a lane in a group
    static constexpr unsigned kWords = 8;  // of 4 bytes, for one run
};
template <>
struct Stored<Kind::f64> {
    using Value = double;
    static constexpr unsigned kPairs = 4;
    static constexpr unsigned kWords = 8;
};
template <>
struct Stored<Kind::narrow> {
    using Value = float;
    static constexpr unsigned kPairs = 8;
    static constexpr unsigned kWords = 4;
};
template <>
struct Stored<Kind::whole> {
    using Value = double;
    static constexpr unsigned kPairs = 4;
    static constexpr unsigned kWords = 8;
};

__host__ __device__ constexpr unsigned bytes_of(DType scalar) {
    switch (scalar) {
        case DType::i8:
        case DType::u8:
        case DType::boolean: return 1;
        case DType::f16:
        case DType::bf16:
        case DType::i16:
        case DType::u16: return 2;
        case DType::f32:
        case DType::i32:
        case DType::u32: return 4;
        default: return 8;
    }
}

__host__ __device__ inline float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    return __builtin_bit_cast(float, bits);
#endif
}
__device__ inline std::uint32_t bits_in(float x) {
#if defined(__CUDA_ARCH__)
    return __float_as_uint(x);
#else
    return __builtin_bit_cast(std::uint32_t, x);
#endif
}
__device__ inline std::uint64_t bits_in(double x) { return bits_of(x); }
// signed_magnitude() of its bits, in as many of them; that of a float and of a double.
template <class T>
__device__ inline auto key_of(T x) {
    using Bits = decltype(bits_in(x));
    using Signed = std::make_signed_t<Bits>;
    const auto bits = static_cast<Signed>(bits_in(x));
    constexpr auto magnitude = static_cast<Signed>(~Bits{0} >> 1);
    const Signed sign = bits >> (8 * sizeof bits - 1);
    return ((bits & magnitude) ^ sign) - sign;
}

// The fraction and exponent of a half, as those of a float, are 2^112 too small; the product is exact for denormals, too.
__host__ __device__ inline float from_half(std::uint32_t half) {
    const std::uint32_t size = (half & 0x7FFF) << 13;
    const float magnitude = size >= 0x0F800000 ? float_of(size | 0x7F800000) : float_of(size) * 0x1p112F;
    return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

// A scalar of 1 or 2 bytes, zero-extended.
__host__ __device__ inline float from_narrow(std::uint32_t bits, DType scalar) {
    switch (scalar) {
        case DType::f16: return from_half(bits);
        case DType::bf16: return float_of(bits << 16);
        case DType::i8: return static_cast<float>(static_cast<std::int8_t>(bits));
        case DType::i16: return static_cast<float>(static_cast<std::int16_t>(bits));
        case DType::boolean: return bits != 0 ? 1.0F : 0.0F;
        default: return static_cast<float>(bits);  // u8, u16
    }
}

__device__ inline std::uint64_t word_at(const std::byte* at, unsigned bytes) {
    switch (bytes) {
        case 1: return __ldg(reinterpret_cast<const std::uint8_t*>(at));
        case 2: return __ldg(reinterpret_cast<const std::uint16_t*>(at));
        case 4: return __ldg(reinterpret_cast<const std::uint32_t*>(at));
        default: return __ldg(reinterpret_cast<const Count64*>(at));
    }
}

template <Kind kKind>
struct Words {
    std::uint32_t word[Stored<kKind>::kWords];
};

// Which scalar of a group a lane has as pair p. In words of 16 bytes where it was loaded so, else one by one.
template <Kind kKind>
__device__ inline unsigned place_of_pair(unsigned pair, bool in_words, unsigned lane, DType scalar) {
    if (!in_words) return pair * kLanes + lane;
    unsigned vector = Stored<kKind>::kPairs;  // narrow: one load
    if constexpr (kKind == Kind::f32) vector = 4;
    if constexpr (kKind == Kind::f64) vector = 2;
    if constexpr (kKind == Kind::whole) vector = bytes_of(scalar) == 4 ? 4 : 2;
    return (pair / vector * kLanes + lane) * vector + pair % vector;
}

template <Kind kKind>
__device__ inline Words<kKind> load_words(const std::byte* group, unsigned lane, DType scalar) {
    Words<kKind> w{};
    if constexpr (kKind == Kind::f32 || kKind == Kind::f64) {
        const auto* from = reinterpret_cast<const uint4*>(group) + lane;
        const uint4 low = __ldg(from);
        const uint4 high = __ldg(from + kLanes);
        w.word[0] = low.x, w.word[1] = low.y, w.word[2] = low.z, w.word[3] = low.w;
        w.word[4] = high.x, w.word[5] = high.y, w.word[6] = high.z, w.word[7] = high.w;
    } else if constexpr (kKind == Kind::narrow) {
        if (bytes_of(scalar) == 1) {
            const uint2 low = __ldg(reinterpret_cast<const uint2*>(group) + lane);
            w.word[0] = low.x, w.word[1] = low.y;
        } else {
            const uint4 low = __ldg(reinterpret_cast<const uint4*>(group) + lane);
            w.word[0] = low.x, w.word[1] = low.y, w.word[2] = low.z, w.word[3] = low.w;
        }
    } else {
        const auto* from = reinterpret_cast<const uint4*>(group) + lane;
        const uint4 low = __ldg(from);
        w.word[0] = low.x, w.word[1] = low.y, w.word[2] = low.z, w.word[3] = low.w;
        if (bytes_of(scalar) == 8) {
            const uint4 high = __ldg(from + kLanes);
            w.word[4] = high.x, w.word[5] = high.y, w.word[6] = high.z, w.word[7] = high.w;
        }
    }
    return w;
}

// The first n scalars of a group, one by one; zeros after them, which leave no trace.
template <Kind kKind>
__device__ inline Words<kKind> load_singly(const std::byte* group, unsigned n, unsigned lane, DType scalar) {
    Words<kKind> w{};
    constexpr unsigned pairs = Stored<kKind>::kPairs;
    const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(scalar);
#pragma unroll
    for (unsigned p = 0; p < pairs; ++p) {
        const unsigned place = p * kLanes + lane;
        const std::uint64_t bits = place < n ? word_at(group + std::size_t{place} * bytes, bytes) : 0;
        const auto low = static_cast<std::uint32_t>(bits);
        if constexpr (kKind == Kind::f32) {
            w.word[p] = low;
        } else if constexpr (kKind == Kind::f64) {
            w.word[2 * p] = low;
            w.word[2 * p + 1] = static_cast<std::uint32_t>(bits >> 32);
        } else if constexpr (kKind == Kind::narrow) {
            if (bytes == 1) {
                w.word[p / 4] |= low << 8 * (p % 4);
            } else {
                w.word[p / 2] |= low << 16 * (p % 2);
            }
        } else {
            if (bytes == 4) {
                w.word[p] = low;
            } else {
                w.word[2 * p] = low;
                w.word[2 * p + 1] = static_cast<std::uint32_t>(bits >> 32);
            }
        }
    }
    return w;
}

template <Kind kKind>
__device__ inline std::uint64_t long_word(const Words<kKind>& w, unsigned p) {
    return static_cast<std::uint64_t>(w.word[2 * p + 1]) << 32 | w.word[2 * p];
}

template <unsigned kPairs, class To, class Read>
__device__ inline void read_each(To (&values)[kPairs], Read read) {
#pragma unroll
    for (unsigned p = 0; p < kPairs; ++p)
        values[p] = read(p);
}

// The pairs' values. *beyond is set if one of them is an integer that float64 may not hold.
template <Kind kKind>
__device__ inline void decode(const Words<kKind>& w, DType scalar,
                              typename Stored<kKind>::Value (&values)[Stored<kKind>::kPairs], bool* beyond) {
    constexpr unsigned pairs = Stored<kKind>::kPairs;
    if constexpr (kKind == Kind::f32) {
        read_each<pairs>(values, [&](unsigned p) { return float_of(w.word[p]); });
    } else if constexpr (kKind == Kind::f64) {
        read_each<pairs>(values, [&](unsigned p) { return as_double(long_word(w, p)); });
    } else if constexpr (kKind == Kind::narrow) {
        const auto byte = [&](unsigned p) { return w.word[p / 4] >> 8 * (p % 4) & 0xFFU; };
        const auto half = [&](unsigned p) { return w.word[p / 2] >> 16 * (p % 2) & 0xFFFFU; };
        switch (scalar) {  // out of the loops: the same for all
            case DType::f16:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(half(p), DType::f16); });
                break;
            case DType::bf16:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(half(p), DType::bf16); });
                break;
            case DType::i16:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(half(p), DType::i16); });
                break;
            case DType::u16:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(half(p), DType::u16); });
                break;
            default:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(byte(p), scalar); });
                break;
        }
    } else {
        switch (scalar) {
            case DType::i32:
                read_each<pairs>(values, [&](unsigned p) {
                    return static_cast<double>(static_cast<std::int32_t>(w.word[p]));
                });
                break;
            case DType::u32:
                read_each<pairs>(values, [&](unsigned p) { return static_cast<double>(w.word[p]); });
                break;
            case DType::i64:
                read_each<pairs>(values, [&](unsigned p) {
                    const std::uint64_t bits = long_word(w, p);
                    *beyond |= bits + kLargestExactInteger > 2 * kLargestExactInteger;
                    return static_cast<double>(static_cast<std::int64_t>(bits));
                });
                break;
            default:
                read_each<pairs>(values, [&](unsigned p) {
                    const std::uint64_t bits = long_word(w, p);
                    *beyond |= bits > kLargestExactInteger;
                    return static_cast<double>(bits);
                });
                break;
        }
    }
}

// One pair by the reference, and |a|.
struct ExactPair {
    Pair pair;
    double magnitude;
};
// A call, so that what it takes inside takes no registers from the loop around it.
__noinline__ __device__ Pair pair_on_circle(double a, double b, double period, double atol, double rtol,
                                            bool nan_equal) {
    const DifferenceRule rule{{atol, rtol}, nan_equal};
    return period > 0 ? compare_on_circle(a, b, period, rule) : compare_pair(a, b, rule);
}
template <Kind kKind, Rule kRule>
__device__ inline ExactPair exact_pair(std::uint64_t bits_a, std::uint64_t bits_b, DType scalar,
                                       const DifferenceRule& rule, std::uint64_t ulps, double period) {
    double a = 0;
    double b = 0;
    std::uint64_t steps = 0;
    if constexpr (kKind == Kind::f32) {
        a = static_cast<double>(float_of(static_cast<std::uint32_t>(bits_a)));
        b = static_cast<double>(float_of(static_cast<std::uint32_t>(bits_b)));
        steps = steps_apart(signed_magnitude(static_cast<std::uint32_t>(bits_a)),
                            signed_magnitude(static_cast<std::uint32_t>(bits_b)));
    } else if constexpr (kKind == Kind::f64) {
        a = as_double(bits_a);
        b = as_double(bits_b);
        steps = steps_apart(signed_magnitude(bits_a), signed_magnitude(bits_b));
    } else if constexpr (kKind == Kind::narrow) {
        a = static_cast<double>(from_narrow(static_cast<std::uint32_t>(bits_a), scalar));
        b = static_cast<double>(from_narrow(static_cast<std::uint32_t>(bits_b), scalar));
        // Of float16 or bfloat16: other types have no such rules.
        steps = steps_apart(signed_magnitude(static_cast<std::uint16_t>(bits_a)),
                            signed_magnitude(static_cast<std::uint16_t>(bits_b)));
    } else {
        if (scalar == DType::u64) {
            return {compare_pair(bits_a, bits_b, rule), static_cast<double>(bits_a)};
        }
        const bool sign = scalar == DType::i32;  // to be extended
        const std::int64_t x = sign ? static_cast<std::int32_t>(bits_a) : static_cast<std::int64_t>(bits_a);
        const std::int64_t y = sign ? static_cast<std::int32_t>(bits_b) : static_cast<std::int64_t>(bits_b);
        return {compare_pair(x, y, rule), absolute_value(static_cast<double>(x))};
    }
    if constexpr (kRule == Rule::plain) {
        return {compare_pair(a, b, rule), absolute_value(a)};
    } else {
        Pair pair = kRule == Rule::around ? pair_on_circle(a, b, period, rule.tolerance.atol,
                                                           rule.tolerance.rtol, rule.nan_equal)
                                          : compare_pair(a, b, rule);
        if (pair.differs && ulps != Measure::kNoUlps && pair.distance != kInfiniteDistance)
            pair.differs = steps > ulps;
        return {pair, absolute_value(a)};
    }
}

// ---- the loop ----

struct WarpState {
    Totals* totals;
    std::uint32_t part;  // that all tiles lie in; kAnyPart: each is looked for
    Best best[3];        // distance; quotient; quotient of those that differ
    std::uint64_t first;
    // Of the tile: here and not in registers, for what comes to them rarely.
    const std::byte* a;
    const std::byte* b;
    std::uint64_t index;  // of its first scalar in the field
    std::uint64_t chunk;  // `before` scalars before it this chunk begins
    std::uint64_t before;
    std::uint32_t component;       // of its first scalar
    std::uint64_t component_left;  // scalars until another one, where components do not take turns
};

struct Shared {
    BinEntry bins[2048];
    WarpState warp[kWarps];
    Circle circles[Measure::kMostComponents];
    double sums[2 * kWarps];
    double largest[kWarps];
    std::uint32_t all[kHistogramBins];
    std::uint32_t over[kHistogramBins];
};

// On a circle a distance that is nearer to what is allowed than this share of |a - b| leaves a doubt: some roundings' worth.
constexpr double kRoundings = 0x1p-48;

// Consecutive pairs of one part, at most a group.
struct Group {
    unsigned number;  // in its tile
    unsigned n;
    bool in_words;
};

template <Kind kKind, Rule kRule>
class Warp {
   public:
    using Value = typename Stored<kKind>::Value;
    static constexpr unsigned kPairs = Stored<kKind>::kPairs;
    static constexpr unsigned kGroup = kPairs * kLanes;
    static constexpr unsigned kTile = kTileGroups * kGroup;

    __device__ Warp(const Work& work, Shared& shared)
        : work_(work),
          shared_(shared),
          state_(shared.warp[threadIdx.x / kLanes]),
          lane_(threadIdx.x % kLanes) {}

    // The block's tiles: its warps take every step-th of them, from `begin` on.
    __device__ void run(std::uint64_t begin, std::uint64_t end, std::uint64_t step) {
        const unsigned warp = threadIdx.x / kLanes;
        for (std::uint64_t t = begin + warp; t < end; t += step) {
            if constexpr (kRule == Rule::around) {
                tile_around(t);
            } else {
                tile(t);
            }
        }
        flush();
        // Always in this order: a tree over the warp, then warp after warp.
        for (unsigned distance = 16; distance != 0; distance /= 2) {
            sum_ += as_double(warp::across(bits_of(sum_), distance));
            sum_different_ += as_double(warp::across(bits_of(sum_different_), distance));
            const double other = as_double(warp::across(bits_of(static_cast<double>(top_)), distance));
            if (other > static_cast<double>(top_)) top_ = static_cast<Value>(other);
        }
        if (lane_ == 0) {
            shared_.sums[2 * warp] = sum_;
            shared_.sums[2 * warp + 1] = sum_different_;
            shared_.largest[warp] = static_cast<double>(top_);
        }
    }

   private:
    // ---- tiles ----

    // The part that a tile lies in: 32 places are looked at in a step.
    [[nodiscard]] __device__ std::uint32_t part_of(std::uint64_t tile) const {
        std::uint32_t low = 0;
        std::uint32_t count = work_.part_count;
        while (count > 1) {
            const std::uint32_t step = count / kLanes + (count % kLanes != 0 ? 1 : 0);
            const std::uint64_t probe = std::uint64_t{lane_} * step;
            const unsigned at_or_before =
                warp::ballot(probe < count && work_.parts[low + probe].tile <= tile);
            const auto last = static_cast<std::uint32_t>(31 - __clz(static_cast<int>(at_or_before)));
            low += last * step;
            const std::uint32_t left = count - last * step;
            count = left < step ? left : step;
        }
        return low;
    }

    __device__ Words<kKind> load(const std::byte* group, unsigned n, bool in_words) const {
        return in_words ? load_words<kKind>(group, lane_, work_.scalar)
                        : load_singly<kKind>(group, n, lane_, work_.scalar);
    }

    // Where a tile lies.
    struct Tile {
        const std::byte* a;
        const std::byte* b;
        unsigned n;
        unsigned in_words;  // groups
    };
    __device__ Tile begin_tile(std::uint64_t t) {
        const Part& part = work_.parts[state_.part == kAnyPart ? part_of(t) : state_.part];
        const std::uint64_t offset = (t - part.tile) * kTile;
        const std::uint64_t left = part.scalars - offset;
        const unsigned n = left < kTile ? static_cast<unsigned>(left) : kTile;
        const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(work_.scalar);
        const std::byte* a = part.a + offset * bytes;
        const std::byte* b = part.b + offset * bytes;
        const std::uintptr_t places =
            reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b);
        const std::uint64_t index = part.index + offset;
        warp::sync();
        if (lane_ == 0) {
            state_.a = a;
            state_.b = b;
            state_.index = index;
            state_.chunk = part.chunk + offset / work_.chunk_scalars;
            state_.before = offset % work_.chunk_scalars;
            if constexpr (kRule == Rule::around) {
                const Measured& m = work_.measured;
                const std::uint64_t number = index / m.component_stride;
                state_.component = static_cast<std::uint32_t>(number % m.components);
                state_.component_left = (number + 1) * m.component_stride - index;
            }
        }
        choose_bounds(index);
        seeking_ = index < state_.first;
        marks_ = 0;
        return {a, b, n, places % (bytes == 1 ? 8 : 16) == 0 ? n / kGroup : 0};
    }

    __device__ void tile(std::uint64_t t) {
        const Tile tile = begin_tile(t);
        const std::byte* a = tile.a;
        const std::byte* b = tile.b;
        const unsigned n = tile.n;
        const unsigned in_words = tile.in_words;
        const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(work_.scalar);
        left_ = 0;
        Words<kKind> next_a = load(a, n, in_words != 0);
        Words<kKind> next_b = load(b, n, in_words != 0);
        const unsigned groups = (n + kGroup - 1) / kGroup;
#pragma unroll 1
        for (unsigned number = 0; number < groups; ++number) {
            const Words<kKind> words_a = next_a;
            const Words<kKind> words_b = next_b;
            a += kGroup * bytes;
            b += kGroup * bytes;
            if (number + 1 < groups) {  // under way while this group is worked on
                next_a = load(a, n - (number + 1) * kGroup, number + 1 < in_words);
                next_b = load(b, n - (number + 1) * kGroup, number + 1 < in_words);
            }
            group({number, n - number * kGroup < kGroup ? n - number * kGroup : kGroup, number < in_words},
                  words_a, words_b);
        }
        put_marks();
        if constexpr (kRule == Rule::measured) {
            if (lane_ == 0 && work_.measured.left != nullptr) work_.measured.left[t] = left_;
        }
    }
    // Only the groups that the kernel before left.
    __device__ void tile_around(std::uint64_t t) {
        std::uint64_t left = work_.measured.left[t];
        if (left == 0) return;
        const Tile tile = begin_tile(t);
#pragma unroll 1
        for (; left != 0; left &= left - 1) {
            const auto number = static_cast<unsigned>(__ffsll(static_cast<long long>(left)) - 1);
            const unsigned n = tile.n - number * kGroup;
            group_around({number, n < kGroup ? n : kGroup, number < tile.in_words});
        }
        put_marks();
    }

    // ---- bounds of the maxima ----

    // Only pairs above the bounds are looked at. The warp's own maximum is a bound where its place comes first; else, and for
    // what another warp found, the number before is: a tie may win by its place.
    __device__ void choose_bounds(std::uint64_t index) {
        warp::sync();
        distance_bound_ = bound(0, index);
        quotient_bound_ = bound(1, index);
        different_bound_ = bound(2, index);
        warp::sync();
    }
    [[nodiscard]] __device__ double bound(unsigned which, std::uint64_t index) const {
        const std::uint64_t known = *const_cast<const volatile Count64*>(&state_.totals->bounds[which]);
        const std::uint64_t own = bits_of(state_.best[which].value);
        const std::uint64_t before = known > own ? known : own;
        if (before == 0 || (known <= own && state_.best[which].at < index)) return as_double(before);
        return as_double(before - 1);
    }

    // The lanes' best become the warp's. All lanes take part.
    __device__ void keep_best(Best (&best)[3], std::uint64_t first, std::uint64_t next_index) {
#pragma unroll
        for (unsigned which = 0; which < 3; ++which) {
            for (unsigned distance = 16; distance != 0; distance /= 2) {
                const double value = as_double(warp::across(bits_of(best[which].value), distance));
                const std::uint64_t at = warp::across(best[which].at, distance);
                raise(best[which], value, at);
            }
        }
        for (unsigned distance = 16; distance != 0; distance /= 2) {
            const std::uint64_t other = warp::across(first, distance);
            first = other < first ? other : first;
        }
        warp::sync();
        if (lane_ == 0) {
#pragma unroll
            for (unsigned which = 0; which < 3; ++which) {
                raise(state_.best[which], best[which].value, best[which].at);
                if (best[which].value > 0)
                    atomicMax(&state_.totals->bounds[which], Count64{bits_of(best[which].value)});
            }
            if (first < state_.first) state_.first = first;
        }
        choose_bounds(next_index);
    }

    // ---- histogram ----

    [[nodiscard]] __device__ const BinEntry& bin_entry(double distance) const {
        return shared_.bins[(bits_of(distance) >> 52) & 0x7FF];
    }
    [[nodiscard]] __device__ std::uint32_t bin(double distance) const {  // of one that is not 0
        const BinEntry entry = bin_entry(distance);
        if (entry.slot == kNoSlot) return 1;
        return entry.slot / 4 + (distance >= entry.next ? 1 : 0);
    }
    // 1 in the 4 bits of a slot; 0 for slots beyond.
    [[nodiscard]] static __device__ std::uint32_t one_in(std::uint32_t slot) {
        return __funnelshift_lc(0U, 1U, slot);
    }

    template <bool kDiffering>
    __device__ void count(std::uint32_t groups, std::uint32_t groups_over) {
        constexpr std::uint32_t even = 0x0F0F0F0F;
        all_[0] += groups & even;
        all_[1] += groups >> 4 & even;
        if constexpr (kDiffering) {
            over_[0] += groups_over & even;
            over_[1] += groups_over >> 4 & even;
        }
        if (++pending_ == kFlushGroups) flush();
    }
    __device__ void flush() {
        if (pending_ == 0) return;
        pending_ = 0;
        flush(all_, shared_.all);
        flush(over_, shared_.over);
    }
    __device__ void flush(std::uint32_t (&counters)[2], std::uint32_t* bins) {
        constexpr std::uint32_t low = 0x00FF00FF;
        const std::uint32_t sums[4] = {
            warp::sum(counters[0] & low),       // slots 0 and 4
            warp::sum(counters[1] & low),       // 1 and 5
            warp::sum(counters[0] >> 8 & low),  // 2 and 6
            warp::sum(counters[1] >> 8 & low),  // 3 and 7
        };
        counters[0] = counters[1] = 0;
        if (lane_ != 0) return;
        std::uint32_t* to = bins + base_slot_ / 4;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            if ((sums[i] & 0xFFFF) != 0) atomicAdd(to + i, sums[i] & 0xFFFF);
            if (sums[i] >> 16 != 0) atomicAdd(to + i + 4, sums[i] >> 16);
        }
    }

    // ---- measures ----

    // Which circles the pairs of a group lie on.
    struct Ring {
        std::uint32_t component;  // of the first pair
        bool cycles;              // the next pair has the next one
        bool mixed;               // neither that, nor the same for all
    };
    [[nodiscard]] __device__ Ring ring_of(const Group& g) const {
        const Measured& m = work_.measured;
        const unsigned from = g.number * kGroup;
        if (m.cycles) return {state_.component + from, true, false};
        if (from + g.n <= state_.component_left) return {state_.component, false, false};
        const std::uint64_t first = (state_.index + from) / m.component_stride;
        const std::uint64_t last = (state_.index + from + g.n - 1) / m.component_stride;
        return {static_cast<std::uint32_t>(first % m.components), false, first != last};
    }
    [[nodiscard]] __device__ const Circle& circle_of(const Ring& ring, unsigned place) const {
        std::uint32_t component = ring.component;
        if (ring.cycles) {  // its remainder: of numbers below 2^16, by a multiplication
            component += place;
            component -= __umulhi(component, work_.measured.reciprocal) * work_.measured.components;
        }
        return shared_.circles[component];
    }
    // The shorter way round, if what is found can be trusted: the same as compare_on_circle finds.
    struct Round {
        double distance;
        bool trusted;
    };
    [[nodiscard]] static __device__ Round shorter_way(double difference, const Circle& circle) {
        constexpr double integers = 0x1.8p52;  // added and taken away, it rounds to them
        const double quotient = difference * circle.inverse;
        const double turns = (quotient + integers) - integers;
        const double past = quotient - turns;
        double distance = distance_on_circle(difference, turns, circle.period);
        if (absolute_value(past) > kHalfWay) {  // about half-way: rounding may have chosen the longer one
            const double other = distance_on_circle(difference, turns + copysign(1.0, past), circle.period);
            if (other < distance) distance = other;
        }
        return {distance, absolute_value(quotient) < 0x1p20 && absolute_value(difference) > 0x1p-900};
    }

    // A value of a floating-point type, as one of its width whose bits are those of the type, or lie on top.
    [[nodiscard]] __device__ Value typed(Value x) const {
        if constexpr (kKind == Kind::narrow) return x * work_.measured.key_scale;
        return x;
    }
    // False: a and b are so few values apart that they do not differ. True: maybe. quick_offset is what they may be apart,
    // quick_limit twice that; the bits of two signs are farther apart than any that is not 0.
    [[nodiscard]] __device__ bool may_differ(Value a, Value b) const {
        const auto x = bits_in(typed(a));
        using Bits = std::remove_const_t<decltype(x)>;
        return x - bits_in(typed(b)) + static_cast<Bits>(work_.measured.quick_offset) >
               static_cast<Bits>(work_.measured.quick_limit);
    }
    [[nodiscard]] __device__ bool far_enough(Value a, Value b) const {
        const auto x = key_of(typed(a));
        const auto y = key_of(typed(b));
        using Bits = std::make_unsigned_t<std::remove_const_t<decltype(x)>>;
        const Bits forward = static_cast<Bits>(x) - static_cast<Bits>(y);
        const Bits steps = x > y ? forward : 0 - forward;
        return steps >= static_cast<Bits>(work_.measured.least_steps);
    }

    // ---- looks ----

    // What a look at a lane's pairs finds.
    struct Found {
        double sum = 0;
        double sum_different = 0;
        std::uint32_t counts = 0;
        std::uint32_t counts_over = 0;
        std::uint32_t slots = 0;
        bool undecided = false;
        bool candidate = false;
        bool reaches = false;  // some distance is not below what is allowed
    };
    // One pair, at this distance. differing: it may differ. Without it a group that has such a pair is only noticed.
    template <bool kDiffering>
    __device__ void look_at(Value a, Value b, double magnitude, double distance, double allowed,
                            Found& f) const {
        f.candidate |= distance > distance_bound_;
        // d / |a| rounded is above a number if d lies above the product: rounding keeps order here, too.
        f.candidate |= fma(-quotient_bound_, magnitude, distance) > 0;
        f.sum = fma(distance, distance, f.sum);
        const BinEntry entry = bin_entry(distance);
        const std::uint32_t lower = 0 - base_slot_;
        const std::uint32_t upper = 4 - base_slot_;
        const std::uint32_t at = entry.slot + entry.scale * (distance >= entry.next ? upper : lower);
        const std::uint32_t one = one_in(at);
        f.slots |= at;
        f.counts += one;
        if constexpr (kDiffering) {
            bool differs = distance > allowed;
            if constexpr (kRule != Rule::plain) differs &= far_enough(a, b);  // & and no branch
            if (differs) {
                f.sum_different = fma(distance, distance, f.sum_different);
                f.counts_over += one;
                f.candidate |= fma(-different_bound_, magnitude, distance) > 0;
            }
        } else {
            bool reaches = distance >= allowed;
            if constexpr (kKind == Kind::f64) reaches = reaches && distance != 0;
            if constexpr (kRule != Rule::plain) reaches &= may_differ(a, b);
            f.reaches |= reaches;
        }
    }
    // All pairs, on a line.
    template <bool kDiffering>
    [[nodiscard]] __device__ Found look(const Value (&a)[kPairs], const Value (&b)[kPairs]) const {
        const double atol = work_.least_atol;
        const double rtol = work_.rtol;
        Found f;
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            const auto x = static_cast<double>(a[p]);
            const double magnitude = absolute_value(x);
            const double distance = absolute_value(x - static_cast<double>(b[p]));
            // Rounding keeps order, and `allowed` is rounded once: only d = allowed leaves a doubt.
            const double allowed = fma(magnitude, rtol, atol);
            if constexpr (kKind == Kind::f64) {  // denormal numbers: neither counters nor products hold them
                f.undecided |= distance != 0 && ((kDiffering && distance == allowed) || distance < 0x1p-1000);
            } else if constexpr (kDiffering) {
                f.undecided |= distance == allowed;
            }
            look_at<kDiffering>(a[p], b[p], magnitude, distance, allowed, f);
        }
        return f;
    }
    // All pairs, on their circles.
    [[nodiscard]] __device__ Found look_around(const Group& g) const {
        const Ring ring = ring_of(g);
        Value a[kPairs];
        Value b[kPairs];
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            const unsigned place = p * kLanes + lane_;
            a[p] = place < g.n ? value_of(state_.a, g, place) : 0;
            b[p] = place < g.n ? value_of(state_.b, g, place) : 0;
        }
        Found f;
        f.undecided = ring.mixed;
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            const auto x = static_cast<double>(a[p]);
            const double magnitude = absolute_value(x);
            const double difference = x - static_cast<double>(b[p]);
            const double allowed = fma(magnitude, work_.rtol, work_.least_atol);
            const Round round = shorter_way(difference, circle_of(ring, p * kLanes + lane_));
            const double distance = round.distance;
            const double beside = absolute_value(distance - allowed);
            const bool decided = round.trusted & beside > absolute_value(difference) * kRoundings;
            f.undecided |= difference != 0 & !decided;
            f.undecided |= distance != 0 & distance < 0x1p-1000;
            look_at<true>(a[p], b[p], magnitude, distance, allowed, f);
        }
        return f;
    }

    // ---- one group ----

    // Whether some pair may be nearer round its circle: if none is, no square of a distance comes to that of half-way round. If
    // so, the group is left for the next kernel.
    [[nodiscard]] __device__ bool left_over(const Group& g, const Found& f) {
        if (work_.measured.left == nullptr || !warp::any(!(f.sum < work_.measured.near_squared)))
            return false;
        left_ |= 1ULL << g.number;
        return true;
    }

    __device__ void group(const Group& g, const Words<kKind>& words_a, const Words<kKind>& words_b) {
        Value a[kPairs];
        Value b[kPairs];
        bool beyond = false;
        decode<kKind>(words_a, work_.scalar, a, &beyond);
        keep_largest(a);
        std::uint32_t apart = 0;
#pragma unroll
        for (unsigned i = 0; i < Stored<kKind>::kWords; ++i)
            apart |= words_a.word[i] ^ words_b.word[i];
        if (!warp::any(apart != 0) && work_.nan_equal) return;
        decode<kKind>(words_b, work_.scalar, b, &beyond);
        if (!differing_ && !work_.exactly) {
            const Found f = look<false>(a, b);
            // NaN and infinities leave their mark in the sum.
            bool rare = f.undecided || beyond || !(f.sum < kInfiniteDistance) || f.candidate || f.reaches ||
                        (f.slots & kOutlierBits) != 0;
            if constexpr (kRule == Rule::measured) rare |= !(f.sum < work_.measured.near_squared);
            if (!warp::any(rare)) {
                sum_ += f.sum;
                count<false>(f.counts, 0);
                return;
            }
            if constexpr (kRule == Rule::measured) {
                if (left_over(g, f)) return;
            }
            forget_distances(a, b);
        }
        const Found f = look<true>(a, b);
        if constexpr (kRule == Rule::measured) {
            if (left_over(g, f)) return;
        }
        const bool trouble =
            warp::any(f.undecided || beyond || !(f.sum < kInfiniteDistance)) || work_.exactly;
        bool candidate = f.candidate;
        if (!trouble) {
            keep(f);
            const bool outlier = (f.slots & kOutlierBits) != 0;
            const unsigned outliers = warp::ballot(outlier);
            bool differs = f.counts_over != 0;
            if (outliers != 0) {
                forget_distances(a, b);
                Outliers found;
#pragma unroll
                for (unsigned p = 0; p < kPairs; ++p)
                    count_outlier(distance_of(a[p], b[p]), found);
                differs |= found.differs;
                if (__popc(outliers) >= static_cast<int>(kManyLanes)) move_base(found);
            }
            differing_ = warp::any(differs);
            if (differing_) {
                candidate |= seeking_ && differs;
                forget_distances(a, b);
                mark_chunks(g);
            }
        }
        if (warp::any(trouble || candidate)) one_by_one(g, trouble);
    }
    __device__ void group_around(const Group& g) {
        const Found f = look_around(g);
        const bool trouble = warp::any(f.undecided || !(f.sum < kInfiniteDistance)) || work_.exactly;
        bool candidate = f.candidate;
        if (!trouble) {
            keep(f);
            const unsigned outliers = warp::ballot((f.slots & kOutlierBits) != 0);
            bool differs = f.counts_over != 0;
            if (outliers != 0) {
                Outliers found;
                const Ring ring = ring_of(g);
#pragma unroll 1
                for (unsigned i = lane_; i < g.n; i += kLanes)
                    count_outlier(distance_around(ring, g, i), found);
                differs |= found.differs;
                warp::sync();
                if (__popc(outliers) >= static_cast<int>(kManyLanes)) move_base(found);
            }
            if (warp::any(differs)) {
                candidate |= seeking_ && differs;
                mark_chunks(g);
            }
        }
        if (warp::any(trouble || candidate)) one_by_one(g, trouble);
    }
    __device__ void keep(const Found& f) {
        sum_ += f.sum;
        sum_different_ += f.sum_different;
        count<true>(f.counts, f.counts_over);
    }

    __device__ void keep_largest(const Value (&a)[kPairs]) {
        const Value before = top_;
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            if constexpr (sizeof(Value) == 4) {
                top_ = fmaxf(top_, fabsf(a[p]));  // skips NaN
            } else {
                const Value magnitude = absolute_value(a[p]);
                if (magnitude > top_) top_ = magnitude;
            }
        }
        if (static_cast<double>(top_) == kInfiniteDistance) {
            top_ = before;
#pragma unroll
            for (unsigned p = 0; p < kPairs; ++p) {
                const Value magnitude = a[p] < 0 ? -a[p] : a[p];
                if (magnitude > top_ && static_cast<double>(magnitude) < kInfiniteDistance) top_ = magnitude;
            }
        }
    }

    struct Distance {
        double distance;
        bool differs;
    };
    // Kept for what comes to it rarely, the lanes' distances would take registers from all groups.
    static __device__ void forget_distances(Value (&a)[kPairs], Value (&b)[kPairs]) {
#pragma unroll
        for (unsigned p = 0; p < kPairs; ++p) {
            forget(a[p]);
            forget(b[p]);
        }
    }
    // Of a pair that is no trouble.
    [[nodiscard]] __device__ Distance distance_of(Value a, Value b) const {
        const auto x = static_cast<double>(a);
        const double distance = absolute_value(x - static_cast<double>(b));
        bool differs = distance > fma(absolute_value(x), work_.rtol, work_.least_atol);
        if constexpr (kRule != Rule::plain) differs = differs && far_enough(a, b);
        return {distance, differs};
    }
    [[nodiscard]] __device__ Distance distance_around(const Ring& ring, const Group& g,
                                                      unsigned place) const {
        const Value a = value_of(state_.a, g, place);
        const Value b = value_of(state_.b, g, place);
        const auto x = static_cast<double>(a);
        const double distance = shorter_way(x - static_cast<double>(b), circle_of(ring, place)).distance;
        return {distance,
                distance > fma(absolute_value(x), work_.rtol, work_.least_atol) && far_enough(a, b)};
    }

    // Some pair of the group differs. Where chunks are made of whole groups, put_marks() says so for the tile.
    __device__ void mark_chunks(const Group& g) {
        if (work_.whole_groups) {
            marks_ |= 1ULL << g.number;
            return;
        }
#pragma unroll 1
        for (unsigned i = lane_; i < g.n; i += kLanes) {
            if (pair_of(g, i).pair.differs) mark_chunk(g, i);
        }
    }
    __device__ void put_marks() const {
        if (marks_ == 0) return;
        warp::sync();
#pragma unroll 1
        for (unsigned number = lane_; number < kTileGroups; number += kLanes) {
            if ((marks_ >> number & 1) != 0) mark_chunk({number, kGroup, true}, 0);
        }
        warp::sync();
    }
    __device__ void mark_chunk(const Group& g, unsigned place) const {
        const std::uint64_t from = state_.before + g.number * kGroup + place;
        const std::uint64_t size = work_.chunk_scalars;
        // Both are small nearly always, and a division of 32 bits is a third of one of 64.
        const std::uint64_t chunks = ((from | size) >> 32) == 0
                                         ? static_cast<std::uint32_t>(from) / static_cast<std::uint32_t>(size)
                                         : from / size;
        work_.chunk_differs[state_.chunk + chunks] = 1;
    }

    // Those distances that have no counters in registers.
    struct Outliers {
        std::uint32_t highest = 0;
        bool differs = false;  // one of them does
    };
    __device__ void count_outlier(const Distance& d, Outliers& found) {
        if (d.distance == 0) return;
        const std::uint32_t at = bin(d.distance);
        found.highest = at > found.highest ? at : found.highest;
        if (at - base_slot_ / 4 < kSlots) return;
        atomicAdd(&shared_.all[at], 1U);
        if (!d.differs) return;
        atomicAdd(&shared_.over[at], 1U);
        found.differs = true;
    }
    // Room for one decade above and six below what is highest now.
    __device__ void move_base(const Outliers& found) {
        const std::uint32_t highest = warp::largest(found.highest);
        const std::uint32_t base = highest > 6 ? 4 * (highest - 6) : 4;
        if (base == base_slot_) return;
        flush();
        base_slot_ = base;
    }

    [[nodiscard]] __device__ Value value_of(const std::byte* run, const Group& g, unsigned place) const {
        const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(work_.scalar);
        const std::uint64_t bits = word_at(run + (std::size_t{g.number} * kGroup + place) * bytes, bytes);
        if constexpr (kKind == Kind::f64) {
            return as_double(bits);
        } else if constexpr (kKind == Kind::f32) {
            return float_of(static_cast<std::uint32_t>(bits));
        } else {
            return from_narrow(static_cast<std::uint32_t>(bits), work_.scalar);
        }
    }
    // One pair of a group from memory, by the reference.
    [[nodiscard]] __device__ ExactPair pair_of(const Group& g, unsigned place) const {
        const unsigned bytes = kKind == Kind::f32 ? 4 : kKind == Kind::f64 ? 8 : bytes_of(work_.scalar);
        const DifferenceRule rule{{work_.atol, work_.rtol}, work_.nan_equal};
        const std::size_t from = (std::size_t{g.number} * kGroup + place) * bytes;
        double period = 0;
        std::uint64_t ulps = 0;
        if constexpr (kRule != Rule::plain) ulps = work_.measured.ulps;
        if constexpr (kRule == Rule::around) {
            const std::uint64_t scalar = state_.index + g.number * kGroup + place;
            const Measured& m = work_.measured;
            period = shared_.circles[scalar / m.component_stride % m.components].period;
        }
        return exact_pair<kKind, kRule>(word_at(state_.a + from, bytes), word_at(state_.b + from, bytes),
                                        work_.scalar, rule, ulps, period);
    }

    // All pairs of a group from memory, by the reference. everything: all statistics; else only the maxima and the first one
    // that differs.
    __device__ void one_by_one(const Group& g, bool everything) {
        Best best[3] = {{0, kNowhere}, {0, kNowhere}, {0, kNowhere}};
        std::uint64_t first = kNowhere;
        bool differs = false;
        const std::uint64_t index = state_.index + g.number * kGroup;
#pragma unroll 1
        for (unsigned i = lane_; i < g.n; i += kLanes) {
            const ExactPair exact = pair_of(g, i);
            const double distance = exact.pair.distance;
            if (distance == 0 && !exact.pair.differs) continue;
            const std::uint64_t at = index + i;
            const bool infinite = distance == kInfiniteDistance;
            const double quotient =
                infinite || exact.magnitude == 0 ? kInfiniteDistance : distance / exact.magnitude;
            raise(best[0], distance, at);
            raise(best[1], quotient, at);
            if (exact.pair.differs) {
                raise(best[2], quotient, at);
                first = at < first ? at : first;
            }
            if (!everything) continue;
            const std::uint32_t decade = distance == 0 ? 0 : bin(distance);  // 0: rounded to it
            atomicAdd(&shared_.all[decade], 1U);
            if (!infinite) sum_ += distance * distance;
            if (!exact.pair.differs) continue;
            atomicAdd(&shared_.over[decade], 1U);
            if (!infinite) sum_different_ += distance * distance;
            differs = true;
            if (!work_.whole_groups) mark_chunk(g, i);
        }
        warp::sync();
        if (warp::any(differs) && work_.whole_groups) marks_ |= 1ULL << g.number;
        keep_best(best, first, index + g.n);
        seeking_ = index + g.n <= state_.first;
    }

    const Work& work_;
    Shared& shared_;
    WarpState& state_;
    unsigned lane_;
    // One a lane.
    Value top_ = 0;
    double sum_ = 0;
    double sum_different_ = 0;
    std::uint32_t all_[2] = {};
    std::uint32_t over_[2] = {};
    // The same in all lanes.
    double distance_bound_ = 0;
    double quotient_bound_ = 0;
    double different_bound_ = 0;
    std::uint32_t base_slot_ = 4;
    std::uint32_t pending_ = 0;
    std::uint64_t marks_ = 0;  // groups of the tile that hold a pair that differs
    bool seeking_ = false;     // the tile may hold the first pair that differs
    bool differing_ = false;   // the group before held one
    std::uint64_t left_ = 0;   // groups of the tile that are left for Rule::around
};

// ---- a block's work ----

__device__ inline void prepare_tables(const Work& work, Shared& shared, bool around) {
    if (around && threadIdx.x < Measure::kMostComponents) {
        const double period = work.measured.period[threadIdx.x];
        shared.circles[threadIdx.x] = {period, period > 0 ? 1 / period : 0};
    }
    for (unsigned i = threadIdx.x; i < 2048; i += kThreads)
        shared.bins[i] = kBinTable.entries[i];
}
__device__ inline void prepare_counts(Shared& shared, Totals* totals, std::uint32_t part) {
    for (unsigned i = threadIdx.x; i < kHistogramBins; i += kThreads)
        shared.all[i] = shared.over[i] = 0;
    if (threadIdx.x < kWarps) {
        WarpState& state = shared.warp[threadIdx.x];
        state.totals = totals;
        state.part = part;
        for (Best& best : state.best)
            best = {0, kNowhere};
        state.first = kNowhere;
    }
}
// What the block's warps found, after all of them have.
__device__ inline void give(const Shared& shared, Totals* totals, Partial* to) {
    for (unsigned i = threadIdx.x; i < kHistogramBins; i += kThreads) {
        if (shared.all[i] != 0) atomicAdd(&totals->all[i], Count64{shared.all[i]});
        if (shared.over[i] != 0) atomicAdd(&totals->over[i], Count64{shared.over[i]});
    }
    if (threadIdx.x != 0) return;
    Partial partial{0, 0, 0, kNowhere, {{0, kNowhere}, {0, kNowhere}, {0, kNowhere}}};
    for (unsigned w = 0; w < kWarps; ++w) {
        const WarpState& state = shared.warp[w];
        partial.sum += shared.sums[2 * w];
        partial.sum_different += shared.sums[2 * w + 1];
        partial.largest = shared.largest[w] > partial.largest ? shared.largest[w] : partial.largest;
        partial.first = state.first < partial.first ? state.first : partial.first;
        for (unsigned which = 0; which < 3; ++which)
            raise(partial.best[which], state.best[which].value, state.best[which].at);
    }
    *to = partial;
}

template <Kind kKind, Rule kRule>
__global__ void __launch_bounds__(kThreads, kBlocksEach) compare_kernel(const __grid_constant__ Work work) {
    __shared__ Shared shared;
    prepare_tables(work, shared, kRule == Rule::around);
    prepare_counts(shared, work.totals, kAnyPart);
    __syncthreads();
    Warp<kKind, kRule>(work, shared)
        .run(std::uint64_t{blockIdx.x} * kWarps, work.tiles, std::uint64_t{gridDim.x} * kWarps);
    __syncthreads();
    give(shared, work.totals, work.partials + blockIdx.x);
}

// Each part has totals of its own, each share a partial: which block takes a share changes nothing.
template <Kind kKind, Rule kRule>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    compare_pairs_kernel(const __grid_constant__ Work work, const Share* shares, std::uint32_t count,
                         std::uint32_t* next) {
    __shared__ Shared shared;
    __shared__ std::uint32_t taken;
    prepare_tables(work, shared, false);
    for (;;) {
        if (threadIdx.x == 0) taken = atomicAdd(next, 1U);
        __syncthreads();
        const std::uint32_t number = taken;
        if (number >= count) return;
        const Share share = shares[number];
        Totals* const totals = work.totals + share.part;
        prepare_counts(shared, totals, share.part);
        __syncthreads();
        Warp<kKind, kRule>(work, shared).run(share.tile, share.tile + share.tiles, kWarps);
        __syncthreads();
        give(shared, totals, work.partials + number);
        __syncthreads();
    }
}

// How many chunks are marked; words of 16 marks. Every `step`-th word from `begin` on; of the thread.
__device__ inline unsigned marks_in(const uint4* marks, std::uint64_t begin, std::uint64_t words,
                                    std::uint64_t step) {
    unsigned count = 0;
    for (std::uint64_t i = begin; i < words; i += step) {
        const uint4 w = marks[i];
        count += static_cast<unsigned>(__popc(w.x) + __popc(w.y) + __popc(w.z) + __popc(w.w));
    }
    return count;
}

__global__ void __launch_bounds__(kFinishThreads)
    count_chunks(const uint4* marks, std::uint64_t words, Totals* totals) {
    const unsigned count = warp::sum(marks_in(marks, std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                                              words, std::uint64_t{gridDim.x} * blockDim.x));
    if (threadIdx.x % kLanes == 0 && count != 0) atomicAdd(&totals->chunks, Count64{count});
}

__device__ inline void merge(Partial& into, const Partial& other) {
    into.sum += other.sum;
    into.sum_different += other.sum_different;
    into.largest = other.largest > into.largest ? other.largest : into.largest;
    into.first = other.first < into.first ? other.first : into.first;
    for (unsigned which = 0; which < 3; ++which)
        raise(into.best[which], other.best[which].value, other.best[which].at);
}

// The block's threads put partials together, always in the same order. found: one a thread.
__device__ inline void put_together(const Partial* partials, std::uint32_t count, const Totals* totals,
                                    std::uint64_t scalars, Partial* found, DeviceDifferenceResult* result) {
    Partial mine{0, 0, 0, kNowhere, {{0, kNowhere}, {0, kNowhere}, {0, kNowhere}}};
    for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        merge(mine, partials[i]);
    found[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half != 0; half /= 2) {
        if (threadIdx.x < half) merge(found[threadIdx.x], found[threadIdx.x + half]);
        __syncthreads();
    }
    DifferenceStats& stats = result->stats;
    auto* all = reinterpret_cast<std::uint64_t*>(&stats.all);
    auto* over = reinterpret_cast<std::uint64_t*>(&stats.over);
    for (unsigned i = threadIdx.x; i < kHistogramBins; i += blockDim.x) {
        if (i != 0) all[i] = totals->all[i];
        over[i] = totals->over[i];
    }
    if (threadIdx.x != 0) return;
    const Partial& sum = found[0];
    std::uint64_t unequal = 0;
    std::uint64_t different = 0;
    for (unsigned i = 0; i < kHistogramBins; ++i) {
        if (i != 0) unequal += totals->all[i];
        different += totals->over[i];
    }
    all[0] = scalars - unequal;
    stats.scalars = scalars;
    stats.different = different;
    stats.infinite = totals->over[kHistogramBins - 1];
    stats.first = sum.first;
    stats.max_abs = sum.best[0].value;
    stats.max_abs_at = sum.best[0].at;
    stats.max_rel = sum.best[1].value;
    stats.max_rel_at = sum.best[1].at;
    stats.max_rel_different = sum.best[2].value;
    stats.max_rel_different_at = sum.best[2].at;
    stats.largest = sum.largest;
    stats.sum_squares = sum.sum;
    stats.sum_squares_different = sum.sum_different;
    result->different_chunks = totals->chunks;
}

// One block.
__global__ void __launch_bounds__(kFinishThreads)
    finish(const Partial* partials, unsigned count, const Totals* totals, std::uint64_t scalars,
           DeviceDifferenceResult* result) {
    __shared__ Partial found[kFinishThreads];
    put_together(partials, count, totals, scalars, found, result);
}

// A block a pair. first_share: the number of each part's first share, and that of all.
__global__ void __launch_bounds__(kPairThreads)
    finish_pairs(const Work work, const std::uint32_t* first_share, DevicePairResult* results) {
    __shared__ Partial found[kPairThreads];
    __shared__ unsigned chunks;
    const Part part = work.parts[blockIdx.x];
    Totals* const totals = work.totals + blockIdx.x;
    DevicePairResult* const result = results + blockIdx.x;
    const std::uint64_t marks = (part.scalars - 1) / work.chunk_scalars + 1;
    if (threadIdx.x == 0) chunks = 0;
    __syncthreads();
    const unsigned mine = warp::sum(marks_in(reinterpret_cast<const uint4*>(work.chunk_differs + part.chunk),
                                             threadIdx.x, (marks - 1) / sizeof(uint4) + 1, blockDim.x));
    if (threadIdx.x % kLanes == 0) atomicAdd(&chunks, mine);
    const std::uint32_t from = first_share[blockIdx.x];
    put_together(work.partials + from, first_share[blockIdx.x + 1] - from, totals, part.scalars, found,
                 &result->found);
    if (threadIdx.x != 0) return;
    result->found.different_chunks = chunks;
    const unsigned bytes = bytes_of(work.scalar);
    const auto bits = [&](const std::byte* run, std::uint64_t at) {
        return at == kNowhere ? 0 : word_at(run + (at - part.index) * bytes, bytes);
    };
    const DifferenceStats& stats = result->found.stats;
    result->first_bits[0] = bits(part.a, stats.first);
    result->first_bits[1] = bits(part.b, stats.first);
    result->largest_bits[0] = bits(part.a, stats.max_abs_at);
    result->largest_bits[1] = bits(part.b, stats.max_abs_at);
}

}  // namespace

}  // namespace twinrun
