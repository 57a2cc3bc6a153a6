#include "history/flush.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "history/apart.hpp"
#include "history/copy_step.hpp"
#include "history/step_check.hpp"
#include "record/delta_file.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

std::unique_lock<std::mutex> lock_of(std::mutex* mutex) {
    return mutex != nullptr ? std::unique_lock(*mutex) : std::unique_lock<std::mutex>();
}

// Copies a difference without its step, which was captured again or dropped, or whose files cannot
// be read.
Result<> copy_difference(const DifferencePlace& from, std::uint32_t ordinal, HistoryWriter& to,
                         std::mutex* mutex) {
    FileSystem& system = to.system();
    const std::string name = std::string(kLeftoversFolder) + "/" + rank_name(to.rank()) + ".difference-" +
                             std::to_string(ordinal) + ".twr";
    const fs::path target = fs::path(to.path()) / name;
    TWR_CHECK(to.make_folder(kLeftoversFolder));
    if (!is_intact_difference({target.string(), from.checksum}, ordinal)) {
        TWR_TRY(const auto bytes, InputFile::open(from.file));
        const std::string temporary = temporary_name(target.string());
        TWR_CHECK(copy_file(system, *bytes, temporary));
        TWR_CHECK(system.rename(temporary, target.string()));
        TWR_CHECK(system.sync_folder(target.parent_path().string()));
    }
    const auto guard = lock_of(mutex);
    return to.add_difference(ordinal, {name, from.checksum});
}

Error another_step(const std::string& path, std::int64_t step) {
    return {ErrorCode::mismatch, path + ": has another step " + std::to_string(step) +
                                     ": copy this one to another folder with 'twinrun flush --to'"};
}

// Copies the differences that the difference at `at` refers to, and that `to` lacks. They are
// copied before the difference itself, so that it can be read even if the tier is lost. from: the
// part that it is in; its journal is read into `journal` when it is needed.
Result<> copy_needed(const std::string& from, const DifferencePlace& at, std::optional<Journal>& journal,
                     HistoryWriter& to, std::mutex* mutex) {
    TWR_TRY(const auto file, DifferenceFile::open(at));
    std::set<std::uint32_t> needed =
        needed_by(file->difference(), to.record() ? to.record()->first_difference : 0);
    {
        const auto guard = lock_of(mutex);
        std::erase_if(needed,
                      [&](std::uint32_t ordinal) { return to.journal().differences.contains(ordinal); });
    }
    if (!needed.empty() && !journal) {
        TWR_TRY(LocalHistory local, LocalHistory::read(from));
        journal = std::move(local.journal);
    }
    for (const std::uint32_t ordinal : needed) {
        const auto found = journal->differences.find(ordinal);
        if (found == journal->differences.end()) {
            return Error{ErrorCode::not_found,
                         at.file + ": needs difference " + std::to_string(ordinal) + ", which is not there"};
        }
        DifferencePlace place = found->second.in(from);
        TWR_TRY(const auto other, DifferenceFile::open(place));
        if (other->difference().ordinal != ordinal) return another_difference(place.file);
        TWR_CHECK(check_blocks(*other));
        // A difference needs only smaller ordinals, so that the recursion ends.
        TWR_CHECK(copy_needed(from, place, journal, to, mutex));
        place.checksum = other->header_checksum();
        TWR_CHECK(copy_difference(place, ordinal, to, mutex));
    }
    return success();
}

}  // namespace

Result<> flush_step(const std::string& from, std::int64_t step, const RankStep& entry, HistoryWriter& to,
                    std::mutex* mutex) {
    const std::uint32_t ordinal = entry.files.difference;
    const DifferencePlace data{(fs::path(from) / entry.folder / entry.files.data).string(),
                               entry.files.difference_checksum};
    std::optional<Journal> journal;
    bool committed = false;
    bool superseded = false;
    {
        const auto guard = lock_of(mutex);
        const auto& steps = to.journal().steps;
        const auto known = steps.find(step);
        committed = to.has(step, entry);
        // The same attempt with other files: it was committed, and retention has removed its data
        // since. The data must not come back, and the step's files are not touched.
        if (!committed && known != steps.end() && known->second.folder == entry.folder) {
            return known->second.files.header_checksum == entry.files.header_checksum
                       ? success()
                       : Result<>(another_step(to.path(), step));
        }
        superseded = !committed && is_superseded(to.journal(), step, entry);
        const Journal& target = to.journal();
        if (superseded &&
            (ordinal == kNoBase || target.differences.contains(ordinal) || target.taken.contains(ordinal)))
            return success();
        // A step that was removed from the record must not come back either. If another step has
        // its ordinal now, commit() reports that.
        if (!committed && ordinal != kNoBase && to.journal().taken.contains(ordinal) &&
            std::none_of(steps.begin(), steps.end(),
                         [&](const auto& other) { return other.second.files.difference == ordinal; })) {
            return success();
        }
    }
    if (superseded) {  // only the difference: later steps may refer to it
        TWR_CHECK(copy_needed(from, data, journal, to, mutex));
        return copy_difference(data, ordinal, to, mutex);
    }
    if (!committed) {
        if (ordinal != kNoBase) TWR_CHECK(copy_needed(from, data, journal, to, mutex));
        // The same files may be there already, if the journal was restored from an older copy.
        const fs::path folder = fs::path(to.path()) / entry.folder;
        if (!is_marked(to.path(), entry.folder, to.id()) || !is_intact(to.path(), entry) ||
            (ordinal != kNoBase &&
             !is_intact_difference({(folder / entry.files.data).string(), data.checksum}, ordinal)))
            TWR_CHECK(copy_step(from, entry, to));
    }
    {
        const auto guard = lock_of(mutex);
        if (!is_superseded(to.journal(), step, entry)) {
            const HistoryWriter::Commit commit{step, entry};
            return to.commit({&commit, 1});
        }
        // A newer attempt was committed to the history directly while this one was copied.
        if (to.journal_known()) static_cast<void>(to.remove_files(entry.folder));
    }
    return flush_step(from, step, entry, to, mutex);
}

