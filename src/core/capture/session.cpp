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
#include "capture/device_stage.hpp"
#include "capture/layout.hpp"
#include "capture/pipeline.hpp"
#include "capture/staging.hpp"
#include "history/gather.hpp"
#include "history/restore.hpp"
#include "platform/team.hpp"
#include "sketch/device_build.hpp"

namespace twinrun {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSmallestMemory = 16 << 20;
// A piece: large enough that handing it over costs nothing, small enough that few cores share a step evenly.
constexpr std::uint64_t kPieceBytes = 4 << 20;
// Arrays up to this size in all are copied, even where only digests are kept: the copy takes less of the caller's time.
constexpr std::uint64_t kCopiedBytes = 4 << 20;
// Below this, other threads cost more than they save.
constexpr std::uint64_t kTeamBytes = 2 << 20;
// Steps about whose commits ranks exchange what they know, at a time.
constexpr std::size_t kWindow = 64;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

bool same_layout(const CapturedField& a, const CapturedField& b) {
    return a.dtype == b.dtype && a.order == b.order && a.own_tolerance == b.own_tolerance &&
           a.tolerance == b.tolerance && a.device.has_value() == b.device.has_value() && a.shape == b.shape &&
           a.global_shape == b.global_shape && a.global_offset == b.global_offset && a.name == b.name &&
           a.ids == b.ids;
}

// Paths are looked up by background threads, and the program may change its folder meanwhile.
// Links on the way are followed once, here: those that somebody puts into the history's folder are not.

// A block of the ring until it is handed on.
struct RingBlock {
    explicit RingBlock(StagingRing* of) : ring(of) {}
    ~RingBlock() {
        if (block != nullptr) ring->release(block);
    }
    RingBlock(const RingBlock&) = delete;
    RingBlock& operator=(const RingBlock&) = delete;
    StagingRing* ring;
    const std::byte* block = nullptr;
};

Error not_protected(const std::string& name) {
    return Error{ErrorCode::not_found, "no protected field of the name '" + name + "'"};
}

// That it can be captured, and restored.
Result<> check_field(const CapturedField& field, const HistorySettings& settings) {
    if (field.device) TWR_CHECK(check_array(*field.device));
    TWR_CHECK(plan_captured(field, settings));
    if (!field.device) TWR_CHECK(FieldReader::create(field, nullptr));
    return success();
}

Error other_rank() {
    return Error{ErrorCode::other_rank, "another rank of this run failed: its own message says why"};
}

// Zeros between the segments of a piece, and behind the last.
void clear_padding(const Piece& piece, const std::vector<FieldMetadata>& fields, std::byte* image) {
    for (std::size_t i = 0; i < piece.segments.size(); ++i) {
        const Segment& segment = piece.segments[i];
        const std::uint64_t end = segment.offset + segment.items * item_bytes(fields[segment.field].dtype);
        const std::uint64_t next = i + 1 < piece.segments.size() ? piece.segments[i + 1].offset : piece.bytes;
        std::memset(image + end, 0, next - end);
    }
}

}  // namespace

