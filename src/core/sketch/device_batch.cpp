#include "sketch/device_batch.hpp"

#include <algorithm>

namespace twinrun::device_batch {

namespace {

// Left free for others, of what is free.
constexpr std::uint64_t kReserveShare = 16;
constexpr std::uint64_t kLeastReserve = 256 << 20;

}  // namespace

Result<Tables> tables() {
    const Tables all{device_runtime(), device_digest_kernels(), device_tree_kernels(),
                     device_element_kernels(), device_sums_kernels()};
    if (all.runtime == nullptr) return Error{ErrorCode::unsupported, probe_devices().reason};
    if (all.digest == nullptr || all.tree == nullptr || all.element == nullptr || all.sums == nullptr) {
        return Error{ErrorCode::internal, "the device library lacks a table"};
    }
    return all;
}

Piece Fields::piece(std::size_t f, std::uint64_t first, std::uint64_t count) const {
    const FieldMetadata& field = *fields[f];
    const ChunkShape shape = field.chunking();
    Piece p;
    p.field = f;
    p.first_chunk = first * slice_chunks(f);
    p.chunks = std::min(field.chunks(), (first + count) * slice_chunks(f)) - p.first_chunk;
    p.first_item = first * slice_items(f);
    p.items = std::min(field.items(), (first + count) * slice_items(f)) - p.first_item;
    p.whole = p.chunks == field.chunks();
    const std::uint64_t nodes = p.whole ? field.tree().nodes() : p.chunks;
    p.tree_bytes = nodes * node_words(field.settings.kind) * 8;
    if (field.section_bytes(Section::fine) != 0) p.fine_bytes = p.chunks * 8;
    p.residue_bytes = residue_bytes_before(f, p.first_chunk + p.chunks, shape) -
                      residue_bytes_before(f, p.first_chunk, shape);
    if (sums[f] != nullptr) {
        const std::uint64_t per_item = scalars_per_item(field.dtype);
        p.slots = sums_slots(*sums[f], p.first_item * per_item, p.items * per_item);
        p.sums_bytes = p.slots.count * kSumsWords * sizeof(std::uint64_t);
    }
    return p;
}

void Batch::lay_out_arena() {
    std::size_t end = stats_ ? pieces_.size() * sizeof(Stats) : 0;
    for (Piece& p : pieces_) {
        p.sums = end;
        end += p.sums_bytes;
    }
    cleared_bytes_ = end;
    end = device_aligned(end);
    for (Piece& p : pieces_) {
        p.tree = end;
        end += round_up(p.tree_bytes, 16);
    }
    for (Piece& p : pieces_) {
        p.fine = end;
        end += p.fine_bytes;
    }
    if (residues_stay_) {
        residues_at_ = round_up(end, kPageBytes);
        ResidueLayout layout;
        for (Piece& p : pieces_)
            p.residues = residues_at_ + layout.add(p.residue_bytes);
        arena_bytes_ = residues_at_ + layout.size();
        return;
    }
    // Residues are handed on in whole pages, so an area begins at one, or does not reach over the
    // end of one.
    for (Piece& p : pieces_) {
        end = round_up(end, kResidueLine);
        if (end / kPageBytes != (end + p.residue_bytes) / kPageBytes) end = round_up(end, kPageBytes);
        p.residues = end;
        end += p.residue_bytes;
    }
    arena_bytes_ = device_aligned(end);
}

void Batch::lay_out(const Tables& tables, std::uint64_t gather_bytes) {
    lay_out_arena();
    // Waves: one call of digest() each. What is dense needs no gathering and goes into the first.
    waves_.assign(1, {});
    std::uint64_t used = 0;
    gather_bytes_ = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const Piece& p = pieces_[i];
        if (fields_->dense(p.field)) waves_[0].parts.push_back({i, 0, p.items, 0});
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const Piece& p = pieces_[i];
        if (fields_->dense(p.field)) continue;
        const std::uint64_t item = item_bytes(fields_->fields[p.field]->dtype);
        const std::uint64_t slice = fields_->slice_items(p.field);
        for (std::uint64_t at = 0; at < p.items;) {
            std::uint64_t fits = gather_bytes > used ? (gather_bytes - used) / item : 0;
            if (fits < p.items - at) fits = fits / slice * slice;
            if (fits == 0 && used != 0) {
                waves_.emplace_back();
                used = 0;
                continue;
            }
            const std::uint64_t items = std::min(std::max(fits, slice), p.items - at);
            waves_.back().parts.push_back({i, at, items, used});
            used = device_aligned(used + items * item);
            gather_bytes_ = std::max<std::size_t>(gather_bytes_, used);
            at += items;
        }
    }

