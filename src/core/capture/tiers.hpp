// The tiers on storage: the node-local one, if there is one, and the history's folder.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "capture/flush_child.hpp"
#include "capture/retention.hpp"
#include "history/flush.hpp"
#include "history/history.hpp"
#include "history/restore.hpp"
#include "history/writer.hpp"

namespace twinrun {

// Who copies steps from the local tier to the history's folder ("flushes" them).
enum class Flusher : std::uint8_t {
    thread,  // a thread of this process
    // The program twinrun_flush, which this process starts; it continues if this process dies.
    process,
    // nobody: steps stay on the local tier, this run's last one, until `twinrun flush` or a later
    // run
    none,
};

struct TierSettings {
    HistorySettings history;
    Existing existing = Existing::refuse;
    std::string local;
    std::uint64_t local_bytes = 0;
    Flusher flusher = Flusher::thread;
    std::string flush_program;
    Retention keep;
};

// One rank's tiers on storage: the node-local one, if there is one, and the history's folder.
// Places steps, commits them, flushes them from one to the other, and removes them by the settings
// of retention. Owned by a session. Thread-safe after open(), begin() and resume().
//
// A step is safe when it is committed on both tiers: its local copy may be removed.
class Tiers {
   public:
    // Called once for each step that was given to commit(): null: it is committed on the run's last
    // tier; otherwise the reason why it is not. Called from any thread; it must not call Tiers.
    using Settled = std::function<void(std::int64_t step, const Error* lost)>;
    // Whether this rank's part of the local tier may be used for the history at `path`. All ranks
    // check before one of them makes the history. Changes nothing.
    static Result<> check_local(const std::string& path, std::uint32_t rank, std::uint32_t ranks,
                                const TierSettings& settings);
    // Whether open() and resume() could replace the history. All ranks check before one of them
    // removes anything. Makes the folder of the local tier, and changes nothing more.
    static Result<> check_replace(FileSystem& system, const std::string& path, std::uint32_t rank,
                                  std::uint32_t ranks, const TierSettings& settings);
    // Opens the history's folder, and this rank's part of the local tier. system outlives this.
    static Result<std::unique_ptr<Tiers>> open(FileSystem& system, const std::string& path,
                                               std::uint32_t rank, std::uint32_t ranks,
                                               const TierSettings& settings, Settled settled);
    ~Tiers();  // flushes the steps that wait for it first

    // Stores the provenance of this process. Called once, before resume().
    Result<> begin(const Provenance& facts);
    // Flushes the steps that an earlier process left on the local tier, and starts the flusher.
    // Error: mismatch, if a step on the local tier is another one than the same attempt in the
    // history. A step that cannot be flushed is not an error: it stays on the local tier.
    Result<> resume();

    // Where a step is written first, and the bytes reserved for it there.
    struct Place {
        const HistoryWriter* writer = nullptr;  // null: no tier has room for it
        bool local = false;
        std::uint64_t reserved = 0;
    };
    // A place for a step of about `bytes` bytes: the local tier, or the history's folder if the
    // local one has no room. Waits while flushing or committing steps can still make room. Called
    // in the order of commits, and not by a thread that commits or flushes.
    Place place(std::uint64_t bytes);
    // Another place after storage refused `place` with the error `why`. If there was no space,
    // removes the local copy of the oldest safe step and returns the local tier again; otherwise,
    // or if no step is safe, the history's folder.
    Place next_place(const Place& place, std::uint64_t bytes, ErrorCode why);
    // A step whose files are complete.
    struct Ready {
        std::int64_t step = 0;
        Place place;
        RankStep files;
    };
    // Commits steps, in the order of capture, and calls `settled` for each, now or when it was
    // flushed. Called by one thread at a time.
    void commit(std::span<const Ready> steps);
    // Reserves this ordinal of a difference in the history, so that no other run gives it to
    // another step while this run's step is only on the local tier. Called before a step gets the
    // ordinal. No effect without a local tier.
    Result<> reserve_difference(std::uint32_t ordinal);
    // Whether a step could not be flushed since the last call because it, or a difference that it
    // needs, cannot be read.
    bool take_unreadable();
    // Whether the place's journal has exactly these files for the step.
    [[nodiscard]] bool has(const Place& place, std::int64_t step, const RankStep& files) const;
    // Gives the place of a lost step back, and removes its files.
    void abandon(const Place& place, const std::string& folder);