class Session::Impl {
   public:
    Impl(FileSystem& system, Comm& comm, std::string path, SessionSettings settings)
        : system_(system),
          comm_(comm),
          path_(std::move(path)),
          folder_(real_path(path_)),
          settings_(std::move(settings)) {
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
    std::vector<std::int64_t> committed() const;
    Result<> drop_local();
    std::vector<std::int64_t> local_only() const {
        return tiers_ != nullptr ? tiers_->local_only() : std::vector<std::int64_t>();
    }
    SessionFacts facts() const;

    FileSystem& system_;
    Comm& comm_;
    std::string path_;    // as it was given
    std::string folder_;  // the same, wherever the program is
    SessionSettings settings_;
    const pid_t process_ = ::getpid();
    std::list<CapturedField> protected_;  // in the order of their captures
    std::unordered_map<std::string, std::list<CapturedField>::iterator> by_name_;
    std::mutex divergence_mutex_;  // of the next: a call of the old one is over when it is replaced
    std::function<void(const Divergence&)> on_divergence_;

   private:
    // A field of the step that is being captured, and how it is read.
    struct Source {
        const std::byte* dense = nullptr;  // its items lie here as they are kept
        std::optional<FieldReader> reader;
        std::shared_ptr<const RowIds> ids;  // of its rows, as they are kept; null: none
        std::vector<std::byte> brought;     // from a device, to be sorted by IDs
    };
    [[nodiscard]] TierSettings tier_settings() const;
    Result<> begin();
    Result<> usable() const;
    Result<History> open_history() const;
    [[nodiscard]] Result<> restore_into(std::int64_t step, const std::vector<CapturedField>& fields) const {
        return read_stored([&] { return tiers_->stored(step); }, step,
                           [&](const auto& parts) { return restore_step(parts, step, fields); });
    }
    Result<> agree_on_settings();
    Result<> check_places() const;
    Result<> settle_record();
    Result<> settle_shared();
    Result<> prepare_shared();
    [[nodiscard]] bool shares() const { return settings_.shared_files != SharedFiles::off; }
    [[nodiscard]] bool staged() const { return settings_.background && settings_.memory_bytes != 0; }
    Result<> share_steps();
    [[nodiscard]] bool several() const { return comm_.size() > 1; }
    // [collective] Own failure, or that of another rank, or none.
    Result<> agree(Result<> own);
    Result<> pass_over_others(std::int64_t step, std::uint32_t& attempt);
    Result<> agree_on_step(Result<> own, std::int64_t step, std::uint32_t& attempt);
    Result<> exchange_commits(std::vector<std::int64_t> values, std::vector<std::int64_t>& agreed);
    Result<> plan(std::int64_t step, std::vector<CapturedField>& fields);
    Result<> read_order(std::vector<CapturedField>& fields);
    // The fields of a step that lie on devices.
    struct OnDevices {
        std::vector<std::size_t> numbers;
        std::vector<const FieldMetadata*> metadata;
        std::vector<DeviceArray> arrays;
    };
    static OnDevices on_devices(const PendingStep& step, const std::vector<CapturedField>& fields);
    Result<> take_devices(const std::shared_ptr<PendingStep>& step, const OnDevices& fields,
                          const std::shared_ptr<StagedArrays>& staged, double& waited);
    void leave_on_devices(PendingStep& step, const OnDevices& fields,
                          const std::shared_ptr<StagedArrays>& staged) const;
    Result<> take_host(const std::shared_ptr<PendingStep>& step, bool digest_now, double& waited);
    Result<> take_piece(const std::shared_ptr<PendingStep>& step, const Piece& piece, bool digest_now,
                        std::vector<std::byte>& scratch, double& waited);
    Result<> digest_in_place(PendingStep& step, const Piece& piece, std::byte* residues,
                             std::vector<std::byte>& scratch);
    [[nodiscard]] std::size_t unresolved() const;
    void copy_out_of(const Piece& piece, std::byte* image) const;
    void settled(std::int64_t step, const Error* lost, bool told = false);
    void diverged(const Divergence& divergence);
    std::vector<LostStep> take_news();
    Result<std::vector<CapturedField>> named(std::span<const std::string> names) const;
    // A step that every rank has committed on the run's last tier, in the same attempt.
    struct CommonStep {
        std::int64_t step;
        bool has_data;
    };
    Result<std::vector<CommonStep>> common_steps();

    std::unique_ptr<Tiers> tiers_;
    std::unique_ptr<StagingRing> ring_;
    std::unique_ptr<Reference> reference_;
    std::unique_ptr<Team> team_;
    std::uint64_t piece_bytes_ = kPieceBytes;
    std::map<std::int64_t, std::uint32_t> attempts_;  // of every step that was ever captured here
    std::vector<CapturedField> planned_;              // what layout_ was made for
    std::shared_ptr<const StepLayout> layout_;
    std::vector<Source> sources_;
    bool closed_ = false;
    std::uint64_t captured_ = 0;
    std::uint64_t agreed_steps_ = 0;  // that every rank took
    std::string shared_file_;
    bool ends_local_ = false;  // of some rank steps stay on its node
    struct Stored {            // that was asked for last
        std::vector<StoredPart> parts;
        std::shared_ptr<MetadataFile> metadata;
    };
    Stored stored_;

    mutable std::mutex mutex_;      // of what follows
    std::set<std::int64_t> taken_;  // there, or under way
    std::vector<LostStep>
        news_;  // with room for all that are under way: what is lost for want of memory is told too
    std::size_t under_way_ = 0;
    std::uint64_t committed_ = 0;
    std::uint64_t lost_ = 0;
    struct Ordinal {
        std::int64_t step;
        std::int64_t state;  // 0: under way, 1: committed, -1: lost
    };
    std::deque<Ordinal> unresolved_;  // not known to be committed by all ranks; same steps on every rank

    std::unique_ptr<StepRecorder> recorder_;
    std::unique_ptr<Pipeline> pipeline_;  // its threads use the rest
    std::unique_ptr<DeviceStage> stage_;  // last: it uses the pipeline
};

Result<> Session::Impl::agree(Result<> own) {
    if (!several()) return own;
    std::array<std::int64_t, 1> ok{own ? 1 : 0};
    auto asked = comm_.minimum(ok);
    if (!own) return own;
    TWR_CHECK(std::move(asked));
    if (ok[0] == 0) return other_rank();
    return success();
}

// Folders that must not be one.
Result<> Session::Impl::check_places() const {
    if (!settings_.local.empty()) TWR_CHECK(check_apart(path_, settings_.local));
    std::error_code not_there;
    if (settings_.existing == Existing::replace && !settings_.reference.empty() &&
        (settings_.reference == folder_ ||
         std::filesystem::equivalent(settings_.reference, folder_, not_there))) {
        return Error{ErrorCode::invalid_argument,
                     path_ + ": is the reference, so that it must not be replaced: name another folder"};
    }
    return success();
}

// What a record asks for, and where it goes on.
Result<> Session::Impl::settle_record() {
    if (!settings_.record) return success();
    RecordSettings& record = settings_.record_settings;
    record.method = *settings_.record;
    if (record.method == RecordMethod::full) record.xored = false;
    TWR_CHECK(record.check());
    if (!settings_.history.keep_data)
        return Error{ErrorCode::invalid_argument, "record: there is no data to record where mode is digests"};
    if (settings_.keep.any()) {
        return Error{ErrorCode::invalid_argument,
                     "record: later steps need earlier ones: instead of keep_steps and keep_data_steps, use "
                     "'twinrun compact'"};
    }
    const std::string against = record.against;
    TWR_CHECK(settle_against(system_, record, folder_, static_cast<std::uint32_t>(comm_.size()), against,
                             comm_.rank() == 0));
    settings_.history.record = record;
    return success();
}

// What goes together with files of several ranks.
Result<> Session::Impl::settle_shared() {
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
    if (!prepared) return agree(std::move(prepared).error().at(path_));
    shared_file_ = std::move(prepared).value();
    return agree(success());
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
    if (own) own = settle_record();
    if (own) own = settle_shared();
    if (own) {
        own = Tiers::check_local(folder_, static_cast<std::uint32_t>(comm_.rank()),
                                 static_cast<std::uint32_t>(comm_.size()), tier_settings());
    }
    TWR_CHECK(agree(std::move(own)));
    TWR_CHECK(agree_on_settings());
    TWR_CHECK(prepare_shared());
    // Rank 0 first: it makes the history, or refuses.
    if (!several()) return begin();
    if (comm_.rank() != 0) {
        TWR_CHECK(agree(success()));
        TWR_CHECK(agree(begin()));
    } else {
        TWR_CHECK(agree(begin()));
        TWR_CHECK(agree(success()));
    }
    return share_steps();
}

// [collective] The steps that are there: those that every rank committed. What only some have may be captured again.
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

Result<std::vector<Session::Impl::CommonStep>> Session::Impl::common_steps() {
    std::vector<CommonStep> common;
    const auto counts = [&](bool has_data) { return has_data || !settings_.history.keep_data; };
    if (!several()) {
        for (const auto& [step, entry] : tiers_->committed())
            common.push_back({step, counts(!entry.files.data.empty())});
        return common;
    }
    // {error, count}; then {step, attempt, data} of each
    std::array<std::int64_t, 2> head{0, 0};
    std::vector<std::int64_t> steps;
    Result<> own = success();
    if (comm_.rank() == 0 && ends_local_) {
        for (const auto& [step, entry] : tiers_->committed())
            steps.insert(steps.end(), {step, attempt_of(entry.folder), entry.files.data.empty() ? 0 : 1});
    } else if (comm_.rank() == 0) {
        auto history = open_history();
        if (history) {
            for (const HistoryStep& step : history->steps) {
                // Of some steps only metadata stays.
                const bool has_data = std::none_of(step.ranks.begin(), step.ranks.end(),
                                                   [](const RankFiles& r) { return r.data.empty(); });
                steps.insert(steps.end(), {step.step, attempt_of(step.folder), has_data ? 1 : 0});
            }
        } else {
            own = std::move(history).error();
            head[0] = 1;
        }
    }
    head[1] = static_cast<std::int64_t>(steps.size());
    TWR_CHECK(comm_.broadcast(std::as_writable_bytes(std::span(head))));
    if (!own) return std::move(own).error();
    if (head[0] != 0) return other_rank();
    steps.resize(static_cast<std::size_t>(head[1]));
    if (!steps.empty()) TWR_CHECK(comm_.broadcast(std::as_writable_bytes(std::span(steps))));
    // What rank 0 does not see: steps on other nodes.
    std::vector<std::int64_t> states;  // 0: not there, 1: its metadata, 2: its data too
    const auto here = ends_local_ ? tiers_->committed() : std::map<std::int64_t, RankStep>();
    for (std::size_t i = 0; i < steps.size(); i += 3) {
        const auto entry = here.find(steps[i]);
        const bool has =
            !ends_local_ || (entry != here.end() && attempt_of(entry->second.folder) == steps[i + 1]);
        const bool has_data =
            steps[i + 2] != 0 && (!ends_local_ || (has && !entry->second.files.data.empty()));
        states.push_back(!has ? 0 : has_data ? 2 : 1);
    }
    if (ends_local_ && !states.empty()) TWR_CHECK(comm_.minimum(states));
    for (std::size_t i = 0; i < states.size(); ++i) {
        if (states[i] != 0) common.push_back({steps[3 * i], counts(states[i] == 2)});
    }
    return common;
}

// What collective calls depend on: ranks that differ in it would wait for each other for ever.
Result<> Session::Impl::agree_on_settings() {
    if (!several()) return success();
    const std::int64_t own = (settings_.keep.any() ? 1 : 0) | (settings_.stop_on_divergence ? 2 : 0) |
                             (settings_.reference.empty() ? 0 : 4) |
                             static_cast<std::int64_t>(settings_.shared_files) << 3 |
                             (shares() && staged() ? 1 << 5 : 0);
    std::array<std::int64_t, 3> all{own, ~own, ends_local_ ? 0 : 1};
    TWR_CHECK(comm_.minimum(all));
    ends_local_ = all[2] == 0;
    if (all[0] == own && all[1] == ~own) return success();
    return Error{
        ErrorCode::mismatch,
        path_ +
            ": keep_steps, keep_data_steps, reference and stop_on_divergence must be set "
            "on all ranks, or on none; shared_files must be the same on all, and with it background"};
}

Result<History> Session::Impl::open_history() const try {
    return History::open(folder_);
} catch (const std::bad_alloc&) {  // the other ranks wait for our word
    return Error{ErrorCode::out_of_memory, path_ + ": not enough memory for the history's list of steps"};
}

// The threads of a session stay behind in the process that opened it.
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

Result<> Session::Impl::begin() try {
    const auto rank = static_cast<std::uint32_t>(comm_.rank());
    const auto ranks = static_cast<std::uint32_t>(comm_.size());
    // Before a history is made, or replaced.
    if (!settings_.reference.empty()) {
        TWR_TRY(reference_, Reference::open(settings_.reference, rank, ranks));
    }
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
        // Of steps that left, others may need the difference, which is there still.
        for (const auto& [ordinal, file] : journal.differences) {
            const std::string folder = file.substr(0, file.find('/'));
            if (const auto step = step_of(folder))
                attempts_[*step] = std::max(attempts_[*step], attempt_of(folder));
        }
    }
    // What could not be brought on may be captured again.
    for (const auto& [step, entry] : tiers_->committed())
        taken_.insert(step);
    StreamOptions cores;
    cores.threads = settings_.threads;
    team_ = std::make_unique<Team>(worker_count(cores));
    // An eighth for digests, which are on the heap; and so is, where files are shared, all data until its turn has come.
    const std::uint64_t heap =
        shares() ? settings_.memory_bytes -
                       std::max<std::uint64_t>(settings_.memory_bytes / 4, StagingRing::kSmallest)
                 : settings_.memory_bytes / 8;
    if (staged()) {
        TWR_TRY(ring_, StagingRing::create(settings_.memory_bytes - heap));
        piece_bytes_ = std::clamp<std::uint64_t>(ring_->largest_block() / 8, 1 << 20, kPieceBytes);
    }
    pipeline_ = std::make_unique<Pipeline>(
        *tiers_, ring_.get(), staged() ? heap : UINT64_MAX / 2, staged() ? settings_.flush_threads : 0,
        [this](const PendingStep& step, const Error& error) { settled(step.step, &error, step.told); },
        [this](const Divergence& divergence) { diverged(divergence); });
    pipeline_->log_divergence(settings_.log_divergence);
    if (settings_.history.record) {
        RecorderOptions recorder;
        recorder.settings = *settings_.history.record;
        recorder.table_bytes = settings_.record_table_bytes;
        recorder.threads = std::min(settings_.flush_threads, team_->size());
        TWR_TRY(recorder_, StepRecorder::create(system_, recorder, {folder_, tiers_->local_folder(), rank}));
        pipeline_->record_with(*recorder_);
    }
    if (shares()) pipeline_->share_with(comm_, system_, shared_file_);
    if (staged() && settings_.device_bytes != 0)
        stage_ = std::make_unique<DeviceStage>(settings_.device_bytes);
    return success();
} catch (const std::bad_alloc&) {  // the other ranks wait for our word
    return Error{ErrorCode::out_of_memory, path_ + ": not enough memory to open a run"};
} catch (const std::exception& e) {
    return Error{ErrorCode::io, path_ + ": " + e.what()};
}

