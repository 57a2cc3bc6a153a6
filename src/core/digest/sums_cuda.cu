// Sums of digests on a device: table of sums_device.hpp.
//
// The part is taken in tasks of consecutive scalars. A group of lanes takes a task: as many as read
// 32 bytes together, or fewer where rows are short, so that each lane has some 16 scalars of a row.
// Lane i takes every scalar i, i + lanes, ... of a row's stretch within one block, whose
// coefficients and weight are the same for all of the group.
//
// A product r q is several of 32 bits: r in halves of 30 bits, an absolute cell q in a low part of
// 26 bits and the signed rest. Small cells of floats have one part; relative ones have two of 16
// bits where they fit 32, and three of 20 else. Their sums stay in 64 bits and are reduced mod p
// where a block ends, not a scalar. The coarse sum follows from the fine one and that
// of the cells' low bits, as in digest_kernel.cuh: q = 2^k q0 + low.
//
// Where the bucket ends the group adds up its lanes and adds the result to the bucket's, in halves
// of 32 bits: 2^32 additions do not overflow, and the order does not matter.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "device/warp.cuh"
#include "digest/digest_sources.cuh"
#include "digest/sums_device.hpp"

namespace twinrun {

namespace gpu {

namespace {

constexpr unsigned kSumsThreads = 256;
constexpr unsigned kSumsWarps = kSumsThreads / 32;
// Thread blocks of a multiprocessor: registers count for more than warps. Doubles, whole planes, in
// groups of 32 lanes, H200: 2310 GB/s with 2 and batches of 8, 2243 with 3 and batches of 4, 1220
// with 4.
constexpr unsigned kBlocksEach = 2;
// Those of a binary32's bits hold less: 10% more.
constexpr unsigned kBlocksOfBits = 3;
constexpr unsigned kMostBlocks = kLargestChunk / kBlockBytes;  // of a bucket
constexpr std::uint64_t kRowOfALane = 16;                      // scalars of a row that a lane should have
constexpr std::uint64_t kMostOfALane = 256;                    // of a task
constexpr std::uint64_t kLeastOfALane = 32;
constexpr std::uint64_t kManyTasks = 1 << 15;  // of warps: enough to keep all of them busy

// One item, as kernels take it.
struct Part {
    const std::byte* data;
    std::uint64_t first;
    std::uint64_t end;
    std::uint64_t row_scalars;
    std::uint64_t base;
    const std::uint64_t* buckets;
    std::uint64_t bucket_count;
    const std::uint64_t* bits;
    const std::uint32_t* before;
    std::uint64_t first_bucket;
    std::uint64_t first_slot;
    std::uint64_t* halves;
    std::uint64_t first_warp;    // tasks of warps before its own
    std::uint64_t task_scalars;  // of one group
    std::uint64_t skew;          // the first task begins this many scalars before `first`
    double inverse;              // as Field::inverse
    CellRule rule;
    DType scalar;
    std::uint8_t bucket_shift;  // log2 of its scalars
    std::uint8_t group_shift;   // log2 of its lanes
    std::uint32_t axis_count;
    DeviceSumsItem::Axis axes[kMostSumsAxes];
};

struct SumsLaunch {
    const Part* parts;
    std::uint32_t count;
    std::uint64_t warps;  // tasks of warps
};

// To a number in global memory, without waiting for what it was. (Of an address that may lie
// anywhere the compiler makes an addition that waits: half the speed.)
__device__ inline void add_to(std::uint64_t* to, std::uint64_t value) {
#if defined(__CUDA_ARCH__)
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(value)
                 : "memory");
#else
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
#endif
}

// x 2^k mod p for x below 2^61, k below 61.
__device__ inline std::uint64_t shifted61(std::uint64_t x, unsigned k) {
    return k == 0 ? x : reduce61(((x << k) & kPrime) | (x >> (61 - k)));
}

// ---- a lane's products since it last folded them ----

// The sum of halves of coefficients times what both had as a factor.
__device__ inline std::uint64_t joined61(const std::uint64_t (&by)[2]) {
    return add61(reduce61(by[0]), shifted61(reduce61(by[1]), 30));
}
__device__ inline std::uint64_t joined61(const std::int64_t (&by)[2]) {
    return add61(signed61(by[0]), shifted61(signed61(by[1]), 30));
}
__device__ inline void add_halves(std::uint64_t (&by)[2], uint2 r, std::uint32_t factor) {
    by[0] += std::uint64_t{r.x} * factor;
    by[1] += std::uint64_t{r.y} * factor;
}
__device__ inline void add_halves(std::int64_t (&by)[2], uint2 r, std::int32_t factor) {
    by[0] += std::int64_t{static_cast<std::int32_t>(r.x)} * factor;
    by[1] += std::int64_t{static_cast<std::int32_t>(r.y)} * factor;
}

// Of tokens: any numbers below p.
template <CellKind Kind>
struct Products {
    std::uint64_t sum = 0;
    __device__ void add(uint2 r, std::uint64_t v, std::uint32_t /*mask*/) {
        sum = add61(sum, multiply61(r.x | static_cast<std::uint64_t>(r.y) << 30, v));
    }
    __device__ std::uint64_t fine() const { return sum; }
    __device__ std::uint64_t of_low_bits() const { return 0; }
};

// Three parts of 20 bits, the upper one signed: |q| < 2^59.
template <>
struct Products<CellKind::relative> {
    static constexpr unsigned kPart = 20;
    std::uint64_t by_low[2] = {};
    std::uint64_t by_middle[2] = {};
    std::int64_t by_high[2] = {};
    std::uint64_t low[2] = {};
    __device__ void add(uint2 r, std::uint64_t v, std::uint32_t mask) {
        constexpr std::uint32_t kOfPart = (1U << kPart) - 1;
        constexpr auto kNothing =
            static_cast<std::uint32_t>(Cells<CellKind::relative>::kNeutral >> 2 * kPart);
        const auto lowest = static_cast<std::uint32_t>(v);
        const auto upper = static_cast<std::uint32_t>(v >> 32);
        add_halves(by_low, r, lowest & kOfPart);
        add_halves(by_middle, r, static_cast<std::uint32_t>(v >> kPart) & kOfPart);
        add_halves(by_high, r, static_cast<std::int32_t>((upper >> (2 * kPart - 32)) - kNothing));
        add_halves(low, r, lowest & mask);
    }
    __device__ std::uint64_t fine() const {
        return add61(joined61(by_low),
                     add61(shifted61(joined61(by_middle), kPart), shifted61(joined61(by_high), 2 * kPart)));
    }
    __device__ std::uint64_t of_low_bits() const { return joined61(low); }
};

template <>
struct Products<CellKind::absolute> {
    static constexpr unsigned kLow = 26;
    std::uint64_t by_low[2] = {};
    std::int64_t by_high[2] = {};
    std::uint64_t low[2] = {};
    __device__ void add(uint2 r, std::uint64_t v, std::uint32_t mask) {
        constexpr auto kNothing = static_cast<std::uint32_t>(Cells<CellKind::absolute>::kNeutral >> kLow);
        const auto lowest = static_cast<std::uint32_t>(v);
        add_halves(by_low, r, lowest & ((1U << kLow) - 1));
        add_halves(by_high, r, static_cast<std::int32_t>(static_cast<std::uint32_t>(v >> kLow) - kNothing));
        add_halves(low, r, lowest & mask);
    }
    __device__ std::uint64_t fine() const {
        return add61(joined61(by_low), shifted61(joined61(by_high), kLow));
    }
    __device__ std::uint64_t of_low_bits() const { return joined61(low); }
};

// The same with small cells, which are below 2^22: as Cells<absolute>::small() gives them.
struct SmallProducts : Products<CellKind::absolute> {
    std::int64_t by_small[2] = {};
    bool other = false;  // than small ones
    __device__ void add_small(uint2 r, std::uint32_t v, std::uint32_t mask) {
        constexpr std::uint32_t kNothing = 0x4B400000;  // 1.5 2^23
        add_halves(by_small, r, static_cast<std::int32_t>(v - kNothing));
        add_halves(low, r, v & mask);
    }
    __device__ void add(uint2 r, std::uint64_t v, std::uint32_t mask) {
        other = true;
        Products::add(r, v, mask);
    }
    __device__ std::uint64_t fine() const {
        const std::uint64_t small = joined61(by_small);
        return other ? add61(small, Products::fine()) : small;
    }
};

// Halves of 32 bits, the upper one signed.
template <>
struct Products<CellKind::binary32> {
    std::uint64_t by_low[2] = {};
    std::int64_t by_high[2] = {};
    __device__ void add(uint2 r, std::uint64_t v, std::uint32_t /*mask*/) {
        static_assert((Cells<CellKind::binary32>::kNeutral & 0xFFFFFFFF) == 0);
        add_cell(r, static_cast<std::int32_t>(v));
    }
    __device__ void add_cell(uint2 r, std::int32_t q) {
        add_halves(by_low, r, static_cast<std::uint32_t>(q) & 0xFFFF);
        add_halves(by_high, r, q >> 16);
    }
    __device__ std::uint64_t fine() const {
        return add61(joined61(by_low), shifted61(joined61(by_high), 16));
    }
    __device__ std::uint64_t of_low_bits() const { return 0; }
};

// Of relative cells that fit 32 bits.
struct ShortProducts : Products<CellKind::binary32> {
    std::uint64_t low[2] = {};
    __device__ void add_short(uint2 r, std::int32_t q, std::uint32_t mask) {
        add_cell(r, q);
        add_halves(low, r, static_cast<std::uint32_t>(q) & mask);
    }
    __device__ std::uint64_t of_low_bits() const { return joined61(low); }
};

// Quarters of 64 bits, whose products with halves of coefficients leave room for 255 of them.
template <>
struct Products<CellKind::words> {
    std::uint64_t by_quarter[4][2] = {};
    __device__ void add(uint2 r, std::uint64_t v, std::uint32_t /*mask*/) {
        const auto low = static_cast<std::uint32_t>(v);
        const auto high = static_cast<std::uint32_t>(v >> 32);
        const std::uint32_t quarters[4] = {low & 0xFFFF, low >> 16, high & 0xFFFF, high >> 16};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            add_halves(by_quarter[i], r, quarters[i]);
    }
    __device__ std::uint64_t fine() const {
        const std::uint64_t upper = add61(quarter(2), shifted61(quarter(3), 16));
        return add61(add61(quarter(0), shifted61(quarter(1), 16)), multiply61(upper, kWordFactor));
    }
    __device__ std::uint64_t of_low_bits() const { return 0; }

