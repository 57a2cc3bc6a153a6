#include "sketch/proof.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "element/tolerance.hpp"

namespace twinrun {

namespace {

bool is_published(const FieldMetadata& field) { return field.settings.kind == DigestKind::published; }

// Published digests prove what they were made for, and so anything at least as wide.
ProofReach reach_of(const DigestSettings& settings, const Tolerance& required) {
    if (settings.kind != DigestKind::published)
        return proof_reach(settings.rule, settings.tolerance, required);
    const bool proves = required.atol >= settings.tolerance.atol;
    return {proves, proves, -1};
}

// Number of the widest |c| that a scalar has, plus one; 0: none was proven by residues.
std::size_t cells_apart(const ProvenDrift& proven) {
    std::size_t apart = proven.by_cells.size();
    while (apart != 0 && proven.by_cells[apart - 1] == 0)
        --apart;
    return apart;
}

}  // namespace

std::string why_not_staged(const FieldMetadata& a, const FieldMetadata& b, Method method,
                           const DifferenceRule& rule) {
    if (a.settings.kind != b.settings.kind) return "the runs' digests are of different kinds";
    if (method == Method::published && !is_published(a)) return "the metadata holds no published digests";
    if (a.settings.chunk_bytes != b.settings.chunk_bytes)
        return "the runs' metadata have different chunk sizes";
    if (a.settings.tolerance != b.settings.tolerance)
        return "the runs' metadata were made for different tolerances";
    if (is_exact(a.settings.rule.kind) && is_exact(b.settings.rule.kind) &&
        a.settings.rule.kind != b.settings.rule.kind) {
        return "one run's exact digests are of an earlier kind, as twinrun show says (index or capture it "
               "again)";
    }
    if (a.settings.rule != b.settings.rule) return "the runs' metadata have residues of different widths";
    if (a.order != b.order) return "the runs' arrays are stored in different orders";
    if (!rule.nan_equal && (a.counts.nans != 0 || b.counts.nans != 0)) {
        return "there are NaNs, which are not to be taken for equal";
    }
    if (!rule.nan_equal && is_published(a)) return "published digests do not count NaNs";
    if (reach_of(a.settings, rule.tolerance).usable) return {};
    if (rule.tolerance == Tolerance{} && !is_floating(scalar_type(a.dtype)))
        return "the metadata was made for a tolerance, and integers are compared exactly here";
    return is_published(a) ? "the metadata was made for a wider tolerance"
                           : "the metadata was made for a wider tolerance than the one asked for";
}

bool digests_decide(const FieldMetadata& field, const DifferenceRule& rule) {
    return is_exact(field.settings.rule.kind) && !is_published(field) && rule.tolerance == Tolerance{} &&
           rule.measure.plain();
}

void ProvenDrift::add(std::span<const std::uint64_t, 8> counts) {
    for (std::size_t c = 0; c < by_cells.size(); ++c)
        by_cells[c] += counts[c];
}

std::uint64_t ProvenDrift::scalars() const {
    std::uint64_t all = by_tree;
    for (const std::uint64_t n : by_cells)
        all += n;
    return all;
}

double largest_unread(const ProvenDrift& proven, const Tolerance& required) {
    if (proven.scalars() == 0) return 0;
    if (proven.cell < 0) return 0;  // exact: proven equal
    if (proven.coarse_cell > 0) {
        const std::size_t apart = cells_apart(proven);
        double unread = proven.by_tree != 0 ? proven.coarse_cell : 0;
        // Cells finer than any float64 have no width of their own: what they prove is within the
        // tolerance.
        if (apart != 0) {
            unread =
                std::max(unread, proven.cell > 0 ? static_cast<double>(apart) * proven.cell : required.atol);
        }
        return unread;
    }
    return required.rtol > 0 ? std::numeric_limits<double>::quiet_NaN() : required.atol;
}

double least_unread(const ProvenDrift& proven) {
    const std::size_t apart = cells_apart(proven);
    return proven.cell > 0 && apart > 2 ? static_cast<double>(apart - 2) * proven.cell : 0;
}

double sum_squares_of_all(double read, const ProvenDrift& proven, const Tolerance& required) {
    if (proven.cell < 0 || proven.scalars() == 0) return read;
    if (proven.cell > 0) {
        // A square may be infinite: 0 times that is no number.
        double coarse = 0;
        double cells = 0;
        if (proven.by_tree != 0)
            coarse = static_cast<double>(proven.by_tree) * (proven.coarse_cell * proven.coarse_cell);
        for (std::size_t c = 0; c < proven.by_cells.size(); ++c) {
            if (proven.by_cells[c] == 0) continue;
            const double widest = static_cast<double>(c + 1) * proven.cell;
            cells += static_cast<double>(proven.by_cells[c]) * widest * widest;
        }
        return read + coarse + cells;
    }
    if (required.rtol > 0) return std::numeric_limits<double>::quiet_NaN();
    return read + static_cast<double>(proven.scalars()) * (required.atol * required.atol);
}

LargestOfAll largest_of_all(double read, double unread) {
    if (std::isnan(unread)) return {std::isinf(read) ? read : unread, true};
    return unread > read ? LargestOfAll{unread, true} : LargestOfAll{read, false};
}

ChunkProof::ChunkProof(const FieldMetadata& field, const Tolerance& required)
    : published_(is_published(field)),
      rule_(field.settings.rule),
      scalar_(scalar_type(field.dtype)),
      chunk_bytes_(field.settings.chunk_bytes),
      shape_(field.chunking()),
      scalars_(field.scalars()),
      kernels_(&digest_kernels()) {
    const ProofReach reach = reach_of(field.settings, required);
    if (!reach.usable) return;
    by_tree_ = reach.coarse_proves;
    widest_ = reach.widest;
    by_residues_ = rule_.residue_bits != 0 && field.section_bytes(Section::fine) != 0;
}

Result<ChunkProof> ChunkProof::between(const FieldMetadata& a, const FieldMetadata& b,
                                       const DifferenceRule& rule) {
    if (a.dtype != b.dtype || a.items() != b.items())
        return Error{ErrorCode::mismatch, "the fields have different types or sizes"};
    const Method method = is_published(a) ? Method::published : Method::staged;
    if (std::string why = why_not_staged(a, b, method, rule); !why.empty())
        return Error{ErrorCode::mismatch, std::move(why)};
    return ChunkProof(a, rule.tolerance);
}

std::uint64_t ChunkProof::scalars(const Range& chunks) const {
    return std::min(chunks.end * shape_.chunk_scalars, scalars_) - chunks.begin * shape_.chunk_scalars;
}

std::uint64_t ChunkProof::scalars(std::span<const Range> chunks) const {
    std::uint64_t n = 0;
    for (const Range& r : chunks)
        n += scalars(r);
    return n;
}

bool ChunkProof::digests_prove(const ChunkDigest& a, const ChunkDigest& b) const {
    return by_tree_ && (published_ ? a == b : a.coarse == b.coarse);
}

SketchVerdict ChunkProof::residues_say(std::uint64_t chunk, std::uint64_t fine_a, std::uint64_t fine_b,
                                       const std::byte* residues_a, const std::byte* residues_b) const {
    return check_sketch(*kernels_, shape_, scalars(chunk), rule_.residue_bits, widest_, fine_a, fine_b,
                        residues_a, residues_b);
}

SketchVerdict ChunkProof::residues_say(const BucketResidues& residues, std::uint64_t fine_a,
                                       std::uint64_t fine_b) const {
    return sketch_verdict(residues.correction, residues.beyond, residues.counts, widest_, fine_a, fine_b);
}

DeviceSketchItem ChunkProof::device_item(const Range& chunks) const {
    DeviceSketchItem item;
    item.scalars = scalars(chunks);
    item.scalar = scalar_;
    item.chunk_bytes = chunk_bytes_;
    item.residue_bits = rule_.residue_bits;
    item.widest = widest_;
    return item;
}

ProvenDrift ChunkProof::drift() const {
    ProvenDrift drift;
    if (rule_.kind == CellKind::absolute) {
        drift.cell = std::ldexp(1.0, rule_.fine_exponent);
        drift.coarse_cell = std::ldexp(1.0, rule_.coarse_exponent());
    } else if (is_exact(rule_.kind) && !published_) {
        drift.cell = -1;
    }
    return drift;
}

ChunkDigest chunk_digest(DigestKind kind, std::span<const std::uint64_t> leaves,
                         std::span<const std::uint64_t> fine, std::uint64_t chunk) {
    if (kind == DigestKind::published) return {leaves[2 * chunk], leaves[2 * chunk + 1]};
    return {fine.empty() ? 0 : fine[chunk], leaves[chunk]};
}

}  // namespace twinrun