Result<> Session::Impl::protect(CapturedField field) {
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
    const auto had = by_name_.find(name);
    if (had == by_name_.end()) return not_protected(name);
    const auto place = had->second;
    by_name_.erase(had);
    protected_.erase(place);
    return success();
}

// Those of these names, or all.
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
    if (several()) {  // the other ranks wait for our word
        std::uint32_t attempt = 0;
        TWR_CHECK(agree_on_step(fields.error(), step, attempt));
    }
    return std::move(fields).error();
}

// Layout and readers of the fields; nothing is read yet but IDs.
Result<> Session::Impl::plan(std::int64_t step, std::vector<CapturedField>& fields) try {
    TWR_CHECK(usable());
    {
        const std::lock_guard guard(mutex_);
        if (!settings_.replace_steps && taken_.contains(step))
            return Error{ErrorCode::invalid_argument, "captured already"};
    }
    for (CapturedField& field : fields) {
        if (!field.device) continue;
        auto checked = check_array(*field.device);
        const auto items = checked_product(field.shape);
        if (checked && (field.device->dtype != field.dtype || !items || field.device->items() != *items))
            checked = Error{ErrorCode::mismatch, "the device array has another type or size"};
        if (!checked) return std::move(checked).error().at("field '" + field.name + "'");
    }
    TWR_CHECK(read_order(fields));
    const bool known = layout_ != nullptr && planned_.size() == fields.size() &&
                       std::equal(fields.begin(), fields.end(), planned_.begin(), same_layout);
    if (!known) {
        TWR_TRY(layout_, StepLayout::make(fields, settings_.history, piece_bytes_, shares()));
        planned_ = fields;
    }
    return success();
} catch (const std::exception&) {  // the other ranks wait for our word
    return out_of_memory();
}

