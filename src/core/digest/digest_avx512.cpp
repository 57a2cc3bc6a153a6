// AVX-512 with IFMA: eight scalars a step, as float64.
//
// A cell comes out of one fused multiply-add, rounded down: x * 2^-e + 2^52 + bias has the float64
// spacing 1, so its significand is floor(x * 2^-e) + bias, and IFMA reads just these 52 bits. Cells
// of one group of vectors are narrow (|q| < 2^39, three multiplications), middling (|q| < 2^51,
// four), or wide (seven: any cell, and tokens); a test a group tells which. Groups of one value
// that is not narrow (fill values, NaN) need one multiplication in all. Biases are taken off at the
// end, by sums of coefficients. The coarse digest follows from the fine one: q = 2^k q0 + low, so
// D0 = (D - sum r_i low_i) / 2^k.
#include <immintrin.h>

#include <array>

#include "digest/coefficients.hpp"
#include "digest/digest.hpp"
#include "digest/digest_bytes.hpp"
#include "digest/field61.hpp"

#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers build "undefined" vectors from themselves (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace twinrun {

namespace {

constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
constexpr std::size_t kLanes = 8;
// One test of the range a group: a residue line is a multiple of it.
constexpr std::size_t kGroupVectors = 8;
constexpr std::size_t kGroup = kGroupVectors * kLanes;
// log2 of the bias: 12-bit parts of r times 40-bit cells stay below 2^52
constexpr unsigned kNarrow = 39;
constexpr unsigned kMiddle = 51;
constexpr std::uint64_t kInfinityBits = 0x7FF0000000000000ULL;

__m512i all(std::uint64_t value) { return _mm512_set1_epi64(static_cast<long long>(value)); }
__m512i table_at(const std::uint64_t* entry) { return _mm512_load_si512(entry); }

__m512d values_at(const float* x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
__m512d values_at(const double* x) { return _mm512_loadu_pd(x); }
__m512d values_at(const float* x, __mmask8 lanes) { return _mm512_cvtps_pd(_mm256_maskz_loadu_ps(lanes, x)); }
__m512d values_at(const double* x, __mmask8 lanes) { return _mm512_maskz_loadu_pd(lanes, x); }

// The hardware's prefetchers stop at every page, which is every block. 4 KiB ahead, measured on
// Sapphire Rapids (float32, 4-bit residues, from memory): 12.6 GB/s a core, 7.8 without.
constexpr std::size_t kAhead = 4096;
template <class T>
void prefetch(const T* group) {
    const char* from = reinterpret_cast<const char*>(group) + kAhead;
    for (std::size_t at = 0; at < kGroup * sizeof(T); at += 64)
        _mm_prefetch(from + at, _MM_HINT_T0);
}

// ---- sums modulo p ----

__m512i fold(__m512i v) {
    return _mm512_add_epi64(_mm512_and_si512(v, all(kPrime)), _mm512_srli_epi64(v, 61));
}

// v * 2^K mod p, for any v; below 2^61 + 2^(K + 3).
template <unsigned K>
__m512i times_power(__m512i v) {
    return _mm512_add_epi64(_mm512_and_si512(_mm512_slli_epi64(v, K), all(kPrime)),
                            _mm512_srli_epi64(v, 61 - K));
}

struct Pair {
    std::uint64_t first;
    std::uint64_t second;
};

// The sums of the lanes, each lane below 2^61 + 2^60.
Pair add_lanes(__m512i a, __m512i b) {
    const __m512i both = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m512i folded = fold(both);
    const __m256i half =
        _mm256_add_epi64(_mm512_castsi512_si256(folded), _mm512_extracti64x4_epi64(folded, 1));
    const __m128i quarter = _mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return {reduce61(static_cast<std::uint64_t>(_mm_extract_epi64(quarter, 0))),
            reduce61(static_cast<std::uint64_t>(_mm_extract_epi64(quarter, 1)))};
}

// Sums of r * v for narrow v (below 2^40), with r = low48 + 2^48 high12.
struct NarrowSums {
    __m512i s0 = _mm512_setzero_si512();
    __m512i s48 = _mm512_setzero_si512();
    __m512i s52 = _mm512_setzero_si512();

    void add(__m512i v, __m512i low48, __m512i high12) {
        s0 = _mm512_madd52lo_epu64(s0, v, low48);
        s52 = _mm512_madd52hi_epu64(s52, v, low48);
        s48 = _mm512_madd52lo_epu64(s48, v, high12);
    }
    [[nodiscard]] __m512i value() const {
        return fold(_mm512_add_epi64(fold(s0), _mm512_add_epi64(times_power<48>(s48), times_power<52>(s52))));
    }
};

// The same for the low bits of cells (at most 4).
struct LowSums {
    __m512i s0 = _mm512_setzero_si512();
    __m512i s48 = _mm512_setzero_si512();

    void add(__m512i v, __m512i low48, __m512i high12) {
        s0 = _mm512_madd52lo_epu64(s0, v, low48);
        s48 = _mm512_madd52lo_epu64(s48, v, high12);
    }
    [[nodiscard]] __m512i value() const { return fold(_mm512_add_epi64(fold(s0), times_power<48>(s48))); }
};

// The same for any 64-bit v; add_middle: for v below 2^52.
struct WideSums {
    __m512i s0 = _mm512_setzero_si512();
    __m512i s48 = _mm512_setzero_si512();
    __m512i s52 = _mm512_setzero_si512();
    // Apart from s52, so that no chain of additions is long.
    __m512i top52 = _mm512_setzero_si512();
    __m512i s100 = _mm512_setzero_si512();
    __m512i s104 = _mm512_setzero_si512();

    void add_middle(__m512i v, __m512i low48, __m512i high12) {
        s0 = _mm512_madd52lo_epu64(s0, v, low48);
        s52 = _mm512_madd52hi_epu64(s52, v, low48);
        s48 = _mm512_madd52lo_epu64(s48, v, high12);
        s100 = _mm512_madd52hi_epu64(s100, v, high12);
    }
    void add(__m512i v, __m512i low48, __m512i high12) {
        add_middle(v, low48, high12);
        const __m512i top = _mm512_srli_epi64(v, 52);
        top52 = _mm512_madd52lo_epu64(top52, top, low48);
        s104 = _mm512_madd52hi_epu64(s104, top, low48);
        s100 = _mm512_madd52lo_epu64(s100, top, high12);
    }
    [[nodiscard]] __m512i value() const {
        const __m512i all52 = _mm512_add_epi64(s52, top52);
        const __m512i low =
            _mm512_add_epi64(fold(s0), _mm512_add_epi64(times_power<48>(s48), times_power<52>(all52)));
        const __m512i high = _mm512_add_epi64(times_power<100 - 61>(s100), times_power<104 - 61>(s104));
        return fold(_mm512_add_epi64(fold(low), high));
    }
};

// ---- tokens ----

__m512i splitmix64(__m512i z) {
    z = _mm512_add_epi64(z, all(0x9E3779B97F4A7C15ULL));
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)), all(0xBF58476D1CE4E5B9ULL));
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)), all(0x94D049BB133111EBULL));
    return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

