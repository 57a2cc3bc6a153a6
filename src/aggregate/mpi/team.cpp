#include "aggregate/mpi/team.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/caught.hpp"

namespace twinrun::aggregation {

namespace {

// Longer than `time_limit`, so that ranks which can give up by themselves do so first.
double grace(double limit) { return limit + std::max(2.0, limit / 4); }

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, std::int64_t nanoseconds) {
    const timespec limit{static_cast<time_t>(nanoseconds / 1000000000),
                         static_cast<long>(nanoseconds % 1000000000)};
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, &limit, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

void set_text(char (&to)[kMessage], std::string_view text) {
    to[text.copy(to, kMessage - 1)] = '\0';  // memcpy may not take the null pointer of an empty text
}

// How long a polling rank sleeps: doubles from the first value to the second.
constexpr std::int64_t kShortNap = 20'000;
constexpr std::int64_t kLongNap = 1'000'000;
// Most waits are shorter than it takes to wake up, and ranks that sleep in turns wait for each
// other to wake up. So a rank first watches its word for so long, if ranks need not share cores;
// then it gives way until so much time is over; then it sleeps. An idle core of a virtual machine
// takes up to 0.1 ms to wake up.
constexpr auto kWatches = std::chrono::microseconds(20);
constexpr auto kGivesWay = std::chrono::microseconds(400);
constexpr auto kGivesWayOnSharedCores = std::chrono::microseconds(100);
constexpr int kLooks = 32;  // at its word, until it does all else that it must do while it waits

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}
// A rank that is woken by others checks the time this often.
constexpr std::int64_t kSleep = 50'000'000;

// The message of a rank that cannot go on to the leaders of other nodes.
constexpr int kAbandonTag = 2;
// No message has this tag: a probe for one lets MPI make progress.
constexpr int kProgressTag = 3;
struct Abandoned {
    std::int32_t rank = 0;
    char why[kMessage] = "";
};

}  // namespace

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

Error mpi_error(const std::string& what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    int error_class = MPI_ERR_OTHER;
    MPI_Error_class(code, &error_class);
    MPI_Error_string(code, text, &length);
    const bool memory = error_class == MPI_ERR_NO_MEM;
    return Error{memory ? ErrorCode::out_of_memory : ErrorCode::io,
                 what + ": MPI says: " + std::string(text)};
}

// ---- watchdog ----

Watchdog::Watchdog(double limit) : limit_(limit) {
    if (limit >= 0) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() { stop(); }

void Watchdog::stop() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Watchdog::watch() {
    const auto period = std::chrono::duration<double>(std::clamp(limit_ / 4, 0.05, 60.0));
    std::unique_lock lock(mutex_);
    while (!over_) {
        changed_.wait_for(lock, period);
        const std::int64_t deadline = deadline_.load();
        if (over_ || deadline == 0 || Clock::now().time_since_epoch().count() < deadline) continue;
        // The thread that called is inside MPI and will not come back: no error can be returned.
        // All ranks end.
        lock.unlock();
        std::thread([] { MPI_Abort(MPI_COMM_WORLD, 1); }).detach();
        std::this_thread::sleep_for(std::chrono::seconds(5));
        std::abort();
    }
}

Watchdog::Guard::Guard(Watchdog& watchdog) : watchdog_(watchdog) {
    if (watchdog.limit_ < 0) return;
    const auto limit = std::chrono::duration<double>(grace(watchdog.limit_));
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
    watchdog.deadline_.store(deadline.time_since_epoch().count());
}

Watchdog::Guard::~Guard() { watchdog_.deadline_.store(0); }

// ---- set-up ----

// Memory that set_up() needs.
void Team::prepare(MPI_Comm comm) {
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &ranks_);
    const auto ranks = static_cast<std::size_t>(ranks_);
    leaders_and_places_.resize(2 * ranks);
    number_.resize(ranks, 0);
    node_of_.resize(ranks);
    node_rank_of_.resize(ranks);
    leader_of_.reserve(ranks);
    here_.reserve(ranks);
    slots_.reserve(ranks);
}

