// AVX2: two steps of four scalars, as float64, for the eight words of a residue line.
//
// As digest_avx512.cpp, but for the multiplications, which have 32 bits here: of the coefficients'
// 30-bit halves with narrow cells (|q| < 2^27) or with the 26-bit halves of middling ones (|q| <
// 2^51). Other cells and tokens are added one by one, but for groups of one value (fill values,
// NaN). Rounding is the caller's environment.
#include <immintrin.h>

#include <array>
#include <cstring>

#include "digest/coefficients.hpp"
#include "digest/digest.hpp"
#include "digest/digest_bytes.hpp"
#include "digest/field61.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kLanes = 4;
constexpr std::size_t kWords = 8;  // of a residue line
// Scalars from one test of the range to the next: a line is a multiple of it.
constexpr std::size_t kGroup = 64;
constexpr unsigned kNarrow = 27;  // log2 of the bias: 16 products of 58 bits fit 62
constexpr unsigned kMiddle = 51;
constexpr unsigned kHalf = 26;  // bits of half of a middling cell
constexpr std::uint64_t kInfinityBits = 0x7FF0000000000000ULL;
constexpr std::uint64_t kSignBit = 1ULL << 63;

// cells (and what surrounds them) or tokens of a group
using Raw = std::array<std::uint64_t, kGroup>;

