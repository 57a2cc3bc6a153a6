#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.hpp"
#include "digest/digest.hpp"
#include "digest/field61.hpp"
#include "digest/values.hpp"
#include "platform/float_environment.hpp"

namespace twinrun {

const DigestKernels& digest_kernels(Backend backend) {
#if defined(TWINRUN_X86)
    switch (backend) {
        case Backend::avx512: return kAvx512Digest;
        case Backend::avx2: return kAvx2Digest;
        case Backend::portable: break;
    }
#else
    static_cast<void>(backend);
#endif
    return kPortableDigest;
}

ChunkShape chunk_shape(DType scalar, std::uint32_t chunk_bytes, unsigned residue_bits) {
    ChunkShape shape;
    shape.block_scalars = kBlockBytes / item_bytes(scalar);
    shape.blocks_per_chunk = chunk_bytes / kBlockBytes;
    shape.chunk_scalars = shape.block_scalars * shape.blocks_per_chunk;
    shape.residue_bytes_per_chunk = residue_bytes(shape.block_scalars, residue_bits) * shape.blocks_per_chunk;
    return shape;
}

std::size_t chunk_residue_bytes(DType scalar, std::size_t scalars, unsigned residue_bits) {
    const std::size_t block = kBlockBytes / item_bytes(scalar);
    return scalars / block * residue_bytes(block, residue_bits) +
           residue_bytes(scalars % block, residue_bits);
}

namespace {

// Whether a rule digests scalars of these types as they are stored, and a backend may have a kernel
// that does not convert them.
bool is_stored(const CellRule& rule, DType scalar) {
    if (rule.residue_bits != 0) return false;
    return rule.kind == CellKind::integers || (rule.kind == CellKind::binary32 && scalar == DType::bf16);
}
bool is_in_place(const ElementView& view) { return view.dense() && !view.swap; }

constexpr std::size_t kBlocksTogether = 12;  // a multiple of what kernels take at once, for speed

}  // namespace

Digester::Digester(const DigestSettings& settings, DType scalar, Backend backend)
    : settings_(settings),
      scalar_(scalar),
      shape_(chunk_shape(scalar, settings.chunk_bytes, settings.rule.residue_bits)),
      kernels_(&digest_kernels(backend)) {}

void Digester::block(const ElementView& view, std::uint64_t first, std::size_t n, BlockDigest* out,
                     std::byte* residues) {
    const CellRule& rule = settings_.rule;
    const bool is_half = scalar_ == DType::f16 || scalar_ == DType::bf16;
    if (kernels_->widen != nullptr && is_half && is_in_place(view)) {
        auto* const widened = reinterpret_cast<float*>(staging_.data());
        kernels_->widen(view.base + first * item_bytes(scalar_), scalar_, n, widened);
        return kernels_->block_f32(widened, n, rule, out, residues);
    }
    const void* values = load(view, first, n, staging_.data());
    switch (compute_type(scalar_)) {
        case ComputeType::f32:
            kernels_->block_f32(static_cast<const float*>(values), n, rule, out, residues);
            return;
        case ComputeType::f64:
            kernels_->block_f64(static_cast<const double*>(values), n, rule, out, residues);
            return;
        case ComputeType::i64:
        case ComputeType::u64: break;
    }
    if (rule.kind == CellKind::words)
        return kernels_->block_words(static_cast<const std::uint64_t*>(values), n, out);
    // Other rules of 64-bit integers: as float64 where all of the block are exact in it, otherwise
    // one by one.
    const bool is_signed = compute_type(scalar_) == ComputeType::i64;
    const auto* raw = static_cast<const std::byte*>(values);
    bool exact = true;
    for (std::size_t i = 0; i < n; ++i) {
        double value = 0;
        if (is_signed) {
            std::int64_t x = 0;
            std::memcpy(&x, raw + i * 8, 8);
            constexpr auto limit = static_cast<std::int64_t>(kLargestExactInteger);
            exact = exact && x <= limit && x >= -limit;
            value = static_cast<double>(x);
        } else {
            std::uint64_t x = 0;
            std::memcpy(&x, raw + i * 8, 8);
            exact = exact && x <= kLargestExactInteger;
            value = static_cast<double>(x);
        }
        std::memcpy(integers_.data() + i * 8, &value, 8);
    }
    if (exact) {
        kernels_->block_f64(reinterpret_cast<const double*>(integers_.data()), n, rule, out, residues);
    } else if (is_signed) {
        portable_block_i64(static_cast<const std::int64_t*>(values), n, rule, out, residues);
    } else {
        portable_block_u64(static_cast<const std::uint64_t*>(values), n, rule, out, residues);
    }
}

void Digester::chunks(const ElementView& view, std::uint64_t first, std::uint64_t count, ChunkDigest* out,
                      std::byte* residues, ElementCounts* counts) {
    if (settings_.kind == DigestKind::linear && kernels_->stored_blocks != nullptr &&
        is_stored(settings_.rule, scalar_) && is_in_place(view))
        return stored_chunks(view.base + first * item_bytes(scalar_), count, out, counts);
    const FloatEnvironment guard(environment_of(settings_.rule));
    const std::uint64_t end = first + count;
    const unsigned bits = settings_.rule.residue_bits;
    for (std::uint64_t at = first; at < end; at += shape_.chunk_scalars) {
        const auto in_chunk =
            static_cast<std::size_t>(std::min<std::uint64_t>(shape_.chunk_scalars, end - at));
        if (settings_.kind == DigestKind::published) {
            published_chunk(view, at, in_chunk, settings_.tolerance, out++);
            continue;
        }
        ChunkDigest digest;
        for (std::size_t done = 0; done < in_chunk; done += shape_.block_scalars) {
            const std::size_t n = std::min(shape_.block_scalars, in_chunk - done);
            BlockDigest part;
            block(view, at + done, n, &part, residues);
            digest.fine = add61(multiply61(digest.fine, kRho), part.fine);
            digest.coarse = add61(multiply61(digest.coarse, kRho), part.coarse);
            if (counts != nullptr) counts->add(part.counts);
            if (bits != 0) residues += residue_bytes(n, bits);
        }
        *out++ = digest;
    }
}

void Digester::stored_chunks(const std::byte* x, std::uint64_t count, ChunkDigest* out,
                             ElementCounts* counts) {
    const std::size_t in_block = shape_.block_scalars;
    std::array<BlockDigest, kBlocksTogether> parts;
    ChunkDigest digest;
    std::size_t joined = 0;  // blocks of the chunk
    while (count != 0) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(parts.size() * in_block, count));
        kernels_->stored_blocks(x, scalar_, n, parts.data());
        x += n * item_bytes(scalar_);
        count -= n;
        for (std::size_t b = 0; b < divide_up(n, in_block); ++b) {
            digest.fine = add61(multiply61(digest.fine, kRho), parts[b].fine);
            if (counts != nullptr) counts->add(parts[b].counts);
            const bool is_last = count == 0 && (b + 1) * in_block >= n;
            if (++joined != shape_.blocks_per_chunk && !is_last) continue;
            digest.coarse = digest.fine;
            *out++ = std::exchange(digest, {});
            joined = 0;
        }
    }
}

