// Writes one rank's part of a history.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "history/file_lock.hpp"
#include "history/history.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// The action if the folder holds a history already.
enum class Existing : std::uint8_t { refuse, append, replace };

// Writes one rank's journal, and makes and removes folders and files of steps. Files are written
// and synced before the line that names them, and removed after the line that drops them: after a
// crash the journal names only what is there.
//
// One process at a time writes a journal: it is locked, if the storage supports locks. Owned by
// Tiers, a packing or a flush. Not thread-safe, except make_folder().
class HistoryWriter {
   public:
    // Makes the manifest (rank 0) and this rank's journal, or appends to existing ones. Removes
    // files of steps that an earlier process of this rank began and did not commit, and files of a
    // replaced history; everything else in the folder stays, complete steps that no line names too.
    // Rank 0 opens first, the other ranks once it has returned. Errors: a history that `existing`
    // does not allow; settings or a number of ranks that differ from those of the history to append
    // to; a manifest or a journal that is not proven to be twinrun's; steps of a history whose
    // manifest is missing; another process that writes. id: for a history that is made to replace a
    // lost one; "": a new ID.
    static Result<std::unique_ptr<HistoryWriter>> open(FileSystem& system, const std::string& path,
                                                       const HistorySettings& settings, std::uint32_t rank,
                                                       std::uint32_t ranks, Existing existing,
                                                       const HistoryId& id = {});
    // The same for this rank's part on a node-local tier. history: absolute path of the history
    // that the part is flushed to; history_id: its ID, "": not known. A part of another history is
    // replaced if its own history has all its steps (is_flushed()); otherwise error: mismatch.
    static Result<std::unique_ptr<HistoryWriter>> open_local(FileSystem& system, const std::string& path,
                                                             const HistorySettings& settings,
                                                             std::uint32_t rank, std::uint32_t ranks,
                                                             const std::string& history, bool replace,
                                                             const HistoryId& history_id = {});
    // Replacing removes the old history. Before any rank opens, each checks by these whether open()
    // and open_local() could replace what is there. Ranks need not wait for each other.
    // check_replace_local() makes the part's folder; nothing else changes.
    static Result<> check_replace(FileSystem& system, const std::string& path,
                                  const HistorySettings& settings, std::uint32_t rank, std::uint32_t ranks);
    static Result<> check_replace_local(FileSystem& system, const std::string& path,
                                        const HistorySettings& settings, std::uint32_t rank,
                                        std::uint32_t ranks, const std::string& history);
    ~HistoryWriter();
    HistoryWriter(const HistoryWriter&) = delete;
    HistoryWriter& operator=(const HistoryWriter&) = delete;

    // The next functions add lines to the journal; those of one call are appended and synced
    // together. After an error the first of these lines may be in the journal: it was read again,
    // and journal() has what is there. If it cannot be read either, journal_known() is false.
    Result<> add_provenance(const Provenance& facts);
    struct Commit {
        std::int64_t step;
        RankStep files;
    };
    // Commits steps whose files are synced under their final names. A step that is committed
    // already is replaced by the new attempt, and the old attempt's files are removed. Error:
    // mismatch, if another step had a step's ordinal.
    Result<> commit(std::span<const Commit> steps);
    // From now on these differences are in the file of `place`, which is synced, with its folder;
    // differences of `gone` no longer exist. Removes files that no line names any more.
    struct Moved {
        std::vector<std::uint32_t> ordinals;
        DifferencePlace place;  // its file: a path in the history
    };
    Result<> move_differences(std::span<const Moved> moved, std::span<const std::uint32_t> gone);
    // Adds a difference whose step does not exist, and which other differences need. Its file is
    // synced, with its folder.
    Result<> add_difference(std::uint32_t ordinal, const DifferencePlace& place);
    // Reserves all ordinals below `end` for the caller.
    Result<> reserve_differences(std::uint32_t end);
    // Names a record that is against this one; no effect if it is named already.
    Result<> add_child(const std::string& path);
    // Drops steps, or only their data: with the return they no longer exist. Then removes their
    // files; errors of that are ignored. stay: the steps' differences remain, because other steps
    // may need them. leave: they are removed from the journal too, for a tier where no step needs
    // them.
    enum class Differences : std::uint8_t { stay, leave };
    Result<> drop(std::span<const std::int64_t> steps, Differences differences = Differences::stay);
    Result<> drop_data(std::span<const std::int64_t> steps);
    // Removes manifest and journal of a part on a node-local tier that has no steps, and its folder
    // if it is empty. No effect while another process opens the part. Then only the destructor may
    // be called.
    Result<> remove_part();

