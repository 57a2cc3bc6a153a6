#include "history/reference.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <new>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "history/record_residues.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

Result<std::vector<std::uint64_t>> read_words(MetadataFile& file, std::size_t field, Section section,
                                              std::uint64_t first, std::uint64_t count) {
    std::vector<std::uint64_t> words(count);
    TWR_CHECK(file.read(field, section, first * 8, std::as_writable_bytes(std::span(words))));
    if constexpr (std::endian::native == std::endian::big) {
        for (auto& w : words)
            w = __builtin_bswap64(w);
    }
    return words;
}

}  // namespace

std::string describe(const Divergence& d) {
    std::string text = d.field;
    if (!d.reason.empty()) {
        text += (text.empty() ? "" : ": ") + d.reason;
    } else {
        text += " from item " + std::to_string(d.first_item) + " on: " + std::to_string(d.chunks) + " of " +
                std::to_string(d.chunks_in_all) + " chunks are not proven equal";
    }
    if (d.fields > 1) text += " (" + std::to_string(d.fields) + " fields)";
    return text;
}

StepCheck::StepCheck(std::shared_ptr<MetadataFile> metadata, std::string why_not, std::int64_t step, int rank,
                     const std::vector<FieldMetadata>& fields)
    : metadata_(std::move(metadata)),
      why_not_(std::move(why_not)),
      step_(step),
      rank_(rank),
      fields_(fields) {
    for (const FieldMetadata& field : fields) {
        auto check = std::make_unique<Field>();
        if (metadata_ == nullptr) {
            check->why_not = why_not_;
        } else if (check->number = metadata_->find(field.name); !check->number) {
            check->why_not = "the reference has no such field";
        } else {
            const FieldMetadata& reference = metadata_->directory().fields[*check->number];
            const bool published = field.settings.kind == DigestKind::published;
            DifferenceRule rule;
            rule.tolerance = field.settings.tolerance;
            if (reference.dtype != field.dtype || reference.shape != field.shape) {
                check->why_not = "the reference's field has another type or shape";
            } else {
                check->why_not =
                    why_not_staged(reference, field, published ? Method::published : Method::staged, rule);
            }
            if (check->why_not.empty()) check->proof.emplace(reference, rule.tolerance);
        }
        checks_.push_back(std::move(check));
    }
    if (metadata_ == nullptr) return;
    std::unordered_set<std::string_view> names;
    for (const FieldMetadata& field : fields)
        names.insert(field.name);
    for (const FieldMetadata& reference : metadata_->directory().fields) {
        if (!names.contains(reference.name)) missing_.push_back(&reference);
    }
}

void StepCheck::load(Field& field) {
    const FieldMetadata& reference = metadata_->directory().fields[*field.number];
    const std::size_t words = node_words(reference.settings.kind);
    const TreeLayout tree = reference.tree();
    auto leaves = read_words(*metadata_, *field.number, Section::tree, (tree.nodes() - tree.leaves) * words,
                             tree.leaves * words);
    if (!leaves) {
        field.failure = std::move(leaves).error();
        return;
    }
    field.leaves = std::move(leaves).value();
    auto fine =
        read_words(*metadata_, *field.number, Section::fine, 0, reference.section_bytes(Section::fine) / 8);
    if (!fine) {
        field.failure = std::move(fine).error();
        return;
    }
    field.fine = std::move(fine).value();
}

Result<> StepCheck::slice(std::size_t number, const FieldSlices& slices, std::uint64_t slice,
                          std::span<const ChunkDigest> digests, const std::byte* residues) try {
    Field& check = *checks_[number];
    if (!check.why_not.empty()) return success();
    check.loaded.run([&] { load(check); });
    if (check.failure) {
        unread(check, *check.failure);
        return success();
    }
    const FieldMetadata& field = fields_[number];
    const ChunkProof& proof = *check.proof;
    const DigestKind kind = field.settings.kind;
    const std::uint64_t first = slice * (kSliceBytes / field.settings.chunk_bytes);
    // Its residues of the slice; read when the first chunk needs them.
    std::vector<std::byte> reference;
    std::uint64_t open = 0;
    std::uint64_t first_open = UINT64_MAX;
    for (std::size_t k = 0; k < digests.size(); ++k) {
        const std::uint64_t c = first + k;
        bool proven = proof.digests_prove(chunk_digest(kind, check.leaves, check.fine, c), digests[k]);
        if (!proven && proof.by_residues() && metadata_->has_residues()) {
            if (reference.empty()) {
                reference.resize(slices.residue_bytes(slice));
                auto read = metadata_->read(*check.number, Section::residues, slices.residue_offset(slice),
                                            reference);
                if (!read) {
                    unread(check, read.error());
                    return success();
                }
            }
            const std::size_t at = k * proof.shape().residue_bytes_per_chunk;
            proven =
                proof.residues_say(c, check.fine[c], digests[k].fine, reference.data() + at, residues + at)
                    .proven;
        }
        if (proven) continue;
        ++open;
        first_open = std::min(first_open, c);
    }
    if (open != 0) {
        const std::lock_guard guard(mutex_);
        check.open += open;
        check.first = std::min(check.first, first_open);
    }
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to compare with the reference"};
}

void StepCheck::unread(Field& field, const Error& error) {
    const std::lock_guard guard(mutex_);
    if (field.unread.empty()) field.unread = "the reference cannot be read: " + error.message;
}

