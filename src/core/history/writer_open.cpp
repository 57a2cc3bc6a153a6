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

// A rank makes its part's folder itself: a link there may lead anywhere.
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
    : base_(system),
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
    TWR_TRY(auto output, system().create(temporary, 0));
    TWR_CHECK(output->write_at(0, std::as_bytes(std::span(line))));
    TWR_CHECK(output->sync());
    // Not closed yet: a file that does not get its name is removed.
    TWR_CHECK(replaces ? system().replace(temporary, file) : system().rename(temporary, file));
    TWR_CHECK(output->close());
    journal_ = {};
    journal_.whole_bytes = line.size();
    return success();
}

// First lines of manifest and journal, for a history that has none of this rank. had: what is
// replaced.
Result<> HistoryWriter::begin(const HistorySettings& settings, const std::string* history, const History* had,
                              const HistoryId& of) {
    TWR_CHECK(system().make_folders(path_));
    if (had == nullptr) TWR_CHECK(check_no_remains());
    if (rank_ == 0 || history != nullptr) {
        id_ = history == nullptr && !of.empty() ? of : new_id();
        has_id_ = true;
        Json first = settings_to_json(settings, ranks_);
        first["id"] = id_;
        if (had != nullptr) {
            replaced_ = had->replaced;
            replaced_.push_back(had->id);
            // Only those that have left something. A process that died while it replaced one has
            // left a journal of one before that.
            const auto names = folders_of_steps(path_);
            const auto journals = journals_there(path_);
            std::erase_if(replaced_, [&](const HistoryId& id) {
                return id != had->id &&
                       std::none_of(journals.begin(), journals.end(),
                                    [&](const auto& journal) { return journal.second == id; }) &&
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
    return system().sync_folder(path_);
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
        TWR_CHECK(system().make_folders(path_));
        // The ranks of a run open it at once, after rank 0. A part on a node-local tier is one
        // rank's.
        if (!opening.take(path_, rank_ != 0 && !local_)) continue;
        if (refuse) TWR_CHECK(check_refused());  // it may have been made just now
        TWR_TRY(const bool locked, lock_journal());
        if (locked) return anchor();
        opening.release();
    }
    return busy();
}

// From now on changes are made to this folder, whatever has its name.
Result<> HistoryWriter::anchor() {
    if (anchored_ != nullptr) return success();
    TWR_TRY(anchored_, base_.anchored(path_));
    return success();
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

}  // namespace twinrun
