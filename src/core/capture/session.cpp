#include "capture/session.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <unistd.h>

#include "capture/agreement.hpp"
#include "capture/attempts.hpp"
#include "capture/device_stage.hpp"
#include "capture/failure.hpp"
#include "capture/intake.hpp"
#include "capture/pipeline.hpp"
#include "capture/protected_fields.hpp"
#include "capture/setup.hpp"
#include "capture/staging.hpp"
#include "capture/step_intake.hpp"
#include "capture/step_ledger.hpp"
#include "capture/stored_steps.hpp"
#include "platform/team.hpp"
#include "source/plan.hpp"

namespace twinrun {

namespace {

using Clock = std::chrono::steady_clock;

// That bring staged arrays to the host, while the application works.
constexpr int kStageThreads = 4;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

class Session::Impl {
   public:
    Impl(FileSystem& system, Comm& comm, const std::string& path, SessionSettings settings)
        : system_(system),
          comm_(comm),
          place_{path, real_path(path), static_cast<std::uint32_t>(comm.rank()),
                 static_cast<std::uint32_t>(comm.size())},
          settings_(std::move(settings)),
          agreement_(comm, settings_.keep.any(), [this](std::int64_t step) {
              if (tiers_ != nullptr) tiers_->agreed(step);
          }) {
        settings_.local = real_path(settings_.local);
        settings_.reference = real_path(settings_.reference);
    }
    ~Impl() { end(); }

    Result<> open();
    Result<> protect(CapturedField field) { return protected_.add(std::move(field), settings_.history); }
    Result<> unprotect(const std::string& name) { return protected_.remove(name); }
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
    [[nodiscard]] const std::string& path() const { return place_.path; }
    [[nodiscard]] const Comm& comm() const { return comm_; }
    [[nodiscard]] const SessionSettings& settings() const { return settings_; }
    void on_divergence(std::function<void(const Divergence&)> call);

   private:
    Result<> prepare();
    Result<> prepare_shared();
    Result<> begin();
    Result<> begin_tiers();
    Result<> begin_pipeline();
    Result<> begin_together();
    Result<> share_steps();
    [[nodiscard]] Error closed() const {
        return {ErrorCode::invalid_argument, place_.path + ": the run is closed"};
    }
    Result<> usable() const;
    Result<History> open_history() const;
    [[nodiscard]] Result<std::vector<CommonStep>> common_steps();
    Result<std::uint32_t> agree_on_step(Result<> own, std::int64_t step);
    Result<> plan(std::int64_t step, std::vector<CapturedField>& fields);
    StepIntake::Taking begin_step(std::int64_t step, std::uint32_t attempt);
    Result<> agree_on_divergence(std::int64_t step, std::optional<Divergence>& divergence);
    Result<> report_settled(CaptureReport& report) const;
    // reported: capture() itself returns the error.
    void settled(std::int64_t step, const Error* lost, bool reported = false);
    void diverged(const Divergence& divergence);

    FileSystem& system_;
    Comm& comm_;
    const RunPlace place_;
    SessionSettings settings_;
    const pid_t process_ = ::getpid();  // the process that opened the session
    ProtectedFields protected_;
    // Held during a call: replacing the function waits for a call of the old one.
    std::mutex divergence_mutex_;
    std::function<void(const Divergence&)> on_divergence_;

    Agreement agreement_;
    std::unique_ptr<Tiers> tiers_;
    std::unique_ptr<StagingRing> ring_;
    std::unique_ptr<Reference> reference_;
    std::unique_ptr<Team> team_;
    std::unique_ptr<Team> stage_team_;  // of the device stage's thread
    Attempts attempts_;                 // by this or an earlier run
    StepLedger ledger_;
    bool closed_ = false;
    std::uint64_t captured_ = 0;      // steps
    std::uint64_t agreed_steps_ = 0;  // steps that all ranks agreed to capture
    std::string shared_file_;         // name of this rank's shared data file
    bool ends_local_ = false;         // on some rank steps stay on its node

