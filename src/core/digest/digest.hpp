// Digests of chunks and the residues of their elements.
//
// The digest of a block (4096 bytes of consecutive elements) is D = sum_i r_i q_i mod p over its
// cells q_i, with fixed pseudo-random coefficients r_i; blocks join into a chunk by Horner's rule
// with the factor RHO. D is linear in the cells, so two digests and the residues of two runs
// together prove how far the elements lie apart.
//
// A chunk has a fine and a coarse digest (16 bytes). Everything here is a pure function and safe to
// call from any number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "element/cell.hpp"
#include "element/convert.hpp"
#include "element/tolerance.hpp"
#include "platform/backend.hpp"

namespace twinrun {

inline constexpr std::size_t kBlockBytes = 4096;
inline constexpr std::size_t kSmallestChunk = 4096;
inline constexpr std::size_t kLargestChunk = 1 << 20;
inline constexpr std::size_t kResidueLine = 64;  // residues come in lines of 64 bytes

// The factor that joins blocks into chunks: splitmix64(2^32) mod p.
inline constexpr std::uint64_t kRho = splitmix64(1ULL << 32) % ((1ULL << 61) - 1);

// Coefficient of the scalar at this position of its block: 60 bits, odd.
TWR_HOST_DEVICE constexpr std::uint64_t coefficient(std::uint64_t position) {
    return (splitmix64(position) & ((1ULL << 60) - 1)) | 1;
}

enum class DigestKind : std::uint8_t {
    linear = 0,  // fine and coarse, as above
    // Rounded values, 16-byte blocks chained through 128-bit Murmur3F (Middleware '24).
    published = 1,
};

// linear: {fine, coarse}. published: the two halves of the 128-bit hash.
struct ChunkDigest {
    std::uint64_t fine = 0;
    std::uint64_t coarse = 0;
    bool operator==(const ChunkDigest&) const = default;
};

// Counts that a pass over the elements makes besides digests.
struct ElementCounts {
    std::uint64_t nans = 0;
    std::uint64_t tokens = 0;  // values that are tokens: without a fine cell, NaN included
    void add(const ElementCounts& other) {
        nans += other.nans;
        tokens += other.tokens;
    }
};

// Residues: within a line, scalar j of the line's 512 / bits scalars has its residue in 64-bit word
// j % 8 (little-endian), at bit bits * (j / 8). A block begins a new line; the unused rest of its
// last line is zero.
[[nodiscard]] constexpr std::size_t residue_bytes(std::size_t scalars, unsigned bits) {
    return (scalars * bits + 511) / 512 * kResidueLine;
}

// ---- what a backend provides ----

struct BlockDigest {
    std::uint64_t fine = 0;
    std::uint64_t coarse = 0;
    ElementCounts counts;
};

// The verdict of the residues of two runs about one block.
struct SketchBlock {
    std::uint64_t correction = 0;           // sum_i r_i c_i mod p
    std::uint32_t beyond = 0;               // scalars with |c| > 7 or, at 2 bits, > 1: no estimate
    std::array<std::uint32_t, 8> counts{};  // scalars with |c| = 0 to 7
};

// Kernels of one backend. x: n dense native scalars of one block (n at most 4096 / scalar size of
// the dtype). residues: residue_bytes(n, bits) bytes, or null at 0 bits. The caller holds a
// FloatEnvironment: downward for tokens and absolute rules, to nearest for relative ones
// (environment_of).
struct DigestKernels {
    void (*block_f32)(const float* x, std::size_t n, const CellRule& rule, BlockDigest* out,
                      std::byte* residues);
    void (*block_f64)(const double* x, std::size_t n, const CellRule& rule, BlockDigest* out,
                      std::byte* residues);
    // The bits of 64-bit integers under the rule of words.
    void (*block_words)(const std::uint64_t* x, std::size_t n, BlockDigest* out);
    void (*sketch)(const std::byte* a, const std::byte* b, std::size_t n, unsigned bits, SketchBlock* out);
    // Booleans, integers of up to 32 bits and bfloat16, as they are stored, under the exact rule of
    // their type: n scalars of consecutive blocks, of which only the last may be short. out: one a
    // block. In any environment. Null: the backend has no such kernel, and they are converted.
    void (*stored_blocks)(const std::byte* x, DType scalar, std::size_t n, BlockDigest* out);
    // float16 or bfloat16 as float32, exact; a NaN stays a NaN. Null: load() does so.
    void (*widen)(const std::byte* x, DType scalar, std::size_t n, float* to);
};
extern const DigestKernels kPortableDigest;
#if defined(TWINRUN_X86)
extern const DigestKernels kAvx2Digest;
extern const DigestKernels kAvx512Digest;
#endif

// digest_dispatch.cpp: the kernels of a backend, by default of the active one.
[[nodiscard]] const DigestKernels& digest_kernels(Backend backend = active_backend());

// Portable kernels for 64-bit integers that float64 does not hold exactly.
void portable_block_i64(const std::int64_t* x, std::size_t n, const CellRule& rule, BlockDigest* out,
                        std::byte* residues);
void portable_block_u64(const std::uint64_t* x, std::size_t n, const CellRule& rule, BlockDigest* out,
                        std::byte* residues);

// ---- what other rooms use ----

// The settings under which the digests of a field are made.
struct DigestSettings {
    Tolerance tolerance;
    CellRule rule;
    DigestKind kind = DigestKind::linear;
    // A power of two, 4 KiB to 1 MiB, of the stored scalars' bytes.
    std::uint32_t chunk_bytes = kSmallestChunk;
};

// How a field of one scalar type divides into blocks and chunks.
struct ChunkShape {
    std::size_t block_scalars = 0;  // 4096 / scalar size
    std::size_t chunk_scalars = 0;
    std::size_t blocks_per_chunk = 0;
    std::size_t residue_bytes_per_chunk = 0;  // of a whole chunk; the last one may be shorter
};
[[nodiscard]] ChunkShape chunk_shape(DType scalar, std::uint32_t chunk_bytes, unsigned residue_bits);
[[nodiscard]] std::size_t chunk_residue_bytes(DType scalar, std::size_t scalars, unsigned residue_bits);

// Makes digests of chunks of one view. Holds staging memory: one object a thread.
class Digester {
   public:
    Digester(const DigestSettings& settings, DType scalar, Backend backend = active_backend());

