// Capture inside a running application: the session, its settings and its reports.
//
//   caller's thread   capture(): arrays -> staging memory (bounded), or only digests of them
//   flush threads     staging -> digests, checksums -> files of the first tier -> commit, in the
//                     order of capture
//   a flusher         node-local tier -> shared tier, each file checked -> commit; then local
//                     copies may go
//
// A step is committed on a tier when all its files are synced under their final names and a line of
// the rank's journal names them (history/history.hpp). It is committed by the run when every rank's
// journal on the last tier has it. An error in the background loses a whole step, never a part of
// one; the next call reports it.
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
#include "history/restore.hpp"
#include "history/writer.hpp"
#include "platform/comm.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Record settings where the user sets none: compressed and XORed if this build has Zstandard.
RecordSettings default_record();

struct SessionSettings {
    HistorySettings history;
    // Set: data is stored as differences, by this method. open() then fills history.record from
    // record_settings.
    std::optional<RecordMethod> record;
    RecordSettings record_settings = default_record();
    std::uint64_t record_table_bytes = 0;  // RecorderOptions::table_bytes
    Existing existing = Existing::refuse;
    // Folder on node-local storage, where steps are written first. Empty: steps go straight to the
    // history's folder.
    std::string local;
    std::uint64_t local_bytes = 0;      // limit of this rank's bytes in `local`; 0: no limit
    Flusher flusher = Flusher::thread;  // who copies steps from `local` to the history's folder
    // Which ranks write the data of a step into one common file in the history's folder. Metadata
    // stays in a file of each rank. open() then sets history.shared.
    SharedFiles shared_files = SharedFiles::off;
    // Limit of the host memory that steps under way hold. 0: none; capture() itself writes the
    // step.
    std::uint64_t memory_bytes = 1ULL << 30;
    // Limit of the device memory that steps under way hold, all devices together. 0: none;
    // capture() copies arrays to the host before it returns.
    std::uint64_t device_bytes = 0;
    Retention keep;              // which steps stay on the last tier
    bool replace_steps = false;  // a committed step may be captured again; the new one replaces it
    bool background = true;      // false: capture() returns when the step is committed
    // Threads that copy and digest during capture(); 0: all cores of this process.
    int threads = 0;
    int flush_threads = 4;  // may exceed the number of cores: they mostly wait for storage
    std::string reference;  // history to compare each captured step with; empty: none
    // capture() compares before it returns, and reports the divergence
    bool stop_on_divergence = false;
    // The step's line in the rank's journal says where the step diverged.
    bool log_divergence = true;
    // Program for Flusher::process. Empty: twinrun_flush beside the library, or on PATH.
    std::string flush_program;
    Provenance provenance;  // stored with the run
    // Sets one setting by its name in docs/reference/capture.md: "atol", "memory", ... Errors: an
    // unknown name, a bad value; the message quotes it.
    Result<> set(std::string_view name, std::string_view value);
    // For callers that set a member: whether the setting of this name is within its limits. The
    // error is that of set(), and quotes `value`.
    [[nodiscard]] Result<> check(std::string_view name, std::string_view value) const;
    // Reads settings from a file of lines "name = value"; # begins a comment. The error names file
    // and line.
    Result<> load(const std::string& path);
};

// A step that capture() accepted and that is not committed, and why.
struct LostStep {
    std::int64_t step = 0;
    Error error;
};

struct CaptureReport {
    std::int64_t step = 0;
    double seconds = 0;  // how long the caller was blocked
    // The part of it spent waiting for memory or local storage that earlier steps held.
    double waited_seconds = 0;
    std::uint64_t data_bytes = 0;
    std::uint64_t metadata_bytes = 0;  // 0: not yet known
    // Staging memory held by steps under way, this one included.
    std::uint64_t staged_bytes = 0;
    std::optional<Divergence> divergence;  // set only if it was known before capture() returned
    // Steps lost since the last call that reported lost steps.
    std::vector<LostStep> lost;
};

// Counts since open().
struct SessionFacts {
    std::uint64_t captured = 0;   // steps
    std::uint64_t committed = 0;  // steps
    std::uint64_t lost = 0;       // steps
    std::uint64_t most_staged_bytes = 0;
    std::uint64_t flushed_bytes = 0;  // bytes written to the last tier
};

