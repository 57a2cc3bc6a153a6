#include "capture/session.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <unistd.h>

#include "base/aligned.hpp"
#include "base/checked.hpp"
#include "base/utf8.hpp"
#include "capture/agreement.hpp"
#include "capture/device_stage.hpp"
#include "capture/failure.hpp"
#include "capture/intake.hpp"
#include "capture/layout.hpp"
#include "capture/pipeline.hpp"
#include "capture/staging.hpp"
#include "history/apart.hpp"
#include "history/gather.hpp"
#include "history/restore.hpp"
#include "platform/team.hpp"
#include "sketch/device_build.hpp"

namespace twinrun {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSmallestMemory = 16 << 20;
// If only digests are kept, arrays of up to this many bytes together are copied and digested later:
// the copy takes less of the caller's time. Larger ones are digested in place.
constexpr std::uint64_t kCopiedBytes = 4 << 20;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

Error not_protected(const std::string& name) {
    return Error{ErrorCode::not_found, "no protected field of the name '" + name + "'"};
}

// Names must be text, because messages, reports and JSON contain them.
Result<> check_name(const CapturedField& field) {
    if (is_utf8(field.name)) return success();
    return Error{ErrorCode::invalid_argument,
                 "field '" + readable(field.name) + "': its name is not UTF-8: give it another name"};
}

// Whether the field can be captured and restored.
Result<> check_field(const CapturedField& field, const HistorySettings& settings) {
    if (field.device) TWR_CHECK(check_array(*field.device));
    TWR_CHECK(plan_captured(field, settings));
    if (!field.device) TWR_CHECK(FieldReader::create(field, nullptr));
    return success();
}

}  // namespace

class Session::Impl {
   public:
    Impl(FileSystem& system, Comm& comm, std::string path, SessionSettings settings)
        : system_(system),
          comm_(comm),
          path_(std::move(path)),
          folder_(real_path(path_)),
          settings_(std::move(settings)),
          agreement_(comm, settings_.keep.any(), [this](std::int64_t step) {
              if (tiers_ != nullptr) tiers_->agreed(step);
          }) {
        settings_.local = real_path(settings_.local);
        settings_.reference = real_path(settings_.reference);
    }
    ~Impl() { end(); }

    Result<> open();
    Result<> protect(CapturedField field);
    Result<> unprotect(const std::string& name);
    Result<CaptureReport> capture(std::int64_t step, std::span<const std::string> names);
    Result<CaptureReport> capture_fields(std::int64_t step, std::vector<CapturedField> fields);
    Result<std::vector<LostStep>> wait();
    Result<std::vector<LostStep>> close();
    void end();
    Result<std::optional<std::int64_t>> latest(std::int64_t not_after);
    Result<> restore(std::int64_t step, std::span<const std::string> names);
    Result<> restore_fields(std::int64_t step, const std::vector<CapturedField>& fields) const;
    Result<std::shared_ptr<MetadataFile>> stored(std::int64_t step);
    Result<> read_committed(std::int64_t step, const std::function<Result<>(const StoredPart&)>& use);
    std::vector<std::int64_t> committed() const;
    Result<> drop_local();
    std::vector<std::int64_t> local_only() const {
        return tiers_ != nullptr ? tiers_->local_only() : std::vector<std::int64_t>();
    }
    SessionFacts facts() const;

    FileSystem& system_;
    Comm& comm_;
    std::string path_;    // as the caller gave it; for messages
    std::string folder_;  // the same, absolute: the program may change its working folder
    SessionSettings settings_;
    const pid_t process_ = ::getpid();    // the process that opened the session
    std::list<CapturedField> protected_;  // in the order in which they are captured
    std::unordered_map<std::string, std::list<CapturedField>::iterator> by_name_;
    // Held during a call: replacing the function waits for a call of the old one.
    std::mutex divergence_mutex_;
    std::function<void(const Divergence&)> on_divergence_;