__m256i all(std::uint64_t value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }
__m256i words_at(const std::uint64_t* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
void put_words(std::uint64_t* to, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), v); }
__m256i line_at(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

__m256d values_at(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
__m256d values_at(const double* x) { return _mm256_loadu_pd(x); }
template <class T>
double value_at(const T* x, std::size_t i) {
    T value;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(x) + i * sizeof(T), sizeof(T));
    return static_cast<double>(value);
}

// The hardware's prefetchers stop at every page, which is every block.
constexpr std::size_t kAhead = 4096;
template <class T>
void prefetch(const T* group) {
    const char* from = reinterpret_cast<const char*>(group) + kAhead;
    for (std::size_t at = 0; at < kGroup * sizeof(T); at += 64)
        _mm_prefetch(from + at, _MM_HINT_T0);
}

// ---- sums modulo p ----

__m256i fold(__m256i v) {
    return _mm256_add_epi64(_mm256_and_si256(v, all(kPrime)), _mm256_srli_epi64(v, 61));
}
std::uint64_t add_lanes(__m256i v) {
    alignas(32) std::array<std::uint64_t, kLanes> lanes;
    put_words(lanes.data(), v);
    std::uint64_t sum = 0;
    for (const std::uint64_t lane : lanes)
        sum = add61(sum, reduce61(lane));
    return sum;
}
__m256i upper_halves(__m256i v) { return _mm256_shuffle_epi32(v, 0xF5); }

// Sums of r * v, v below 2^32, r = low30 + 2^30 high30.
struct HalfSums {
    __m256i low = _mm256_setzero_si256();
    __m256i high = _mm256_setzero_si256();

    void add(__m256i v, __m256i halves) {
        low = _mm256_add_epi64(low, _mm256_mul_epu32(v, halves));
        high = _mm256_add_epi64(high, _mm256_mul_epu32(v, upper_halves(halves)));
    }
    void add(const HalfSums& group) {  // of sums below 2^63
        low = fold(_mm256_add_epi64(low, group.low));
        high = fold(_mm256_add_epi64(high, group.high));
    }
    [[nodiscard]] std::uint64_t value() const {
        return add61(add_lanes(low), multiply61(add_lanes(high), 1ULL << 30));
    }
};

// ---- tokens ----

__m256i multiply_low(__m256i a, std::uint64_t b) {
    const __m256i wide = all(b);
    const __m256i crossed =
        _mm256_add_epi64(_mm256_mul_epu32(upper_halves(a), wide), _mm256_mul_epu32(a, all(b >> 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(a, wide), _mm256_slli_epi64(crossed, 32));
}
__m256i splitmix64(__m256i z) {
    z = _mm256_add_epi64(z, all(0x9E3779B97F4A7C15ULL));
    z = multiply_low(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), 0xBF58476D1CE4E5B9ULL);
    z = multiply_low(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), 0x94D049BB133111EBULL);
    return _mm256_xor_si256(z, _mm256_srli_epi64(z, 31));
}

// Tokens of values that are neither NaN nor infinite, nor so tiny that their bits could be a
// token's seed; returns whether all were such.
__m256i value_tokens(__m256d x, bool* usual) {
    const __m256i bits = _mm256_castpd_si256(x);
    const __m256i magnitude = _mm256_andnot_si256(all(kSignBit), bits);
    const __m256i zero = _mm256_cmpeq_epi64(magnitude, _mm256_setzero_si256());
    const __m256i tiny = _mm256_andnot_si256(zero, _mm256_cmpgt_epi64(all(kSeedLimit), magnitude));
    const __m256i not_finite = _mm256_cmpgt_epi64(magnitude, all(kInfinityBits - 1));
    *usual = _mm256_testz_si256(_mm256_or_si256(tiny, not_finite), all(~0ULL)) != 0;
    return splitmix64(_mm256_andnot_si256(zero, bits));
}

// ---- from values to cells ----

double power_of_two(int exponent) {
    const int normal = exponent < -1022 ? -1022 : exponent;
    double scale = __builtin_bit_cast(double, static_cast<std::uint64_t>(normal + 1023) << 52);
    for (int e = normal; e > exponent; --e)
        scale *= 0.5;
    return scale;
}

class AbsoluteCells {
   public:
    explicit AbsoluteCells(const CellRule& rule)
        : inverse_(_mm256_set1_pd(power_of_two(-rule.fine_exponent))) {}
    static bool can(const CellRule& rule) {
        return rule.fine_exponent >= -1023 && rule.fine_exponent <= 1074;
    }

    // What surrounds q + 2^Bias where |q| < 2^Bias; other values differ from it at bit Bias + 1 or
    // above.
    static constexpr std::uint64_t kSurround = 0x4330000000000000ULL;  // 2^52
    template <unsigned Bias>
    [[nodiscard]] __m256i biased(__m256d x) const {
        const __m256d magic = _mm256_set1_pd(0x1p52 + static_cast<double>(1ULL << Bias));
        return _mm256_castpd_si256(_mm256_fmadd_pd(x, inverse_, magic));
    }

   private:
    __m256d inverse_;
};

class RelativeCells {
   public:
    explicit RelativeCells(const CellRule& rule)
        : origin_(_mm256_set1_pd(rule.key_origin)),
          shift_(_mm_cvtsi32_si128(rule.fine_exponent)),
          zero_(all(kSignBit >> rule.fine_exponent)) {}
    static bool can(const CellRule& rule) { return rule.fine_exponent >= 0 && rule.fine_exponent < 64; }

    static constexpr std::uint64_t kSurround = 0;
    template <unsigned Bias>
    [[nodiscard]] __m256i biased(__m256d x) const {
        const __m256d sign_bit = _mm256_castsi256_pd(all(kSignBit));
        const __m256i sum = _mm256_castpd_si256(_mm256_add_pd(_mm256_andnot_pd(sign_bit, x), origin_));
        constexpr std::uint64_t smallest = __builtin_bit_cast(std::uint64_t, kSmallestSum);
        __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi64(all(smallest), sum),
                                          _mm256_cmpgt_epi64(sum, all(kInfinityBits - 1)));
        outside = _mm256_andnot_si256(_mm256_cmpeq_epi64(sum, _mm256_setzero_si256()), outside);
        const __m256i key = _mm256_sub_epi64(sum, _mm256_castpd_si256(origin_));
        const __m256i negative = _mm256_cmpgt_epi64(_mm256_setzero_si256(), _mm256_castpd_si256(x));
        const __m256i with_sign = _mm256_sub_epi64(_mm256_xor_si256(key, negative), negative);
        // There is no arithmetic shift of 64 bits: move all up by 2^63, shift, move down.
        const __m256i shifted = _mm256_srl_epi64(_mm256_xor_si256(with_sign, all(kSignBit)), shift_);
        const __m256i v = _mm256_add_epi64(_mm256_sub_epi64(shifted, zero_), all(1ULL << Bias));
        return _mm256_or_si256(v, outside);
    }

   private:
    __m256d origin_;
    __m128i shift_;
    __m256i zero_;
};

// ---- residues ----

// One line is built by shifts: each vector's residues enter at the top.
template <unsigned Bits>
class ResidueLines {
   public:
    explicit ResidueLines(std::byte* to) : to_(to) {}
    // The next kGroup scalars.
    void add(const Raw& raw) {
        for (std::size_t i = 0; i < kGroup; i += kWords) {
            first_ = enter(first_, words_at(&raw[i]));
            second_ = enter(second_, words_at(&raw[i + kLanes]));
        }
        vectors_ += kGroup / kWords;
        if (vectors_ == kVectors) put();
    }
    // The last few, one word by one.
    void finish(const std::uint64_t* raw, std::size_t n) {
        if (n != 0) {
            alignas(32) Raw padded{};
            std::memcpy(padded.data(), raw, n * sizeof(std::uint64_t));
            add(padded);
        }
        if (vectors_ != 0) put();
    }

