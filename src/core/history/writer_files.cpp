#include "history/writer.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "history/journal.hpp"
#include "history/step_folders.hpp"
#include "metadata/metadata.hpp"
#include "platform/comm.hpp"

namespace twinrun {

namespace {

namespace fs = std::filesystem;

// It tells how large the data beside it is: whoever dies in between leaves what the next one can
// tell.
void metadata_last(std::vector<std::string>& names) {
    std::stable_partition(names.begin(), names.end(),
                          [](const std::string& name) { return !name.ends_with(kMetadataSuffix); });
}

}  // namespace

// A folder that this history made, or one that was here before it.
bool HistoryWriter::is_own(const std::string& folder) const {
    return is_marked(path_, folder, id_) ||
           std::any_of(replaced_.begin(), replaced_.end(),
                       [&](const HistoryId& id) { return is_marked(path_, folder, id); });
}

Result<> HistoryWriter::make_folder(const std::string& name) const {
    TWR_CHECK(check_place());
    const std::string folder = (fs::path(path_) / name).string();
    TWR_TRY(const bool made, system().make_marked_folder(folder, marker_name(id_)));
    // Or one that was made before there were markers.
    if (made || is_marked(path_, name, id_) || (!has_id_ && is_named(name))) return mark_begun(name);
    return Error{
        ErrorCode::invalid_argument,
        folder +
            ": is there already, and this history did not make it: move it away, or name another folder "
            "for the history"};
}

std::string HistoryWriter::folder_for(std::int64_t step, std::uint32_t attempt) const {
    for (;; ++attempt) {
        std::string name = step_folder(step, attempt);
        if (!is_there((fs::path(path_) / name).string())) return name;
        if (is_marked(path_, name, id_) && (rank_ != 0 || unnamed_files(name).empty())) return name;
    }
}

// Whoever dies in between leaves what the next one can tell. And what cannot be marked could not be
// removed: the history that is there stays as it is.
Result<> HistoryWriter::mark_left(const HistoryId& id, const std::vector<std::string>& folders) const {
    std::vector<std::string> made;
    for (const std::string& folder : folders) {
        const fs::path place = fs::path(path_) / folder;
        const std::string file = (place / left_name(id)).string();
        if (!is_marked(path_, folder, id) || is_there(file)) continue;
        Result<> marked = success();
        if (auto mark = system().create(file, 0); !mark) {
            marked = std::move(mark).error();
        } else {
            marked = (*mark)->close();
            made.push_back(file);
            if (marked) marked = system().sync_folder(place.string());
        }
        if (marked) continue;
        for (const std::string& other : made)
            static_cast<void>(system().remove(other));
        return std::move(marked).error().at(path_ + ": cannot be replaced");
    }
    return success();
}

Result<> HistoryWriter::mark_begun(const std::string& folder) const {
    const std::string file = (fs::path(path_) / folder / begun_name(rank_)).string();
    if (is_there(file)) return success();
    TWR_TRY(const auto made, system().create(file, 0));
    return made->close();
}

bool HistoryWriter::mark_leaving(const std::string& folder) const {
    // Where it cannot be marked, on a full disk for instance, what a killed process leaves stays.
    if (has_id_ && !is_own(folder)) return false;
    const std::string place = (fs::path(path_) / folder).string();
    if (is_begun_by(place, rank_) || !mark_begun(folder)) return false;
    static_cast<void>(system().sync_folder(place));
    return true;
}

// Lines say it: what these folders have and no line names goes, and what is `whole` is all named.
// As far as that goes.
void HistoryWriter::clear(const std::set<std::string>& leaving, std::set<std::string> whole) {
    for (const std::string& folder : leaving) {
        if (!remove_unnamed(folder)) whole.erase(folder);
    }
    for (const std::string& folder : whole)
        settle(folder);
}

void HistoryWriter::settle(const std::string& folder) const {
    // Where it cannot be removed, the next process does so.
    if (const fs::path place = fs::path(path_) / folder; is_begun_by(place.string(), rank_))
        static_cast<void>(system().remove((place / begun_name(rank_)).string()));
}

bool HistoryWriter::is_named(const std::string& folder) const {
    return std::any_of(journal_.steps.begin(), journal_.steps.end(),
                       [&](const auto& step) { return step.second.folder == folder; }) ||
           std::any_of(journal_.differences.begin(), journal_.differences.end(),
                       [&](const auto& difference) { return difference.second.starts_with(folder + "/"); });
}

std::vector<std::string> HistoryWriter::unnamed_files(const std::string& folder) const {
    std::set<std::string> named;
    for (const auto& [ordinal, file] : journal_.differences) {
        if (file.starts_with(folder + "/")) named.insert(file.substr(folder.size() + 1));
    }
    for (const auto& [step, files] : journal_.steps) {
        if (files.folder != folder) continue;
        named.insert(files.files.metadata);
        named.insert(files.files.data);
    }
    std::vector<std::string> names;
    for (const auto& [name, is_file, is_folder] : entries_of((fs::path(path_) / folder).string())) {
        if (is_file && is_step_file(name, rank_) && !named.contains(name)) names.push_back(name);
    }
    return names;
}

// Files of several ranks are made where histories may have them only.
bool HistoryWriter::proves(const std::string& folder, const std::string& name) const {
    return (shared_ || !replaced_.empty() || !name.starts_with(kSharedPrefix)) && is_proven(folder, name);
}

// Of folders that say that a rank has begun. What a whole step has stays elsewhere, though no line
// names it: the journal may have been restored from an older copy, or the folder may have got
// another name, or be a copy.
Result<> HistoryWriter::remove_leftovers() {
    const bool leads = rank_ == 0 || local_;  // no other rank writes yet
    std::set<std::string> known;
    for (const auto& [step, files] : journal_.steps)
        known.insert(files.folder);
    for (const auto& [ordinal, file] : journal_.differences)
        known.insert(file.substr(0, file.find('/')));
    for (const std::string& name : folders_of_steps(path_)) {
        const std::string place = (fs::path(path_) / name).string();
        if (leads && has_mark(place, left_name(id_)))  // this history was not replaced after all
            TWR_CHECK(system().remove((fs::path(place) / left_name(id_)).string()));
        if (is_unnamed_folder(name)) {
            if (leads && is_marked(path_, name, id_)) TWR_CHECK(remove_files(name, rank_));
            if (leads) TWR_CHECK(system().remove_empty_folder(place));
        } else if (known.contains(name)) {
            if (is_begun_by(place, rank_)) TWR_CHECK(remove_unnamed(name));
        } else if (is_marked(path_, name, id_)) {
            TWR_CHECK(remove_files(name, rank_, is_begun_by(place, rank_) ? MayGo{} : is_temporary));
        } else if (leads && is_own(name)) {
            // Of a history that is not there any more.
            const bool left = std::any_of(replaced_.begin(), replaced_.end(), [&](const HistoryId& id) {
                return has_mark(place, left_name(id));
            });
            TWR_CHECK(remove_files(name, std::nullopt, left ? MayGo{} : is_temporary));
        }
    }
    // Manifests and journals that did not get their names.
    std::vector<HistoryId> ours = replaced_;
    ours.push_back(has_id_ ? id_ : "");
    for (const auto& [name, is_file, is_folder] : entries_of(path_)) {
        const std::string file = (fs::path(path_) / name).string();
        if (!is_file || !is_temporary(name)) continue;
        const std::string becomes = name_of_temporary(name);
        if ((becomes == rank_name(rank_) + ".jsonl" && is_begun_lines(file, ours)) ||
            (leads && becomes == "manifest.jsonl" && is_begun_lines(file, {})))
            TWR_CHECK(system().remove(file));
    }
    return success();
}

// Of a history that has just been replaced: what its journals name, and the journals of ranks that
// the new one may not have.
Result<> HistoryWriter::remove_replaced(const History& had, const std::vector<std::string>& folders) {
    const auto of_its_ranks = [&](const std::string& name) { return rank_of(name) < had.ranks; };
    for (const std::string& folder : folders) {
        TWR_CHECK(remove_files(folder, std::nullopt, of_its_ranks, !had.has_id));
        // Where other files stay, they stay.
        const fs::path place = fs::path(path_) / folder;
        if (has_mark(place.string(), left_name(had.id)))
            TWR_CHECK(system().remove((place / left_name(had.id)).string()));
    }
    if (had.ranks == 1) return success();
    for (const std::uint32_t rank : ranks_with_journals(path_, had.ranks)) {
        const std::string file = journal_path(path_, rank, had.ranks);
        const auto head = journal_head(file);
        if (head && head->id == (had.has_id ? had.id : "")) TWR_CHECK(system().remove(file));
    }
    return success();
}

// named: a journal from before there were markers says that the folder is ours.
Result<> HistoryWriter::remove_files(const std::string& folder, std::optional<std::uint32_t> rank,
                                     const MayGo& may_go, bool named) {
    const fs::path place = fs::path(path_) / folder;
    std::error_code ignored;
    if (fs::symlink_status(place, ignored).type() != fs::file_type::directory) return success();
    if (!named && has_id_ && !is_own(folder)) return success();
    std::vector<std::string> names;
    std::vector<std::string> begun;
    std::vector<std::string> shared;
    std::set<std::string> proven;  // of those: metadata that proves it goes before them
    std::vector<std::string> markers;
    bool others = false;
    const auto list = [&] {
        names.clear();
        begun.clear();
        shared.clear();
        markers.clear();
        others = false;
        for (const auto& [name, is_file, is_folder] : entries_of(place.string())) {
            if (!is_file) {
                others = true;
            } else if (is_step_file(name, rank) && (!may_go || may_go(name)) &&
                       proves(place.string(), name)) {
                names.push_back((place / name).string());
            } else if (is_begun_name(name) && (!rank || rank_of(name) == *rank) &&
                       is_begun_by(place.string(), rank_of(name))) {
                begun.push_back((place / name).string());
            } else if (name.starts_with(kSharedPrefix) &&
                       (proven.contains(name) || proves(place.string(), name))) {
                proven.insert(name);
                shared.push_back((place / name).string());
            } else if (name == marker_name(id_) ||
                       std::any_of(replaced_.begin(), replaced_.end(), [&, &file = name](const auto& id) {
                           return file == marker_name(id) ||
                                  (file == left_name(id) && has_mark(place.string(), file));
                       })) {
                markers.push_back((place / name).string());
            } else {
                others = true;
            }
        }
    };
    list();
    metadata_last(names);
    names.insert(names.end(), begun.begin(), begun.end());  // which says that the others may go
    for (const std::string& name : names)
        TWR_CHECK(system().remove(name));
    // The last rank to leave takes what is of all: each looks once its own files are gone, so that
    // two that leave at once do not both leave it to the other.
    if (!names.empty()) list();
    if (others) return success();
    for (const std::string& name : shared)
        TWR_CHECK(system().remove(name));
    return remove_marked_folder(place.string(), markers);
}

// Only an empty folder goes. One that another rank puts a file into meanwhile gets its marker back:
// whose it is can be told.
Result<> HistoryWriter::remove_marked_folder(const std::string& folder,
                                             const std::vector<std::string>& markers) {
    for (const std::string& name : markers)
        TWR_CHECK(system().remove(name));
    const auto gone = system().remove_empty_folder(folder);
    if (gone && !is_there(folder)) return success();
    for (const std::string& name : markers) {
        auto marker = system().create(name, 0);
        if (!marker && is_there(name)) continue;  // another rank was faster
        if (!marker) return is_there(folder) ? Result<>(marker.error()) : success();
        TWR_CHECK((*marker)->close());
    }
    return system().sync_folder(folder);
}

// Files of this rank that neither a step nor a difference has.
Result<> HistoryWriter::remove_unnamed(const std::string& folder) {
    if (!is_named(folder)) return remove_files(folder);
    if (has_id_ && !is_own(folder)) return success();
    const fs::path place = fs::path(path_) / folder;
    std::vector<std::string> names;
    for (const std::string& name : unnamed_files(folder)) {
        if (proves(place.string(), name)) names.push_back((place / name).string());
    }
    metadata_last(names);
    for (const std::string& name : names)
        TWR_CHECK(system().remove(name));
    settle(folder);
    return success();
}

}  // namespace twinrun
