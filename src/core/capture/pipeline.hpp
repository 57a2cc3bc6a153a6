// From staging memory to committed files: digests, checksums, writes, by a few threads; commits in the order of capture.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/aligned.hpp"
#include "capture/layout.hpp"
#include "capture/staging.hpp"
#include "capture/step_files.hpp"
#include "capture/step_recorder.hpp"
#include "capture/tiers.hpp"
#include "history/reference.hpp"
#include "platform/comm.hpp"

namespace twinrun {

// Short enough to need no memory itself.
inline Error out_of_memory() { return {ErrorCode::out_of_memory, "out of memory"}; }

// A step on its way.
struct PendingStep {
    std::int64_t step = 0;
    std::string folder;
    std::shared_ptr<const StepLayout> layout;
    std::unique_ptr<StepCheck> check;  // null: nothing to compare with
    std::uint64_t heap_bytes = 0;      // charged for digests
    // Of each field, the IDs of its rows in the order in which they are kept; null, or empty as a whole: none. Before add().
    std::vector<std::shared_ptr<const std::vector<std::uint64_t>>> ids;
    // Digests of each field; made at first use (prepare).
    std::vector<FieldDigests> digests;
    std::once_flag prepared;
    std::atomic<double> blocked_seconds = 0;
    std::optional<Divergence> divergence;  // once all its digests are there
    bool told = false;                     // its error went to the caller: before seal()

    std::mutex files_mutex;  // of the two below
    std::unique_ptr<StepFiles> files;
    Tiers::Place place;         // from add() on
    AlignedBytes image;         // of data that is to be recorded
    std::uint64_t ordinal = 0;  // among the steps that all ranks took
    // Of each field that is recorded from a device, where it is; the others are in the image. Filled before seal(). Empty: none.
    std::vector<std::optional<DeviceArray>> on_device;
    std::shared_ptr<const void> device_memory;  // that these lie in; null: the application's

    std::mutex error_mutex;
    std::optional<Error> error;  // the first; nothing more is written then
    std::atomic<bool> failed = false;

    // Under the pipeline's mutex.
    std::uint64_t handed_in = 0;
    std::uint64_t done = 0;
    bool sealed = false;    // all was handed in
    bool finished = false;  // ready to be committed, or lost
    std::optional<RankStep> ready;
};

// Work on a step: a piece of its data, or residues that were made elsewhere.
struct Load {
    std::shared_ptr<PendingStep> step;
    const std::byte* block = nullptr;     // staging memory to give back; null: none
    const Piece* piece = nullptr;         // null: residues only
    const std::byte* image = nullptr;     // of the piece
    bool make_digests = false;            // from the image
    bool make_sums = false;               // the data sums alone
    const std::byte* residues = nullptr;  // of the piece, or of `field` from `residue_offset` on
    std::size_t field = 0;
    std::uint64_t residue_offset = 0;
    std::uint64_t residue_bytes = 0;
};

class Pipeline {
   public:
    // A step is settled (committed on the first tier, or lost) through tiers or `lost`. threads: 0: work is done by the caller of
    // hand_in() and seal().
    using Lost = std::function<void(const PendingStep& step, const Error& error)>;
    using Diverged = std::function<void(const Divergence&)>;
    Pipeline(Tiers& tiers, StagingRing* ring, std::uint64_t heap_limit, int threads, Lost lost,
             Diverged diverged);
    ~Pipeline();  // what was sealed is committed first

    // The next step in the order of commits. Waits while digests of earlier ones hold the memory set for them, and for room on
    // the first tier; `waited` grows by the seconds that it took. What was added must be sealed.
    void add(const std::shared_ptr<PendingStep>& step, double& waited);
    void hand_in(Load load);
    // All was handed in; or, with an error, nothing of the step shall be.
    void seal(const std::shared_ptr<PendingStep>& step, std::optional<Error> error = std::nullopt);
    // All sealed steps are settled.
    void drain();
    // Steps are recorded as they are committed, by one thread at a time. Before the first step; the recorder outlives this.
    void record_with(StepRecorder& recorder) { recorder_ = &recorder; }
    // Data goes to files of several ranks, of which this rank's has this name, as steps are committed: one by one, in the same order
    // on every rank, those that failed too. Before the first step; both outlive this.
    void share_with(Comm& comm, FileSystem& system, std::string file) {
        comm_ = &comm;
        system_ = &system;
        shared_file_ = std::move(file);
    }
    // Whether a step's line in the journal says where it diverged. Before the first step.
    void log_divergence(bool on) { log_divergence_ = on; }

    // Digests of a piece from its image; residues: piece.residue_bytes of them. Thread-safe for different pieces.
    static Result<> digest(PendingStep& step, const Piece& piece, const std::byte* image,
                           std::byte* residues);
    // Of one slice of a segment.
    static Result<> digest_slice(PendingStep& step, const Segment& segment, std::uint64_t slice,
                                 const ElementView& view, std::byte* residues);
    static void prepare(PendingStep& step);
    // A piece's image and residues (either may be null) to the step's files.
    void write(PendingStep& step, const Piece& piece, const std::byte* image, const std::byte* residues);
    static void fail(PendingStep& step, Error error);

   private:
    void run();
    void work(Load& load, AlignedBytes& residues);
    static std::uint64_t bytes_of(const PendingStep& step);
    Result<StepFiles*> files_of(PendingStep& step);
    void finish(PendingStep& step);
    std::optional<RankStep> finish_files(PendingStep& step);
    void commit_ready();
    void record(PendingStep& step);
    void share(PendingStep& step);
    void give_up(PendingStep& step, Error error);
    void lose(PendingStep& step, bool told);
    void done(const std::shared_ptr<PendingStep>& step);

    Tiers& tiers_;
    StagingRing* ring_;
    std::uint64_t heap_limit_;
    Lost lost_;
    Diverged diverged_;
    bool log_divergence_ = true;
    StepRecorder* recorder_ = nullptr;
    Comm* comm_ = nullptr;  // of shared files
    FileSystem* system_ = nullptr;
    std::string shared_file_;

    std::mutex mutex_;  // of what follows
    std::condition_variable work_;
    std::condition_variable settled_;
    std::deque<Load> loads_;
    std::deque<std::shared_ptr<PendingStep>> steps_;  // in the order of capture
    std::uint64_t heap_used_ = 0;
    bool committing_ = false;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace twinrun
