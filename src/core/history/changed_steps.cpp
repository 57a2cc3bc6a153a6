#include "history/changed_steps.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "history/captured_step.hpp"
#include "history/record_store.hpp"
#include "metadata/metadata.hpp"
#include "sketch/build.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

// Text for a message: "changed: run.log, b.dat, … (7 in all); late: c.dat"
std::string said_of(const StepChange& change) {
    std::string text;
    const auto list = [&](const char* what, const std::vector<std::string>& names) {
        constexpr std::size_t kMost = 3;
        if (names.empty()) return;
        text += (text.empty() ? "" : "; ") + std::string(what);
        for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i)
            text += (i == 0 ? ": " : ", ") + names[i];
        if (names.size() > kMost) text += ", … (" + std::to_string(names.size()) + " in all)";
    };
    list("changed", change.changed);
    list("late", change.late);
    return text;
}

// Whether both metadata files have the same fields with the same data sums. bounded: data sums are
// not compared.
Result<bool> same_fields(MetadataFile& source, MetadataFile& record, bool bounded) {
    const auto& now = source.directory().fields;
    const auto& packed = record.directory().fields;
    if (now.size() != packed.size()) return false;
    for (std::size_t f = 0; f < now.size(); ++f) {
        if (now[f].name != packed[f].name || now[f].dtype != packed[f].dtype ||
            now[f].shape != packed[f].shape || now[f].order != packed[f].order)
            return false;
        const std::uint64_t bytes = now[f].place(Section::data_sums).length;
        if (bytes != packed[f].place(Section::data_sums).length) return false;
        if (bounded) continue;
        std::vector<std::byte> sums_now(bytes);
        std::vector<std::byte> sums_packed(bytes);
        TWR_CHECK(source.read(f, Section::data_sums, 0, sums_now));
        TWR_CHECK(record.read(f, Section::data_sums, 0, sums_packed));
        if (sums_now != sums_packed) return false;
    }
    return true;
}

// Whether the record's values differ from the step's current ones by no more than the tolerance.
Result<bool> within_bounds(const CapturedStep& now, RecordStore& store, std::int64_t step) {
    TWR_TRY(const StepMap map, store.map(step));
    std::unordered_map<std::string_view, std::size_t> by_name;
    for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
        if (map.directory.segments[s].file == 0) by_name.emplace(map.directory.segments[s].name, s);
    }
    bool within = true;
    for (const FieldMetadata& field : now.metadata->directory().fields) {
        if (field.items() == 0) continue;
        const auto found = by_name.find(field.name);
        if (found == by_name.end() || map.directory.segments[found->second].bytes != field.data_bytes())
            return false;
        const std::byte* data = now.data.data() + (field.extents[0].offset - now.origin);
        const std::size_t item = item_bytes(field.dtype);
        const DifferenceRule rule{field.settings.tolerance, true};
        const auto compare = [&](std::uint64_t at, std::span<const std::byte> part) {
            DifferenceStats stats;
            compare_elements(difference_kernels(), dense_view(field.dtype, data + at),
                             dense_view(field.dtype, part.data()), 0,
                             part.size() / item * scalars_per_item(field.dtype), 0, rule, &stats);
            within = within && stats.different == 0;
            return success();
        };
        TWR_CHECK(store.stream(map, found->second, 0, field.data_bytes(), kCompareBytes, compare));
    }
    return within;
}

}  // namespace

Error changed_steps(const std::string& target, const std::map<std::int64_t, StepChange>& changes) {
    const auto& [step, change] = *changes.begin();
    const std::string more =
        changes.size() == 1 ? "" : " (and " + std::to_string(changes.size() - 1) + " more steps)";
    return Error{ErrorCode::invalid_argument,
                 target + ": step " + std::to_string(step) + more +
                     " has changed since it was packed: " + said_of(change) +
                     ": pack with --update for a new version of the step, or into another record"};
}

Result<KnownSteps> compare_steps(const History& history, const std::string& source, const std::string& target,
                                 const PackOptions& options) {
    KnownSteps known;
    std::map<std::int64_t, std::string> folders;
    if (!options.append || !History::exists(target)) return known;
    std::uint32_t ranks = 0;
    // If it cannot be read, or has another number of ranks, opening its writer reports that.
    if (const auto settings = read_history_settings(target, ranks); !settings || ranks != history.ranks)
        return known;
    for (std::uint32_t rank = 0; rank < history.ranks; ++rank) {
        const auto journal = read_rank_journal(target, rank, ranks);
        if (!journal) continue;
        std::shared_ptr<RecordStore> store;
        for (const HistoryStep& step : history.steps) {
            const auto found = journal->steps.find(step.step);
            if (found == journal->steps.end()) continue;
            const RankStep& packed = found->second;
            const auto [first, is_first] = folders.emplace(step.step, packed.folder);
            std::uint32_t& attempt = known.attempts[step.step];
            attempt = std::max(attempt, attempt_of(packed.folder));
            StepChange& change = known.changes[step.step];
            if (!is_first && first->second != packed.folder)
                change.changed.push_back(rank_name(rank) + " (another version than " + rank_name(0) + "'s)");
            const RankFiles& files = step.ranks[rank];
            if (files.data.empty() || files.metadata.empty() || packed.files.metadata.empty() ||
                files.header_checksum == packed.files.header_checksum)
                continue;
            TWR_TRY(const auto now_metadata,
                    MetadataFile::open((fs::path(source) / step.folder / files.metadata).string()));
            TWR_TRY(const auto packed_metadata,
                    MetadataFile::open((fs::path(target) / packed.folder / packed.files.metadata).string()));
            TWR_TRY(bool same, same_fields(*now_metadata, *packed_metadata, options.settings.bounded));
            if (same && options.settings.bounded) {
                if (store == nullptr) {
                    TWR_TRY(store, RecordStore::open(target, rank, options.threads));
                }
                std::shared_ptr<RecordStore> from;
                if (history.settings.record) {
                    TWR_TRY(from, RecordStore::open(source, rank, options.threads));
                }
                TWR_TRY(const CapturedStep now, read_captured(source, step.folder, files, from, step.step));
                TWR_TRY(same, within_bounds(now, *store, step.step));
            }
            if (!same) change.changed.push_back(rank_name(rank));
        }
    }
    std::erase_if(known.changes, [](const auto& entry) { return !entry.second.any(); });
    for (const auto& [step, change] : known.changes)
        ++known.attempts[step];
    return known;
}

}  // namespace twinrun
