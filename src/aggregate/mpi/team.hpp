// The ranks of an aggregate: their nodes, how they wait for each other, and how they agree.
//
// Ranks of one node use shared memory: each sleeps on a word of its own (a futex), and another rank
// wakes it by changing the word. Before that it watches the word, and gives way, for a short time.
// A rank that waits long uses no CPU time, however many ranks share a core.
// Nodes use messages and collective operations of their leaders, one rank of each node. Nothing
// here blocks in MPI: requests are tested until a deadline, so that a rank that died or hangs
// becomes an error on the others (`time_limit`). MPI's functions for windows and new communicators
// can only block: for them a watchdog ends the job.
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

// An error with MPI's text for `code`.
[[nodiscard]] Error mpi_error(const std::string& what, int code);
#define TWR_MPI(what, call)                                           \
    do {                                                              \
        if (const int twr_code = (call); twr_code != MPI_SUCCESS)     \
            return ::twinrun::aggregation::mpi_error(what, twr_code); \
    } while (0)

inline constexpr std::size_t kMessage = 2048;  // bytes of an error's text for other ranks
inline constexpr std::size_t kFigures = 8;
inline constexpr std::size_t kPayload = 8;

// A reference to a function, for arguments that are called only during the call. Allocates nothing.
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

// Figures that ranks contribute to an agreement: sums over all ranks, and maxima over all ranks.
struct Figures {
    std::array<double, kFigures> sums{};
    std::array<double, kFigures> largest{};
};

// The result of an agreement.
struct Outcome {
    std::int32_t failed_rank = -1;  // the lowest failed rank; -1: none
    std::int32_t code = 0;
    char message[kMessage] = "";
    std::array<std::uint64_t, kPayload> payload{};  // rank 0's
    Figures figures;
};

// Ends the job if a blocking call takes too long.
class Watchdog {
   public:
    explicit Watchdog(double limit);  // seconds; negative: never
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    void stop();
    // Watches from its construction to its destruction.
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
    std::atomic<std::int64_t> deadline_{0};  // by Clock, in nanoseconds; 0: none
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
    std::thread thread_;
};

// State of one rank, in the shared memory of its node.
struct alignas(128) RankSlot {
    std::atomic<std::uint32_t> wake{0};
    std::atomic<std::uint32_t> asleep{0};
    std::atomic<std::uint32_t> arrived{0};  // number of its current agreement
    std::int32_t code = 0;
    std::uint64_t same = 0;
    Figures figures;
    char message[kMessage] = "";
};

// State of one node, in its shared memory.
struct alignas(128) NodeSlot {
    std::atomic<std::uint32_t> released{0};  // number of the last finished agreement
    std::atomic<std::uint32_t> giving_up{0};
    std::atomic<std::uint32_t> given_up{0};  // 1 + the rank that gave up, with this text
    char why[kMessage] = "";
    std::atomic<std::uint64_t> progress{0};  // changes while ranks make progress
    Outcome outcome;
};

// Buffers of nonblocking MPI calls, which MPI may still write to after this rank gave up. They are
// members of the team, because a broken team is never freed.
struct Exchange {
    std::int64_t values[3] = {};
    std::uint64_t first = 0;
    Outcome outcome;
};

class Team {
   public:
    // [collective] comm is duplicated. mine: an error that this rank has already.
    static Result<std::unique_ptr<Team>> create(MPI_Comm comm, double time_limit, Result<> mine);
    ~Team();  // [collective] unless the team is broken
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
    // MPI_COMM_NULL on ranks that are no leaders, and with one node.
    [[nodiscard]] MPI_Comm leaders() const { return leaders_; }
    // The number in node_comm of a rank of this node.
    [[nodiscard]] int node_rank_of(int rank) const { return node_rank_of_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] bool on_this_node(int rank) const {
        return node_of_[static_cast<std::size_t>(rank)] == node();
    }
    [[nodiscard]] double time_limit() const { return limit_; }
    [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
    // True after a rank did not answer in time: no collective call is possible any more.
    [[nodiscard]] bool broken() const { return broken_.has_value(); }
    [[nodiscard]] const Error& why_broken() const { return *broken_; }
    // For an error that keeps this rank from steps which the others will wait for. The others get
    // it at once, on all nodes, and the team is broken. Allocates nothing.
    void abandon(const Error& error) noexcept;
    // For a broken team, whose memory MPI may still write to: ends its thread and frees nothing.
    static void leave(std::unique_ptr<Team> team) {
        team->watchdog_.stop();
        static_cast<void>(team.release());
    }
    // Whether a rank of this node called abandon(), received another rank's, or gave up waiting.
    [[nodiscard]] bool abandoned() const { return node_slot_ != nullptr && node_slot_->given_up.load() != 0; }

    // Wakes a rank of this node. Call it after writing what the rank waits for.
    void notify(int rank);
    void notify_self() { notify(rank_); }
    void progress();  // extends the deadline of waiting ranks on this node

    // Waits until done() is true. polls: done() asks something that wakes no rank, such as MPI, and
    // must be called often. After `time_limit` without progress on this node it returns an error,
    // and the team is broken. what: for the error, as "rank 3's data". Patience::more: for a rank
    // that waits for a rank which itself waits, so that the rank nearest to the cause reports the
    // error.
    using Words = FunctionRef<std::string>;
    enum class Patience : std::uint8_t { plain, more };
    Result<> wait(FunctionRef<bool> done, bool polls, Words what, Patience patience = Patience::plain);
    // Waits for a request of MPI, with the same deadline.
    Result<> finish(MPI_Request request, const char* what);

    // [collective] An agreement of all ranks. If `mine` is success on all of them, `on_node` runs
    // on one rank of each node, then `on_root` on rank 0; an error of these fails the agreement.
    // `same` must be equal on all ranks; otherwise the error begins with `differs`. Returns the
    // outcome, or this rank's own error, or other_rank with the number and text of the failed rank.
    struct Vote {
        Result<> mine = success();
        std::uint64_t same = 0;
        const char* differs = "arguments differ from those of rank 0";
        Figures figures;
        std::function<Result<>(Outcome&)> on_node;
        std::function<Result<>(Outcome&)> on_root;
        // For ranks that may come as late as the program likes: no time limit, and MPI makes
        // progress meanwhile, because the late rank may wait for a message of this one.
        bool patient = false;
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
    bool own_cores_ = false;  // the node has a core for each of its ranks
    std::uint32_t nodes_ = 1;
    std::vector<std::uint32_t> node_of_;
    std::vector<int> node_rank_of_;
    std::vector<int> leader_of_;  // of each node
    std::vector<int> here_;       // ranks of this node
    // In set_up(): of each rank its leader and its place on the node.
    std::vector<int> leaders_and_places_;
    std::vector<std::uint32_t> number_;
    std::vector<RankSlot*> slots_;
    NodeSlot* node_slot_ = nullptr;
    RankSlot* mine_ = nullptr;
    std::uint32_t agreement_ = 0;
    double limit_;
    Exchange exchange_;
    std::optional<Error> broken_;
    bool patient_ = false;  // during an agreement (Vote::patient)
    Watchdog watchdog_;
};

// Memory for nonblocking MPI calls (see Exchange): if the team is broken when this is destroyed,
// the memory is not freed.
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