Result<std::unique_ptr<Team>> Team::create(MPI_Comm comm, double time_limit, Result<> mine) {
    std::unique_ptr<Team> team;
    Result<> ready = caught([&]() -> Result<> {
        TWR_CHECK(std::move(mine));
        team.reset(new Team(time_limit));
        team->prepare(comm);
        return success();
    });
    // Whether all ranks are ready, and which is not. Comes first: later failures would need a
    // collective undo.
    int failed[2] = {ready ? 1 : 0, 0};  // 0: a rank is not ready; and that rank
    MPI_Comm_rank(comm, &failed[1]);
    {
        std::optional<Watchdog::Guard> guard;
        if (team) guard.emplace(team->watchdog_);
        TWR_MPI("MPI_Allreduce", MPI_Allreduce(MPI_IN_PLACE, failed, 1, MPI_2INT, MPI_MINLOC, comm));
    }
    if (failed[0] == 0) {
        char words[kMessage] = "";
        if (!ready) set_text(words, ready.error().message);
        std::optional<Watchdog::Guard> guard;
        if (team) guard.emplace(team->watchdog_);
        TWR_MPI("MPI_Bcast", MPI_Bcast(words, sizeof words, MPI_CHAR, failed[1], comm));
        if (!ready) return std::move(ready).error();
        return Error{ErrorCode::other_rank, "rank " + std::to_string(failed[1]) + ": " + std::string(words)};
    }
    TWR_CHECK(team->set_up(comm));
    return team;
}

Result<> Team::set_up(MPI_Comm comm) {
    const Watchdog::Guard guard(watchdog_);
    TWR_MPI("MPI_Comm_dup", MPI_Comm_dup(comm, &comm_));
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    TWR_MPI("MPI_Comm_split_type",
            MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node_comm_));
    MPI_Comm_set_errhandler(node_comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(node_comm_, &node_rank_);
    MPI_Comm_size(node_comm_, &node_ranks_);
    own_cores_ = node_ranks_ <= ::sysconf(_SC_NPROCESSORS_ONLN);

    // For each rank: its leader, and its place on the node. Nodes are numbered by their leaders.
    int own[2] = {rank_, node_rank_};
    TWR_MPI("MPI_Bcast", MPI_Bcast(own, 1, MPI_INT, 0, node_comm_));
    TWR_MPI("MPI_Allgather", MPI_Allgather(own, 2, MPI_INT, leaders_and_places_.data(), 2, MPI_INT, comm_));
    for (int rank = 0; rank < ranks_; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        if (leaders_and_places_[2 * at] == rank) {
            number_[at] = static_cast<std::uint32_t>(leader_of_.size());
            leader_of_.push_back(rank);
        }
        node_of_[at] = number_[static_cast<std::size_t>(leaders_and_places_[2 * at])];
        node_rank_of_[at] = leaders_and_places_[2 * at + 1];
    }
    nodes_ = static_cast<std::uint32_t>(leader_of_.size());
    for (int rank = 0; rank < ranks_; ++rank) {
        if (on_this_node(rank)) here_.push_back(rank);
    }
    if (nodes_ > 1) {
        TWR_MPI("MPI_Comm_split", MPI_Comm_split(comm_, leader() ? 0 : MPI_UNDEFINED, rank_, &leaders_));
        if (leaders_ != MPI_COMM_NULL) MPI_Comm_set_errhandler(leaders_, MPI_ERRORS_RETURN);
    }

    // Slots, with room to align them. The leader's memory begins with the node's slot.
    void* memory = nullptr;
    const MPI_Aint bytes = sizeof(NodeSlot) + sizeof(RankSlot) + alignof(RankSlot);
    TWR_MPI("MPI_Win_allocate_shared",
            MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, node_comm_, &memory, &window_));
    slots_.resize(static_cast<std::size_t>(node_ranks_));
    for (int i = 0; i < node_ranks_; ++i) {
        MPI_Aint size = 0;
        int unit = 0;
        void* base = nullptr;
        TWR_MPI("MPI_Win_shared_query", MPI_Win_shared_query(window_, i, &size, &unit, &base));
        // Aligned relative to the first slot, whose offset within a page is the same for all ranks.
        void* at = base;
        std::size_t room = static_cast<std::size_t>(size);
        if (std::align(alignof(RankSlot), sizeof(NodeSlot) + sizeof(RankSlot), at, room) == nullptr) {
            return Error{ErrorCode::internal, "shared memory of MPI is smaller than asked for"};
        }
        auto* const bytes_at = static_cast<std::byte*>(at);
        if (i == node_rank_) {
            new (bytes_at) NodeSlot;
            new (bytes_at + sizeof(NodeSlot)) RankSlot;
        }
        if (i == 0) node_slot_ = reinterpret_cast<NodeSlot*>(bytes_at);
        slots_[static_cast<std::size_t>(i)] = reinterpret_cast<RankSlot*>(bytes_at + sizeof(NodeSlot));
    }
    mine_ = slots_[static_cast<std::size_t>(node_rank_)];
    TWR_MPI("MPI_Barrier", MPI_Barrier(node_comm_));
    return success();
}

