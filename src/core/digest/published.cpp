// The digest of the published method (Tan et al., Middleware '24, section 2.4): values rounded to a
// grid as wide as the error bound, hashed in blocks of 16 bytes by 128-bit Murmur3F (Appleby's
// MurmurHash3_x64_128), the digest of a block being the seed of the next.
//
// Two repairs, so that it never misses a difference: the grid is narrower than the bound by 2^-11,
// which covers the rounding of x / grid; and a value too far from zero for that (or not finite) is
// hashed by its own bits, marked in the seed so that it cannot pass for a cell number.
#include "digest/published.hpp"

#include <cstring>

#include "digest/digest.hpp"

namespace twinrun {

void published_block(std::uint64_t first, std::uint64_t second, ChunkDigest* seed) {
    murmur3f(first, second, seed->fine, seed->coarse);
}

void published_chunk(const ElementView& view, std::uint64_t first, std::size_t n, const Tolerance& tolerance,
                     ChunkDigest* out) {
    const double inverse = published_inverse(tolerance.atol);
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
                    bool is_own = false;
                    block[j] = published_number(x, own, inverse, is_own);
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
                if (type == ComputeType::f64) std::memcpy(&x, &own, 8);
                bool is_own = false;
                block[j] = published_number(x, own, type, inverse, is_own);
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
