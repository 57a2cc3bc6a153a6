// The ranks of an aggregate: where they are, how they wait for each other, and how they agree.
//
// Ranks of one node meet in shared memory: each sleeps on a word of its own (a futex), and who has news for it changes the word.
// A rank that waits costs nothing, however many share a core. Nodes meet by messages and by collective operations of one rank
// each, its leader. Nothing here waits in MPI: requests are tested until a deadline, so that a rank that died or hangs is an error
// on the others (`time_limit`). Where MPI has only functions that block (windows, new communicators), a watchdog ends the job.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.hpp"

namespace twinrun::aggregation {

using Clock = std::chrono::steady_clock;
[[nodiscard]] double seconds_since(Clock::time_point begin);

// MPI's own words.
[[nodiscard]] Error mpi_error(const std::string& what, int code);
#define TWR_MPI(what, call)                                           \
    do {                                                              \
        if (const int twr_code = (call); twr_code != MPI_SUCCESS)     \
            return ::twinrun::aggregation::mpi_error(what, twr_code); \
    } while (0)

inline constexpr std::size_t kMessage = 2048;  // of an error that goes to other ranks
inline constexpr std::size_t kFigures = 8;
inline constexpr std::size_t kPayload = 8;

// A function that is only called while the call lasts that it is given to: keeps nothing, needs no memory.
template <class Answer>
class FunctionRef {
   public:
    template <class Function>
    FunctionRef(const Function& function)
        : function_(&function),
          call_([](const void* f) -> Answer { return (*static_cast<const Function*>(f))(); }) {}
    Answer operator()() const { return call_(function_); }

   private:
    const void* function_;
    Answer (*call_)(const void*);
};

// What ranks bring to an agreement, beside whether they are well: figures to be added, and others of which the largest counts.
struct Figures {
    std::array<double, kFigures> sums{};
    std::array<double, kFigures> largest{};
};

// What comes of it.
struct Outcome {
    std::int32_t failed_rank = -1;  // the lowest; -1: all are well
    std::int32_t code = 0;
    char message[kMessage] = "";
    std::array<std::uint64_t, kPayload> payload{};  // rank 0's
    Figures figures;
};

// Ends the job if a call that blocks takes too long.
class Watchdog {
   public:
    explicit Watchdog(double limit);  // seconds; negative: never
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    void stop();
    // In force while it lives.
    class Guard {
       public:
        explicit Guard(Watchdog& watchdog);
        ~Guard();
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;

       private:
        Watchdog& watchdog_;
    };

