// Private to digest_*cuda.cu: the kernel that makes digests and residues of blocks.
//
// A digest is a product of a matrix and a vector: D = sum_i r_i q_i. With q_i and r_i cut into
// bytes, the digests of 16 blocks are products of byte matrices, 16 x positions by positions x 8,
// which tensor cores compute exactly in 32-bit integers (mma m16n8k32, u8 x u8): an element costs
// its conversion and the transposition of its bytes, no multiplication. One product for each byte
// of q ("plane"), and one for its low bits, from which the coarse digest follows: q = 2^k q0 + low,
// so D0 = (D - sum r_i low_i) / 2^k.
//
// A warp takes 16 blocks (a tile). In a step it takes 32 positions of each: lane 4 g + t holds rows
// g and g + 8, and of them positions 2t, 2t + 1, 2t + 8, 2t + 9, 2t + 16, 2t + 17, 2t + 24, 2t +
// 25: in this order the low bits that a lane holds are whole words of a residue line. Data come
// through shared memory, several steps ahead (cp.async).
//
// Values without a narrow cell (tokens, NaN, far values) leave the loop: digest_left.cuh takes
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/gpu.hpp"
#include "device/staging.cuh"
#include "device/warp.cuh"
#include "digest/byte_products.cuh"
#include "digest/digest.hpp"
#include "digest/digest_left.cuh"
#include "digest/digest_sources.cuh"
#include "digest/field61.hpp"

namespace twinrun::gpu {

inline constexpr int kRows = 16;           // blocks of a tile
inline constexpr int kStepPositions = 32;  // of each row
inline constexpr unsigned kLineSteps = 4;  // steps between writes of residues
inline constexpr int kWarps = 4;           // of a thread block
inline constexpr int kThreads = kWarps * 32;

// One field, as kernels take it.
struct Field {
    const std::byte* data;
    std::uint64_t scalars;
    std::uint64_t first_tile;  // among all tiles of the launch
    std::uint64_t* leaves;     // of pieces: of chunks, or of 16 blocks where chunks are larger
    std::uint64_t* fine;
    std::byte* residues;
    unsigned long long* counts;
    // absolute: 2^-fine_exponent; not a number: every value leaves the loop
    double inverse;
    std::uint64_t bias_sum;  // bias times the sum of coefficients, mod p
    CellRule rule;
    DType scalar;
    std::uint8_t item_shift;     // log2 of the scalar's bytes
    bool aligned;                // to 16 bytes: through shared memory
    std::uint32_t piece_blocks;  // 1 to 16
};

struct Launch {
    const Field* fields;
    std::uint32_t count;
    std::uint64_t tiles;
    unsigned long long* next_tile;
};

// ---- shared memory ----

// Bytes from row to row in a stage.
template <class Source>
__host__ __device__ constexpr unsigned stage_row(unsigned item_shift) {
    return (Source::kStageSteps * kStepPositions << item_shift) + Source::kPad;
}
inline constexpr std::size_t kRhoBytes = kRows * 8;
// Bytes of shared memory: the coefficients' bytes for a block, powers of RHO, each warp's ring.
template <class Source>
__host__ __device__ constexpr std::size_t shared_bytes(unsigned item_shift) {
    return (kBlockBytes >> item_shift) * 8 + kRhoBytes +
           std::size_t{kWarps} * Source::kStages * kRows * stage_row<Source>(item_shift);
}

// ---- the kernel ----

struct Tile {
    const Field* field;  // null: there is none
    const std::byte* data;
    std::uint64_t first_block;
    std::uint32_t rows;          // blocks that are there
    std::uint32_t last_scalars;  // of the last of them
};

// Left: of a relative kind only. Other than all, where every finite value has a narrow cell that
// fits 32 bits.
template <class Source, CellKind Kind, unsigned Bits, KeyBits Left>
class Worker {
   public:
    static constexpr bool kWords = Source::kWords;
    // Numbers by their own bits, from the planes of these that may be other than 0.
    static constexpr bool kBinary32 = Source::kFixed && Kind == CellKind::binary32;
    // Scalars of 64 bits by their halves, whose digests are joined at the end.
    static constexpr bool kHalves = Kind == CellKind::words;
    static constexpr bool kShort = Left != KeyBits::all;
    static_assert(!kShort || Kind == CellKind::relative);
    static constexpr int kPlanes = kWords      ? 1 << Source::kItemShift
                                   : kBinary32 ? 4 - Source::kFirstPlane
                                   : kShort    ? Cells<CellKind::relative>::kShortPlanes
                                               : Cells<Kind>::kPlanes;
    static constexpr bool kExact = Kind == CellKind::tokens;
    // Small cells are made from floats.
    static constexpr bool kMayBeSmall =
        Source::kFixed && !kWords && Source::kItemShift == 1 && Kind == CellKind::absolute;
    static constexpr std::uint64_t kNeutral =
        Cells<Kind>::kNeutral + (kMayBeSmall ? Cells<CellKind::absolute>::kSmallBias : 0);
    // The coarse digest is the fine one.
    static constexpr bool kOneDigest = kExact || kWords || kHalves || Kind == CellKind::binary32;
    // Some values may not fit the planes.
    static constexpr bool kMayLeave = !kWords && !kBinary32 && !kHalves;
    static_assert(!kWords || (Kind == CellKind::absolute && Bits == 0));
    static_assert(!kBinary32 || (kPlanes > 0 && Bits == 0));
    // Where little is written, what is read makes room in the L2 cache first, and what is written
    // stays together: 4275 GB/s against 4110 (float32, chunks of 4 KiB, H200). With residues it is
    // the other way: 3890 against 4100.
    static constexpr bool kEvictFirst = Bits == 0;
    static constexpr unsigned kStages = Source::kStages;
    static constexpr unsigned kStageSteps = Source::kStageSteps;
    // Steps that the ring is ahead. The next tile is asked for when a tile begins and looked up
    // with its last line.
    static constexpr unsigned kAhead = (kStages - 1) * kStageSteps;
    static_assert(kAhead <= kLineSteps && kLineSteps % kStageSteps == 0);