struct Tokens {
    __m512i token;
    __mmask8 nan;
};

[[gnu::always_inline]] inline Tokens tokens_of(__m512d x) {
    // Rounded to nearest, -0.0 + 0.0 is 0.0, and every other number stays what it is.
    const __m512i bits = _mm512_castpd_si512(_mm512_add_round_pd(x, _mm512_setzero_pd(), kNearest));
    const __m512i magnitude = _mm512_and_si512(bits, all(kInfinityBits | (kInfinityBits - 1)));
    Tokens out{splitmix64(bits), 0};
    const __mmask8 special = _mm512_cmpge_epu64_mask(magnitude, all(kInfinityBits));
    if (special != 0) {
        out.nan = _mm512_cmpgt_epu64_mask(magnitude, all(kInfinityBits));
        const __mmask8 negative = _mm512_movepi64_mask(bits);
        out.token = _mm512_mask_mov_epi64(out.token, special, all(kPositiveInfinityToken));
        out.token = _mm512_mask_mov_epi64(out.token, special & negative, all(kNegativeInfinityToken));
        out.token = _mm512_mask_mov_epi64(out.token, out.nan, all(kNanToken));
    }
    // not 0
    const __mmask8 tiny = _mm512_cmplt_epu64_mask(_mm512_sub_epi64(bits, all(1)), all(kSeedLimit - 1));
    if (tiny != 0) {
        const __mmask8 seed = _mm512_cmpeq_epu64_mask(bits, all(kNanSeed)) |
                              _mm512_cmpeq_epu64_mask(bits, all(kPositiveInfinitySeed)) |
                              _mm512_cmpeq_epu64_mask(bits, all(kNegativeInfinitySeed));
        out.token = _mm512_mask_mov_epi64(out.token, seed, splitmix64(out.token));
    }
    return out;
}

// ---- from values to cells ----

struct WideCells {
    __m512i q;
    __mmask8 fits;
};

class AbsoluteCells {
   public:
    explicit AbsoluteCells(const CellRule& rule)
        : inverse_(_mm512_set1_pd(power(-rule.fine_exponent))),
          coarse_inverse_(_mm512_set1_pd(power(-rule.coarse_exponent()))) {}

    // Whether the scales are float64 numbers, not 0.
    static bool can(const CellRule& rule) {
        return rule.fine_exponent >= -1023 && rule.coarse_exponent() <= 1074;
    }

    // What surrounds q + 2^Bias where |q| < 2^Bias; other values differ from it at bit Bias + 1 or
    // above.
    static constexpr std::uint64_t kSurround = 0x4330000000000000ULL;  // 2^52
    template <unsigned Bias>
    [[nodiscard]] __m512i biased(__m512d x) const {
        const __m512d magic = _mm512_set1_pd(0x1p52 + static_cast<double>(1ULL << Bias));
        return _mm512_castpd_si512(_mm512_fmadd_round_pd(x, inverse_, magic, kDown));
    }
    [[nodiscard]] WideCells fine(__m512d x) const { return wide(x, inverse_); }
    [[nodiscard]] WideCells coarse(__m512d x) const { return wide(x, coarse_inverse_); }