    [[nodiscard]] const Journal& journal() const { return journal_; }
    // false: after an error storage did not say which lines are in the journal. No file may be
    // removed then. The next function that adds lines reads the journal first.
    [[nodiscard]] bool journal_known() const { return journal_known_; }
    // Whether open() made the manifest or the journal.
    [[nodiscard]] bool made() const { return made_; }
    // Whether the journal has exactly these files for the step. A commit that failed may have left
    // its line.
    [[nodiscard]] bool has(std::int64_t step, const RankStep& files) const {
        const auto found = journal_.steps.find(step);
        return found != journal_.steps.end() && found->second.folder == files.folder &&
               found->second.files == files.files;
    }
    // The history's folder, with links resolved.
    [[nodiscard]] const std::string& path() const { return path_; }
    // Makes a folder of this name for a step's files, unless another rank of this history has made
    // it, and marks that this rank has begun to write there. The mark is removed once the journal
    // names all its files; until then the next process may remove files that the journal does not
    // name. Error: something else has this name. Thread-safe, and may run beside any other
    // function.
    Result<> make_folder(const std::string& name) const;
    // A name for a step's folder: of the first attempt, from `attempt` on, that is free. For rank 0
    // a folder of this history is free too if it has no files of rank 0 that the journal does not
    // name; the other ranks use the name that rank 0 got.
    [[nodiscard]] std::string folder_for(std::int64_t step, std::uint32_t attempt = 0) const;
    [[nodiscard]] const HistoryId& id() const { return id_; }
    [[nodiscard]] std::uint32_t rank() const { return rank_; }
    // The file system for all changes in this history. They go to the folder that was opened, even
    // if it is moved.
    [[nodiscard]] FileSystem& system() const { return anchored_ != nullptr ? *anchored_ : base_; }
    [[nodiscard]] const std::optional<RecordSettings>& record() const { return record_; }
    // Removes this rank's files in a step's folder and, if no other rank has files there, shared
    // files and the folder. Files that are not proven to be twinrun's stay, and then the folder
    // too.
    Result<> remove_files(const std::string& folder) { return remove_files(folder, rank_); }