    __device__ Worker(const Launch& launch, std::byte* shared, unsigned item_shift)
        : launch_(launch),
          item_shift_(Source::kFixed ? Source::kItemShift : item_shift),
          block_scalars_(static_cast<unsigned>(kBlockBytes) >> item_shift_),
          steps_(block_scalars_ / kStepPositions),
          stage_row_(stage_row<Source>(item_shift_)),
          lane_(threadIdx.x % 32),
          coefficients_(reinterpret_cast<const uint2*>(shared)),
          rho_(reinterpret_cast<const std::uint64_t*>(shared + std::size_t{block_scalars_} * 8)),
          ring_(shared + std::size_t{block_scalars_} * 8 + kRhoBytes +
                threadIdx.x / 32 * std::size_t{kStages} * kRows * stage_row_),
          fill_at_(ring_),
          use_at_(ring_),
          policy_(kEvictFirst ? ReadPolicy::evict_first() : ReadPolicy{}) {}

    __device__ void run() {
        Tile now = tile_of(warp::from(ask(), 0));
        if (now.field == nullptr) return;
        produce(now);
        for (unsigned i = 0; i + 1 < kStages; ++i)
            fill();
        for (;;) {
            const unsigned long long number = ask();
            Tile next{};
            begin(now);
            for (unsigned line = 0; line < steps_; line += kLineSteps) {
                const bool last = line + kLineSteps == steps_;
                if (last) next = tile_of(warp::from(number, 0));
#pragma unroll
                for (unsigned i = 0; i < kLineSteps; ++i) {
                    if (i % kStageSteps == 0) {
                        stage_wait<kStages - 2>();
                        // After it, the data that other lanes brought is there too, and all lanes
                        // have read the stage before.
                        warp::sync();
                        if (i + kAhead == kLineSteps && last) produce(next);
                        fill();
                    }
                    take_step(now, line + i, use_at_ + i % kStageSteps * (kStepPositions << item_shift_), i);
                    if (i % kStageSteps == kStageSteps - 1) use_at_ = behind(use_at_);
                }
                if constexpr (Bits != 0) put_residues(now, line);
            }
            finish(now);
            if (next.field == nullptr) break;
            now = next;
        }
        stage_wait<0>();
    }

   private:
    // The number of a tile that no warp has taken: lane 0 has it.
    __device__ unsigned long long ask() { return lane_ == 0 ? atomicAdd(launch_.next_tile, 1ULL) : 0; }
    __device__ Tile tile_of(std::uint64_t number) const {
        Tile tile{};
        if (number >= launch_.tiles) return tile;
        std::uint32_t low = 0;
        std::uint32_t high = launch_.count;  // the field is in [low, high)
        while (high - low > 1) {
            const std::uint32_t middle = (low + high) / 2;
            (launch_.fields[middle].first_tile <= number ? low : high) = middle;
        }
        tile.field = launch_.fields + low;
        tile.first_block = (number - tile.field->first_tile) * kRows;
        tile.data = tile.field->data + tile.first_block * kBlockBytes;
        const std::uint64_t first = tile.first_block * block_scalars_;
        const std::uint64_t left = tile.field->scalars - first;
        const std::uint64_t blocks = (left + block_scalars_ - 1) / block_scalars_;
        tile.rows = blocks < kRows ? static_cast<std::uint32_t>(blocks) : kRows;
        const std::uint64_t behind = left - std::uint64_t{tile.rows - 1} * block_scalars_;
        tile.last_scalars = behind < block_scalars_ ? static_cast<std::uint32_t>(behind) : block_scalars_;
        return tile;
    }
    __device__ unsigned scalars_in(const Tile& tile, unsigned row) const {
        return row + 1 < tile.rows ? block_scalars_ : row + 1 == tile.rows ? tile.last_scalars : 0;
    }
    __device__ static bool full(const Tile& tile, unsigned block_scalars) {
        return tile.rows == kRows && tile.last_scalars == block_scalars;
    }