   private:
    [[nodiscard]] TierSettings tier_settings() const;
    Result<> prepare();
    Result<> begin();
    Result<> usable() const;
    Result<History> open_history() const;
    [[nodiscard]] Result<> restore_into(std::int64_t step, const std::vector<CapturedField>& fields) const {
        return read_stored([&] { return tiers_->stored(step); }, step,
                           [&](const auto& parts) { return restore_step(parts, step, fields); });
    }
    Result<> check_places() const;
    Result<> set_up_record();
    Result<> set_up_shared();
    Result<> prepare_shared();
    [[nodiscard]] bool shares() const { return settings_.shared_files != SharedFiles::off; }
    [[nodiscard]] std::uint64_t heap_bytes() const;
    [[nodiscard]] bool staged() const { return settings_.background && settings_.memory_bytes != 0; }
    Result<> share_steps();
    Result<> skip_used_names(std::int64_t step, std::uint32_t& attempt);
    Result<> agree_on_step(Result<> own, std::int64_t step, std::uint32_t& attempt);
    Result<> plan(std::int64_t step, std::vector<CapturedField>& fields);
    // A step during capture().
    struct Taking {
        std::shared_ptr<PendingStep> step;
        bool added = false;  // to the pipeline: then the step must be sealed, whatever happens
        Intake::OnDevices devices;
        std::shared_ptr<StagedArrays> staged;  // null: the stage holds no arrays of the step
        Result<> taken = success();            // whether all bytes were taken
    };
    [[nodiscard]] std::shared_ptr<PendingStep> new_step(std::int64_t number, std::uint32_t attempt,
                                                        std::uint64_t ordinal) const;
    void take(Taking& taking, const std::vector<CapturedField>& fields, CaptureReport& report);
    void finish(Taking& taking);
    bool hand_over(Taking& taking);
    // reported: capture() itself returns the error.
    void settled(std::int64_t step, const Error* lost, bool reported = false);
    void diverged(const Divergence& divergence);
    std::vector<LostStep> take_unreported();
    Result<std::vector<CapturedField>> named(std::span<const std::string> names) const;
    [[nodiscard]] Result<std::vector<CommonStep>> common_steps();

    Agreement agreement_;
    std::unique_ptr<Tiers> tiers_;
    std::unique_ptr<StagingRing> ring_;
    std::unique_ptr<Reference> reference_;
    std::unique_ptr<Team> team_;
    // newest attempt at each step, by this or an earlier run
    std::map<std::int64_t, std::uint32_t> attempts_;
    bool closed_ = false;
    std::uint64_t captured_ = 0;      // steps
    std::uint64_t agreed_steps_ = 0;  // steps that all ranks agreed to capture
    std::string shared_file_;         // name of this rank's shared data file
    bool ends_local_ = false;         // on some rank steps stay on its node
    struct Stored {                   // result of the last stored()
        std::vector<StoredPart> parts;
        std::shared_ptr<MetadataFile> metadata;
    };
    Stored stored_;

    mutable std::mutex mutex_;      // protects the next five
    std::set<std::int64_t> taken_;  // steps that are committed or under way
    // Lost steps that no call has reported. Has room for all steps under way: a step lost to
    // out-of-memory is still reported.
    std::vector<LostStep> unreported_;
    std::size_t under_way_ = 0;    // steps
    std::uint64_t committed_ = 0;  // steps
    std::uint64_t lost_ = 0;       // steps

    // Destroyed in reverse order: each uses those above it.
    std::unique_ptr<StepRecorder> recorder_;
    std::unique_ptr<Pipeline> pipeline_;
    std::unique_ptr<Intake> intake_;
    std::unique_ptr<DeviceStage> stage_;
};

// Errors where two of the run's folders must differ and do not.
Result<> Session::Impl::check_places() const {
    if (!settings_.local.empty()) TWR_CHECK(check_apart(path_, settings_.local));
    std::error_code not_there;
    if (settings_.existing == Existing::replace && !settings_.reference.empty() &&
        (settings_.reference == folder_ ||
         std::filesystem::equivalent(settings_.reference, folder_, not_there))) {
        return Error{ErrorCode::invalid_argument,
                     path_ + ": is the reference of this run and cannot be replaced: name another folder"};
    }
    return success();
}

// Checks the settings of a record, and makes history.record of them.
Result<> Session::Impl::set_up_record() {
    if (!settings_.record) return success();
    RecordSettings& record = settings_.record_settings;
    record.method = *settings_.record;
    if (record.method == RecordMethod::full) record.xored = false;
    TWR_CHECK(record.check());
    if (!settings_.history.keep_data)
        return Error{ErrorCode::invalid_argument, "record: there is no data to record where mode is digests"};
    if (settings_.keep.any()) {
        return Error{
            ErrorCode::invalid_argument,
            "record: later steps need earlier ones: leave keep_steps and keep_data_steps at 0, and remove "
            "steps with 'twinrun compact'"};
    }
    const std::string against = record.against;
    TWR_CHECK(settle_against(system_, record, folder_, static_cast<std::uint32_t>(comm_.size()), against,
                             comm_.rank() == 0));
    settings_.history.record = record;
    return success();
}