    // Destroyed in reverse order: each uses those above it.
    std::unique_ptr<StoredSteps> stored_;
    std::unique_ptr<StepRecorder> recorder_;
    std::unique_ptr<Pipeline> pipeline_;
    HistorySettings planned_;  // what fields are planned with
    std::unique_ptr<Intake> intake_;
    std::unique_ptr<StepIntake> step_intake_;
    std::unique_ptr<DeviceStage> stage_;
};

// ---- open ----

Result<> Session::Impl::open() {
    TWR_CHECK(agreement_.agree(set_up(system_, place_, settings_)));
    ends_local_ = stays_local(settings_);
    TWR_CHECK(agreement_.on_settings(settings_, is_staged(settings_), ends_local_, place_.path));
    TWR_CHECK(prepare_shared());
    TWR_CHECK(agreement_.agree(prepare()));
    return agreement_.several() ? begin_together() : begin();
}

// [collective]
Result<> Session::Impl::prepare_shared() {
    if (!shares_files(settings_)) return success();
    auto prepared = comm_.prepare_shared(settings_.shared_files, is_staged(settings_));
    if (!prepared) return agreement_.agree(std::move(prepared).error().at(place_.path));
    shared_file_ = std::move(prepared).value();
    return agreement_.agree(success());
}

// Does what can fail without a change on storage, before any rank makes a history or replaces one.
Result<> Session::Impl::prepare() try {
    if (!settings_.reference.empty()) {
        TWR_TRY(reference_, Reference::open(settings_.reference, place_.rank, place_.ranks));
    }
    StreamOptions cores;
    cores.threads = settings_.threads;
    team_ = std::make_unique<Team>(worker_count(cores));
    stage_team_ = std::make_unique<Team>(std::min(team_->size(), kStageThreads));
    if (is_staged(settings_)) {
        TWR_TRY(ring_, StagingRing::create(settings_.memory_bytes - heap_share(settings_)));
    }
    // Last, so that another process has little time to change the folder before begin().
    return Tiers::check_replace(system_, place_.folder, place_.rank, place_.ranks, tier_settings(settings_));
} catch (const std::bad_alloc&) {  // an exception would leave the other ranks waiting
    return Error{ErrorCode::out_of_memory, place_.path + ": not enough memory to open a run"};
} catch (const std::exception& e) {
    return failure_of(place_.path, e);
}

// [collective] Rank 0 begins first: it makes the history, or finds an error. The other ranks begin
// if it succeeds.
Result<> Session::Impl::begin_together() {
    if (comm_.rank() != 0) TWR_CHECK(agreement_.agree(success()));
    TWR_CHECK(agreement_.agree(begin()));
    if (comm_.rank() == 0) TWR_CHECK(agreement_.agree(success()));
    return share_steps();
}

Result<> Session::Impl::begin() try {
    TWR_CHECK(begin_tiers());
    return begin_pipeline();
} catch (const std::bad_alloc&) {  // an exception would leave the other ranks waiting
    return Error{ErrorCode::out_of_memory, place_.path + ": not enough memory to open a run"};
} catch (const std::exception& e) {
    return failure_of(place_.path, e);
}

// Opens the tiers, and learns which steps and attempts are there.
Result<> Session::Impl::begin_tiers() {
    TWR_TRY(tiers_, Tiers::open(system_, place_.folder, place_.rank, place_.ranks, tier_settings(settings_),
                                [this](std::int64_t step, const Error* lost) { settled(step, lost); }));
    Provenance facts = settings_.provenance;
    if (!facts.empty()) {
        facts.groups["mpi"]["rank"] = std::to_string(place_.rank);
        facts.groups["mpi"]["ranks"] = std::to_string(place_.ranks);
    }
    TWR_CHECK(tiers_->begin(facts));
    TWR_CHECK(tiers_->resume());
    attempts_.add(tiers_->local());
    attempts_.add(tiers_->history());
    // Steps that are only on the local tier may be captured again, unless it is the last tier.
    for (const auto& [step, entry] : tiers_->committed())
        ledger_.add_earlier(step);
    stored_ = std::make_unique<StoredSteps>(*tiers_, place_.path, team_->size());
    return success();
}

// Builds what a step goes through.
Result<> Session::Impl::begin_pipeline() {
    const bool staged = is_staged(settings_);
    const bool shares = shares_files(settings_);
    pipeline_ = std::make_unique<Pipeline>(
        *tiers_, ring_.get(), staged ? heap_share(settings_) : UINT64_MAX / 2,
        staged ? settings_.flush_threads : 0,
        [this](const PendingStep& step, const Error& error) { settled(step.step, &error, step.reported); },
        [this](const Divergence& divergence) { diverged(divergence); });
    pipeline_->log_divergence(settings_.log_divergence);
    planned_ = settings_.history;
    if (reference_ != nullptr) planned_.tokens = reference_->tokens();
    intake_ = std::make_unique<Intake>(planned_, shares, *team_, *stage_team_, ring_.get(), *pipeline_);
    if (settings_.history.record) {
        RecorderOptions recorder;
        recorder.settings = *settings_.history.record;
        recorder.table_bytes = settings_.record_table_bytes;
        recorder.threads = std::min(settings_.flush_threads, team_->size());
        TWR_TRY(recorder_,
                StepRecorder::create(recorder, {place_.folder, tiers_->local_folder(), place_.rank}));
        pipeline_->record_with(*recorder_);
    }
    if (shares) pipeline_->share_with(comm_, system_, shared_file_);
    if (staged && (settings_.device_bytes != 0 || !settings_.history.keep_data))
        stage_ = std::make_unique<DeviceStage>(settings_.device_bytes);
    StepIntake::Stations stations;
    stations.intake = intake_.get();
    stations.pipeline = pipeline_.get();
    stations.reference = reference_.get();
    stations.ring = ring_.get();
    stations.stage = stage_.get();
    step_intake_ = std::make_unique<StepIntake>(stations, settings_.stop_on_divergence);
    return success();
}

// [collective] Finds the steps that every rank has committed. A step that only some ranks have may
// be captured again.
Result<> Session::Impl::share_steps() {
    TWR_TRY(const std::vector<CommonStep> steps, common_steps());
    std::vector<std::int64_t> numbers;
    for (const CommonStep& common : steps)
        numbers.push_back(common.step);
    ledger_.keep_only(numbers);
    for (const std::int64_t step : numbers)
        tiers_->agreed(step);
    return success();
}

Result<std::vector<CommonStep>> Session::Impl::common_steps() {
    return agreement_.common_steps(
        ends_local_, settings_.history.keep_data, [this] { return tiers_->committed(); },
        [this] { return open_history(); });
}

Result<History> Session::Impl::open_history() const try {
    return History::open(place_.folder);
} catch (const std::bad_alloc&) {  // an exception would leave the other ranks waiting
    return Error{ErrorCode::out_of_memory,
                 place_.path + ": not enough memory for the history's list of steps"};
}

// ---- capture ----

// Error after close(), and in a forked process, where the session's threads do not run.
Result<> Session::Impl::usable() const {
    if (closed_) return Error{ErrorCode::invalid_argument, "the run is closed"};
    if (process_ != ::getpid()) {
        return Error{ErrorCode::invalid_argument,
                     "the run belongs to the process that opened it: open another one after fork()"};
    }
    return success();
}

Result<CaptureReport> Session::Impl::capture(std::int64_t step, std::span<const std::string> names) {
    auto fields = protected_.named(names);
    if (fields) return capture_fields(step, std::move(fields).value());
    // The other ranks wait in on_step(): this makes them fail too.
    if (agreement_.several()) TWR_CHECK(agree_on_step(fields.error(), step));
    return std::move(fields).error();
}

// Checks step and fields and makes the layout. Reads no data but IDs.
Result<> Session::Impl::plan(std::int64_t step, std::vector<CapturedField>& fields) try {
    TWR_CHECK(usable());
    if (!settings_.replace_steps && ledger_.has(step))
        return Error{ErrorCode::invalid_argument, "captured already"};
    for (const CapturedField& field : fields)
        TWR_CHECK(check_name(field));
    return intake_->plan(fields);
} catch (const std::exception&) {  // an exception would leave the other ranks waiting
    return out_of_memory();
}

// [collective] The attempt at the step: the same on all ranks, and unused on all tiers of this one.
Result<std::uint32_t> Session::Impl::agree_on_step(Result<> own, std::int64_t step) {
    std::uint32_t attempt = attempts_.after_newest(step);
    if (own) {
        const std::array<std::string_view, 2> folders{place_.folder, tiers_->local_folder()};
        auto unused = first_unused(step, attempt, folders);
        if (unused) attempt = *unused;
        if (!unused) own = std::move(unused).error();
    }
    TWR_CHECK(agreement_.on_step(std::move(own), step, attempt));
    return attempt;
}

// The step that the ranks agreed on is under way from now on.
StepIntake::Taking Session::Impl::begin_step(std::int64_t step, std::uint32_t attempt) {
    const std::uint64_t ordinal = agreed_steps_++;  // counts even if the step fails from here on
    StepIntake::Taking taking = step_intake_->begin(step, attempt, ordinal);
    attempts_.add(step, attempt);
    if (attempt != 0) tiers_->recaptured(step);
    ledger_.begin(step);
    agreement_.add(step);
    ++captured_;
    return taking;
}

Result<CaptureReport> Session::Impl::capture_fields(std::int64_t number,
                                                    std::vector<CapturedField> fields) try {
    const auto start = Clock::now();
    const auto where = [&](Error error) {
        return std::move(error).at(place_.path + ": step " + std::to_string(number));
    };
    const auto attempt = agree_on_step(plan(number, fields), number);
    if (!attempt) return where(attempt.error());
    CaptureReport report;
    report.step = number;
    report.data_bytes = intake_->layout()->array_bytes;
    StepIntake::Taking taking = begin_step(number, *attempt);
    step_intake_->take(taking, fields);
    report.waited_seconds = taking.waited_seconds;
    report.divergence = taking.divergence;
    taking.step->blocked_seconds = seconds_since(start);
    step_intake_->finish(taking);
    Result<>& taken = taking.taken;
    if (!taking.added) settled(number, &taken.error(), true);
    if (report.divergence) diverged(*report.divergence);
    TWR_CHECK(agree_on_divergence(number, report.divergence));
    report.staged_bytes = ring_ != nullptr ? ring_->used() : 0;
    report.lost = ledger_.take_lost();
    if (ring_ == nullptr && taken) taken = report_settled(report);
    if (!taken) {
        ledger_.put_back(report.lost);
        return where(std::move(taken).error());
    }
    report.seconds = seconds_since(start);
    return report;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 place_.path + ": not enough memory to capture step " + std::to_string(number)};
}

// [collective] If one rank diverged, all ranks report it, so that they stop together. divergence:
// this rank's; set if only another rank has one.
Result<> Session::Impl::agree_on_divergence(std::int64_t step, std::optional<Divergence>& divergence) {
    if (!settings_.stop_on_divergence || reference_ == nullptr || !agreement_.several()) return success();
    std::array<std::int64_t, 1> same{divergence ? 0 : 1};
    TWR_CHECK(comm_.minimum(same));
    if (same[0] == 0 && !divergence)
        divergence = Divergence{step, -1, "", 0, 0, 0, 0, "another rank diverged"};
    return success();
}

// Nothing runs in the background: the step is settled on its first tier. Returns its error if it is
// lost, and completes the report.
Result<> Session::Impl::report_settled(CaptureReport& report) const {
    Result<> own = success();
    const auto lost = std::find_if(report.lost.begin(), report.lost.end(),
                                   [&](const LostStep& step) { return step.step == report.step; });
    if (lost != report.lost.end()) {
        own = lost->error;
        report.lost.erase(lost);
    }
    if (settings_.local.empty() || settings_.flusher == Flusher::none)
        report.metadata_bytes = tiers_->metadata_bytes(report.step);
    return own;
}

void Session::Impl::settled(std::int64_t step, const Error* lost, bool reported) {
    agreement_.settled(step, lost != nullptr);
    ledger_.settle(step, lost, reported);
}

void Session::Impl::diverged(const Divergence& divergence) {
    const std::lock_guard guard(divergence_mutex_);
    try {
        if (on_divergence_) on_divergence_(divergence);
    } catch (...) {
        // ignored: the step goes on, other ranks wait for it, and a thread has no caller
    }
}

void Session::Impl::on_divergence(std::function<void(const Divergence&)> call) {
    const std::lock_guard guard(divergence_mutex_);
    on_divergence_ = std::move(call);
}

// ---- wait, close ----

Result<std::vector<LostStep>> Session::Impl::wait() {
    if (auto able = usable(); !able) return std::move(able).error().at(place_.path);
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
    return ledger_.take_lost();
}

Result<> Session::Impl::drop_local() {
    if (auto able = usable(); !able) return std::move(able).error().at(place_.path);
    pipeline_->drain();
    return tiers_->drop_local();
}

Result<std::vector<LostStep>> Session::Impl::close() {
    if (closed_) return std::vector<LostStep>{};
    if (auto able = usable(); !able) return std::move(able).error().at(place_.path);
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
        static_cast<void>(stage_team_.release());
        static_cast<void>(ring_.release());
        return;
    }
    stage_.reset();
    step_intake_.reset();
    intake_.reset();
    pipeline_.reset();
    stored_.reset();
    if (tiers_ != nullptr) tiers_->drain();
    tiers_.reset();
    team_.reset();
    stage_team_.reset();
    ring_.reset();
}