    __device__ std::byte* behind(std::byte* stage) const {
        std::byte* next = stage + kRows * stage_row_;
        return next == ring_ + kStages * kRows * stage_row_ ? ring_ : next;
    }
    // Pieces of 16 bytes of a row in a stage.
    __device__ unsigned pieces() const { return 2 * kStageSteps << item_shift_; }
    // From now on fill() brings the steps of this tile.
    __device__ void produce(const Tile& tile) {
        source_ = nullptr;
        if (tile.field == nullptr || !(Source::kFixed || tile.field->aligned)) return;
        source_ = tile.data + lane_ / pieces() * kBlockBytes + lane_ % pieces() * 16;
        source_whole_ = full(tile, block_scalars_);
        source_rows_ = tile.rows;
        // The rest of the last row, for this lane's column.
        source_last_ =
            static_cast<int>(tile.last_scalars << item_shift_) - static_cast<int>(lane_ % pieces() * 16);
    }
    // Brings the next steps into the ring.
    __device__ void fill() {
        const unsigned rows = 32 / pieces();  // that the warp brings at a time
        std::byte* to = fill_at_ + lane_ / pieces() * stage_row_ + lane_ % pieces() * 16;
        if (source_ != nullptr) {
            if (source_whole_) {
                if constexpr (Source::kFixed) {
#pragma unroll
                    for (unsigned row = 0; row < kRows; row += rows)
                        stage_16<kEvictFirst>(to + row * stage_row_, source_ + row * kBlockBytes, policy_);
                } else {
                    for (unsigned row = 0; row < kRows; row += rows)
                        stage_16<kEvictFirst>(to + row * stage_row_, source_ + row * kBlockBytes, policy_);
                }
            } else {
#pragma unroll 1
                for (unsigned row = 0; row < kRows; row += rows) {
                    const unsigned mine = row + lane_ / pieces();
                    const int valid = mine + 1 < source_rows_    ? 16
                                      : mine + 1 == source_rows_ ? source_last_
                                                                 : 0;
                    stage_some<kEvictFirst>(to + row * stage_row_, source_ + row * kBlockBytes, valid,
                                            policy_);
                }
            }
            source_ += kStageSteps * kStepPositions << item_shift_;
            source_last_ -= static_cast<int>(kStageSteps * kStepPositions << item_shift_);
        }
        stage_commit();  // also of nothing: waiting counts groups
        fill_at_ = behind(fill_at_);
    }

    __device__ void begin(const Tile& tile) {
        const Field& field = *tile.field;
        inverse_ = Kind == CellKind::relative ? field.rule.key_origin : field.inverse;
        exponent_ = field.rule.fine_exponent;
        plain_ = Kind == CellKind::relative && Cells<CellKind::relative>::all_narrow<Source::kNarrow>(
                                                   field.rule.key_origin, field.rule.fine_exponent);
        if constexpr (kMayBeSmall) {
            // Where the last tile had too few small cells, some tiles are not tried.
            small_ = untried_ == 0 && Cells<Kind>::may_be_small(exponent_);
            if (untried_ != 0) --untried_;
            not_small_ = 0;
        }
        low_mask_ = ((1U << field.rule.coarse_shift) - 1) * 0x01010101U;
        scalar_ = field.scalar;
        aligned_ = Source::kFixed || field.aligned;
#pragma unroll
        for (int p = 0; p < kPlanes; ++p)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                fine_[p][i] = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            low_[i] = 0;
        tokens_ = nans_ = 0;
        if constexpr (kBinary32 && Source::kPairs) nan_pairs_ = 0;
        left_ = 0;
    }

    __device__ std::uint64_t biased(double x) const {
        if constexpr (kMayBeSmall) {
            return Cells<Kind>::biased_more(x, inverse_);
        } else {
            return Cells<Kind>::biased(x, inverse_, exponent_);
        }
    }
    __device__ unsigned row_of(unsigned half) const { return lane_ / 4 + half * 8; }
    // The position of a lane's value within its step.
    __device__ unsigned position(unsigned step, unsigned value) const {
        return step * kStepPositions + value / 2 * 8 + lane_ % 4 * 2 + value % 2;
    }

    __device__ std::uint64_t raw_at(const Tile& tile, unsigned half, unsigned where) const {
        return raw_scalar(tile.data + row_of(half) * kBlockBytes + (std::size_t{where} << item_shift_),
                          item_shift_);
    }

    __device__ void load_row(const Tile& tile, unsigned step, const std::byte* stage, unsigned half,
                             double (&x)[8]) const {
        if constexpr (Source::kFixed) {
            using Pair = typename Source::Pair;
            const auto* row = reinterpret_cast<const Pair*>(stage + row_of(half) * stage_row_);
#pragma unroll
            for (unsigned m = 0; m < 4; ++m) {
                const Pair pair = row[lane_ % 4 + m * 4];
                x[2 * m] = Source::first(pair);
                x[2 * m + 1] = Source::second(pair);
            }
        } else {
            const DType scalar = scalar_;
            if (aligned_) {
                const std::byte* row = stage + row_of(half) * stage_row_;
#pragma unroll
                for (unsigned i = 0; i < 8; ++i)
                    x[i] = value_of(
                        raw_scalar(row + (std::size_t{position(0, i)} << item_shift_), item_shift_), scalar);
            } else {
                const unsigned there = scalars_in(tile, row_of(half));
#pragma unroll
                for (unsigned i = 0; i < 8; ++i) {
                    const unsigned where = position(step, i);
                    x[i] = where < there ? value_of(raw_at(tile, half, where), scalar) : 0.0;
                }
            }
        }
    }

