// From staging memory to committed files: a few threads digest, sum and write; steps are committed
// in the order of capture.
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
#include "base/once.hpp"
#include "capture/failure.hpp"
#include "capture/layout.hpp"
#include "capture/staging.hpp"
#include "capture/step_files.hpp"
#include "capture/step_recorder.hpp"
#include "capture/tiers.hpp"
#include "history/reference.hpp"
#include "platform/comm.hpp"
#include "sketch/started_sketches.hpp"

namespace twinrun {

// Residues of a step that are recorded from their device.
struct RecordedResidues {
    DeviceResidues on_device;
    // Of each field of the step.
    std::vector<std::uint64_t> places;                  // where its residues begin among these
    std::vector<std::vector<std::uint64_t>> checksums;  // of their pages
};

// A step that is captured and not yet settled. Shared by the session, the pipeline's threads and
// the device stage; the last one releases it.
struct PendingStep {
    std::int64_t step = 0;
    std::string folder;
    std::shared_ptr<const StepLayout> layout;
    std::unique_ptr<StepCheck> check;  // null: nothing to compare with
    // heap memory that the step is charged with: digests, and data that is gathered
    std::uint64_t heap_bytes = 0;
    // Residues are to stay on their device. Set before add().
    bool residues_stay = false;
    // For each field the IDs of its rows in stored order; null, or an empty list: none. Set before
    // add().
    std::vector<std::shared_ptr<const std::vector<std::uint64_t>>> ids;
    std::vector<FieldDigests> digests;  // of each field; made at first use, by prepare()
    Once prepared;
    std::atomic<double> blocked_seconds = 0;  // how long capture() held up the caller
    std::optional<Divergence> divergence;     // known once all digests are made
    // capture() itself returns the step's error; set before seal()
    bool reported = false;

    std::mutex files_mutex;  // protects files and place while loads are processed
    std::unique_ptr<StepFiles> files;
    Tiers::Place place;     // valid from add() on
    AlignedBytes image;     // content of the data file, where it is recorded
    MetadataRest residues;  // that go to the record, too
    // Residues that are recorded from their device; then `residues` has none. Set before seal().
    std::optional<RecordedResidues> left;
    std::uint64_t ordinal = 0;  // number of the step among those that all ranks agreed on
    // For each field that is recorded from a device its array there; the other fields are in the
    // image. Set before seal(). Empty: no field is.
    std::vector<std::optional<DeviceArray>> on_device;
    // Owns the memory of on_device; null: the application owns it.
    std::shared_ptr<const void> device_memory;

    std::mutex error_mutex;
    std::optional<Error> error;  // the first one; nothing more is written then
    std::atomic<bool> failed = false;

    // Protected by the pipeline's mutex:
    std::uint64_t submitted = 0;    // loads
    std::uint64_t done = 0;         // loads
    bool sealed = false;            // no further loads will be submitted
    bool finished = false;          // ready to be committed, or lost
    std::optional<RankStep> ready;  // what its line in the journal will say; empty: lost
};

// Work on a step: a piece of its data, or residues that were made elsewhere.
struct Load {
    std::shared_ptr<PendingStep> step;
    // Staging memory to release when the load is done; null: none.
    const std::byte* block = nullptr;
    const Piece* piece = nullptr;      // null: residues only
    const std::byte* image = nullptr;  // content of the piece
    bool make_digests = false;         // make digests and residues from the image
    bool make_sums = false;            // make only data sums from the image
    // of the piece; without a piece: of `field`, from `residue_offset` on
    const std::byte* residues = nullptr;
    std::size_t field = 0;
    std::uint64_t residue_offset = 0;
    std::uint64_t residue_bytes = 0;
};

// A session's member. add() is called by the capturing thread; submit(), seal(), digest() and
// write() by any thread; a step is submitted to only between its add() and its seal().
class Pipeline {
   public:
    // A step is settled when it is committed on the first tier, which `tiers` reports, or lost
    // before that, which `lost` reports. diverged: called once for each step whose comparison ends
    // here. Both are called from any thread and must not call the pipeline. heap_limit: bytes that
    // the heap memory of all steps should not exceed. threads: 0: the callers of submit() and
    // seal() do the work.
    using Lost = std::function<void(const PendingStep& step, const Error& error)>;
    using Diverged = std::function<void(const Divergence&)>;
    Pipeline(Tiers& tiers, StagingRing* ring, std::uint64_t heap_limit, int threads, Lost lost,
             Diverged diverged);
    ~Pipeline();  // settles all sealed steps first

