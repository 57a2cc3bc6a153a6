#include "history/writer.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>

#include "base/checked.hpp"
#include "history/flushed.hpp"
#include "history/journal.hpp"
#include "history/journal_line.hpp"
#include "metadata/metadata.hpp"
#include "platform/comm.hpp"

namespace twinrun {

namespace {

namespace fs = std::filesystem;

// What has a manifest's name and is no file of its own can be nothing that twinrun made.
Result<> check_regular(const std::string& path) {
    std::error_code failure;
    const auto kind = fs::symlink_status(path, failure).type();
    if (kind == fs::file_type::not_found || kind == fs::file_type::regular) return success();
    return Error{
        ErrorCode::invalid_argument,
        path +
            ": is there, and is no regular file (a link, a folder, a pipe): move it away, or name another "
            "folder"};
}

// It tells how large the data beside it is: whoever dies in between leaves what the next one can
// tell.
void metadata_last(std::vector<std::string>& names) {
    std::stable_partition(names.begin(), names.end(),
                          [](const std::string& name) { return !name.ends_with(kMetadataSuffix); });
}

// A rank makes its part's folder itself: a link there may lead anywhere.
Result<> check_no_link(const std::string& path) {
    std::error_code ignored;
    if (fs::symlink_status(path, ignored).type() != fs::file_type::symlink) return success();
    return Error{ErrorCode::invalid_argument,
                 path +
                     ": is a link, where a rank makes its own folder: remove the link, or name another "
                     "folder as the node-local tier"};
}

// Of folders that a run may have made.
std::vector<std::string> folders_of_steps(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& [name, is_file, is_folder] : entries_of(path)) {
        if (is_folder && (is_step_folder(name) || name.starts_with(kHiddenPrefix))) names.push_back(name);
    }
    return names;
}

}  // namespace

