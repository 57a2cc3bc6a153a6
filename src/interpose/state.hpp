// What is counted, and how: the interposition library, preloaded into a program (LD_PRELOAD),
// counts and times calls of MPI, POSIX and stdio, and writes a profile for each process.
//
//   wrapper(call):   Scope scope{call}      the time starts; an injected delay is part of the call
//                    result = the real function, found by dlsym
//                    scope.end(bytes)       count, seconds, bytes, histogram of the calling thread
//
// Invariants:
// * The program gets the real function's result and errno. If something fails here, the call is
//   still made.
// * Times of a thread add up over groups: of nested calls (MPI_File_write -> pwrite) only the
//   outermost gets the time; inner ones are counted as nested, with separate times.
// * Each thread writes only its own block, with plain stores of relaxed atomics: no lock, no shared
//   cache line. Blocks of threads
// that
//   ended are reused by later threads together with their counts, so that no merge is needed.
// * Own files are read and written by direct system calls (raw.hpp), which no wrapper sees, and
//   memory comes from mmap only: so a profile can be written in a signal handler.
// * It needs neither MPI, the C++ library nor the rest of twinrun, to build or to load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interpose/calls.hpp"

namespace twinrun::interpose {

inline constexpr std::size_t kBins = 48;  // of histograms, by floor(log2(ns)); up to 78 hours

using Number = std::atomic<std::uint64_t>;

struct Counter {
    Number count, ticks, bytes, largest;
    Number nested_count, nested_ticks, nested_bytes;
    Number histogram[kBins];
};

// The counters of a thread. depth: wrappers that it is in now; fortran: it is in a Fortran wrapper,
// whose call from C is the same call; endings: rounds of destructors seen at its end.
struct Block {
    Counter counters[kCalls];
    std::atomic<bool> taken;
    Block* next;
    int depth;
    int fortran;
    int endings;
};

// ---- time

// Ticks of the processor's counter if it runs at one rate on all cores and the kernel uses it;
// otherwise nanoseconds.
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
// The scale from all time since the start, which is more exact than the first estimate.
std::uint64_t scale_so_far();

// ---- the process

struct State {
    std::atomic<int> mode{0};  // 1: counting
    std::atomic<Block*> blocks{nullptr};
    int pid = 0;
    std::uint64_t start_ns = 0;       // monotonic
    std::uint64_t start_unix_ns = 0;  // since 1970
    // Of the program before exec in this process.
    std::uint64_t start_cpu_ns = 0, start_delay_ns = 0;
    // Between profiles of a running process; 0: none.
    std::uint64_t flush_ticks = 0;
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

void flush_if_due(std::uint64_t at);  // writes a profile of the running process if it is time

// ---- files of calls, for rules with a path

struct Target {
    int descriptor = -1;
    const char* path = nullptr;
};

// Classes of descriptors, determined at the first use and forgotten at close.
bool is_file(int descriptor);
void forget(int descriptor);

// ---- injection (rules.cpp)

// Bits of the rules of each call; 0 almost always.
// A declaration: it is initialized where it is defined.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers)
extern std::uint32_t g_rules_of[kCalls];
// Delays the call; returns true if the call must be skipped.
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

    // Whether a rule skips the call.
    [[nodiscard]] bool pretended() const { return pretended_; }

    // Stops the clock: time from here to end() is not counted.
    void stop() {
        if (block_ != nullptr) end_ = now();
    }

    void end(std::uint64_t bytes = 0) {
        if (block_ == nullptr) return;
        if (end_ == 0) end_ = now();
        count_call(block_->counters[static_cast<std::size_t>(call_)], nested_,
                   end_ > start_ ? end_ - start_ : 0, bytes);
        // Not earlier: calls of a signal handler that interrupts this function must count as
        // nested.
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

void* find_next(const char* name);  // RTLD_NEXT
// The same; if there is none, PMPI_* of a library that the program loaded.
void* find_mpi(const char* mpi_name);
void* find_mpi_variable(const char* name);

// The real function, looked up at its first use. Constant-initialised, because calls may come
// before any constructor runs.
template <typename Function>
class Next {
   public:
    constexpr explicit Next(const char* name, void* (*find)(const char*) = find_next)
        : name_(name), find_(find) {}
    Function* get() {
        void* found = found_.load(std::memory_order_acquire);
        if (__builtin_expect(found == nullptr, 0)) {
            found = find_(name_);
            // After MPI_Init a missing function stays missing: it is not searched again at each
            // call.
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

// Writes the profile of the process, replacing the last one. Safe in signal handlers.
void write_profile();
// The same at the end of the process: also removes the .begun file.
void finish_profile();
// Makes the .begun file again, for a process that continues after all.
void mark_begun();
// Sets the rank in MPI_COMM_WORLD; -1: unknown.
void set_rank(int rank, int ranks);
// Prepares profiles in this process, or in a forked child.
void start_process();
// Profiles at ends other than a return from main (process.cpp).
void watch_ends();

}  // namespace twinrun::interpose