// Errors where another setting excludes shared files.
Result<> Session::Impl::set_up_shared() {
    if (!shares()) return success();
    const auto refuse = [](const std::string& what) {
        return Error{ErrorCode::invalid_argument, "shared_files: " + what};
    };
    if (!settings_.history.keep_data) return refuse("there is no data to share where mode is digests");
    if (settings_.history.record)
        return refuse("a record has a file a rank: leave one of record and shared_files off");
    if (!settings_.local.empty())
        return refuse("a node-local tier has a file a rank: leave one of local and shared_files off");
    if (settings_.keep.data_steps != 0) {
        return refuse(
            "a rank cannot drop its part of a file that others read: instead of keep_data_steps use "
            "keep_steps");
    }
    settings_.history.shared = true;
    return success();
}

// [collective]
Result<> Session::Impl::prepare_shared() {
    if (!shares()) return success();
    auto prepared = comm_.prepare_shared(settings_.shared_files, staged());
    if (!prepared) return agreement_.agree(std::move(prepared).error().at(path_));
    shared_file_ = std::move(prepared).value();
    return agreement_.agree(success());
}

Result<> Session::Impl::open() {
    Result<> own = success();
    if (settings_.memory_bytes != 0 && settings_.background && settings_.memory_bytes < kSmallestMemory)
        own = Error{ErrorCode::invalid_argument, "memory: at least 16 MiB, or 0 for none"};
    if (settings_.flush_threads < 1 || settings_.flush_threads > 64)
        own = Error{ErrorCode::invalid_argument, "flush_threads: 1 to 64"};
    if (settings_.flusher == Flusher::process && settings_.local.empty())
        own = Error{ErrorCode::invalid_argument, "flusher: a process needs a local tier: set local"};
    ends_local_ = settings_.flusher == Flusher::none && !settings_.local.empty();
    if (own) own = check_places();
    if (own) own = set_up_record();
    if (own) own = set_up_shared();
    if (own) {
        own = Tiers::check_local(folder_, static_cast<std::uint32_t>(comm_.rank()),
                                 static_cast<std::uint32_t>(comm_.size()), tier_settings());
    }
    TWR_CHECK(agreement_.agree(std::move(own)));
    TWR_CHECK(agreement_.on_settings(settings_, staged(), ends_local_, path_));
    TWR_CHECK(prepare_shared());
    TWR_CHECK(agreement_.agree(prepare()));
    // Rank 0 begins first: it makes the history, or finds an error. The other ranks begin if it
    // succeeds.
    if (!agreement_.several()) return begin();
    if (comm_.rank() != 0) {
        TWR_CHECK(agreement_.agree(success()));
        TWR_CHECK(agreement_.agree(begin()));
    } else {
        TWR_CHECK(agreement_.agree(begin()));
        TWR_CHECK(agreement_.agree(success()));
    }
    return share_steps();
}

// [collective] Finds the steps that every rank has committed. A step that only some ranks have may
// be captured again.
Result<> Session::Impl::share_steps() {
    TWR_TRY(const std::vector<CommonStep> steps, common_steps());
    {
        const std::lock_guard guard(mutex_);
        taken_.clear();
        for (const CommonStep& common : steps)
            taken_.insert(common.step);
    }
    for (const CommonStep& common : steps)
        tiers_->agreed(common.step);
    return success();
}

Result<std::vector<CommonStep>> Session::Impl::common_steps() {
    return agreement_.common_steps(
        ends_local_, settings_.history.keep_data, [this] { return tiers_->committed(); },
        [this] { return open_history(); });
}

Result<History> Session::Impl::open_history() const try {
    return History::open(folder_);
} catch (const std::bad_alloc&) {  // an exception would leave the other ranks waiting
    return Error{ErrorCode::out_of_memory, path_ + ": not enough memory for the history's list of steps"};
}

// Error after close(), and in a forked process, where the session's threads do not run.
Result<> Session::Impl::usable() const {
    if (closed_) return Error{ErrorCode::invalid_argument, "the run is closed"};
    if (process_ != ::getpid()) {
        return Error{ErrorCode::invalid_argument,
                     "the run belongs to the process that opened it: open another one after fork()"};
    }
    return success();
}

TierSettings Session::Impl::tier_settings() const {
    TierSettings tiers;
    tiers.history = settings_.history;
    tiers.existing = settings_.existing;
    tiers.local = settings_.local;
    tiers.local_bytes = settings_.local_bytes;
    tiers.flusher = settings_.flusher;
    tiers.flush_program = settings_.flush_program;
    tiers.keep = settings_.keep;
    return tiers;
}

