// The reference kernels: element by element, as digest.hpp and element/cell.hpp define it. Every
// other backend equals these bit for bit.
#include <cstring>

#include "digest/coefficients.hpp"
#include "digest/digest.hpp"
#include "digest/field61.hpp"
#include "digest/values.hpp"

namespace twinrun {

namespace {

void put_residue(std::byte* residues, std::size_t i, unsigned bits, std::uint64_t value) {
    const std::size_t per_line = 512 / bits;
    const std::size_t j = i % per_line;
    const std::size_t bit = bits * (j / 8);
    std::byte* at = residues + i / per_line * kResidueLine + (j % 8) * 8 + bit / 8;
    *at |= static_cast<std::byte>((value & ((1U << bits) - 1)) << (bit % 8));
}

std::uint64_t get_residue(const std::byte* residues, std::size_t i, unsigned bits) {
    const std::size_t per_line = 512 / bits;
    const std::size_t j = i % per_line;
    const std::size_t bit = bits * (j / 8);
    const std::byte at = residues[i / per_line * kResidueLine + (j % 8) * 8 + bit / 8];
    return (static_cast<std::uint64_t>(at) >> (bit % 8)) & ((1U << bits) - 1);
}

template <class T>
void block(const T* x, std::size_t n, const CellRule& rule, BlockDigest* out, std::byte* residues) {
    const Coefficients& table = coefficients();
    const unsigned bits = rule.residue_bits;
    if (bits != 0) std::memset(residues, 0, residue_bytes(n, bits));
    BlockDigest digest;
    for (std::size_t i = 0; i < n; ++i) {
        T value;
        // x may be unaligned
        std::memcpy(&value, reinterpret_cast<const std::byte*>(x) + i * sizeof(T), sizeof(T));
        const std::uint64_t r = table.r[i];
        const Cell fine = cell_for(value, rule, 0);
        digest.fine = add61(digest.fine, multiply61(r, field_value(fine)));
        if (rule.coarse_shift != 0) {
            const Cell coarse = cell_for(value, rule, rule.coarse_shift);
            digest.coarse = add61(digest.coarse, multiply61(r, field_value(coarse)));
        }
        if (fine.token) ++digest.counts.tokens;
        if (value != value) ++digest.counts.nans;
        if (bits != 0) put_residue(residues, i, bits, fine.bits);
    }
    if (rule.coarse_shift == 0) digest.coarse = digest.fine;
    *out = digest;
}

void sketch(const std::byte* a, const std::byte* b, std::size_t n, unsigned bits, SketchBlock* out) {
    const Coefficients& table = coefficients();
    const std::uint64_t modulus = 1ULL << bits;
    const std::uint64_t half = modulus / 2;
    SketchBlock result;
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t wrapped = (get_residue(a, i, bits) - get_residue(b, i, bits)) & (modulus - 1);
        const auto c =
            static_cast<std::int64_t>(wrapped) - (wrapped >= half ? static_cast<std::int64_t>(modulus) : 0);
        const auto size = static_cast<std::uint64_t>(c < 0 ? -c : c);
        if (size >= half) {  // the most negative one has no positive twin: its sign is unknown
            ++result.beyond;
        } else {
            ++result.counts[size];
        }
        result.correction = add61(result.correction, multiply61(table.r[i], signed61(c)));
    }
    *out = result;
}

}  // namespace

namespace {

void block_words(const std::uint64_t* x, std::size_t n, BlockDigest* out) {
    CellRule rule;
    rule.kind = CellKind::words;
    block(x, n, rule, out, nullptr);
}

}  // namespace

const DigestKernels kPortableDigest = {block<float>, block<double>, block_words, sketch, nullptr, nullptr};

void portable_block_i64(const std::int64_t* x, std::size_t n, const CellRule& rule, BlockDigest* out,
                        std::byte* residues) {
    block(x, n, rule, out, residues);
}
void portable_block_u64(const std::uint64_t* x, std::size_t n, const CellRule& rule, BlockDigest* out,
                        std::byte* residues) {
    block(x, n, rule, out, residues);
}

}  // namespace twinrun
