// One rank's hand on a history that is being written.
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

enum class Existing : std::uint8_t { refuse, append, replace };

// One rank's hand on a history: its journal, and what is on storage for it. One process at a time:
// the journal is locked where storage knows locks. Not thread-safe.
class HistoryWriter {
   public:
    // Makes the manifest (rank 0) and this rank's journal, or goes on with those that are there.
    // What an earlier process of this rank began and did not commit is removed, and so is what a
    // replaced history left; anything else in the folder stays as it is, whole steps that no line
    // names too. Ranks above 0 come after rank 0 has returned. Errors: what `existing` says; other
    // settings or number of ranks than those of the history that is appended to; a manifest or a
    // journal that cannot be proven to be twinrun's; what is left of a history whose manifest is
    // gone. id: of a history that is made, if it is one that was lost and comes back; "": a new one.
    static Result<std::unique_ptr<HistoryWriter>> open(FileSystem& system, const std::string& path,
                                                       const HistorySettings& settings, std::uint32_t rank,
                                                       std::uint32_t ranks, Existing existing,
                                                       const HistoryId& id = {});
    // The same for this rank's part on a node-local tier; `history` is where it goes. Steps that
    // are there belong to that history, or are all in their own (is_flushed), or it is an error;
    // another history's part is made anew.
    static Result<std::unique_ptr<HistoryWriter>> open_local(FileSystem& system, const std::string& path,
                                                             const HistorySettings& settings,
                                                             std::uint32_t rank, std::uint32_t ranks,
                                                             const std::string& history, bool replace,
                                                             const HistoryId& of = {});
    // Replacing takes away what was there: before any rank does so, each asks whether it, and its
    // part on the node-local tier at `local` ("": none), could begin anew. Nothing changes but that
    // the part's folder is made. Ranks need not wait for each other.
    static Result<> check_replace(FileSystem& system, const std::string& path,
                                  const HistorySettings& settings, std::uint32_t rank, std::uint32_t ranks);
    static Result<> check_replace_local(FileSystem& system, const std::string& path,
                                        const HistorySettings& settings, std::uint32_t rank,
                                        std::uint32_t ranks, const std::string& history);
    ~HistoryWriter();
    HistoryWriter(const HistoryWriter&) = delete;
    HistoryWriter& operator=(const HistoryWriter&) = delete;

    // Lines of the journal: all appended and synced in one go. After an error, what journal() says
    // is what is there: a part of the lines, in order, may be; unless it could not even be read
    // back (sure()).
    Result<> add_provenance(const Provenance& facts);
    struct Commit {
        std::int64_t step;
        RankStep files;
    };
    Result<> commit(std::span<const Commit> steps);
    // Differences are in this file from now on, whose folder and itself are synced; those of `gone`
    // nowhere. What is not named any more is removed.
    struct Moved {
        std::vector<std::uint32_t> ordinals;
        std::string file;  // path in the history
    };
    Result<> move_differences(std::span<const Moved> moved, std::span<const std::uint32_t> gone);
    // A difference whose step is not there, and that others need; its file, whose folder and itself
    // are synced.
    Result<> add_difference(std::uint32_t ordinal, const std::string& file);
    // Smaller ordinals than this one are given to who asked, and to nobody else.
    Result<> reserve_differences(std::uint32_t end);
    Result<> add_child(const std::string& path);  // which is noted once
    // From the return on these steps, or their data, are not there any more; their files are
    // removed as far as that goes. Of a record the differences stay: others may need them.
    enum class Differences : std::uint8_t {
        stay,
        leave
    };  // leave: from a tier where nobody needs them any more
    Result<> drop(std::span<const std::int64_t> steps, Differences differences = Differences::stay);
    Result<> drop_data(std::span<const std::int64_t> steps);
    // Of a part on a node-local tier that has no steps: its manifest and journal go, and its folder
    // if nothing is left in it. The writer is of no use then. Nothing happens while another process
    // opens the part.
    Result<> remove_part();

    [[nodiscard]] const Journal& journal() const { return journal_; }
    // false: after an error storage did not say which lines are there. No file may go then. The
    // next call finds out first.
    [[nodiscard]] bool sure() const { return sure_; }
    [[nodiscard]] bool made() const { return made_; }  // by this open(): nothing was there
    // Whether the journal has this very step: an earlier commit that failed may have left its line.
    [[nodiscard]] bool has(std::int64_t step, const RankStep& files) const {
        const auto had = journal_.steps.find(step);
        return had != journal_.steps.end() && had->second.folder == files.folder &&
               had->second.files == files.files;
    }
    [[nodiscard]] const std::string& path() const { return path_; }  // the real one: without links
    // A folder for a step's files, by its name; made, or another rank of this history has made it.
    // Error: something else has this name. Until a line names what this rank puts into it, the
    // folder says that the rank has begun: a process that dies in between leaves what the next one
    // may remove. Thread-safe, beside the other calls too.
    Result<> make_folder(const std::string& name) const;
    // The first name of this step's folders, from this attempt on, that nothing has but perhaps
    // this history itself; for rank 0: without files of that rank that its journal does not name.
    // Other ranks follow it.
    [[nodiscard]] std::string folder_for(std::int64_t step, std::uint32_t attempt = 0) const;
    [[nodiscard]] const HistoryId& id() const { return id_; }
    [[nodiscard]] std::uint32_t rank() const { return rank_; }
    // For all that is made in this history: changes go to the folder that was opened, though it be moved.
    [[nodiscard]] FileSystem& system() const { return anchored_ != nullptr ? *anchored_ : base_; }
    [[nodiscard]] const std::optional<RecordSettings>& record() const { return record_; }
    // Removes this rank's files in a step's folder, and if no other rank has files there, what they
    // shared and the folder. What is not twinrun's stays, and the folder with it.
    Result<> remove_files(const std::string& folder) { return remove_files(folder, rank_); }

