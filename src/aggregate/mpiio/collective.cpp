// One collective call of a file: what its ranks agree on, and how the bytes move then.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "aggregate/mpi/target.hpp"
#include "aggregate/mpiio/own_part.hpp"
#include "base/caught.hpp"

namespace twinrun::mpiio {

using aggregation::Outcome;
using aggregation::Team;

namespace {

// Of Vote::figures.largest. Zero: nothing to say, which never wins. Behind them: LastTransfer's.
enum Figure : std::size_t { kReason, kEnd, kUnready, kNotAhead, kOwnFigures };
static_assert(std::size_t{kOwnFigures} + std::size_t{LastTransfer::kFigures} <= aggregation::kFigures);
// Of Vote::figures.sums: ranks that have read data before the agreement.
constexpr std::size_t kHaveRead = 0;
// Of kUnready: how far a rank is before the agreement.
constexpr double kDeposited = 0, kPrepared = 1, kNotPrepared = 2;
// Of Outcome::payload, behind the traits of storage: 1 where rank 0 has written for all.
constexpr std::size_t kWritten = 5;

// What look_at_storage() has put there.
aggregation::StorageTraits traits_in(const Outcome& outcome) {
    return {outcome.payload[1], {outcome.payload[2], outcome.payload[3], outcome.payload[4]}};
}

// By how many bytes a plan may move in the file, or by a multiple of them. Blocks of network file
// systems have one writer each, so that a plan moves by whole blocks there.
std::uint64_t step_of(const aggregation::StorageTraits& traits) {
    return traits.direct.alignment != 1 ? traits.block : 1;
}

// Changes that this process has made beside aggregated calls.
std::atomic<std::uint64_t>& changes() {
    static std::atomic<std::uint64_t> all{0};
    return all;
}
// Whether one has begun of which this library does not see the end.
std::atomic<bool>& changes_later() {
    static std::atomic<bool> any{false};
    return any;
}

}  // namespace

std::uint64_t changes_noted() noexcept { return changes().load(); }

void note_change(Change change) noexcept {
    if (change == Change::ends_later) changes_later().store(true);
    changes().fetch_add(1, std::memory_order_relaxed);
}

Answer File::transfer(const Call& call) {
    const Answer answer = aggregate(call);
    ++(answer.fate == Fate::plain ? plain_calls_ : aggregated_calls_);
    return answer;
}

// By what is equal on all ranks: whether a call may be aggregated.
bool File::eligible(Mode mode) const {
    if (!allows(mode)) return false;
    if (!native_) {
        say("the view's data representation is not native");
        return false;
    }
    int atomic = 0;
    if (PMPI_File_get_atomicity(handle_, &atomic) != MPI_SUCCESS || atomic != 0) {
        say("the file is in atomic mode");
        return false;
    }
    return true;
}

// [collective] The answer if there is no aggregate for the call.
std::optional<Answer> File::unready() {
    if (!usable_) return plain();
    if (auto started = start(); !started) {
        settle(started.error().message);
        return plain();
    }
    if (aggregate_->team->broken()) return failed(aggregate_->team->why_broken());
    return std::nullopt;
}

// What the ranks agree on.
void File::put_figures(const OwnPart& own, std::span<double> figures) const {
    figures[kReason] = own.reason;
    const bool has_data = own.reason == kNone && !own.layout.parts.empty();
    if (has_data) figures[kEnd] = static_cast<double>(own.layout.end);
    member_->last.put(has_data ? std::span<const ArrayPart>(own.layout.parts) : std::span<const ArrayPart>(),
                      figures.subspan(kOwnFigures));
}

// By one rank, for all: the file's size and its storage's traits, in outcome.payload.
Result<> File::look_at_storage(Outcome& outcome) {
    struct stat about {};
    if (::fstat(number_, &about) != 0) return aggregation::file_error(name_, "stat", errno);
    outcome.payload[0] = static_cast<std::uint64_t>(about.st_size);
    if (!traits_) {
        auto traits = caught([&] {
            return aggregation::storage_traits("/proc/self/fd/" + std::to_string(number_),
                                               hints_.settings.block_bytes);
        });
        if (!traits) return traits.error();
        traits_ = *traits;
    }
    outcome.payload[1] = traits_->block;
    outcome.payload[2] = traits_->direct.least_bytes;
    outcome.payload[3] = traits_->direct.alignment;
    // Less than this of each rank is one write of one rank, and a step less (write_for_all).
    constexpr std::uint64_t kTogether = std::uint64_t{32} << 10;
    const bool one_node = aggregate_->team->nodes() == 1;
    outcome.payload[4] = std::max(traits_->direct.least_alone, one_node ? kTogether : 0);
    return success();
}

const char* File::text_of(Reason reason) {
    switch (reason) {
        case kDevice: return "a buffer is memory of a GPU";
        case kDatatype: return "a datatype was made in a way that is not supported, or has too many pieces";
        case kView: return "the file view is not supported, or has too many pieces";
        case kFar: return "the data lies behind 2^50 bytes";
        default: return "memory is lacking";
    }
}

// [collective] The file ends before the last byte of a read: what lies behind its end is not read.
Result<> File::cut_at_end(Layout& layout, std::uint64_t file_bytes) {
    Team::Vote cut;
    cut.mine = caught([&]() -> Result<> {
        const std::uint64_t left = bytes_before(layout.file, static_cast<std::int64_t>(file_bytes));
        if (left == layout.bytes) return success();
        layout.bytes = left;
        layout.parts.clear();
        TWR_TRY(const Stream file, slice(layout.file, 0, left));
        TWR_TRY(const Stream memory, slice(layout.memory, 0, left));
        return match(file, memory, 0, layout.parts);
    });
    TWR_CHECK(aggregate_->team->agree(cut));
    return success();
}

Result<> File::declare(const Layout& layout, Mode mode, std::uint64_t zero) {
    LastTransfer& last = member_->last;
    auto sets = caught([&] { return last.renew(layout.parts, zero); });
    if (files_are_limited()) sets = Error{ErrorCode::unsupported, kFilesLimited};
    ++plans_;
    const bool reads = mode == Mode::read;
    TWR_CHECK(aggregate_->plan->declare(std::move(sets), 1, reads));
    last.declared(reads);
    return success();
}

Answer File::aggregate(const Call& call) {
    if (!usable_ || !eligible(call.mode)) return plain();
    if (ranks_ == 1) {
        if (auto done = move_stretch(call)) return std::move(*done);
    }
    OwnPart own;
    std::optional<Answer> alone;
    if (ranks_ == 1) {
        own = own_part(call);
        alone = move_alone(call, own);
    }
    if (!alone) {
        if (auto answer = unready()) return std::move(*answer);
        if (ranks_ != 1) own = own_part(call);
    }
    // Pointers move by what was asked for, also where the file ends before that (MPI 4.1, section
    // 14.4.1).
    const std::uint64_t asked = own.bytes;
    Answer answer = alone ? std::move(*alone) : move(call, std::move(own));
    if (answer.fate != Fate::moved) return answer;
    if (auto passed = pass_pointer(call, asked); !passed) return failed(passed.error());
    return answer;
}

// By rank 0 in the agreement: where all ranks repeat the last write, and have deposited their
// bytes, it writes them, and the agreement is the end of the call. An error is one of all ranks.
Result<> File::write_for_all(const Call& call, std::optional<aggregation::Move>& ahead,
                             Outcome& outcome) const {
    const auto& all = outcome.figures.largest;
    const auto places = std::span<const double>(all).subspan(kOwnFigures);
    if (call.mode != Mode::write || all[kReason] != 0 || all[kUnready] != kDeposited ||
        !LastTransfer::has_data(places))
        return success();
    const aggregation::StorageTraits traits = traits_in(outcome);
    if (!(traits == aggregate_->plan->traits())) return success();
    const auto base = member_->last.base_after(places, false, step_of(traits));
    if (!base) return success();
    TWR_CHECK(ahead->store({number_, name_, *base}));
    outcome.payload[kWritten] = 1;
    return success();
}

// [collective]
Answer File::move(const Call& call, OwnPart own) {
    Team& team = *aggregate_->team;
    Layout& layout = own.layout;
    Team::Vote vote;
    vote.patient = !hints_.limited;
    vote.same = static_cast<std::uint64_t>(call.mode) * 8 + static_cast<std::uint64_t>(call.where) + 1;
    vote.differs = "collective calls of one file differ from those of rank 0";
    // First of all: what another thread changes from here on counts as before the next call.
    const std::uint64_t changes_now = changes_noted();
    const auto have_read = read_ahead(call, own);
    const bool undisturbed = changes_now == changes_seen_ && !changes_later();
    changes_seen_ = changes_now;
    if (ahead_pause_ != 0) --ahead_pause_;
    vote.mine = std::move(own.checked);
    put_figures(own, vote.figures.largest);
    vote.figures.largest[kNotAhead] = have_read && undisturbed ? 0 : 1;
    vote.figures.sums[kHaveRead] = have_read.value_or(0) != 0 ? 1 : 0;
    // Where this rank repeats the last call, it is ready before the ranks agree. Where all are, one
    // agreement is enough.
    std::optional<aggregation::Move> ahead;
    const auto own_places = std::span<const double>(vote.figures.largest).subspan(kOwnFigures);
    const bool repeats = member_->last.has_plan() && !LastTransfer::changed(own_places);
    if (vote.mine && own.reason == kNone && repeats && !have_read) {
        ahead.emplace(*aggregate_, call.mode, call.buffer);
        if (!ahead->prepare()) ahead.reset();
    }
    vote.figures.largest[kUnready] = !ahead ? kNotPrepared : ahead->deposit() ? kDeposited : kPrepared;
    vote.on_root = [&](Outcome& outcome) -> Result<> {
        TWR_CHECK(look_at_storage(outcome));
        return write_for_all(call, ahead, outcome);
    };
    auto agreed = team.agree(vote);
    if (!agreed) return failed(agreed.error());

    // From here on all ranks decide alike.
    const auto& all = agreed->figures.largest;
    if (agreed->payload[kWritten] != 0) {
        const auto traits = traits_in(*agreed);
        member_->last.follow(std::span<const double>(all).subspan(kOwnFigures), false, step_of(traits));
        return Answer{Fate::moved, layout.bytes, {}};
    }
    if (all[kReason] == 0 && all[kNotAhead] == 0) {
        ahead_pauses_ = 0;
        return Answer{Fate::moved, *have_read, {}};
    }
    // Some have read in vain: calls with this pattern may follow.
    if (agreed->figures.sums[kHaveRead] != 0) {
        constexpr unsigned kLongestPause = 64;
        ahead_pauses_ = std::clamp(ahead_pauses_ * 2, 1U, kLongestPause);
        ahead_pause_ = ahead_pauses_;
    }
    if (const auto reason = static_cast<Reason>(all[kReason]); reason != kNone) {
        say(text_of(reason));
        return plain();
    }
    const auto places = std::span<const double>(all).subspan(kOwnFigures);
    if (!LastTransfer::has_data(places)) return Answer{Fate::moved, 0, {}};
    const std::uint64_t file_bytes = agreed->payload[0];
    const aggregation::StorageTraits traits = traits_in(*agreed);
    if (!(traits == aggregate_->plan->traits())) {
        member_->last.forget();
        if (auto adapted = aggregate_->plan->adapt(traits); !adapted) return failed(adapted.error());
    }
    const bool cut = call.mode == Mode::read && static_cast<std::uint64_t>(all[kEnd]) > file_bytes;
    if (cut) {
        if (auto done = cut_at_end(layout, file_bytes); !done) return failed(done.error());
    }
    const bool serves = !cut && member_->last.follow(places, call.mode == Mode::read, step_of(traits));
    if (!serves || all[kUnready] > kPrepared) ahead.reset();
    if (!serves) {
        auto declared = declare(layout, call.mode, LastTransfer::zero(places, traits.block));
        if (team.broken()) return failed(team.why_broken());
        if (!declared) {
            // Most often bytes that two ranks write, which MPI allows.
            say("a call cannot be planned (" + declared.error().message + ")");
            return plain();
        }
    }
    const aggregation::OpenFile file{number_, name_, member_->last.base()};
    auto moved = ahead ? ahead->run(file) : aggregation::move(*aggregate_, call.mode, file, call.buffer);
    if (!moved) return failed(moved.error());
    return Answer{Fate::moved, layout.bytes, {}};
}

void File::abandon(const Error& error) noexcept {
    if (aggregate_ != nullptr) aggregate_->team->abandon(error);
}

}  // namespace twinrun::mpiio
