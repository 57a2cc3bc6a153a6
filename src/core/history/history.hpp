// The history of a run: a folder of committed steps (run, step, rank, field).
//
//   manifest.jsonl                     first line the run's settings; with one rank, its journal follows
//   rank-00003.jsonl                   with more: the journal of each rank
//   step-0000000010/rank-00003.data    the fields' bytes, each from a multiple of 4096 on
//   step-0000000010/rank-00003.twm     their metadata
//   step-0000000010/group.data         in place of the data files: of several ranks, one behind the other
//
// What of it is twinrun's own can be proven: a history has an ID, and every folder that a run makes in it holds an empty file
// with that ID in its name, from the first moment on. Nothing else is removed, written over, or written into.
//
// A journal is append-only: a line a committed step, and lines that say where the run came from and what was dropped. A
// rank's files are written under temporary names, synced, renamed, their folders synced, and only then is the line added to
// the rank's journal and synced. A step exists if the journals of all ranks have it: no rank needs to hear of another, and
// whatever dies, what all have committed is there. Every line ends with its own checksum; an incomplete last line is what a
// crash leaves and is ignored, a damaged line elsewhere is an error.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "history/field.hpp"
#include "history/provenance.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

inline constexpr const char* kLeftoversFolder = "step-leftovers";  // differences of steps that are not there
inline constexpr int kHistoryVersion = 3;  // 2 where no files are shared; 1 where there is no record either

struct RankFiles {
    std::uint32_t rank = 0;
    std::string data;  // name in the step's folder; empty: metadata only
    std::uint64_t data_bytes = 0;
    std::string metadata;  // empty: of files that were packed as they were
    std::uint64_t metadata_bytes = 0;
    std::uint64_t header_checksum = 0;  // XXH3-64 of the metadata file's header, which seals the rest of it
    double blocked_seconds = 0;         // that capture held up the application
    // Of a record: `data` is the difference of this ordinal, and data_bytes its size. kNoBase: data is the fields' bytes.
    std::uint32_t difference = kNoBase;
    std::uint64_t full_bytes = 0;  // of what it gives back
    // `data` is of several ranks; this one's part of it are data_bytes from `offset` on.
    bool shared = false;
    std::uint64_t offset = 0;
    std::uint64_t file_bytes = 0;  // of all
    std::string divergence;        // where it is not proven equal to the reference of its run; empty: nowhere
    bool operator==(const RankFiles&) const = default;
};

struct HistoryStep {
    std::int64_t step = 0;
    std::string folder;
    std::vector<RankFiles> ranks;
};

// What a journal says of one rank's part of a step.
struct RankStep {
    std::string folder;
    RankFiles files;
};

// What one file of lines says.
struct Journal {
    std::map<std::int64_t, RankStep> steps;  // that are there
    std::vector<Provenance> provenance;      // of each process that wrote it, in order
    // Of a record: where each difference is, or what is left of it, as a path in the history; also of steps that are not there
    // any more, as long as others may need them.
    std::map<std::uint32_t, std::string> differences;
    std::uint32_t next_difference = 0;  // larger than any that there was, or that is reserved
    std::set<std::uint32_t> taken;      // that a step has, or had: never another one's
    std::vector<std::string> children;  // paths of records that are against this one
    bool torn = false;                  // the last line was incomplete: a crash while it was written
    std::uint64_t whole_bytes = 0;      // up to the end of its last whole line
};

// 128 random bits, as 32 hexadecimal digits. Of a history that was begun before there were IDs: the hash of its first line.
using HistoryId = std::string;

struct RankProvenance {
    std::uint32_t rank = 0;
    Provenance facts;
};

// What a manifest and its journals say. Reading them opens no other file.
struct History {
    std::string path;
    HistoryId id;
    bool has_id = false;              // in its manifest, and so in its journals
    std::vector<HistoryId> replaced;  // histories that were here before, and may have left files
    HistorySettings settings;
    std::uint32_t ranks = 1;
    std::vector<HistoryStep> steps;        // that every rank committed, ascending
    std::vector<std::int64_t> incomplete;  // that only some did
    std::vector<RankProvenance> provenance;
    bool torn = false;  // any of the files

    static bool exists(const std::string& path);  // a folder with a manifest
    static Result<History> open(const std::string& path);
};

// What a manifest says: settings, and the number of ranks.
Result<HistorySettings> read_history_settings(const std::string& path, std::uint32_t& ranks);
// One rank's journal; of a rank that has none yet, or only one of a history that was here before: an empty one.
Result<Journal> read_rank_journal(const std::string& path, std::uint32_t rank, std::uint32_t ranks);

std::string absolute_path(const std::string& path);
// Error if a record that rank 0's journal names is against the one at `path`, and would lose what leaves that.
Result<> check_children(const std::string& path, const Journal& journal);

