// What is counted, and how: the interposition library, preloaded into a program (LD_PRELOAD), counts and times calls of MPI, POSIX
// and stdio, and writes a profile for each process.
//
//   wrapper(call):   Scope scope{call}         the time starts; an injected delay is part of the call
//                    result = the real function, found by dlsym
//                    scope.end(bytes)          count, seconds, bytes, histogram of the thread that called
//
// Invariants:
// * The program gets what the real function returns, and errno. Whatever fails here, the call is made all the same.
// * Groups of a thread add up: of calls within calls (MPI_File_write -> pwrite) only the outermost has its time; inner ones are counted
//   as nested, with their time apart.
// * Each thread writes only its own block, with plain stores of relaxed atomics: no lock, no shared cache line. Blocks of threads that
//   ended go to later threads, counts and all, so that nothing has to be merged before a profile is written.
// * Own files are read and written by system calls alone (raw.hpp), which no wrapper sees, and nothing is allocated but by mmap: a
//   profile can be written from a signal handler.
// * Nothing of MPI, of the C++ library or of the rest of twinrun is needed to build or to load it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interpose/calls.hpp"

namespace twinrun::interpose {

inline constexpr std::size_t kBins = 48;  // of histograms: floor(log2(ns)), up to 78 hours

using Number = std::atomic<std::uint64_t>;

struct Counter {
    Number count, ticks, bytes, largest;
    Number nested_count, nested_ticks, nested_bytes;
    Number histogram[kBins];
};

// A thread's. depth: how many wrappers it is in; fortran: it is in a wrapper of a Fortran entry, whose C call is the same one; endings:
// how often the thread was seen to end.
struct Block {
    Counter counters[kCalls];
    std::atomic<bool> taken;
    Block* next;
    int depth;
    int fortran;
    int endings;
};

// ---- time

// Ticks of the processor's counter where it runs at one rate on all cores and the kernel trusts it, else nanoseconds.
std::uint64_t clock_ns();

struct Clock {
    bool ticks = false;
    std::uint64_t scale = std::uint64_t{1} << 32;  // ns a tick, 32.32 bits
    std::uint64_t first_ticks = 0, first_ns = 0;
};
// A declaration: it is initialized where it is defined.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers)
extern Clock g_clock;

inline std::uint64_t now() {
#if defined(__x86_64__)
    if (g_clock.ticks) return __builtin_ia32_rdtsc();
#endif
    return clock_ns();
}
inline std::uint64_t to_ns(std::uint64_t ticks) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(ticks) * g_clock.scale) >> 32);
}
void start_clock();
// The scale from all of the time so far, which is more exact than that of the start.
std::uint64_t scale_so_far();

// ---- the process

struct State {
    std::atomic<int> mode{0};  // 1: counting
    std::atomic<Block*> blocks{nullptr};
    int pid = 0;
    std::uint64_t start_ns = 0;                          // monotonic
    std::uint64_t start_unix_ns = 0;                     // since 1970
    std::uint64_t start_cpu_ns = 0, start_delay_ns = 0;  // of the program that this one was before exec
    std::uint64_t flush_ticks = 0;                       // between profiles while it runs; 0: none
    Number next_flush{0};
    Number exited_delay_ns{0};  // run-queue delay of threads that ended
    std::atomic<int> exited_threads{0};
    int rank = -1, ranks = -1, launcher_rank = -1;
    std::atomic<bool> mpi{false};
    char folder[3072] = {};
    char others[4096] = {};  // other preloaded tools: one a line
    std::atomic<std::uint32_t> own_ns{0};
};
// Declarations: they are initialized where they are defined.
// NOLINTBEGIN(bugprone-dynamic-static-initializers)
extern State g_state;
extern thread_local Block* t_block __attribute__((tls_model("initial-exec")));
// NOLINTEND(bugprone-dynamic-static-initializers)

Block* acquire_block();

// The calling thread's block; null: not counting.
inline Block* own_block() {
    Block* block = t_block;
    if (__builtin_expect(block != nullptr, 1)) return block;
    return g_state.mode.load(std::memory_order_acquire) == 0 ? nullptr : acquire_block();
}