// Does what can fail without a change on storage, before any rank makes a history or replaces one.
Result<> Session::Impl::prepare() try {
    const auto rank = static_cast<std::uint32_t>(comm_.rank());
    const auto ranks = static_cast<std::uint32_t>(comm_.size());
    if (!settings_.reference.empty()) {
        TWR_TRY(reference_, Reference::open(settings_.reference, rank, ranks));
    }
    StreamOptions cores;
    cores.threads = settings_.threads;
    team_ = std::make_unique<Team>(worker_count(cores));
    if (staged()) {
        TWR_TRY(ring_, StagingRing::create(settings_.memory_bytes - heap_bytes()));
    }
    // Last, so that another process has little time to change the folder before begin().
    return Tiers::check_replace(system_, folder_, rank, ranks, tier_settings());
} catch (const std::bad_alloc&) {  // an exception would leave the other ranks waiting
    return Error{ErrorCode::out_of_memory, path_ + ": not enough memory to open a run"};
} catch (const std::exception& e) {
    return failure_of(path_, e);
}

// The part of memory_bytes for the heap; the ring has the rest. Digests are on the heap: an eighth.
// If files are shared, so is all data until it is written: then the ring has a quarter.
std::uint64_t Session::Impl::heap_bytes() const {
    if (!shares()) return settings_.memory_bytes / 8;
    return settings_.memory_bytes -
           std::max<std::uint64_t>(settings_.memory_bytes / 4, StagingRing::kSmallest);
}

Result<> Session::Impl::begin() try {
    const auto rank = static_cast<std::uint32_t>(comm_.rank());
    const auto ranks = static_cast<std::uint32_t>(comm_.size());
    TWR_TRY(tiers_, Tiers::open(system_, folder_, rank, ranks, tier_settings(),
                                [this](std::int64_t step, const Error* lost) { settled(step, lost); }));
    Provenance facts = settings_.provenance;
    if (!facts.empty()) {
        facts.groups["mpi"]["rank"] = std::to_string(rank);
        facts.groups["mpi"]["ranks"] = std::to_string(ranks);
    }
    TWR_CHECK(tiers_->begin(facts));
    TWR_CHECK(tiers_->resume());
    for (const Journal& journal : {tiers_->local(), tiers_->history()}) {
        for (const auto& [step, entry] : journal.steps) {
            attempts_[step] = std::max(attempts_[step], attempt_of(entry.folder));
        }
        for (const auto& [step, attempt] : journal.dropped)
            attempts_[step] = std::max(attempts_[step], attempt);
        // Differences of dropped steps stay, because other steps may need them: the names of their
        // folders are in use.
        for (const auto& [ordinal, file] : journal.differences) {
            const std::string folder = file.substr(0, file.find('/'));
            if (const auto step = step_of(folder))
                attempts_[*step] = std::max(attempts_[*step], attempt_of(folder));
        }
    }
    // Steps that are only on the local tier may be captured again, unless it is the last tier.
    for (const auto& [step, entry] : tiers_->committed())
        taken_.insert(step);
    pipeline_ = std::make_unique<Pipeline>(
        *tiers_, ring_.get(), staged() ? heap_bytes() : UINT64_MAX / 2,
        staged() ? settings_.flush_threads : 0,
        [this](const PendingStep& step, const Error& error) { settled(step.step, &error, step.reported); },
        [this](const Divergence& divergence) { diverged(divergence); });
    pipeline_->log_divergence(settings_.log_divergence);
    intake_ = std::make_unique<Intake>(settings_.history, shares(), *team_, ring_.get(), *pipeline_);
    if (settings_.history.record) {
        RecorderOptions recorder;
        recorder.settings = *settings_.history.record;
        recorder.table_bytes = settings_.record_table_bytes;
        recorder.threads = std::min(settings_.flush_threads, team_->size());
        TWR_TRY(recorder_, StepRecorder::create(recorder, {folder_, tiers_->local_folder(), rank}));
        pipeline_->record_with(*recorder_);
    }
    if (shares()) pipeline_->share_with(comm_, system_, shared_file_);
    if (staged() && (settings_.device_bytes != 0 || !settings_.history.keep_data))
        stage_ = std::make_unique<DeviceStage>(settings_.device_bytes);
    return success();
} catch (const std::bad_alloc&) {  // an exception would leave the other ranks waiting
    return Error{ErrorCode::out_of_memory, path_ + ": not enough memory to open a run"};
} catch (const std::exception& e) {
    return failure_of(path_, e);
}