   private:
    __device__ std::uint64_t quarter(int i) const { return joined61(by_quarter[i]); }
};

// What a value out of the products' range adds. Its low part is what makes the coarse sum right.
// nan: a coefficient.
struct Far {
    std::uint64_t fine = 0;
    std::uint64_t low = 0;
    std::uint64_t nan = 0;
};
// (not inlined: the loop's registers are not for it)
__device__ __noinline__ Far far_value(std::uint64_t raw, DType scalar, uint2 halves, const CellRule* rule) {
    const std::uint64_t r = halves.x | static_cast<std::uint64_t>(halves.y) << 30;
    const double x = value_of(raw, scalar);
    Far far;
    if (x != x && scalar != DType::i64 && scalar != DType::u64) {
        far.nan = r;
        return far;
    }
    const std::uint64_t fine = field_value(cell_of_raw(raw, scalar, *rule, 0));
    far.fine = multiply61(r, fine);
    const unsigned shift = rule->coarse_shift;
    if (shift == 0) return far;
    const std::uint64_t coarse = field_value(cell_of_raw(raw, scalar, *rule, static_cast<int>(shift)));
    far.low = multiply61(r, subtract61(fine, shifted61(coarse, shift)));
    return far;
}

// ---- the kernel ----

// Lanes of a wide group, a logarithm. Fewer lanes have more of a block to add up before they must
// reduce it; but memory comes by 32 bytes. Of doubles that begin between these, 4 lanes lost 14%.
__host__ __device__ constexpr unsigned wide_shift(unsigned item_shift) {
    return item_shift == 3 ? 3 : 5 - item_shift;
}

// Wide: of wide groups. Short: relative cells fit 32 bits.
template <class Source, CellKind Kind, bool Wide, bool Short>
class Adder {
   public:
    static_assert(!Short || (Kind == CellKind::relative && Source::kFixed));
    static constexpr bool kExact = is_exact(Kind);
    // Small cells are made from floats.
    static constexpr bool kMayBeSmall = Source::kFixed && Source::kNarrow && Kind == CellKind::absolute;
    // Scalars that a lane takes at once. What is on its way from memory bounds the rate: with 16 of
    // 2 or 4 bytes it is 1.3 times what it is with 8. (Those of a binary32's bits have fewer
    // registers, and lose by it; so do short rows.)
    static constexpr bool kMany =
        Kind == CellKind::absolute || Kind == CellKind::binary32 || Kind == CellKind::relative;
    static constexpr bool kWideBatch = Wide && Source::kItemShift < 3 && Kind != CellKind::binary32;
    static constexpr int kBatch = !kMany || !Source::kFixed ? 4 : kWideBatch ? 16 : 8;
    static constexpr int kSmallBatch = kBatch < 8 ? kBatch : 8;
    // After so many a lane folds. A block's stretch brings 128 more and a batch that is not full;
    // 255 fit 64 bits.
    static constexpr unsigned kMostAdded = 120 - kBatch;