    // Digests of consecutive chunks that start at scalar `first` of the view and hold `count`
    // scalars in all; only the last may be short. residues (may be null): chunk after chunk,
    // densely.
    void chunks(const ElementView& view, std::uint64_t first, std::uint64_t count, ChunkDigest* out,
                std::byte* residues, ElementCounts* counts);

    [[nodiscard]] const ChunkShape& shape() const { return shape_; }

   private:
    void block(const ElementView& view, std::uint64_t first, std::size_t n, BlockDigest* out,
               std::byte* residues);
    void stored_chunks(const std::byte* x, std::uint64_t count, ChunkDigest* out, ElementCounts* counts);

    DigestSettings settings_;
    DType scalar_;
    ChunkShape shape_;
    const DigestKernels* kernels_;
    alignas(64) std::array<std::byte, kBlockBytes * 4> staging_;  // 4096 8-bit scalars as f32
    alignas(64) std::array<std::byte, kBlockBytes> integers_;     // 512 64-bit integers as f64
};

// The verdict of two sketches about one chunk.
struct SketchVerdict {
    bool proven = false;  // every |c| <= widest, and the digests agree with the residues
    // The digests agree with the residues: the counts below are of true cell differences.
    bool consistent = false;
    std::array<std::uint64_t, 8> counts{};  // scalars by |c|
};

// What the residues of all scalars that a digest is of say: they differ by `correction` and have
// these counts by |c|, except for `beyond` scalars, about which nothing is known.
[[nodiscard]] SketchVerdict sketch_verdict(std::uint64_t correction, std::uint64_t beyond,
                                           const std::array<std::uint64_t, 8>& counts, std::int32_t widest,
                                           std::uint64_t fine_a, std::uint64_t fine_b);
// n scalars of one chunk with their fine digests and residues of both runs. widest: from
// proof_reach.
[[nodiscard]] SketchVerdict check_sketch(const DigestKernels& kernels, const ChunkShape& shape, std::size_t n,
                                         unsigned bits, std::int32_t widest, std::uint64_t fine_a,
                                         std::uint64_t fine_b, const std::byte* residues_a,
                                         const std::byte* residues_b);

// The digest of the published method (published.cpp), and its hash of one 16-byte block, which
// takes *seed and replaces it.
void published_block(std::uint64_t first, std::uint64_t second, ChunkDigest* seed);
void published_chunk(const ElementView& view, std::uint64_t first, std::size_t n, const Tolerance& tolerance,
                     ChunkDigest* out);

}  // namespace twinrun
