#include "interpose/state.hpp"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <initializer_list>

#include "interpose/raw.hpp"
#include "interpose/rules.hpp"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace twinrun::interpose {

State g_state;
Clock g_clock;
thread_local Block* t_block __attribute__((tls_model("initial-exec"))) = nullptr;

// ---- time

std::uint64_t clock_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1000000000U + static_cast<std::uint64_t>(t.tv_nsec);
}

namespace {

#if defined(__x86_64__)
// Whether the counter always runs at one rate on all cores, and the kernel itself uses it as its
// clock.
bool steady_ticks() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(0x80000007U, &a, &b, &c, &d) == 0 || (d >> 8 & 1) == 0) return false;
    char source[16] = {};
    return raw_text("/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
                    sizeof source) &&
           std::strncmp(source, "tsc", 3) == 0;
}

// Reads both clocks at one moment: of several pairs of readings the fastest.
void both(std::uint64_t& ticks, std::uint64_t& ns) {
    std::uint64_t least = ~std::uint64_t{0};
    for (int i = 0; i < 5; ++i) {
        const std::uint64_t before = __builtin_ia32_rdtsc();
        const std::uint64_t at = clock_ns();
        const std::uint64_t after = __builtin_ia32_rdtsc();
        if (after - before < least) {
            least = after - before;
            ticks = before + (after - before) / 2;
            ns = at;
        }
    }
}

std::uint64_t scale_from(std::uint64_t ticks, std::uint64_t ns) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(ns) << 32) / ticks);
}
#endif

}  // namespace

void start_clock() {
#if defined(__x86_64__)
    if (!steady_ticks()) return;
    both(g_clock.first_ticks, g_clock.first_ns);
    // 50 us give the scale to about 0.1%, enough for histograms and for processes shorter than 10
    // ms.
    std::uint64_t ticks = 0, ns = 0;
    while (clock_ns() < g_clock.first_ns + 50000) {
    }
    both(ticks, ns);
    if (ticks <= g_clock.first_ticks || ns <= g_clock.first_ns) return;
    g_clock.scale = scale_from(ticks - g_clock.first_ticks, ns - g_clock.first_ns);
    g_clock.ticks = true;
#endif
}

std::uint64_t scale_so_far() {
#if defined(__x86_64__)
    if (g_clock.ticks) {
        std::uint64_t ticks = 0, ns = 0;
        both(ticks, ns);
        if (ticks > g_clock.first_ticks && ns > g_clock.first_ns + 10000000U) {
            return scale_from(ticks - g_clock.first_ticks, ns - g_clock.first_ns);
        }
    }
#endif
    return g_clock.scale;
}

// ---- blocks

namespace {

pthread_key_t g_key;
bool g_has_key = false;

// Runs when a thread ends: frees its block for another thread, and saves its run-queue delay, which
// the kernel drops later.
void thread_ends(void* given) {
    auto* block = static_cast<Block*>(given);
    // Destructors of other keys may still make calls: waits for two more rounds of destructors.
    static_assert(PTHREAD_DESTRUCTOR_ITERATIONS >= 4);
    if (++block->endings < 3 && pthread_setspecific(g_key, block) == 0) return;
    char text[128];
    if (raw_text("/proc/thread-self/schedstat", text, sizeof text)) {
        const char* c = std::strchr(text, ' ');
        std::uint64_t ns = 0;
        if (c != nullptr) {
            for (++c; *c >= '0' && *c <= '9'; ++c)
                ns = ns * 10 + static_cast<std::uint64_t>(*c - '0');
        }
        g_state.exited_delay_ns.fetch_add(ns, std::memory_order_relaxed);
    }
    g_state.exited_threads.fetch_add(1, std::memory_order_relaxed);
    t_block = nullptr;
    block->taken.store(false, std::memory_order_release);
}

}  // namespace

