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

// Brings a difference over without its step, which was captured again or cannot be read.
Result<> bring_difference(const std::string& path, std::uint32_t ordinal, HistoryWriter& to,
                          std::mutex* mutex) {
    FileSystem& system = to.system();
    const std::string name = std::string(kLeftoversFolder) + "/" + rank_name(to.rank()) + ".difference-" +
                             std::to_string(ordinal) + ".twr";
    const fs::path target = fs::path(to.path()) / name;
    TWR_CHECK(to.make_folder(kLeftoversFolder));
    if (!is_intact_difference(target.string(), ordinal)) {
        TWR_TRY(const auto bytes, InputFile::open(path));
        const std::string temporary = temporary_name(target.string());
        TWR_CHECK(copy_file(system, *bytes, temporary));
        TWR_CHECK(system.rename(temporary, target.string()));
        TWR_CHECK(system.sync_folder(target.parent_path().string()));
    }
    const auto guard = lock_of(mutex);
    return to.add_difference(ordinal, name);
}

Error another_step(const std::string& path, std::int64_t step) {
    return {ErrorCode::mismatch, path + ": has another step " + std::to_string(step) +
                                     ": bring this one elsewhere with 'twinrun flush --to'"};
}

// Brings over what the difference at `path` has chunks from, before the difference itself: then it
// can be read even if the tier is lost. from: `path` is one of its differences; its journal is read
// into `journal` when it is needed.
Result<> bring_needed(const std::string& from, const std::string& path, std::optional<Journal>& journal,
                      HistoryWriter& to, std::mutex* mutex) {
    TWR_TRY(const auto file, DifferenceFile::open(path));
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
        const auto had = journal->differences.find(ordinal);
        if (had == journal->differences.end()) {
            return Error{ErrorCode::not_found,
                         path + ": needs difference " + std::to_string(ordinal) + ", which is not there"};
        }
        const std::string place = (fs::path(from) / had->second).string();
        TWR_TRY(const auto other, DifferenceFile::open(place));
        if (other->difference().ordinal != ordinal)
            return Error{ErrorCode::damaged, place + ": is not the difference that the journal names"};
        TWR_CHECK(check_blocks(*other));
        // Each needs smaller ordinals only: this ends.
        TWR_CHECK(bring_needed(from, place, journal, to, mutex));
        TWR_CHECK(bring_difference(place, ordinal, to, mutex));
    }
    return success();
}

}  // namespace