   private:
    static constexpr std::size_t kVectors = 64 / Bits;
    static __m256i enter(__m256i line, __m256i v) {
        return _mm256_or_si256(_mm256_srli_epi64(line, Bits), _mm256_slli_epi64(v, 64 - Bits));
    }
    void put() {
        const __m128i missing = _mm_cvtsi32_si128(static_cast<int>((kVectors - vectors_) * Bits));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_), _mm256_srl_epi64(first_, missing));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_ + 32), _mm256_srl_epi64(second_, missing));
        to_ += kResidueLine;
        vectors_ = 0;
    }
    std::byte* to_;
    std::size_t vectors_ = 0;
    __m256i first_ = _mm256_setzero_si256();
    __m256i second_ = _mm256_setzero_si256();
};
template <>
class ResidueLines<0> {
   public:
    explicit ResidueLines(std::byte* /*to*/) {}
    void add(const Raw& /*raw*/) {}
    void finish(const std::uint64_t* /*raw*/, std::size_t /*n*/) {}
};

// ---- blocks ----

// sum of r * v for tokens or field values v.
std::uint64_t add_products(const std::uint64_t* v, std::size_t first, std::size_t n) {
    const Coefficients& table = coefficients();
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < n;) {
        unsigned __int128 part = 0;  // 16 products of 124 bits
        for (const std::size_t end = n - i < 16 ? n : i + 16; i < end; ++i) {
            part += static_cast<unsigned __int128>(v[i]) * table.r[first + i];
        }
        sum = add61(sum, reduce61_wide(part));
    }
    return sum;
}

// Sums of the groups that are not narrow.
struct OtherSums {
    std::array<HalfSums, 2> middle;  // of the cells' lower and upper halves
    HalfSums middle_low;
    std::uint64_t middle_r = 0;  // sums of coefficients
    std::uint64_t single_r = 0;
    std::uint64_t single = 0;  // sums of what was added one by one
    std::uint64_t single_coarse = 0;
    ElementCounts counts;
};

// Whether the group is one value over and over: regions without data hold a fill value, or NaN.
template <class T>
bool is_uniform(const T* x) {
    const __m256d first = _mm256_broadcastsd_pd(_mm256_castpd256_pd128(values_at(x)));
    __m256i same = all(~0ULL);
    __m256d nan = _mm256_castsi256_pd(same);
    for (std::size_t i = 0; i < kGroup; i += kLanes) {
        const __m256d v = values_at(x + i);
        same = _mm256_and_si256(same, _mm256_cmpeq_epi64(_mm256_castpd_si256(v), _mm256_castpd_si256(first)));
        nan = _mm256_and_pd(nan, _mm256_cmp_pd(v, v, _CMP_UNORD_Q));
    }
    return _mm256_movemask_epi8(same) == -1 || _mm256_movemask_pd(nan) == 0xF;
}

std::uint64_t bits_for_sum(const Cell& cell) {
    // A negative cell plus p is positive, and the same in the field.
    return !cell.token && static_cast<std::int64_t>(cell.bits) < 0 ? cell.bits + kPrime : cell.bits;
}

template <class T>
void add_single(const T* x, std::size_t n, const CellRule& rule, std::size_t first, OtherSums* sums,
                Raw* raw) {
    Raw fine;
    Raw coarse;
    for (std::size_t i = 0; i < n; ++i) {
        const double value = value_at(x, i);
        const Cell cell = cell_of(value, rule, 0);
        if (cell.token) {
            ++sums->counts.tokens;
            if (value != value) ++sums->counts.nans;
        }
        (*raw)[i] = cell.bits;
        fine[i] = bits_for_sum(cell);
        if (rule.coarse_shift != 0) coarse[i] = bits_for_sum(cell_of(value, rule, rule.coarse_shift));
    }
    sums->single = add61(sums->single, add_products(fine.data(), first, n));
    if (rule.coarse_shift != 0) {
        sums->single_coarse = add61(sums->single_coarse, add_products(coarse.data(), first, n));
    }
}

std::uint64_t group_r(std::size_t first) {
    const Coefficients& table = coefficients();
    return subtract61(table.sums[(first + kGroup) / kWords], table.sums[first / kWords]);
}

void add_uniform(double value, const CellRule& rule, std::size_t first, OtherSums* sums, Raw* raw) {
    const std::uint64_t r = group_r(first);
    const Cell fine = cell_of(value, rule, 0);
    sums->single = add61(sums->single, multiply61(r, reduce61(bits_for_sum(fine))));
    if (rule.coarse_shift != 0) {
        const Cell coarse = cell_of(value, rule, rule.coarse_shift);
        sums->single_coarse = add61(sums->single_coarse, multiply61(r, reduce61(bits_for_sum(coarse))));
    }
    if (fine.token) {
        sums->counts.tokens += kGroup;
        if (value != value) sums->counts.nans += kGroup;
    }
    raw->fill(fine.bits);
}