   private:
    static double power(int exponent) {
        const int normal = exponent < -1022 ? -1022 : exponent;
        double scale = __builtin_bit_cast(double, static_cast<std::uint64_t>(normal + 1023) << 52);
        for (int e = normal; e > exponent; --e)
            scale *= 0.5;
        return scale;
    }
    static WideCells wide(__m512d x, __m512d inverse) {
        // Rounded down, a negative product that is too small for float64 stays below 0, and its
        // floor is -1.
        const __m512d y = _mm512_mul_round_pd(x, inverse, kDown);
        const __mmask8 fits = _mm512_cmp_pd_mask(_mm512_abs_pd(y), _mm512_set1_pd(0x1p59), _CMP_LT_OQ);
        return {_mm512_cvt_roundpd_epi64(y, kDown), fits};
    }

    __m512d inverse_;
    __m512d coarse_inverse_;
};

class RelativeCells {
   public:
    explicit RelativeCells(const CellRule& rule)
        : origin_(_mm512_set1_pd(rule.key_origin)),
          origin_bits_(_mm512_castpd_si512(origin_)),
          shift_(_mm_cvtsi32_si128(rule.fine_exponent)),
          coarse_shift_(_mm_cvtsi32_si128(rule.coarse_exponent())) {}

    static bool can(const CellRule& rule) { return rule.fine_exponent >= 0; }

    static constexpr std::uint64_t kSurround = 0;
    template <unsigned Bias>
    [[nodiscard]] __m512i biased(__m512d x) const {
        const Key key = key_of(x);
        const __m512i q = _mm512_sra_epi64(key.key, shift_);
        const __m512i v = _mm512_add_epi64(q, all(1ULL << Bias));
        return _mm512_mask_mov_epi64(v, key.none, all(~0ULL));
    }
    [[nodiscard]] WideCells fine(__m512d x) const { return wide(key_of(x), shift_); }
    [[nodiscard]] WideCells coarse(__m512d x) const { return wide(key_of(x), coarse_shift_); }

   private:
    struct Key {
        __m512i key;
        __mmask8 none;
    };
    [[nodiscard]] Key key_of(__m512d x) const {
        const __m512i sum = _mm512_castpd_si512(_mm512_add_round_pd(_mm512_abs_pd(x), origin_, kNearest));
        constexpr std::uint64_t smallest = __builtin_bit_cast(std::uint64_t, kSmallestSum);
        const __mmask8 outside =
            _mm512_cmpge_epu64_mask(_mm512_sub_epi64(sum, all(smallest)), all(kInfinityBits - smallest));
        const __m512i key = _mm512_sub_epi64(sum, origin_bits_);
        const __mmask8 negative = _mm512_movepi64_mask(_mm512_castpd_si512(x));
        return {_mm512_mask_sub_epi64(key, negative, _mm512_setzero_si512(), key),
                _mm512_mask_test_epi64_mask(outside, sum, sum)};
    }
    static WideCells wide(const Key& key, __m128i shift) {
        const __m512i q = _mm512_sra_epi64(key.key, shift);
        const __mmask8 fits = _mm512_cmplt_epu64_mask(_mm512_abs_epi64(q), all(kTokenLimit));
        return {q, static_cast<__mmask8>(fits & ~key.none)};
    }

    __m512d origin_;
    __m512i origin_bits_;
    __m128i shift_;
    __m128i coarse_shift_;
};

// ---- residues ----

// One line is built by rotation: each vector's residues enter at the bottom.
template <unsigned Bits>
class ResidueLines {
   public:
    explicit ResidueLines(std::byte* to) : to_(to) {}
    void add(__m512i v) {
        // 0xCA: takes v where the mask has ones, otherwise the rotated line.
        line_ = _mm512_ternarylogic_epi64(all((1U << Bits) - 1), v, _mm512_ror_epi64(line_, Bits), 0xCA);
    }
    // After this many vectors of the block: writes the line out where one is complete.
    void flush(std::size_t vectors) {
        if (vectors % kVectors == 0) put(0);
    }
    void finish(std::size_t vectors) {
        if (vectors % kVectors != 0) put(kVectors - vectors % kVectors);
    }

   private:
    static constexpr std::size_t kVectors = 64 / Bits;
    void put(std::size_t missing) {
        const auto turn = static_cast<long long>((missing + 1) * Bits % 64);
        _mm512_storeu_si512(to_, _mm512_rorv_epi64(line_, _mm512_set1_epi64(turn)));
        to_ += kResidueLine;
        line_ = _mm512_setzero_si512();
    }
    std::byte* to_;
    __m512i line_ = _mm512_setzero_si512();
};
template <>
class ResidueLines<0> {
   public:
    explicit ResidueLines(std::byte* /*to*/) {}
    void add(__m512i /*v*/) {}
    void flush(std::size_t /*vectors*/) {}
    void finish(std::size_t /*vectors*/) {}
};

// ---- blocks ----

// Sums of the groups that are not narrow. Wide values carry the narrow bias.
struct OtherSums {
    bool used = false;
    WideSums middle;
    LowSums middle_low;
    std::uint64_t middle_r = 0;  // sum of the coefficients of middling groups
    WideSums wide;
    WideSums wide_coarse;
    std::uint64_t uniform_r = 0;  // of groups of one value, and their sums
    std::uint64_t uniform = 0;
    std::uint64_t uniform_coarse = 0;
    ElementCounts counts;
};