   private:
    // rank: of which rank the files are; none: of all. may_go: which of those that are proven to be
    // ours; none given: all.
    using MayGo = std::function<bool(const std::string&)>;
    Result<> remove_files(const std::string& folder, std::optional<std::uint32_t> rank,
                          const MayGo& may_go = {}, bool named = false);
    // A folder in which this rank's journal will not name all that the rank has there, until
    // settle().
    Result<> mark_left(const HistoryId& id, const std::vector<std::string>& folders) const;
    Result<> mark_begun(const std::string& folder) const;
    // Whether this call has marked it.
    [[nodiscard]] bool mark_leaving(const std::string& folder) const;
    void clear(const std::set<std::string>& leaving, std::set<std::string> whole);
    void settle(const std::string& folder) const;
    // Files of this rank, by their names, that neither a step nor a difference has.
    [[nodiscard]] std::vector<std::string> unnamed_files(const std::string& folder) const;
    [[nodiscard]] bool is_named(const std::string& folder) const;
    [[nodiscard]] bool proves(const std::string& folder, const std::string& name) const;
    Result<> remove_marked_folder(const std::string& folder, const std::vector<std::string>& markers);
    Result<> remove_replaced(const History& had, const std::vector<std::string>& folders);
    Result<> write_first_line(const std::string& file, const std::string& object, bool replaces);
    Result<> begin_journal();
    // Whether the file in the journal's place is one of a history that was here before; error: it
    // is somebody else's.
    Result<bool> replaces_journal(const std::vector<HistoryId>& before) const;
    Result<> check_journal_replaced(const History& had) const;
    [[nodiscard]] bool is_own(const std::string& folder) const;
    // Error where the journal's name is not that of the file that this writer opened and locked:
    // the folder was moved or replaced, and what is there now is another's.
    Result<> check_place() const;
    Result<> detach();
    Result<> remove_unnamed(const std::string& folder);
    HistoryWriter(FileSystem& system, const std::string& path, const HistorySettings& settings,
                  std::uint32_t rank, std::uint32_t ranks, bool local);
    // Error where this history must not be replaced.
    Result<> check_replaced_history(const History& had) const;
    Result<> append(const std::string& lines);
    Result<> add(const std::vector<std::string>& objects);
    // Lines that let files of these folders go.
    Result<> add_leaving(const std::vector<std::string>& objects, const std::set<std::string>& folders);
    Result<> remove_leftovers();
    // of: of the history that a part belongs to; where it is none, the ID that is not drawn.
    Result<> begin(const HistorySettings& settings, const std::string* history, const History* had,
                   const HistoryId& of = {});
    void go_on(const History& history);
    // What a run that goes on must have in common with the history that is there.
    Result<> check_same(const History& history, const HistorySettings& settings) const;
    // Until `opening` is gone nobody else opens this history, but other ranks of the same run.
    Result<> lock(FileLock& opening, bool refuse);
    Result<> anchor();
    Result<bool> lock_journal();
    Result<> check_refused() const;
    Result<> check_no_remains() const;
    Result<> check_journal_there(const HistoryId& id, bool has_id) const;
    Result<> check_nobody_writes() const;
    [[nodiscard]] Error busy() const;
    Result<> read_back();
    Result<> be_sure() { return sure_ ? success() : read_back(); }
    FileSystem& base_;
    std::unique_ptr<FileSystem> anchored_;
    std::string path_;
    std::string file_;  // the journal
    HistoryId id_;
    bool has_id_ = false;
    int version_ = 1;
    bool shared_ = false;              // its ranks may share files
    std::vector<HistoryId> replaced_;  // histories that were here before
    std::uint32_t rank_ = 0;
    std::uint32_t ranks_ = 1;
    bool local_ = false;  // a rank's part on a node-local tier
    std::optional<RecordSettings> record_;
    Journal journal_;
    bool sure_ = true;
    bool made_ = false;
    FileLock journal_lock_;   // against other writers of this rank's journal
    FileLock manifest_lock_;  // rank 0's: against runs of other numbers of ranks
};

}  // namespace twinrun
