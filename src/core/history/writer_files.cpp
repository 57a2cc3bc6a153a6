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

// Puts metadata at the end. It proves the data file beside it: if the process dies between two
// removals, the next process can still prove the files that are left.
void metadata_last(std::vector<std::string>& names) {
    std::stable_partition(names.begin(), names.end(),
                          [](const std::string& name) { return !name.ends_with(kMetadataSuffix); });
}

}  // namespace

bool HistoryWriter::is_own(const std::string& folder) const {
    return is_marked(path_, folder, id_) ||
           std::any_of(replaced_.begin(), replaced_.end(),
                       [&](const HistoryId& id) { return is_marked(path_, folder, id); });
}

Result<> HistoryWriter::make_folder(const std::string& name) const {
    TWR_CHECK(check_place());
    const std::string folder = (fs::path(path_) / name).string();
    TWR_TRY(const bool made, system().make_marked_folder(folder, marker_name(id_)));
    if (!made) TWR_CHECK(mark_empty(name));
    // The last case: the folder was made before there were markers.
    if (made || is_marked(path_, name, id_) || (!has_id_ && is_named(name))) return mark_begun(name);
    return Error{
        ErrorCode::invalid_argument,
        folder +
            ": is there already, and this history did not make it: move it away, or name another folder "
            "for the history"};
}

// A process that was killed in remove_marked_folder() has left an empty folder without a marker. It
// gets its marker back: under no other name could the same attempt at the step be brought here
// again.
Result<> HistoryWriter::mark_empty(const std::string& name) const {
    const fs::path place = fs::path(path_) / name;
    std::error_code failure;
    if (fs::symlink_status(place, failure).type() != fs::file_type::directory || failure ||
        !fs::is_empty(place, failure) || failure)
        return success();
    const std::string marker = (place / marker_name(id_)).string();
    auto file = system().create(marker, 0);
    if (!file) return is_there(marker) ? success() : Result<>(file.error());  // another rank was faster
    TWR_CHECK((*file)->close());
    return system().sync_folder(place.string());
}

std::string HistoryWriter::folder_for(std::int64_t step, std::uint32_t attempt) const {
    for (;; ++attempt) {
        std::string name = step_folder(step, attempt);
        if (!is_there((fs::path(path_) / name).string())) return name;
        if (is_marked(path_, name, id_) && (rank_ != 0 || unnamed_files(name).empty())) return name;
    }
}

// The marks are there before the new manifest: if the process dies in between, the next one knows
// which folders may be removed. If a folder cannot be marked, the marks are removed again, and the
// old history stays.
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
    // If it cannot be marked, for example on a full disk, files that a killed process leaves will
    // not be removed.
    if (has_id_ && !is_own(folder)) return false;
    const std::string place = (fs::path(path_) / folder).string();
    if (is_begun_by(place, rank_) || !mark_begun(folder)) return false;
    static_cast<void>(system().sync_folder(place));
    return true;
}

void HistoryWriter::clear(const std::set<std::string>& leaving, std::set<std::string> complete) {
    for (const std::string& folder : leaving) {
        if (!remove_unnamed(folder)) complete.erase(folder);
    }
    for (const std::string& folder : complete)
        unmark_begun(folder);
}

void HistoryWriter::unmark_begun(const std::string& folder) const {
    if (const fs::path place = fs::path(path_) / folder; is_begun_by(place.string(), rank_))
        static_cast<void>(system().remove((place / begun_name(rank_)).string()));
}

bool HistoryWriter::is_named(const std::string& folder) const {
    return journal_.steps.names_folder(folder) ||
           std::any_of(journal_.differences.begin(), journal_.differences.end(), [&](const auto& difference) {
               return difference.second.file.starts_with(folder + "/");
           });
}