template <class T, class Cells>
[[gnu::noinline]] void other_group(const T* x, const Cells& cells, const CellRule& rule, std::size_t first,
                                   OtherSums* sums, Raw* raw) {
    const Coefficients& table = coefficients();
    if (is_uniform(x)) {
        add_uniform(value_at(x, 0), rule, first, sums, raw);
        sums->single_r = add61(sums->single_r, group_r(first));
        return;
    }
    __m256i outside = _mm256_setzero_si256();
    for (std::size_t i = 0; i < kGroup; i += kLanes) {
        const __m256i v = cells.template biased<kMiddle>(values_at(x + i));
        outside = _mm256_or_si256(outside, _mm256_xor_si256(v, all(Cells::kSurround)));
        put_words(&(*raw)[i], v);
    }
    if (_mm256_testz_si256(outside, all(~0ULL << (kMiddle + 1))) == 0) {
        add_single(x, kGroup, rule, first, sums, raw);
        sums->single_r = add61(sums->single_r, group_r(first));
        return;
    }
    const __m256i low_mask = all((1ULL << rule.coarse_shift) - 1);
    const __m256i half_mask = all((1ULL << kHalf) - 1);
    std::array<HalfSums, 2> group;
    for (std::size_t i = 0; i < kGroup; i += kLanes) {
        const __m256i v = words_at(&(*raw)[i]);
        const __m256i halves = words_at(&table.halves[first + i]);
        group[0].add(_mm256_and_si256(v, half_mask), halves);
        group[1].add(_mm256_and_si256(_mm256_srli_epi64(v, kHalf), half_mask), halves);
        if (rule.coarse_shift != 0) sums->middle_low.add(_mm256_and_si256(v, low_mask), halves);
    }
    sums->middle[0].add(group[0]);
    sums->middle[1].add(group[1]);
    sums->middle_r = add61(sums->middle_r, group_r(first));
}

template <unsigned Bits, bool Coarse, class Cells, class T>
void block_of(const T* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    const Coefficients& table = coefficients();
    const Cells cells(rule);
    const __m256i low_mask = all((1ULL << rule.coarse_shift) - 1);
    HalfSums narrow;
    HalfSums low;
    OtherSums other;
    ResidueLines<Bits> lines(residues);
    alignas(32) Raw raw;

    std::size_t i = 0;
    for (; i + kGroup <= n; i += kGroup) {
        prefetch(x + i);
        __m256i outside = _mm256_setzero_si256();
        for (std::size_t k = 0; k < kGroup; k += kLanes) {
            const __m256i v = cells.template biased<kNarrow>(values_at(x + i + k));
            outside = _mm256_or_si256(outside, _mm256_xor_si256(v, all(Cells::kSurround)));
            put_words(&raw[k], v);
        }
        if (_mm256_testz_si256(outside, all(~0ULL << (kNarrow + 1))) != 0) [[likely]] {
            HalfSums group;
            for (std::size_t k = 0; k < kGroup; k += kLanes) {
                const __m256i v = words_at(&raw[k]);
                const __m256i halves = words_at(&table.halves[i + k]);
                group.add(v, halves);
                if constexpr (Coarse) low.add(_mm256_and_si256(v, low_mask), halves);
            }
            narrow.add(group);
        } else {
            other_group(x + i, cells, rule, i, &other, &raw);
        }
        lines.add(raw);
    }
    const std::uint64_t narrow_r = subtract61(table.sums[i / kWords], add61(other.middle_r, other.single_r));
    if (i < n) add_single(x + i, n - i, rule, i, &other, &raw);
    lines.finish(raw.data(), n - i);

    const std::uint64_t middle =
        add61(other.middle[0].value(), multiply61(other.middle[1].value(), 1ULL << kHalf));
    const std::uint64_t bias =
        add61(multiply61(narrow_r, 1ULL << kNarrow), multiply61(other.middle_r, 1ULL << kMiddle));
    const std::uint64_t cells_sum = subtract61(add61(narrow.value(), middle), bias);
    out->fine = add61(cells_sum, other.single);
    out->coarse = out->fine;
    if constexpr (Coarse) {
        const std::uint64_t rest = add61(low.value(), other.middle_low.value());
        const std::uint64_t high =
            multiply61(subtract61(cells_sum, rest), inverse_power_of_two(rule.coarse_shift));
        out->coarse = add61(high, other.single_coarse);
    }
    out->counts = other.counts;
}

