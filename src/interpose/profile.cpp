// The profile of a process: PROFILE-rank-N.json of an MPI rank, PROFILE-process-PID.json of any
// other; with -2, -3, ... if the name is taken. docs/reference/interpose.md has its keys. Until a
// process has written its last profile there is a file .profile-PID-START.begun, by which readers
// find processes that were killed.
#include <sched.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "interpose/raw.hpp"
#include "interpose/rules.hpp"
#include "interpose/state.hpp"

namespace twinrun::interpose {

namespace {

// Largest profile; all calls with full histograms take about 200 KB.
constexpr std::size_t kSize = 1U << 20;

std::atomic<int> g_writer{0};  // the thread that writes
char g_name[3400] = {};        // name of the profile; empty: none is written yet
char g_mark[3400] = {};        // name of the .begun file; empty: none

std::uint64_t number_after_space(const char* text) {
    const char* c = std::strchr(text, ' ');
    std::uint64_t value = 0;
    if (c != nullptr) {
        for (++c; *c >= '0' && *c <= '9'; ++c)
            value = value * 10 + static_cast<std::uint64_t>(*c - '0');
    }
    return value;
}

std::uint64_t cpu_ns() {
    timespec cpu{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return static_cast<std::uint64_t>(cpu.tv_sec) * 1000000000U + static_cast<std::uint64_t>(cpu.tv_nsec);
}

struct Entry {  // linux_dirent64
    std::uint64_t inode, offset;
    unsigned short length;
    unsigned char type;
    char name[1];
};

// Time that threads waited for a core: of living threads, and of ended threads that made a call.
// False: the system does not report it.
bool run_queue_delay(std::uint64_t& ns) {
    ns = g_state.exited_delay_ns.load(std::memory_order_relaxed);
    const int folder = raw_open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    if (folder < 0) return false;
    bool any = false;
    alignas(8) char buffer[8192];
    for (;;) {
        const long n = syscall(SYS_getdents64, folder, buffer, sizeof buffer);
        if (n <= 0) break;
        for (long at = 0; at < n;) {
            const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
            at += entry->length;
            if (entry->name[0] == '.') continue;
            char path[64];
            Text text(path, sizeof path);
            text.put("/proc/self/task/");
            text.put(entry->name);
            text.put("/schedstat");
            char line[128];
            if (raw_text(path, line, sizeof line)) {
                ns += number_after_space(line);
                any = true;
            }
        }
    }
    raw_close(folder);
    return any;
}

// The overhead of a counted call in ns: a wrapper's work without the call, on a separate block.
// Caches are warm, so this is a lower bound.
std::uint32_t own_cost() {
    std::uint32_t known = g_state.own_ns.load(std::memory_order_relaxed);
    if (known != 0) return known;
    void* memory = mmap(nullptr, sizeof(Block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 0;
    auto* block = static_cast<Block*>(memory);
    constexpr int kRounds = 512;
    std::uint64_t least = ~std::uint64_t{0};
    for (int repetition = 0; repetition < 3; ++repetition) {
        const std::uint64_t start = clock_ns();
        for (int i = 0; i < kRounds; ++i) {
            Block* volatile seen = block;  // the cost of looking up the thread's block
            const bool nested = seen->depth++ != 0;
            const std::uint64_t from = now();
            const std::uint64_t to = now();
            --seen->depth;
            count_call(seen->counters[static_cast<std::size_t>(Call::write)], nested, to - from, 8);
        }
        const std::uint64_t taken = clock_ns() - start;
        if (taken < least) least = taken;
    }
    munmap(memory, sizeof(Block));
    known = static_cast<std::uint32_t>(least / kRounds) + 1;
    g_state.own_ns.store(known, std::memory_order_relaxed);
    return known;
}

struct Sums {
    std::uint64_t count, ticks, bytes, largest, nested_count, nested_ticks, nested_bytes, histogram[kBins];
};

void sum_of(std::size_t call, Sums& sums) {
    std::memset(&sums, 0, sizeof sums);
    const auto load = [](const Number& number) { return number.load(std::memory_order_relaxed); };
    for (const Block* block = g_state.blocks.load(std::memory_order_acquire); block != nullptr;
         block = block->next) {
        const Counter& counter = block->counters[call];
        sums.count += load(counter.count);
        sums.ticks += load(counter.ticks);
        sums.bytes += load(counter.bytes);
        const std::uint64_t largest = load(counter.largest);
        if (largest > sums.largest) sums.largest = largest;
        sums.nested_count += load(counter.nested_count);
        sums.nested_ticks += load(counter.nested_ticks);
        sums.nested_bytes += load(counter.nested_bytes);
        for (std::size_t i = 0; i < kBins; ++i)
            sums.histogram[i] += load(counter.histogram[i]);
    }
}

void key(Text& text, const char* name) {
    text.put(",\n \"");
    text.put(name);
    text.put("\": ");
}

void number_or_null(Text& text, int value) {
    if (value < 0) {
        text.put("null");
    } else {
        text.put(static_cast<std::uint64_t>(value));
    }
}

std::uint64_t put_calls(Text& text, std::uint64_t scale) {
    const auto seconds = [&](std::uint64_t ticks) {
        text.put_seconds(static_cast<std::uint64_t>((static_cast<unsigned __int128>(ticks) * scale) >> 32));
    };
    std::uint64_t all = 0;
    bool first = true;
    for (std::size_t i = 0; i < kCalls; ++i) {
        Sums sums;
        sum_of(i, sums);
        if (sums.count + sums.nested_count == 0) continue;
        all += sums.count + sums.nested_count;
        text.put(first ? "\n  " : ",\n  ");
        first = false;
        text.put_string(kCallInfos[i].name);
        text.put(": {\"group\": ");
        text.put_string(kGroupNames[static_cast<std::size_t>(kCallInfos[i].group)]);
        text.put(", \"count\": ");
        text.put(sums.count);
        text.put(", \"seconds\": ");
        seconds(sums.ticks);
        text.put(", \"bytes\": ");
        text.put(sums.bytes);
        text.put(", \"largest_seconds\": ");
        seconds(sums.largest);
        text.put(", \"histogram\": [");
        std::size_t bins = kBins;
        while (bins > 0 && sums.histogram[bins - 1] == 0)
            --bins;
        for (std::size_t bin = 0; bin < bins; ++bin) {
            if (bin > 0) text.put(", ");
            text.put(sums.histogram[bin]);
        }
        text.put(']');
        if (sums.nested_count > 0) {
            text.put(", \"nested\": {\"count\": ");
            text.put(sums.nested_count);
            text.put(", \"seconds\": ");
            seconds(sums.nested_ticks);
            text.put(", \"bytes\": ");
            text.put(sums.nested_bytes);
            text.put('}');
        }
        text.put('}');
    }
    return all;
}

void put_injected(Text& text) {
    text.put("{\"seed\": ");
    text.put(g_rules.seed);
    text.put(", \"rules\": [");
    for (std::size_t i = 0; i < g_rules.count; ++i) {
        const Rule& rule = g_rules.rules[i];
        if (i > 0) text.put(", ");
        text.put("{\"rule\": ");
        text.put_string(rule.text);
        text.put(", \"calls\": ");
        text.put(rule.seen.load(std::memory_order_relaxed));
        text.put(", \"count\": ");
        text.put(rule.done.load(std::memory_order_relaxed));
        text.put(", \"asked_seconds\": ");
        text.put_seconds(rule.asked_ns.load(std::memory_order_relaxed));
        text.put(", \"seconds\": ");
        text.put_seconds(rule.spent_ns.load(std::memory_order_relaxed));
        text.put('}');
    }
    text.put("]}");
}

void put_others(Text& text) {
    text.put('[');
    char name[1024];
    bool first = true;
    for (const char* c = g_state.others; *c != 0;) {
        std::size_t n = 0;
        for (; *c != 0 && *c != '\n'; ++c) {
            if (n + 1 < sizeof name) name[n++] = *c;
        }
        name[n] = 0;
        if (*c == '\n') ++c;
        if (!first) text.put(", ");
        first = false;
        text.put_string(name);
    }
    text.put(']');
}

void put_program(Text& text) {
    char program[1024];
    const long n = raw_readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    text.put_string(program);
}

void put_host(Text& text) {
    utsname names{};
    uname(&names);
    text.put_string(names.nodename);
}

void put_profile(Text& text) {
    const std::uint64_t scale = scale_so_far();
    const std::uint64_t wall = clock_ns() - g_state.start_ns;
    text.put("{\"version\": 1");
    key(text, "rank");
    number_or_null(text, g_state.mpi ? g_state.rank : -1);
    key(text, "ranks");
    number_or_null(text, g_state.mpi ? g_state.ranks : -1);
    key(text, "launcher_rank");
    number_or_null(text, g_state.launcher_rank);
    key(text, "host");
    put_host(text);
    key(text, "pid");
    text.put(static_cast<std::uint64_t>(g_state.pid));
    key(text, "program");
    put_program(text);
    key(text, "start");
    text.put_seconds(g_state.start_unix_ns);
    key(text, "end");
    text.put_seconds(g_state.start_unix_ns + wall);
    key(text, "wall");
    text.put_seconds(wall);
    key(text, "cpu");
    text.put_seconds(cpu_ns() - g_state.start_cpu_ns);
    key(text, "run_queue_delay");
    std::uint64_t delay = 0;
    if (run_queue_delay(delay)) {
        text.put_seconds(delay > g_state.start_delay_ns ? delay - g_state.start_delay_ns : 0);
    } else {
        text.put("null");
    }
    key(text, "calls");
    text.put('{');
    const std::uint64_t all = put_calls(text, scale);
    text.put('}');
    key(text, "injected");
    put_injected(text);
    key(text, "errors");
    text.put('[');
    if (g_rules.error[0] != 0) {
        char error[640];
        Text whole(error, sizeof error);
        whole.put("nothing is injected: ");
        whole.put(g_rules.error);
        text.put_string(error);
    }
    text.put(']');
    key(text, "other_preloads");
    put_others(text);
    key(text, "timer");
    text.put_string(g_clock.ticks ? "tsc" : "clock_gettime");
    key(text, "own_cost_seconds");
    text.put_seconds(all * own_cost());
    text.put("}\n");
}

void put_name(std::uint64_t number) {
    const bool ranked = g_state.mpi && g_state.rank >= 0;
    Text name(g_name, sizeof g_name);
    name.put(g_state.folder);
    name.put(ranked ? "/PROFILE-rank-" : "/PROFILE-process-");
    name.put(static_cast<std::uint64_t>(ranked ? g_state.rank : g_state.pid));
    if (number > 1) {
        name.put('-');
        name.put(number);
    }
    name.put(".json");
}

// Gives a complete file a name that no other process has taken. Uses a link, so that there is never
// an empty file of that name. On file systems without links the file is empty for a moment.
bool name_it(const char* temporary) {
    if (g_name[0] != 0) return raw_rename(temporary, g_name);
    for (std::uint64_t number = 1; number < 10000; ++number) {
        put_name(number);
        if (syscall(SYS_linkat, AT_FDCWD, temporary, AT_FDCWD, g_name, 0) == 0) {
            raw_unlink(temporary);
            return true;
        }
        if (errno == EEXIST) continue;
        const int file = raw_open(g_name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (file >= 0) {
            raw_close(file);
            return raw_rename(temporary, g_name);
        }
        if (errno != EEXIST) break;
    }
    g_name[0] = 0;
    return false;
}

// Processes on other nodes and in other containers may have the same PID, and may share the folder.
void put_own_name(Text& name, const char* suffix) {
    name.put(g_state.folder);
    name.put("/.profile-");
    name.put(static_cast<std::uint64_t>(g_state.pid));
    name.put('-');
    name.put(g_state.start_unix_ns);
    name.put(suffix);
}

bool write_whole(const Text& text) {
    char temporary[3400];
    Text name(temporary, sizeof temporary);
    put_own_name(name, ".tmp");
    const int file = raw_open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (file < 0) return false;
    const bool written = raw_write_all(file, text.data(), text.size());
    raw_close(file);
    if (written && name_it(temporary)) return true;
    raw_unlink(temporary);
    return false;
}

}  // namespace

void mark_begun() {
    // In vfork's child the mark is the parent's.
    if (raw_pid() != g_state.pid || g_mark[0] != 0) return;
    Text name(g_mark, sizeof g_mark);
    put_own_name(name, ".begun");
    const int file = name.whole() ? raw_open(g_mark, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644) : -1;
    if (file < 0) {
        g_mark[0] = 0;
        return;
    }
    char buffer[8192];
    Text text(buffer, sizeof buffer);
    text.put("{\"pid\": ");
    text.put(static_cast<std::uint64_t>(g_state.pid));
    text.put(", \"host\": ");
    put_host(text);
    text.put(", \"program\": ");
    put_program(text);
    text.put("}\n");
    raw_write_all(file, text.data(), text.size());
    raw_close(file);
}

void start_process() {
    timespec t{};
    clock_gettime(CLOCK_REALTIME, &t);
    g_state.start_unix_ns =
        static_cast<std::uint64_t>(t.tv_sec) * 1000000000U + static_cast<std::uint64_t>(t.tv_nsec);
    g_state.start_ns = clock_ns();
    g_state.start_cpu_ns = cpu_ns();
    g_state.start_delay_ns = 0;
    run_queue_delay(g_state.start_delay_ns);
    g_state.pid = raw_pid();
    g_name[0] = 0;
    g_writer = 0;
    g_mark[0] = 0;  // in fork's child it is the parent's
    mark_begun();
    if (g_state.flush_ticks != 0) g_state.next_flush = now() + g_state.flush_ticks;
}

void set_rank(int rank, int ranks) {
    if (g_name[0] != 0) raw_unlink(g_name);  // the profile from before this process was a rank
    g_name[0] = 0;
    g_state.rank = rank;
    g_state.ranks = ranks;
    g_state.mpi = true;
}

namespace {

// Returns false if this call writes no profile of this process.
bool write_own() {
    if (g_state.mode.load(std::memory_order_acquire) == 0) return false;
    // The counts are not this process' own in a child that shares the parent's memory (vfork), or
    // that was created without fork().
    if (raw_pid() != g_state.pid) return false;
    const int error = errno;
    const int self = static_cast<int>(syscall(SYS_gettid));
    int expected = 0;
    for (int tries = 0; !g_writer.compare_exchange_strong(expected, self); expected = 0) {
        // A profile is being written already: by the thread that this signal handler interrupted,
        // or by a stopped thread.
        if (expected == self || ++tries > 10000) {
            errno = error;
            return false;
        }
        sched_yield();
    }
    bool written = false;
    void* memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
        Text text(static_cast<char*>(memory), kSize);
        put_profile(text);
        written = text.whole() && write_whole(text);
        munmap(memory, kSize);
    }
    g_writer.store(0);
    errno = error;
    return written;
}

}  // namespace

void write_profile() { write_own(); }

void finish_profile() {
    const int error = errno;
    if (write_own() && g_mark[0] != 0) {
        raw_unlink(g_mark);
        g_mark[0] = 0;
    }
    errno = error;
}

}  // namespace twinrun::interpose
