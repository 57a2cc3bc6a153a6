// The digest of the published method (Tan et al., Middleware '24, section 2.4): values rounded to a grid as wide as the
// error bound, hashed in blocks of 16 bytes by 128-bit Murmur3F (Appleby's MurmurHash3_x64_128), the digest of a block
// being the seed of the next.
//
// Two repairs, so that it never misses a difference: the grid is narrower than the bound by 2^-11, which covers the
// rounding of x / grid; and a value too far from zero for that (or not finite) is hashed by its own bits, marked in the
// seed so that it cannot pass for a cell number.
#include <cmath>
#include <cstring>

#include "digest/digest.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t rotate_left(std::uint64_t x, int r) { return (x << r) | (x >> (64 - r)); }

constexpr std::uint64_t final_mix(std::uint64_t k) {
    k ^= k >> 33;
    k *= 0xFF51AFD7ED558CCDULL;
    k ^= k >> 33;
    k *= 0xC4CEB9FE1A85EC53ULL;
    return k ^ (k >> 33);
}

// Murmur3F of one 16-byte block with a 128-bit seed.
void murmur3f(std::uint64_t k1, std::uint64_t k2, std::uint64_t& h1, std::uint64_t& h2) {
    constexpr std::uint64_t c1 = 0x87C37B91114253D5ULL;
    constexpr std::uint64_t c2 = 0x4CF5AD432745937FULL;
    h1 ^= rotate_left(k1 * c1, 31) * c2;
    h1 = (rotate_left(h1, 27) + h2) * 5 + 0x52DCE729;
    h2 ^= rotate_left(k2 * c2, 33) * c1;
    h2 = (rotate_left(h2, 31) + h1) * 5 + 0x38495AB5;
    h1 ^= 16;
    h2 ^= 16;
    h1 += h2;
    h2 += h1;
    h1 = final_mix(h1);
    h2 = final_mix(h2);
    h1 += h2;
    h2 += h1;
}

// The number to hash for x, and whether it is x's own bits.
template <class Number, class Own>
Number rounded(double x, Own own, double inverse, double limit, bool& is_own) {
    const double scaled = x * inverse;
    if (inverse == 0 || !(std::fabs(scaled) < limit)) {
        is_own = true;
        return static_cast<Number>(x == 0 ? 0 : own);
    }
    is_own = false;
    return static_cast<Number>(static_cast<std::int64_t>(scaled + (scaled < 0 ? -0.5 : 0.5)));
}

}  // namespace

void published_block(std::uint64_t first, std::uint64_t second, ChunkDigest* seed) {
    murmur3f(first, second, seed->fine, seed->coarse);
}

void published_chunk(const ElementView& view, std::uint64_t first, std::size_t n, const Tolerance& tolerance,
                     ChunkDigest* out) {
    const double grid = tolerance.atol * (1 - 0x1p-11);
    // Below the normal numbers 1 / grid overflows, to the largest number or to infinity as the rounding mode has it.
    const double inverse = grid >= 0x1p-1022 ? 1 / grid : 0;
    const ComputeType type = compute_type(view.scalar);
    const std::size_t piece = kBlockBytes / item_bytes(view.scalar);
    alignas(64) std::array<std::byte, kBlockBytes * 4> staging;
    std::uint64_t h1 = 0;
    std::uint64_t h2 = 0;
    for (std::size_t done = 0; done < n; done += piece) {
        const std::size_t count = std::min(piece, n - done);
        const auto* raw = static_cast<const std::byte*>(load(view, first + done, count, staging.data()));
        if (type == ComputeType::f32) {
            for (std::size_t i = 0; i < count; i += 4) {
                std::array<std::uint32_t, 4> block{};
                std::uint64_t marks = 0;
                for (std::size_t j = 0; j < 4 && i + j < count; ++j) {
                    float x = 0;
                    std::uint32_t own = 0;
                    std::memcpy(&x, raw + (i + j) * 4, 4);
                    std::memcpy(&own, &x, 4);
                    if (x != x) own = 0x7FC00000U;
                    bool is_own = false;
                    block[j] =
                        rounded<std::uint32_t>(static_cast<double>(x), own, inverse, 0x1p31 - 1, is_own);
                    marks |= static_cast<std::uint64_t>(is_own) << j;
                }
                std::uint64_t k1 = 0;
                std::uint64_t k2 = 0;
                std::memcpy(&k1, block.data(), 8);
                std::memcpy(&k2, block.data() + 2, 8);
                murmur3f(k1, k2, h1, h2);
                h1 ^= marks;
            }
            continue;
        }
        for (std::size_t i = 0; i < count; i += 2) {
            std::array<std::uint64_t, 2> block{};
            std::uint64_t marks = 0;
            for (std::size_t j = 0; j < 2 && i + j < count; ++j) {
                std::uint64_t own = 0;
                std::memcpy(&own, raw + (i + j) * 8, 8);
                double x = 0;
                double step = inverse;
                if (type == ComputeType::f64) {
                    std::memcpy(&x, &own, 8);
                    if (x != x) own = 0x7FF8000000000000ULL;
                } else {
                    const auto as_signed = static_cast<std::int64_t>(own);
                    const bool negative = type == ComputeType::i64 && as_signed < 0;
                    x = negative ? static_cast<double>(as_signed) : static_cast<double>(own);
                    if ((negative ? ~own + 1 : own) > kLargestExactInteger) step = 0;  // by its own bits
                    if (step == 0) x = 1;  // so that only a true zero is taken for zero below
                    if (own == 0) x = 0;
                }
                bool is_own = false;
                block[j] = rounded<std::uint64_t>(x, own, step, 0x1p40, is_own);
                marks |= static_cast<std::uint64_t>(is_own) << j;
            }
            murmur3f(block[0], block[1], h1, h2);
            h1 ^= marks;
        }
    }
    out->fine = h1;
    out->coarse = h2;
}

}  // namespace twinrun