template <unsigned Bits, class T>
void token_block(const T* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    CellRule tokens = rule;
    tokens.coarse_shift = 0;
    OtherSums sums;
    ResidueLines<Bits> lines(residues);
    alignas(32) Raw raw;
    std::size_t i = 0;
    for (; i + kGroup <= n; i += kGroup) {
        prefetch(x + i);
        bool usual = true;
        for (std::size_t k = 0; k < kGroup; k += kLanes) {
            bool four_usual = true;
            put_words(&raw[k], value_tokens(values_at(x + i + k), &four_usual));
            usual = usual && four_usual;
        }
        if (usual) [[likely]] {
            sums.single = add61(sums.single, add_products(raw.data(), i, kGroup));
            sums.counts.tokens += kGroup;
        } else if (is_uniform(x + i)) {
            add_uniform(value_at(x + i, 0), tokens, i, &sums, &raw);
        } else {
            add_single(x + i, kGroup, tokens, i, &sums, &raw);
        }
        lines.add(raw);
    }
    if (i < n) add_single(x + i, n - i, tokens, i, &sums, &raw);
    lines.finish(raw.data(), n - i);
    *out = {sums.single, sums.single, sums.counts};
}

// Eight biased values in two halves, zero-extended; 0 where `there` says that there is none. The
// number of NaNs is added to *nans.
struct BiasedBits {
    __m256i first;
    __m256i second;
};
BiasedBits zero_extended(__m256i v) {
    return {_mm256_cvtepu32_epi64(_mm256_castsi256_si128(v)),
            _mm256_cvtepu32_epi64(_mm256_extracti128_si256(v, 1))};
}
BiasedBits biased_bits(__m256 x, __m256i there, std::uint32_t* nans) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i magnitude = _mm256_slli_epi32(bits, 1);
    const __m256i zero = _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256());
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const int some = _mm256_movemask_ps(nan);
    *nans += static_cast<std::uint32_t>(__builtin_popcount(static_cast<unsigned>(some)));
    __m256i v = _mm256_andnot_si256(zero, bits);
    v = _mm256_blendv_epi8(v, _mm256_set1_epi32(kBinary32Nan), _mm256_castps_si256(nan));
    v = _mm256_and_si256(_mm256_xor_si256(v, _mm256_set1_epi32(INT32_MIN)), there);
    return zero_extended(v);
}

// Scalars of 32 bits that stand for themselves: one product of 32 bits with each half of a
// coefficient. values(from, there): eight of them with that bias, which is taken off at the end.
template <class T, class Values>
std::uint64_t sum_of_32(const T* x, std::size_t n, std::uint64_t bias, const Values& values) {
    static_assert(sizeof(T) == sizeof(std::int32_t));
    const Coefficients& table = coefficients();
    HalfSums sums;
    const auto add = [&](const BiasedBits& v, std::size_t at) {
        HalfSums two;  // below 2^63, and below 2^61 + 8 what they are added to
        two.add(v.first, words_at(&table.halves[at]));
        two.add(v.second, words_at(&table.halves[at + kLanes]));
        sums.add(two);
    };
    std::size_t i = 0;
    const __m256i whole = _mm256_set1_epi32(-1);
    for (; i + kWords <= n; i += kWords) {
        if (i % kGroup == 0) prefetch(x + i);
        add(values(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), whole), i);
    }
    if (i < n) {
        alignas(32) std::array<std::int32_t, kWords> rest{};
        alignas(32) std::array<std::int32_t, kWords> there{};
        std::memcpy(rest.data(), reinterpret_cast<const std::byte*>(x) + i * sizeof(T), (n - i) * sizeof(T));
        for (std::size_t k = 0; k < n - i; ++k)
            there[k] = -1;
        add(values(_mm256_load_si256(reinterpret_cast<const __m256i*>(rest.data())),
                   _mm256_load_si256(reinterpret_cast<const __m256i*>(there.data()))),
            i);
    }
    return subtract61(sums.value(), multiply61(coefficients_until(n), bias));
}
bool exact_block(const float* x, std::size_t n, BlockDigest* out) {
    std::uint32_t nans = 0;
    const auto values = [&](__m256i bits, __m256i there) {
        return biased_bits(_mm256_castsi256_ps(bits), there, &nans);
    };
    const std::uint64_t sum = sum_of_32(x, n, 1ULL << 31, values);
    *out = {sum, sum, {nans, 0}};
    return true;
}

