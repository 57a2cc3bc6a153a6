// AVX-512: eight scalars a step.
#include <immintrin.h>

#include "difference/difference_lanes.hpp"

#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers build "undefined" vectors from themselves (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace twinrun {

namespace {

template <class T>
struct WordsOf;
template <>
struct WordsOf<float> {
    using Type = __m512;
};
template <>
struct WordsOf<double> {
    using Type = __m512d;
};

struct Avx512 {
    using Lanes = __m512d;
    using Mask = __mmask8;
    template <class T>
    using Words = typename WordsOf<T>::Type;
    static constexpr std::size_t kWidth = 8;

    static Lanes load(const float* x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
    static Lanes load(const double* x) { return _mm512_loadu_pd(x); }
    static void store(double* to, Lanes x) { _mm512_store_pd(to, x); }
    static Lanes fill(double x) { return _mm512_set1_pd(x); }

    static Lanes add(Lanes x, Lanes y) { return _mm512_add_pd(x, y); }
    static Lanes subtract(Lanes x, Lanes y) { return _mm512_sub_pd(x, y); }
    static Lanes multiply(Lanes x, Lanes y) { return _mm512_mul_pd(x, y); }
    static Lanes divide(Lanes x, Lanes y) { return _mm512_div_pd(x, y); }
    static Lanes multiply_add(Lanes x, Lanes y, Lanes z) { return _mm512_fmadd_pd(x, y, z); }
    static Lanes multiply_subtract(Lanes x, Lanes y, Lanes z) { return _mm512_fmsub_pd(x, y, z); }
    static Lanes larger(Lanes x, Lanes y) { return _mm512_max_pd(x, y); }
    static Lanes smaller(Lanes x, Lanes y) { return _mm512_min_pd(x, y); }
    static Lanes absolute(Lanes x) { return _mm512_abs_pd(x); }
    static Lanes keep(Mask lanes, Lanes x) { return _mm512_maskz_mov_pd(lanes, x); }
    static Lanes replace(Mask lanes, Lanes x, double by) { return _mm512_mask_mov_pd(x, lanes, fill(by)); }
    static Lanes negate(Mask lanes, Lanes x) { return _mm512_mask_xor_pd(x, lanes, x, fill(-0.0)); }
    static Lanes add_square(Mask lanes, Lanes x, Lanes sum) {
        return _mm512_mask3_fmadd_pd(x, x, sum, lanes);
    }
    static double total(Lanes x) { return _mm512_reduce_add_pd(x); }
    static double smallest(Lanes x) { return _mm512_reduce_min_pd(x); }
    static double largest(Lanes x) { return _mm512_reduce_max_pd(x); }

    // Comparisons of NaN are false, except unequal and not_less.
    static Mask unequal(Lanes x, Lanes y) { return _mm512_cmp_pd_mask(x, y, _CMP_NEQ_UQ); }
    static Mask not_less(Lanes x, Lanes y) { return _mm512_cmp_pd_mask(x, y, _CMP_NLT_UQ); }
    static Mask greater(Lanes x, Lanes y) { return _mm512_cmp_pd_mask(x, y, _CMP_GT_OQ); }
    static Mask greater(Mask lanes, Lanes x, Lanes y) {
        return _mm512_mask_cmp_pd_mask(lanes, x, y, _CMP_GT_OQ);
    }
    static Mask at_least(Mask lanes, Lanes x, Lanes y) {
        return _mm512_mask_cmp_pd_mask(lanes, x, y, _CMP_GE_OQ);
    }
    static Mask equal(Mask lanes, Lanes x, Lanes y) {
        return _mm512_mask_cmp_pd_mask(lanes, x, y, _CMP_EQ_OQ);
    }
    static Mask both_nan(Lanes x, Lanes y) {
        return _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(x, x, _CMP_UNORD_Q), y, y, _CMP_UNORD_Q);
    }

    static Mask negative(Lanes x) { return _mm512_movepi64_mask(_mm512_castpd_si512(x)); }

    // Spelt as instructions: compilers would move the masks to general registers.
    static Mask either(Mask x, Mask y) { return _kor_mask8(x, y); }
    static Mask both(Mask x, Mask y) { return _kand_mask8(x, y); }
    static Mask without(Mask x, Mask y) { return _kandn_mask8(y, x); }
    static bool any(Mask x) { return x != 0; }
    static bool any(Mask x, Mask y) { return _kortestz_mask8_u8(x, y) == 0; }
    static unsigned bits(Mask x) { return x; }
    static Mask mask(unsigned bits) { return static_cast<Mask>(bits); }

    // Writes the lanes' bits one after another, and up to a vector beyond; returns how many.
    static std::size_t pack(std::uint64_t* to, Mask lanes, Lanes x) {
        _mm512_storeu_pd(to, _mm512_maskz_compress_pd(lanes, x));
        return static_cast<std::size_t>(__builtin_popcount(lanes));
    }

    template <class T>
    static Words<T> words_of(T value) {
        if constexpr (sizeof(T) == 4) {
            return _mm512_set1_ps(value);
        } else {
            return _mm512_set1_pd(value);
        }
    }
    static __m512 words(const float* x) { return _mm512_loadu_ps(x); }
    static __m512d words(const double* x) { return _mm512_loadu_pd(x); }
    // so_far | (x ^ y)
    static __m512 accumulate_difference(__m512 so_far, __m512 x, __m512 y) {
        return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
            _mm512_castps_si512(so_far), _mm512_castps_si512(x), _mm512_castps_si512(y), 0xF6));
    }
    static __m512d accumulate_difference(__m512d so_far, __m512d x, __m512d y) {
        return _mm512_castsi512_pd(_mm512_ternarylogic_epi64(
            _mm512_castpd_si512(so_far), _mm512_castpd_si512(x), _mm512_castpd_si512(y), 0xF6));
    }
    static bool all_zero(__m512 x) {
        return _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_castps_si512(x)) == 0;
    }
    static bool all_zero(__m512d x) {
        return _mm512_test_epi64_mask(_mm512_castpd_si512(x), _mm512_castpd_si512(x)) == 0;
    }
    // The larger of |x| and so_far; so_far where x is NaN (the instruction's second operand).
    static __m512 larger_magnitude(__m512 x, __m512 so_far) {
        return _mm512_max_ps(_mm512_abs_ps(x), so_far);
    }
    static __m512d larger_magnitude(__m512d x, __m512d so_far) {
        return _mm512_max_pd(_mm512_abs_pd(x), so_far);
    }
};

}  // namespace

const DifferenceKernels kAvx512Difference = {LaneDifference<Avx512>::kernel<float>,
                                             LaneDifference<Avx512>::kernel<double>};

}  // namespace twinrun