// Whether the group is one value over and over: regions without data hold a fill value, or NaN.
template <class T>
bool is_uniform(const T* x) {
    const __m512d first = _mm512_broadcastsd_pd(_mm512_castpd512_pd128(values_at(x)));
    __mmask8 same = 0xFF;
    __mmask8 nan = 0xFF;
    for (std::size_t i = 0; i < kGroup; i += kLanes) {
        const __m512d v = values_at(x + i);
        same &= _mm512_cmpeq_epi64_mask(_mm512_castpd_si512(v), _mm512_castpd_si512(first));
        nan &= _mm512_cmp_pd_mask(v, v, _CMP_UNORD_Q);
    }
    return same == 0xFF || nan == 0xFF;
}

std::uint64_t group_r(std::size_t first) {
    const Coefficients& table = coefficients();
    return subtract61(table.sums[(first + kGroup) / kLanes], table.sums[first / kLanes]);
}
std::uint64_t field_value(const Cell& cell) {
    return cell.token ? reduce61(cell.bits) : signed61(static_cast<std::int64_t>(cell.bits));
}

void uniform_group(double value, const CellRule& rule, std::size_t first, OtherSums* sums,
                   std::uint64_t* raw) {
    const std::uint64_t r = group_r(first);
    const Cell fine = cell_of(value, rule, 0);
    sums->uniform_r = add61(sums->uniform_r, r);
    sums->uniform = add61(sums->uniform, multiply61(r, field_value(fine)));
    if (rule.coarse_shift != 0) {
        const Cell coarse = cell_of(value, rule, rule.coarse_shift);
        sums->uniform_coarse = add61(sums->uniform_coarse, multiply61(r, field_value(coarse)));
    }
    if (fine.token) {
        sums->counts.tokens += kGroup;
        if (value != value) sums->counts.nans += kGroup;
    }
    for (std::size_t i = 0; i < kGroup; i += kLanes)
        _mm512_store_si512(raw + i, all(fine.bits));
}

// Adds one vector, and returns the cells or tokens for the residues. Lanes that are not set count
// as cells 0.
template <bool Coarse, class Cells>
[[gnu::always_inline]] inline __m512i wide_vector(__m512d x, __mmask8 lanes, const Cells& cells,
                                                  unsigned coarse_shift, std::size_t first, WideSums& sums,
                                                  WideSums& coarse_sums, ElementCounts& counts) {
    const Coefficients& table = coefficients();
    const __m512i low48 = table_at(&table.low48[first]);
    const __m512i high12 = table_at(&table.high12[first]);
    const auto unset = static_cast<__mmask8>(~lanes);
    const WideCells fine = cells.fine(x);
    const __mmask8 fits = fine.fits | unset;
    Tokens tokens{_mm512_setzero_si512(), 0};
    if (fits != 0xFF) {
        tokens = tokens_of(x);
        counts.tokens += static_cast<unsigned>(__builtin_popcount(static_cast<__mmask8>(~fits)));
        counts.nans += static_cast<unsigned>(__builtin_popcount(tokens.nan & lanes));
    }
    const __m512i folded = fold(tokens.token);
    const __m512i q = _mm512_maskz_mov_epi64(lanes, fine.q);
    // q + p is positive, and the same in the field.
    const __m512i v = _mm512_mask_add_epi64(folded, fits, q, all(kPrime));
    sums.add(_mm512_add_epi64(v, all(1ULL << kNarrow)), low48, high12);
    if constexpr (Coarse) {
        const WideCells coarse = cells.coarse(x);
        const __m512i q0 = _mm512_maskz_mov_epi64(lanes, coarse.q);
        const __m512i v0 = _mm512_mask_add_epi64(folded, coarse.fits | unset, q0, all(kPrime));
        coarse_sums.add(_mm512_add_epi64(v0, all(1ULL << (kNarrow - coarse_shift))), low48, high12);
    }
    return _mm512_mask_mov_epi64(tokens.token, fits, q);
}