    __device__ Adder(const Part& part, const uint2* coefficients, const std::uint64_t* rho,
                     unsigned item_shift)
        : part_(part),
          coefficients_(coefficients),
          rho_(rho),
          item_shift_(Source::kFixed ? Source::kItemShift : item_shift),
          block_shift_(12 - item_shift_),
          lanes_(1U << (Wide ? wide_shift(item_shift_) : part.group_shift)),
          lane_(threadIdx.x & (lanes_ - 1)),
          mask_(((1ULL << lanes_) - 1) << (threadIdx.x % 32 & ~(lanes_ - 1))),
          inverse_(Kind == CellKind::relative ? part.rule.key_origin : part.inverse),
          exponent_(part.rule.fine_exponent),
          low_mask_((1U << part.rule.coarse_shift) - 1),
          scale_(static_cast<float>(part.inverse)),
          may_be_small_(kMayBeSmall && Cells<CellKind::absolute>::may_be_small(part.rule.fine_exponent)),
          plain_(Kind == CellKind::relative && Cells<CellKind::relative>::all_narrow<Source::kNarrow>(
                                                   part.rule.key_origin, part.rule.fine_exponent)) {}

    // Scalars [at, end) of the part.
    __device__ void run(std::uint64_t at, std::uint64_t end) {
        const std::uint64_t width = part_.row_scalars;
        std::uint64_t row = at / width;
        std::uint64_t within = at - row * width;
        const std::byte* data = part_.data + ((at - part_.first) << item_shift_);
        std::uint64_t left = end - at;
        std::uint64_t rows_left = 0;  // of the fastest axis, this one too
        std::uint64_t start = start_of(row, rows_left);
        const unsigned blocks = part_.bucket_shift - block_shift_;
        block_ = (start + within) >> block_shift_;
        for (;;) {
            const std::uint64_t index = start + within;
            const std::uint64_t block = index >> block_shift_;
            if (left == 0 || block != block_ || added_ > kMostAdded) {
                fold();
                if (left == 0 || block >> blocks != block_ >> blocks) flush();
                if (left == 0) break;
                block_ = block;
            }
            const unsigned position = static_cast<unsigned>(index) & ((1U << block_shift_) - 1);
            std::uint64_t n = (1U << block_shift_) - position;
            n = n < width - within ? n : width - within;
            n = n < left ? n : left;
            take(data, position, static_cast<unsigned>(n));
            left -= n;
            data += n << item_shift_;
            within += n;
            if (within == width && left != 0) {
                within = 0;
                ++row;
                if (--rows_left != 0) {
                    start += part_.axes[0].stride;
                } else {
                    start = start_of(row, rows_left);
                }
            }
        }
    }

