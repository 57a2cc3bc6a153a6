#include "digest/coefficients.hpp"

#include "digest/field61.hpp"

namespace twinrun {

namespace {
Coefficients make() {
    Coefficients c{};
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kLargestBlock; ++i) {
        const std::uint64_t r = coefficient(i);
        c.r[i] = r;
        c.low48[i] = r & ((1ULL << kLowBits) - 1);
        c.high12[i] = r >> kLowBits;
        c.halves[i] = (r & ((1ULL << 30) - 1)) | (r >> 30 << 32);
        if (i % 8 == 0) c.sums[i / 8] = sum;
        sum = add61(sum, reduce61(r));
    }
    c.sums[kLargestBlock / 8] = sum;
    return c;
}
}  // namespace

const Coefficients& coefficients() {
    static const Coefficients once = make();
    return once;
}

std::uint64_t coefficients_until(std::size_t n) {
    const Coefficients& table = coefficients();
    std::uint64_t sum = table.sums[n / 8];
    for (std::size_t i = n / 8 * 8; i < n; ++i)
        sum = add61(sum, table.r[i]);
    return sum;
}

}  // namespace twinrun