// A group that is not narrow. raw: what its residues are taken from.
template <bool Coarse, class T, class Cells>
[[gnu::noinline]] void other_group(const T* x, const Cells& cells, const CellRule& rule, std::size_t first,
                                   OtherSums* sums, std::uint64_t* raw) {
    const Coefficients& table = coefficients();
    sums->used = true;
    if (is_uniform(x)) {
        uniform_group(_mm512_cvtsd_f64(values_at(x)), rule, first, sums, raw);
        return;
    }
    const unsigned coarse_shift = rule.coarse_shift;
    __m512i outside = _mm512_setzero_si512();
    for (std::size_t i = 0; i < kGroup; i += kLanes) {
        const __m512i v = cells.template biased<kMiddle>(values_at(x + i));
        outside = _mm512_or_si512(outside, _mm512_xor_si512(v, all(Cells::kSurround)));
        _mm512_store_si512(raw + i, v);
    }
    if (_mm512_test_epi64_mask(outside, all(~0ULL << (kMiddle + 1))) != 0) {
        WideSums wide = sums->wide;
        WideSums wide_coarse = sums->wide_coarse;
        ElementCounts counts = sums->counts;
        for (std::size_t i = 0; i < kGroup; i += kLanes) {
            const __m512d values = values_at(x + i);
            const __m512i v =
                wide_vector<Coarse>(values, 0xFF, cells, coarse_shift, first + i, wide, wide_coarse, counts);
            _mm512_store_si512(raw + i, v);
        }
        sums->wide = wide;
        sums->wide_coarse = wide_coarse;
        sums->counts = counts;
        return;
    }
    const __m512i low_mask = all((1ULL << coarse_shift) - 1);
    WideSums middle = sums->middle;
    LowSums low = sums->middle_low;
    for (std::size_t i = 0; i < kGroup; i += kLanes) {
        const __m512i v = _mm512_load_si512(raw + i);
        const __m512i low48 = table_at(&table.low48[first + i]);
        const __m512i high12 = table_at(&table.high12[first + i]);
        middle.add_middle(v, low48, high12);
        if constexpr (Coarse) low.add(_mm512_and_si512(v, low_mask), low48, high12);
    }
    sums->middle = middle;
    sums->middle_low = low;
    sums->middle_r =
        add61(sums->middle_r, subtract61(table.sums[(first + kGroup) / 8], table.sums[first / 8]));
}

template <unsigned Bits, bool Coarse, class Cells, class T>
void block_of(const T* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    const Coefficients& table = coefficients();
    const Cells cells(rule);
    const unsigned coarse_shift = rule.coarse_shift;
    const __m512i low_mask = all((1ULL << coarse_shift) - 1);
    const __m512i surround = all(Cells::kSurround);
    NarrowSums narrow;
    LowSums low;
    OtherSums other;
    ResidueLines<Bits> lines(residues);
    alignas(64) std::array<std::uint64_t, kGroup> raw;

    std::size_t i = 0;
    for (; i + kGroup <= n; i += kGroup) {
        prefetch(x + i);
        __m512i v[kGroupVectors];
        for (std::size_t k = 0; k < kGroupVectors; ++k)
            v[k] = cells.template biased<kNarrow>(values_at(x + i + 8 * k));
        // 0x7E: ones where the three are not all alike; 0xFE: or.
        __m512i outside = _mm512_ternarylogic_epi64(v[0], v[1], surround, 0x7E);
        for (std::size_t k = 2; k < kGroupVectors; k += 2) {
            outside = _mm512_or_si512(outside, _mm512_ternarylogic_epi64(v[k], v[k + 1], surround, 0x7E));
        }
        if (_mm512_test_epi64_mask(outside, all(~0ULL << (kNarrow + 1))) == 0) [[likely]] {
            for (std::size_t k = 0; k < kGroupVectors; ++k) {
                const __m512i low48 = table_at(&table.low48[i + 8 * k]);
                const __m512i high12 = table_at(&table.high12[i + 8 * k]);
                narrow.add(v[k], low48, high12);
                if constexpr (Coarse) low.add(_mm512_and_si512(v[k], low_mask), low48, high12);
                lines.add(v[k]);
            }
        } else {
            other_group<Coarse>(x + i, cells, rule, i, &other, raw.data());
            for (std::size_t k = 0; k < kGroup; k += kLanes)
                lines.add(_mm512_load_si512(&raw[k]));
        }
        lines.flush((i + kGroup) / kLanes);
    }
    for (; i < n; i += kLanes) {
        const auto lanes = static_cast<__mmask8>(n - i < kLanes ? (1U << (n - i)) - 1 : 0xFFU);
        other.used = true;
        lines.add(wide_vector<Coarse>(values_at(x + i, lanes), lanes, cells, coarse_shift, i, other.wide,
                                      other.wide_coarse, other.counts));
        lines.flush(i / kLanes + 1);
    }
    const std::size_t vectors = (n + kLanes - 1) / kLanes;
    lines.finish(vectors);

    Pair sums = add_lanes(narrow.value(), low.value());
    Pair wide{0, 0};
    std::uint64_t bias =
        multiply61(subtract61(table.sums[vectors], add61(other.middle_r, other.uniform_r)), 1ULL << kNarrow);
    if (other.used) {
        const Pair middle = add_lanes(other.middle.value(), other.middle_low.value());
        sums = {add61(sums.first, middle.first), add61(sums.second, middle.second)};
        wide = add_lanes(other.wide.value(), other.wide_coarse.value());
        wide = {add61(wide.first, other.uniform), add61(wide.second, other.uniform_coarse)};
        bias = add61(bias, multiply61(other.middle_r, 1ULL << kMiddle));
    }
    const std::uint64_t cells_sum = subtract61(sums.first, bias);
    out->fine = add61(cells_sum, wide.first);
    out->coarse = out->fine;
    if constexpr (Coarse) {
        const std::uint64_t high =
            multiply61(subtract61(cells_sum, sums.second), inverse_power_of_two(coarse_shift));
        out->coarse = add61(high, wide.second);
    }
    out->counts = other.counts;
}