Result<> Session::Impl::protect(CapturedField field) {
    TWR_CHECK(check_name(field));
    TWR_CHECK(check_field(field, settings_.history));
    const auto [place, added] = by_name_.try_emplace(field.name);
    if (!added) {
        *place->second = std::move(field);
        return success();
    }
    try {
        protected_.push_back(std::move(field));
    } catch (...) {
        by_name_.erase(place);
        throw;
    }
    place->second = std::prev(protected_.end());
    return success();
}

Result<> Session::Impl::unprotect(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return not_protected(name);
    const auto place = found->second;
    by_name_.erase(found);
    protected_.erase(place);
    return success();
}

// The protected fields of these names; no names: all of them.
Result<std::vector<CapturedField>> Session::Impl::named(std::span<const std::string> names) const {
    if (names.empty()) return std::vector<CapturedField>(protected_.begin(), protected_.end());
    std::vector<CapturedField> fields;
    for (const std::string& name : names) {
        const auto field = by_name_.find(name);
        if (field == by_name_.end()) return not_protected(name);
        fields.push_back(*field->second);
    }
    return fields;
}

Result<CaptureReport> Session::Impl::capture(std::int64_t step, std::span<const std::string> names) {
    auto fields = named(names);
    if (fields) return capture_fields(step, std::move(fields).value());
    if (agreement_.several()) {  // the other ranks wait in on_step(): this makes them fail too
        std::uint32_t attempt = 0;
        TWR_CHECK(agree_on_step(fields.error(), step, attempt));
    }
    return std::move(fields).error();
}

// Checks step and fields and makes the layout. Reads no data but IDs.
Result<> Session::Impl::plan(std::int64_t step, std::vector<CapturedField>& fields) try {
    TWR_CHECK(usable());
    {
        const std::lock_guard guard(mutex_);
        if (!settings_.replace_steps && taken_.contains(step))
            return Error{ErrorCode::invalid_argument, "captured already"};
    }
    for (const CapturedField& field : fields)
        TWR_CHECK(check_name(field));
    return intake_->plan(fields);
} catch (const std::exception&) {  // an exception would leave the other ranks waiting
    return out_of_memory();
}

// Raises `attempt` until no file or folder on any tier has the name of its folder: files of others
// stay as they are.
Result<> Session::Impl::skip_used_names(std::int64_t step, std::uint32_t& attempt) try {
    const auto taken = [&](const std::string& folder) {
        return !folder.empty() &&
               is_there((std::filesystem::path(folder) / step_folder(step, attempt)).string());
    };
    while (taken(folder_) || taken(tiers_->local_folder()))
        ++attempt;
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to capture a step"};
}

Result<> Session::Impl::agree_on_step(Result<> own, std::int64_t step, std::uint32_t& attempt) {
    const auto last = attempts_.find(step);
    attempt = last == attempts_.end() ? 0 : last->second + 1;
    if (own) own = skip_used_names(step, attempt);
    return agreement_.on_step(std::move(own), step, attempt);
}

std::shared_ptr<PendingStep> Session::Impl::new_step(std::int64_t number, std::uint32_t attempt,
                                                     std::uint64_t ordinal) const {
    auto step = std::make_shared<PendingStep>();
    step->ordinal = ordinal;
    step->step = number;
    step->folder = step_folder(number, attempt);
    const std::shared_ptr<const StepLayout>& layout = intake_->layout();
    step->layout = layout;
    step->ids = intake_->ids();
    // Shared data is gathered on the heap; recorded data too, unless it stays on a device.
    step->heap_bytes = layout->digest_bytes + (layout->shared ? layout->file_bytes : 0);
    for (std::size_t i = 0; layout->recorded && i < layout->fields.size(); ++i) {
        if (stage_ == nullptr || !layout->on_device[i]) step->heap_bytes += layout->fields[i].data_bytes();
    }
    return step;
}