   private:
    __device__ std::uint64_t start_of(std::uint64_t row, std::uint64_t& rows_left) const {
        std::uint64_t at = part_.base;
        rows_left = 1;
        for (std::uint32_t k = 0; k < part_.axis_count; ++k) {
            const DeviceSumsItem::Axis axis = part_.axes[k];
            std::uint64_t above = 0;
            if (((row | axis.extent) >> 32) == 0) {
                above = static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(axis.extent);
            } else {
                above = row / axis.extent;
            }
            const std::uint64_t number = row - above * axis.extent;
            if (k == 0) rows_left = axis.extent - number;
            at += number * axis.stride;
            row = above;
        }
        return at;
    }

    // n scalars of one block.
    __device__ void take(const std::byte* data, unsigned position, unsigned n) {
        unsigned i = lane_;
        for (; i + (kBatch - 1) * lanes_ < n; i += kBatch * lanes_)
            take_batch<kBatch, true>(data, position, i, n);
        if constexpr (kBatch != kSmallBatch) {
            if (i + (kSmallBatch - 1) * lanes_ < n) {
                take_batch<kSmallBatch, true>(data, position, i, n);
                i += kSmallBatch * lanes_;
            }
        }
        if (i < n) take_batch<kSmallBatch, false>(data, position, i, n);
    }

    // Of the scalar `at` of n, which begin at this position of the block. 0 where nothing is.
    template <bool Full>
    __device__ uint2 coefficient_of(unsigned position, unsigned at, unsigned n) const {
        return Full || at < n ? coefficients_[position + at] : uint2{0, 0};
    }

    template <int Batch, bool Full>
    __device__ void take_batch(const std::byte* data, unsigned position, unsigned i, unsigned n) {
        std::uint64_t v[Batch];
        std::uint32_t outside = 0;
        const std::byte* from = data + (std::size_t{i} << item_shift_);
#pragma unroll
        for (int k = 0; k < Batch; ++k) {
            const unsigned behind = static_cast<unsigned>(k) * lanes_;
            v[k] = Full || i + behind < n ? raw_at(from, behind) : 0;
        }
        if constexpr (kMayBeSmall) {
            if (may_be_small_ && take_small<Batch, Full>(v, position, i, n)) return;
        }
        if constexpr (Short) {
            take_short<Batch, Full>(v, data, position, i, n);
            return;
        }
        std::uint32_t largest = 0;
#pragma unroll
        for (int k = 0; k < Batch; ++k) {
            if constexpr (Kind == CellKind::words) {
                if (scalar() == DType::f64) v[k] = binary64_bits(value_of(v[k], DType::f64));
            } else if (Kind == CellKind::relative && plain_) {
                v[k] =
                    Cells<CellKind::relative>::plain(value_of(v[k], scalar()), inverse_, exponent_, largest);
            } else {
                v[k] = Cells<Kind>::biased(value_of(v[k], scalar()), inverse_, exponent_);
                outside |= Cells<Kind>::outside(v[k]);
            }
        }
        if constexpr (Kind == CellKind::relative) {
            if (largest >= 0x7FF00000U) {
#pragma unroll
                for (int k = 0; k < Batch; ++k) {
                    const unsigned at = i + static_cast<unsigned>(k) * lanes_;
                    if (Full || at < n) v[k] = relative_cell(raw_at(data, at));
                    outside |= Cells<Kind>::outside(v[k]);
                }
            }
        }
        if constexpr (Kind != CellKind::words) {
            if (outside != 0) {
                std::uint32_t far = 0;
#pragma unroll
                for (int k = 0; k < Batch; ++k) {
                    if (Cells<Kind>::outside(v[k]) == 0) continue;
                    v[k] = Cells<Kind>::kNeutral;
                    if (Full || i + static_cast<unsigned>(k) * lanes_ < n) far |= 1U << k;
                }
                take_far(data, position, i, far);
            }
        }
#pragma unroll
        for (int k = 0; k < Batch; ++k) {
            const unsigned at = i + static_cast<unsigned>(k) * lanes_;
            products_.add(coefficient_of<Full>(position, at, n), v[k], low_mask_);
        }
        added_ += Batch;
    }
    // A batch of which all cells are small. False, and nothing done, if one of them is not.
    template <int Batch, bool Full>
    __device__ bool take_small(const std::uint64_t (&raw)[Batch], unsigned position, unsigned i, unsigned n) {
        using Small = Cells<CellKind::absolute>;
        std::uint32_t v[Batch];
        std::uint32_t differences = 0;
#pragma unroll
        for (int k = 0; k < Batch; ++k) {
            v[k] = Small::small(Source::number(static_cast<std::uint32_t>(raw[k])), scale_);
            differences |= Small::small_difference(v[k]);
        }
        if (!Small::all_small(differences)) return false;
#pragma unroll
        for (int k = 0; k < Batch; ++k) {
            const unsigned at = i + static_cast<unsigned>(k) * lanes_;
            products_.add_small(coefficient_of<Full>(position, at, n), v[k], low_mask_);
        }
        added_ += Batch;
        return true;
    }
    // Of any value.
    __device__ std::uint64_t relative_cell(std::uint64_t raw) const {
        return Cells<CellKind::relative>::biased(value_of(raw, scalar()), inverse_, exponent_);
    }
    // A batch of relative cells that fit 32 bits.
    template <int Batch, bool Full>
    __device__ void take_short(const std::uint64_t (&raw)[Batch], const std::byte* data, unsigned position,
                               unsigned i, unsigned n) {
        std::int32_t q[Batch];
        std::uint32_t largest = 0;
#pragma unroll
        for (int k = 0; k < Batch; ++k) {
            q[k] = Cells<CellKind::relative>::short_cell(value_of(raw[k], scalar()), inverse_, exponent_,
                                                         largest);
        }
        if (largest >= 0x7FF00000U) {
            std::uint32_t far = 0;
#pragma unroll
            for (int k = 0; k < Batch; ++k) {
                const unsigned at = i + static_cast<unsigned>(k) * lanes_;
                if (!Full && at >= n) continue;
                if (Cells<CellKind::relative>::outside(relative_cell(raw_at(data, at))) == 0) continue;
                q[k] = 0;
                far |= 1U << k;
            }
            take_far(data, position, i, far);
        }
#pragma unroll
        for (int k = 0; k < Batch; ++k) {
            const unsigned at = i + static_cast<unsigned>(k) * lanes_;
            products_.add_short(coefficient_of<Full>(position, at, n), q[k], low_mask_);
        }
        added_ += Batch;
    }
    // Values of a batch that are out of the products' range.
    __device__ void take_far(const std::byte* data, unsigned position, unsigned i, std::uint32_t which) {
        Far all;
#pragma unroll 1
        for (; which != 0; which &= which - 1) {
            const unsigned at = i + (static_cast<unsigned>(__ffs(static_cast<int>(which))) - 1) * lanes_;
            const Far far = far_value(raw_at(data, at), scalar(), coefficients_[position + at], &part_.rule);
            all.fine = add61(all.fine, far.fine);
            all.low = add61(all.low, far.low);
            all.nan = add61(all.nan, far.nan);
        }
        if (all.nan != 0) {
            const std::uint64_t token = multiply61(all.nan, reduce61(kNanValue<Kind>));
            all.fine = add61(all.fine, token);
            all.low = add61(all.low, subtract61(token, shifted61(token, part_.rule.coarse_shift)));
        }
        weigh(all.fine, all.low);
    }
    __device__ std::uint64_t raw_at(const std::byte* data, unsigned at) const {
        if constexpr (Source::kFixed && Source::kItemShift == 1) {
            return __ldg(reinterpret_cast<const unsigned short*>(data) + at);
        } else if constexpr (Source::kFixed && Source::kItemShift == 2) {
            return __ldg(reinterpret_cast<const unsigned*>(data) + at);
        } else if constexpr (Source::kFixed) {
            return __ldg(reinterpret_cast<const unsigned long long*>(data) + at);
        } else {
            return raw_scalar(data + (std::size_t{at} << item_shift_), item_shift_);
        }
    }
    __device__ DType scalar() const {
        if constexpr (Source::kFixed) {
            return Source::kScalar;
        } else {
            return part_.scalar;
        }
    }
    // What was added goes to the bucket's sums. weigh(): with the weight of the block.
    __device__ void fold() {
        weigh(products_.fine(), kExact ? 0 : products_.of_low_bits());
        products_ = {};
        added_ = 0;
    }
    __device__ void weigh(std::uint64_t fine, std::uint64_t low) {
        const unsigned last = (1U << (part_.bucket_shift - block_shift_)) - 1;
        if (last != 0) {
            const std::uint64_t weight = rho_[last - (static_cast<unsigned>(block_) & last)];
            fine = multiply61(fine, weight);
            if (!kExact) low = multiply61(low, weight);
        }
        fine_ = add61(fine_, fine);
        if (!kExact) low_ = add61(low_, low);
    }