    // Scratch: that of a wave is free for the next one on the device, where work is in order, but
    // not on the host.
    std::vector<DeviceDigestItem> items;
    std::vector<DeviceSumsItem> sums;
    digest_bytes_ = 0;
    sums_bytes_ = 0;
    host_bytes_ = 0;
    for (Wave& wave : waves_) {
        digest_items(wave, nowhere(), nowhere(), items);
        std::size_t on_device = 0;
        std::size_t on_host = 0;
        tables.digest->scratch(items.data(), items.size(), &on_device, &on_host);
        digest_bytes_ = std::max(digest_bytes_, device_aligned(on_device));
        wave.digest_host_bytes = device_aligned(on_host);
        sums_items(wave, nowhere(), nowhere(), sums);
        tables.sums->scratch(sums.data(), sums.size(), &on_device, &on_host);
        sums_bytes_ = std::max(sums_bytes_, device_aligned(on_device));
        wave.sums_host_bytes = device_aligned(on_host);
        host_bytes_ += wave.digest_host_bytes + wave.sums_host_bytes;
    }
    std::vector<DeviceTreeItem> trees;
    tree_items(nowhere(), trees);
    std::size_t on_device = 0;
    std::size_t on_host = 0;
    tables.tree->build_scratch(trees.data(), trees.size(), &on_device, &on_host);
    tree_bytes_ = device_aligned(on_device);
    host_bytes_ += device_aligned(on_host);
    scratch_bytes_ = gather_bytes_ + digest_bytes_ + sums_bytes_ + tree_bytes_;
}

Result<> Batch::submit(const Tables& tables, DeviceStream& stream, std::byte* arena, std::byte* scratch,
                       std::byte* host) const {
    const int device = stream.device();
    std::vector<StreamHandle> followed;
    for (const Piece& p : pieces_) {
        const StreamHandle theirs = fields_->arrays[p.field]->stream;
        if (std::find(followed.begin(), followed.end(), theirs) != followed.end()) continue;
        followed.push_back(theirs);
        TWR_CHECK(stream.follow(theirs));
    }
    return put(tables, device, stream.get(), arena, scratch, host);
}

Result<> Batch::put(const Tables& tables, int device, StreamHandle stream, std::byte* arena,
                    std::byte* scratch, std::byte* host) const {
    if (cleared_bytes_ != 0)
        TWR_CHECK(to_result(tables.runtime->fill(device, arena, 0, cleared_bytes_, stream)));
    if (residues_stay_ && arena_bytes_ != residues_at_) {
        TWR_CHECK(to_result(
            tables.runtime->fill(device, arena + residues_at_, 0, arena_bytes_ - residues_at_, stream)));
    }
    std::byte* const digest_scratch = scratch + gather_bytes_;
    std::byte* const sums_scratch = digest_scratch + digest_bytes_;
    std::byte* const tree_scratch = sums_scratch + sums_bytes_;
    std::vector<DeviceDigestItem> items;
    std::vector<DeviceSumsItem> sums;
    for (const Wave& wave : waves_) {
        for (const Part& part : wave.parts) {
            const Piece& p = pieces_[part.piece];
            if (fields_->dense(p.field)) continue;
            TWR_CHECK(to_result(
                tables.element->gather(device,
                                       gather_of(*fields_->arrays[p.field], p.first_item + part.first,
                                                 part.items, scratch + part.gathered),
                                       stream)));
        }
        digest_items(wave, arena, scratch, items);
        if (items.empty()) continue;
        TWR_CHECK(to_result(
            tables.digest->digest(device, items.data(), items.size(), digest_scratch, host, stream)));
        host += wave.digest_host_bytes;
        sums_items(wave, arena, scratch, sums);
        if (sums.empty()) continue;
        TWR_CHECK(to_result(tables.sums->add(device, sums.data(), sums.size(), sums_scratch, host, stream)));
        host += wave.sums_host_bytes;
    }
    std::vector<DeviceTreeItem> trees;
    tree_items(arena, trees);
    if (trees.empty()) return success();
    return to_result(tables.tree->build(device, trees.data(), trees.size(), tree_scratch, host, stream));
}