// A rank's part of a history on a node-local tier: a history's folder of its own, whose manifest says whose part it is.
struct LocalHistory {
    HistoryId id;
    bool has_id = false;
    std::vector<HistoryId> replaced;
    HistorySettings settings;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::string history;  // where it goes, as an absolute path
    HistoryId of;         // the history that was there when the part was begun; empty: not known
    Journal journal;
    // Whether it is this rank's part of this history; `of`, where both are known, included.
    [[nodiscard]] bool is_of(const HistorySettings& other, std::uint32_t other_rank,
                             std::uint32_t other_ranks, const std::string& other_history,
                             const HistoryId& other_id) const;
    // Opens manifest and journal only.
    static Result<LocalHistory> read(const std::string& path);
};
std::string local_path(const std::string& local, std::uint32_t rank);  // LOCAL/rank-00003

// One line of a manifest, without its end of line: decode checks the checksum.
std::string seal_line(std::string json_object);
Result<std::string> open_line(const std::string& line);

std::string manifest_path(const std::string& path);
std::string journal_path(const std::string& path, std::uint32_t rank, std::uint32_t ranks);
// "step-0000000010", and "step-0000000010.2" where the step is captured for the third time.
std::string step_folder(std::int64_t step, std::uint32_t attempt);
std::uint32_t attempt_of(const std::string& folder);
std::optional<std::int64_t> step_of(const std::string& folder);
// Of a difference, that the folder (a path) does not have yet: "rank-00003.twr", else "rank-00003.1.twr", …
// Names that captures give to entries of a history's folder.
bool is_step_folder(const std::string& name);
// Names that captures give to files in such a folder, also while they are being written; rank: of this one only. Without those
// of files that ranks share.
bool is_step_file(const std::string& name, std::optional<std::uint32_t> rank);
// Whether a file in such a folder, that has a capture's name, was written by one, by what can be seen of it: spec/history.md,
// "What is whose".
bool is_proven(const std::string& folder, const std::string& name);
std::string marker_name(const HistoryId& id);  // ".twinrun-ID"
// A folder of the history at `path` that a run of it made: no link, with the marker.
bool is_marked(const std::string& path, const std::string& folder, const HistoryId& id);
std::string new_difference_name(const std::string& folder, std::uint32_t rank);
std::string rank_name(std::uint32_t rank);  // "rank-00003"

enum class Existing : std::uint8_t { refuse, append, replace };

// One rank's hand on a history: its journal, and what is on storage for it. One process at a time: the journal is locked
// where storage knows locks. Not thread-safe.
class HistoryWriter {
   public:
    // Makes the manifest (rank 0) and this rank's journal, or goes on with those that are there. What an earlier process of
    // this rank left and did not commit is removed, and so is what a replaced history left; anything else in the folder stays
    // as it is. Ranks above 0 come after rank 0 has returned. Errors: what `existing` says; other settings or number of ranks
    // than those of the history that is appended to; a manifest or a journal that cannot be proven to be twinrun's.
    static Result<std::unique_ptr<HistoryWriter>> open(FileSystem& system, const std::string& path,
                                                       const HistorySettings& settings, std::uint32_t rank,
                                                       std::uint32_t ranks, Existing existing);
    // The same for this rank's part on a node-local tier; `history` is where it goes. Steps that are there belong to that
    // history, or are all in their own (is_flushed), or it is an error; another history's part is made anew.
    static Result<std::unique_ptr<HistoryWriter>> open_local(FileSystem& system, const std::string& path,
                                                             const HistorySettings& settings,
                                                             std::uint32_t rank, std::uint32_t ranks,
                                                             const std::string& history, bool replace,
                                                             const HistoryId& of = {});
    ~HistoryWriter();
    HistoryWriter(const HistoryWriter&) = delete;
    HistoryWriter& operator=(const HistoryWriter&) = delete;

    // Lines of the journal: all appended and synced in one go. After an error, what journal() says is what is there: a part of
    // the lines, in order, may be; unless it could not even be read back (sure()).
    Result<> add_provenance(const Provenance& facts);
    struct Commit {
        std::int64_t step;
        RankStep files;
    };
    Result<> commit(std::span<const Commit> steps);
    // Differences are in this file from now on, whose folder and itself are synced; those of `gone` nowhere. What is not named
    // any more is removed.
    struct Moved {
        std::vector<std::uint32_t> ordinals;
        std::string file;  // path in the history
    };
    Result<> move_differences(std::span<const Moved> moved, std::span<const std::uint32_t> gone);
    // A difference whose step is not there, and that others need; its file, whose folder and itself are synced.
    Result<> add_difference(std::uint32_t ordinal, const std::string& file);
    // Smaller ordinals than this one are given to who asked, and to nobody else.
    Result<> reserve_differences(std::uint32_t end);
    Result<> add_child(const std::string& path);  // which is noted once
    // From the return on these steps, or their data, are not there any more; their files are removed as far as that goes. Of a
    // record the differences stay: others may need them.
    enum class Differences : std::uint8_t {
        stay,
        leave
    };  // leave: from a tier where nobody needs them any more
    Result<> drop(std::span<const std::int64_t> steps, Differences differences = Differences::stay);
    Result<> drop_data(std::span<const std::int64_t> steps);
    // Of a part on a node-local tier that has no steps: its manifest and journal go, and its folder if nothing is left in it. The
    // writer is of no use then. Nothing happens while another process opens the part.
    Result<> remove_part();