    // Biased cells of one row's values in this step, as low and high words; short ones as low
    // words.
    __device__ void cells_of_row(const Tile& tile, unsigned step, const std::byte* stage, unsigned half,
                                 std::uint32_t (&low)[8], std::uint32_t (&high)[8]) {
        double x[8];
        load_row(tile, step, stage, half, x);
        if constexpr (kExact) {
            tokens_of_row(tile, step, half, x, low, high);
        } else {
            std::uint32_t outside = 0;
            if constexpr (kShort) {
                std::uint32_t largest = 0;
#pragma unroll
                for (unsigned i = 0; i < 8; ++i)
                    low[i] = Cells<Kind>::template shortest<Left>(x[i], inverse_, exponent_, largest);
                outside = largest >= 0x7FF00000U ? 1 : 0;
            } else if (Kind == CellKind::relative && plain_) {
                std::uint32_t largest = 0;
#pragma unroll
                for (unsigned i = 0; i < 8; ++i) {
                    const std::uint64_t v =
                        Cells<CellKind::relative>::plain(x[i], inverse_, exponent_, largest);
                    low[i] = static_cast<std::uint32_t>(v);
                    high[i] = static_cast<std::uint32_t>(v >> 32);
                }
                outside = largest >= 0x7FF00000U ? 1 : 0;
            } else {
#pragma unroll
                for (unsigned i = 0; i < 8; ++i) {
                    const std::uint64_t v = biased(x[i]);
                    outside |= Cells<Kind>::outside(v);
                    low[i] = static_cast<std::uint32_t>(v);
                    high[i] = static_cast<std::uint32_t>(v >> 32);
                }
            }
            if (outside == 0) return;
            // add_left() takes these values; here they count as nothing.
            left_ |= 1U << step * 32 / steps_;
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) {
                if (Cells<Kind>::outside(biased(x[i])) == 0) continue;
                if constexpr (kShort) {
                    low[i] = 1U << Cells<Kind>::kShortBias;
                } else {
                    low[i] = static_cast<std::uint32_t>(kNeutral);
                    high[i] = static_cast<std::uint32_t>(kNeutral >> 32);
                }
            }
        }
    }

    // The same of tokens: mixed bits, which need not be reduced to be multiplied. No branch for
    // each value: whether one of eight is special is asked once.
    __device__ void tokens_of_row(const Tile& tile, unsigned step, unsigned half, const double (&x)[8],
                                  std::uint32_t (&low)[8], std::uint32_t (&high)[8]) {
        using Tokens = Cells<CellKind::tokens>;
        std::uint32_t largest = 0;
        bool small = false;
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) {
            std::uint64_t number = Tokens::number_of(x[i]);
            // Known to be 0: less to mix.
            if constexpr (Source::kHighOnly) number &= 0xFFFFFFFF00000000ULL;
            largest = max(largest, static_cast<std::uint32_t>(number >> 32) & 0x7FFFFFFFU);
            if constexpr (!Source::kNarrow) small |= Tokens::special<false>(number);
            const std::uint64_t v = splitmix64(number);
            low[i] = static_cast<std::uint32_t>(v);
            high[i] = static_cast<std::uint32_t>(v >> 32);
        }
        if (Tokens::not_finite(largest) || small) {
            left_ |= 1U << step * 32 / steps_;  // add_left() takes these values
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) {
                if (Tokens::special<Source::kNarrow>(Tokens::number_of(x[i]))) low[i] = high[i] = 0;
            }
        }
        // Zeros that stand where no value is have a token.
        const unsigned there = scalars_in(tile, row_of(half));
        if (there != block_scalars_) {
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) {
                if (position(step, i) >= there) low[i] = high[i] = 0;
            }
        }
    }

    // Both halves of 64 bits. NaNs are counted.
    __device__ void halves_of_row(const Tile& tile, unsigned step, const std::byte* stage, unsigned half,
                                  std::uint32_t (&low)[8], std::uint32_t (&high)[8]) {
        const std::byte* row = stage + row_of(half) * stage_row_;
        if constexpr (Source::kFixed) {
            const auto* pairs = reinterpret_cast<const uint4*>(row);
#pragma unroll
            for (unsigned m = 0; m < 4; ++m) {
                const uint4 pair = pairs[lane_ % 4 + m * 4];
                low[2 * m] = pair.x;
                high[2 * m] = pair.y;
                low[2 * m + 1] = pair.z;
                high[2 * m + 1] = pair.w;
            }
        } else {
            const unsigned there = scalars_in(tile, row_of(half));
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) {
                const unsigned where = position(step, i);
                const std::uint64_t raw = where >= there ? 0
                                          : aligned_     ? raw_scalar(row + position(0, i) * 8, 3)
                                                         : raw_at(tile, half, where);
                low[i] = static_cast<std::uint32_t>(raw);
                high[i] = static_cast<std::uint32_t>(raw >> 32);
            }
        }
        if (source_scalar() != DType::f64) return;
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) {
            const double x = __hiloint2double(static_cast<int>(high[i]), static_cast<int>(low[i]));
            nans_ += Cells<CellKind::words>::halves(x, low[i], high[i]) ? 1 : 0;
        }
    }

    // The bits of a binary32, the highest turned round: that is the bias. NaNs are counted.
    __device__ std::uint32_t biased_bits(double x) {
        // x came from a float: the compiler takes that one. -0.0 becomes 0.0.
        const float number = __fadd_rn(static_cast<float>(x), 0.0F);
        const bool nan = number != number;
        nans_ += nan ? 1 : 0;
        constexpr std::uint32_t kNan = kBinary32Nan;
        return (nan ? kNan : __float_as_uint(number)) ^ 0x80000000U;
    }

    // The same of two bfloat16 at once, of which the lower 16 bits are left out: they are 0.
    __device__ std::uint32_t biased_pair(std::uint32_t pair) {
        const std::uint32_t numbers = without_negative_zeros(pair);
        const std::uint32_t nan = nan_mask(numbers);
        nan_pairs_ += nan & 0x00010001U;
        return ((numbers & ~nan) | (0x7FC07FC0U & nan)) ^ 0x80008000U;
    }

    // A step of which all cells are small. False, and nothing done, if one of them is not.
    __device__ bool take_small_step(unsigned step, const std::byte* stage, unsigned in_line) {
        using Small = Cells<CellKind::absolute>;
        const auto scale = static_cast<float>(inverse_);
        std::uint32_t planes[4][4];
        std::uint32_t differences = 0;
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const auto* row =
                reinterpret_cast<const typename Source::Pair*>(stage + row_of(half) * stage_row_);
            std::uint32_t cells[8];
#pragma unroll
            for (unsigned m = 0; m < 4; ++m) {
                const auto pair = row[lane_ % 4 + m * 4];
                cells[2 * m] = Small::small(Source::first(pair), scale);
                cells[2 * m + 1] = Small::small(Source::second(pair), scale);
            }
#pragma unroll
            for (unsigned i = 0; i < 8; ++i)
                differences |= Small::small_difference(cells[i]);
            transpose(cells, planes[half]);
            transpose(cells + 4, planes[half + 2]);
        }
        if (warp::any(!Small::all_small(differences))) return false;
        if constexpr (Bits != 0) {
            keep_residues(0, in_line, planes[0][0], planes[2][0]);
            keep_residues(1, in_line, planes[1][0], planes[3][0]);
        }
        const uint2 r = coefficients_[step * 32 + lane_];
