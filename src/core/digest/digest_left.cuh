// Private to digest_kernel.cuh: the values of a tile that its loop left out, because their cells do
// not fit the planes: NaN, infinities, and what lies far from its cells.
//
// As a rule they are NaN, or one fill value over and over: land in an ocean, a mask. Their places
// are a matrix of zeros and ones, whose product with the coefficients' bytes gives the sum of the
// coefficients that the value is multiplied by. The fill value is the first one that is found. Of
// other values the tokens are multiplied as matrices of bytes, under an absolute rule; what is left
// then, one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/gpu.hpp"
#include "device/warp.cuh"
#include "digest/byte_products.cuh"
#include "digest/digest_sources.cuh"

namespace twinrun::gpu {

// What a lane has to add to its two rows.
struct LeftSums {
    // Sums of coefficients: columns of the matrix product (byte_products.cuh).
    std::uint32_t nan[4] = {};
    std::uint32_t fill[4] = {};
    // The same of tokens' bytes.
    std::uint32_t token[8][4] = {};
    // Of all lanes alike: what the fill value is multiplied by.
    std::uint64_t fill_fine = 0;
    std::uint64_t fill_coarse = 0;
    // Of this lane's other values, by row.
    std::uint64_t fine[2] = {};
    std::uint64_t coarse[2] = {};
    std::uint32_t nans = 0;
    std::uint32_t tokens = 0;
};

// A tile as the function below sees it. All lanes of a warp have the same.
struct LeftTile {
    const std::byte* data;
    std::byte* residues;  // of its first block; may be null
    const CellRule* rule;
    const uint2* coefficients;  // their bytes, as matrix products take them
    std::uint32_t rows;
    std::uint32_t last_scalars;
    std::uint32_t item_shift;
    std::uint32_t left;  // steps in 32 parts, of any lane
    double inverse;      // as Cells<Kind>::biased() takes it
    DType scalar;
};

// A scalar's bits.
template <class Source>
using LeftRaw = std::conditional_t<(Source::kFixed && Source::kItemShift < 3), std::uint32_t, std::uint64_t>;

// The low bits of a row's eight cells in one step, given as their lowest bytes: of cells 0 to 3 and
// 4 to 7. Those of even positions are in the low half of the word, of odd ones in the high half.
template <unsigned Bits>
__device__ inline std::uint32_t residue_word(std::uint32_t first, std::uint32_t second) {
    if constexpr (Bits == 4) {
        const std::uint32_t a = (first & 0x0F0FU) | (first >> 12 & 0xF0F0U);
        const std::uint32_t b = (second & 0x0F0FU) | (second >> 12 & 0xF0F0U);
        // Bytes: even positions' first 8 bits and second 8, odd positions' likewise.
        return bytes_of(a, b, 0x5140);
    } else {
        const std::uint32_t a = (first & 0x0303U) | (first >> 14 & 0x0C0CU);
        const std::uint32_t b = (second & 0x0303U) | (second >> 14 & 0x0C0CU);
        return a | b << 4;
    }
}

// The low bits of the values of one step that were left out go to the residues, which are zeros
// there. first, second: bytes of this lane's values 0 to 3 and 4 to 7 of the row.
template <unsigned Bits>
__device__ inline void add_residues(std::byte* row, unsigned step, unsigned lane, std::uint32_t first,
                                    std::uint32_t second) {
    constexpr unsigned kPerLine = 512 / Bits;
    const unsigned at = step * 32;
    std::byte* to = row + at / kPerLine * kResidueLine + lane % 4 * 16;
    const std::uint32_t word = residue_word<Bits>(first, second);
    if constexpr (Bits == 4) {
        auto* byte = reinterpret_cast<unsigned char*>(to) + step % 4 * 2;
        byte[0] = static_cast<unsigned char>(byte[0] | word);
        byte[1] = static_cast<unsigned char>(byte[1] | word >> 8);
        byte[8] = static_cast<unsigned char>(byte[8] | word >> 16);
        byte[9] = static_cast<unsigned char>(byte[9] | word >> 24);
    } else {
        auto* byte = reinterpret_cast<unsigned char*>(to + at % kPerLine / 128 * 4) + step % 4;
        byte[0] = static_cast<unsigned char>(byte[0] | word);
        byte[8] = static_cast<unsigned char>(byte[8] | word >> 8);
    }
}

// Bit i of four, in byte i.
__device__ inline std::uint32_t spread(unsigned bits) { return (bits & 0xF) * 0x00204081U & 0x01010101U; }

// This lane's eight scalars of one row in a step, as the planes' matrices have them. Those that are
// not there are 0.
template <class Source, class Raw>
__device__ inline void load_left(const std::byte* row, unsigned first, unsigned there, unsigned item_shift,
                                 Raw (&raw)[8]) {
    if (Source::kFixed && there == static_cast<unsigned>(kBlockBytes) >> item_shift) {
        // Pairs, two at a time.
        struct alignas(2 * sizeof(Raw)) Two {
            Raw a;
            Raw b;
        };
        if constexpr (Source::kItemShift == 1) {
            const auto* pairs = reinterpret_cast<const std::uint32_t*>(row);
#pragma unroll
            for (unsigned m = 0; m < 4; ++m) {
                const std::uint32_t pair = __ldg(pairs + first / 2 + m * 4);
                raw[2 * m] = pair & 0xFFFF;
                raw[2 * m + 1] = pair >> 16;
            }
        } else {
            const auto* pairs = reinterpret_cast<const Two*>(row);
#pragma unroll
            for (unsigned m = 0; m < 4; ++m) {
                const Two pair = pairs[first / 2 + m * 4];
                raw[2 * m] = pair.a;
                raw[2 * m + 1] = pair.b;
            }
        }
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
        const unsigned where = first + i / 2 * 8 + i % 2;
        raw[i] = where < there
                     ? static_cast<Raw>(raw_scalar(row + (std::size_t{where} << item_shift), item_shift))
                     : 0;
    }
}

// (Not inlined: it is long, and few need it.)
__device__ __noinline__ inline Cell left_cell(std::uint64_t raw, DType scalar, const CellRule* rule,
                                              int coarse_shift) {
    return cell_of_raw(raw, scalar, *rule, coarse_shift);
}

// Adds the products of the tokens of a step. which: bits of this lane's values in its two rows.
// bytes: the lowest ones, as the residues take them. (Not inlined: few need its many registers.)
template <class Source>
__device__ __noinline__ void add_tokens(std::uint32_t (&sums)[8][4], const LeftTile& tile, DType scalar,
                                        unsigned step, unsigned which, std::uint32_t (&bytes)[4]) {
    using Raw = LeftRaw<Source>;
    const unsigned lane = threadIdx.x % 32;
    const unsigned item_shift = Source::kFixed ? Source::kItemShift : tile.item_shift;
    const unsigned block_scalars = static_cast<unsigned>(kBlockBytes) >> item_shift;
    const uint2 r = tile.coefficients[step * 32 + lane];
    std::uint32_t planes[4][8];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        const unsigned mine = which >> 8 * half & 0xFF;
        const unsigned row = lane / 4 + half * 8;
        const unsigned there = mine == 0 ? 0 : row + 1 < tile.rows ? block_scalars : tile.last_scalars;
        Raw raw[8];
        load_left<Source>(tile.data + row * kBlockBytes, step * 32 + lane % 4 * 2, there, item_shift, raw);
        std::uint32_t lower[8];
        std::uint32_t upper[8];
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) {
            const std::uint64_t token = splitmix64(bits_of(value_of(raw[i], scalar)));
            const bool has = (mine >> i & 1) != 0;
            lower[i] = has ? static_cast<std::uint32_t>(token) : 0;
            upper[i] = has ? static_cast<std::uint32_t>(token >> 32) : 0;
        }
#pragma unroll
        for (unsigned quarter = 0; quarter < 2; ++quarter) {
            std::uint32_t part[4];
            transpose(lower + quarter * 4, part);
#pragma unroll
            for (unsigned p = 0; p < 4; ++p)
                planes[half + 2 * quarter][p] = part[p];
            transpose(upper + quarter * 4, part);
#pragma unroll
            for (unsigned p = 0; p < 4; ++p)
                planes[half + 2 * quarter][4 + p] = part[p];
        }
    }