void block_of_32(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out) {
    const __m256i sign = scalar == DType::i32 ? _mm256_set1_epi32(INT32_MIN) : _mm256_setzero_si256();
    const auto values = [&](__m256i bits, __m256i there) {
        return zero_extended(_mm256_and_si256(_mm256_xor_si256(bits, sign), there));
    };
    const std::uint64_t sum = sum_of_32(reinterpret_cast<const std::uint32_t*>(x), n,
                                        scalar == DType::i32 ? 1ULL << 31 : 0, values);
    *out = {sum, sum, {}};
}

template <DType kScalar>
__m256 widened(__m128i half) {
    if constexpr (kScalar == DType::f16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
template <DType kScalar>
void widen_all(const std::byte* x, std::size_t n, float* to) {
    std::size_t i = 0;
    for (; i + kWords <= n; i += kWords) {
        if (i % 32 == 0) _mm_prefetch(reinterpret_cast<const char*>(x + 2 * i) + kBlockBytes, _MM_HINT_T0);
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + 2 * i));
        _mm256_storeu_ps(to + i, widened<kScalar>(half));
    }
    if (i == n) return;
    alignas(16) std::array<std::uint16_t, kWords> rest{};
    alignas(32) std::array<float, kWords> wide;
    std::memcpy(rest.data(), x + 2 * i, 2 * (n - i));
    _mm256_store_ps(wide.data(),
                    widened<kScalar>(_mm_load_si128(reinterpret_cast<const __m128i*>(rest.data()))));
    std::memcpy(to + i, wide.data(), (n - i) * sizeof(float));
}
void widen(const std::byte* x, DType scalar, std::size_t n, float* to) {
    scalar == DType::f16 ? widen_all<DType::f16>(x, n, to) : widen_all<DType::bf16>(x, n, to);
}

void stored_blocks(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out) {
    if (has_bytes_kernel(scalar)) return bytes_blocks_avx2(x, scalar, n, out);
    in_groups<1>(x, sizeof(std::uint32_t), n, out,
                 [scalar](auto, const std::byte* from, std::size_t m, BlockDigest* to) {
                     block_of_32(from, scalar, m, to);
                 });
}

// Four times 64 bits: those of numbers, where -0.0 becomes 0 and every NaN one, or of integers.
__m256i word_bits(__m256i bits, const double* /*x*/, std::uint32_t* nans) {
    const __m256d x = _mm256_castsi256_pd(bits);
    const __m256i zero = _mm256_cmpeq_epi64(_mm256_add_epi64(bits, bits), _mm256_setzero_si256());
    const __m256d nan = _mm256_cmp_pd(x, x, _CMP_UNORD_Q);
    *nans += static_cast<std::uint32_t>(__builtin_popcount(static_cast<unsigned>(_mm256_movemask_pd(nan))));
    const __m256i v = _mm256_andnot_si256(zero, bits);
    return _mm256_blendv_epi8(v, all(kBinary64Nan), _mm256_castpd_si256(nan));
}
__m256i word_bits(__m256i bits, const std::uint64_t* /*x*/, std::uint32_t* /*nans*/) { return bits; }

// Scalars of 64 bits that stand for themselves: their halves are digested apart, each by two
// products of 32 bits.
template <class T>
bool exact_block(const T* x, std::size_t n, BlockDigest* out) {
    const Coefficients& table = coefficients();
    HalfSums lower;
    HalfSums upper;
    std::uint32_t nans = 0;
    const auto add = [&](__m256i first, __m256i second, std::size_t at) {
        HalfSums low;  // below 2^63, and below 2^61 + 8 what they are added to
        HalfSums high;
        for (const auto& [bits, r] : {std::pair(first, words_at(&table.halves[at])),
                                      std::pair(second, words_at(&table.halves[at + kLanes]))}) {
            const __m256i v = word_bits(bits, x, &nans);
            low.add(v, r);
            high.add(upper_halves(v), r);
        }
        lower.add(low);
        upper.add(high);
    };
    std::size_t i = 0;
    for (; i + kWords <= n; i += kWords) {
        if (i % kGroup == 0) prefetch(x + i);
        const auto* at = reinterpret_cast<const __m256i*>(x + i);
        add(_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1), i);
    }
    if (i < n) {
        alignas(32) std::array<std::uint64_t, kWords> rest{};
        std::memcpy(rest.data(), reinterpret_cast<const std::byte*>(x) + i * sizeof(T), (n - i) * sizeof(T));
        add(words_at(rest.data()), words_at(&rest[kLanes]), i);
    }
    out->fine = add61(lower.value(), multiply61(upper.value(), kWordFactor));
    out->coarse = out->fine;
    out->counts = {nans, 0};
    return true;
}