// How the items of host fields are read: as they lie, gathered, or sorted by IDs.
Result<> Session::Impl::read_order(std::vector<CapturedField>& fields) {
    sources_.resize(fields.size());
    std::map<std::string, std::shared_ptr<const RowOrder>> orders;
    std::map<std::string, std::shared_ptr<const RowIds>> ids;
    for (const CapturedField& field : fields) {
        if (!field.ids.empty()) orders[field.ids] = nullptr;
    }
    const auto bring = [](CapturedField& field, Source& source) -> Result<> {
        if (!field.device) return success();
        DeviceSource array(*field.device);
        source.brought.resize(array.items() * item_bytes(field.dtype));
        TWR_CHECK(
            copy_out(*field.device, kPieceBytes, [&](std::uint64_t first, std::span<const std::byte> bytes) {
                std::memcpy(source.brought.data() + first * item_bytes(field.dtype), bytes.data(),
                            bytes.size());
                return success();
            }));
        field.device.reset();
        field.data = source.brought.data();
        field.stride = 0;
        field.strides.clear();
        return success();
    };
    for (std::size_t i = 0; !orders.empty() && i < fields.size(); ++i) {
        const auto order = orders.find(fields[i].name);
        if (order == orders.end() && fields[i].ids.empty()) continue;
        TWR_CHECK(bring(fields[i], sources_[i]));
        if (order == orders.end()) continue;
        TWR_TRY(order->second, order_by_ids(fields[i]));
        if (settings_.history.kind == DigestKind::linear) {
            TWR_TRY(ids[fields[i].name], ordered_ids(fields[i], *order->second));
        }
    }
    for (std::size_t i = 0; i < fields.size(); ++i) {
        const CapturedField& field = fields[i];
        Source& source = sources_[i];
        source.dense = nullptr;
        source.reader.reset();
        source.ids.reset();
        if (field.device) continue;
        const std::string& by = orders.contains(field.name) ? field.name : field.ids;
        std::shared_ptr<const RowOrder> rows;
        if (!by.empty()) {
            rows = orders[by];
            source.ids = ids[by];
            if (rows == nullptr) {
                return Error{ErrorCode::not_found, "field '" + field.name + "': its IDs '" + by +
                                                       "' are not among the captured fields"};
            }
        }
        const bool as_it_lies = (rows == nullptr || rows->empty()) && field.strides.empty() &&
                                (field.stride == 0 || field.stride == item_bytes(field.dtype));
        if (as_it_lies && by.empty()) {
            source.dense = static_cast<const std::byte*>(field.data);
        } else {
            TWR_TRY(source.reader, FieldReader::create(field, std::move(rows)));
        }
    }
    return success();
}