    [[nodiscard]] const Journal& journal() const { return journal_; }
    // false: after an error storage did not say which lines are there. No file may go then. The next call finds out first.
    [[nodiscard]] bool sure() const { return sure_; }
    [[nodiscard]] bool made() const { return made_; }  // by this open(): nothing was there
    // Whether the journal has this very step: an earlier commit that failed may have left its line.
    [[nodiscard]] bool has(std::int64_t step, const RankStep& files) const {
        const auto had = journal_.steps.find(step);
        return had != journal_.steps.end() && had->second.folder == files.folder &&
               had->second.files == files.files;
    }
    [[nodiscard]] const std::string& path() const { return path_; }  // the real one: without links
    // A folder for a step's files, by its name; made, or another rank of this history has made it. Error: something else has
    // this name.
    Result<> make_folder(const std::string& name) const;
    // The first name of this step's folders, from this attempt on, that nothing has but perhaps this history itself.
    [[nodiscard]] std::string folder_for(std::int64_t step, std::uint32_t attempt = 0) const;
    [[nodiscard]] const HistoryId& id() const { return id_; }
    [[nodiscard]] std::uint32_t rank() const { return rank_; }
    [[nodiscard]] FileSystem& system() const { return system_; }
    [[nodiscard]] const std::optional<RecordSettings>& record() const { return record_; }
    // Removes this rank's files in a step's folder, and if no other rank has files there, what they shared and the folder. What
    // is not twinrun's stays, and the folder with it.
    Result<> remove_files(const std::string& folder) { return remove_files(folder, rank_); }

   private:
    Result<> remove_files(const std::string& folder, std::optional<std::uint32_t> rank, bool named = false);
    Result<> remove_marked_folder(const std::string& folder, const std::vector<std::string>& markers);
    Result<> remove_replaced(const History& had, const std::vector<std::string>& folders);
    Result<> write_first_line(const std::string& file, const std::string& object, bool replaces);
    Result<> begin_journal();
    [[nodiscard]] bool is_own(const std::string& folder) const;
    // Error where the journal's name is not that of the file that this writer opened and locked: the folder was moved or
    // replaced, and what is there now is another's.
    Result<> check_place() const;
    Result<> detach();
    // A lock on a file or folder, of one process at a time, until this is gone. Storage may know none: then nobody waits.
    class Lock {
       public:
        Lock() = default;
        ~Lock() { release(); }
        Lock(Lock&& other) noexcept;
        Lock& operator=(Lock&& other) noexcept;
        // false: another process has it. What is not there is not locked, and nobody else's.
        bool take(const std::string& path, bool shared = false);
        [[nodiscard]] int descriptor() const { return descriptor_; }
        void release();

       private:
        int descriptor_ = -1;
        int owner_ = 0;  // process that locked it
    };
    Result<> remove_unnamed(const std::string& folder);
    explicit HistoryWriter(FileSystem& system) : system_(system) {}
    Result<> append(const std::string& lines);
    Result<> add(const std::vector<std::string>& objects);
    Result<> remove_leftovers();
    Result<> begin(const HistorySettings& settings, const std::string* history, const History* had,
                   const HistoryId& of = {});
    void go_on(const History& history);
    // What a run that goes on must have in common with the history that is there.
    Result<> check_same(const History& history, const HistorySettings& settings) const;
    // Until `opening` is gone nobody else opens this history, but other ranks of the same run.
    Result<> lock(Lock& opening, bool refuse);
    Result<bool> lock_journal();
    Result<> check_refused() const;
    Result<> check_nobody_writes() const;
    [[nodiscard]] Error busy() const;
    Result<> read_back();
    Result<> be_sure() { return sure_ ? success() : read_back(); }
    FileSystem& system_;
    std::string path_;
    std::string file_;  // the journal
    HistoryId id_;
    bool has_id_ = false;
    int version_ = 1;
    std::vector<HistoryId> replaced_;  // histories that were here before
    std::uint32_t rank_ = 0;
    std::uint32_t ranks_ = 1;
    bool local_ = false;  // a rank's part on a node-local tier
    std::optional<RecordSettings> record_;
    Journal journal_;
    bool sure_ = true;
    bool made_ = false;
    Lock journal_lock_;   // against other writers of this rank's journal
    Lock manifest_lock_;  // rank 0's: against runs of other numbers of ranks
};

}  // namespace twinrun
