#include "history/history.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "history/journal.hpp"

namespace twinrun {

namespace fs = std::filesystem;

Result<> check_manifest(const std::string& path, const char* what) {
    if (History::exists(path)) return success();
    const std::string file = manifest_path(path);
    std::error_code why;
    const auto kind = fs::symlink_status(file, why).type();
    if (kind == fs::file_type::none)
        return Error{ErrorCode::io,
                     path + ": cannot be read: " + why.message() +
                         (why == std::errc::permission_denied ? "; check owner and permissions" : "")};
    const char* const is = kind == fs::file_type::directory ? "a folder"
                           : kind == fs::file_type::symlink ? "a link that leads to no file"
                           : kind == fs::file_type::fifo    ? "a pipe"
                           : is_there(file)                 ? "not a regular file"
                                                            : nullptr;
    if (is == nullptr) {
        const auto at = fs::status(path, why).type();
        if (at == fs::file_type::not_found && is_there(path))
            return Error{ErrorCode::not_found,
                         path + ": is a symbolic link to what is not there; mend the link"};
        if (at == fs::file_type::not_found)
            return Error{ErrorCode::not_found, path + ": no such file or folder; check the path"};
        const std::string not_one = path + ": not " + what;
        if (at != fs::file_type::directory)
            return Error{ErrorCode::not_found,
                         not_one + ": it is a file; name the folder that a run was captured into"};
        return Error{ErrorCode::not_found, not_one +
                                               ": there is no manifest.jsonl in it; name the folder that a "
                                               "run was captured into"};
    }
    return Error{ErrorCode::damaged, file + ": damaged: is " + is +
                                         ", where the manifest of a history is expected: restore the file "
                                         "from a copy, or move it away if it "
                                         "is not twinrun's"};
}

bool was_dropped(const Journal& journal, std::int64_t number, const RankStep& step) {
    const auto dropped = journal.dropped.find(number);
    return dropped != journal.dropped.end() && attempt_of(step.folder) <= dropped->second;
}

bool is_superseded(const Journal& journal, std::int64_t number, const RankStep& step) {
    const auto known = journal.steps.find(number);
    if (known == journal.steps.end()) return was_dropped(journal, number, step);
    return attempt_of(known->second.folder) > attempt_of(step.folder);
}

bool History::exists(const std::string& path) {
    std::error_code ignored;
    return fs::is_regular_file(manifest_path(path), ignored);
}

Result<History> History::open(const std::string& path) {
    History history;
    Journal manifest;
    if (auto read = read_manifest(path, history, manifest); !read) {
        TWR_CHECK(check_manifest(path, "a history"));
        return std::move(read).error();
    }
    TWR_CHECK(take_journals(history, std::move(manifest)));
    return history;
}

Result<> take_journals(History& history, Journal manifest) {
    const std::string& path = history.path;
    std::map<std::int64_t, std::vector<RankStep>> steps;
    history.torn = manifest.torn;
    TWR_CHECK(check_journals(path, history.ranks));
    for (const std::uint32_t rank : ranks_with_journals(path, history.ranks)) {
        Journal own;
        if (history.ranks > 1) {
            TWR_CHECK(read_journal(history, rank, history.ranks, own));
            history.torn = history.torn || own.torn;
        }
        Journal& journal = history.ranks == 1 ? manifest : own;
        for (const auto& [step, files] : journal.steps)
            steps[step].push_back(files);
        for (auto& facts : journal.provenance)
            history.provenance.push_back({rank, std::move(facts)});
    }
    for (auto& step_parts : steps) {  // no structured binding: clang before 16 cannot capture one
        const std::int64_t number = step_parts.first;
        std::vector<RankStep>& ranks = step_parts.second;
        // While some ranks have captured the step again and others have not, their files belong to
        // different attempts.
        const bool whole = ranks.size() == history.ranks &&
                           std::all_of(ranks.begin(), ranks.end(),
                                       [&](const RankStep& r) { return r.folder == ranks.front().folder; });
        if (!whole) {
            history.incomplete.push_back(number);
            continue;
        }
        HistoryStep step{number, ranks.front().folder, {}};
        for (RankStep& r : ranks)
            step.ranks.push_back(std::move(r.files));
        history.steps.push_back(std::move(step));
    }
    return success();
}

Result<HistorySettings> read_history_settings(const std::string& path, std::uint32_t& ranks) {
    TWR_CHECK(check_manifest(path, "a history"));
    History history;
    Journal ignored;
    TWR_CHECK(read_manifest(path, history, ignored));
    ranks = history.ranks;
    return std::move(history.settings);
}

Result<HistoryId> read_history_id(const std::string& path) {
    History history;
    Journal ignored;
    TWR_CHECK(read_manifest(path, history, ignored));
    return std::move(history.id);
}

Result<> check_children(const std::string& path, const Journal& journal, bool forget_missing) {
    for (const std::string& child : journal.children) {
        const auto refused = [&](const std::string& why) {
            return Error{ErrorCode::invalid_argument, path + ": " + child + why};
        };
        if (!is_there(child)) {
            if (forget_missing) continue;
            return refused(
                " was recorded against it, and is not there: if it was moved, move it back, because it needs "
                "what "
                "would be removed; if it was deleted, use 'twinrun compact --forget-missing'");
        }
        std::uint32_t ranks = 0;
        const auto settings = read_history_settings(child, ranks);
        if (!settings) {
            return refused(" was recorded against it, and cannot be read (" + settings.error().message +
                           "): restore it from a copy, or remove it");
        }
        if (!settings->record) continue;  // another history has taken the child's place
        const std::string against = absolute_path(settings->record->against);
        if (against == absolute_path(path))
            return refused(
                " is recorded against it, and needs what would be removed: remove that record first");
        if (!against.empty() && !is_there(against))
            return refused(" is recorded against " + against +
                           ", which is not there: if this record had that name earlier, rename it back");
    }
    return success();
}

bool LocalHistory::belongs_to(const HistorySettings& other, std::uint32_t other_rank,
                              std::uint32_t other_ranks, const std::string& other_history,
                              const HistoryId& other_id) const {
    return settings == other && rank == other_rank && ranks == other_ranks && history == other_history &&
           (history_id.empty() || other_id.empty() || history_id == other_id);
}

Result<LocalHistory> LocalHistory::read(const std::string& path) {
    History history;
    Journal manifest;
    LocalHistory local;
    if (auto read = read_manifest(path, history, manifest, &local); !read) {
        TWR_CHECK(check_manifest(path, "a node-local part of a history"));
        return std::move(read).error();
    }
    TWR_CHECK(take_journal(local, history, std::move(manifest)));
    return local;
}

Result<> take_journal(LocalHistory& local, const History& history, Journal manifest) {
    local.id = history.id;
    local.has_id = history.has_id;
    local.replaced = history.replaced;
    local.settings = history.settings;
    local.ranks = history.ranks;
    if (local.ranks == 1) {
        local.journal = std::move(manifest);
        return success();
    }
    return read_journal(history, local.rank, local.ranks, local.journal);
}

}  // namespace twinrun
