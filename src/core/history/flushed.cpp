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

// Whether these differences, and those of the same record that they need, can be read. checked:
// ordinals that were seen already.
bool are_readable(const std::string& path, const Journal& journal, std::uint32_t first,
                  std::set<std::uint32_t> wanted, std::set<std::uint32_t>& checked) {
    while (!wanted.empty()) {
        const std::uint32_t ordinal = *wanted.begin();
        wanted.erase(wanted.begin());
        if (!checked.insert(ordinal).second) continue;
        const auto place = journal.differences.find(ordinal);
        if (place == journal.differences.end()) return false;
        const auto file = DifferenceFile::open((fs::path(path) / place->second).string());
        if (!file || (*file)->difference().ordinal != ordinal || !check_blocks(**file)) return false;
        wanted.merge(needed_by((*file)->difference(), first));
    }
    return true;
}

}  // namespace

bool is_flushed(const LocalHistory& local) try {
    std::uint32_t ranks = 0;
    const auto settings = read_history_settings(local.history, ranks);
    if (!settings || ranks != local.ranks) return false;
    const auto id = read_history_id(local.history);
    if (!id || (!local.of.empty() && local.of != *id)) return false;
    const auto journal = read_rank_journal(local.history, local.rank, ranks);
    if (!journal) return false;
    const std::uint32_t first = settings->record ? settings->record->first_difference : 0;
    std::set<std::uint32_t> checked;
    for (const auto& [step, entry] : local.journal.steps) {
        const auto had = journal->steps.find(step);
        if (had == journal->steps.end() && has_left(*journal, step, entry)) continue;
        if (had == journal->steps.end() || attempt_of(had->second.folder) < attempt_of(entry.folder))
            return false;
        const RankStep& there = had->second;
        // The very files, unless their data may have left by keep_data_steps.
        if (there.folder == entry.folder && there.files.header_checksum != entry.files.header_checksum)
            return false;
        if (!is_intact(local.history, there)) return false;
        if (there.files.difference != kNoBase &&
            !are_readable(local.history, *journal, first, {there.files.difference}, checked))
            return false;
    }
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

Result<> check_part(const std::string& path, const LocalHistory& part, const HistorySettings& settings,
                    std::uint32_t rank, std::uint32_t ranks, const std::string& history,
                    const HistoryId& of) {
    const bool same = part.is_of(settings, rank, ranks, history, of);
    if (same || part.journal.steps.empty() || is_flushed(part)) return success();
    // The history at their place is another one now: there they cannot go.
    const bool replaced = part.history == history && !part.of.empty() && !of.empty() && part.of != of;
    return Error{ErrorCode::mismatch,
                 path + ": holds steps of another run, on their way to " + part.history +
                     (replaced ? ", which was replaced since: bring them elsewhere with 'twinrun flush --to'"
                               : ": bring them there with 'twinrun flush'") +
                     ", or remove the folder"};
}

}  // namespace twinrun