#pragma unroll
        for (int p = 0; p < Small::kSmallPlanes; ++p)
            multiply_bytes(fine_[p], planes[0][p], planes[1][p], planes[2][p], planes[3][p], r.x, r.y);
        constexpr std::uint32_t kBytes = Small::kBiasBytes;
        multiply_bytes(fine_[Small::kBiasPlane], kBytes, kBytes, kBytes, kBytes, r.x, r.y);
        multiply_bytes(low_, planes[0][0] & low_mask_, planes[1][0] & low_mask_, planes[2][0] & low_mask_,
                       planes[3][0] & low_mask_, r.x, r.y);
        return true;
    }

    __device__ void take_step(const Tile& tile, unsigned step, const std::byte* stage, unsigned in_line) {
        if constexpr (kMayBeSmall) {
            if (small_) {
                if (take_small_step(step, stage, in_line)) return;
                if (++not_small_ == kMostNotSmall) {
                    small_ = false;
                    untried_ = kUntried;
                }
            }
        }
        std::uint32_t planes[4][8];  // [register of the matrix][byte of the cell]
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            if constexpr (kBinary32) {
                const auto* row =
                    reinterpret_cast<const typename Source::Pair*>(stage + row_of(half) * stage_row_);
#pragma unroll
                for (unsigned quarter = 0; quarter < 2; ++quarter) {
                    const auto a = row[lane_ % 4 + 8 * quarter];
                    const auto b = row[lane_ % 4 + 8 * quarter + 4];
                    if constexpr (Source::kPairs) {
                        const std::uint32_t x = biased_pair(a);
                        const std::uint32_t y = biased_pair(b);
                        planes[half + 2 * quarter][0] = bytes_of(x, y, 0x6420);
                        planes[half + 2 * quarter][1] = bytes_of(x, y, 0x7531);
                        continue;
                    }
                    const std::uint32_t bits[4] = {
                        biased_bits(Source::first(a)), biased_bits(Source::second(a)),
                        biased_bits(Source::first(b)), biased_bits(Source::second(b))};
                    std::uint32_t part[4];
                    transpose(bits, part);
#pragma unroll
                    for (int p = 0; p < kPlanes; ++p)
                        planes[half + 2 * quarter][p] = part[Source::kFirstPlane + p];
                }
            } else if constexpr (kWords) {
                const auto* row =
                    reinterpret_cast<const typename Source::Pair*>(stage + row_of(half) * stage_row_);
#pragma unroll
                for (unsigned quarter = 0; quarter < 2; ++quarter) {
                    std::uint32_t part[4];
                    Source::planes(row, quarter, lane_, part);
#pragma unroll
                    for (int p = 0; p < kPlanes; ++p)
                        planes[half + 2 * quarter][p] = part[p];
                }
            } else {
                std::uint32_t low[8];
                std::uint32_t high[8];
                if constexpr (kHalves) {
                    halves_of_row(tile, step, stage, half, low, high);
                } else {
                    cells_of_row(tile, step, stage, half, low, high);
                }
#pragma unroll
                for (unsigned quarter = 0; quarter < 2; ++quarter) {
                    std::uint32_t part[4];
                    transpose(low + quarter * 4, part);
#pragma unroll
                    for (unsigned p = 0; p < 4; ++p)
                        planes[half + 2 * quarter][p] = part[p];
                    if constexpr (kShort) continue;
                    transpose(high + quarter * 4, part);
#pragma unroll
                    for (unsigned p = 0; p < 4; ++p)
                        planes[half + 2 * quarter][4 + p] = part[p];
                }
            }
            if constexpr (Bits != 0) keep_residues(half, in_line, planes[half][0], planes[half + 2][0]);
        }
        const uint2 r = coefficients_[step * 32 + lane_];
