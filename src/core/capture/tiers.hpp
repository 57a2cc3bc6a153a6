// Where committed steps go: the node-local tier if there is one, the history's folder, what leaves them again.
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
#include "history/flush.hpp"
#include "history/history.hpp"
#include "history/restore.hpp"
#include "history/writer.hpp"

namespace twinrun {

// What stays of committed steps on the last tier. A step leaves only once every rank has committed all newer ones that count.
struct Retention {
    std::uint64_t steps = 0;  // the newest so many stay; 0: all
    std::uint64_t data_steps =
        0;  // of these, the newest so many keep their data, the others their metadata; 0: all
    [[nodiscard]] bool any() const { return steps != 0 || data_steps != 0; }
};

enum class Flusher : std::uint8_t {
    thread,   // of this process
    process,  // twinrun_flush, started by us: goes on when this process dies
    none,  // nobody: the local tier is this run's last one, until `twinrun flush` or a later run brings steps on
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

// The way of one rank's steps behind the staging memory. Thread-safe after open.
class Tiers {
   public:
    // `settled` is called once for each step that was added: committed on the last tier (null), or why it is not there. From
    // any thread; it must not call back.
    using Settled = std::function<void(std::int64_t step, const Error* lost)>;
    // Whether this rank's part of the local tier may be used for a history: asked on all ranks before one of them makes it.
    static Result<> check_local(const std::string& path, std::uint32_t rank, std::uint32_t ranks,
                                const TierSettings& settings);
    // Whether open() and resume() can do their work where the history is to be replaced: asked on all ranks before one of them
    // takes anything away. Makes the local tier's folder.
    static Result<> check_replace(FileSystem& system, const std::string& path, std::uint32_t rank,
                                  std::uint32_t ranks, const TierSettings& settings);
    static Result<std::unique_ptr<Tiers>> open(FileSystem& system, const std::string& path,
                                               std::uint32_t rank, std::uint32_t ranks,
                                               const TierSettings& settings, Settled settled);
    ~Tiers();

    // Provenance of this process, once, before the first step.
    Result<> begin(const Provenance& facts);
    // Steps that an earlier process left on the local tier go on.
    Result<> resume();

    // The first tier of a step of about so many bytes. Waits for room on the local tier if steps that are there only have to
    // be brought on: asked in the order of commits, and by no thread that these need.
    struct Place {
        const HistoryWriter* writer = nullptr;
        bool local = false;
        std::uint64_t reserved = 0;
    };
    Place place(std::uint64_t bytes);
    // After storage refused `place`: for want of room, steps that are safe leave the local tier; else the next tier it is.
    Place next_place(const Place& place, std::uint64_t bytes, ErrorCode why);
    // Steps whose files are ready, in the order of capture.
    struct Ready {
        std::int64_t step = 0;
        Place place;
        RankStep files;
    };
    void commit(std::span<const Ready> steps);
    // Before a step gets this ordinal: while steps may be on the local tier only, no other run gives it to another step. Nothing
    // where there is no local tier.
    Result<> reserve_difference(std::uint32_t ordinal);
    // Whether, since this was asked last, a step could not be brought on because it, or what it needs, cannot be read.
    bool take_broken();
    // Whether the place's journal has this very step.
    [[nodiscard]] bool has(const Place& place, std::int64_t step, const RankStep& files) const;
    // The step of `place` will not come.
    void abandon(const Place& place, const std::string& folder);

    // Every rank has this step (in the order of capture): it counts for retention, which takes place with the next commit, or
    // when retain() is called.
    void agreed(std::int64_t step);
    void agreed_late(std::int64_t step);  // it takes the place that its number tells
    // It is captured again: what retention knew of it is of an earlier attempt.
    void again(std::int64_t step);
    void retain();
    // Steps that stay on the local tier because the last one did not take them are tried again; waits for all.
    void drain();
    // All steps on the local tier, which are on the last one too, leave it; its files follow when this goes, if no step has come
    // since. Error: steps that are nowhere else. Nothing where there is no local tier.
    Result<> drop_local();

    // This rank's steps on the history's folder.
    [[nodiscard]] Journal history() const;
    [[nodiscard]] Journal local() const;  // empty where there is no local tier
    // This rank's steps on the run's last tier: in the history's folder and, where nobody brings them there, on the local tier.
    [[nodiscard]] std::map<std::int64_t, RankStep> committed() const;
    // Steps that are on the local tier only, ascending.
    [[nodiscard]] std::vector<std::int64_t> local_only() const;
    // Where a step is, the nearest tier first.
    [[nodiscard]] std::vector<StoredPart> stored(std::int64_t step) const;
    // Steps stay on the local tier.
    [[nodiscard]] bool ends_local() const {
        return settings_.flusher == Flusher::none && !local_folder_.empty();
    }
    // Of a step on the first tier that has it; 0: none has.
    [[nodiscard]] std::uint64_t metadata_bytes(std::int64_t step) const;
    [[nodiscard]] std::uint64_t flushed_bytes() const;
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] const std::string& local_folder() const { return local_folder_; }

   private:
    Tiers() = default;
    void run();
    // folder: which attempt at the step it was.
    Result<> flush_one(std::int64_t step, std::string& folder);
    std::uint64_t local_bytes_of(std::int64_t step) const;
    bool evict(std::uint64_t wanted, std::unique_lock<std::mutex>& lock);
    // counts: false for an attempt that a newer one replaces.
    // folder: which attempt; empty: the first that is not settled.
    void settle(std::int64_t step, const std::string& folder, const Error* lost, bool counts = true);
    void resolve(std::int64_t step, const std::string& folder, bool there);
    void add_agreed(std::int64_t step);  // with the mutex held; forget_agreed too
    void forget_agreed(std::int64_t step);
    void commit_all(std::span<const Ready> steps, std::size_t& settled);

    FileSystem* system_ = nullptr;
    std::string path_;
    std::string local_folder_;
    std::uint32_t rank_ = 0;
    std::uint32_t ranks_ = 1;
    TierSettings settings_;
    Settled settled_;

    mutable std::mutex shared_mutex_;  // of the last tier's journal
    std::unique_ptr<HistoryWriter> shared_;
    std::unique_ptr<FlushChild> child_;  // then the journal is the child's
    std::uint32_t reserved_ = 0;         // end of the ordinals that are this run's

    mutable std::mutex mutex_;  // of all that follows
    std::condition_variable changed_;
    std::unique_ptr<HistoryWriter> local_;
    std::deque<std::int64_t> to_flush_;
    std::set<std::int64_t> unflushed_;  // on the local tier only, refused by the last one
    std::set<std::int64_t> safe_;       // on both
    std::uint64_t local_used_ = 0;
    std::uint64_t local_reserved_ = 0;
    std::uint64_t flushed_bytes_ = 0;
    bool leaves_ = false;        // drop_local()
    bool local_broken_ = false;  // its storage failed: steps go past it from then on
    bool broken_ = false;        // take_broken()
    bool flushing_ = false;
    bool stopping_ = false;
    struct Unsettled {
        std::int64_t step = 0;
        std::string folder;
        bool settled = false;
        bool there = false;
    };
    std::deque<Unsettled> unsettled_;   // of a run of one rank, in the order of capture
    std::vector<std::int64_t> agreed_;  // in the order of capture
    std::size_t data_dropped_ = 0;      // of these, the first so many
    std::thread thread_;
};

}  // namespace twinrun