Result<> flush_step(const std::string& from, std::int64_t step, const RankStep& entry, HistoryWriter& to,
                    std::mutex* mutex) {
    const std::uint32_t ordinal = entry.files.difference;
    const std::string data = (fs::path(from) / entry.folder / entry.files.data).string();
    std::optional<Journal> journal;
    bool there = false;
    bool superseded = false;
    {
        const auto guard = lock_of(mutex);
        const auto& steps = to.journal().steps;
        const auto had = steps.find(step);
        there = to.has(step, entry);
        // It was committed, and retention removed its data meanwhile: the data must not come back,
        // and the step's files are not touched.
        if (!there && had != steps.end() && had->second.folder == entry.folder) {
            return had->second.files.header_checksum == entry.files.header_checksum
                       ? success()
                       : Result<>(another_step(to.path(), step));
        }
        superseded = !there && is_superseded(to.journal(), step, entry);
        const Journal& known = to.journal();
        if (superseded &&
            (ordinal == kNoBase || known.differences.contains(ordinal) || known.taken.contains(ordinal)))
            return success();
        // A step that left its record must not come back either; if its difference is another
        // step's now, commit() reports that.
        if (!there && ordinal != kNoBase && to.journal().taken.contains(ordinal) &&
            std::none_of(steps.begin(), steps.end(),
                         [&](const auto& other) { return other.second.files.difference == ordinal; })) {
            return success();
        }
    }
    if (superseded) {  // later steps may need what was new in it
        TWR_CHECK(bring_needed(from, data, journal, to, mutex));
        return bring_difference(data, ordinal, to, mutex);
    }
    if (!there) {
        if (ordinal != kNoBase) TWR_CHECK(bring_needed(from, data, journal, to, mutex));
        // The very files may be there, where the journal was restored from an older copy.
        const fs::path folder = fs::path(to.path()) / entry.folder;
        if (!is_marked(to.path(), entry.folder, to.id()) || !is_intact(to.path(), entry) ||
            (ordinal != kNoBase && !is_intact_difference((folder / entry.files.data).string(), ordinal)))
            TWR_CHECK(copy_step(from, entry, to));
    }
    {
        const auto guard = lock_of(mutex);
        if (!is_superseded(to.journal(), step, entry)) {
            const HistoryWriter::Commit commit{step, entry};
            return to.commit({&commit, 1});
        }
        // A newer attempt has come past the tier while this one was copied.
        if (to.sure()) static_cast<void>(to.remove_files(entry.folder));
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
        const auto had = to.journal().steps.find(step);
        if (is_superseded(to.journal(), step, entry)) continue;
        if (had != to.journal().steps.end() && attempt_of(had->second.folder) == attempt_of(entry.folder)) {
            if (had->second.files.header_checksum != entry.files.header_checksum) {
                lost(step, another_step(to.path(), step));
            }
            continue;
        }
        // A step that cannot be read may have left, or was captured again: read the part's journal
        // again.
        Result<> copied = flush_step(from, step, entry, to);
        bool left = false;
        while (!copied && !left) {
            const auto now = LocalHistory::read(from);
            if (!now) break;
            const auto there = now->journal.steps.find(step);
            left = there == now->journal.steps.end();
            if (left || there->second == entry) break;
            entry = there->second;
            copied = flush_step(from, step, entry, to);
        }
        if (left) continue;
        if (!copied) {
            lost(step, copied.error());
            continue;
        }
        if (!to.journal().steps.contains(step)) continue;  // it left the record
        ++facts.steps;
        facts.bytes += entry.files.data_bytes + entry.files.metadata_bytes;
    }
    return facts;
}

Result<> check_of(const std::string& local, const HistoryId& of, const std::string& history,
                  const HistoryId& id) {
    if (of.empty() || of == id) return success();
    return Error{ErrorCode::mismatch,
                 history + ": is not the history that " + local +
                     " was begun for: bring its steps to another folder with 'twinrun flush --to'"};
}

Result<HistoryId> id_of_parts(const std::vector<std::string>& parts, const std::string& history) {
    HistoryId id;
    std::string first;
    if (History::exists(history)) return id;  // each part is held against it
    for (const std::string& part : parts) {
        TWR_TRY(const LocalHistory local, LocalHistory::read(part));
        if (local.of.empty()) continue;
        if (id.empty()) {
            id = local.of;
            first = part;
        } else if (id != local.of) {
            return Error{ErrorCode::mismatch,
                         part + ": is a part of another run than " + first +
                             ", and their steps would be mixed: bring the ranks' folders of each run to a "
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
        TWR_CHECK(check_of(local, from.of, history, there));
    }
    TWR_TRY(const auto to, HistoryWriter::open(system, history, from.settings, from.rank, from.ranks,
                                               Existing::append, from.of.empty() ? id : from.of));
    // Who wrote the history till now may have changed the part too.
    TWR_TRY(const LocalHistory now, LocalHistory::read(local));
    if (now.history != from.history || now.of != from.of || now.settings != from.settings ||
        now.rank != from.rank || now.ranks != from.ranks) {
        return Error{ErrorCode::mismatch, local + ": another run has taken it meanwhile: try again"};
    }
    TWR_CHECK(check_of(local, now.of, history, to->id()));
    return flush_steps(local, now.journal, *to, lost);
}

}  // namespace twinrun