template <unsigned Bits, class T>
bool block_with(const T* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    const bool coarse = rule.coarse_shift != 0;
    switch (rule.kind) {
        case CellKind::tokens: token_block<Bits>(x, n, rule, out, residues); return true;
        case CellKind::binary32:
        case CellKind::words:
            if ((rule.kind == CellKind::words) != (sizeof(T) == 8)) return false;  // of another type
            return exact_block(x, n, out);
        case CellKind::integers:  // the exponent and the shift are 0
        case CellKind::absolute:
            if (!AbsoluteCells::can(rule)) return false;
            coarse ? block_of<Bits, true, AbsoluteCells>(x, n, rule, out, residues)
                   : block_of<Bits, false, AbsoluteCells>(x, n, rule, out, residues);
            return true;
        case CellKind::relative:
            if (!RelativeCells::can(rule)) return false;
            coarse ? block_of<Bits, true, RelativeCells>(x, n, rule, out, residues)
                   : block_of<Bits, false, RelativeCells>(x, n, rule, out, residues);
            return true;
    }
    return false;
}

template <class T>
bool try_block(const T* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    switch (rule.residue_bits) {
        case 0: return block_with<0>(x, n, rule, out, residues);
        case 2: return block_with<2>(x, n, rule, out, residues);
        default: return block_with<4>(x, n, rule, out, residues);
    }
}

void block_f32(const float* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    if (!try_block(x, n, rule, out, residues)) kPortableDigest.block_f32(x, n, rule, out, residues);
}
void block_f64(const double* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    if (!try_block(x, n, rule, out, residues)) kPortableDigest.block_f64(x, n, rule, out, residues);
}
void block_words(const std::uint64_t* x, std::size_t n, BlockDigest* out) { exact_block(x, n, out); }

// ---- sketch ----

// Counts of the centred differences c, given as c + half: two classes of |c| in the halves of each
// byte.
class SketchCounts4 {
   public:
    void add(__m256i e) {
        const __m256i nibbles = all(0x0F0F0F0F0F0F0F0FULL);
        const __m256i even = _mm256_and_si256(e, nibbles);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi64(e, 4), nibbles);
        for (std::size_t k = 0; k < 4; ++k) {
            const __m256i class_of = _mm256_broadcastsi128_si256(
                _mm_load_si128(reinterpret_cast<const __m128i*>(kClass[k].data())));
            packed_[k] = _mm256_add_epi8(packed_[k], _mm256_add_epi8(_mm256_shuffle_epi8(class_of, even),
                                                                     _mm256_shuffle_epi8(class_of, odd)));
        }
        if (++times_ == 7) flush();  // 14 of the 15 that half a byte counts
    }
    void finish(std::size_t n, SketchBlock* out) {
        flush();
        std::array<std::uint32_t, 9> counts{};
        counts[0] = static_cast<std::uint32_t>(n);
        for (std::size_t k = 0; k < 8; ++k) {
            counts[k + 1] = static_cast<std::uint32_t>(add_lanes(totals_[k]));
            counts[0] -= counts[k + 1];
        }
        std::memcpy(out->counts.data(), counts.data(), sizeof out->counts);
        out->beyond = counts[8];
    }

   private:
    // Entry e = c + 8. Table k counts |c| = 2k + 1 as 1 and |c| = 2k + 2 as 16.
    using Class = std::array<std::uint8_t, 16>;
    alignas(16) static constexpr std::array<Class, 4> kClass = {{
        {0, 0, 0, 0, 0, 0, 16, 1, 0, 1, 16, 0, 0, 0, 0, 0},
        {0, 0, 0, 0, 16, 1, 0, 0, 0, 0, 0, 1, 16, 0, 0, 0},
        {0, 0, 16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 16, 0},
        {16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    }};
    void flush() {
        const __m256i nibbles = all(0x0F0F0F0F0F0F0F0FULL);
        const __m256i zero = _mm256_setzero_si256();
        for (std::size_t k = 0; k < 4; ++k) {
            const __m256i low = _mm256_and_si256(packed_[k], nibbles);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi64(packed_[k], 4), nibbles);
            totals_[2 * k] = _mm256_add_epi64(totals_[2 * k], _mm256_sad_epu8(low, zero));
            totals_[2 * k + 1] = _mm256_add_epi64(totals_[2 * k + 1], _mm256_sad_epu8(high, zero));
            packed_[k] = zero;
        }
        times_ = 0;
    }
    __m256i packed_[4]{};
    __m256i totals_[8]{};
    unsigned times_ = 0;
};

