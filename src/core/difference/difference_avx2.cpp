// AVX2 with FMA: four scalars a step.
#include <immintrin.h>

#include "difference/difference_lanes.hpp"

namespace twinrun {

namespace {

template <class T>
struct WordsOf;
template <>
struct WordsOf<float> {
    using Type = __m256;
};
template <>
struct WordsOf<double> {
    using Type = __m256d;
};

// For each mask of four lanes, the halves of lanes that bring its lanes to the front.
alignas(32) constexpr std::int32_t kPackOrder[16][8] = {
    {0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0, 0, 0}, {2, 3, 0, 0, 0, 0, 0, 0}, {0, 1, 2, 3, 0, 0, 0, 0},
    {4, 5, 0, 0, 0, 0, 0, 0}, {0, 1, 4, 5, 0, 0, 0, 0}, {2, 3, 4, 5, 0, 0, 0, 0}, {0, 1, 2, 3, 4, 5, 0, 0},
    {6, 7, 0, 0, 0, 0, 0, 0}, {0, 1, 6, 7, 0, 0, 0, 0}, {2, 3, 6, 7, 0, 0, 0, 0}, {0, 1, 2, 3, 6, 7, 0, 0},
    {4, 5, 6, 7, 0, 0, 0, 0}, {0, 1, 4, 5, 6, 7, 0, 0}, {2, 3, 4, 5, 6, 7, 0, 0}, {0, 1, 2, 3, 4, 5, 6, 7},
};

struct Avx2 {
    using Lanes = __m256d;
    using Mask = __m256d;  // all bits of a lane, or none
    template <class T>
    using Words = typename WordsOf<T>::Type;
    static constexpr std::size_t kWidth = 4;