   private:
    void watch();
    double limit_;
    std::atomic<std::int64_t> deadline_{0};  // of the clock, in nanoseconds; 0: none
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
    std::thread thread_;
};

// Of a rank, in memory of its node.
struct alignas(128) RankSlot {
    std::atomic<std::uint32_t> wake{0};
    std::atomic<std::uint32_t> asleep{0};
    std::atomic<std::uint32_t> arrived{0};  // at which agreement it is
    std::int32_t code = 0;
    std::uint64_t same = 0;
    Figures figures;
    char message[kMessage] = "";
};

// Of a node.
struct alignas(128) NodeSlot {
    std::atomic<std::uint32_t> released{0};  // which agreement is over
    std::atomic<std::uint32_t> giving_up{0};
    std::atomic<std::uint32_t> given_up{0};  // 1 + the rank that did, with these words
    char why[kMessage] = "";
    std::atomic<std::uint64_t> progress{0};  // changes while there is any
    Outcome outcome;
};

// What a call of MPI's that does not wait may still write to when this rank has given up: members here, for a broken team is never
// freed.
struct Exchange {
    std::int64_t values[3] = {};
    std::uint64_t first = 0;
    Outcome outcome;
};

class Team {
   public:
    // [collective] comm is duplicated. mine: what is wrong on this rank already.
    static Result<std::unique_ptr<Team>> create(MPI_Comm comm, double time_limit, Result<> mine);
    ~Team();  // [collective], but for a team that is broken
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    [[nodiscard]] MPI_Comm comm() const { return comm_; }
    [[nodiscard]] MPI_Comm node_comm() const { return node_comm_; }
    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int ranks() const { return ranks_; }
    [[nodiscard]] std::uint32_t node() const { return node_of_[static_cast<std::size_t>(rank_)]; }
    [[nodiscard]] std::uint32_t nodes() const { return nodes_; }
    [[nodiscard]] std::span<const std::uint32_t> node_of() const { return node_of_; }
    [[nodiscard]] bool leader() const { return node_rank_ == 0; }
    [[nodiscard]] MPI_Comm leaders() const {
        return leaders_;
    }  // MPI_COMM_NULL where it is none, and with one node
    // A rank of this node's place in node_comm.
    [[nodiscard]] int node_rank_of(int rank) const { return node_rank_of_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] bool on_this_node(int rank) const {
        return node_of_[static_cast<std::size_t>(rank)] == node();
    }
    [[nodiscard]] double time_limit() const { return limit_; }
    [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
    // A rank did not answer in time: nothing collective is possible any more.
    [[nodiscard]] bool broken() const { return broken_.has_value(); }
    [[nodiscard]] const Error& why_broken() const { return *broken_; }
    // What went wrong on this rank keeps it from the steps that the others will wait for: they hear of it at once, on all nodes, and the
    // team is broken. Needs no memory.
    void abandon(const Error& error) noexcept;
    // Of a broken team, whose memory MPI may still write to: no thread is left, and nothing is freed.
    static void leave(std::unique_ptr<Team> team) {
        team->watchdog_.stop();
        static_cast<void>(team.release());
    }
    // Whether a rank of this node did, or heard of one, or gave up.
    [[nodiscard]] bool abandoned() const { return node_slot_ != nullptr && node_slot_->given_up.load() != 0; }

    // Wakes a rank of this node: call it after what it waits for was written.
    void notify(int rank);
    void notify_self() { notify(rank_); }
    void progress();  // tells those of this node who wait that there is some

    // Until done() is true. polls: done() asks MPI or something else that wakes nobody, and is to be called often. An error after
    // `time_limit` without progress on this node; the team is broken then. what: "rank 3's data". Who waits for one that itself
    // waits for others is more patient, so that the one nearest to the cause says it.
    using Words = FunctionRef<std::string>;
    enum class Patience : std::uint8_t { plain, more };
    Result<> wait(FunctionRef<bool> done, bool polls, Words what, Patience patience = Patience::plain);
    // Until a request of MPI's is done.
    Result<> finish(MPI_Request request, const char* what);

    // [collective] All ranks come with what they have. Where all are well: `on_node` runs on a rank of each node, then `on_root` on
    // rank 0, and may fail the whole. `same` must be the same everywhere, or it is an error that says `same_of`. The outcome, or
    // this rank's own error, or other_rank with the other's number and words.
    struct Vote {
        Result<> mine = success();
        std::uint64_t same = 0;
        const char* same_of = "arguments";
        Figures figures;
        std::function<Result<>(Outcome&)> on_node;
        std::function<Result<>(Outcome&)> on_root;
    };
    Result<Outcome> agree(const Vote& vote);

   private:
    Team(double limit) : limit_(limit), watchdog_(limit) {}
    void prepare(MPI_Comm comm);
    Result<> set_up(MPI_Comm comm);
    Result<> combine(const Vote& vote);  // of leaders, into exchange_
    Error give_up(const std::string& what);
    void tell_node(int rank, const char* why) noexcept;
    void hear_other_nodes();

    MPI_Comm comm_ = MPI_COMM_NULL;
    MPI_Comm node_comm_ = MPI_COMM_NULL;
    MPI_Comm leaders_ = MPI_COMM_NULL;
    MPI_Win window_ = MPI_WIN_NULL;  // of the slots
    int rank_ = 0;
    int ranks_ = 1;
    int node_rank_ = 0;
    int node_ranks_ = 1;
    std::uint32_t nodes_ = 1;
    std::vector<std::uint32_t> node_of_;
    std::vector<int> node_rank_of_;
    std::vector<int> leader_of_;  // of each node
    std::vector<int> here_;       // ranks of this node
    std::vector<int> told_;       // of set_up(): of each rank, its leader and its place on the node
    std::vector<std::uint32_t> number_;
    std::vector<RankSlot*> slots_;
    NodeSlot* node_slot_ = nullptr;
    RankSlot* mine_ = nullptr;
    std::uint32_t agreement_ = 0;
    double limit_;
    Exchange exchange_;
    std::optional<Error> broken_;
    Watchdog watchdog_;
};

// Memory for such a call: it stays where it is if the team is broken by the time that this goes.
template <class T>
class Kept {
   public:
    explicit Kept(const Team& team) : team_(team), memory_(std::make_unique<T>()) {}
    ~Kept() {
        if (team_.broken()) static_cast<void>(memory_.release());
        // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): a call of MPI may still use it.
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    T& operator*() const { return *memory_; }
    T* operator->() const { return memory_.get(); }

   private:
    const Team& team_;
    std::unique_ptr<T> memory_;
};

}  // namespace twinrun::aggregation
