#include "sketch/device_collector.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "tree/build.hpp"

namespace twinrun::device_batch {

namespace {

// Results go to the host through two page-locked areas of this size: large enough that the copies'
// latency does not show.
constexpr std::size_t kStagingBytes = 16 << 20;

}  // namespace

std::size_t Collector::staging_bytes(const Batch& batch) {
    return 2 * std::min<std::size_t>(kStagingBytes, round_up(batch.collected_bytes(), kPageBytes));
}

Result<> Collector::collect(const Tables& tables, const Batch& batch, DeviceWorkspace& workspace,
                            const std::byte* arena, std::byte* staging, std::size_t staging_bytes) {
    areas_.clear();
    for (std::size_t i = 0; i < batch.pieces().size(); ++i) {
        const Piece& p = batch.pieces()[i];
        areas_.push_back({i * sizeof(Stats), sizeof(Stats), Kind::stats, i});
        areas_.push_back({p.sums, p.sums_bytes, Kind::sums, i});
        areas_.push_back({p.tree, p.tree_bytes, Kind::tree, i});
        areas_.push_back({p.fine, p.fine_bytes, Kind::fine, i});
        if (!batch.residues_stay()) areas_.push_back({p.residues, p.residue_bytes, Kind::residues, i});
        prepare(p, batch.residues_stay());
    }
    std::erase_if(areas_, [](const Area& a) { return a.bytes == 0; });
    std::sort(areas_.begin(), areas_.end(), [](const Area& x, const Area& y) { return x.at < y.at; });
    next_ = 0;
    const std::size_t end = batch.collected_bytes();
    const std::size_t half = staging_bytes / 2;
    std::size_t copied = 0;
    std::size_t taken = 0;
    const auto copy_next = [&](std::size_t number) -> Result<> {
        const std::size_t bytes = std::min(half, end - copied);
        TWR_CHECK(to_result(tables.runtime->copy(workspace.device(), staging + number % 2 * half,
                                                 arena + copied, bytes, workspace.stream().get())));
        TWR_CHECK(workspace.mark(number % 2));
        copied += bytes;
        return success();
    };
    TWR_CHECK(copy_next(0));
    for (std::size_t number = 0; taken < end; ++number) {
        if (copied < end) TWR_CHECK(copy_next(number + 1));
        TWR_CHECK(workspace.wait_mark(number % 2));
        const std::size_t bytes = std::min(half, end - taken);
        TWR_CHECK(take_part(batch, taken, {staging + number % 2 * half, bytes}));
        taken += bytes;
    }
    for (std::size_t i = 0; i < batch.pieces().size(); ++i)
        finish(batch.pieces()[i]);
    return success();
}

void Collector::prepare(const Piece& p, bool residues_stay) {
    const FieldMetadata& field = *fields_.fields[p.field];
    BuiltField& to = into_[p.field];
    if (p.first_chunk != 0) return;
    // Leaves of a field in parts come to where they will be in its tree.
    to.tree.resize(field.section_bytes(Section::tree) / 8);
    to.fine.resize(field.section_bytes(Section::fine) / 8);
    if (take_ == nullptr && !residues_stay) {
        to.residues.resize(field.section_bytes(Section::residues));
    } else {
        to.residues.clear();
    }
    if (fields_.sums[p.field] != nullptr)
        halves_[p.field].assign(fields_.sums[p.field]->sums.count() * kSumsWords, 0);
}

// The last part of a field: its sums, and its tree if it came in parts.
void Collector::finish(const Piece& p) {
    const FieldMetadata& field = *fields_.fields[p.field];
    if (p.first_chunk + p.chunks != field.chunks()) return;
    BuiltField& to = into_[p.field];
    if (const auto& plan = fields_.sums[p.field]; plan != nullptr) {
        to.sums = {plan->sums.height(), plan->sums.finish(halves_[p.field])};
        halves_[p.field] = {};
    }
    if (p.whole) return;
    const std::size_t words = node_words(field.settings.kind);
    to.tree = build_tree(field.settings.kind, field.chunking().blocks_per_chunk,
                         std::span<const std::uint64_t>(to.tree).subspan(field.tree().first(0) * words));
}

Result<> Collector::take_part(const Batch& batch, std::size_t begin, std::span<const std::byte> bytes) {
    const std::size_t end = begin + bytes.size();
    for (; next_ < areas_.size() && areas_[next_].at < end; ++next_) {
        const Area& area = areas_[next_];
        const std::size_t from = std::max(begin, area.at);
        const std::size_t stop = std::min(end, area.at + area.bytes);
        TWR_CHECK(take_area(batch.pieces()[area.piece], area, from - area.at,
                            bytes.subspan(from - begin, stop - from)));
        if (stop == end && area.at + area.bytes > end) break;  // the rest comes with the next part
    }
    return success();
}

Result<> Collector::take_area(const Piece& p, const Area& area, std::size_t offset,
                              std::span<const std::byte> bytes) {
    const FieldMetadata& field = *fields_.fields[p.field];
    BuiltField& to = into_[p.field];
    switch (area.kind) {
        case Kind::stats: {
            // 32 bytes at a multiple of 32: never in two parts.
            Stats stats;
            std::memcpy(&stats, bytes.data(), sizeof stats);
            double largest = 0;
            std::memcpy(&largest, &stats.largest, sizeof largest);
            to.counts.add(stats.counts);
            to.largest = std::max(to.largest, largest);
            return success();
        }
        case Kind::sums: {
            // Whole words: areas and parts begin at one. Pieces may share the bucket between them.
            std::uint64_t* at = &halves_[p.field][p.slots.first * kSumsWords + offset / 8];
            for (std::size_t i = 0; i < bytes.size(); i += 8) {
                std::uint64_t word = 0;
                std::memcpy(&word, bytes.data() + i, sizeof word);
                *at++ += word;
            }
            return success();
        }
        case Kind::tree: {
            const std::size_t words = node_words(field.settings.kind);
            const std::uint64_t first = p.whole ? 0 : (field.tree().first(0) + p.first_chunk) * words;
            std::memcpy(reinterpret_cast<std::byte*>(to.tree.data() + first) + offset, bytes.data(),
                        bytes.size());
            return success();
        }
        case Kind::fine:
            std::memcpy(reinterpret_cast<std::byte*>(to.fine.data() + p.first_chunk) + offset, bytes.data(),
                        bytes.size());
            return success();
        case Kind::residues: {
            const std::uint64_t at = p.first_chunk * field.chunking().residue_bytes_per_chunk + offset;
            if (take_ != nullptr) return take_(p.field, at, bytes);
            std::memcpy(to.residues.data() + at, bytes.data(), bytes.size());
            return success();
        }
    }
    return success();
}

}  // namespace twinrun::device_batch