Team::~Team() {
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (broken() || finalised != 0) return;
    const Watchdog::Guard guard(watchdog_);
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
    for (MPI_Comm* comm : {&leaders_, &node_comm_, &comm_}) {
        if (*comm != MPI_COMM_NULL) MPI_Comm_free(comm);
    }
}

// ---- waiting ----

void Team::notify(int rank) {
    RankSlot& slot = *slots_[static_cast<std::size_t>(node_rank_of(rank))];
    slot.wake.fetch_add(1);
    if (slot.asleep.load() != 0) futex_wake(slot.wake);
}

void Team::progress() { node_slot_->progress.fetch_add(1, std::memory_order_relaxed); }

Error Team::give_up(const std::string& what) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", limit_);
    broken_ = Error{ErrorCode::other_rank,
                    "gave up after " + std::string(text) + " s (time_limit) of waiting for " + what +
                        ": a rank died, or hangs; this aggregate cannot be used any more, and MPI perhaps "
                        "neither: end the job"};
    tell_node(rank_, broken_->message.c_str());
    return *broken_;
}

// The text of the first rank that gave up counts.
void Team::tell_node(int rank, const char* why) noexcept {
    if (node_slot_ == nullptr || node_slot_->giving_up.exchange(1) != 0) return;
    std::snprintf(node_slot_->why, sizeof node_slot_->why, "%s", why);
    node_slot_->given_up.store(static_cast<std::uint32_t>(rank) + 1);
    for (const int other : here_)
        notify(other);
}

void Team::abandon(const Error& error) noexcept {
    if (broken()) return;
    static constexpr const char* kEnd = "; this aggregate cannot be used any more";
    // Not freed: ranks receive it at any later time, and none waits for that.
    static Abandoned message;
    message.rank = rank_;
    std::snprintf(message.why, sizeof message.why, "%.1900s%s", error.message.c_str(), kEnd);
    broken_.emplace(Error{error.code, std::string()});
    try {
        broken_->message = message.why;
    } catch (...) {  // no memory: without its text
    }
    tell_node(rank_, message.why);
    if (nodes_ < 2 || leader_of_.size() != nodes_) return;
    for (const int leader : leader_of_) {
        if (on_this_node(leader)) continue;
        MPI_Request request = MPI_REQUEST_NULL;
        if (MPI_Isend(&message, sizeof message, MPI_BYTE, leader, kAbandonTag, comm_, &request) ==
            MPI_SUCCESS)
            MPI_Request_free(&request);
    }
}