// Copies or digests the fields, or copies those on devices to the stage. Sets taking.taken.
void Session::Impl::take(Taking& taking, const std::vector<CapturedField>& fields,
                         CaptureReport& report) try {
    const std::shared_ptr<PendingStep>& step = taking.step;
    const StepLayout& layout = *step->layout;
    const bool must_know = reference_ != nullptr && settings_.stop_on_divergence;
    pipeline_->add(step, report.waited_seconds);
    taking.added = true;
    if (reference_ != nullptr) step->check = reference_->check(step->step, layout.fields);
    const bool digest_now = ring_ == nullptr || (must_know && step->check != nullptr) ||
                            (!layout.keep_data && layout.array_bytes > kCopiedBytes);
    taking.devices = Intake::on_devices(*step, fields);
    const Intake::OnDevices& devices = taking.devices;
    if (digest_now || !devices.numbers.empty()) Pipeline::prepare(*step);
    if (stage_ != nullptr && !(must_know && step->check != nullptr) && !devices.numbers.empty()) {
        std::vector<const DeviceArray*> arrays;
        for (const DeviceArray& array : devices.arrays)
            arrays.push_back(&array);
        taking.staged = stage_->take(devices.metadata, arrays, layout.keep_data, report.waited_seconds);
    }
    Result<>& taken = taking.taken;
    if (taking.staged == nullptr)
        taken = intake_->take_devices(step, devices, nullptr, report.waited_seconds);
    if (taken) taken = intake_->take_host(step, digest_now, report.waited_seconds);
    if (taken && must_know && step->check != nullptr) {
        step->divergence = step->check->result();
        report.divergence = step->divergence;
    }
} catch (const std::exception&) {
    taking.taken = out_of_memory();
}

// Lets the stage's thread bring the staged arrays to the host and seal the step. false: the caller
// seals it.
bool Session::Impl::hand_over(Taking& taking) {
    if (taking.staged == nullptr) return false;
    // After an error too: then the stage's thread only releases the staged memory.
    try {
        stage_->hand_over(taking.staged, [this, step = taking.step, staged = taking.staged,
                                          devices = std::move(taking.devices), ok = taking.taken.ok()] {
            if (!ok) return;
            double waited = 0;  // ignored: the application does not wait here
            Result<> brought = out_of_memory();
            try {
                brought = intake_->take_devices(step, devices, staged, waited);
            } catch (const std::exception&) {  // brought stays out_of_memory()
            }
            pipeline_->seal(step, brought ? std::nullopt : std::optional<Error>(std::move(brought).error()));
        });
        return taking.taken.ok();
    } catch (const std::exception&) {
        if (taking.taken) taking.taken = out_of_memory();
    }
    return false;
}

// Seals the step, now or when the stage has brought its arrays to the host.
void Session::Impl::finish(Taking& taking) {
    if (hand_over(taking)) return;
    const Result<>& taken = taking.taken;
    taking.step->reported = !taken;
    if (!taking.added) settled(taking.step->step, &taken.error(), true);
    if (taking.added)
        pipeline_->seal(taking.step, taken ? std::nullopt : std::optional<Error>(taken.error()));
}

Result<CaptureReport> Session::Impl::capture_fields(std::int64_t number,
                                                    std::vector<CapturedField> fields) try {
    const auto start = Clock::now();
    const auto where = [&](Error error) {
        return std::move(error).at(path_ + ": step " + std::to_string(number));
    };
    std::uint32_t attempt = 0;
    if (auto agreed = agree_on_step(plan(number, fields), number, attempt); !agreed)
        return where(std::move(agreed).error());
    const std::uint64_t ordinal = agreed_steps_++;  // counts even if the step fails from here on
    Taking taking;
    taking.step = new_step(number, attempt, ordinal);
    CaptureReport report;
    report.step = number;
    report.data_bytes = intake_->layout()->array_bytes;
    attempts_[number] = attempt;
    if (attempt != 0) tiers_->recaptured(number);
    {
        const std::lock_guard guard(mutex_);
        unreported_.reserve(unreported_.size() + under_way_ + 1);
        taken_.insert(number);
        ++under_way_;
    }
    agreement_.add(number);
    ++captured_;
    take(taking, fields, report);
    taking.step->blocked_seconds = seconds_since(start);
    const bool known = report.divergence.has_value();
    finish(taking);
    if (known) diverged(*report.divergence);
    if (settings_.stop_on_divergence && reference_ != nullptr && agreement_.several()) {
        // If one rank diverged, all ranks report it, so that they stop together.
        std::array<std::int64_t, 1> same{known ? 0 : 1};
        TWR_CHECK(comm_.minimum(same));
        if (same[0] == 0 && !known) {
            report.divergence = Divergence{number, -1, "", 0, 0, 0, 0, "another rank diverged"};
        }
    }
    report.staged_bytes = ring_ != nullptr ? ring_->used() : 0;
    report.lost = take_unreported();
    Result<>& taken = taking.taken;
    if (ring_ == nullptr && taken) {
        // Nothing runs in the background: the step is settled on its first tier, and this call
        // reports its loss.
        const auto own = std::find_if(report.lost.begin(), report.lost.end(),
                                      [&](const LostStep& lost) { return lost.step == number; });
        if (own != report.lost.end()) {
            taken = own->error;
            report.lost.erase(own);
        }
        if (settings_.local.empty() || settings_.flusher == Flusher::none) {
            report.metadata_bytes = tiers_->metadata_bytes(number);
        }
    }
    if (!taken) {
        const std::lock_guard guard(mutex_);
        unreported_.insert(unreported_.begin(), report.lost.begin(), report.lost.end());
        return where(std::move(taken).error());
    }
    report.seconds = seconds_since(start);
    return report;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 path_ + ": not enough memory to capture step " + std::to_string(number)};
}