const std::byte* Batch::data_of(const Part& part, const std::byte* gathered) const {
    const Piece& p = pieces_[part.piece];
    if (!fields_->dense(p.field)) return gathered + part.gathered;
    return static_cast<const std::byte*>(fields_->arrays[p.field]->data) +
           (p.first_item + part.first) * item_bytes(fields_->fields[p.field]->dtype);
}

void Batch::sums_items(const Wave& wave, std::byte* arena, const std::byte* gathered,
                       std::vector<DeviceSumsItem>& into) const {
    into.clear();
    for (const Part& part : wave.parts) {
        const Piece& p = pieces_[part.piece];
        if (fields_->sums[p.field] == nullptr) continue;
        const DeviceSumsPlan& plan = *fields_->sums[p.field];
        const FieldMetadata& field = *fields_->fields[p.field];
        const std::uint64_t per_item = scalars_per_item(field.dtype);
        const std::uint64_t first = (p.first_item + part.first) * per_item;
        const std::uint64_t count = part.items * per_item;
        auto* const halves = reinterpret_cast<std::uint64_t*>(arena + p.sums) +
                             (sums_slots(plan, first, count).first - p.slots.first) * kSumsWords;
        into.push_back(sums_item(plan, field, first, count, data_of(part, gathered), halves));
    }
}

void Batch::digest_items(const Wave& wave, std::byte* arena, std::byte* gathered,
                         std::vector<DeviceDigestItem>& into) const {
    into.clear();
    for (const Part& part : wave.parts) {
        const Piece& p = pieces_[part.piece];
        const FieldMetadata& field = *fields_->fields[p.field];
        const ChunkShape shape = field.chunking();
        const std::size_t item = item_bytes(field.dtype);
        const std::uint64_t chunk = part.first * item / field.settings.chunk_bytes;  // of the piece
        const std::size_t words = node_words(field.settings.kind);
        DeviceDigestItem to;
        to.data = data_of(part, gathered);
        to.scalars = part.items * scalars_per_item(field.dtype);
        to.scalar = scalar_type(field.dtype);
        to.settings = field.settings;
        const std::uint64_t leaves = p.whole ? field.tree().first(0) : 0;
        to.leaves = reinterpret_cast<std::uint64_t*>(arena + p.tree) + (leaves + chunk) * words;
        if (p.fine_bytes != 0) to.fine = reinterpret_cast<std::uint64_t*>(arena + p.fine) + chunk;
        if (p.residue_bytes != 0) to.residues = arena + p.residues + chunk * shape.residue_bytes_per_chunk;
        if (stats_) {
            auto* const stats = reinterpret_cast<Stats*>(arena) + part.piece;
            to.counts = &stats->counts;
            to.largest = &stats->largest;
        }
        into.push_back(to);
    }
}

void Batch::tree_items(std::byte* arena, std::vector<DeviceTreeItem>& into) const {
    into.clear();
    for (const Piece& p : pieces_) {
        if (!p.whole || p.chunks == 1) continue;  // the leaf of one chunk is its root
        const FieldMetadata& field = *fields_->fields[p.field];
        into.push_back({reinterpret_cast<std::uint64_t*>(arena + p.tree), field.chunks(), field.settings.kind,
                        field.chunking().blocks_per_chunk});
    }
}

std::uint64_t available(const Tables& tables, int device, std::uint64_t held) {
    std::uint64_t free = 0;
    // The allocation will say.
    if (tables.runtime->free_memory(device, &free).failed) return kNoLimit;
    // Where little is free, half of it: all would be left otherwise, and every batch would be of
    // one slice.
    const std::uint64_t reserve = std::min(std::max(kLeastReserve, free / kReserveShare), free / 2);
    return held + free - reserve;
}

Result<> check_fields(const Fields& fields) {
    if (fields.fields.size() != fields.arrays.size()) {
        return Error{ErrorCode::invalid_argument, "another number of arrays than of fields"};
    }
    for (std::size_t f = 0; f < fields.fields.size(); ++f) {
        const FieldMetadata& field = *fields.fields[f];
        const DeviceArray& array = *fields.arrays[f];
        if (array.dtype != field.dtype || array.items() != field.items()) {
            return Error{ErrorCode::mismatch,
                         "field '" + field.name + "': the array has another type or size"};
        }
        if (auto checked = check_array(array); !checked)
            return std::move(checked).error().at("field '" + field.name + "'");
    }
    return success();
}

Error no_memory() {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of device arrays"};
}

}  // namespace twinrun::device_batch