std::vector<std::int64_t> in_flush_order(const Journal& journal) {
    std::vector<std::int64_t> steps;
    for (const auto& [step, entry] : journal.steps)
        steps.push_back(step);
    std::stable_sort(steps.begin(), steps.end(), [&](std::int64_t a, std::int64_t b) {
        return journal.steps.at(a).files.difference < journal.steps.at(b).files.difference;
    });
    return steps;
}

Result<FlushFacts> flush_steps(const std::string& from, const Journal& journal, HistoryWriter& to,
                               const std::function<void(std::int64_t, const Error&)>& lost) {
    FlushFacts facts;
    for (const std::int64_t step : in_flush_order(journal)) {
        RankStep entry = journal.steps.at(step);
        const auto known = to.journal().steps.find(step);
        if (is_superseded(to.journal(), step, entry)) continue;
        if (known != to.journal().steps.end() &&
            attempt_of(known->second.folder) == attempt_of(entry.folder)) {
            if (known->second.files.header_checksum != entry.files.header_checksum) {
                lost(step, another_step(to.path(), step));
            }
            continue;
        }
        // A step that cannot be read may have been dropped or captured again meanwhile: the part's
        // journal is read again.
        Result<> copied = flush_step(from, step, entry, to);
        bool dropped = false;
        while (!copied && !dropped) {
            const auto now = LocalHistory::read(from);
            if (!now) break;
            const auto current = now->journal.steps.find(step);
            dropped = current == now->journal.steps.end();
            if (dropped || current->second == entry) break;
            entry = current->second;
            copied = flush_step(from, step, entry, to);
        }
        if (dropped) continue;
        if (!copied) {
            lost(step, copied.error());
            continue;
        }
        if (!to.journal().steps.contains(step)) continue;  // it was removed from the record
        ++facts.steps;
        facts.bytes += entry.files.data_bytes + entry.files.metadata_bytes;
    }
    return facts;
}

Result<> check_history_id(const std::string& local, const HistoryId& part_of, const std::string& history,
                          const HistoryId& id) {
    if (part_of.empty() || part_of == id) return success();
    return Error{ErrorCode::mismatch,
                 history + ": is not the history that " + local +
                     " was begun for: copy its steps to another folder with 'twinrun flush --to'"};
}

Result<HistoryId> id_of_parts(const std::vector<std::string>& parts, const std::string& history) {
    HistoryId id;
    std::string first;
    if (History::exists(history)) return id;  // flush_folder() compares each part with it
    for (const std::string& part : parts) {
        TWR_TRY(const LocalHistory local, LocalHistory::read(part));
        if (local.history_id.empty()) continue;
        if (id.empty()) {
            id = local.history_id;
            first = part;
        } else if (id != local.history_id) {
            return Error{ErrorCode::mismatch,
                         part + ": is a part of another run than " + first +
                             ", and their steps would be mixed: copy the ranks' folders of each run to a "
                             "folder of its own with 'twinrun flush --to', or move away those of the other "
                             "run"};
        }
    }
    return id;
}

Result<FlushFacts> flush_folder(FileSystem& system, const std::string& local, const std::string& history,
                                const std::function<void(std::int64_t, const Error&)>& lost,
                                const HistoryId& id) {
    TWR_TRY(const LocalHistory from, LocalHistory::read(local));
    if (first_below(history, local)) {
        return Error{ErrorCode::invalid_argument,
                     history + ": is the folder of the part itself, or lies in it: name another folder"};
    }
    // Before the history is touched: opening it begins the journal of a rank that has none.
    if (History::exists(history)) {
        TWR_TRY(const HistoryId there, read_history_id(history));
        TWR_CHECK(check_history_id(local, from.history_id, history, there));
    }
    TWR_TRY(const auto to,
            HistoryWriter::open(system, history, from.settings, from.rank, from.ranks, Existing::append,
                                from.history_id.empty() ? id : from.history_id));
    // open() waits for a process that writes the history, which may have changed the part too: read
    // it again.
    TWR_TRY(const LocalHistory now, LocalHistory::read(local));
    if (now.history != from.history || now.history_id != from.history_id || now.settings != from.settings ||
        now.rank != from.rank || now.ranks != from.ranks) {
        return Error{ErrorCode::mismatch, local + ": another run has begun to use it: try again"};
    }
    TWR_CHECK(check_history_id(local, now.history_id, history, to->id()));
    return flush_steps(local, now.journal, *to, lost);
}

}  // namespace twinrun