    static Lanes load(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
    static Lanes load(const double* x) { return _mm256_loadu_pd(x); }
    static void store(double* to, Lanes x) { _mm256_store_pd(to, x); }
    static Lanes fill(double x) { return _mm256_set1_pd(x); }

    static Lanes add(Lanes x, Lanes y) { return _mm256_add_pd(x, y); }
    static Lanes subtract(Lanes x, Lanes y) { return _mm256_sub_pd(x, y); }
    static Lanes multiply(Lanes x, Lanes y) { return _mm256_mul_pd(x, y); }
    static Lanes divide(Lanes x, Lanes y) { return _mm256_div_pd(x, y); }
    static Lanes multiply_add(Lanes x, Lanes y, Lanes z) { return _mm256_fmadd_pd(x, y, z); }
    static Lanes multiply_subtract(Lanes x, Lanes y, Lanes z) { return _mm256_fmsub_pd(x, y, z); }
    static Lanes larger(Lanes x, Lanes y) { return _mm256_max_pd(x, y); }
    static Lanes smaller(Lanes x, Lanes y) { return _mm256_min_pd(x, y); }
    static Lanes absolute(Lanes x) { return _mm256_andnot_pd(fill(-0.0), x); }
    static Lanes keep(Mask lanes, Lanes x) { return _mm256_and_pd(lanes, x); }
    static Lanes replace(Mask lanes, Lanes x, double by) { return _mm256_blendv_pd(x, fill(by), lanes); }
    static Lanes negate(Mask lanes, Lanes x) { return _mm256_xor_pd(x, _mm256_and_pd(lanes, fill(-0.0))); }
    static Lanes add_square(Mask lanes, Lanes x, Lanes sum) {
        return _mm256_fmadd_pd(_mm256_and_pd(lanes, x), x, sum);
    }
    static double total(Lanes x) {
        const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
        return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
    }
    static double smallest(Lanes x) {
        const __m128d half = _mm_min_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
        return _mm_cvtsd_f64(_mm_min_sd(half, _mm_unpackhi_pd(half, half)));
    }
    static double largest(Lanes x) {
        const __m128d half = _mm_max_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
        return _mm_cvtsd_f64(_mm_max_sd(half, _mm_unpackhi_pd(half, half)));
    }
    // By the sign bit, as bits() takes it.
    static Mask negative(Lanes x) { return x; }

    // Comparisons of NaN are false, except unequal and not_less.
    static Mask unequal(Lanes x, Lanes y) { return _mm256_cmp_pd(x, y, _CMP_NEQ_UQ); }
    static Mask not_less(Lanes x, Lanes y) { return _mm256_cmp_pd(x, y, _CMP_NLT_UQ); }
    static Mask greater(Lanes x, Lanes y) { return _mm256_cmp_pd(x, y, _CMP_GT_OQ); }
    static Mask greater(Mask lanes, Lanes x, Lanes y) { return _mm256_and_pd(lanes, greater(x, y)); }
    static Mask at_least(Mask lanes, Lanes x, Lanes y) {
        return _mm256_and_pd(lanes, _mm256_cmp_pd(x, y, _CMP_GE_OQ));
    }
    static Mask equal(Mask lanes, Lanes x, Lanes y) {
        return _mm256_and_pd(lanes, _mm256_cmp_pd(x, y, _CMP_EQ_OQ));
    }
    static Mask both_nan(Lanes x, Lanes y) {
        return _mm256_and_pd(_mm256_cmp_pd(x, x, _CMP_UNORD_Q), _mm256_cmp_pd(y, y, _CMP_UNORD_Q));
    }

    static Mask either(Mask x, Mask y) { return _mm256_or_pd(x, y); }
    static Mask both(Mask x, Mask y) { return _mm256_and_pd(x, y); }
    static Mask without(Mask x, Mask y) { return _mm256_andnot_pd(y, x); }
    static bool any(Mask x) { return _mm256_movemask_pd(x) != 0; }
    static bool any(Mask x, Mask y) { return any(either(x, y)); }
    static unsigned bits(Mask x) { return static_cast<unsigned>(_mm256_movemask_pd(x)); }
    static Mask mask(unsigned bits) {
        const __m256i lane = _mm256_set_epi64x(8, 4, 2, 1);
        const __m256i set = _mm256_and_si256(_mm256_set1_epi64x(static_cast<long long>(bits)), lane);
        return _mm256_castsi256_pd(_mm256_cmpeq_epi64(set, lane));
    }

    // Writes the lanes' bits one after another, and up to a vector beyond; returns how many.
    static std::size_t pack(std::uint64_t* to, Mask lanes, Lanes x) {
        const unsigned which = bits(lanes);
        const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(kPackOrder[which]));
        const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_castpd_si256(x), order);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
        return static_cast<std::size_t>(__builtin_popcount(which));
    }

    template <class T>
    static Words<T> words_of(T value) {
        if constexpr (sizeof(T) == 4) {
            return _mm256_set1_ps(value);
        } else {
            return _mm256_set1_pd(value);
        }
    }
    static __m256 words(const float* x) { return _mm256_loadu_ps(x); }
    static __m256d words(const double* x) { return _mm256_loadu_pd(x); }
    // so_far | (x ^ y)
    static __m256 accumulate_difference(__m256 so_far, __m256 x, __m256 y) {
        return _mm256_or_ps(so_far, _mm256_xor_ps(x, y));
    }
    static __m256d accumulate_difference(__m256d so_far, __m256d x, __m256d y) {
        return _mm256_or_pd(so_far, _mm256_xor_pd(x, y));
    }
    static bool all_zero(__m256 x) {
        return _mm256_testz_si256(_mm256_castps_si256(x), _mm256_castps_si256(x)) != 0;
    }
    static bool all_zero(__m256d x) {
        return _mm256_testz_si256(_mm256_castpd_si256(x), _mm256_castpd_si256(x)) != 0;
    }
    // The larger of |x| and so_far; so_far where x is NaN (the instruction's second operand).
    static __m256 larger_magnitude(__m256 x, __m256 so_far) {
        return _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0F), x), so_far);
    }
    static __m256d larger_magnitude(__m256d x, __m256d so_far) { return _mm256_max_pd(absolute(x), so_far); }
};

}  // namespace

const DifferenceKernels kAvx2Difference = {LaneDifference<Avx2>::kernel<float>,
                                           LaneDifference<Avx2>::kernel<double>};

}  // namespace twinrun