    // Adds the next step in the order of commits. Waits while the steps under way leave no heap
    // memory for it (one step alone may exceed the limit), and while the local tier has no room;
    // `waited` grows by the seconds of waiting. The step must be sealed later, whatever happens.
    // Throws if there is no memory; then the step was not added.
    void add(const std::shared_ptr<PendingStep>& step, double& waited);
    // Processes the load, now or in another thread, and then releases its block. Errors make the
    // step fail.
    void submit(Load load);
    // More heap memory that a step which was added is charged with. Does not wait.
    void charge(PendingStep& step, std::uint64_t bytes);
    // Seals the step: all loads were submitted, or it is discarded because of `error`.
    void seal(const std::shared_ptr<PendingStep>& step, std::optional<Error> error = std::nullopt);
    // Waits until all steps that were added are settled; they must all be sealed, or be about to
    // be.
    void drain();
    // Records each step's data when it is committed, in one thread at a time. Call it before the
    // first step; the recorder outlives this.
    void record_with(StepRecorder& recorder) { recorder_ = &recorder; }
    // Writes data to files of several ranks when steps are committed; `file` is the name of this
    // rank's one. Steps are committed one by one, in the same order on every rank; failed steps
    // take part. Call it before the first step; comm and system outlive this.
    void share_with(Comm& comm, FileSystem& system, std::string file) {
        comm_ = &comm;
        system_ = &system;
        shared_file_ = std::move(file);
    }
    // Whether a step's line in the journal says where it diverged. Call it before the first step.
    void log_divergence(bool on) { log_divergence_ = on; }

    // Makes the digests of a piece from its image, and writes piece.residue_bytes bytes to
    // `residues`. Compares them with the reference if the step has a check. Thread-safe for
    // different pieces. The step was prepared.
    static Result<> digest(PendingStep& step, const Piece& piece, const std::byte* image,
                           std::byte* residues);
    // The same for one slice of a segment.
    static Result<> digest_slice(PendingStep& step, const Segment& segment, std::uint64_t slice,
                                 const ElementView& view, std::byte* residues);
    // Makes room for the step's digests, once; thread-safe. Throws if there is no memory; then it
    // may be called again.
    static void prepare(PendingStep& step);
    // Writes a piece's image and residues (either may be null) to the step's files. Errors make the
    // step fail.
    void write(PendingStep& step, const Piece& piece, const std::byte* image, const std::byte* residues);
    // Keeps the step's first error; thread-safe.
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
    void lose(PendingStep& step, bool reported);
    void done(const std::shared_ptr<PendingStep>& step);

    Tiers& tiers_;
    StagingRing* ring_;
    std::uint64_t heap_limit_;
    Lost lost_;
    Diverged diverged_;
    bool log_divergence_ = true;
    StepRecorder* recorder_ = nullptr;
    Comm* comm_ = nullptr;  // null: no files are shared
    FileSystem* system_ = nullptr;
    std::string shared_file_;

    std::mutex mutex_;  // protects all that follows
    std::condition_variable work_;
    std::condition_variable settled_;
    std::deque<Load> loads_;
    std::deque<std::shared_ptr<PendingStep>> steps_;  // in the order of capture
    std::uint64_t heap_used_ = 0;                     // bytes, of all steps
    bool committing_ = false;                         // a thread is in commit_ready()
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace twinrun