class SketchCounts2 {
   public:
    void add(__m256i e) {
        // e = c + 2: bit 0 is set where |c| = 1; both are clear where c = -2.
        const __m256i ones = all(0x5555555555555555ULL);
        one_ = _mm256_add_epi64(one_, bits_set(_mm256_and_si256(e, ones)));
        const __m256i either = _mm256_or_si256(e, _mm256_srli_epi64(e, 1));
        beyond_ = _mm256_add_epi64(beyond_, bits_set(_mm256_andnot_si256(either, ones)));
    }
    void finish(std::size_t n, SketchBlock* out) const {
        out->counts[1] = static_cast<std::uint32_t>(add_lanes(one_));
        out->beyond = static_cast<std::uint32_t>(add_lanes(beyond_));
        out->counts[0] = static_cast<std::uint32_t>(n) - out->counts[1] - out->beyond;
    }

   private:
    // Of pairs whose upper bit is 0.
    static __m256i bits_set(__m256i v) {
        const __m256i pairs = all(0x3333333333333333ULL);
        const __m256i nibbles = all(0x0F0F0F0F0F0F0F0FULL);
        v = _mm256_add_epi8(_mm256_and_si256(v, pairs), _mm256_and_si256(_mm256_srli_epi64(v, 2), pairs));
        v = _mm256_and_si256(_mm256_add_epi8(v, _mm256_srli_epi64(v, 4)), nibbles);
        return _mm256_sad_epu8(v, _mm256_setzero_si256());
    }
    __m256i one_ = _mm256_setzero_si256();
    __m256i beyond_ = _mm256_setzero_si256();
};

// Residue by residue, a - b + half: no borrow crosses, as the top bits are set in a and clear in b.
template <unsigned Bits>
__m256i centred(__m256i a, __m256i b) {
    const __m256i tops = all(Bits == 4 ? 0x8888888888888888ULL : 0xAAAAAAAAAAAAAAAAULL);
    const __m256i difference = _mm256_sub_epi64(_mm256_or_si256(a, tops), _mm256_andnot_si256(tops, b));
    return _mm256_xor_si256(difference, _mm256_and_si256(_mm256_xor_si256(a, b), tops));
}

template <unsigned Bits, class Counts>
void sketch_of(const std::byte* a, const std::byte* b, std::size_t n, SketchBlock* out) {
    const Coefficients& table = coefficients();
    constexpr std::size_t kVectors = 64 / Bits;
    constexpr std::size_t kScalars = kVectors * kWords;
    constexpr std::uint64_t kTops = Bits == 4 ? 0x8888888888888888ULL : 0xAAAAAAAAAAAAAAAAULL;
    const __m256i residue = all((1U << Bits) - 1);
    HalfSums sums;
    Counts counts;
    for (std::size_t first = 0; first < n; first += kScalars) {
        __m256i e0 = centred<Bits>(line_at(a), line_at(b));
        __m256i e1 = centred<Bits>(line_at(a + 32), line_at(b + 32));
        a += kResidueLine;
        b += kResidueLine;
        const std::size_t scalars = n - first;
        std::size_t vectors = kVectors;
        if (scalars < kScalars) {  // what lies behind the block counts as c = 0
            alignas(32) std::array<std::uint64_t, kWords> words;
            put_words(words.data(), e0);
            put_words(words.data() + kLanes, e1);
            for (std::size_t j = 0; j < kWords; ++j) {
                const std::size_t used = Bits * ((scalars + kWords - 1 - j) / kWords);
                const std::uint64_t unused = used >= 64 ? 0 : ~0ULL << used;
                words[j] = (words[j] & ~unused) | (kTops & unused);
            }
            e0 = words_at(words.data());
            e1 = words_at(words.data() + kLanes);
            vectors = (scalars + kWords - 1) / kWords;
        }
        counts.add(e0);
        counts.add(e1);
        const std::uint64_t* halves = &table.halves[first];
        for (std::size_t v = 0; v < vectors; ++v, halves += kWords) {
            sums.add(_mm256_and_si256(e0, residue), words_at(halves));
            sums.add(_mm256_and_si256(e1, residue), words_at(halves + kLanes));
            e0 = _mm256_srli_epi64(e0, Bits);
            e1 = _mm256_srli_epi64(e1, Bits);
        }
    }
    SketchBlock result;
    counts.finish(n, &result);
    const std::uint64_t bias = multiply61(table.sums[(n + kWords - 1) / kWords], 1ULL << (Bits - 1));
    result.correction = subtract61(sums.value(), bias);
    *out = result;
}

void sketch(const std::byte* a, const std::byte* b, std::size_t n, unsigned bits, SketchBlock* out) {
    bits == 4 ? sketch_of<4, SketchCounts4>(a, b, n, out) : sketch_of<2, SketchCounts2>(a, b, n, out);
}

}  // namespace

const DigestKernels kAvx2Digest = {block_f32, block_f64, block_words, sketch, stored_blocks, widen};

}  // namespace twinrun
