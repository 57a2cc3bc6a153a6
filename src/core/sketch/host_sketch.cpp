#include "sketch/host_sketch.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "digest/digest.hpp"
#include "sketch/proof.hpp"
#include "tree/walk.hpp"

namespace twinrun {

namespace {

Error no_memory() { return Error{ErrorCode::out_of_memory, "not enough memory for a sketch"}; }

void size_for(const FieldMetadata& field, BuiltField& built) {
    built.tree.resize(field.section_bytes(Section::tree) / 8);
    built.fine.resize(field.section_bytes(Section::fine) / 8);
    built.residues.resize(field.section_bytes(Section::residues));
}

}  // namespace

HostSketch::HostSketch(const FieldMetadata& field, BuiltField built)
    : field_(field), built_(std::move(built)) {
    field_.counts = built_.counts;
    field_.largest_sampled = built_.largest;
}

std::uint64_t HostSketch::bytes() const {
    return built_.tree.size() * 8 + built_.fine.size() * 8 + built_.residues.size();
}

Result<HostSketch> HostSketch::build(const FieldMetadata& field, ElementSource& source,
                                     const StreamOptions& options) try {
    BuiltField built;
    TWR_CHECK(build_in_memory(field, source, options, built));
    return HostSketch(field, std::move(built));
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<HostSketch> HostSketch::load(MetadataFile& file, std::size_t number) try {
    const FieldMetadata& field = file.directory().fields[number];
    BuiltField built;
    size_for(field, built);
    TWR_CHECK(file.read(number, Section::tree, 0, std::as_writable_bytes(std::span(built.tree))));
    TWR_CHECK(file.read(number, Section::fine, 0, std::as_writable_bytes(std::span(built.fine))));
    TWR_CHECK(file.read(number, Section::residues, 0, built.residues));
    if constexpr (std::endian::native == std::endian::big) {
        for (auto* words : {&built.tree, &built.fine}) {
            for (auto& w : *words)
                w = __builtin_bswap64(w);
        }
    }
    built.counts = field.counts;
    built.largest = field.largest_sampled;
    return HostSketch(field, std::move(built));
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<HostSketch> HostSketch::download(const DeviceSketch& sketch) try {
    BuiltField built;
    TWR_CHECK(sketch.download(built));
    return HostSketch(sketch.field(), std::move(built));
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<SketchComparison> HostSketch::compare(const HostSketch& b, const DifferenceRule& rule) const try {
    const FieldMetadata& field = field_;
    if (field.dtype != b.field_.dtype || field.items() != b.field_.items()) {
        return Error{ErrorCode::mismatch, "the fields have different types or sizes"};
    }
    const bool published = field.settings.kind == DigestKind::published;
    if (std::string why =
            why_not_staged(field, b.field_, published ? Method::published : Method::staged, rule);
        !why.empty()) {
        return Error{ErrorCode::mismatch, std::move(why)};
    }
    SketchComparison found;
    const std::uint64_t chunks = found.chunks = field.chunks();
    if (chunks == 0) return found;
    if (chunks >> 32 != 0)
        return Error{ErrorCode::unsupported, "a field of more than 2^32 chunks: use larger ones"};
    const CellRule& cells = field.settings.rule;
    const ProofReach reach = proof_reach(cells, field.settings.tolerance, rule.tolerance);
    const bool by_residues = !built_.fine.empty() && cells.residue_bits != 0;
    const ChunkShape shape = field.chunking();
    const auto scalars_of = [&](std::uint64_t c) {
        return std::min<std::uint64_t>(shape.chunk_scalars, field.scalars() - c * shape.chunk_scalars);
    };
    std::vector<Range> flagged{{0, chunks}};
    if (published || reach.coarse_proves) {
        const std::size_t words = node_words(field.settings.kind);
        MemoryNodes nodes_a(built_.tree, words);
        MemoryNodes nodes_b(b.built_.tree, words);
        TWR_TRY(WalkResult walked, walk_trees(field.tree(), words, nodes_a, nodes_b));
        flagged = std::move(walked.chunks);
    }
    found.by_tree = field.scalars();
    const DigestKernels& kernels = digest_kernels();
    for (const Range& range : flagged) {
        for (std::uint64_t c = range.begin; c < range.end; ++c) {
            const auto chunk = static_cast<std::uint32_t>(c);
            const std::uint64_t scalars = scalars_of(c);
            found.flagged.push_back(chunk);
            found.by_tree -= scalars;
            SketchVerdict verdict;
            if (by_residues) {
                const std::size_t at = c * shape.residue_bytes_per_chunk;
                verdict = check_sketch(kernels, shape, scalars, cells.residue_bits, reach.widest,
                                       built_.fine[c], b.built_.fine[c], built_.residues.data() + at,
                                       b.built_.residues.data() + at);
            }
            if (!verdict.proven) {
                found.open.push_back(chunk);
                continue;
            }
            for (std::size_t d = 0; d < found.by_cells.size(); ++d)
                found.by_cells[d] += verdict.counts[d];
        }
    }
    return found;
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