#pragma unroll
        for (int p = 0; p < kPlanes; ++p)
            multiply_bytes(fine_[p], planes[0][p], planes[1][p], planes[2][p], planes[3][p], r.x, r.y);
        if constexpr (!kOneDigest) {
            multiply_bytes(low_, planes[0][0] & low_mask_, planes[1][0] & low_mask_, planes[2][0] & low_mask_,
                           planes[3][0] & low_mask_, r.x, r.y);
        }
    }

    // The low bits of this step's cells.
    __device__ void keep_residues(unsigned half, unsigned in_line, std::uint32_t first,
                                  std::uint32_t second) {
        residues_[half][in_line] = residue_word<Bits>(first, second);
    }

    // Four steps' residues: with 4 bits a line of 128 scalars, with 2 bits half a line of 256.
    __device__ void put_residues(const Tile& tile, unsigned line) {
        if (tile.field->residues == nullptr) return;
        constexpr unsigned kPerLine = 512 / Bits;
        const std::size_t block_bytes = std::size_t{block_scalars_} * Bits / 8;
        const unsigned first = line * kStepPositions;
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned row = row_of(half);
            if (first / kPerLine * kPerLine >= scalars_in(tile, row)) continue;
            std::byte* to = tile.field->residues + (tile.first_block + row) * block_bytes +
                            first / kPerLine * kResidueLine + lane_ % 4 * 16;
            const std::uint32_t* w = residues_[half];
            if constexpr (Bits == 4) {
                uint4 words;
                words.x = bytes_of(w[0], w[1], 0x5410);
                words.y = bytes_of(w[2], w[3], 0x5410);
                words.z = bytes_of(w[0], w[1], 0x7632);
                words.w = bytes_of(w[2], w[3], 0x7632);
                *reinterpret_cast<uint4*>(to) = words;
            } else {
                // even 0, even 1, odd 0, odd 1
                const std::uint32_t a = bytes_of(w[0], w[1], 0x5140);
                const std::uint32_t b = bytes_of(w[2], w[3], 0x5140);
                to += first % kPerLine / 128 * 4;
                *reinterpret_cast<std::uint32_t*>(to) = bytes_of(a, b, 0x5410);
                *reinterpret_cast<std::uint32_t*>(to + 8) = bytes_of(a, b, 0x7632);
            }
        }
    }

    // x 2^k mod p for x below 2^61.
    __device__ static std::uint64_t rotate61(std::uint64_t x, unsigned k) {
        return reduce61(((x << k) & kPrime) | (k == 0 ? 0 : x >> (61 - k)));
    }
    // A row's sum over a matrix of planes: this lane's two columns of each.
    template <int Planes>
    __device__ std::uint64_t row_sum(const std::uint32_t (&c)[Planes][4], unsigned half) const {
        std::uint64_t low = 0;
        std::uint64_t high = 0;
#pragma unroll
        for (int p = 0; p < Planes; ++p) {
            // Below 2^28 each, so the sums fit 64 bits.
            const std::uint64_t two = c[p][half * 2] + (static_cast<std::uint64_t>(c[p][half * 2 + 1]) << 8);
            (p < 4 ? low : high) += two << (p % 4 * 8);
        }
        const std::uint64_t upper =
            kHalves ? multiply61(reduce61(high), kWordFactor) : rotate61(reduce61(high), 32);
        std::uint64_t sum = add61(reduce61(low), upper);
        sum = rotate61(sum, lane_ % 4 * 16);
        sum = add61(sum, warp::across(sum, 1));
        return add61(sum, warp::across(sum, 2));
    }
    __device__ std::uint64_t sum_of_row(std::uint64_t value) const {
        value = add61(value, warp::across(value, 1));
        return add61(value, warp::across(value, 2));
    }

    __device__ void finish(const Tile& tile) {
        const Field& field = *tile.field;
        std::uint64_t fine[2];
        std::uint64_t coarse[2];
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            fine[half] = row_sum<kPlanes>(fine_, half);
            if constexpr (kBinary32) fine[half] = rotate61(fine[half], 8 * Source::kFirstPlane);
            if constexpr (!kExact && !kHalves) fine[half] = subtract61(fine[half], field.bias_sum);
            if constexpr (kOneDigest) {
                coarse[half] = fine[half];
            } else {
                const std::uint32_t(&only)[1][4] = reinterpret_cast<const std::uint32_t(&)[1][4]>(low_);
                const std::uint64_t low = row_sum<1>(only, half);
                const unsigned shift = field.rule.coarse_shift;
                coarse[half] = rotate61(subtract61(fine[half], low), shift == 0 ? 0 : 61 - shift);
            }
            // A row that is not there is a block of zeros to the sums: it must not be one to the
            // digest.
            if (row_of(half) >= tile.rows) fine[half] = coarse[half] = 0;
        }
        std::uint32_t left = 0;
        if constexpr (kMayLeave) {
            if (warp::any(left_ != 0)) left = static_cast<std::uint32_t>(warp::united(left_));
        }
        put_digests(tile, fine, coarse);
        // At most 512 a tile in each half.
        if constexpr (kBinary32 && Source::kPairs) nans_ += (nan_pairs_ & 0xFFFF) + (nan_pairs_ >> 16);
        if (field.counts != nullptr) put_counts(field, tile);
        // Last, when few registers are needed.
        if constexpr (kMayLeave) {
            if (left != 0) add_left(tile, left);
        }
    }

    // Adds the values that are out of the planes' range. steps: those of all lanes that hold some.
    __device__ void add_left(const Tile& tile, std::uint32_t steps) {
        const Field& field = *tile.field;
        LeftTile of_left;
        of_left.data = tile.data;
        of_left.residues = nullptr;
        if (Bits != 0 && field.residues != nullptr)
            of_left.residues = field.residues + tile.first_block * (std::size_t{block_scalars_} * Bits / 8);
        of_left.rule = &field.rule;
        of_left.coefficients = coefficients_;
        of_left.rows = tile.rows;
        of_left.last_scalars = tile.last_scalars;
        of_left.item_shift = item_shift_;
        of_left.left = steps;
        of_left.inverse = Kind == CellKind::relative ? field.rule.key_origin : field.inverse;
        of_left.scalar = field.scalar;
        const LeftSums sums = sums_of_left<Source, Kind, Bits, kMayBeSmall>(of_left);
        std::uint64_t fine[2];
        std::uint64_t coarse[2];
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const std::uint32_t(&nan)[1][4] = reinterpret_cast<const std::uint32_t(&)[1][4]>(sums.nan);
            const std::uint32_t(&fill)[1][4] = reinterpret_cast<const std::uint32_t(&)[1][4]>(sums.fill);
            const std::uint64_t nan_sum = multiply61(row_sum<1>(nan, half), reduce61(kNanValue<Kind>));
            const std::uint64_t fill_r = row_sum<1>(fill, half);
            std::uint64_t alike_in_both = nan_sum;
            if constexpr (Kind == CellKind::absolute)
                alike_in_both = add61(alike_in_both, row_sum<8>(sums.token, half));
            const auto sum = [&](std::uint64_t others, std::uint64_t of_fill) {
                return add61(add61(sum_of_row(others), alike_in_both), multiply61(fill_r, of_fill));
            };
            fine[half] = sum(sums.fine[half], sums.fill_fine);
            const bool alike = field.rule.coarse_shift == 0;
            coarse[half] = sum(alike ? sums.fine[half] : sums.coarse[half], sums.fill_coarse);
        }
        put_digests<true>(tile, fine, coarse);
        if (field.counts == nullptr) return;
        // Of tokens alone all values are counted already.
        if (!kExact && sums.tokens != 0)
            atomicAdd(field.counts + 1, static_cast<unsigned long long>(sums.tokens));
        if (sums.nans != 0) atomicAdd(field.counts, static_cast<unsigned long long>(sums.nans));
    }
    __device__ DType source_scalar() const {
        if constexpr (Source::kFixed) {
            return Source::kScalar;
        } else {
            return scalar_;
        }
    }
    // Blocks join to pieces by Horner's rule. Add: to what is there.
    template <bool Add = false>
    __device__ void put_digests(const Tile& tile, std::uint64_t (&fine)[2], std::uint64_t (&coarse)[2]) {
        const Field& field = *tile.field;
        const unsigned blocks = field.piece_blocks;
        if (blocks > 1) {
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const unsigned row = row_of(half);
                const unsigned begin = row & ~(blocks - 1);
                const unsigned there = tile.rows <= begin           ? 0
                                       : tile.rows - begin < blocks ? tile.rows - begin
                                                                    : blocks;
                const unsigned behind = row - begin < there ? there - 1 - (row - begin) : 0;
                const std::uint64_t power = rho_[behind];
                fine[half] = multiply61(fine[half], power);
                coarse[half] = multiply61(coarse[half], power);
            }
            if (blocks == 16) {
                fine[0] = add61(fine[0], fine[1]);
                coarse[0] = add61(coarse[0], coarse[1]);
            }
            for (unsigned i = 1; i < blocks && i < 8; i *= 2) {
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    fine[half] = add61(fine[half], warp::across(fine[half], static_cast<int>(i * 4)));
                    coarse[half] = add61(coarse[half], warp::across(coarse[half], static_cast<int>(i * 4)));
                }
            }
        }
        if (lane_ % 4 != 0) return;
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned row = row_of(half);
            if (row >= tile.rows || row % blocks != 0) continue;
            const std::uint64_t piece = (tile.first_block + row) / blocks;
            const auto put = [&](std::uint64_t* to, std::uint64_t digest) {
                if (to != nullptr) to[piece] = Add ? add61(to[piece], digest) : digest;
            };
            put(field.leaves, coarse[half]);
            put(field.fine, fine[half]);
        }
    }

    __device__ void put_counts(const Field& field, const Tile& tile) {
        if constexpr (kExact) {
            if (lane_ == 0) {
                const std::uint64_t scalars =
                    std::uint64_t{tile.rows - 1} * block_scalars_ + tile.last_scalars;
                atomicAdd(field.counts + 1, static_cast<unsigned long long>(scalars));
            }
            if (nans_ != 0) atomicAdd(field.counts, static_cast<unsigned long long>(nans_));
        } else if ((tokens_ | nans_) != 0) {
            if (tokens_ != 0) atomicAdd(field.counts + 1, static_cast<unsigned long long>(tokens_));
            if (nans_ != 0) atomicAdd(field.counts, static_cast<unsigned long long>(nans_));
        }
    }

    const Launch& launch_;
    const unsigned item_shift_;
    const unsigned block_scalars_;
    const unsigned steps_;
    const unsigned stage_row_;
    const unsigned lane_;
    const uint2* coefficients_;
    const std::uint64_t* rho_;  // its powers
    std::byte* ring_;
    std::byte* fill_at_;
    std::byte* use_at_;
    const ReadPolicy policy_;
    // The data that fill() brings next, for this lane; null: none.
    const std::byte* source_;
    unsigned source_rows_;
    int source_last_;
    bool source_whole_;
    std::uint32_t fine_[kPlanes][4];
    std::uint32_t low_[4];
    std::uint32_t residues_[2][4];
    std::uint32_t left_;  // steps, in 32 parts, that hold values out of the planes' range
    std::uint32_t tokens_;
    std::uint32_t nans_;
    std::uint32_t nan_pairs_;  // counts in both halves
    // Of the field that the tile belongs to.
    double inverse_;  // relative: the key's origin
    int exponent_;
    // Values of 16 bits: whether steps are tried with small cells, how many of this tile had
    // others, and tiles that are not tried.
    static constexpr unsigned kMostNotSmall = 8;
    static constexpr unsigned kUntried = 15;
    bool small_;
    unsigned not_small_;
    unsigned untried_ = 0;
    bool plain_;  // relative: every finite value has a narrow cell
    std::uint32_t low_mask_;
    DType scalar_;
    bool aligned_;
};