// The first attempt at a step from this one on, whose folder's name nothing has: what somebody else put there stays.
Result<> Session::Impl::pass_over_others(std::int64_t step, std::uint32_t& attempt) try {
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
    const auto had = attempts_.find(step);
    attempt = had == attempts_.end() ? 0 : had->second + 1;
    if (own) own = pass_over_others(step, attempt);
    if (!several()) return own;
    std::vector<std::int64_t> values{own ? 1 : 0, step, ~step, -static_cast<std::int64_t>(attempt)};
    auto asked = exchange_commits(std::move(values), values);
    if (!own) return own;
    TWR_CHECK(std::move(asked));
    if (values[0] == 0) return other_rank();
    if (values[1] != step || values[2] != ~step) {
        return Error{ErrorCode::mismatch, "ranks capture different steps: here " + std::to_string(step) +
                                              ", elsewhere " + std::to_string(values[1])};
    }
    attempt = static_cast<std::uint32_t>(-values[3]);
    return success();
}

// [collective] The minimum of `values` over all ranks, and on the way which steps all have committed.
Result<> Session::Impl::exchange_commits(std::vector<std::int64_t> values,
                                         std::vector<std::int64_t>& agreed) {
    const std::size_t own = values.size();
    std::size_t window = 0;
    if (settings_.keep.any()) {
        const std::lock_guard guard(mutex_);
        window = std::min(unresolved_.size(), kWindow);
        for (std::size_t i = 0; i < window; ++i)
            values.push_back(unresolved_[i].state);
    }
    TWR_CHECK(comm_.minimum(values));
    {
        std::vector<std::int64_t> everywhere;
        {
            const std::lock_guard guard(mutex_);
            for (std::size_t i = 0; i < window && values[own + i] != 0; ++i) {
                const std::int64_t step = unresolved_.front().step;
                unresolved_.pop_front();
                // Captured again meanwhile: the newer attempt counts.
                const bool newer = std::any_of(unresolved_.begin(), unresolved_.end(),
                                               [&](const Ordinal& o) { return o.step == step; });
                if (values[own + i] == 1 && !newer) everywhere.push_back(step);
            }
        }
        for (const std::int64_t step : everywhere) {
            if (tiers_ != nullptr) tiers_->agreed(step);
        }
    }
    values.resize(own);
    agreed = std::move(values);
    return success();
}

std::size_t Session::Impl::unresolved() const {
    const std::lock_guard guard(mutex_);
    return unresolved_.size();
}

void Session::Impl::copy_out_of(const Piece& piece, std::byte* image) const {
    for (const Segment& segment : piece.segments) {
        const Source& source = sources_[segment.field];
        const std::size_t item = item_bytes(layout_->fields[segment.field].dtype);
        if (source.dense != nullptr) {
            std::memcpy(image + segment.offset, source.dense + segment.first_item * item,
                        segment.items * item);
        } else {
            source.reader->copy(segment.first_item, segment.items, image + segment.offset);
        }
    }
    clear_padding(piece, layout_->fields, image);
}

// Digests without a copy of the data, where it lies so that they can be made there.
Result<> Session::Impl::digest_in_place(PendingStep& step, const Piece& piece, std::byte* residues,
                                        std::vector<std::byte>& scratch) {
    for (const Segment& segment : piece.segments) {
        const Source& source = sources_[segment.field];
        const FieldDigests& digests = step.digests[segment.field];
        const DType dtype = digests.field().dtype;
        std::byte* to = residues + segment.residue_offset;
        for (std::uint64_t s = segment.first_slice; s < segment.first_slice + segment.slices; ++s) {
            const std::uint64_t first = digests.first_item(s);
            ElementView view;
            std::optional<ElementView> lies;
            if (source.dense != nullptr) {
                view = dense_view(dtype, source.dense + first * item_bytes(dtype));
            } else if (lies = source.reader->view(first); lies) {
                view = *lies;
            } else {
                scratch.resize(digests.items(s) * item_bytes(dtype));
                source.reader->copy(first, digests.items(s), scratch.data());
                view = dense_view(dtype, scratch.data());
            }
            TWR_CHECK(Pipeline::digest_slice(step, segment, s, view, to));
            to += digests.residue_bytes(s);
        }
    }
    return success();
}