SketchVerdict sketch_verdict(std::uint64_t correction, std::uint64_t beyond,
                             const std::array<std::uint64_t, 8>& counts, std::int32_t widest,
                             std::uint64_t fine_a, std::uint64_t fine_b) {
    SketchVerdict verdict;
    verdict.counts = counts;
    verdict.consistent = beyond == 0 && subtract61(fine_a, fine_b) == correction;
    verdict.proven = verdict.consistent;
    for (std::size_t c = 0; c < counts.size(); ++c) {
        if (static_cast<std::int32_t>(c) > widest && counts[c] != 0) verdict.proven = false;
    }
    return verdict;
}

SketchVerdict check_sketch(const DigestKernels& kernels, const ChunkShape& shape, std::size_t n,
                           unsigned bits, std::int32_t widest, std::uint64_t fine_a, std::uint64_t fine_b,
                           const std::byte* residues_a, const std::byte* residues_b) {
    std::array<std::uint64_t, 8> counts{};
    std::uint64_t correction = 0;
    std::uint64_t beyond = 0;
    for (std::size_t done = 0; done < n; done += shape.block_scalars) {
        const std::size_t in_block = std::min(shape.block_scalars, n - done);
        SketchBlock block;
        kernels.sketch(residues_a, residues_b, in_block, bits, &block);
        correction = add61(multiply61(correction, kRho), block.correction);
        beyond += block.beyond;
        for (std::size_t c = 0; c < counts.size(); ++c)
            counts[c] += block.counts[c];
        residues_a += residue_bytes(in_block, bits);
        residues_b += residue_bytes(in_block, bits);
    }
    return sketch_verdict(correction, beyond, counts, widest, fine_a, fine_b);
}

}  // namespace twinrun
