#include "history/writer.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "history/flushed.hpp"
#include "history/journal.hpp"
#include "history/journal_line.hpp"
#include "history/step_folders.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

namespace {

namespace fs = std::filesystem;

// Error if the manifest's name belongs to a link, a folder or a pipe: twinrun makes only regular
// files. Also if the system refuses to look: then nobody knows whether anything is there.
Result<> check_regular(const std::string& path) {
    std::error_code failure;
    const auto kind = fs::symlink_status(path, failure).type();
    if (kind == fs::file_type::not_found || kind == fs::file_type::regular) return success();
    if (kind == fs::file_type::none)
        return Error{ErrorCode::io,
                     path + ": cannot be looked up: " + failure.message() +
                         (failure == std::errc::permission_denied ? "; check owner and permissions" : "")};
    return Error{
        ErrorCode::invalid_argument,
        path +
            ": is there, and is not a regular file (a link, a folder, a pipe): move it away, or name another "
            "folder"};
}

// Error if the part's folder is a link, which may lead anywhere: a rank makes this folder itself.
Result<> check_no_link(const std::string& path) {
    std::error_code ignored;
    if (fs::symlink_status(path, ignored).type() != fs::file_type::symlink) return success();
    return Error{ErrorCode::invalid_argument,
                 path +
                     ": is a link, where a rank makes its own folder: remove the link, or name another "
                     "folder as the node-local tier"};
}

}  // namespace

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::open(FileSystem& system, const std::string& path,
                                                           const HistorySettings& settings,
                                                           std::uint32_t rank, std::uint32_t ranks,
                                                           Existing existing, const HistoryId& id) try {
    // A bad tolerance is refused before a folder is made.
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
        writer->adopt(history);
    }
    // Before the journal is read: another process may still commit steps, and their files would
    // look like leftovers.
    FileLock opening;
    TWR_CHECK(writer->lock(opening, rank == 0 && existing == Existing::refuse));
    if (!History::exists(path)) {
        TWR_CHECK(writer->check_nobody_writes());
        TWR_CHECK(writer->begin(settings, nullptr, nullptr, id));
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
    writer->adopt(history);
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
    : base_(system),
      path_(real_path(path)),
      file_(journal_path(path_, rank, ranks)),
      rank_(rank),
      ranks_(ranks),
      local_(local),
      record_(settings.record) {}

Result<> HistoryWriter::check_replaced_history(const History& replaced) const {
    TWR_TRY(const Journal first, read_rank_journal(path_, 0, replaced.ranks));
    TWR_CHECK(check_children(path_, first));
    TWR_CHECK(check_nobody_writes());
    TWR_CHECK(check_journal_replaced(replaced));
    if (const auto folders = folders_named_by(replaced); !folders) return folders.error();
    return success();
}

Result<> HistoryWriter::check_journal_replaced(const History& replaced) const {
    if (ranks_ == 1) return success();
    std::vector<HistoryId> before = replaced.replaced;
    before.push_back(replaced.has_id ? replaced.id : "");
    if (const auto replaces = replaces_journal(before); !replaces) return replaces.error();
    return success();
}

Result<> HistoryWriter::check_replace(FileSystem& system, const std::string& path,
                                      const HistorySettings& settings, std::uint32_t rank,
                                      std::uint32_t ranks) try {
    if (!History::exists(path)) return success();  // open() makes it, and removes nothing
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
    const auto part = LocalHistory::read(path);
    if (!part && part.error().code != ErrorCode::not_found) return part.error();
    History before;
    if (part) {
        if (part->history != history)
            TWR_CHECK(check_part(path, *part, settings, rank, ranks, history, HistoryId()));
        Journal ignored;
        TWR_CHECK(read_manifest(writer.path_, before, ignored));
        if (const auto folders = folders_named_by(before); !folders) return folders.error();
    } else {
        TWR_CHECK(writer.check_no_remains());
    }
    TWR_CHECK(writer.check_journal_replaced(before));
    // Checks that a file can be made there. It is not closed, so that its destructor removes it.
    TWR_TRY(const auto file, system.create(temporary_name(manifest_path(writer.path_)), 0));
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

void HistoryWriter::adopt(const History& history) {
    id_ = history.id;
    has_id_ = history.has_id;
    replaced_ = history.replaced;
    version_ = version_of(history.settings);
    shared_ = history.settings.shared;
}

Result<> HistoryWriter::check_same(const History& history, const HistorySettings& settings) const {
    HistorySettings own = settings;
    // A history with shared files may have steps without them, but not the reverse.
    own.shared = own.shared || history.settings.shared;
    if (own.shared && !history.settings.shared) {
        own.shared = false;
        if (history.settings == own) {
            return Error{ErrorCode::mismatch, path_ +
                                                  ": was begun without shared_files: append without them, or "
                                                  "name another folder"};
        }
    }
    if (history.settings != own) {
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
                                                                 const HistoryId& history_id) try {
    TWR_CHECK(check_no_link(path));
    std::unique_ptr<HistoryWriter> writer(new HistoryWriter(system, path, settings, rank, ranks, true));
    TWR_CHECK(check_regular(manifest_path(writer->path_)));
    FileLock opening;
    TWR_CHECK(writer->lock(opening, false));  // another run of this node may be using the folder
    auto part = LocalHistory::read(path);
    const bool same = part && part->belongs_to(settings, rank, ranks, history, history_id);
    // When a history is replaced, its part is replaced too. A part of another history, or of an
    // earlier one at this path, must not have steps that its history lacks.
    if (part && (!replace || part->history != history)) {
        TWR_CHECK(
            check_part(path, *part, settings, rank, ranks, history, replace ? HistoryId() : history_id));
    }
    if (part && !replace && ranks > 1) TWR_CHECK(writer->check_journal_there(part->id, part->has_id));
    History before;
    Journal ignored;
    if (part) TWR_CHECK(read_manifest(path, before, ignored));
    if (same && !replace && !part->journal.steps.empty()) {
        writer->adopt(before);
        writer->journal_ = std::move(part->journal);
        TWR_CHECK(writer->remove_leftovers());
        return writer;
    }
    if (!part && part.error().code != ErrorCode::not_found) return std::move(part).error();
    TWR_CHECK(writer->begin(settings, &history, part ? &before : nullptr, history_id));
    return writer;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

// Makes a file with one line, which appears under its name complete or not at all. replaces: a file
// of this name, proven to be twinrun's, is replaced.
Result<> HistoryWriter::write_first_line(const std::string& file, const std::string& object, bool replaces) {
    const std::string line = seal_line(object) + "\n";
    const std::string temporary = temporary_name(file);
    TWR_TRY(auto output, system().create(temporary, 0));
    TWR_CHECK(output->write_at(0, std::as_bytes(std::span(line))));
    TWR_CHECK(output->sync());
    // Closed only after the rename: a file that is destroyed before close() removes itself.
    TWR_CHECK(replaces ? system().replace(temporary, file) : system().rename(temporary, file));
    TWR_CHECK(output->close());
    journal_ = {};
    journal_.whole_bytes = line.size();
    return success();
}

// Writes the first lines of manifest and journal.
Result<> HistoryWriter::begin(const HistorySettings& settings, const std::string* history,
                              const History* replaced, const HistoryId& history_id) {
    TWR_CHECK(system().make_folders(path_));
    if (replaced == nullptr) TWR_CHECK(check_no_remains());
    if (rank_ == 0 || history != nullptr) {
        id_ = history == nullptr && !history_id.empty() ? history_id : new_id();
        has_id_ = true;
        Json first = settings_to_json(settings, ranks_);
        first["id"] = id_;
        if (replaced != nullptr) {
            replaced_ = replaced->replaced;
            replaced_.push_back(replaced->id);
            // Keeps only histories that have left folders or journals. A process that died while it
            // replaced a history may have left a journal of an even earlier one.
            const auto names = folders_of_steps(path_);
            const auto journals = find_journals(path_, entries_of(path_));
            std::erase_if(replaced_, [&](const HistoryId& id) {
                return id != replaced->id &&
                       std::none_of(journals.begin(), journals.end(),
                                    [&](const auto& journal) { return journal.second == id; }) &&
                       std::none_of(names.begin(), names.end(),
                                    [&](const std::string& name) { return is_marked(path_, name, id); });
            });
            first["replaced"] = replaced_;
        }
        if (history != nullptr) {
            first["rank"] = rank_;
            if (!history_id.empty()) first["of"] = history_id;
            first["history"] = path_to_json(*history);
        }
        // The old journals name the folders to remove. They are read first, because they belong to
        // no history once the manifest is replaced.
        std::vector<std::string> folders;
        if (replaced != nullptr) {
            TWR_TRY(folders, folders_named_by(*replaced));
            TWR_CHECK(mark_left(replaced->id, folders));
        }
        if (auto done = write_first_line(manifest_path(path_), first.dump(), replaced != nullptr); !done) {
            if (replaced != nullptr || !is_there(manifest_path(path_))) return done;
            return Error{ErrorCode::invalid_argument,
                         path_ + ": another process has begun a history there: choose another folder"};
        }
        made_ = true;
        if (replaced != nullptr) TWR_CHECK(remove_replaced(*replaced, folders));
    }
    version_ = version_of(settings);
    shared_ = settings.shared;
    if (ranks_ > 1) TWR_CHECK(begin_journal());
    TWR_TRY(const bool locked, lock_journal());
    if (!locked) return busy();
    TWR_CHECK(system().sync_folder(path_));
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

// Makes the journal of one rank of several, if it has none in this history. Replaces a journal of
// an earlier history; any other file of this name is an error.
Result<> HistoryWriter::begin_journal() {
    TWR_CHECK(check_journal_there(id_, has_id_));
    if (const auto head = journal_head(file_); head && head->id == (has_id_ ? id_ : "")) return success();
    TWR_TRY(const bool replaces, replaces_journal(replaced_));
    Json first{{"twinrun_journal", version_}, {"rank", rank_}, {"ranks", ranks_}};
    if (has_id_) first["id"] = id_;
    if (auto done = write_first_line(file_, first.dump(), replaces); !done) {
        // Another process of this rank may have made the journal first: the lock decides later
        // which of them continues.
        const auto head = journal_head(file_);
        return head && head->id == (has_id_ ? id_ : "") ? success() : done;
    }
    made_ = true;
    return system().sync_folder(path_);
}

Error HistoryWriter::busy() const {
    return Error{ErrorCode::io,
                 path_ + ": another process is writing this history: wait for it, or name another folder"};
}

// Two processes that write one journal would mix their lines; two that begin a history would remove
// each other's files. A process that dies releases its locks. A flusher that outlives its run keeps
// them until it is done: up to ten seconds are waited for it.
Result<> HistoryWriter::lock(FileLock& opening, bool refuse) {
    constexpr int kTries = 200;
    constexpr auto kPause = std::chrono::milliseconds(50);
    for (int i = 0; i <= kTries; ++i) {
        if (i != 0) std::this_thread::sleep_for(kPause);
        if (refuse) TWR_CHECK(check_refused());
        TWR_CHECK(system().make_folders(path_));
        // Ranks above 0 share the lock, because they open at the same time. A part on a node-local
        // tier has one rank.
        if (!opening.take(path_, rank_ != 0 && !local_)) continue;
        if (refuse) TWR_CHECK(check_refused());  // another process may have made it just now
        TWR_TRY(const bool locked, lock_journal());
        if (locked) return anchor();
        opening.release();
    }
    return busy();
}

// From now on all changes go to this folder, even if it is moved and another one gets its name.
Result<> HistoryWriter::anchor() {
    if (anchored_ != nullptr) return success();
    TWR_TRY(anchored_, base_.anchored(path_));
    return success();
}

Result<bool> HistoryWriter::lock_journal() {
    if (rank_ != 0 && !local_) {
        // Makes the file to lock: a second process of this rank may try the same.
        TWR_CHECK(begin_journal());
    }
    if (journal_lock_.take(file_) &&
        (rank_ != 0 || local_ || ranks_ == 1 || manifest_lock_.take(manifest_path(path_)))) {
        // No other process writes it now, so that it may be replaced by a copy, which is locked
        // then.
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

// Error if a folder without a manifest has journals or steps of a history: after a new manifest,
// the lost one could not be restored from a copy, and the old steps could not be read any more.
Result<> HistoryWriter::check_no_remains() const {
    std::string left;
    for (const auto& [name, is_file, is_folder] : entries_of(path_)) {
        bool ours = false;
        if (is_file && name.ends_with(".jsonl")) {
            const auto head = journal_head((fs::path(path_) / name).string());
            ours = head && name == rank_name(head->rank) + ".jsonl";
        } else if (is_folder && is_step_folder(name)) {
            // A folder that stayed because of other files has the marker, but no files of steps.
            ours = is_marked_by_any(path_, name) && has_step_files((fs::path(path_) / name).string());
        }
        if (ours && (left.empty() || name < left)) left = name;
    }
    // On storage without locks, another process may have made the manifest just now.
    if (left.empty() || is_there(manifest_path(path_))) return success();
    return Error{ErrorCode::damaged,
                 manifest_path(path_) + ": missing, and " + left +
                     " beside it belongs to a history: restore the manifest from a copy; or "
                     "remove what is left of that history, or name another folder"};
}

// Error if this rank's journal in the history `id` is missing, and files of the rank are there: a
// rank makes its journal before its first file. With a new journal, these files would look like
// leftovers of steps that were not committed.
Result<> HistoryWriter::check_journal_there(const HistoryId& id, bool has_id) const {
    if (const auto head = journal_head(file_); head && head->id == (has_id ? id : "")) return success();
    for (const std::string& folder : folders_of_steps(path_)) {
        if (!is_marked(path_, folder, id)) continue;
        const std::string place = (fs::path(path_) / folder).string();
        for (const auto& [name, is_file, is_folder] : entries_of(place)) {
            if (!is_file || !is_step_file(name, rank_) || !proves(place, name)) continue;
            return Error{ErrorCode::damaged,
                         file_ + ": missing, and " + (fs::path(folder) / name).string() +
                             " belongs to a step that it should name: restore it from a copy; "
                             "or name another folder"};
        }
    }
    return success();
}

// Error if a process of any rank has its journal locked: the others may still write though rank 0
// has ended.
Result<> HistoryWriter::check_nobody_writes() const {
    for (const std::uint32_t rank : ranks_with_journals(path_, kMostRanks)) {
        FileLock other;
        if (ranks_ > 1 && rank == rank_) continue;  // this process has it locked
        if (!other.take(journal_path(path_, rank, kMostRanks))) return busy();
    }
    return success();
}

}  // namespace twinrun