Result<> Session::Impl::take_piece(const std::shared_ptr<PendingStep>& step, const Piece& piece,
                                   bool digest_now, std::vector<std::byte>& scratch, double& waited) {
    const bool keep_data = step->layout->keep_data;
    const std::size_t image_bytes = keep_data || !digest_now ? piece.bytes : 0;
    const std::size_t wanted = image_bytes + (digest_now ? piece.residue_bytes : 0);
    Load load;
    load.step = step;
    load.piece = &piece;
    AlignedBytes own;
    RingBlock block(ring_.get());
    std::byte* memory = nullptr;
    if (ring_ != nullptr) {
        memory = ring_->allocate(wanted, waited);
        if (memory == nullptr) return Error{ErrorCode::internal, "a piece beyond the staging memory"};
        block.block = memory;
    } else {
        memory = own.reserve(wanted);
    }
    std::byte* residues = memory + image_bytes;
    Result<> done = success();
    if (image_bytes != 0) {
        copy_out_of(piece, memory);
        load.image = memory;
    }
    if (!digest_now) {
        load.make_digests = true;
    } else {
        done = image_bytes != 0 ? Pipeline::digest(*step, piece, memory, residues)
                                : digest_in_place(*step, piece, residues, scratch);
        load.residues = residues;
    }
    TWR_CHECK(std::move(done));
    load.block = std::exchange(block.block, nullptr);
    pipeline_->hand_in(std::move(load));
    return success();
}

Result<> Session::Impl::take_host(const std::shared_ptr<PendingStep>& step, bool digest_now, double& waited) {
    std::vector<const Piece*> pieces;
    std::uint64_t bytes = 0;
    for (const Piece& piece : step->layout->pieces) {
        if (piece.on_device) continue;
        pieces.push_back(&piece);
        bytes += piece.bytes;
    }
    if (pieces.size() < 2 || bytes < kTeamBytes || team_->size() == 1) {
        std::vector<std::byte> scratch;
        for (const Piece* piece : pieces)
            TWR_CHECK(take_piece(step, *piece, digest_now, scratch, waited));
        return success();
    }
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;  // of the two below
    std::optional<Error> failure;
    double longest = 0;
    team_->run([&](int) {
        double own = 0;
        std::vector<std::byte> scratch;
        for (;;) {
            const std::size_t i = next++;
            if (i >= pieces.size()) break;
            Result<> done = out_of_memory();
            try {
                done = take_piece(step, *pieces[i], digest_now, scratch, own);
            } catch (const std::exception&) {  // stays what it says
            }
            if (done) continue;
            next = pieces.size();
            const std::lock_guard guard(mutex);
            if (!failure) failure = std::move(done).error();
        }
        const std::lock_guard guard(mutex);
        longest = std::max(longest, own);
    });
    waited += longest;
    if (failure) return std::move(*failure);
    return success();
}

Session::Impl::OnDevices Session::Impl::on_devices(const PendingStep& step,
                                                   const std::vector<CapturedField>& fields) {
    OnDevices found;
    for (std::size_t i = 0; i < fields.size(); ++i) {
        if (!fields[i].device) continue;
        found.numbers.push_back(i);
        found.metadata.push_back(&step.layout->fields[i]);
        found.arrays.push_back(*fields[i].device);
    }
    return found;
}

// What is to be recorded stays where it is, if nobody changes it before that is done: copies, or, where the caller waits, the
// arrays themselves.
void Session::Impl::leave_on_devices(PendingStep& step, const OnDevices& fields,
                                     const std::shared_ptr<StagedArrays>& staged) const {
    const bool copied = staged != nullptr && !staged->copies.empty();
    if (!step.layout->recorded || (!copied && ring_ != nullptr)) return;
    const std::vector<DeviceArray>& arrays = copied ? staged->copies : fields.arrays;
    step.on_device.resize(step.layout->fields.size());
    for (std::size_t i = 0; i < fields.numbers.size(); ++i) {
        if (arrays[i].dense()) step.on_device[fields.numbers[i]] = arrays[i];
    }
    step.device_memory = staged;
}

