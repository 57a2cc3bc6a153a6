// Private to digest_*cuda.cu and sums_cuda.cu: what feeds the kernels. Values from scalars of any
// dtype, the sources that digest_kernel.cuh reads them by, and the cells of each kind of rule.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/gpu.hpp"
#include "device/half.cuh"
#include "digest/digest.hpp"
#include "digest/field61.hpp"

namespace twinrun::gpu {

// ---- values ----

__device__ inline std::uint32_t bytes_of(std::uint32_t x, std::uint32_t y, std::uint32_t selector) {
    return __byte_perm(x, y, selector);
}

// A scalar's bits, zero-extended, from any alignment of its size.
__device__ inline std::uint64_t raw_scalar(const std::byte* at, unsigned item_shift) {
    switch (item_shift) {
        case 0: return *reinterpret_cast<const std::uint8_t*>(at);
        case 1: return *reinterpret_cast<const std::uint16_t*>(at);
        case 2: return *reinterpret_cast<const std::uint32_t*>(at);
        default: return *reinterpret_cast<const std::uint64_t*>(at);
    }
}

struct Integer64 {
    std::uint64_t magnitude;
    bool negative;
};
__device__ inline Integer64 integer_parts(std::uint64_t raw, DType scalar) {
    const bool negative = scalar == DType::i64 && static_cast<std::int64_t>(raw) < 0;
    return {negative ? ~raw + 1 : raw, negative};
}

// As a float64. 64-bit integers that it does not hold exactly become NaN: they leave the loop.
__device__ inline double value_of(std::uint64_t raw, DType scalar) {
    switch (scalar) {
        case DType::f16: return half_to_float(static_cast<std::uint32_t>(raw));
        case DType::bf16: return __uint_as_float(static_cast<std::uint32_t>(raw) << 16);
        case DType::f32: return __uint_as_float(static_cast<std::uint32_t>(raw));
        case DType::f64: return __longlong_as_double(static_cast<long long>(raw));
        case DType::i8: return static_cast<std::int8_t>(raw);
        case DType::i16: return static_cast<std::int16_t>(raw);
        case DType::i32: return static_cast<std::int32_t>(raw);
        case DType::u8:
        case DType::u16:
        case DType::u32: return static_cast<std::uint32_t>(raw);
        case DType::boolean: return raw != 0 ? 1.0 : 0.0;
        case DType::i64:
        case DType::u64: {
            const Integer64 parts = integer_parts(raw, scalar);
            if (parts.magnitude > kLargestExactInteger) return __longlong_as_double(0x7FF8000000000000LL);
            const double x = static_cast<double>(parts.magnitude);
            return parts.negative ? -x : x;
        }
        default: return 0;
    }
}

__device__ inline Cell cell_of_raw(std::uint64_t raw, DType scalar, const CellRule& rule, int coarse_shift) {
    if (scalar == DType::i64 || scalar == DType::u64) {
        const Integer64 parts = integer_parts(raw, scalar);
        return cell_of_integer(parts.magnitude, parts.negative, rule, coarse_shift);
    }
    return cell_of(value_of(raw, scalar), rule, coarse_shift);
}

__device__ inline std::uint64_t field_value(const Cell& cell) {
    return cell.token ? reduce61(cell.bits) : signed61(static_cast<std::int64_t>(cell.bits));
}

// Transposes four words into their four byte planes.
__device__ inline void transpose(const std::uint32_t* w, std::uint32_t (&plane)[4]) {
    const std::uint32_t a = bytes_of(w[0], w[1], 0x5140);
    const std::uint32_t b = bytes_of(w[2], w[3], 0x5140);
    const std::uint32_t c = bytes_of(w[0], w[1], 0x7362);
    const std::uint32_t d = bytes_of(w[2], w[3], 0x7362);
    plane[0] = bytes_of(a, b, 0x5410);
    plane[1] = bytes_of(a, b, 0x7632);
    plane[2] = bytes_of(c, d, 0x5410);
    plane[3] = bytes_of(c, d, 0x7632);
}

// ---- sources: how scalars of one dtype become the kernel's float64 ----

// What most sources have, and what follows from the size of their scalars: 2^ItemShift bytes.
template <unsigned ItemShift>
struct SourceOf {
    static constexpr bool kFixed = true;  // of one dtype, aligned
    static constexpr bool kWords = false;
    static constexpr unsigned kItemShift = ItemShift;
    // Stages of the ring in shared memory, and steps in each: the larger the scalars, the fewer
    // steps a stage has.
    static constexpr unsigned kStages = ItemShift == 0 ? 2 : ItemShift == 3 ? 4 : 3;
    static constexpr unsigned kStageSteps = ItemShift == 0 ? 4 : ItemShift == 3 ? 1 : 2;
    // Bytes between rows: no bank is asked twice in one access.
    static constexpr unsigned kPad = ItemShift < 2 ? 16 : 8U << ItemShift;
    static constexpr bool kNarrow = ItemShift < 3;  // no value is as small as a seed of a token
    static constexpr bool kHighOnly = false;        // the low 32 bits of each float64 are 0
    // Of a binary32 the first byte that may be other than 0; not of other types.
    static constexpr int kFirstPlane = 4;
    static constexpr bool kPairs = false;  // two bfloat16 in a word, taken at once
};

struct F32 : SourceOf<2> {
    static constexpr DType kScalar = DType::f32;
    static constexpr int kFirstPlane = 0;
    // Of one scalar's bits.
    __device__ static float number(std::uint32_t raw) { return __uint_as_float(raw); }
    using Pair = float2;
    __device__ static float first(Pair p) { return p.x; }
    __device__ static float second(Pair p) { return p.y; }
};
// Two values to a word, and so half as many bytes a step.
struct Half : SourceOf<1> {
    static constexpr bool kHighOnly = true;
    using Pair = std::uint32_t;
};
struct F16 : Half {
    static constexpr DType kScalar = DType::f16;
    static constexpr int kFirstPlane = 1;
    __device__ static float first(Pair p) { return half_to_float(p & 0xFFFF); }
    __device__ static float second(Pair p) { return half_to_float(p >> 16); }
    __device__ static float number(std::uint32_t raw) { return half_to_float(raw); }
};
struct BF16 : Half {
    static constexpr DType kScalar = DType::bf16;
    static constexpr int kFirstPlane = 2;
    static constexpr bool kPairs = true;
    __device__ static float first(Pair p) { return __uint_as_float(p << 16); }
    __device__ static float second(Pair p) { return __uint_as_float(p & 0xFFFF0000U); }
    __device__ static float number(std::uint32_t raw) { return __uint_as_float(raw << 16); }
};
// Two bfloat16 with 0 for -0.0. NaNs stay NaNs.
__device__ inline std::uint32_t without_negative_zeros(std::uint32_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint32_t sum;
    // x 1 + 0: one instruction from this architecture on, and exact for denormal numbers.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(0x3F803F80U), "r"(0U));
    return sum;
#else
    if ((pair & 0xFFFFU) == 0x8000U) pair &= 0xFFFF0000U;
    return pair >> 16 == 0x8000U ? pair & 0xFFFFU : pair;
#endif
}
// Ones in the halves that are NaNs.
__device__ inline std::uint32_t nan_mask(std::uint32_t pair) {
    // A magnitude beyond that of infinity carries into the highest bit of its half.
    const std::uint32_t carried = (pair & 0x7FFF7FFFU) + 0x007F007FU;
#if defined(__CUDA_ARCH__)
    std::uint32_t mask;
    // The highest bits of bytes 1 and 3, in all bits of their halves.
    asm("prmt.b32 %0, %1, %1, 0xBB99;" : "=r"(mask) : "r"(carried));
    return mask;
#else
    return (carried >> 15 & 0x00010001U) * 0xFFFFU;
#endif
}
struct F64 : SourceOf<3> {
    static constexpr DType kScalar = DType::f64;
    using Pair = double2;
    __device__ static double first(Pair p) { return p.x; }
    __device__ static double second(Pair p) { return p.y; }
};
// 64-bit integers, for the rule of words only.
struct Integers64 : SourceOf<3> {
    static constexpr DType kScalar = DType::i64;
};
// Words of bits, each its own cell: integers of 1, 2 or 4 bytes under the absolute rule with a
// spacing of 1. A signed word with its highest bit turned round is its cell and the bias; others
// have no bias. A word has as many planes as bytes.
template <unsigned ItemShift, bool Signed>
struct WordsOf : SourceOf<ItemShift> {
    static constexpr bool kWords = true;
    // The highest bits of all words in four bytes.
    static constexpr std::uint32_t kTurned = !Signed          ? 0
                                             : ItemShift == 0 ? 0x80808080U
                                             : ItemShift == 1 ? 0x80008000U
                                                              : 0x80000000U;
};
template <DType Scalar>
struct Word8 : WordsOf<0, Scalar == DType::i8> {
    static constexpr DType kScalar = Scalar;
    using Pair = std::uint16_t;
    // Bytes of four words, by plane.
    __device__ static void planes(const Pair* row, unsigned quarter, unsigned lane,
                                  std::uint32_t (&plane)[4]) {
        const std::uint32_t a = row[lane % 4 + 8 * quarter];
        const std::uint32_t b = row[lane % 4 + 8 * quarter + 4];
        plane[0] = (a | b << 16) ^ Word8::kTurned;
        // Whatever is not 0 is true.
        if constexpr (Scalar == DType::boolean) plane[0] = __vminu4(plane[0], 0x01010101U);
    }
};
template <DType Scalar>
struct Word16 : WordsOf<1, Scalar == DType::i16> {
    static constexpr DType kScalar = Scalar;
    using Pair = std::uint32_t;
    __device__ static void planes(const Pair* row, unsigned quarter, unsigned lane,
                                  std::uint32_t (&plane)[4]) {
        const std::uint32_t a = row[lane % 4 + 8 * quarter] ^ Word16::kTurned;
        const std::uint32_t b = row[lane % 4 + 8 * quarter + 4] ^ Word16::kTurned;
        plane[0] = bytes_of(a, b, 0x6420);
        plane[1] = bytes_of(a, b, 0x7531);
    }
};
template <DType Scalar>
struct Word32 : WordsOf<2, Scalar == DType::i32> {
    static constexpr DType kScalar = Scalar;
    using Pair = uint2;
    __device__ static void planes(const Pair* row, unsigned quarter, unsigned lane,
                                  std::uint32_t (&plane)[4]) {
        const uint2 a = row[lane % 4 + 8 * quarter];
        const uint2 b = row[lane % 4 + 8 * quarter + 4];
        constexpr std::uint32_t kTurned = Word32::kTurned;
        const std::uint32_t words[4] = {a.x ^ kTurned, a.y ^ kTurned, b.x ^ kTurned, b.y ^ kTurned};
        transpose(words, plane);
    }
};
// Any dtype, and any alignment. Its ring is that of the largest scalars.
struct Any : SourceOf<3> {
    static constexpr bool kFixed = false;
};

// ---- kinds of cells ----

// The bits of relative keys that may be left in cells: up to 64, the upper 32, or 32 from within.
enum class KeyBits : std::uint8_t { all, upper, middle };

// Planes: bytes of the biased cell that are multiplied. bias: what each value carries besides its
// cell.
template <CellKind Kind>
struct Cells;
template <>
struct Cells<CellKind::absolute> {
    // x 2^-e + 1.5 2^52, rounded down, has the spacing 1: its low 51 bits are floor(x 2^-e) + 2^51;
    // of the 56 bits that are multiplied, 0x38 at the top belongs to the bias.
    static constexpr int kPlanes = 7;
    static constexpr std::uint64_t kNeutral = 0x4338000000000000ULL;
    static constexpr std::uint64_t kBias = 0x0038000000000000ULL;
    __device__ static std::uint64_t biased(double x, double inverse, int /*exponent*/) {
        return static_cast<std::uint64_t>(__double_as_longlong(__fma_rd(x, inverse, 0x1.8p52)));
    }
    // Not 0: out of the range that the planes hold.
    __device__ static std::uint32_t outside(std::uint64_t v) {
        return (static_cast<std::uint32_t>(v >> 32) ^ 0x43300000U) & 0xFFF00000U;
    }