Result<> HistoryWriter::check_place() const {
    struct stat ours, there;
    if (journal_lock_.descriptor() < 0 || ::fstat(journal_lock_.descriptor(), &ours) != 0) return success();
    if (::lstat(file_.c_str(), &there) == 0 && ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
        return success();
    return Error{
        ErrorCode::damaged,
        file_ +
            ": is not the file any more that this run writes: the history was moved or replaced while "
            "the run went on, and nothing more is captured into it"};
}

// Gives the journal a file of its own where the same file has another name: a copy of the history
// that was made of links.
Result<> HistoryWriter::detach() {
    struct stat status;
    if (::lstat(file_.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink <= 1)
        return success();
    TWR_TRY(const auto bytes, read_whole_file(file_, kLargestManifest));
    const std::string temporary = temporary_name(file_);
    TWR_TRY(auto copy, system_.create(temporary, bytes.size()));
    TWR_CHECK(copy->write_at(0, bytes));
    TWR_CHECK(copy->sync());
    TWR_CHECK(system_.replace(temporary, file_));
    TWR_CHECK(copy->close());
    return system_.sync_folder(path_);
}

Result<> HistoryWriter::append(const std::string& lines) {
    TWR_CHECK(check_place());
    if (journal_.torn) {
        TWR_CHECK(system_.truncate(file_, journal_.whole_bytes));
        journal_.torn = false;
    }
    std::uint64_t size = 0;
    TWR_TRY(auto file, system_.open_append(file_, size));
    if (size != journal_.whole_bytes && file_ == journal_path(path_, rank_, ranks_)) {
        return Error{ErrorCode::damaged, file_ + ": changed by another hand while the run went on: it had " +
                                             std::to_string(journal_.whole_bytes) + " bytes, now " +
                                             std::to_string(size)};
    }
    TWR_CHECK(file->write_at(size, std::as_bytes(std::span(lines))));
    TWR_CHECK(file->sync());
    TWR_CHECK(file->close());
    journal_.whole_bytes = size + lines.size();
    return success();
}

// Appends lines and makes journal() what the file says then.
Result<> HistoryWriter::add(const std::vector<std::string>& objects) {
    std::string lines;
    for (const std::string& object : objects)
        lines += seal_line(object) + "\n";
    sure_ = false;  // until the caller has put them into journal_ too
    if (auto done = append(lines); !done) {
        // Storage may keep a part of the lines, or all of them: go by what is there now. The next
        // call drops a torn one first.
        static_cast<void>(read_back());
        return done;
    }
    return success();
}

Result<> HistoryWriter::add_leaving(const std::vector<std::string>& objects,
                                    const std::set<std::string>& folders) {
    std::vector<std::string> marked;
    for (const std::string& folder : folders) {
        if (mark_leaving(folder)) marked.push_back(folder);
    }
    auto added = add(objects);
    if (added || !sure_) return added;
    // The journal names the step still: as a folder that was begun, a manifest from an older copy
    // would let it go.
    for (const std::string& folder : marked) {
        if (is_named(folder) && unnamed_files(folder).empty()) settle(folder);
    }
    return added;
}

Result<> HistoryWriter::read_back() {
    TWR_CHECK(check_place());
    TWR_TRY(Journal now, read_rank_journal(path_, rank_, ranks_));
    // Without its first line it is not the journal that was opened: lines behind nothing could not
    // be read.
    if (now.whole_bytes == 0)
        return Error{ErrorCode::damaged, file_ + ": is gone or empty, though a run writes it"};
    journal_ = std::move(now);
    sure_ = true;
    return success();
}

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::open(FileSystem& system, const std::string& path,
                                                           const HistorySettings& settings,
                                                           std::uint32_t rank, std::uint32_t ranks,
                                                           Existing existing) try {
    // The rule that every field will use: a bad tolerance is refused before a folder is made.
    if (auto rule = cell_rule(settings.tolerance, settings.residue_bits); !rule)
        return std::move(rule).error().at(path);
    std::unique_ptr<HistoryWriter> writer(new HistoryWriter(system, path, settings, rank, ranks, false));
    TWR_CHECK(check_regular(manifest_path(writer->path_)));
    if (rank != 0) {
        // Rank 0 has made the manifest, or has found it.
        if (!History::exists(path)) TWR_CHECK(writer->check_no_remains());
        History history;
        TWR_CHECK(read_manifest(writer->path_, history, writer->journal_));
        TWR_CHECK(writer->check_same(history, settings));
        writer->go_on(history);
    }
    // Before anything is read: another process may still be committing steps, which would be taken
    // for leftovers.
    FileLock opening;
    TWR_CHECK(writer->lock(opening, rank == 0 && existing == Existing::refuse));
    if (!History::exists(path)) {
        TWR_CHECK(writer->check_nobody_writes());
        TWR_CHECK(writer->begin(settings, nullptr, nullptr));
        return writer;
    }
    History history;
    writer->journal_ = {};
    TWR_CHECK(read_manifest(writer->path_, history, writer->journal_));
    if (rank == 0 && existing == Existing::replace) {
        TWR_CHECK(writer->check_replaced_history(history));
        TWR_CHECK(writer->begin(settings, nullptr, &history));
        return writer;
    }
    TWR_CHECK(writer->check_same(history, settings));
    writer->go_on(history);
    if (ranks > 1) {
        if (rank == 0) TWR_CHECK(writer->begin_journal());
        writer->journal_ = {};
        TWR_CHECK(read_journal(history, rank, ranks, writer->journal_));
        TWR_TRY(const bool locked, writer->lock_journal());
        if (!locked) return writer->busy();
    }
    TWR_CHECK(writer->remove_leftovers());
    return writer;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

HistoryWriter::HistoryWriter(FileSystem& system, const std::string& path, const HistorySettings& settings,
                             std::uint32_t rank, std::uint32_t ranks, bool local)
    : system_(system),
      path_(real_path(path)),
      file_(journal_path(path_, rank, ranks)),
      rank_(rank),
      ranks_(ranks),
      local_(local),
      record_(settings.record) {}

Result<> HistoryWriter::check_replaced_history(const History& had) const {
    TWR_TRY(const Journal first, read_rank_journal(path_, 0, had.ranks));
    TWR_CHECK(check_children(path_, first));
    TWR_CHECK(check_nobody_writes());
    TWR_CHECK(check_journal_replaced(had));
    if (const auto folders = folders_named_by(had); !folders) return folders.error();
    return success();
}

Result<> HistoryWriter::check_journal_replaced(const History& had) const {
    if (ranks_ == 1) return success();
    std::vector<HistoryId> before = had.replaced;
    before.push_back(had.has_id ? had.id : "");
    if (const auto replaces = replaces_journal(before); !replaces) return replaces.error();
    return success();
}

Result<> HistoryWriter::check_replace(FileSystem& system, const std::string& path,
                                      const HistorySettings& settings, std::uint32_t rank,
                                      std::uint32_t ranks) try {
    if (!History::exists(path)) return success();  // open() makes it, and takes nothing away
    HistoryWriter writer(system, path, settings, rank, ranks, false);
    TWR_CHECK(check_regular(manifest_path(writer.path_)));
    FileLock opening;
    if (rank == 0) TWR_CHECK(writer.lock(opening, false));
    History history;
    Journal ignored;
    TWR_CHECK(read_manifest(writer.path_, history, ignored));
    return rank == 0 ? writer.check_replaced_history(history) : writer.check_journal_replaced(history);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

Result<> HistoryWriter::check_replace_local(FileSystem& system, const std::string& path,
                                            const HistorySettings& settings, std::uint32_t rank,
                                            std::uint32_t ranks, const std::string& history) try {
    TWR_CHECK(check_no_link(path));
    HistoryWriter writer(system, path, settings, rank, ranks, true);
    TWR_CHECK(check_regular(manifest_path(writer.path_)));
    FileLock opening;
    TWR_CHECK(writer.lock(opening, false));
    const auto had = LocalHistory::read(path);
    if (!had && had.error().code != ErrorCode::not_found) return had.error();
    History before;
    if (had) {
        if (had->history != history)
            TWR_CHECK(check_part(path, *had, settings, rank, ranks, history, HistoryId()));
        Journal ignored;
        TWR_CHECK(read_manifest(writer.path_, before, ignored));
        if (const auto folders = folders_named_by(before); !folders) return folders.error();
    } else {
        TWR_CHECK(writer.check_no_remains());
    }
    TWR_CHECK(writer.check_journal_replaced(before));
    // Whether storage takes a file there: as it is not closed, it is removed.
    TWR_TRY(const auto file, system.create(temporary_name(manifest_path(writer.path_)), 0));
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

void HistoryWriter::go_on(const History& history) {
    id_ = history.id;
    has_id_ = history.has_id;
    replaced_ = history.replaced;
    version_ = version_of(history.settings);
    shared_ = history.settings.shared;
}

Result<> HistoryWriter::check_same(const History& history, const HistorySettings& settings) const {
    HistorySettings wanted = settings;
    // Where files may be shared, steps may have files of their own.
    wanted.shared = wanted.shared || history.settings.shared;
    if (wanted.shared && !history.settings.shared) {
        wanted.shared = false;
        if (history.settings == wanted) {
            return Error{ErrorCode::mismatch, path_ +
                                                  ": was begun without shared_files: append without them, or "
                                                  "name another folder"};
        }
    }
    if (history.settings != wanted) {
        return Error{ErrorCode::mismatch, path_ + ": was captured with other settings: append with the same"};
    }
    if (history.ranks != ranks_) {
        return Error{ErrorCode::mismatch, path_ + ": was captured by " + std::to_string(history.ranks) +
                                              " ranks, now there are " + std::to_string(ranks_) +
                                              ": name another folder"};
    }
    return success();
}

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::open_local(FileSystem& system, const std::string& path,
                                                                 const HistorySettings& settings,
                                                                 std::uint32_t rank, std::uint32_t ranks,
                                                                 const std::string& history, bool replace,
                                                                 const HistoryId& of) try {
    TWR_CHECK(check_no_link(path));
    std::unique_ptr<HistoryWriter> writer(new HistoryWriter(system, path, settings, rank, ranks, true));
    TWR_CHECK(check_regular(manifest_path(writer->path_)));
    FileLock opening;
    TWR_CHECK(writer->lock(opening, false));  // another run of this node may be using the folder
    auto had = LocalHistory::read(path);
    const bool same = had && had->is_of(settings, rank, ranks, history, of);
    // Of what is replaced its own part goes too; another history's steps, and those of one that was
    // here before, stay.
    if (had && (!replace || had->history != history))
        TWR_CHECK(check_part(path, *had, settings, rank, ranks, history, replace ? HistoryId() : of));
    if (had && !replace && ranks > 1) TWR_CHECK(writer->check_journal_there(had->id, had->has_id));
    History before;
    Journal ignored;
    if (had) TWR_CHECK(read_manifest(path, before, ignored));
    if (same && !replace && !had->journal.steps.empty()) {
        writer->go_on(before);
        writer->journal_ = std::move(had->journal);
        TWR_CHECK(writer->remove_leftovers());
        return writer;
    }
    if (!had && had.error().code != ErrorCode::not_found) return std::move(had).error();
    TWR_CHECK(writer->begin(settings, &history, had ? &before : nullptr, of));
    return writer;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

// A file of one line, whole or not there. What it replaces was proven to be twinrun's.
Result<> HistoryWriter::write_first_line(const std::string& file, const std::string& object, bool replaces) {
    const std::string line = seal_line(object) + "\n";
    const std::string temporary = temporary_name(file);
    TWR_TRY(auto output, system_.create(temporary, 0));
    TWR_CHECK(output->write_at(0, std::as_bytes(std::span(line))));
    TWR_CHECK(output->sync());
    // Not closed yet: a file that does not get its name is removed.
    TWR_CHECK(replaces ? system_.replace(temporary, file) : system_.rename(temporary, file));
    TWR_CHECK(output->close());
    journal_ = {};
    journal_.whole_bytes = line.size();
    return success();
}

// First lines of manifest and journal, for a history that has none of this rank. had: what is
// replaced.
Result<> HistoryWriter::begin(const HistorySettings& settings, const std::string* history, const History* had,
                              const HistoryId& of) {
    TWR_CHECK(system_.make_folders(path_));
    if (had == nullptr) TWR_CHECK(check_no_remains());
    if (rank_ == 0 || history != nullptr) {
        id_ = new_id();
        has_id_ = true;
        Json first = settings_to_json(settings, ranks_);
        first["id"] = id_;
        if (had != nullptr) {
            replaced_ = had->replaced;
            replaced_.push_back(had->id);
            // Only those that have left something.
            const auto names = folders_of_steps(path_);
            std::erase_if(replaced_, [&](const HistoryId& id) {
                return id != had->id &&
                       std::none_of(names.begin(), names.end(),
                                    [&](const std::string& name) { return is_marked(path_, name, id); });
            });
            first["replaced"] = replaced_;
        }
        if (history != nullptr) {
            first["rank"] = rank_;
            if (!of.empty()) first["of"] = of;
            first["history"] = path_to_json(*history);
        }
        // What is to leave is known from the journals, which do not count any more once the
        // manifest is another.
        std::vector<std::string> folders;
        if (had != nullptr) {
            TWR_TRY(folders, folders_named_by(*had));
            TWR_CHECK(mark_left(had->id, folders));
        }
        if (auto done = write_first_line(manifest_path(path_), first.dump(), had != nullptr); !done) {
            if (had != nullptr || !is_there(manifest_path(path_))) return done;
            return Error{ErrorCode::invalid_argument,
                         path_ + ": another process has begun a history there: choose another folder"};
        }
        made_ = true;
        if (had != nullptr) TWR_CHECK(remove_replaced(*had, folders));
    }
    version_ = version_of(settings);
    shared_ = settings.shared;
    if (ranks_ > 1) TWR_CHECK(begin_journal());
    TWR_TRY(const bool locked, lock_journal());
    if (!locked) return busy();
    TWR_CHECK(system_.sync_folder(path_));
    return remove_leftovers();
}

Result<bool> HistoryWriter::replaces_journal(const std::vector<HistoryId>& before) const {
    if (!is_there(file_)) return false;
    const auto head = journal_head(file_);
    if (head && (head->id.empty() ? !before.empty()
                                  : std::find(before.begin(), before.end(), head->id) != before.end()))
        return true;
    return Error{ErrorCode::invalid_argument,
                 file_ +
                     ": is there already, and is not the journal of this history: move it away, or name "
                     "another folder"};
}

// Of a rank of several that has none in this history. One of a history that was replaced goes; any
// other file is not ours.
Result<> HistoryWriter::begin_journal() {
    TWR_CHECK(check_journal_there(id_, has_id_));
    if (const auto head = journal_head(file_); head && head->id == (has_id_ ? id_ : "")) return success();
    TWR_TRY(const bool replaces, replaces_journal(replaced_));
    Json first{{"twinrun_journal", version_}, {"rank", rank_}, {"ranks", ranks_}};
    if (has_id_) first["id"] = id_;
    if (auto done = write_first_line(file_, first.dump(), replaces); !done) {
        // Another process of this rank was faster: who has the lock goes on.
        const auto head = journal_head(file_);
        return head && head->id == (has_id_ ? id_ : "") ? success() : done;
    }
    made_ = true;
    return system_.sync_folder(path_);
}

Error HistoryWriter::busy() const {
    return Error{ErrorCode::io,
                 path_ + ": another process is writing this history: wait for it, or name another folder"};
}

// Two processes that write one journal would tear each other's lines, and of two that begin a
// history one would remove what the other has. A process that dies gives its locks back; one that
// still brings steps to storage after its run was killed needs a moment.
Result<> HistoryWriter::lock(FileLock& opening, bool refuse) {
    constexpr int kTries = 200;
    constexpr auto kPause = std::chrono::milliseconds(50);
    for (int i = 0; i <= kTries; ++i) {
        if (i != 0) std::this_thread::sleep_for(kPause);
        if (refuse) TWR_CHECK(check_refused());
        TWR_CHECK(system_.make_folders(path_));
        // The ranks of a run open it at once, after rank 0. A part on a node-local tier is one
        // rank's.
        if (!opening.take(path_, rank_ != 0 && !local_)) continue;
        if (refuse) TWR_CHECK(check_refused());  // it may have been made just now
        TWR_TRY(const bool locked, lock_journal());
        if (locked) return success();
        opening.release();
    }
    return busy();
}

Result<bool> HistoryWriter::lock_journal() {
    if (rank_ != 0 && !local_) {
        // A second process of this rank may be at it too: there is a file that only one can lock.
        TWR_CHECK(begin_journal());
    }
    if (journal_lock_.take(file_) &&
        (rank_ != 0 || local_ || ranks_ == 1 || manifest_lock_.take(manifest_path(path_)))) {
        // Nobody else writes it: now it may become another file.
        TWR_CHECK(detach());
        return journal_lock_.take(file_);
    }
    journal_lock_.release();
    return false;
}

Result<> HistoryWriter::check_refused() const {
    if (!History::exists(path_)) return success();
    return Error{ErrorCode::invalid_argument,
                 path_ + ": holds a history already: choose another folder, or append to it, or replace it"};
}

// Of a folder without a manifest: a history begun there would stand beside the steps of one that
// was there, which nobody could give back then, as their manifest's place is taken.
Result<> HistoryWriter::check_no_remains() const {
    std::string left;
    for (const auto& [name, is_file, is_folder] : entries_of(path_)) {
        bool ours = false;
        if (is_file && name.ends_with(".jsonl")) {
            const auto head = journal_head((fs::path(path_) / name).string());
            ours = head && name == rank_name(head->rank) + ".jsonl";
        } else if (is_folder && is_step_folder(name)) {
            // One that stayed for somebody else's files has none of ours any more.
            ours = is_marked_by_any(path_, name) && has_step_files((fs::path(path_) / name).string());
        }
        if (ours && (left.empty() || name < left)) left = name;
    }
    // Where storage has no locks, another process may just have begun it.
    if (left.empty() || is_there(manifest_path(path_))) return success();
    return Error{ErrorCode::damaged, manifest_path(path_) + ": missing, and " + left +
                                         " beside it is of a history: restore the manifest from a copy; or "
                                         "remove what is left of that history, or name another folder"};
}

// A rank begins its journal before its first file. Where that is gone and files are there, they
// would be taken for leftovers of steps that were not committed. id: of the history whose journal
// it is.
Result<> HistoryWriter::check_journal_there(const HistoryId& id, bool has_id) const {
    if (const auto head = journal_head(file_); head && head->id == (has_id ? id : "")) return success();
    for (const std::string& folder : folders_of_steps(path_)) {
        if (!is_marked(path_, folder, id)) continue;
        const std::string place = (fs::path(path_) / folder).string();
        for (const auto& [name, is_file, is_folder] : entries_of(place)) {
            if (!is_file || !is_step_file(name, rank_) || !proves(place, name)) continue;
            return Error{ErrorCode::damaged, file_ + ": missing, and " + (fs::path(folder) / name).string() +
                                                 " is of a step that it should name: restore it from a copy; "
                                                 "or name another folder"};
        }
    }
    return success();
}

// Of ranks that may go on where rank 0 has ended.
Result<> HistoryWriter::check_nobody_writes() const {
    for (const std::uint32_t rank : ranks_with_journals(path_, kMostRanks)) {
        FileLock other;
        if (ranks_ > 1 && rank == rank_) continue;  // ours
        if (!other.take(journal_path(path_, rank, kMostRanks))) return busy();
    }
    return success();
}

HistoryWriter::~HistoryWriter() = default;

// A folder that this history made, or one that was here before it.
bool HistoryWriter::is_own(const std::string& folder) const {
    return is_marked(path_, folder, id_) ||
           std::any_of(replaced_.begin(), replaced_.end(),
                       [&](const HistoryId& id) { return is_marked(path_, folder, id); });
}

Result<> HistoryWriter::make_folder(const std::string& name) const {
    TWR_CHECK(check_place());
    const std::string folder = (fs::path(path_) / name).string();
    TWR_TRY(const bool made, system_.make_marked_folder(folder, marker_name(id_)));
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
        if (auto mark = system_.create(file, 0); !mark) {
            marked = std::move(mark).error();
        } else {
            marked = (*mark)->close();
            made.push_back(file);
            if (marked) marked = system_.sync_folder(place.string());
        }
        if (marked) continue;
        for (const std::string& other : made)
            static_cast<void>(system_.remove(other));
        return std::move(marked).error().at(path_ + ": cannot be replaced");
    }
    return success();
}

Result<> HistoryWriter::mark_begun(const std::string& folder) const {
    const std::string file = (fs::path(path_) / folder / begun_name(rank_)).string();
    if (is_there(file)) return success();
    TWR_TRY(const auto made, system_.create(file, 0));
    return made->close();
}

bool HistoryWriter::mark_leaving(const std::string& folder) const {
    // Where it cannot be marked, on a full disk for instance, what a killed process leaves stays.
    if (has_id_ && !is_own(folder)) return false;
    const std::string place = (fs::path(path_) / folder).string();
    if (is_begun_by(place, rank_) || !mark_begun(folder)) return false;
    static_cast<void>(system_.sync_folder(place));
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
        static_cast<void>(system_.remove((place / begun_name(rank_)).string()));
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
            TWR_CHECK(system_.remove((fs::path(place) / left_name(id_)).string()));
        if (is_unnamed_folder(name)) {
            if (leads && is_marked(path_, name, id_)) TWR_CHECK(remove_files(name, rank_));
            if (leads) TWR_CHECK(system_.remove_empty_folder(place));
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
    // First lines that did not get their names.
    const std::string journal = rank_name(rank_) + ".jsonl.";
    for (const auto& [name, is_file, is_folder] : entries_of(path_)) {
        if (is_file && is_temporary(name) &&
            (name.starts_with(journal) || (leads && name.starts_with("manifest.jsonl."))))
            TWR_CHECK(system_.remove((fs::path(path_) / name).string()));
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
            TWR_CHECK(system_.remove((place / left_name(had.id)).string()));
    }
    if (had.ranks == 1) return success();
    for (const std::uint32_t rank : ranks_with_journals(path_, had.ranks)) {
        const std::string file = journal_path(path_, rank, had.ranks);
        const auto head = journal_head(file);
        if (head && head->id == (had.has_id ? had.id : "")) TWR_CHECK(system_.remove(file));
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
        TWR_CHECK(system_.remove(name));
    // The last rank to leave takes what is of all: each looks once its own files are gone, so that
    // two that leave at once do not both leave it to the other.
    if (!names.empty()) list();
    if (others) return success();
    for (const std::string& name : shared)
        TWR_CHECK(system_.remove(name));
    return remove_marked_folder(place.string(), markers);
}

// Only an empty folder goes. One that another rank puts a file into meanwhile gets its marker back:
// whose it is can be told.
Result<> HistoryWriter::remove_marked_folder(const std::string& folder,
                                             const std::vector<std::string>& markers) {
    for (const std::string& name : markers)
        TWR_CHECK(system_.remove(name));
    const auto gone = system_.remove_empty_folder(folder);
    if (gone && !is_there(folder)) return success();
    for (const std::string& name : markers) {
        auto marker = system_.create(name, 0);
        if (!marker && is_there(name)) continue;  // another rank was faster
        if (!marker) return is_there(folder) ? Result<>(marker.error()) : success();
        TWR_CHECK((*marker)->close());
    }
    return system_.sync_folder(folder);
}

Result<> HistoryWriter::add_provenance(const Provenance& facts) {
    TWR_CHECK(be_sure());
    TWR_CHECK(add({to_text(Json{{"provenance", Json::parse(provenance_to_json(facts))}})}));
    journal_.provenance.push_back(facts);
    sure_ = true;
    return success();
}

Result<> HistoryWriter::add_child(const std::string& path) {
    TWR_CHECK(be_sure());
    if (std::find(journal_.children.begin(), journal_.children.end(), path) != journal_.children.end())
        return success();
    TWR_CHECK(add({"{\"child\":" + to_text(path_to_json(path)) + "}"}));
    journal_.children.push_back(path);
    sure_ = true;
    return success();
}

Result<> HistoryWriter::commit(std::span<const Commit> steps) {
    std::vector<std::string> lines;
    std::set<std::string> replaced;
    TWR_CHECK(be_sure());
    std::map<std::int64_t, std::string> there;  // a step may be among them more than once
    for (const Commit& commit : steps) {
        const auto had = journal_.steps.find(commit.step);
        std::string& folder = there[commit.step];
        if (folder.empty() && had != journal_.steps.end()) {
            folder = had->second.folder;
            if (had->second.files.data != commit.files.files.data && folder == commit.files.folder)
                replaced.insert(folder);
        }
        if (!may_have(journal_, commit.step, commit.files)) {
            return Error{ErrorCode::mismatch, path_ + ": step " + std::to_string(commit.step) +
                                                  ": difference " +
                                                  std::to_string(commit.files.files.difference) +
                                                  " is there already, of another step"};
        }
        const bool replaces = !folder.empty();
        if (replaces && folder != commit.files.folder) replaced.insert(folder);
        folder = commit.files.folder;
        lines.push_back(step_line(commit.step, commit.files, replaces));
    }
    TWR_CHECK(add_leaving(lines, replaced));
    for (const Commit& commit : steps)
        put_step(journal_, commit.step, commit.files);
    sure_ = true;
    std::set<std::string> whole;
    for (const Commit& commit : steps)
        whole.insert(commit.files.folder);
    clear(replaced, std::move(whole));
    return success();
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
        TWR_CHECK(system_.remove(name));
    settle(folder);
    return success();
}

Result<> HistoryWriter::move_differences(std::span<const Moved> moved, std::span<const std::uint32_t> gone) {
    TWR_CHECK(be_sure());
    std::string line = "{\"gone\":[";
    std::set<std::string> folders;
    const auto leaves = [&](std::uint32_t ordinal) {
        if (const auto had = journal_.differences.find(ordinal); had != journal_.differences.end())
            folders.insert(had->second.substr(0, had->second.find('/')));
    };
    for (std::size_t i = 0; i < gone.size(); ++i) {
        line += (i == 0 ? "" : ",") + std::to_string(gone[i]);
        leaves(gone[i]);
    }
    line += "],\"moved\":[";
    for (std::size_t m = 0; m < moved.size(); ++m) {
        line += std::string(m == 0 ? "" : ",") + "{\"differences\":[";
        for (std::size_t i = 0; i < moved[m].ordinals.size(); ++i) {
            line += (i == 0 ? "" : ",") + std::to_string(moved[m].ordinals[i]);
            leaves(moved[m].ordinals[i]);
        }
        line += "],\"file\":" + to_text(moved[m].file) + "}";
    }
    TWR_CHECK(add_leaving({line + "]}"}, folders));
    for (const Moved& part : moved) {
        for (const std::uint32_t ordinal : part.ordinals)
            journal_.differences[ordinal] = part.file;
    }
    for (const std::uint32_t ordinal : gone)
        journal_.differences.erase(ordinal);
    sure_ = true;
    std::set<std::string> whole;
    for (const Moved& part : moved)
        whole.insert(part.file.substr(0, part.file.find('/')));
    clear(folders, std::move(whole));
    return success();
}

Result<> HistoryWriter::add_difference(std::uint32_t ordinal, const std::string& file) {
    TWR_CHECK(be_sure());
    if (journal_.differences.contains(ordinal)) return success();
    TWR_CHECK(add({"{\"difference\":" + std::to_string(ordinal) + ",\"file\":" + to_text(file) + "}"}));
    put_difference(journal_, ordinal, file);
    sure_ = true;
    settle(file.substr(0, file.find('/')));
    return success();
}

Result<> HistoryWriter::reserve_differences(std::uint32_t end) {
    TWR_CHECK(be_sure());
    if (end <= journal_.next_difference) return success();
    TWR_CHECK(add({"{\"reserved\":" + std::to_string(end) + "}"}));
    journal_.next_difference = end;
    sure_ = true;
    return success();
}

Result<> HistoryWriter::drop(std::span<const std::int64_t> steps, Differences differences) {
    std::vector<std::string> lines;
    std::set<std::string> folders;
    std::vector<std::uint32_t> gone;
    TWR_CHECK(be_sure());
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end()) continue;
        lines.push_back("{\"drop\":" + std::to_string(step) + "}");
        folders.insert(had->second.folder);
        if (differences == Differences::leave && had->second.files.difference != kNoBase)
            gone.push_back(had->second.files.difference);
    }
    if (lines.empty()) return success();
    if (!gone.empty()) {
        std::string line = "{\"gone\":[";
        for (std::size_t i = 0; i < gone.size(); ++i)
            line += (i == 0 ? "" : ",") + std::to_string(gone[i]);
        lines.push_back(line + "],\"moved\":[]}");
    }
    TWR_CHECK(add_leaving(lines, folders));
    for (const std::int64_t step : steps)
        drop_step(journal_, step);
    for (const std::uint32_t ordinal : gone)
        journal_.differences.erase(ordinal);
    sure_ = true;
    clear(folders, {});
    return success();
}

Result<> HistoryWriter::remove_part() {
    TWR_CHECK(be_sure());
    if (!local_ || !journal_.steps.empty() || !journal_.differences.empty())
        return Error{ErrorCode::internal, path_ + ": is no part of a history without steps"};
    FileLock folder;
    if (!folder.take(path_)) return success();
    TWR_TRY(const LocalHistory here, LocalHistory::read(path_));
    if (here.id != id_ || here.rank != rank_ || !here.journal.steps.empty()) return success();
    // First the journal: a manifest without one is a part that was begun.
    for (const std::string& file : {file_, manifest_path(path_)}) {
        std::error_code ignored;
        if (fs::symlink_status(file, ignored).type() == fs::file_type::regular)
            TWR_CHECK(system_.remove(file));
    }
    static_cast<void>(system_.remove_empty_folder(path_));
    return success();
}

Result<> HistoryWriter::drop_data(std::span<const std::int64_t> steps) {
    std::vector<std::string> lines;
    std::vector<std::string> files;
    TWR_CHECK(be_sure());
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end() || had->second.files.data.empty()) continue;
        lines.push_back("{\"drop_data\":" + std::to_string(step) + "}");
        if (had->second.files.difference == kNoBase && !had->second.files.shared &&
            (!has_id_ || is_own(had->second.folder)) &&
            proves((fs::path(path_) / had->second.folder).string(), had->second.files.data))
            files.push_back((fs::path(path_) / had->second.folder / had->second.files.data).string());
    }
    if (lines.empty()) return success();
    TWR_CHECK(add(lines));
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end()) continue;
        forget_data(had->second.files);
    }
    sure_ = true;
    for (const std::string& file : files)
        static_cast<void>(system_.remove(file));
    return success();
}

}  // namespace twinrun
