#include "history/flushed.hpp"

#include <filesystem>
#include <new>
#include <set>
#include <utility>

#include "history/step_check.hpp"
#include "record/delta_file.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

// Whether these differences, and those of the same record that they need, can be read. first: the
// lowest ordinal of the record itself. checked: ordinals that were checked already; grows.
bool are_readable(const std::string& path, const Journal& journal, std::uint32_t first,
                  std::set<std::uint32_t> ordinals, std::set<std::uint32_t>& checked) {
    while (!ordinals.empty()) {
        const std::uint32_t ordinal = *ordinals.begin();
        ordinals.erase(ordinals.begin());
        if (!checked.insert(ordinal).second) continue;
        const auto place = journal.differences.find(ordinal);
        if (place == journal.differences.end()) return false;
        const auto file = DifferenceFile::open(place->second.in(path));
        if (!file || (*file)->difference().ordinal != ordinal || !check_blocks(**file)) return false;
        ordinals.merge(needed_by((*file)->difference(), first));
    }
    return true;
}

}  // namespace

bool is_flushed(const LocalHistory& local) try {
    std::uint32_t ranks = 0;
    const auto settings = read_history_settings(local.history, ranks);
    if (!settings || ranks != local.ranks) return false;
    const auto id = read_history_id(local.history);
    if (!id || (!local.history_id.empty() && local.history_id != *id)) return false;
    const auto journal = read_rank_journal(local.history, local.rank, ranks);
    if (!journal) return false;
    const std::uint32_t first = settings->record ? settings->record->first_difference : 0;
    std::set<std::uint32_t> checked;
    for (const auto& [step, entry] : local.journal.steps) {
        const auto found = journal->steps.find(step);
        if (found == journal->steps.end() && was_dropped(*journal, step, entry)) continue;
        if (found == journal->steps.end() || attempt_of(found->second.folder) < attempt_of(entry.folder))
            return false;
        const RankStep& flushed = found->second;
        // The same attempt must have the same metadata file. Its data may be gone, by
        // keep_data_steps.
        if (flushed.folder == entry.folder && flushed.files.header_checksum != entry.files.header_checksum)
            return false;
        if (!is_intact(local.history, flushed)) return false;
        if (flushed.files.difference != kNoBase &&
            !are_readable(local.history, *journal, first, {flushed.files.difference}, checked))
            return false;
    }
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

Result<> check_part(const std::string& path, const LocalHistory& part, const HistorySettings& settings,
                    std::uint32_t rank, std::uint32_t ranks, const std::string& history,
                    const HistoryId& history_id) {
    const bool same = part.belongs_to(settings, rank, ranks, history, history_id);
    if (same || part.journal.steps.empty() || is_flushed(part)) return success();
    // If another history has this path now, the steps cannot be flushed to it.
    const bool replaced = part.history == history && !part.history_id.empty() && !history_id.empty() &&
                          part.history_id != history_id;
    return Error{
        ErrorCode::mismatch,
        path + ": holds steps of another run that are not yet in " + part.history +
            (replaced ? ", which was replaced since: copy them to another folder with 'twinrun flush --to'"
                      : ": copy them there with 'twinrun flush'") +
            ", or remove the folder"};
}

}  // namespace twinrun