Block* acquire_block() {
    const int error = errno;
    Block* block = g_state.blocks.load(std::memory_order_acquire);
    for (; block != nullptr; block = block->next) {
        bool expected = false;
        if (!block->taken.load(std::memory_order_relaxed) &&
            block->taken.compare_exchange_strong(expected, true, std::memory_order_acquire)) {
            // It may have been cancelled within a call.
            block->depth = block->fortran = block->endings = 0;
            break;
        }
    }
    if (block == nullptr) {
        void* memory =
            mmap(nullptr, sizeof(Block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            errno = error;
            return nullptr;
        }
        block = static_cast<Block*>(memory);  // zeros
        block->taken.store(true, std::memory_order_relaxed);
        block->next = g_state.blocks.load(std::memory_order_relaxed);
        while (!g_state.blocks.compare_exchange_weak(block->next, block, std::memory_order_release)) {
        }
    }
    t_block = block;
    if (g_has_key) pthread_setspecific(g_key, block);
    errno = error;
    return block;
}

void flush_if_due(std::uint64_t at) {
    std::uint64_t due = g_state.next_flush.load(std::memory_order_relaxed);
    if (at < due || !g_state.next_flush.compare_exchange_strong(due, at + g_state.flush_ticks)) return;
    const int error = errno;
    write_profile();
    errno = error;
}

// ---- descriptors

namespace {

constexpr int kDescriptors = 65536;
std::atomic<std::uint8_t> g_classes[kDescriptors];  // 0 not known, 1 file, 2 stream

}  // namespace

bool is_file(int descriptor) {
    if (descriptor < 0) return true;  // an error; counted under the call's own name
    const bool kept = descriptor < kDescriptors;
    if (kept) {
        const std::uint8_t known = g_classes[descriptor].load(std::memory_order_relaxed);
        if (known != 0) return known == 1;
    }
    if (g_state.mode.load(std::memory_order_relaxed) == 0) return true;
    const int error = errno;
    struct stat facts {};
    const bool exists = syscall(SYS_fstat, descriptor, &facts) == 0;
    errno = error;
    if (!exists) return true;
    const bool file = S_ISREG(facts.st_mode) || S_ISDIR(facts.st_mode) || S_ISBLK(facts.st_mode);
    if (kept) g_classes[descriptor].store(file ? 1 : 2, std::memory_order_relaxed);
    return file;
}

void forget(int descriptor) {
    if (descriptor >= 0 && descriptor < kDescriptors)
        g_classes[descriptor].store(0, std::memory_order_relaxed);
    forget_path(descriptor);
}

// ---- the real functions

void* find_next(const char* name) {
    const int error = errno;
    void* found = dlsym(RTLD_NEXT, name);
    errno = error;
    return found;
}

namespace {

// Collects names of MPI libraries, each terminated by 0. It does not open them here: the loader
// holds a lock during this callback, and dlopen takes a second lock. A thread that loads a library
// takes these locks in the other order.
struct Names {
    char text[16384];
    std::size_t size;
};

int note_name(dl_phdr_info* info, std::size_t, void* given) {
    auto* names = static_cast<Names*>(given);
    if (info->dlpi_name == nullptr || std::strstr(info->dlpi_name, "libmpi") == nullptr) return 0;
    const std::size_t size = std::strlen(info->dlpi_name) + 1;
    if (size > sizeof names->text - names->size) return 0;
    std::memcpy(names->text + names->size, info->dlpi_name, size);
    names->size += size;
    return 0;
}

// Looks in MPI libraries that the program loaded without making their symbols global (as Python
// does).
void* find_in_mpi(const char* name) {
    Names names;
    names.size = 0;
    dl_iterate_phdr(note_name, &names);
    void* found = nullptr;
    for (std::size_t at = 0; found == nullptr && at < names.size; at += std::strlen(names.text + at) + 1) {
        void* handle = dlopen(names.text + at, RTLD_LAZY | RTLD_NOLOAD);
        if (handle == nullptr) continue;
        found = dlsym(handle, name);
        dlclose(handle);
    }
    return found;
}

}  // namespace

void* find_mpi(const char* mpi_name) {
    const int error = errno;
    void* found = dlsym(RTLD_NEXT, mpi_name);
    if (found == nullptr) {
        // By its PMPI name, so that no other tool intercepts it.
        char name[80];
        Text text(name, sizeof name);
        if (std::strncmp(mpi_name, "MPI_", 4) == 0) text.put('P');
        if (std::strncmp(mpi_name, "mpi_", 4) == 0) text.put('p');
        text.put(mpi_name);
        found = find_in_mpi(name);
    }
    errno = error;
    return found;
}

// Searches from the first object, because the program itself may have the variable that is used (a
// copy relocation).
void* find_mpi_variable(const char* name) {
    const int error = errno;
    void* found = dlsym(RTLD_DEFAULT, name);
    if (found == nullptr) found = find_in_mpi(name);
    errno = error;
    return found;
}

// ---- the start

namespace {

const char* variable(const char* name) {
    const std::size_t n = std::strlen(name);
    for (char** at = ::environ; at != nullptr && *at != nullptr; ++at) {
        if (std::strncmp(*at, name, n) == 0 && (*at)[n] == '=') return *at + n + 1;
    }
    return nullptr;
}

bool number_of(const char* text, std::uint64_t& value) {
    if (text == nullptr || *text < '0' || *text > '9') return false;
    value = 0;
    for (; *text >= '0' && *text <= '9'; ++text)
        value = value * 10 + static_cast<std::uint64_t>(*text - '0');
    return *text == 0;
}

int launcher_rank() {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
        std::uint64_t value = 0;
        if (number_of(variable(name), value) && value < 1000000000U) return static_cast<int>(value);
    }
    return -1;
}

void put_other(Text& text, const char* name) {
    if (*name == 0 || std::strstr(g_state.others, name) != nullptr) return;
    text.put(name);
    text.put('\n');
}

// Names in a list of preloaded libraries that are not this one.
void others_of(const char* list, const char* own, Text& text) {
    char name[1024];
    while (*list != 0) {
        std::size_t n = 0;
        for (; *list != 0 && std::strchr(": \t\n\r", *list) == nullptr; ++list) {
            if (n + 1 < sizeof name) name[n++] = *list;
        }
        name[n] = 0;
        while (*list != 0 && std::strchr(": \t\n\r", *list) != nullptr)
            ++list;
        const char* last = std::strrchr(name, '/');
        const char* own_last = std::strrchr(own, '/');
        if (std::strcmp(last != nullptr ? last + 1 : name, own_last != nullptr ? own_last + 1 : own) != 0) {
            put_other(text, name);
        }
    }
}

const char* object_of(void* address) {
    Dl_info info{};
    return address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                                          : "";
}

// Other tools, preloaded or linked, that define functions which this library wraps.
void look_for_others() {
    Text text(g_state.others, sizeof g_state.others);
    const char* own = object_of(reinterpret_cast<void*>(&look_for_others));
    if (const char* list = variable("LD_PRELOAD")) others_of(list, own, text);
    char file[2048];
    if (raw_text("/etc/ld.so.preload", file, sizeof file)) others_of(file, own, text);
    const char* libc = object_of(dlsym(RTLD_NEXT, "__libc_start_main"));
    for (const char* name : {"write", "read", "open", "fopen", "fwrite"}) {
        const char* first = object_of(dlsym(RTLD_DEFAULT, name));
        if (std::strcmp(first, own) != 0 && std::strcmp(first, libc) != 0) put_other(text, first);
        const char* next = object_of(dlsym(RTLD_NEXT, name));
        // In older C libraries libpthread defined some of these functions too.
        if (std::strcmp(next, libc) != 0 && std::strstr(next, "libpthread") == nullptr) put_other(text, next);
    }
    const char* mpi = object_of(dlsym(RTLD_NEXT, "PMPI_Send"));
    if (*mpi != 0) {
        for (void* found : {dlsym(RTLD_DEFAULT, "MPI_Send"), dlsym(RTLD_NEXT, "MPI_Send")}) {
            const char* object = object_of(found);
            if (std::strcmp(object, own) != 0 && std::strcmp(object, mpi) != 0) put_other(text, object);
        }
    }
}

void child_starts() {
    if (g_state.mode.load() == 0) return;
    // Leaves the parent's blocks; the next call takes a new one.
    g_state.blocks.store(nullptr);
    t_block = nullptr;
    g_state.exited_delay_ns = 0;
    g_state.exited_threads = 0;
    g_state.rank = g_state.ranks = -1;
    g_state.mpi = false;
    reset_rules();
    start_process();
}

}  // namespace