Result<> StepCheck::whole(std::size_t number, const BuiltField& built) try {
    const FieldMetadata& field = fields_[number];
    const FieldSlices slices(field);
    const TreeLayout tree = field.tree();
    const std::uint64_t per_slice = kSliceBytes / field.settings.chunk_bytes;
    const DigestKind kind = field.settings.kind;
    const auto leaves = std::span(built.tree).subspan((tree.nodes() - tree.leaves) * node_words(kind));
    std::vector<ChunkDigest> digests;
    for (std::uint64_t s = 0; s < slices.slices(); ++s) {
        digests.clear();
        for (std::uint64_t c = s * per_slice; c < std::min((s + 1) * per_slice, tree.leaves); ++c)
            digests.push_back(chunk_digest(kind, leaves, built.fine, c));
        TWR_CHECK(slice(number, slices, s, digests, built.residues.data() + slices.residue_offset(s)));
    }
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to compare with the reference"};
}

std::optional<Divergence> StepCheck::result() const {
    const std::lock_guard guard(mutex_);
    std::optional<Divergence> found;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
        const Field& check = *checks_[i];
        const std::string& why_not = check.why_not.empty() ? check.unread : check.why_not;
        if (check.open == 0 && why_not.empty()) continue;
        if (!found) {
            const FieldMetadata& field = fields_[i];
            found.emplace();
            found->step = step_;
            found->rank = rank_;
            found->field = field.name;
            found->reason = why_not;
            found->chunks_in_all = field.chunks();
            found->chunks = why_not.empty() ? check.open : field.chunks();
            found->first_item =
                why_not.empty() ? check.first * field.chunking().chunk_scalars / scalars_per_item(field.dtype)
                                : 0;
        }
        ++found->fields;
    }
    // Fields that only the reference has count, labels too: without its unit, a time would be a
    // plain number.
    for (const FieldMetadata* missing : missing_) {
        if (!found) {
            found.emplace();
            found->step = step_;
            found->rank = rank_;
            found->field = missing->name;
            found->reason = "the reference has this field, this run has not";
            found->chunks_in_all = found->chunks = missing->chunks();
        }
        ++found->fields;
    }
    return found;
}

Result<std::unique_ptr<Reference>> Reference::open(const std::string& path, std::uint32_t rank,
                                                   std::uint32_t ranks) {
    std::unique_ptr<Reference> reference(new Reference());
    auto history = History::open(path);
    if (!history) return std::move(history).error().at("reference");
    reference->history_ = std::move(history).value();
    reference->rank_ = rank;
    if (reference->history_.ranks != ranks) {
        return Error{ErrorCode::mismatch,
                     "reference: " + path + ": captured by " + std::to_string(reference->history_.ranks) +
                         " ranks, this run has " + std::to_string(ranks) +
                         ": arrays of different parts cannot be compared while they are captured"};
    }
    return reference;
}

Tokens Reference::tokens() const {
    // Fields may come later than with the first step.
    constexpr int kLooked = 16;
    Tokens found = Tokens::none;
    int looked = 0;
    for (const HistoryStep& step : history_.steps) {
        const RankFiles& files = step.ranks[rank_];
        const std::string path = (fs::path(history_.path) / step.folder / files.metadata).string();
        const auto opened = MetadataFile::open(path);
        if (!opened) continue;  // check() says so
        for (const FieldMetadata& field : (*opened)->directory().fields) {
            if (field.settings.kind != DigestKind::linear || field.settings.rule.kind != CellKind::tokens)
                continue;
            if (exact_kind(scalar_type(field.dtype)) == CellKind::binary32) return Tokens::all;
            found = Tokens::but_binary32;
        }
        if (++looked == kLooked) break;
    }
    return found;
}

Result<std::shared_ptr<MetadataFile>> Reference::open_step(const HistoryStep& step) const {
    const RankFiles& files = step.ranks[rank_];
    const std::string path = (fs::path(history_.path) / step.folder / files.metadata).string();
    TWR_TRY(std::shared_ptr<MetadataFile> opened, MetadataFile::open(path));
    if (opened->header_checksum() != files.header_checksum || opened->file().size() != files.metadata_bytes)
        return Error{ErrorCode::damaged,
                     path + ": is not the file that the manifest names: restore the history"};
    if (opened->elsewhere().size() != 0 && files.difference != kNoBase) {
        if (record_ == nullptr) {
            TWR_TRY(record_, RecordStore::open(history_.path, rank_));
        }
        read_residues_from(record_, files.difference, *opened);
    }
    return opened;
}

std::unique_ptr<StepCheck> Reference::check(std::int64_t number,
                                            const std::vector<FieldMetadata>& fields) const {
    const auto in = [&](const History& history) -> const HistoryStep* {
        const auto found = std::lower_bound(history.steps.begin(), history.steps.end(), number,
                                            [](const HistoryStep& s, std::int64_t n) { return s.step < n; });
        return found == history.steps.end() || found->step != number ? nullptr : &*found;
    };
    const HistoryStep* const known = in(history_);
    if (known == nullptr) return nullptr;
    HistoryStep step = *known;
    auto opened = open_step(step);
    std::string why_not;
    // A run may be writing the reference: a step that it has removed or captured again is not
    // damaged. Look again.
    while (!opened) {
        why_not = "the reference cannot be read: " + opened.error().message;
        const auto now = History::open(history_.path);
        if (!now || now->ranks != history_.ranks) break;
        const HistoryStep* const current = in(*now);
        if (current == nullptr) {
            why_not = "the step was removed from the reference meanwhile";
            break;
        }
        if (current->folder == step.folder && current->ranks == step.ranks) break;
        step = *current;
        opened = open_step(step);
    }
    if (opened) why_not.clear();
    return std::make_unique<StepCheck>(opened ? std::move(opened).value() : nullptr, why_not, number,
                                       static_cast<int>(rank_), fields);
}

}  // namespace twinrun
