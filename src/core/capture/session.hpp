// Capture inside a running application (DESIGN: tiers, back-pressure, commit, online comparison).
//
//   caller's thread     capture(): arrays -> staging memory (bounded), or digests of them where only these are kept
//   flush threads       staging -> digests, checksums -> files of the first tier -> commit, in the order of capture
//   a flusher           node-local tier -> shared tier, file by file, checked -> commit; then local steps may go
//
// A step is committed on a tier when all its files are synced under their final names and a line of the rank's journal
// says so (history/history.hpp); it is committed by the run when every rank's journal on the last tier has it. What goes
// wrong in the background loses steps whole, never parts of them, and is told by the next call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capture/tiers.hpp"
#include "history/field.hpp"
#include "history/history.hpp"
#include "history/provenance.hpp"
#include "history/reference.hpp"
#include "history/writer.hpp"
#include "platform/comm.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Packed and XORed where this build can.
RecordSettings default_record();

struct SessionSettings {
    HistorySettings history;
    // Set: data is kept as differences, by this method; then history.record is made of these.
    std::optional<RecordMethod> record;
    RecordSettings record_settings = default_record();
    std::uint64_t record_table_bytes = 0;  // RecorderOptions
    Existing existing = Existing::refuse;
    // Folder on storage that only this node sees, where steps rest first. Empty: straight to the history's folder.
    std::string local;
    std::uint64_t local_bytes = 0;      // that this rank may keep there; 0: no limit
    Flusher flusher = Flusher::thread;  // from local to the history's folder
    // Data of these ranks goes to the history's folder in one file a step; their metadata stays apart. Then history.shared is set.
    SharedFiles shared_files = SharedFiles::off;
    std::uint64_t memory_bytes =
        1ULL << 30;                   // host memory that steps under way may hold; 0: none, capture() writes
    std::uint64_t device_bytes = 0;   // the same of each device; 0: none, capture() brings arrays to the host
    Retention keep;                   // on the last tier
    bool replace_steps = false;       // a step that is there may be captured again, in place of the old one
    bool background = true;           // false: capture() returns when the step is committed
    int threads = 0;                  // that help the caller copy and digest; 0: all cores of this process
    int flush_threads = 4;            // more than cores: they mostly wait for storage
    std::string reference;            // history to compare with as steps are captured; empty: none
    bool stop_on_divergence = false;  // capture() compares before it returns, and says so
    bool log_divergence = true;       // a line in the rank's journal
    std::string flush_program;  // of Flusher::process; empty: twinrun_flush beside the library, or on PATH
    Provenance provenance;      // kept with the run
    // What the names of docs/capture.md set: "atol", "memory", ... Errors: an unknown name, a bad value; both are named.
    Result<> set(std::string_view name, std::string_view value);
    // Lines "name = value"; # begins a comment. The error names file and line.
    Result<> load(const std::string& path);
};

// A step that is not there though capture() took it, and why.
struct LostStep {
    std::int64_t step = 0;
    Error error;
};

struct CaptureReport {
    std::int64_t step = 0;
    double seconds = 0;         // that the caller was blocked
    double waited_seconds = 0;  // of these, for staging memory that earlier steps held
    std::uint64_t data_bytes = 0;
    std::uint64_t metadata_bytes = 0;      // 0 as long as it is not known
    std::uint64_t staged_bytes = 0;        // held by steps under way, this one included
    std::optional<Divergence> divergence;  // known when capture() returned
    std::vector<LostStep> lost;            // since the last call that told of lost steps
};

struct SessionFacts {
    std::uint64_t captured = 0;  // steps
    std::uint64_t committed = 0;
    std::uint64_t lost = 0;
    std::uint64_t most_staged_bytes = 0;
    std::uint64_t flushed_bytes = 0;  // written to the last tier
};

// One rank of one run. Not thread-safe: one thread at a time. [collective]: called by all ranks in the same order.
class Session {
   public:
    // [collective] path: the history's folder, on storage that all ranks see. system and comm outlive the session. Errors: what
    // Existing says, settings other than those of the history that is appended to, storage; the same on every rank. Appending
    // first brings steps to the shared tier that an earlier process left on the local one.
    static Result<std::unique_ptr<Session>> open(FileSystem& system, Comm& comm, const std::string& path,
                                                 SessionSettings settings);
    // Brings what was captured to storage, as close() does, but waits for no other rank (unless files are shared: then for their
    // parts of what was captured), and keeps its errors to itself.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // From now on part of every capture; replaces a field of the same name. The data is read by captures, and written by
    // restore(). Errors: those of plan_captured() and check_array().
    Result<> protect(CapturedField field);
    Result<> unprotect(const std::string& name);  // not_found

    // [collective] Captures the protected fields, or those that are named. Errors: a step that is there or under way already,
    // no fields, names that are not protected, ranks that disagree about the step: then nothing was captured. Storage errors
    // come later, as lost steps (unless settings.background is false).
    Result<CaptureReport> capture(std::int64_t step, std::span<const std::string> names = {});
    // The same for fields that are not protected.
    Result<CaptureReport> capture_fields(std::int64_t step, std::vector<CapturedField> fields);

    // [collective] Waits until all steps are committed by every rank on the last tier, or lost; that is the history's folder, or
    // `local` where the flusher is none. Returns what was lost since the last call that
    // told of it, on this rank.
    Result<std::vector<LostStep>> wait();
    // [collective] wait(), and the end. Further calls fail. Again: no effect.
    Result<std::vector<LostStep>> close();

    // [collective] The newest committed step that is not after this one.
    Result<std::optional<std::int64_t>> latest(std::int64_t not_after = INT64_MAX);
    // This rank's bytes of a committed step, back into the protected fields or those that are named. Checked against the
    // checksums before they are written. From the nearest tier that has them.
    Result<> restore(std::int64_t step, std::span<const std::string> names = {});
    // The same into fields that are not protected.
    Result<> restore_fields(std::int64_t step, const std::vector<CapturedField>& fields);
    // Fields of a committed step as they are stored, in the order of capture.
    Result<std::shared_ptr<MetadataFile>> stored(std::int64_t step);

    // Steps that this rank has committed on the last tier and that are there still, ascending. Others may lack some.
    [[nodiscard]] std::vector<std::int64_t> committed() const;
    // Steps that this rank has on the local tier only, ascending.
    [[nodiscard]] std::vector<std::int64_t> local_only() const;
    // This rank's part of the local tier leaves: its steps, which are all on the last tier, now, and what else it has with the end of
    // the session. Error: steps that are nowhere else; then nothing leaves.
    Result<> drop_local();
    [[nodiscard]] SessionFacts facts() const;
    [[nodiscard]] const std::string& path() const;
    [[nodiscard]] int rank() const;
    // Called once a step that diverges: by capture() if stop_on_divergence is set, else from a thread of the session's. Must
    // not call this session.
    void on_divergence(std::function<void(const Divergence&)> call);

   private:
    class Impl;
    explicit Session(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace twinrun