template <unsigned Bits, class T>
void token_block(const T* x, std::size_t n, BlockDigest* out, std::byte* residues) {
    const Coefficients& table = coefficients();
    WideSums sums;
    ResidueLines<Bits> lines(residues);
    std::uint64_t nans = 0;
    for (std::size_t i = 0; i < n; i += kLanes) {
        const auto lanes = static_cast<__mmask8>(n - i < kLanes ? (1U << (n - i)) - 1 : 0xFFU);
        if (i % kGroup == 0) prefetch(x + i);
        const Tokens tokens = tokens_of(lanes == 0xFF ? values_at(x + i) : values_at(x + i, lanes));
        const __m512i v = _mm512_maskz_mov_epi64(lanes, tokens.token);
        if (tokens.nan != 0) nans += static_cast<unsigned>(__builtin_popcount(tokens.nan));
        sums.add(v, table_at(&table.low48[i]), table_at(&table.high12[i]));
        lines.add(v);
        lines.flush(i / kLanes + 1);
    }
    lines.finish((n + kLanes - 1) / kLanes);
    out->fine = add_lanes(sums.value(), _mm512_setzero_si512()).first;
    out->coarse = out->fine;
    out->counts = {nans, n};
}

// Numbers that stand for themselves, with a bias of 2^31 that is taken off at the end. Lanes that
// are not set count as nothing.
[[gnu::always_inline]] inline __m512i biased_bits(__m256 x, __mmask8 lanes, std::uint64_t* nans) {
    const __m256i bits = _mm256_castps_si256(x);
    const __mmask8 some = _mm256_test_epi32_mask(bits, _mm256_set1_epi32(0x7FFFFFFF));  // not 0
    const __mmask8 nan = _mm256_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    *nans += static_cast<unsigned>(__builtin_popcount(nan));
    __m256i v = _mm256_maskz_mov_epi32(some, bits);
    v = _mm256_mask_mov_epi32(v, nan, _mm256_set1_epi32(kBinary32Nan));
    v = _mm256_maskz_xor_epi32(lanes, v, _mm256_set1_epi32(INT32_MIN));
    return _mm512_cvtepu32_epi64(v);
}

// Scalars of 32 bits that stand for themselves. values(i, lanes): eight of them from number i on,
// with that bias, which is taken off at the end.
template <class T, class Values>
[[gnu::always_inline]] inline std::uint64_t sum_of_32(const T* x, std::size_t n, std::uint64_t bias,
                                                      const Values& values) {
    const Coefficients& table = coefficients();
    NarrowSums sums;  // of at most 512 products a lane
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        if (i % kGroup == 0) prefetch(x + i);
        sums.add(values(i, __mmask8{0xFF}), table_at(&table.low48[i]), table_at(&table.high12[i]));
    }
    if (i < n) {
        const auto lanes = static_cast<__mmask8>((1U << (n - i)) - 1);
        sums.add(values(i, lanes), table_at(&table.low48[i]), table_at(&table.high12[i]));
    }
    const std::uint64_t biased = add_lanes(sums.value(), _mm512_setzero_si512()).first;
    return subtract61(biased, multiply61(coefficients_until(n), bias));
}

bool exact_block(const float* x, std::size_t n, BlockDigest* out) {
    std::uint64_t nans = 0;
    const auto values = [&](std::size_t i, __mmask8 lanes) {
        return biased_bits(lanes == 0xFF ? _mm256_loadu_ps(x + i) : _mm256_maskz_loadu_ps(lanes, x + i),
                           lanes, &nans);
    };
    const std::uint64_t sum = sum_of_32(x, n, 1ULL << 31, values);
    *out = {sum, sum, {nans, 0}};
    return true;
}

void block_of_32(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(x);
    const __m256i sign = scalar == DType::i32 ? _mm256_set1_epi32(INT32_MIN) : _mm256_setzero_si256();
    const auto values = [&](std::size_t i, __mmask8 lanes) {
        const __m256i v = _mm256_maskz_loadu_epi32(lanes, words + i);
        return _mm512_cvtepu32_epi64(_mm256_maskz_xor_epi32(lanes, v, sign));
    };
    const std::uint64_t sum = sum_of_32(words, n, scalar == DType::i32 ? 1ULL << 31 : 0, values);
    *out = {sum, sum, {}};
}

template <DType kScalar>
__m512 widened(__m256i half) {
    if constexpr (kScalar == DType::f16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
template <DType kScalar>
void widen_all(const std::byte* x, std::size_t n, float* to) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        if (i % 32 == 0) _mm_prefetch(reinterpret_cast<const char*>(x + 2 * i) + kBlockBytes, _MM_HINT_T0);
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 2 * i));
        _mm512_storeu_ps(to + i, widened<kScalar>(half));
    }
    if (i == n) return;
    const auto lanes = static_cast<__mmask16>((1U << (n - i)) - 1);
    _mm512_mask_storeu_ps(to + i, lanes, widened<kScalar>(_mm256_maskz_loadu_epi16(lanes, x + 2 * i)));
}
void widen(const std::byte* x, DType scalar, std::size_t n, float* to) {
    scalar == DType::f16 ? widen_all<DType::f16>(x, n, to) : widen_all<DType::bf16>(x, n, to);
}