    // The bucket of block_ ends for this group.
    __device__ void flush() {
        for (int lanes = static_cast<int>(lanes_) / 2; lanes != 0; lanes /= 2) {
            fine_ = add61(fine_, warp::across(fine_, lanes, mask_));
            if (!kExact) low_ = add61(low_, warp::across(low_, lanes, mask_));
        }
        if (lane_ == 0) {
            const unsigned shift = part_.rule.coarse_shift;
            std::uint64_t coarse = fine_;
            if (!kExact && shift != 0) coarse = shifted61(subtract61(fine_, low_), 61 - shift);
            std::uint64_t* to = part_.halves + slot() * kSumsWords;
            add_to(to, coarse & 0xFFFFFFFF);
            add_to(to + 1, coarse >> 32);
            add_to(to + 2, fine_ & 0xFFFFFFFF);
            add_to(to + 3, fine_ >> 32);
        }
        fine_ = low_ = 0;
    }
    __device__ std::uint64_t slot() {
        const std::uint64_t bucket = block_ >> (part_.bucket_shift - block_shift_);
        if (part_.bits != nullptr) {
            const std::uint64_t at = bucket - part_.first_bucket;
            const unsigned long long lower = part_.bits[at / 64] & ((1ULL << at % 64) - 1);
            return part_.before[at / 64] + static_cast<unsigned>(__popcll(lower)) - part_.first_slot;
        }
        if (part_.buckets == nullptr) return bucket - part_.first_bucket;
        // Most often the next one.
        if (++slot_ < part_.bucket_count && part_.buckets[slot_] == bucket) return slot_;
        std::uint64_t low = 0;
        std::uint64_t high = part_.bucket_count;
        while (high - low > 1) {
            const std::uint64_t middle = (low + high) / 2;
            (part_.buckets[middle] <= bucket ? low : high) = middle;
        }
        return slot_ = low;
    }