inline void add(Number& number, std::uint64_t value) {
    number.store(number.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

inline void count_call(Counter& counter, bool nested, std::uint64_t ticks, std::uint64_t bytes) {
    if (nested) {
        add(counter.nested_count, 1);
        add(counter.nested_ticks, ticks);
        add(counter.nested_bytes, bytes);
        return;
    }
    const std::uint64_t ns = to_ns(ticks);
    const std::size_t bin = ns == 0 ? 0 : 63U - static_cast<std::size_t>(__builtin_clzll(ns));
    add(counter.count, 1);
    add(counter.ticks, ticks);
    if (bytes != 0) add(counter.bytes, bytes);
    add(counter.histogram[bin < kBins ? bin : kBins - 1], 1);
    if (ticks > counter.largest.load(std::memory_order_relaxed)) {
        counter.largest.store(ticks, std::memory_order_relaxed);
    }
}

void flush_if_due(std::uint64_t at);  // a profile while the program runs

// ---- what a call works on, for rules with a path

struct Target {
    int descriptor = -1;
    const char* path = nullptr;
};

// Classes of descriptors, found at their first use and forgotten when they are closed.
bool is_file(int descriptor);
void forget(int descriptor);

// ---- injection (rules.cpp)

// Bits of the rules of each call; 0 almost always.
// A declaration: it is initialized where it is defined.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers)
extern std::uint32_t g_rules_of[kCalls];
// Delays; true: the call is to be pretended.
bool inject(Call call, Target target);

// ---- the scope of a call

class Scope {
   public:
    explicit Scope(Call call, Target target = {}) : block_(own_block()), call_(call) {
        if (block_ == nullptr) return;
        nested_ = block_->depth++ != 0;
        start_ = now();
        if (__builtin_expect(g_rules_of[static_cast<std::size_t>(call)] != 0, 0) && !nested_) {
            pretended_ = inject(call, target);
        }
    }

    // A rule says that the call is not to be made.
    [[nodiscard]] bool pretended() const { return pretended_; }

    // Stops the time: what follows, up to end(), is not the call's.
    void stop() {
        if (block_ != nullptr) end_ = now();
    }

    void end(std::uint64_t bytes = 0) {
        if (block_ == nullptr) return;
        if (end_ == 0) end_ = now();
        count_call(block_->counters[static_cast<std::size_t>(call_)], nested_,
                   end_ > start_ ? end_ - start_ : 0, bytes);
        // Only now: the calls of a signal handler that comes in between are nested ones, which have counters of their own.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        --block_->depth;
        if (__builtin_expect(g_state.flush_ticks != 0, 0) && !nested_) flush_if_due(end_);
    }

   private:
    Block* block_;
    Call call_;
    bool nested_ = false, pretended_ = false;
    std::uint64_t start_ = 0, end_ = 0;
};

// ---- the real functions

void* find_next(const char* name);     // RTLD_NEXT
void* find_mpi(const char* mpi_name);  // the same; else PMPI_* of a library that the program loaded itself
void* find_mpi_variable(const char* name);

// A function behind ours, looked up at its first use. Constant-initialised: calls may come before any constructor.
template <typename Function>
class Next {
   public:
    constexpr explicit Next(const char* name, void* (*find)(const char*) = find_next)
        : name_(name), find_(find) {}
    Function* get() {
        void* found = found_.load(std::memory_order_acquire);
        if (__builtin_expect(found == nullptr, 0)) {
            found = find_(name_);
            // Once MPI is there all of it is: what is missing is not looked for at each call.
            if (found == nullptr && g_state.mpi.load(std::memory_order_relaxed)) found = absent();
            found_.store(found, std::memory_order_release);
        }
        return found == absent() ? nullptr : reinterpret_cast<Function*>(found);
    }

   private:
    static void* absent() { return &g_state; }

    std::atomic<void*> found_{nullptr};
    const char* name_;
    void* (*find_)(const char*);
};

// ---- profiles (profile.cpp)

// Writes the process's profile, in place of its last one. Safe in signal handlers.
void write_profile();
// The same where the process ends: it has no mark any more (profile.cpp) that its profile is to come.
void finish_profile();
// That mark: the process goes on, though its end seemed near.
void mark_begun();
// The process is a rank of MPI_COMM_WORLD; -1: not known.
void set_rank(int rank, int ranks);
// The process, or a child, begins.
void start_process();
// Profiles at ends that are no return from main (process.cpp).
void watch_ends();

}  // namespace twinrun::interpose
