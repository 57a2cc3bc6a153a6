// Private to difference_cuda.cu: pairs as they are stored. Loads of a group, its values, and the
// exact verdict of one pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "device/half.cuh"
#include "difference/difference_work.cuh"

namespace twinrun {

namespace {

enum class Rule : std::uint8_t {
    plain,
    steps,    // by ulps
    circles,  // on circles, perhaps by ulps too
};

enum class Kind : std::uint8_t {
    f32,
    f64,
    f16,
    bf16,
    narrow,  // integers of 1 or 2 bytes; float32 holds them
    whole,   // integers of 4 or 8 bytes; float64 holds them up to 2^53
};
__host__ __device__ constexpr bool is_half(Kind kind) { return kind == Kind::f16 || kind == Kind::bf16; }

// Scalars of 1 or 2 bytes.
__host__ __device__ constexpr bool is_short(Kind kind) { return is_half(kind) || kind == Kind::narrow; }

template <Kind kKind>
struct Stored {
    using Value = std::conditional_t<kKind == Kind::f64 || kKind == Kind::whole, double, float>;
    static constexpr unsigned kWords = 8;  // of 4 bytes, for one run
    // Of a lane in a group.
    static constexpr unsigned kPairs = sizeof(Value) == 8 ? 4 : is_short(kKind) ? 16 : 8;
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
// A scalar of 1 or 2 bytes, zero-extended.
__host__ __device__ inline float from_narrow(std::uint32_t bits, DType scalar) {
    switch (scalar) {
        case DType::f16: return gpu::half_to_float(bits);
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

// A scalar's value, from its bits. (Of int64 and uint64 rounded, if they are beyond 2^53.)
template <Kind kKind>
__device__ inline typename Stored<kKind>::Value value_of(std::uint64_t bits, DType scalar) {
    const auto low = static_cast<std::uint32_t>(bits);
    if constexpr (kKind == Kind::f64) {
        return as_double(bits);
    } else if constexpr (kKind == Kind::f32) {
        return float_of(low);
    } else if constexpr (is_short(kKind)) {
        return from_narrow(low, scalar);
    } else {
        switch (scalar) {
            case DType::i32: return static_cast<double>(static_cast<std::int32_t>(low));
            case DType::i64: return static_cast<double>(static_cast<std::int64_t>(bits));
            default: return static_cast<double>(bits);  // u32, u64
        }
    }
}

// Bytes of a scalar.
template <Kind kKind>
__host__ __device__ constexpr unsigned stored_bytes(DType scalar) {
    if constexpr (is_half(kKind)) return 2;
    if constexpr (kKind == Kind::f32) return 4;
    if constexpr (kKind == Kind::f64) return 8;
    return bytes_of(scalar);
}

template <Kind kKind>
struct Words {
    std::uint32_t word[Stored<kKind>::kWords];
};

// A lane's words of a group are vectors of 16 bytes, kLanes of them apart.
template <Kind kKind>
__host__ __device__ constexpr unsigned vectors_of(DType scalar) {
    return Stored<kKind>::kPairs * stored_bytes<kKind>(scalar) / 16;
}
constexpr unsigned kMostVectors = 2;

// The first n scalars of a group, one by one; zeros after them, which leave no trace.
template <Kind kKind>
__device__ inline Words<kKind> load_singly(const std::byte* group, unsigned n, unsigned lane, DType scalar) {
    Words<kKind> w{};
    constexpr unsigned pairs = Stored<kKind>::kPairs;
    const unsigned bytes = stored_bytes<kKind>(scalar);
#pragma unroll
    for (unsigned p = 0; p < pairs; ++p) {
        const unsigned place = p * kLanes + lane;
        const std::uint64_t bits = place < n ? word_at(group + std::size_t{place} * bytes, bytes) : 0;
        const auto low = static_cast<std::uint32_t>(bits);
        if constexpr (pairs == 16) {
            if (bytes == 1) {
                w.word[p / 4] |= low << 8 * (p % 4);
            } else {
                w.word[p / 2] |= low << 16 * (p % 2);
            }
        } else if constexpr (pairs == 8) {
            w.word[p] = low;
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

// The pairs of a group are looked at so many at a time.
template <Kind kKind>
constexpr unsigned kBlock = Stored<kKind>::kPairs < 8 ? Stored<kKind>::kPairs : 8;

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

// The values of a block of pairs. *beyond is set if one of them is an integer that float64 may not
// hold.
template <Kind kKind>
__device__ inline void decode(const Words<kKind>& w, unsigned block, DType scalar,
                              typename Stored<kKind>::Value (&values)[kBlock<kKind>], bool* beyond) {
    constexpr unsigned pairs = kBlock<kKind>;
    [[maybe_unused]] const auto half = [&](unsigned p) {
        return w.word[block * 4 + p / 2] >> 16 * (p % 2) & 0xFFFFU;
    };
    if constexpr (kKind == Kind::f32) {
        read_each<pairs>(values, [&](unsigned p) { return float_of(w.word[p]); });
    } else if constexpr (kKind == Kind::f64) {
        read_each<pairs>(values, [&](unsigned p) { return as_double(long_word(w, p)); });
    } else if constexpr (kKind == Kind::f16) {
        read_each<pairs>(values, [&](unsigned p) { return gpu::half_to_float(half(p)); });
    } else if constexpr (kKind == Kind::bf16) {
        read_each<pairs>(values, [&](unsigned p) {
            const std::uint32_t two = w.word[block * 4 + p / 2];
            return float_of(p % 2 == 0 ? two << 16 : two & 0xFFFF0000U);
        });
    } else if constexpr (kKind == Kind::narrow) {
        const auto byte = [&](unsigned p) { return w.word[block * 2 + p / 4] >> 8 * (p % 4) & 0xFFU; };
        switch (scalar) {  // out of the loops: the same for all
            case DType::i16:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(half(p), DType::i16); });
                break;
            case DType::u16:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(half(p), DType::u16); });
                break;
            case DType::i8:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(byte(p), DType::i8); });
                break;
            case DType::u8:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(byte(p), DType::u8); });
                break;
            default:
                read_each<pairs>(values, [&](unsigned p) { return from_narrow(byte(p), DType::boolean); });
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
// period: 0 on a line.
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
    } else if constexpr (is_half(kKind) || kKind == Kind::narrow) {
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
        Pair pair = kRule == Rule::circles && period > 0 ? compare_on_circle(a, b, period, rule)
                                                         : compare_pair(a, b, rule);
        if (pair.differs && ulps != Measure::kNoUlps && pair.distance != kInfiniteDistance)
            pair.differs = steps > ulps;
        return {pair, absolute_value(a)};
    }
}

}  // namespace

}  // namespace twinrun