// Fields on devices: digested there; their residues, and their elements if they are kept, come to staging memory. staged: what
// was taken of them earlier, in place of the arrays themselves.
Result<> Session::Impl::take_devices(const std::shared_ptr<PendingStep>& step, const OnDevices& fields,
                                     const std::shared_ptr<StagedArrays>& staged, double& waited) {
    const auto& [numbers, metadata, own_arrays] = fields;
    if (numbers.empty()) return success();
    const bool copied = staged != nullptr && !staged->copies.empty();
    std::vector<const DeviceArray*> arrays;
    for (const DeviceArray& array : copied ? staged->copies : own_arrays)
        arrays.push_back(&array);
    const auto hand_in_residues = [&](std::size_t field, std::uint64_t offset,
                                      std::span<const std::byte> bytes) -> Result<> {
        // In parts that the ring has room for, each a whole number of pages.
        const std::size_t most = ring_ != nullptr ? kPieceBytes / 4 : bytes.size();
        for (std::size_t at = 0; at < bytes.size(); at += most) {
            const auto part = bytes.subspan(at, std::min(most, bytes.size() - at));
            Load load;
            load.step = step;
            load.field = numbers[field];
            load.residue_offset = offset + at;
            load.residue_bytes = part.size();
            load.residues = part.data();
            if (ring_ != nullptr) {
                std::byte* block = ring_->allocate(part.size(), waited);
                if (block == nullptr) return Error{ErrorCode::internal, "residues beyond the staging memory"};
                std::memcpy(block, part.data(), part.size());
                load.block = block;
                load.residues = block;
            }
            pipeline_->hand_in(std::move(load));
        }
        return success();
    };
    std::vector<BuiltField> built;
    std::mutex one_at_a_time;  // one thread a device calls
    const TakeResidues take = [&](std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes) {
        const std::lock_guard guard(one_at_a_time);
        return hand_in_residues(field, offset, bytes);
    };
    const bool check = step->check != nullptr;  // then residues are looked at first
    const bool sketched = staged != nullptr && !staged->sketches.empty();
    if (sketched) {
        built.resize(numbers.size());
    } else {
        TWR_CHECK(build_on_device(metadata, arrays, built, {}, check ? TakeResidues() : take));
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (sketched) TWR_CHECK(staged->sketches[i].download(built[i]));
        if (check) TWR_CHECK(step->check->whole(numbers[i], built[i]));
        if (check || sketched) TWR_CHECK(hand_in_residues(i, 0, built[i].residues));
        step->digests[numbers[i]].set(std::move(built[i]));
    }
    if (!step->layout->keep_data) return success();
    leave_on_devices(*step, fields, staged);

    // Pieces fill in the order in which elements come.
    std::vector<const Piece*> pieces;
    for (const Piece& piece : step->layout->pieces) {
        if (piece.on_device) pieces.push_back(&piece);
    }
    std::size_t current = 0;
    std::byte* image = nullptr;
    RingBlock block(ring_.get());
    AlignedBytes own;
    const auto open_piece = [&]() -> Result<> {
        const Piece& piece = *pieces[current];
        if (ring_ != nullptr) {
            image = ring_->allocate(piece.bytes, waited);
            if (image == nullptr) return Error{ErrorCode::internal, "a piece beyond the staging memory"};
            block.block = image;
        } else {
            image = own.reserve(piece.bytes);
        }
        clear_padding(piece, step->layout->fields, image);
        return success();
    };
    const auto close_piece = [&] {
        Load load;
        load.step = step;
        load.piece = pieces[current];
        load.image = image;
        load.block = std::exchange(block.block, nullptr);
        load.make_sums = !step->layout->recorded;
        pipeline_->hand_in(std::move(load));
        image = nullptr;
        ++current;
    };
    Result<> done = success();
    for (std::size_t i = 0; done && i < numbers.size(); ++i) {
        const FieldMetadata& field = *metadata[i];
        if (field.extents.empty() || (!step->on_device.empty() && step->on_device[numbers[i]])) continue;
        const std::uint64_t begin = field.extents[0].offset;
        const std::size_t item = item_bytes(field.dtype);
        done = copy_out(
            *arrays[i], kPieceBytes, [&](std::uint64_t first, std::span<const std::byte> bytes) -> Result<> {
                for (std::uint64_t at = begin + first * item; !bytes.empty();) {
                    if (image != nullptr && at >= pieces[current]->offset + pieces[current]->bytes)
                        close_piece();
                    while (at >= pieces[current]->offset + pieces[current]->bytes)
                        ++current;  // all of what stays where it is
                    if (image == nullptr) TWR_CHECK(open_piece());
                    const Piece& piece = *pieces[current];
                    const std::size_t n =
                        std::min<std::uint64_t>(bytes.size(), piece.offset + piece.bytes - at);
                    std::memcpy(image + (at - piece.offset), bytes.data(), n);
                    bytes = bytes.subspan(n);
                    at += n;
                }
                return success();
            });
    }
    if (done && image != nullptr) close_piece();
    return done;
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
    const std::uint64_t ordinal = agreed_steps_++;  // whatever happens from here on
    auto step = std::make_shared<PendingStep>();
    step->ordinal = ordinal;
    step->step = number;
    step->folder = step_folder(number, attempt);
    step->layout = layout_;
    for (const Source& source : sources_)
        step->ids.push_back(source.ids);
    // What is recorded is gathered on the heap, unless it stays on a device; what is shared is.
    step->heap_bytes = layout_->digest_bytes + (layout_->shared ? layout_->file_bytes : 0);
    for (std::size_t i = 0; layout_->recorded && i < layout_->fields.size(); ++i) {
        if (stage_ == nullptr || !layout_->on_device[i]) step->heap_bytes += layout_->fields[i].data_bytes();
    }
    CaptureReport report;
    report.step = number;
    report.data_bytes = layout_->array_bytes;
    attempts_[number] = attempt;
    if (attempt != 0) tiers_->again(number);
    {
        const std::lock_guard guard(mutex_);
        news_.reserve(news_.size() + under_way_ + 1);
        taken_.insert(number);
        ++under_way_;
        if (several() && settings_.keep.any()) unresolved_.push_back({number, 0});
    }
    ++captured_;
    // Once the pipeline knows of the step it waits for it: whatever happens, it is sealed.
    bool added = false;
    const bool must_know = reference_ != nullptr && settings_.stop_on_divergence;
    OnDevices devices;
    std::shared_ptr<StagedArrays> staged;
    Result<> taken = success();
    try {
        pipeline_->add(step, report.waited_seconds);
        added = true;
        if (reference_ != nullptr) step->check = reference_->check(number, layout_->fields);
        const bool digest_now = ring_ == nullptr || (must_know && step->check != nullptr) ||
                                (!layout_->keep_data && layout_->array_bytes > kCopiedBytes);
        devices = on_devices(*step, fields);
        if (digest_now || !devices.numbers.empty()) Pipeline::prepare(*step);
        if (stage_ != nullptr && !(must_know && step->check != nullptr) && !devices.numbers.empty()) {
            std::vector<const DeviceArray*> arrays;
            for (const DeviceArray& array : devices.arrays)
                arrays.push_back(&array);
            staged = stage_->take(devices.metadata, arrays, layout_->keep_data, report.waited_seconds);
        }
        if (staged == nullptr) taken = take_devices(step, devices, nullptr, report.waited_seconds);
        if (taken) taken = take_host(step, digest_now, report.waited_seconds);
        if (taken && must_know && step->check != nullptr) {
            step->divergence = step->check->result();
            report.divergence = step->divergence;
        }
    } catch (const std::exception&) {
        taken = out_of_memory();
    }
    step->blocked_seconds = seconds_since(start);
    const bool known = report.divergence.has_value();
    bool handed_over = false;
    if (staged != nullptr) {
        // Also after an error: its memory goes back.
        try {
            stage_->hand_over(staged, [this, step, staged, devices = std::move(devices), well = taken.ok()] {
                if (!well) return;
                double waited = 0;  // by nobody
                Result<> brought = out_of_memory();
                try {
                    brought = take_devices(step, devices, staged, waited);
                } catch (const std::exception&) {  // stays what it says
                }
                pipeline_->seal(step,
                                brought ? std::nullopt : std::optional<Error>(std::move(brought).error()));
            });
            handed_over = taken.ok();
        } catch (const std::exception&) {
            if (taken) taken = out_of_memory();
        }
    }
    if (!handed_over) {
        step->told = !taken;
        if (!added) settled(number, &taken.error(), true);
        if (added) pipeline_->seal(step, taken ? std::nullopt : std::optional<Error>(taken.error()));
    }
    if (known) diverged(*report.divergence);
    if (settings_.stop_on_divergence && reference_ != nullptr && several()) {
        // One word for all ranks, so that they stop together.
        std::array<std::int64_t, 1> same{known ? 0 : 1};
        TWR_CHECK(comm_.minimum(same));
        if (same[0] == 0 && !known) {
            report.divergence = Divergence{number, -1, "", 0, 0, 0, 0, "another rank diverged"};
        }
    }
    report.staged_bytes = ring_ != nullptr ? ring_->used() : 0;
    report.lost = take_news();
    if (ring_ == nullptr && taken) {
        // All has happened already.
        const auto own = std::find_if(report.lost.begin(), report.lost.end(),
                                      [&](const LostStep& lost) { return lost.step == number; });
        if (own != report.lost.end()) {
            taken = own->error;
            report.lost.erase(own);  // told by this very call
        }
        if (settings_.local.empty() || settings_.flusher == Flusher::none) {
            report.metadata_bytes = tiers_->metadata_bytes(number);
        }
    }
    if (!taken) {
        const std::lock_guard guard(mutex_);
        news_.insert(news_.begin(), report.lost.begin(), report.lost.end());
        return where(std::move(taken).error());
    }
    report.seconds = seconds_since(start);
    return report;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 path_ + ": not enough memory to capture step " + std::to_string(number)};
}