    // The same for values of 16 bits, with a larger bias. Of small cells, -2^22 <= q < 2^22, floats
    // suffice: x 2^-e + 1.5 2^23 has the spacing 1, and its low three bytes are q + 2^22. The
    // other planes are then those of the bias.
    static constexpr std::uint64_t kSmallBias = 1ULL << 22;
    static constexpr int kSmallPlanes = 3;
    static constexpr int kBiasPlane = 6;  // the only other one that is not 0
    static constexpr std::uint32_t kBiasBytes = 0x38383838U;
    static_assert(kBias == 0x38ULL << 8 * kBiasPlane);
    __device__ static std::uint64_t biased_more(double x, double inverse) {
        return static_cast<std::uint64_t>(__double_as_longlong(__fma_rd(x, inverse, 0x1.8p52 + 0x1p22)));
    }
    __device__ static std::uint32_t small(float x, float inverse) {
        return __float_as_uint(__fmaf_rd(x, inverse, 0x1.8p23F));
    }
    // Of one or several of them, joined by or.
    __device__ static std::uint32_t small_difference(std::uint32_t v) { return v ^ 0x4B000000U; }
    __device__ static bool all_small(std::uint32_t differences) { return (differences & 0xFF800000U) == 0; }
    // Whether a float holds the scale.
    __device__ static bool may_be_small(int exponent) { return exponent >= -126 && exponent <= 126; }
};
template <>
struct Cells<CellKind::relative> {
    static constexpr int kPlanes = 8;
    static constexpr std::uint64_t kNeutral = 1ULL << 59;
    static constexpr std::uint64_t kBias = kNeutral;
    __device__ static std::uint64_t biased(double x, double origin, int exponent) {
        const std::uint64_t sum = bits_of(fabs(x) + origin);
        constexpr std::uint64_t kSmallest = 0x0170000000000000ULL;  // kSmallestSum
        std::int64_t key = static_cast<std::int64_t>(sum - bits_of(origin));
        key = (bits_of(x) >> 63) != 0 ? -key : key;
        const std::uint64_t v = static_cast<std::uint64_t>(key >> exponent) + kBias;
        return sum - kSmallest < 0x7FF0000000000000ULL - kSmallest || sum == 0 ? v : ~0ULL;
    }
    // Whether every finite value whose sum with the origin is finite has a narrow cell: that sum is
    // 0 or no smaller than kSmallestSum, and 59 bits of a key are left.
    // Narrow: the value was a float16, bfloat16 or float32, which is 0 or larger than that.
    template <bool Narrow>
    __device__ static bool all_narrow(double origin, int exponent) {
        return (origin >= kSmallestSum || (Narrow && origin == 0)) && exponent >= 4;
    }
    // What biased() is for a narrow cell, in half the instructions. largest: the upper half of the
    // largest sum so far; from 0x7FF00000 on there is a value without a narrow cell among those
    // seen. floor(-d / 2^e) = ~((d - 1) >> e).
    __device__ static std::uint64_t plain(double x, double origin, int exponent, std::uint32_t& largest) {
        const std::int64_t sign = static_cast<std::int64_t>(bits_of(x)) >> 63;
        return static_cast<std::uint64_t>((distance(x, origin, sign, largest) >> exponent) ^ sign) + kBias;
    }
    // Planes and bias of cells that fit 32 bits with it.
    static constexpr int kShortPlanes = 4;
    static constexpr unsigned kShortBias = 31;  // its logarithm
    // The same as plain() with that bias.
    template <KeyBits Left>
    __device__ static std::uint32_t shortest(double x, double origin, int exponent, std::uint32_t& largest) {
        static_assert(Left != KeyBits::all);
        const auto sign = static_cast<std::int32_t>(bits_of(x) >> 32) >> 31;
        const auto d = static_cast<std::uint64_t>(distance(x, origin, sign, largest));
        const auto low = static_cast<std::uint32_t>(d);
        const auto high = static_cast<std::uint32_t>(d >> 32);
        const auto bits = static_cast<unsigned>(exponent) % 32;
        const std::uint32_t q = Left == KeyBits::upper
                                    ? static_cast<std::uint32_t>(static_cast<std::int32_t>(high) >> bits)
                                    : __funnelshift_r(low, high, bits);
        return q ^ static_cast<std::uint32_t>(sign) ^ 1U << kShortBias;
    }
    // The cell itself where it fits 32 bits with that bias, of any exponent.
    __device__ static std::int32_t short_cell(double x, double origin, int exponent, std::uint32_t& largest) {
        const auto sign = static_cast<std::int32_t>(bits_of(x) >> 32) >> 31;
        return static_cast<std::int32_t>(distance(x, origin, sign, largest) >> exponent) ^ sign;
    }
    // Of |x| + origin from the origin, in steps of its bits; one less for a negative x (sign: -1).
    __device__ static std::int64_t distance(double x, double origin, std::int64_t sign,
                                            std::uint32_t& largest) {
        const std::uint64_t sum = bits_of(fabs(x) + origin);
        largest = max(largest, static_cast<std::uint32_t>(sum >> 32));
        return static_cast<std::int64_t>(sum - bits_of(origin)) + sign;
    }
    // A cell of -2^59 would do for the planes; it counts as a token (|q| < 2^59).
    __device__ static std::uint32_t outside(std::uint64_t v) { return v - 1 >= (1ULL << 60) - 1 ? 1 : 0; }
};
// The bits of a binary32, with the bias of absolute cells.
template <>
struct Cells<CellKind::binary32> {
    static constexpr int kPlanes = Cells<CellKind::absolute>::kPlanes;
    static constexpr std::uint64_t kNeutral = Cells<CellKind::absolute>::kNeutral;
    static constexpr std::uint64_t kBias = Cells<CellKind::absolute>::kBias;
    // NaNs leave the loop, to be counted.
    __device__ static std::uint64_t biased(double x, double /*inverse*/, int /*exponent*/) {
        const auto value = static_cast<float>(x);
        const std::int64_t bits = binary32_bits(value);
        return value != value ? ~0ULL : kNeutral + static_cast<std::uint64_t>(bits);
    }
    __device__ static std::uint32_t outside(std::uint64_t v) { return static_cast<std::uint32_t>(v >> 63); }
};
// 64 bits as they are, or those of a float64 with one NaN and one zero: both halves are digests'
// numbers of their own, and no scalar leaves the loop.
template <>
struct Cells<CellKind::words> {
    static constexpr int kPlanes = 8;
    static constexpr std::uint64_t kNeutral = 0;
    static constexpr std::uint64_t kBias = 0;
    // Whether x is NaN. The halves become those of the bits that stand for it.
    __device__ static bool halves(double x, std::uint32_t& low, std::uint32_t& high) {
        const std::uint64_t bits = bits_of(x + 0.0);  // -0.0 and 0.0 are one number
        const bool nan = x != x;
        low = nan ? 0 : static_cast<std::uint32_t>(bits);
        high = nan ? static_cast<std::uint32_t>(kBinary64Nan >> 32) : static_cast<std::uint32_t>(bits >> 32);
        return nan;
    }
};
// How many bits of relative keys cells of a floating-point type may have.
inline KeyBits bits_left(const CellRule& rule, DType scalar) {
    const double origin = rule.key_origin;
    const int exponent = rule.fine_exponent;
    const bool narrow = scalar != DType::f64;
    if (rule.kind != CellKind::relative) return KeyBits::all;
    // Where a value has no narrow cell, it has to be asked for each of them.
    if (!(origin >= kSmallestSum || (narrow && origin == 0))) return KeyBits::all;
    if (exponent >= 32) return KeyBits::upper;
    constexpr double kLargest = 0x1.fffffep127;
    const std::uint64_t largest = bits_of(kLargest + origin) - bits_of(origin);
    return narrow && exponent >= 4 && largest >> exponent < 1U << Cells<CellKind::relative>::kShortBias
               ? KeyBits::middle
               : KeyBits::all;
}
// What a NaN counts as in a sum.
template <CellKind Kind>
inline constexpr std::uint64_t kNanValue = Kind == CellKind::binary32 ? kBinary32Nan : kNanToken;
template <>
struct Cells<CellKind::tokens> {
    static constexpr int kPlanes = 8;
    static constexpr std::uint64_t kNeutral = 0;
    static constexpr std::uint64_t kBias = 0;
    // Whether the token of a float64 with these bits is made in another way than by one mixing. The
    // bits are not those of -0.0.
    // Narrow: the value was a float16, bfloat16 or float32, none of which is as small as a seed.
    template <bool Narrow>
    __device__ static bool special(std::uint64_t number) {
        const auto high = static_cast<std::uint32_t>(number >> 32);
        return (high & 0x7FF00000U) == 0x7FF00000U || (!Narrow && number - 1 < kSeedLimit - 1);
    }
    // The same of the largest `high & 0x7FFFFFFF` of several values, for NaN and infinities.
    __device__ static bool not_finite(std::uint32_t largest) { return largest >= 0x7FF00000U; }
    // -0.0 and 0.0 are one number.
    __device__ static std::uint64_t number_of(double x) { return bits_of(x + 0.0); }
    // The token, or more than any token.
    __device__ static std::uint64_t biased(double x, double /*inverse*/, int /*exponent*/) {
        const std::uint64_t number = number_of(x);
        return special<false>(number) ? ~0ULL : reduce61(splitmix64(number));
    }
    __device__ static std::uint32_t outside(std::uint64_t v) { return static_cast<std::uint32_t>(v >> 63); }
};

}  // namespace twinrun::gpu