// ---- steps that are committed ----

Result<std::optional<std::int64_t>> Session::Impl::latest(std::int64_t not_after) {
    if (closed_) return closed();
    TWR_TRY(const std::vector<CommonStep> steps, common_steps());
    std::optional<std::int64_t> newest;
    for (const CommonStep& common : steps) {
        if (common.step <= not_after && common.has_data) newest = common.step;
    }
    return newest;
}

Result<> Session::Impl::restore(std::int64_t step, std::span<const std::string> names) {
    if (closed_) return closed();
    TWR_TRY(const std::vector<CapturedField> fields, protected_.named(names));
    return stored_->restore(step, fields);
}

Result<> Session::Impl::restore_fields(std::int64_t step, const std::vector<CapturedField>& fields) const {
    if (closed_) return closed();
    for (const CapturedField& field : fields)
        TWR_CHECK(check_field(field, settings_.history));
    return stored_->restore(step, fields);
}

Result<std::shared_ptr<MetadataFile>> Session::Impl::stored(std::int64_t step) {
    if (closed_) return closed();
    return stored_->metadata(step);
}

Result<> Session::Impl::read_committed(std::int64_t step,
                                       const std::function<Result<>(const StoredPart&)>& use) {
    if (auto able = usable(); !able) return std::move(able).error().at(place_.path);
    pipeline_->drain();
    return stored_->read(step, use);
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
    const StepLedger::Counts counts = ledger_.counts();
    facts.committed = counts.committed;
    facts.lost = counts.lost;
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
const std::string& Session::path() const { return impl_->path(); }
int Session::rank() const { return impl_->comm().rank(); }
int Session::ranks() const { return impl_->comm().size(); }
const std::string& Session::reference() const { return impl_->settings().reference; }
void Session::on_divergence(std::function<void(const Divergence&)> call) {
    impl_->on_divergence(std::move(call));
}

}  // namespace twinrun