// Bytes of coefficients as the matrix product takes them: for step s and lane 4 n + t, byte n of
// those at the positions that lanes with this t hold.
__device__ inline void make_coefficients(std::uint32_t* table, unsigned block_scalars) {
    for (unsigned i = threadIdx.x; i < block_scalars * 2; i += kThreads) {
        const unsigned step = i / 64;
        const unsigned lane = i / 2 % 32;
        const unsigned first = step * kStepPositions + i % 2 * 16 + lane % 4 * 2;
        std::uint32_t word = 0;
#pragma unroll
        for (unsigned b = 0; b < 4; ++b) {
            const std::uint64_t r = coefficient(first + b / 2 * 8 + b % 2);
            word |= static_cast<std::uint32_t>(r >> (8 * (lane / 4)) & 0xFF) << (8 * b);
        }
        table[i] = word;
    }
}

template <class Source, CellKind Kind, unsigned Bits, KeyBits Left = KeyBits::all>
__global__ void __launch_bounds__(kThreads, 4) digest_blocks(Launch launch, unsigned item_shift) {
    extern __shared__ __align__(16) unsigned char shared_memory[];
    auto* shared = reinterpret_cast<std::byte*>(shared_memory);
    const unsigned shift = Source::kFixed ? Source::kItemShift : item_shift;
    make_coefficients(reinterpret_cast<std::uint32_t*>(shared), static_cast<unsigned>(kBlockBytes) >> shift);
    if (threadIdx.x < kRows) {
        reinterpret_cast<std::uint64_t*>(shared + (kBlockBytes >> shift) * 8)[threadIdx.x] =
            power61(kRho, threadIdx.x);
    }
    __syncthreads();
    Worker<Source, Kind, Bits, Left> worker(launch, shared, item_shift);
    worker.run();
}