void Team::hear_other_nodes() {
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, kAbandonTag, comm_, &flag, &status) != MPI_SUCCESS || flag == 0) return;
    Abandoned message;
    if (MPI_Recv(&message, sizeof message, MPI_BYTE, status.MPI_SOURCE, kAbandonTag, comm_,
                 MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return;
    message.why[kMessage - 1] = '\0';
    tell_node(message.rank, message.why);
}

Result<> Team::wait(FunctionRef<bool> done, bool polls, Words what, Patience patience) {
    if (broken()) return *broken_;
    auto since = Clock::now();
    std::uint64_t seen = node_slot_->progress.load(std::memory_order_relaxed);
    bool watches = own_cores_;
    bool gives_way = true;
    std::int64_t nap = kShortNap;
    const double limit = patience == Patience::plain ? limit_ : limit_ * 1.25 + 0.25;
    while (true) {
        const std::uint32_t value = mine_->wake.load();
        if (done()) return success();
        if (const std::uint32_t who = node_slot_->given_up.load()) {
            broken_ = Error{ErrorCode::other_rank,
                            "rank " + std::to_string(who - 1) + ": " + std::string(node_slot_->why)};
            return *broken_;
        }
        if (patient_) {
            int flag = 0;
            MPI_Iprobe(MPI_ANY_SOURCE, kProgressTag, comm_, &flag, MPI_STATUS_IGNORE);
        }
        if (gives_way) {
            if (!watches) ::sched_yield();
            for (int i = 0; watches && i < kLooks && mine_->wake.load() == value; ++i)
                relax();
            const auto waited = Clock::now() - since;
            watches = watches && waited < kWatches;
            gives_way = waited < (own_cores_ ? kGivesWay : kGivesWayOnSharedCores);
            continue;
        }
        mine_->asleep.store(1);
        if (mine_->wake.load() == value) futex_wait(mine_->wake, value, polls || patient_ ? nap : kSleep);
        mine_->asleep.store(0);
        if (leader() && nodes_ > 1) hear_other_nodes();
        nap = std::min(nap * 2, kLongNap);
        if (limit_ < 0 || patient_) continue;
        const std::uint64_t now = node_slot_->progress.load(std::memory_order_relaxed);
        if (now != seen) {
            seen = now;
            since = Clock::now();
        } else if (seconds_since(since) > limit) {
            return give_up(what());
        }
    }
}

Result<> Team::finish(MPI_Request request, const char* what) {
    int code = MPI_SUCCESS;
    TWR_CHECK(wait(
        [&] {
            int flag = 0;
            code = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
            return flag != 0 || code != MPI_SUCCESS;
        },
        true, [&] { return std::string(what); }));
    if (code != MPI_SUCCESS) return mpi_error(what, code);
    return success();
}

// ---- agreement ----

Result<> Team::combine(const Vote& vote) {
    Outcome& outcome = exchange_.outcome;
    outcome = Outcome();
    const auto fail = [&](int rank, ErrorCode code, std::string_view text) {
        outcome.failed_rank = rank;
        outcome.code = static_cast<int>(code);
        set_text(outcome.message, text);
    };
    const auto fail_different = [&](int rank) {
        char differ[256];
        std::snprintf(differ, sizeof differ, "%s, and must be the same on all ranks", vote.differs);
        fail(rank, ErrorCode::invalid_argument, differ);
    };
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const RankSlot& slot = *slots_[i];
        for (std::size_t k = 0; k < kFigures; ++k) {
            outcome.figures.sums[k] += slot.figures.sums[k];
            outcome.figures.largest[k] = std::max(outcome.figures.largest[k], slot.figures.largest[k]);
        }
        if (outcome.failed_rank >= 0) continue;
        if (slot.code != 0) {
            fail(here_[i], static_cast<ErrorCode>(slot.code), slot.message);
        } else if (slot.same != mine_->same && mine_->code == 0) {
            fail_different(here_[i]);
        }
    }
    if (outcome.failed_rank < 0 && vote.on_node) {
        if (const auto done = vote.on_node(outcome); !done)
            fail(rank_, done.error().code, done.error().message);
    }
    if (nodes_ > 1) {
        const auto reduce = [&](void* values, int count, MPI_Datatype type, MPI_Op op) -> Result<> {
            MPI_Request request = MPI_REQUEST_NULL;
            TWR_MPI("MPI_Iallreduce",
                    MPI_Iallreduce(MPI_IN_PLACE, values, count, type, op, leaders_, &request));
            return finish(request, "the other nodes");
        };
        const auto broadcast = [&](void* bytes, std::size_t count, std::uint32_t root) -> Result<> {
            MPI_Request request = MPI_REQUEST_NULL;
            TWR_MPI("MPI_Ibcast", MPI_Ibcast(bytes, static_cast<int>(count), MPI_BYTE, static_cast<int>(root),
                                             leaders_, &request));
            return finish(request, "the other nodes");
        };
        // Signed: MPICH 4.0 compares unsigned numbers as signed ones in MPI_MIN.
        constexpr std::int64_t kNone = INT64_MAX;
        const auto own = [&] { return outcome.failed_rank < 0 ? kNone : std::int64_t{outcome.failed_rank}; };
        const auto same = static_cast<std::int64_t>(mine_->same);
        std::int64_t(&values)[3] = exchange_.values;
        values[0] = own();
        values[1] = same;
        values[2] = ~same;
        TWR_CHECK(reduce(values, 3, MPI_INT64_T, MPI_MIN));
        TWR_CHECK(reduce(outcome.figures.sums.data(), kFigures, MPI_DOUBLE, MPI_SUM));
        TWR_CHECK(reduce(outcome.figures.largest.data(), kFigures, MPI_DOUBLE, MPI_MAX));
        // Equal within each node, but not across nodes.
        if (values[0] == kNone && values[1] != ~values[2]) {
            std::uint64_t& first = exchange_.first;
            first = mine_->same;
            TWR_CHECK(broadcast(&first, sizeof first, 0));
            if (first != mine_->same) fail_different(rank_);
            values[0] = own();
            TWR_CHECK(reduce(values, 1, MPI_INT64_T, MPI_MIN));
        }
        if (values[0] != kNone) {
            const std::uint32_t from = node_of_[static_cast<std::size_t>(values[0])];
            const Figures figures = outcome.figures;
            TWR_CHECK(broadcast(&outcome, sizeof outcome, from));
            outcome.figures = figures;
            return success();
        }
    }
    if (outcome.failed_rank < 0 && rank_ == 0 && vote.on_root) {
        if (const auto done = vote.on_root(outcome); !done) fail(0, done.error().code, done.error().message);
    }
    if (nodes_ > 1) {
        MPI_Request request = MPI_REQUEST_NULL;
        TWR_MPI("MPI_Ibcast", MPI_Ibcast(&outcome, sizeof outcome, MPI_BYTE, 0, leaders_, &request));
        TWR_CHECK(finish(request, "rank 0"));
    }
    return success();
}

