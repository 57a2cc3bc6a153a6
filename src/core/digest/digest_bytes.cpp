#include "digest/digest_bytes.hpp"

#include "digest/field61.hpp"

namespace twinrun {

namespace {

template <class All, class T>
All made() {
    // A coefficient has 60 bits, and the last digit a carry.
    static_assert(All::kBits * All::kPlanes >= 60 &&
                  60 - All::kBits * (All::kPlanes - 1) < 8 * sizeof(T) - 1);
    All digits{};
    for (std::size_t i = 0; i < kLargestBlock; ++i) {
        auto left = static_cast<std::int64_t>(coefficients().r[i]);
        for (unsigned k = 0; k < All::kPlanes; ++k) {
            constexpr std::int64_t half = 1LL << (All::kBits - 1);
            const bool is_last = k + 1 == All::kPlanes;
            const std::int64_t digit = is_last ? left : ((left + half) & (2 * half - 1)) - half;
            digits.plane[k][i] = static_cast<T>(digit);
            left = (left - digit) >> All::kBits;
        }
    }
    return digits;
}

// sum_i r_i x_i.
std::uint64_t joined(std::span<const std::int64_t> sums, unsigned bits) {
    std::uint64_t all = 0;
    for (std::size_t k = sums.size(); k-- > 0;)
        all = add61(multiply61(all, 1ULL << bits), signed61(sums[k]));
    return all;
}

}  // namespace

const ByteDigits8& byte_digits_8() {
    static const auto once = made<ByteDigits8, std::int8_t>();
    return once;
}
const ByteDigits7& byte_digits_7() {
    static const auto once = made<ByteDigits7, std::int8_t>();
    return once;
}
const Digits16& digits_16() {
    static const auto once = made<Digits16, std::int16_t>();
    return once;
}

void take_bytes(std::span<const std::int64_t> sums, unsigned bits, DType scalar, std::size_t n,
                BlockDigest* out) {
    std::uint64_t sum = joined(sums, bits);
    if (scalar == DType::i8) sum = subtract61(sum, multiply61(coefficients_until(n), 1 << 7));
    *out = {sum, sum, {}};
}

void take_16(std::span<const std::int64_t> sums, DType scalar, std::size_t n, std::uint64_t nans,
             BlockDigest* out) {
    std::uint64_t sum = joined(sums, Digits16::kBits);
    if (scalar == DType::u16) sum = add61(sum, multiply61(coefficients_until(n), 1 << 15));
    // The upper half of a float32.
    if (scalar == DType::bf16) sum = multiply61(sum, 1 << 16);
    *out = {sum, sum, {nans, 0}};
}

}  // namespace twinrun