// ---- the host's side of one kernel ----

using Kernel = void (*)(Launch, unsigned);
struct KernelChoice {
    Kernel kernel;
    std::size_t shared;           // bytes
    std::size_t most_shared;      // of any use of this kernel: its limit is set once
    unsigned threads = kThreads;  // of a thread block
    unsigned tiles = kWarps;      // that a thread block takes at once
};
// digest_{f16,f32,f64,words,any}_cuda.cu
KernelChoice f16_kernel(CellKind kind, unsigned bits, KeyBits left);
KernelChoice bf16_kernel(CellKind kind, unsigned bits, KeyBits left);
KernelChoice f32_kernel(CellKind kind, unsigned bits, KeyBits left);
KernelChoice f64_kernel(CellKind kind, unsigned bits, KeyBits left);
KernelChoice integers64_kernel();
KernelChoice words_kernel(DType scalar);
KernelChoice few_words_kernel(unsigned item_shift);  // of signed integers
KernelChoice any_kernel(CellKind kind, unsigned bits, unsigned item_shift);

template <class Source, KeyBits Left>
Kernel relative_kernel(unsigned bits) {
    return bits == 4   ? digest_blocks<Source, CellKind::relative, 4, Left>
           : bits == 2 ? digest_blocks<Source, CellKind::relative, 2, Left>
                       : digest_blocks<Source, CellKind::relative, 0, Left>;
}
template <class Source>
Kernel kernel_of(CellKind kind, unsigned bits, KeyBits left = KeyBits::all) {
    switch (kind) {
        case CellKind::tokens: return digest_blocks<Source, CellKind::tokens, 0>;
        case CellKind::absolute:
            return bits == 4   ? digest_blocks<Source, CellKind::absolute, 4>
                   : bits == 2 ? digest_blocks<Source, CellKind::absolute, 2>
                               : digest_blocks<Source, CellKind::absolute, 0>;
        case CellKind::relative:
            if constexpr (Source::kFixed) {
                if (left == KeyBits::upper) return relative_kernel<Source, KeyBits::upper>(bits);
                if constexpr (Source::kNarrow) {
                    if (left == KeyBits::middle) return relative_kernel<Source, KeyBits::middle>(bits);
                }
            }
            return relative_kernel<Source, KeyBits::all>(bits);
        case CellKind::binary32:
            // Of float64 there are none.
            if constexpr (!Source::kFixed || Source::kFirstPlane < 4)
                return digest_blocks<Source, CellKind::binary32, 0>;
            break;
        case CellKind::words:
            if constexpr (Source::kItemShift == 3) return digest_blocks<Source, CellKind::words, 0>;
            break;
        case CellKind::integers: break;  // taken as absolute ones
    }
    return nullptr;
}

}  // namespace twinrun::gpu