Result<Outcome> Team::agree(const Vote& vote) {
    if (broken()) return *broken_;
    mine_->code = vote.mine ? 0 : static_cast<int>(vote.mine.error().code);
    set_text(mine_->message, vote.mine ? std::string_view() : std::string_view(vote.mine.error().message));
    mine_->same = vote.same;
    mine_->figures = vote.figures;
    const std::uint32_t number = ++agreement_;
    struct Entry {
        bool& patient;
        ~Entry() { patient = false; }
    } const until_the_end{patient_};
    patient_ = vote.patient;
    mine_->arrived.store(number);
    progress();
    Outcome outcome;
    if (leader()) {
        std::size_t met = 0;
        const auto waited = wait(
            [&] {
                while (met < slots_.size() && slots_[met]->arrived.load() == number)
                    ++met;
                return met == slots_.size();
            },
            false, [&] { return "rank " + std::to_string(here_[met]); });
        TWR_CHECK(waited);
        TWR_CHECK(combine(vote));
        outcome = exchange_.outcome;
        node_slot_->outcome = outcome;
        node_slot_->released.store(number);
        for (const int rank : here_) {
            if (rank != rank_) notify(rank);
        }
    } else {
        notify(here_.front());
        TWR_CHECK(
            wait([&] { return node_slot_->released.load() == number; }, false,
                 [&] { return "rank " + std::to_string(here_.front()) + ", which speaks for this node"; },
                 Patience::more));
        outcome = node_slot_->outcome;
    }
    if (!vote.mine) return vote.mine.error();
    if (outcome.failed_rank == rank_) {
        return Error{static_cast<ErrorCode>(outcome.code), outcome.message};
    }
    if (outcome.failed_rank >= 0) {
        return Error{ErrorCode::other_rank,
                     "rank " + std::to_string(outcome.failed_rank) + ": " + std::string(outcome.message)};
    }
    return outcome;
}

}  // namespace twinrun::aggregation