void stored_blocks(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out) {
    if (has_bytes_kernel(scalar)) return bytes_blocks_avx512(x, scalar, n, out);
    in_groups<1>(x, sizeof(std::uint32_t), n, out,
                 [scalar](auto, const std::byte* from, std::size_t m, BlockDigest* to) {
                     block_of_32(from, scalar, m, to);
                 });
}

// Eight times 64 bits: those of numbers, where -0.0 becomes 0 and every NaN one, or of integers.
[[gnu::always_inline]] inline __m512i word_bits(__m512i bits, const double* /*x*/, std::uint64_t* nans) {
    const __m512d x = _mm512_castsi512_pd(bits);
    const __mmask8 nan = _mm512_cmp_pd_mask(x, x, _CMP_UNORD_Q);
    *nans += static_cast<unsigned>(__builtin_popcount(nan));
    const __mmask8 some = _mm512_test_epi64_mask(bits, all(kInfinityBits | (kInfinityBits - 1)));  // not 0
    return _mm512_mask_mov_epi64(_mm512_maskz_mov_epi64(some, bits), nan, all(kBinary64Nan));
}
[[gnu::always_inline]] inline __m512i word_bits(__m512i bits, const std::uint64_t* /*x*/,
                                                std::uint64_t* /*nans*/) {
    return bits;
}

// Scalars of 64 bits that stand for themselves: their halves are digested apart.
template <class T>
bool exact_block(const T* x, std::size_t n, BlockDigest* out) {
    const Coefficients& table = coefficients();
    NarrowSums lower;  // of at most 64 products a lane
    NarrowSums upper;
    std::uint64_t nans = 0;
    for (std::size_t i = 0; i < n; i += kLanes) {
        const auto lanes = static_cast<__mmask8>(n - i < kLanes ? (1U << (n - i)) - 1 : 0xFFU);
        if (i % kGroup == 0) prefetch(x + i);
        const __m512i bits =
            lanes == 0xFF ? _mm512_loadu_si512(x + i) : _mm512_maskz_loadu_epi64(lanes, x + i);
        const __m512i v = word_bits(bits, x, &nans);
        const __m512i low48 = table_at(&table.low48[i]);
        const __m512i high12 = table_at(&table.high12[i]);
        lower.add(_mm512_and_si512(v, all(0xFFFFFFFF)), low48, high12);
        upper.add(_mm512_srli_epi64(v, 32), low48, high12);
    }
    const Pair sums = add_lanes(lower.value(), upper.value());
    out->fine = add61(sums.first, multiply61(sums.second, kWordFactor));
    out->coarse = out->fine;
    out->counts = {nans, 0};
    return true;
}

template <unsigned Bits, class T>
bool block_with(const T* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    const bool coarse = rule.coarse_shift != 0;
    switch (rule.kind) {
        case CellKind::tokens: token_block<Bits>(x, n, out, residues); return true;
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

// Ones in the residues that lie beyond the first `scalars` of a line.
template <unsigned Bits>
__m512i beyond_line(std::size_t scalars) {
    alignas(64) std::array<std::uint64_t, 8> words;
    for (std::size_t j = 0; j < 8; ++j) {
        const std::size_t set = Bits * ((scalars + 7 - j) / 8);
        words[j] = set >= 64 ? 0 : ~0ULL << set;
    }
    return _mm512_load_si512(words.data());
}

// Counts of the centred differences c, given as c + half: two classes of |c| in the halves of each
// byte.
class SketchCounts4 {
   public:
    void add(__m512i e) {
        const __m512i nibbles = all(0x0F0F0F0F0F0F0F0FULL);
        const __m512i even = _mm512_and_si512(e, nibbles);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi64(e, 4), nibbles);
        for (std::size_t k = 0; k < 4; ++k) {
            const __m512i class_of =
                _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kClass[k].data())));
            packed_[k] = _mm512_add_epi8(packed_[k], _mm512_add_epi8(_mm512_shuffle_epi8(class_of, even),
                                                                     _mm512_shuffle_epi8(class_of, odd)));
        }
        if (++lines_ == 7) flush();  // 14 of the 15 that half a byte counts
    }
    void finish(std::size_t n, SketchBlock* out) {
        flush();
        std::uint32_t others = 0;
        for (std::size_t k = 0; k < 4; ++k) {
            for (std::size_t h = 0; h < 2; ++h) {
                const auto count = static_cast<std::uint32_t>(_mm512_reduce_add_epi64(totals_[2 * k + h]));
                others += count;
                if (2 * k + h == 7) {
                    out->beyond = count;
                } else {
                    out->counts[2 * k + h + 1] = count;
                }
            }
        }
        out->counts[0] = static_cast<std::uint32_t>(n) - others;
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
        const __m512i nibbles = all(0x0F0F0F0F0F0F0F0FULL);
        const __m512i zero = _mm512_setzero_si512();
        for (std::size_t k = 0; k < 4; ++k) {
            const __m512i low = _mm512_and_si512(packed_[k], nibbles);
            const __m512i high = _mm512_and_si512(_mm512_srli_epi64(packed_[k], 4), nibbles);
            totals_[2 * k] = _mm512_add_epi64(totals_[2 * k], _mm512_sad_epu8(low, zero));
            totals_[2 * k + 1] = _mm512_add_epi64(totals_[2 * k + 1], _mm512_sad_epu8(high, zero));
            packed_[k] = zero;
        }
        lines_ = 0;
    }
    __m512i packed_[4]{};
    __m512i totals_[8]{};
    unsigned lines_ = 0;
};