void Session::Impl::settled(std::int64_t step, const Error* lost, bool told) {
    const std::lock_guard guard(mutex_);
    if (under_way_ != 0) --under_way_;
    if (lost != nullptr) {
        if (!told) {
            news_.push_back({step, out_of_memory()});  // has room
            try {
                news_.back().error = *lost;
            } catch (const std::exception&) {  // then that is why
            }
        }
        ++lost_;
        taken_.erase(step);
    } else {
        ++committed_;
    }
    for (Ordinal& ordinal : unresolved_) {
        if (ordinal.step == step && ordinal.state == 0) {
            ordinal.state = lost != nullptr ? -1 : 1;
            break;
        }
    }
}

void Session::Impl::diverged(const Divergence& divergence) {
    const std::lock_guard guard(divergence_mutex_);
    try {
        if (on_divergence_) on_divergence_(divergence);
    } catch (...) {  // the step goes on, and other ranks wait for it: nobody is here to be told
    }
}

std::vector<LostStep> Session::Impl::take_news() {
    const std::lock_guard guard(mutex_);
    std::vector<LostStep> next;
    next.reserve(under_way_);
    return std::exchange(news_, std::move(next));
}

Result<std::vector<LostStep>> Session::Impl::wait() {
    if (auto able = usable(); !able) return std::move(able).error().at(path_);
    pipeline_->drain();
    tiers_->drain();
    if (several()) {
        // All ranks have settled the same steps by now: as many rounds on each.
        std::size_t left = 0;
        do {
            left = unresolved();
            std::vector<std::int64_t> nothing{0};
            TWR_CHECK(exchange_commits(nothing, nothing));
        } while (unresolved() != 0 && unresolved() != left);
        tiers_->retain();
    }
    return take_news();
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

// What was captured is brought to storage, whatever other ranks do.
void Session::Impl::end() {
    closed_ = true;
    if (process_ != ::getpid()) {
        // Forked: threads to wait for are not here, and what is on storage is the parent's.
        static_cast<void>(stage_.release());
        static_cast<void>(pipeline_.release());
        static_cast<void>(tiers_.release());
        static_cast<void>(team_.release());
        static_cast<void>(ring_.release());
        return;
    }
    stage_.reset();
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

// A program asks for one field after the other.
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
    return Error{ErrorCode::out_of_memory, path + ": " + e.what()};
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
std::vector<std::int64_t> Session::committed() const { return impl_->committed(); }
std::vector<std::int64_t> Session::local_only() const { return impl_->local_only(); }
Result<> Session::drop_local() { return impl_->drop_local(); }
SessionFacts Session::facts() const { return impl_->facts(); }
const std::string& Session::path() const { return impl_->path_; }
int Session::rank() const { return impl_->comm_.rank(); }
void Session::on_divergence(std::function<void(const Divergence&)> call) {
    const std::lock_guard guard(impl_->divergence_mutex_);
    impl_->on_divergence_ = std::move(call);
}

}  // namespace twinrun