    const Part& part_;
    const uint2* coefficients_;
    const std::uint64_t* rho_;
    const unsigned item_shift_;
    const unsigned block_shift_;
    const unsigned lanes_;
    const unsigned lane_;
    const unsigned mask_;
    const double inverse_;  // relative: the key's origin
    const int exponent_;
    const std::uint32_t low_mask_;
    const float scale_;
    const bool may_be_small_;
    const bool plain_;  // every finite value has a relative cell in the products' range
    std::conditional_t<kMayBeSmall, SmallProducts, std::conditional_t<Short, ShortProducts, Products<Kind>>>
        products_;
    unsigned added_ = 0;
    std::uint64_t block_ = 0;
    std::uint64_t fine_ = 0;  // of the bucket
    std::uint64_t low_ = 0;
    std::uint64_t slot_ = ~0ULL - 1;
};

__host__ __device__ constexpr unsigned blocks_each(bool fixed, CellKind kind) {
    return fixed && kind == CellKind::binary32 ? kBlocksOfBits : kBlocksEach;
}

template <class Source, CellKind Kind, bool Wide, bool Short = false>
__global__ void __launch_bounds__(kSumsThreads, blocks_each(Source::kFixed, Kind))
    add_parts(SumsLaunch launch, unsigned item_shift) {
    extern __shared__ __align__(16) unsigned char shared_memory[];
    __shared__ std::uint64_t rho[kMostBlocks];
    auto* coefficients = reinterpret_cast<uint2*>(shared_memory);
    const unsigned block_scalars =
        static_cast<unsigned>(kBlockBytes) >> (Source::kFixed ? Source::kItemShift : item_shift);
    for (unsigned i = threadIdx.x; i < block_scalars; i += kSumsThreads) {
        const std::uint64_t r = coefficient(i);
        coefficients[i] = {static_cast<unsigned>(r & 0x3FFFFFFF), static_cast<unsigned>(r >> 30)};
    }
    for (unsigned i = threadIdx.x; i < kMostBlocks; i += kSumsThreads)
        rho[i] = power61(kRho, i);
    __syncthreads();
    const std::uint64_t all = std::uint64_t{gridDim.x} * kSumsWarps;
    for (std::uint64_t warp = std::uint64_t{blockIdx.x} * kSumsWarps + threadIdx.x / 32; warp < launch.warps;
         warp += all) {
        std::uint32_t low = 0;
        std::uint32_t high = launch.count;
        while (high - low > 1) {
            const std::uint32_t middle = (low + high) / 2;
            (launch.parts[middle].first_warp <= warp ? low : high) = middle;
        }
        const Part& part = launch.parts[low];
        const unsigned group_shift =
            Wide ? wide_shift(Source::kFixed ? Source::kItemShift : item_shift) : part.group_shift;
        const std::uint64_t task =
            ((warp - part.first_warp) << (5 - group_shift)) + (threadIdx.x % 32 >> group_shift);
        // Counted from skew scalars before the first.
        const std::uint64_t begin = task * part.task_scalars;
        const std::uint64_t end = begin + part.task_scalars;
        const std::uint64_t from = begin < part.skew ? part.first : part.first + (begin - part.skew);
        const std::uint64_t to =
            part.first + (end - part.skew) < part.end ? part.first + (end - part.skew) : part.end;
        if (from >= to) continue;
        Adder<Source, Kind, Wide, Short> adder(part, coefficients, rho, item_shift);
        adder.run(from, to);
    }
}

// ---- launches ----

using SumsKernel = void (*)(SumsLaunch, unsigned);

unsigned sums_item_shift(DType scalar) {
    switch (item_bytes(scalar)) {
        case 1: return 0;
        case 2: return 1;
        case 4: return 2;
        default: return 3;
    }
}
unsigned log2_of(std::uint64_t power) { return static_cast<unsigned>(__builtin_ctzll(power)); }

// Lanes of a group.
unsigned group_shift_of(const DeviceSumsItem& item) {
    const unsigned most = wide_shift(sums_item_shift(item.scalar));
    unsigned shift = 0;
    while (shift < most && (kRowOfALane << shift) < item.row_scalars)
        ++shift;
    return shift;
}

// An integer is its own cell under the absolute rule with a spacing of 1.
CellKind cells_of(const CellRule& rule) {
    return rule.kind == CellKind::integers ? CellKind::absolute : rule.kind;
}

constexpr std::uint8_t kAnySource = 4;
// Which instance of the kernel an item takes: those of one key share a launch.
struct SumsKey {
    std::uint8_t source;  // f32, f64, bf16, f16; kAnySource
    std::uint8_t item_shift;
    CellKind kind;
    bool wide;
    bool is_short;  // relative cells of this source fit 32 bits
    bool operator==(const SumsKey&) const = default;
};
SumsKey sums_key_of(const DeviceSumsItem& item) {
    const CellKind kind = cells_of(item.rule);
    const bool is_short = bits_left(item.rule, item.scalar) != KeyBits::all;
    const bool from_floats = kind == CellKind::absolute || kind == CellKind::binary32 || is_short;
    const std::uint8_t source = item.scalar == DType::f32                   ? 0
                                : item.scalar == DType::f64                 ? 1
                                : item.scalar == DType::bf16 && from_floats ? 2
                                : item.scalar == DType::f16 && from_floats  ? 3
                                                                            : kAnySource;
    return {source, static_cast<std::uint8_t>(sums_item_shift(item.scalar)), cells_of(item.rule),
            group_shift_of(item) == wide_shift(sums_item_shift(item.scalar)),
            is_short && source != kAnySource};
}
template <class Source, bool Wide>
SumsKernel sums_kernel_of(CellKind kind) {
    switch (kind) {
        case CellKind::tokens: return add_parts<Source, CellKind::tokens, Wide>;
        case CellKind::absolute: return add_parts<Source, CellKind::absolute, Wide>;
        case CellKind::relative: return add_parts<Source, CellKind::relative, Wide>;
        case CellKind::binary32: return add_parts<Source, CellKind::binary32, Wide>;
        case CellKind::words: return add_parts<Source, CellKind::words, Wide>;
        case CellKind::integers: break;  // taken as absolute ones
    }
    return nullptr;
}
template <class Source, bool Wide>
SumsKernel sums_kernel_of_half(CellKind kind) {
    return kind == CellKind::absolute ? add_parts<Source, CellKind::absolute, Wide>
                                      : add_parts<Source, CellKind::binary32, Wide>;
}
template <bool Wide>
SumsKernel short_sums_kernel_of(std::uint8_t source) {
    switch (source) {
        case 0: return add_parts<F32, CellKind::relative, Wide, true>;
        case 1: return add_parts<F64, CellKind::relative, Wide, true>;
        case 2: return add_parts<BF16, CellKind::relative, Wide, true>;
        default: return add_parts<F16, CellKind::relative, Wide, true>;
    }
}
template <bool Wide>
SumsKernel sums_kernel_of(const SumsKey& key) {
    if (key.is_short) return short_sums_kernel_of<Wide>(key.source);
    if (key.source == 0) return sums_kernel_of<F32, Wide>(key.kind);
    if (key.source == 1) return sums_kernel_of<F64, Wide>(key.kind);
    if (key.source == 2) return sums_kernel_of_half<BF16, Wide>(key.kind);
    if (key.source == 3) return sums_kernel_of_half<F16, Wide>(key.kind);
    return sums_kernel_of<Any, Wide>(key.kind);
}

double sums_inverse_of(const CellRule& rule) {
    // Where the scale is no float64, every value is a far one.
    const int exponent = -rule.fine_exponent;
    if (exponent > 1023 || exponent < -1074) return __builtin_nan("");
    return __builtin_ldexp(1.0, exponent);
}

std::size_t before_bytes(std::uint64_t words) { return (words + 1) / 2 * 8; }

struct SumsPlaces {
    std::size_t buckets = 0;
    std::size_t end = 0;
};
SumsPlaces sums_places_of(const DeviceSumsItem* items, std::size_t n) {
    SumsPlaces at;
    at.buckets = device_aligned(n * sizeof(Part));
    at.end = at.buckets;
    for (std::size_t i = 0; i < n; ++i) {
        if (items[i].buckets != nullptr) at.end += items[i].bucket_count * sizeof(std::uint64_t);
        at.end += items[i].words * sizeof(std::uint64_t) + before_bytes(items[i].words);
    }
    at.end = device_aligned(at.end);
    return at;
}

void sums_scratch(const DeviceSumsItem* items, std::size_t n, std::size_t* device_bytes,
                  std::size_t* host_bytes) {
    *device_bytes = *host_bytes = sums_places_of(items, n).end;
}

// The scalars' index in the whole array.
std::uint64_t index_of(const DeviceSumsItem& item, std::uint64_t scalar) {
    std::uint64_t row = scalar / item.row_scalars;
    std::uint64_t at = item.base + scalar % item.row_scalars;
    for (std::uint32_t k = 0; k < item.axis_count; ++k) {
        at += row % item.axes[k].extent * item.axes[k].stride;
        row /= item.axes[k].extent;
    }
    return at;
}

// Tasks of about as many scalars each, cut where rows or blocks begin.
void cut(const DeviceSumsItem& item, Part& part) {
    const unsigned shift = group_shift_of(item);
    std::uint64_t each = kMostOfALane;
    while (each > kLeastOfALane && item.count / (each * 32) < kManyTasks)
        each /= 2;
    part.group_shift = static_cast<std::uint8_t>(shift);
    part.task_scalars = each << shift;
    if (item.row_scalars <= part.task_scalars) {
        part.task_scalars = part.task_scalars / item.row_scalars * item.row_scalars;
        part.skew = item.first % item.row_scalars;
    } else {
        const std::uint64_t block = kBlockBytes >> sums_item_shift(item.scalar);
        part.skew = index_of(item, item.first) % std::min(block, part.task_scalars);
    }
}

// The parts that one kernel takes: they lie together.
struct PartGroup {
    SumsKey key;
    std::uint32_t first;
    std::uint32_t count;
    std::uint64_t warps;
};
constexpr std::size_t kMostPartGroups = 64;  // more than there are instances and sizes

// What a call asks of the kernels, in the caller's memory of the host. It is copied to the same
// places on the device.
class SumsTables {
   public:
    SumsTables(const SumsPlaces& at, std::byte* on_host, const std::byte* on_device)
        : on_host_(on_host), on_device_(on_device), bucket_at_(at.buckets) {}