class SketchCounts2 {
   public:
    void add(__m512i e) {
        // e = c + 2: bit 0 is set where |c| = 1; both are clear where c = -2.
        const __m512i ones = all(0x5555555555555555ULL);
        const __m512i one = _mm512_and_si512(e, ones);
        const __m512i neither = _mm512_andnot_si512(_mm512_or_si512(e, _mm512_srli_epi64(e, 1)), ones);
        one_ = _mm512_add_epi64(one_, bits_set(one));
        beyond_ = _mm512_add_epi64(beyond_, bits_set(neither));
    }
    void finish(std::size_t n, SketchBlock* out) const {
        out->counts[1] = static_cast<std::uint32_t>(_mm512_reduce_add_epi64(one_));
        out->beyond = static_cast<std::uint32_t>(_mm512_reduce_add_epi64(beyond_));
        out->counts[0] = static_cast<std::uint32_t>(n) - out->counts[1] - out->beyond;
    }

   private:
    // Of pairs whose upper bit is 0.
    static __m512i bits_set(__m512i v) {
        const __m512i pairs = all(0x3333333333333333ULL);
        const __m512i nibbles = all(0x0F0F0F0F0F0F0F0FULL);
        v = _mm512_add_epi8(_mm512_and_si512(v, pairs), _mm512_and_si512(_mm512_srli_epi64(v, 2), pairs));
        v = _mm512_and_si512(_mm512_add_epi8(v, _mm512_srli_epi64(v, 4)), nibbles);
        return _mm512_sad_epu8(v, _mm512_setzero_si512());
    }
    __m512i one_ = _mm512_setzero_si512();
    __m512i beyond_ = _mm512_setzero_si512();
};

template <unsigned Bits, class Counts>
void sketch_of(const std::byte* a, const std::byte* b, std::size_t n, SketchBlock* out) {
    const Coefficients& table = coefficients();
    constexpr std::size_t kVectors = 64 / Bits;
    constexpr std::size_t kScalars = kVectors * kLanes;
    const __m512i tops = all(Bits == 4 ? 0x8888888888888888ULL : 0xAAAAAAAAAAAAAAAAULL);
    const __m512i residue = all((1U << Bits) - 1);
    LowSums sums;
    Counts counts;
    for (std::size_t first = 0; first < n; first += kScalars) {
        const __m512i ra = _mm512_loadu_si512(a);
        const __m512i rb = _mm512_loadu_si512(b);
        a += kResidueLine;
        b += kResidueLine;
        // Residue by residue, a - b + half: no borrow crosses, as the top bits are set in a and
        // clear in b.
        const __m512i difference = _mm512_sub_epi64(_mm512_or_si512(ra, tops), _mm512_andnot_si512(tops, rb));
        // (a ^ b) & tops
        __m512i e = _mm512_xor_si512(difference, _mm512_ternarylogic_epi64(ra, rb, tops, 0x28));
        const std::size_t scalars = n - first;
        std::size_t vectors = kVectors;
        if (scalars < kScalars) {  // what lies behind the block counts as c = 0
            const __m512i unused = beyond_line<Bits>(scalars);
            e = _mm512_ternarylogic_epi64(unused, tops, e, 0xCA);
            vectors = (scalars + kLanes - 1) / kLanes;
        }
        counts.add(e);
        const std::uint64_t* low48 = &table.low48[first];
        const std::uint64_t* high12 = &table.high12[first];
        if (vectors == kVectors) {
            for (std::size_t v = 0; v < kVectors; ++v) {
                const __m512i c =
                    _mm512_and_si512(_mm512_srli_epi64(e, static_cast<unsigned>(Bits * v)), residue);
                sums.add(c, table_at(low48 + 8 * v), table_at(high12 + 8 * v));
            }
        } else {
            for (std::size_t v = 0; v < vectors; ++v) {
                const __m512i c = _mm512_and_si512(e, residue);
                e = _mm512_srli_epi64(e, Bits);
                sums.add(c, table_at(low48 + 8 * v), table_at(high12 + 8 * v));
            }
        }
    }
    SketchBlock result;
    counts.finish(n, &result);
    const std::uint64_t bias = multiply61(table.sums[(n + kLanes - 1) / kLanes], 1ULL << (Bits - 1));
    result.correction = subtract61(add_lanes(sums.value(), _mm512_setzero_si512()).first, bias);
    *out = result;
}

void sketch(const std::byte* a, const std::byte* b, std::size_t n, unsigned bits, SketchBlock* out) {
    bits == 4 ? sketch_of<4, SketchCounts4>(a, b, n, out) : sketch_of<2, SketchCounts2>(a, b, n, out);
}

}  // namespace

const DigestKernels kAvx512Digest = {block_f32, block_f64, block_words, sketch, stored_blocks, widen};

}  // namespace twinrun