#pragma unroll
    for (int p = 0; p < 8; ++p)
        multiply_bytes(sums[p], planes[0][p], planes[1][p], planes[2][p], planes[3][p], r.x, r.y);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        bytes[i] = planes[i][0];
}

template <class Source, CellKind Kind, unsigned Bits, bool MoreBias>
__device__ LeftSums sums_of_left(const LeftTile& tile) {
    using Raw = LeftRaw<Source>;
    const unsigned lane = threadIdx.x % 32;
    const unsigned item_shift = Source::kFixed ? Source::kItemShift : tile.item_shift;
    const unsigned block_scalars = static_cast<unsigned>(kBlockBytes) >> item_shift;
    const unsigned steps = block_scalars / 32;
    const int exponent = tile.rule->fine_exponent;
    const int shift = tile.rule->coarse_shift;
    const DType scalar = [&] {
        if constexpr (Source::kFixed) {
            return Source::kScalar;
        } else {
            return tile.scalar;
        }
    }();
    const bool wide_integers = scalar == DType::i64 || scalar == DType::u64;
    const auto is_left = [&](double x) {
        if constexpr (MoreBias) {
            return Cells<Kind>::outside(Cells<Kind>::biased_more(x, tile.inverse)) != 0;
        } else {
            return Cells<Kind>::outside(Cells<Kind>::biased(x, tile.inverse, exponent)) != 0;
        }
    };
    const auto cell = [&](std::uint64_t raw, int coarse) {
        return left_cell(raw, scalar, tile.rule, coarse);
    };
    // Upper halves of magnitudes from which on a finite value has neither a fine nor a coarse cell,
    // and its token is its bits mixed once.
    std::uint32_t far_from = 0x7FF00000U;
    if constexpr (Kind == CellKind::absolute) {
        const int power = 1023 + 59 + exponent + shift;
        if (power >= 1 && power < 0x7FF && !wide_integers) far_from = static_cast<std::uint32_t>(power) << 20;
    }
    const auto upper_half = [](double x) {
        return static_cast<std::uint32_t>(bits_of(x) >> 32) & 0x7FFFFFFFU;
    };
    LeftSums sums;
    bool known = false;
    Raw fill = 0;
    Cell of_fill{};
#pragma unroll 1
    for (std::uint32_t rest = tile.left; rest != 0; rest &= rest - 1) {
        const unsigned part = static_cast<unsigned>(__ffs(static_cast<int>(rest))) - 1;
        const unsigned first_step = (part * steps + 31) / 32;
        const unsigned end = first_step + (steps + 31) / 32;
#pragma unroll 1
        for (unsigned step = first_step; step < end; ++step) {
            unsigned nans[2];  // bits of this lane's values, by row
            unsigned fills[2];
            unsigned tokens[2];
            const unsigned first = step * 32 + lane % 4 * 2;
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const unsigned row = lane / 4 + half * 8;
                const unsigned there = row + 1 < tile.rows    ? block_scalars
                                       : row + 1 == tile.rows ? tile.last_scalars
                                                              : 0;
                const std::byte* data = tile.data + row * kBlockBytes;
                Raw raw[8];
                load_left<Source>(data, first, there, item_shift, raw);
                unsigned left = 0;
                unsigned nan = 0;
#pragma unroll
                for (unsigned i = 0; i < 8; ++i) {
                    const double x = value_of(raw[i], scalar);
                    left |= is_left(x) ? 1U << i : 0;
                    nan |= x != x ? 1U << i : 0;
                }
                if (there != block_scalars) {
#pragma unroll
                    for (unsigned i = 0; i < 8; ++i)
                        left &= first + i / 2 * 8 + i % 2 < there ? ~0U : ~(1U << i);
                }
                nan = wide_integers ? 0 : nan & left;
                unsigned others = left ^ nan;
                nans[half] = nan;
                fills[half] = tokens[half] = 0;
                const unsigned with_others = warp::ballot(others != 0);
                if (with_others == 0) continue;
                if (!known) {
                    Raw mine = 0;
#pragma unroll
                    for (unsigned i = 0; i < 8; ++i)
                        mine = (others >> i & 1) != 0 ? raw[i] : mine;
                    fill = warp::from(mine, __ffs(static_cast<int>(with_others)) - 1);
                    known = true;
                    of_fill = cell(fill, 0);
                    sums.fill_fine = field_value(of_fill);
                    sums.fill_coarse = shift == 0 ? sums.fill_fine : field_value(cell(fill, shift));
                }
#pragma unroll
                for (unsigned i = 0; i < 8; ++i)
                    fills[half] |= raw[i] == fill ? 1U << i : 0;
                fills[half] &= others;
                others ^= fills[half];
                if (Kind == CellKind::absolute && others != 0) {
#pragma unroll
                    for (unsigned i = 0; i < 8; ++i) {
                        const std::uint32_t upper = upper_half(value_of(raw[i], scalar));
                        tokens[half] |= upper >= far_from && upper < 0x7FF00000U ? 1U << i : 0;
                    }
                    tokens[half] &= others;
                    others ^= tokens[half];
                }
                if (others == 0) continue;
                std::uint32_t low[2] = {};  // bytes of the cells of what is neither
#pragma unroll 1
                for (; others != 0; others &= others - 1) {
                    const unsigned i = static_cast<unsigned>(__ffs(static_cast<int>(others))) - 1;
                    const unsigned where = first + i / 2 * 8 + i % 2;
                    const std::uint64_t bits =
                        raw_scalar(data + (std::size_t{where} << item_shift), item_shift);
                    const std::uint64_t r = coefficient(where);
                    const Cell fine = cell(bits, 0);
                    sums.fine[half] = add61(sums.fine[half], multiply61(r, field_value(fine)));
                    if (shift != 0) {
                        const std::uint64_t coarse = field_value(cell(bits, shift));
                        sums.coarse[half] = add61(sums.coarse[half], multiply61(r, coarse));
                    }
                    sums.tokens += fine.token ? 1 : 0;
                    const std::uint32_t byte = static_cast<std::uint32_t>(fine.bits & 0xFF) << i % 4 * 8;
                    low[0] |= i < 4 ? byte : 0;
                    low[1] |= i < 4 ? 0 : byte;
                }
                if constexpr (Bits != 0) {
                    if (tile.residues != nullptr) {
                        add_residues<Bits>(tile.residues + row * (std::size_t{block_scalars} * Bits / 8),
                                           step, lane, low[0], low[1]);
                    }
                }
            }
            const auto some_nans = static_cast<unsigned>(__popc(nans[0] | nans[1] << 8));
            const auto some_fills = static_cast<unsigned>(__popc(fills[0] | fills[1] << 8));
            sums.nans += some_nans;
            sums.tokens += of_fill.token ? some_fills : 0;
            const uint2 r = tile.coefficients[step * 32 + lane];
            std::uint32_t low[4] = {};  // bytes of the cells
            if (warp::any(some_nans != 0)) {
                const std::uint32_t places[4] = {spread(nans[0]), spread(nans[1]), spread(nans[0] >> 4),
                                                 spread(nans[1] >> 4)};
                multiply_bytes(sums.nan, places[0], places[1], places[2], places[3], r.x, r.y);
                for (unsigned i = 0; Bits != 0 && i < 4; ++i)
                    low[i] |= places[i] * static_cast<std::uint32_t>(kNanValue<Kind> & 0xFF);
            }
            if (warp::any(some_fills != 0)) {
                const std::uint32_t places[4] = {spread(fills[0]), spread(fills[1]), spread(fills[0] >> 4),
                                                 spread(fills[1] >> 4)};
                multiply_bytes(sums.fill, places[0], places[1], places[2], places[3], r.x, r.y);
                for (unsigned i = 0; Bits != 0 && i < 4; ++i)
                    low[i] |= places[i] * static_cast<std::uint32_t>(of_fill.bits & 0xFF);
            }
            if (Kind == CellKind::absolute && warp::any((tokens[0] | tokens[1]) != 0)) {
                std::uint32_t bytes[4];
                add_tokens<Source>(sums.token, tile, scalar, step, tokens[0] | tokens[1] << 8, bytes);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    low[i] |= bytes[i];
                sums.tokens += static_cast<unsigned>(__popc(tokens[0] | tokens[1] << 8));
            }
            if constexpr (Bits != 0) {
                if (tile.residues == nullptr) continue;
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    if ((nans[half] | fills[half] | tokens[half]) == 0) continue;
                    std::byte* row =
                        tile.residues + (lane / 4 + half * 8) * (std::size_t{block_scalars} * Bits / 8);
                    add_residues<Bits>(row, step, lane, low[half], low[half + 2]);
                }
            }
        }
    }
    if constexpr (Kind != CellKind::binary32) sums.tokens += sums.nans;
    return sums;
}

}  // namespace twinrun::gpu