    // Every rank has committed this step; called in the order of capture. From now on it counts for
    // retention, which the next commit or retain() applies.
    void agreed(std::int64_t step);
    // The step is captured again: the earlier attempt no longer counts for retention.
    void recaptured(std::int64_t step);
    // Removes steps, or their data, that the settings of retention do not keep. Errors are ignored:
    // the step stays.
    void retain();
    // Waits until all steps are flushed, and tries once more those that could not be flushed.
    void drain();
    // Removes all steps from the local tier, which must be safe, and the rest of this rank's part
    // in the destructor, unless a step was committed there since. Error, with nothing removed: a
    // step that is only on the local tier. No effect without a local tier.
    Result<> drop_local();

    // This rank's journal in the history's folder; empty if it cannot be read.
    [[nodiscard]] Journal history() const;
    // This rank's journal on the local tier; empty without one.
    [[nodiscard]] Journal local() const;
    // This rank's steps on the run's last tier: those in the history's folder and, if nobody
    // flushes, those on the local tier.
    [[nodiscard]] RankSteps committed() const;
    // Steps that are on the local tier only, ascending.
    [[nodiscard]] std::vector<std::int64_t> local_only() const;
    // The tiers that have the newest attempt at a step, the nearest one first.
    [[nodiscard]] std::vector<StoredPart> stored(std::int64_t step) const;
    // Whether steps stay on the local tier because nobody flushes them.
    [[nodiscard]] bool ends_local() const {
        return settings_.flusher == Flusher::none && !local_folder_.empty();
    }
    // Size of a step's metadata file, from the nearest tier that has it; 0: none has.
    [[nodiscard]] std::uint64_t metadata_bytes(std::int64_t step) const;
    // Bytes that this process wrote to the history's folder, or had written by the flusher.
    [[nodiscard]] std::uint64_t flushed_bytes() const;
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] const std::string& local_folder() const { return local_folder_; }

   private:
    Tiers() = default;
    void run();
    // entry: the attempt; without a folder: the step is no longer on the local tier.
    Result<> flush_one(std::int64_t step, const RankStep& entry);
    std::uint64_t local_bytes_of(std::int64_t step) const;
    bool evict(std::uint64_t bytes, std::unique_lock<std::mutex>& lock);
    // folder: of the attempt; empty: the oldest attempt that is not settled. counts: false for an
    // attempt that a newer one replaces: retention ignores it.
    void settle(std::int64_t step, const std::string& folder, const Error* lost, bool counts = true);
    void commit_all(std::span<const Ready> steps, std::size_t& settled);

    FileSystem* system_ = nullptr;
    std::string path_;
    std::string local_folder_;
    std::uint32_t rank_ = 0;
    std::uint32_t ranks_ = 1;
    TierSettings settings_;
    Settled settled_;

    // Where both mutexes are held, this one is locked first.
    // Protects the history's writer, the child and reserved_
    mutable std::mutex shared_mutex_;
    std::unique_ptr<HistoryWriter> shared_;  // null: the child has the history's journal
    std::unique_ptr<FlushChild> child_;
    std::uint32_t reserved_ = 0;  // end of the ordinals that are reserved for this run

    mutable std::mutex mutex_;  // protects all that follows
    std::condition_variable changed_;
    std::unique_ptr<HistoryWriter> local_;
    std::deque<std::int64_t> to_flush_;
    std::set<std::int64_t> unflushed_;  // on the local tier only, because flushing them failed
    std::set<std::int64_t> safe_;       // committed on both tiers
    std::uint64_t local_used_ = 0;      // bytes of committed steps on the local tier
    std::uint64_t local_reserved_ = 0;  // bytes of steps that are being written there
    std::uint64_t flushed_bytes_ = 0;
    bool remove_part_ = false;   // drop_local() was called: the destructor removes the part
    bool local_failed_ = false;  // the local storage failed: later steps are not written there
    bool unreadable_ = false;    // result of take_unreadable()
    bool flushing_ = false;      // the thread flushes a step
    bool stopping_ = false;
    RetainedSteps retained_;
    std::thread thread_;  // flushes steps
};

}  // namespace twinrun