std::vector<std::string> HistoryWriter::unnamed_files(const std::string& folder) const {
    std::set<std::string> named;
    for (const auto& [ordinal, place] : journal_.differences) {
        if (place.file.starts_with(folder + "/")) named.insert(place.file.substr(folder.size() + 1));
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

bool HistoryWriter::proves(const std::string& folder, const std::string& name) const {
    return (shared_ || !replaced_.empty() || !name.starts_with(kSharedPrefix)) && is_proven(folder, name);
}

// Removes files that earlier processes left. Files with final names are removed only from folders
// that are marked as begun, or left by a replaced history. Elsewhere complete steps stay though no
// line names them: the journal may have been restored from an older copy, or the folder was renamed
// or copied. Temporary files are removed from all folders of this history.
Result<> HistoryWriter::remove_leftovers() {
    const bool leads = rank_ == 0 || local_;  // then no other rank writes here yet
    std::set<std::string> known;
    for (const auto& [step, files] : journal_.steps)
        known.insert(files.folder);
    for (const auto& [ordinal, difference] : journal_.differences)
        known.insert(difference.file.substr(0, difference.file.find('/')));
    for (const std::string& name : folders_of_steps(path_)) {
        const std::string place = (fs::path(path_) / name).string();
        // This history was to be replaced, and was not.
        if (leads && has_mark(place, left_name(id_)))
            TWR_CHECK(system().remove((fs::path(place) / left_name(id_)).string()));
        if (is_unnamed_folder(name)) {
            if (leads && is_marked(path_, name, id_)) TWR_CHECK(remove_files(name, rank_));
            if (leads) TWR_CHECK(system().remove_empty_folder(place));
        } else if (known.contains(name)) {
            if (is_begun_by(place, rank_)) TWR_CHECK(remove_unnamed(name));
        } else if (is_marked(path_, name, id_)) {
            TWR_CHECK(remove_files(name, rank_, is_begun_by(place, rank_) ? MayGo{} : is_temporary));
        } else if (leads && is_own(name)) {
            // The folder of an earlier history.
            const bool left = std::any_of(replaced_.begin(), replaced_.end(), [&](const HistoryId& id) {
                return has_mark(place, left_name(id));
            });
            const MayGo begun = [&](const std::string& file) {
                return is_temporary(file) || is_begun_by(place, rank_of(file));
            };
            TWR_CHECK(remove_files(name, std::nullopt, left ? MayGo{} : begun));
        }
    }
    // Manifests and journals that did not get their final names.
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

Result<> HistoryWriter::remove_replaced(const History& replaced, const std::vector<std::string>& folders) {
    const auto of_its_ranks = [&](const std::string& name) { return rank_of(name) < replaced.ranks; };
    for (const std::string& folder : folders) {
        TWR_CHECK(remove_files(folder, std::nullopt, of_its_ranks, !replaced.has_id));
        // If the folder still exists, because it has other files, these stay from now on.
        const fs::path place = fs::path(path_) / folder;
        if (has_mark(place.string(), left_name(replaced.id)))
            TWR_CHECK(system().remove((place / left_name(replaced.id)).string()));
    }
    if (replaced.ranks == 1) return success();
    for (const std::uint32_t rank : ranks_with_journals(path_, replaced.ranks)) {
        const std::string file = journal_path(path_, rank, replaced.ranks);
        const auto head = journal_head(file);
        if (head && head->id == (replaced.has_id ? replaced.id : "")) TWR_CHECK(system().remove(file));
    }
    return success();
}

Result<> HistoryWriter::remove_files(const std::string& folder, std::optional<std::uint32_t> rank,
                                     const MayGo& may_go, bool named) {
    const fs::path place = fs::path(path_) / folder;
    std::error_code ignored;
    if (fs::symlink_status(place, ignored).type() != fs::file_type::directory) return success();
    if (!named && has_id_ && !is_own(folder)) return success();
    std::vector<std::string> names;
    std::vector<std::string> begun;
    std::vector<std::string> shared;
    // Shared files: the metadata that proves them is removed before them.
    std::set<std::string> proven;
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
    // last: the marks allow to remove the others
    names.insert(names.end(), begun.begin(), begun.end());
    for (const std::string& name : names)
        TWR_CHECK(system().remove(name));
    // The last rank removes shared files and the folder. Each rank lists the folder again after its
    // own files are removed: otherwise two ranks at the same time could each leave them to the
    // other.
    if (!names.empty()) list();
    if (others) return success();
    for (const std::string& name : shared)
        TWR_CHECK(system().remove(name));
    return remove_marked_folder(place.string(), markers);
}

// Removes the markers, and then the folder if it is empty. If another rank has put a file into it
// meanwhile, the markers are made again, so that the folder's owner stays known.
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

// Removes this rank's files that neither a step nor a difference names.
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
    unmark_begun(folder);
    return success();
}

}  // namespace twinrun