__attribute__((constructor)) void start() {
    const int error = errno;
    const char* folder = variable("TWINRUN_INTERPOSE_FOLDER");
    if (folder == nullptr || *folder == 0) folder = variable("TWINRUN_TASK_FOLDER");
    if (folder == nullptr || *folder == 0) return;  // no folder for profiles: nothing is counted
    Text text(g_state.folder, sizeof g_state.folder);
    if (*folder != '/') {  // the program may change its working folder
        char here[2048];
        if (syscall(SYS_getcwd, here, sizeof here) <= 0) return;
        text.put(here);
        text.put('/');
    }
    text.put(folder);
    if (!text.whole()) return;
    start_clock();
    std::uint64_t value = 0;
    if (const char* seconds = variable("TWINRUN_INTERPOSE_FLUSH")) {
        if (number_of(seconds, value) && value > 0 && value < 1000000) {
            g_state.flush_ticks = static_cast<std::uint64_t>(
                (static_cast<unsigned __int128>(value * 1000000000U) << 32) / g_clock.scale);
        }
    }
    g_state.launcher_rank = launcher_rank();
    if (const char* rules = variable("TWINRUN_INTERPOSE_INJECT")) {
        if (const char* seed = variable("TWINRUN_INTERPOSE_SEED")) {
            if (number_of(seed, value)) g_rules.seed = value;
        }
        if (parse_rules(rules, g_rules)) use_rules();
    }
    look_for_others();
    g_has_key = pthread_key_create(&g_key, thread_ends) == 0;
    pthread_atfork(nullptr, nullptr, child_starts);
    start_process();
    watch_ends();
    g_state.mode.store(1, std::memory_order_release);
    errno = error;
}

__attribute__((destructor)) void finish() { finish_profile(); }

}  // namespace twinrun::interpose