// One rank of one run: protects arrays, captures steps, restores them. Owned by the application or
// its binding (C, Fortran, Python). Not thread-safe: one thread at a time. [collective]: all ranks
// call it, in the same order.
class Session {
   public:
    // [collective] path: the history's folder, on storage that all ranks see. system and comm
    // outlive the session. If one rank fails, open() fails on every rank. Errors: a folder that
    // settings.existing does not allow, settings that differ from those of the history to append
    // to, storage. With `append`, steps that an earlier process left on the local tier are first
    // copied to the history's folder (unless the flusher is none).
    static Result<std::unique_ptr<Session>> open(FileSystem& system, Comm& comm, const std::string& path,
                                                 SessionSettings settings);
    // Brings all captured steps to storage, as close() does, but waits for no other rank and
    // ignores errors.
    // Exception: with shared files it waits for the other ranks' parts of these steps.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Adds a field to every later capture; replaces a field of the same name. capture() reads its
    // data, restore() writes it: both must stay valid until unprotect(). Errors: a name that is not
    // UTF-8; those of plan_captured(), check_array() and FieldReader::create().
    Result<> protect(CapturedField field);
    Result<> unprotect(const std::string& name);  // error: not_found

    // [collective] Captures the protected fields, or only the named ones. After it returns, the
    // arrays may change. Errors after which nothing was captured: a step that is committed or under
    // way (unless replace_steps is set), no fields, a name that is not protected, ranks that
    // disagree about the step. Errors of storage lose the step: a later call reports it, or this
    // one if background is false or memory_bytes is 0.
    Result<CaptureReport> capture(std::int64_t step, std::span<const std::string> names = {});
    // [collective] The same for fields that are not protected.
    Result<CaptureReport> capture_fields(std::int64_t step, std::vector<CapturedField> fields);

    // [collective] Waits until every captured step is committed by every rank on the last tier, or
    // lost. The last tier is the history's folder, or `local` if the flusher is none. Returns the
    // steps that this rank lost since the last call that reported lost steps.
    Result<std::vector<LostStep>> wait();
    // [collective] Calls wait() and ends the session. Later calls fail; a second close() has no
    // effect.
    Result<std::vector<LostStep>> close();

    // [collective] The newest step that every rank has committed and that is not after `not_after`.
    Result<std::optional<std::int64_t>> latest(std::int64_t not_after = INT64_MAX);
    // Copies this rank's bytes of a committed step back into the protected fields, or only the
    // named ones. Reads the nearest tier that has the step; bytes are checked against their
    // checksums before they are written.
    Result<> restore(std::int64_t step, std::span<const std::string> names = {});
    // The same into fields that are not protected.
    Result<> restore_fields(std::int64_t step, const std::vector<CapturedField>& fields);
    // Waits until this rank has committed the step on a tier, or lost it, and reads it from the
    // nearest tier that has it. use() is called again if the step was removed from there or
    // captured again meanwhile.
    // Errors: not_found: no tier has the step; those of use().
    Result<> read_committed(std::int64_t step, const std::function<Result<>(const StoredPart&)>& use);
    // Metadata of the fields of a committed step, in the order of capture.
    Result<std::shared_ptr<MetadataFile>> stored(std::int64_t step);

    // Steps that this rank has committed on the last tier and that were not removed since,
    // ascending. Other ranks may lack some of them.
    [[nodiscard]] std::vector<std::int64_t> committed() const;
    // Steps that this rank has on the local tier only, ascending.
    [[nodiscard]] std::vector<std::int64_t> local_only() const;
    // Removes this rank's part of the local tier: its steps now, the rest when the session ends.
    // Error, with nothing removed: a step that is only on the local tier.
    Result<> drop_local();
    [[nodiscard]] SessionFacts facts() const;
    [[nodiscard]] const std::string& path() const;
    [[nodiscard]] int rank() const;
    [[nodiscard]] int ranks() const;
    // Path of the reference; empty: there is none.
    [[nodiscard]] const std::string& reference() const;
    // Sets the function that is called once for each step that diverges: by capture() if
    // stop_on_divergence is set or nothing runs in the background, otherwise by a thread of the
    // session. It must not call this session.
    void on_divergence(std::function<void(const Divergence&)> call);

   private:
    class Impl;
    explicit Session(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace twinrun