void Session::Impl::settled(std::int64_t step, const Error* lost, bool reported) {
    agreement_.settled(step, lost != nullptr);
    const std::lock_guard guard(mutex_);
    if (under_way_ != 0) --under_way_;
    if (lost != nullptr) {
        if (!reported) {
            // Needs no memory: capture_fields() reserved it.
            unreported_.push_back({step, out_of_memory()});
            try {
                unreported_.back().error = *lost;
            } catch (const std::exception&) {  // the error stays out_of_memory()
            }
        }
        ++lost_;
        taken_.erase(step);
    } else {
        ++committed_;
    }
}

void Session::Impl::diverged(const Divergence& divergence) {
    const std::lock_guard guard(divergence_mutex_);
    try {
        if (on_divergence_) on_divergence_(divergence);
    } catch (...) {
        // ignored: the step goes on, other ranks wait for it, and a thread has no caller
    }
}

std::vector<LostStep> Session::Impl::take_unreported() {
    const std::lock_guard guard(mutex_);
    std::vector<LostStep> next;
    next.reserve(under_way_);
    return std::exchange(unreported_, std::move(next));
}

Result<std::vector<LostStep>> Session::Impl::wait() {
    if (auto able = usable(); !able) return std::move(able).error().at(path_);
    pipeline_->drain();
    tiers_->drain();
    if (agreement_.several()) {
        // All ranks have settled the same steps by now, so that each needs the same number of
        // exchanges.
        std::size_t left = 0;
        do {
            left = agreement_.unresolved();
            TWR_CHECK(agreement_.exchange());
        } while (agreement_.unresolved() != 0 && agreement_.unresolved() != left);
        tiers_->retain();
    }
    return take_unreported();
}

Result<> Session::Impl::drop_local() {
    if (auto able = usable(); !able) return std::move(able).error().at(path_);
    pipeline_->drain();
    return tiers_->drop_local();
}

Result<std::vector<LostStep>> Session::Impl::close() {
    if (closed_) return std::vector<LostStep>{};
    if (auto able = usable(); !able) return std::move(able).error().at(path_);
    auto lost = wait();
    end();
    return lost;
}

// Brings all captured steps to storage without waiting for other ranks, and stops the threads.
void Session::Impl::end() {
    closed_ = true;
    if (process_ != ::getpid()) {
        // In a forked process: it has no threads to wait for, and must not change the parent's
        // files. Nothing is destroyed.
        static_cast<void>(stage_.release());
        static_cast<void>(pipeline_.release());
        static_cast<void>(tiers_.release());
        static_cast<void>(team_.release());
        static_cast<void>(ring_.release());
        return;
    }
    stage_.reset();
    intake_.reset();
    pipeline_.reset();
    if (tiers_ != nullptr) tiers_->drain();
    tiers_.reset();
    team_.reset();
    ring_.reset();
}

Result<std::optional<std::int64_t>> Session::Impl::latest(std::int64_t not_after) {
    if (closed_) return Error{ErrorCode::invalid_argument, path_ + ": the run is closed"};
    TWR_TRY(const std::vector<CommonStep> steps, common_steps());
    std::optional<std::int64_t> newest;
    for (const CommonStep& common : steps) {
        if (common.step <= not_after && common.has_data) newest = common.step;
    }
    return newest;
}

Result<> Session::Impl::restore(std::int64_t step, std::span<const std::string> names) {
    if (closed_) return Error{ErrorCode::invalid_argument, path_ + ": the run is closed"};
    TWR_TRY(const std::vector<CapturedField> fields, named(names));
    return restore_into(step, fields);
}

Result<> Session::Impl::restore_fields(std::int64_t step, const std::vector<CapturedField>& fields) const {
    if (closed_) return Error{ErrorCode::invalid_argument, path_ + ": the run is closed"};
    for (const CapturedField& field : fields)
        TWR_CHECK(check_field(field, settings_.history));
    return restore_into(step, fields);
}