    DeviceStatus fill(int device, const DeviceSumsItem* items, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (items[i].count != 0 && !add_group(sums_key_of(items[i])))
                return gpu_failure(ErrorCode::internal, device, "too many kinds of parts");
        }
        for (std::size_t g = 0; g < group_count; ++g) {
            PartGroup& group = groups[g];
            group.first = part_count;
            for (std::size_t i = 0; i < n; ++i) {
                const DeviceSumsItem& item = items[i];
                if (item.count == 0 || sums_key_of(item) != group.key) continue;
                if (!is_possible(item))
                    return gpu_failure(ErrorCode::internal, device, "a part with an impossible place");
                add_part(item, group);
            }
        }
        return {};
    }

    PartGroup groups[kMostPartGroups];
    std::size_t group_count = 0;
    std::uint32_t part_count = 0;

   private:
    bool add_group(const SumsKey& key) {
        const bool known =
            std::any_of(groups, groups + group_count, [&](const PartGroup& g) { return g.key == key; });
        if (known) return true;
        if (group_count == kMostPartGroups) return false;
        groups[group_count++] = {key, 0, 0, 0};
        return true;
    }
    static bool is_possible(const DeviceSumsItem& item) {
        const std::uint64_t block = kBlockBytes >> sums_item_shift(item.scalar);
        return item.axis_count <= kMostSumsAxes && item.row_scalars != 0 && item.bucket_scalars >= block &&
               item.bucket_scalars / block <= kMostBlocks;
    }
    void add_part(const DeviceSumsItem& item, PartGroup& group) {
        Part& part = reinterpret_cast<Part*>(on_host_)[part_count++];
        part = {};
        part.data = static_cast<const std::byte*>(item.data);
        part.first = item.first;
        part.end = item.first + item.count;
        part.row_scalars = item.row_scalars;
        part.base = item.base;
        part.first_bucket = item.first_bucket;
        part.first_slot = item.first_slot;
        part.bucket_count = item.bucket_count;
        copy_buckets(item, part);
        part.halves = item.halves;
        part.inverse = cells_of(item.rule) == CellKind::absolute ? sums_inverse_of(item.rule) : 0;
        part.rule = item.rule;
        part.scalar = item.scalar;
        part.bucket_shift = static_cast<std::uint8_t>(log2_of(item.bucket_scalars));
        part.axis_count = item.axis_count;
        std::copy_n(item.axes.begin(), item.axis_count, part.axes);
        part.first_warp = group.warps;
        cut(item, part);
        const std::uint64_t of_a_warp = part.task_scalars << (5 - part.group_shift);
        group.warps += (part.skew + item.count + of_a_warp - 1) / of_a_warp;
        ++group.count;
    }
    // Which buckets there are, behind the parts.
    void copy_buckets(const DeviceSumsItem& item, Part& part) {
        if (item.buckets != nullptr) {
            const std::size_t bytes = item.bucket_count * sizeof(std::uint64_t);
            part.buckets = reinterpret_cast<const std::uint64_t*>(copied(item.buckets, bytes, bytes));
        }
        if (item.words != 0) {
            const std::size_t bytes = item.words * sizeof(std::uint64_t);
            part.bits = reinterpret_cast<const std::uint64_t*>(copied(item.bits, bytes, bytes));
            part.before = reinterpret_cast<const std::uint32_t*>(
                copied(item.before, item.words * sizeof(std::uint32_t), before_bytes(item.words)));
        }
    }
    // Where the bytes will be on the device.
    const std::byte* copied(const void* from, std::size_t bytes, std::size_t room) {
        std::memcpy(on_host_ + bucket_at_, from, bytes);
        const std::byte* there = on_device_ + bucket_at_;
        bucket_at_ += room;
        return there;
    }

