// Element by element: which pairs differ, and the statistics of |a - b|.
//
// a is the reference. d = |a - b| rounded to float64; the verdict |a - b| > atol + rtol |a| is
// exact. A NaN equals a NaN unless nan_equal is false, and differs from every number; infinities of
// one sign are equal, and differ from all else. Such a pair counts with d = infinity, so that no
// maximum can lose it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "element/convert.hpp"
#include "element/tolerance.hpp"
#include "platform/backend.hpp"

namespace twinrun {

// Other measures than the distance on a line, of floating-point numbers. Where one is set, the host
// decides pairs one by one.
struct Measure {
    static constexpr std::uint64_t kNoUlps = std::numeric_limits<std::uint64_t>::max();
    static constexpr std::size_t kMostComponents = 4;

    // Floating-point numbers at most this many representable values of their type apart agree,
    // whatever the tolerance says; -0 and +0 are one value. Infinities and NaN are no neighbours of
    // any number.
    std::uint64_t ulps = kNoUlps;
    // Finite values lie on a circle of this circumference: d is the shorter way round. 0: on a
    // line. Scalar i has the period of component i / component_stride % components.
    std::array<double, kMostComponents> period{};
    std::uint32_t components = 1;
    std::uint64_t component_stride = 1;

    [[nodiscard]] bool plain() const {
        for (const double length : period) {
            if (length != 0) return false;
        }
        return ulps == kNoUlps;
    }
    [[nodiscard]] double period_of(std::uint64_t scalar) const {
        return period[scalar / component_stride % components];
    }
};

struct DifferenceRule {
    Tolerance tolerance;
    bool nan_equal = true;
    Measure measure{};
};

// Histogram of log10 d. Bin 0: d = 0. Bin 1: 0 < d < 1e-40. Bin 2 + k: 10^(k-40) <= d < 10^(k-39),
// k = 0 to
// 79. Bin 82: 1e40 <= d < infinity. Bin 83: d infinite.
inline constexpr int kFirstDecade = -40;
inline constexpr int kDecades = 80;
inline constexpr std::size_t kHistogramBins = kDecades + 4;
using Histogram = std::array<std::uint64_t, kHistogramBins>;

// The decades' edges 1e-40 … 1e40, correctly rounded, and tables from d's exponent to its bin.
struct HistogramTables {
    std::array<double, kDecades + 1> edges;
    std::array<std::uint8_t, 2048> bin;  // bin of the smallest d with this biased exponent
    // d at or above it is one bin further (a binade meets at most one edge)
    std::array<double, 2048> next;
};
const HistogramTables& histogram_tables();
[[nodiscard]] std::size_t histogram_bin(double d);  // d >= 0, not NaN

inline constexpr std::uint64_t kNowhere = std::numeric_limits<std::uint64_t>::max();

// Of one stretch of scalars; stretches merge into fields. Indices are scalar indices in the field.
struct DifferenceStats {
    std::uint64_t scalars = 0;
    std::uint64_t different = 0;
    std::uint64_t infinite = 0;           // pairs with d infinite (all of them different)
    std::uint64_t first = kNowhere;       // first scalar that differs
    double max_abs = 0;                   // largest d, of all scalars
    std::uint64_t max_abs_at = kNowhere;  // first scalar that has it; kNowhere while max_abs is 0
    double max_rel = 0;  // largest d / |a| rounded to float64; infinite for a = 0 or d infinite
    std::uint64_t max_rel_at = kNowhere;
    double largest = 0;                // largest finite |a|
    double sum_squares = 0;            // of finite d, all scalars
    double sum_squares_different = 0;  // of finite d, scalars that differ
    double max_rel_different = 0;      // as max_rel, over scalars that differ
    std::uint64_t max_rel_different_at = kNowhere;
    Histogram all{};   // all scalars
    Histogram over{};  // scalars that differ

    // Exact, except for the two sums; ties go to the smaller index.
    void merge(const DifferenceStats& later);
};

// Adds n scalars, dense and native, the first of which has the given index, to the statistics. The
// caller holds a FloatEnvironment(to_nearest). Every backend gives the same counts, places, maxima
// and histograms; the sums may differ in their last bits.
struct DifferenceKernels {
    void (*f32)(const float* a, const float* b, std::size_t n, std::uint64_t index,
                const DifferenceRule& rule, DifferenceStats* stats);
    void (*f64)(const double* a, const double* b, std::size_t n, std::uint64_t index,
                const DifferenceRule& rule, DifferenceStats* stats);
};
extern const DifferenceKernels kPortableDifference;
#if defined(TWINRUN_X86)
extern const DifferenceKernels kAvx2Difference;
extern const DifferenceKernels kAvx512Difference;
#endif
// 64-bit integers: d is the exact difference, rounded once.
void portable_difference_i64(const std::int64_t* a, const std::int64_t* b, std::size_t n, std::uint64_t index,
                             const DifferenceRule& rule, DifferenceStats* stats);
void portable_difference_u64(const std::uint64_t* a, const std::uint64_t* b, std::size_t n,
                             std::uint64_t index, const DifferenceRule& rule, DifferenceStats* stats);

// 64-bit numbers of two types of f64, i64 and u64, compared as the real numbers that they are: d is
// the exact difference, rounded once.
void mixed_difference(ComputeType type_a, const void* a, ComputeType type_b, const void* b, std::size_t n,
                      std::uint64_t index, const DifferenceRule& rule, DifferenceStats* stats);
// Whether compare_elements() takes scalars of these types: one type, or two of f64, i64 and u64.
[[nodiscard]] bool comparable(DType a, DType b);

// Floating-point scalars of type `scalar`, loaded as float or double, under a measure that is not
// plain.
void measured_difference(DType scalar, const float* a, const float* b, std::size_t n, std::uint64_t index,
                         const DifferenceRule& rule, DifferenceStats* stats);
void measured_difference(DType scalar, const double* a, const double* b, std::size_t n, std::uint64_t index,
                         const DifferenceRule& rule, DifferenceStats* stats);
// Values of `scalar` between a and b, both finite and exact in that type: how many steps of
// nextafter part them.
[[nodiscard]] std::uint64_t ulps_apart(DType scalar, double a, double b);

// difference_dispatch.cpp
[[nodiscard]] const DifferenceKernels& difference_kernels(Backend backend = active_backend());

// Compares count scalars, from scalar `first` of each view (their dtypes are comparable(), strides
// and byte orders need not be the same); the first has the given index in the field. Sets the
// floating-point environment. Scalars of two types have no other measure than a plain one.
void compare_elements(const DifferenceKernels& kernels, const ElementView& a, const ElementView& b,
                      std::uint64_t first, std::uint64_t count, std::uint64_t index,
                      const DifferenceRule& rule, DifferenceStats* stats);

}  // namespace twinrun
