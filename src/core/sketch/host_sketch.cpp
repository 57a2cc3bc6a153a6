#include "sketch/host_sketch.hpp"

#include <bit>
#include <new>
#include <optional>
#include <utility>

#include "sketch/proof.hpp"
#include "tree/walk.hpp"

namespace twinrun {

namespace {

Error out_of_memory() { return Error{ErrorCode::out_of_memory, "not enough memory for a sketch"}; }

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
    return out_of_memory();
}

Result<std::vector<HostSketch>> HostSketch::build(std::span<const FieldMetadata* const> fields,
                                                  std::span<ElementSource* const> sources,
                                                  const StreamOptions& options) try {
    std::vector<std::uint64_t> bytes;
    for (const FieldMetadata* field : fields)
        bytes.push_back(field->data_bytes());
    std::vector<std::optional<HostSketch>> made(fields.size());
    TWR_CHECK(run_pieces(bytes, std::vector<bool>(fields.size()), options,
                         [&](std::size_t i, const StreamOptions& own) -> Result<> {
                             TWR_TRY(made[i], build(*fields[i], *sources[i], own));
                             return success();
                         }));
    std::vector<HostSketch> all;
    all.reserve(made.size());
    for (std::optional<HostSketch>& one : made)
        all.push_back(std::move(*one));
    return all;
} catch (const std::bad_alloc&) {
    return out_of_memory();
}

Result<HostSketch> HostSketch::load(MetadataFile& file, std::size_t number) try {
    const FieldMetadata& field = file.directory().fields[number];
    if (!file.has_residues() && field.place(Section::residues).length != 0)
        return Error{ErrorCode::not_found,
                     file.path() + ": its residues are in the record: name the record and a step"};
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
    return out_of_memory();
}

Result<HostSketch> HostSketch::download(const DeviceSketch& sketch) try {
    BuiltField built;
    TWR_CHECK(sketch.download(built));
    return HostSketch(sketch.field(), std::move(built));
} catch (const std::bad_alloc&) {
    return out_of_memory();
}

Result<SketchComparison> HostSketch::compare(const HostSketch& b, const DifferenceRule& rule) const try {
    const FieldMetadata& field = field_;
    TWR_TRY(const ChunkProof proof, ChunkProof::between(field, b.field_, rule));
    SketchComparison found;
    found.decided = digests_decide(field, rule);
    const std::uint64_t chunks = found.chunks = field.chunks();
    if (chunks == 0) return found;
    if (chunks >> 32 != 0)
        return Error{ErrorCode::unsupported, "a field of more than 2^32 chunks: use larger ones"};
    std::vector<Range> flagged{{0, chunks}};
    if (proof.by_tree()) {
        const std::size_t words = node_words(field.settings.kind);
        MemoryNodes nodes_a(built_.tree, words);
        MemoryNodes nodes_b(b.built_.tree, words);
        TWR_TRY(WalkResult walked, walk_trees(field.tree(), words, nodes_a, nodes_b));
        flagged = std::move(walked.chunks);
    }
    ProvenDrift proven;
    found.by_tree = field.scalars() - proof.scalars(flagged);
    for (const Range& range : flagged) {
        for (std::uint64_t c = range.begin; c < range.end; ++c) {
            const auto chunk = static_cast<std::uint32_t>(c);
            found.flagged.push_back(chunk);
            SketchVerdict verdict;
            if (proof.by_residues()) {
                const std::size_t at = c * proof.shape().residue_bytes_per_chunk;
                verdict = proof.residues_say(c, built_.fine[c], b.built_.fine[c], built_.residues.data() + at,
                                             b.built_.residues.data() + at);
            }
            if (!verdict.proven) {
                found.open.push_back(chunk);
                continue;
            }
            proven.add(verdict.counts);
        }
    }
    found.by_cells = proven.by_cells;
    return found;
} catch (const std::bad_alloc&) {
    return out_of_memory();
}

}  // namespace twinrun