   private:
    // rank: whose files; nullopt: those of all ranks. may_go: which of the proven files to remove,
    // by name;
    // empty: all. named: a journal names the folder, which belongs to this history even without a
    // marker.
    using MayGo = std::function<bool(const std::string&)>;
    Result<> remove_files(const std::string& folder, std::optional<std::uint32_t> rank,
                          const MayGo& may_go = {}, bool named = false);
    // Marks folders of the history `id`, which is about to be replaced: their files may be removed
    // then.
    Result<> mark_left(const HistoryId& id, const std::vector<std::string>& folders) const;
    // Puts the marker into a folder that is empty, and no link.
    Result<> mark_empty(const std::string& name) const;
    // Marks a folder in which this rank has, or will have, files that its journal does not name.
    Result<> mark_begun(const std::string& folder) const;
    // The same before lines let files go. false: it was marked already, or cannot be marked.
    [[nodiscard]] bool mark_leaving(const std::string& folder) const;
    // Removes the mark of mark_begun(). Errors are ignored: the next process removes it.
    void unmark_begun(const std::string& folder) const;
    // After lines were added: removes files that no line names from the folders `leaving`, and the
    // marks from the folders `complete`, whose files are all named. Errors are ignored.
    void clear(const std::set<std::string>& leaving, std::set<std::string> complete);
    // Names of this rank's files that neither a step nor a difference names.
    [[nodiscard]] std::vector<std::string> unnamed_files(const std::string& folder) const;
    // Whether a step or a difference is in this folder.
    [[nodiscard]] bool is_named(const std::string& folder) const;
    // is_proven(), but shared files are accepted only where this history, or an earlier one in this
    // folder, may have them.
    [[nodiscard]] bool proves(const std::string& folder, const std::string& name) const;
    Result<> remove_marked_folder(const std::string& folder, const std::vector<std::string>& markers);
    // Removes the files that the journals of a replaced history name, and journals of its ranks.
    Result<> remove_replaced(const History& replaced, const std::vector<std::string>& folders);
    Result<> write_first_line(const std::string& file, const std::string& object, bool replaces);
    Result<> begin_journal();
    // Whether the journal's name belongs to a journal of one of these earlier histories. Error: it
    // belongs to another file.
    Result<bool> replaces_journal(const std::vector<HistoryId>& before) const;
    Result<> check_journal_replaced(const History& replaced) const;
    // Whether this history, or an earlier one in this folder, made the step's folder.
    [[nodiscard]] bool is_own(const std::string& folder) const;
    // Error if the journal's name no longer belongs to the file that this writer opened and locked:
    // the folder was moved or replaced, and the file that is there now is another history's.
    Result<> check_place() const;
    Result<> detach();
    Result<> remove_unnamed(const std::string& folder);
    HistoryWriter(FileSystem& system, const std::string& path, const HistorySettings& settings,
                  std::uint32_t rank, std::uint32_t ranks, bool local);
    // Error if this history must not be replaced: records are against it, a process writes it, or a
    // file is not its own.
    Result<> check_replaced_history(const History& replaced) const;
    Result<> append(const std::string& lines);
    Result<> add(const std::vector<std::string>& objects);
    // Adds lines after which files in these folders are no longer named, and may be removed.
    Result<> add_leaving(const std::vector<std::string>& objects, const std::set<std::string>& folders);
    Result<> remove_leftovers();
    // Begins a history, or a part of one. history: null: a history; otherwise a part's absolute
    // path of its history. replaced: the history that is replaced; null: none. history_id: of the
    // part's history; of a history, its own ID ("": a new one).
    Result<> begin(const HistorySettings& settings, const std::string* history, const History* replaced,
                   const HistoryId& history_id = {});
    void adopt(const History& history);
    // Error if a run with these settings must not append to the history.
    Result<> check_same(const History& history, const HistorySettings& settings) const;
    // Locks the folder while `opening` exists, so that no process but ranks of the same run can
    // open this history, and the journal.
    Result<> lock(FileLock& opening, bool refuse);
    Result<> anchor();
    Result<bool> lock_journal();
    Result<> check_refused() const;
    Result<> check_no_remains() const;
    Result<> check_journal_there(const HistoryId& id, bool has_id) const;
    Result<> check_nobody_writes() const;
    [[nodiscard]] Error busy() const;
    Result<> read_back();
    Result<> ensure_known() { return journal_known_ ? success() : read_back(); }
    FileSystem& base_;
    std::unique_ptr<FileSystem> anchored_;  // null: not yet anchored
    std::string path_;
    std::string file_;  // path of the journal
    HistoryId id_;
    bool has_id_ = false;              // the manifest contains the ID
    int version_ = 1;                  // of the format
    bool shared_ = false;              // ranks may share files
    std::vector<HistoryId> replaced_;  // earlier histories in this folder that may have left files
    std::uint32_t rank_ = 0;
    std::uint32_t ranks_ = 1;
    bool local_ = false;  // this is a part on a node-local tier
    std::optional<RecordSettings> record_;
    Journal journal_;
    bool journal_known_ = true;
    bool made_ = false;
    FileLock journal_lock_;   // excludes other writers of this rank's journal
    FileLock manifest_lock_;  // of rank 0: excludes runs with another number of ranks
};

}  // namespace twinrun