// Keeps the last result, because a program asks for one field after the other.
Result<std::shared_ptr<MetadataFile>> Session::Impl::stored(std::int64_t step) {
    if (closed_) return Error{ErrorCode::invalid_argument, path_ + ": the run is closed"};
    const auto find = [&] { return tiers_->stored(step); };
    TWR_CHECK(read_stored(find, step, [&](const std::vector<StoredPart>& parts) -> Result<> {
        if (stored_.metadata != nullptr && same_places(parts, stored_.parts)) return success();
        stored_ = {};
        TWR_TRY(stored_.metadata, open_stored(parts, step));
        stored_.parts = parts;
        return success();
    }));
    return stored_.metadata;
}

Result<> Session::Impl::read_committed(std::int64_t step,
                                       const std::function<Result<>(const StoredPart&)>& use) {
    if (auto able = usable(); !able) return std::move(able).error().at(path_);
    pipeline_->drain();
    const auto find = [&] { return tiers_->stored(step); };
    return read_stored(find, step, [&](const std::vector<StoredPart>& parts) -> Result<> {
        if (parts.empty()) {
            return Error{ErrorCode::not_found,
                         path_ + ": step " + std::to_string(step) + " is not committed by this rank"};
        }
        return use(parts.front());
    });
}

std::vector<std::int64_t> Session::Impl::committed() const {
    std::vector<std::int64_t> steps;
    if (tiers_ == nullptr) return steps;
    for (const auto& [step, entry] : tiers_->committed())
        steps.push_back(step);
    return steps;
}

SessionFacts Session::Impl::facts() const {
    SessionFacts facts;
    facts.captured = captured_;
    if (ring_ != nullptr) facts.most_staged_bytes = ring_->most_used();
    if (tiers_ != nullptr) facts.flushed_bytes = tiers_->flushed_bytes();
    const std::lock_guard guard(mutex_);
    facts.committed = committed_;
    facts.lost = lost_;
    return facts;
}

// ---- the interface ----

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
    if (impl_ != nullptr) impl_->end();
}

Result<std::unique_ptr<Session>> Session::open(FileSystem& system, Comm& comm, const std::string& path,
                                               SessionSettings settings) try {
    auto impl = std::make_unique<Impl>(system, comm, path, std::move(settings));
    TWR_CHECK(impl->open());
    return std::unique_ptr<Session>(new Session(std::move(impl)));
} catch (const std::exception& e) {
    return failure_of(path, e);
}

Result<> Session::protect(CapturedField field) { return impl_->protect(std::move(field)); }
Result<> Session::unprotect(const std::string& name) { return impl_->unprotect(name); }
Result<CaptureReport> Session::capture(std::int64_t step, std::span<const std::string> names) {
    return impl_->capture(step, names);
}
Result<CaptureReport> Session::capture_fields(std::int64_t step, std::vector<CapturedField> fields) {
    return impl_->capture_fields(step, std::move(fields));
}
Result<std::vector<LostStep>> Session::wait() { return impl_->wait(); }
Result<std::vector<LostStep>> Session::close() { return impl_->close(); }
Result<std::optional<std::int64_t>> Session::latest(std::int64_t not_after) {
    return impl_->latest(not_after);
}
Result<> Session::restore(std::int64_t step, std::span<const std::string> names) {
    return impl_->restore(step, names);
}
Result<> Session::restore_fields(std::int64_t step, const std::vector<CapturedField>& fields) {
    return impl_->restore_fields(step, fields);
}
Result<std::shared_ptr<MetadataFile>> Session::stored(std::int64_t step) { return impl_->stored(step); }
Result<> Session::read_committed(std::int64_t step, const std::function<Result<>(const StoredPart&)>& use) {
    return impl_->read_committed(step, use);
}
std::vector<std::int64_t> Session::committed() const { return impl_->committed(); }
std::vector<std::int64_t> Session::local_only() const { return impl_->local_only(); }
Result<> Session::drop_local() { return impl_->drop_local(); }
SessionFacts Session::facts() const { return impl_->facts(); }
const std::string& Session::path() const { return impl_->path_; }
int Session::rank() const { return impl_->comm_.rank(); }
int Session::ranks() const { return impl_->comm_.size(); }
const std::string& Session::reference() const { return impl_->settings_.reference; }
void Session::on_divergence(std::function<void(const Divergence&)> call) {
    const std::lock_guard guard(impl_->divergence_mutex_);
    impl_->on_divergence_ = std::move(call);
}

}  // namespace twinrun