    std::byte* on_host_;
    const std::byte* on_device_;
    std::size_t bucket_at_;
};

DeviceStatus launch_parts(int device, const PartGroup& group, const Part* parts, int multiprocessors,
                          cudaStream_t stream) {
    const SumsLaunch launch{parts + group.first, group.count, group.warps};
    const SumsKernel kernel =
        group.key.wide ? sums_kernel_of<true>(group.key) : sums_kernel_of<false>(group.key);
    const std::uint64_t needed = (group.warps + kSumsWarps - 1) / kSumsWarps;
    const unsigned each = blocks_each(group.key.source != kAnySource, group.key.kind);
    const auto grid = static_cast<unsigned>(
        std::min<std::uint64_t>(needed, static_cast<std::uint64_t>(multiprocessors) * each));
    const std::size_t shared = (kBlockBytes >> group.key.item_shift) * sizeof(uint2);
    kernel<<<grid, kSumsThreads, shared, stream>>>(launch, group.key.item_shift);
    TWR_GPU_LAUNCHED("sums of digests");
    return {};
}

DeviceStatus add_sums_of(int device, const DeviceSumsItem* items, std::size_t n, void* scratch_memory,
                         void* host_scratch, StreamHandle stream_handle) {
    if (n == 0) return {};
    TWR_GPU_CURRENT(device);
    const cudaStream_t stream = gpu_stream(stream_handle);
    const SumsPlaces at = sums_places_of(items, n);
    auto* on_host = static_cast<std::byte*>(host_scratch);
    auto* on_device = static_cast<std::byte*>(scratch_memory);
    SumsTables tables(at, on_host, on_device);
    if (const DeviceStatus status = tables.fill(device, items, n); status.failed) return status;
    if (tables.part_count == 0) return {};
    TWR_GPU(cudaMemcpyAsync(on_device, on_host, at.end, cudaMemcpyHostToDevice, stream));
    int multiprocessors = 0;
    TWR_GPU(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    for (std::size_t g = 0; g < tables.group_count; ++g) {
        const DeviceStatus status = launch_parts(
            device, tables.groups[g], reinterpret_cast<const Part*>(on_device), multiprocessors, stream);
        if (status.failed) return status;
    }
    return {};
}

}  // namespace

}  // namespace gpu

extern const DeviceSumsKernels kDeviceSumsTable;
const DeviceSumsKernels kDeviceSumsTable = {gpu::sums_scratch, gpu::add_sums_of};

}  // namespace twinrun
