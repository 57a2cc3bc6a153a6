#include <algorithm>
#include <bit>
#include <cstring>

#include "difference/difference.hpp"
#include "platform/float_environment.hpp"

namespace twinrun {

const DifferenceKernels& difference_kernels(Backend backend) {
#if defined(TWINRUN_X86)
    switch (backend) {
        case Backend::avx512: return kAvx512Difference;
        case Backend::avx2: return kAvx2Difference;
        case Backend::portable: break;
    }
#else
    static_cast<void>(backend);
#endif
    return kPortableDifference;
}

namespace {

// To float64 if every value lies in [-2^51, 2^51) (unsigned: below 2^51); otherwise returns false,
// with `to` unspecified. Added to the bits of 1.5 * 2^52, an integer stands in the low bits of a
// float64: this way every compiler forms vectors of it. Values between 2^51 and 2^53 are exact too,
// but go the slow way to the same result.
template <class Integer>
bool to_float64(const std::byte* from, std::size_t n, std::byte* to) {
    constexpr double origin = 0x1.8p52;
    constexpr auto origin_bits = std::bit_cast<std::uint64_t>(origin);
    constexpr std::uint64_t offset = std::is_signed_v<Integer> ? 1ULL << 51 : 0;
    constexpr unsigned bits = std::is_signed_v<Integer> ? 52 : 51;
    std::uint64_t beyond = 0;
    for (std::size_t i = 0; i < n; ++i) {
        std::uint64_t value;
        std::memcpy(&value, from + i * 8, 8);
        beyond |= (value + offset) >> bits;
        const std::uint64_t sum = value + origin_bits;
        double number;
        std::memcpy(&number, &sum, 8);
        number -= origin;
        std::memcpy(to + i * 8, &number, 8);
    }
    return beyond == 0;
}

// scalars: 16 KiB of 64-bit types; up to four copies are on the stack
constexpr std::uint64_t kPiece = 2048;

using Staging = std::array<std::byte, kPiece * 8>;

template <class Integer, class Portable>
void compare_integers(const DifferenceKernels& kernels, const void* a, const void* b, std::size_t n,
                      std::uint64_t place, const DifferenceRule& rule, DifferenceStats* stats,
                      Portable portable) {
    alignas(64) Staging numbers_a;
    alignas(64) Staging numbers_b;
    if (to_float64<Integer>(static_cast<const std::byte*>(a), n, numbers_a.data()) &&
        to_float64<Integer>(static_cast<const std::byte*>(b), n, numbers_b.data())) {
        kernels.f64(reinterpret_cast<const double*>(numbers_a.data()),
                    reinterpret_cast<const double*>(numbers_b.data()), n, place, rule, stats);
    } else {
        portable(static_cast<const Integer*>(a), static_cast<const Integer*>(b), n, place, rule, stats);
    }
}

// Scalars of two types of f64, i64 and u64, as float64 where this holds all values of the piece.
bool as_float64(ComputeType type, const void* from, std::size_t n, std::byte* to, const void** found) {
    *found = type == ComputeType::f64 ? from : to;
    if (type == ComputeType::i64) return to_float64<std::int64_t>(static_cast<const std::byte*>(from), n, to);
    if (type == ComputeType::u64)
        return to_float64<std::uint64_t>(static_cast<const std::byte*>(from), n, to);
    return true;
}

void compare_mixed(const DifferenceKernels& kernels, ComputeType type_a, const void* a, ComputeType type_b,
                   const void* b, std::size_t n, std::uint64_t place, const DifferenceRule& rule,
                   DifferenceStats* stats) {
    alignas(64) Staging numbers_a;
    alignas(64) Staging numbers_b;
    const void* of_a = nullptr;
    const void* of_b = nullptr;
    if (as_float64(type_a, a, n, numbers_a.data(), &of_a) &&
        as_float64(type_b, b, n, numbers_b.data(), &of_b)) {
        kernels.f64(static_cast<const double*>(of_a), static_cast<const double*>(of_b), n, place, rule,
                    stats);
    } else {
        mixed_difference(type_a, a, type_b, b, n, place, rule, stats);
    }
}

}  // namespace

void compare_elements(const DifferenceKernels& kernels, const ElementView& a, const ElementView& b,
                      std::uint64_t first, std::uint64_t count, std::uint64_t index,
                      const DifferenceRule& rule, DifferenceStats* stats) {
    const FloatEnvironment guard(Rounding::to_nearest);
    alignas(64) Staging staging_a;
    alignas(64) Staging staging_b;
    for (std::uint64_t done = 0; done < count; done += kPiece) {
        const auto n = static_cast<std::size_t>(std::min(kPiece, count - done));
        const void* at_a = load(a, first + done, n, staging_a.data());
        const void* at_b = load(b, first + done, n, staging_b.data());
        const std::uint64_t place = index + done;
        if (a.scalar != b.scalar) {
            compare_mixed(kernels, compute_type(a.scalar), at_a, compute_type(b.scalar), at_b, n, place, rule,
                          stats);
            continue;
        }
        if (is_floating(a.scalar) && !rule.measure.plain()) {
            if (compute_type(a.scalar) == ComputeType::f32) {
                measured_difference(a.scalar, static_cast<const float*>(at_a),
                                    static_cast<const float*>(at_b), n, place, rule, stats);
            } else {
                measured_difference(a.scalar, static_cast<const double*>(at_a),
                                    static_cast<const double*>(at_b), n, place, rule, stats);
            }
            continue;
        }
        switch (compute_type(a.scalar)) {
            case ComputeType::f32:
                kernels.f32(static_cast<const float*>(at_a), static_cast<const float*>(at_b), n, place, rule,
                            stats);
                break;
            case ComputeType::f64:
                kernels.f64(static_cast<const double*>(at_a), static_cast<const double*>(at_b), n, place,
                            rule, stats);
                break;
            case ComputeType::i64:
                compare_integers<std::int64_t>(kernels, at_a, at_b, n, place, rule, stats,
                                               portable_difference_i64);
                break;
            case ComputeType::u64:
                compare_integers<std::uint64_t>(kernels, at_a, at_b, n, place, rule, stats,
                                                portable_difference_u64);
                break;
        }
    }
}

}  // namespace twinrun
