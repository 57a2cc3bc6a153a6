#include "faults.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace {

std::mutex mutex;
std::string function_that_fails;
int calls_before = 0;
int error_to_give = 0;
bool did_fail = false;
std::string function_that_acts;
std::function<void()> action;
bool noting = false;
std::vector<faults::Noted> notes;
std::atomic<std::uint64_t> most_a_call{0};

thread_local long allocations_before = -1;
thread_local bool allocation_did_fail = false;

void* allocate(std::size_t bytes) {
    if (allocations_before >= 0 && allocations_before-- == 0) {
        allocation_did_fail = true;
        throw std::bad_alloc();
    }
    void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

bool now(const char* function) {
    std::function<void()> act;
    {
        const std::lock_guard lock(mutex);
        if (function_that_acts == function) act = std::exchange(action, nullptr);
    }
    if (act) act();
    const std::lock_guard lock(mutex);
    if (function_that_fails != function) return false;
    if (calls_before > 0) {
        --calls_before;
        return false;
    }
    if (error_to_give == faults::kKill) ::raise(SIGKILL);
    if (error_to_give == faults::kStop) ::kill(::getpid(), SIGSTOP);
    did_fail = true;
    errno = error_to_give;
    return true;
}

template <class Function>
Function* real(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool zeros(const void* bytes, std::size_t count) {
    const auto* const at = static_cast<const char*>(bytes);
    return count == 0 || (*at == 0 && std::memcmp(at, at + 1, count - 1) == 0);
}

bool note(const iovec* vectors, int count, off_t offset, ssize_t& answer) {
    const std::lock_guard lock(mutex);
    if (!noting) return false;
    std::uint64_t bytes = 0;
    for (int i = 0; i < count; ++i) {
        if (!zeros(vectors[i].iov_base, vectors[i].iov_len)) return false;
        bytes += vectors[i].iov_len;
    }
    notes.push_back({static_cast<std::uint64_t>(offset), bytes});
    answer = static_cast<ssize_t>(bytes);
    return true;
}

std::size_t cut(std::size_t bytes) {
    const std::uint64_t most = most_a_call.load();
    return most == 0 ? bytes : std::min<std::size_t>(bytes, most);
}

}  // namespace

namespace faults {

void fail(const std::string& function, int after, int error_number) {
    const std::lock_guard lock(mutex);
    function_that_fails = function;
    calls_before = after;
    error_to_give = error_number;
    did_fail = false;
}

void act(const std::string& function, std::function<void()> what) {
    const std::lock_guard lock(mutex);
    function_that_acts = function;
    action = std::move(what);
}

bool failed() {
    const std::lock_guard lock(mutex);
    return did_fail;
}

void fail_allocation(long after) {
    allocations_before = after;
    allocation_did_fail = false;
}

bool allocation_failed() { return allocation_did_fail; }

void note_zeros(bool on) {
    const std::lock_guard lock(mutex);
    noting = on;
    notes.clear();
}

std::vector<Noted> noted() {
    const std::lock_guard lock(mutex);
    return notes;
}

void cut_calls(std::uint64_t most) { most_a_call = most; }

}  // namespace faults

#define SEEN __attribute__((visibility("default")))

SEEN void* operator new(std::size_t bytes) { return allocate(bytes); }
SEEN void* operator new[](std::size_t bytes) { return allocate(bytes); }
SEEN void operator delete(void* memory) noexcept { std::free(memory); }
SEEN void operator delete[](void* memory) noexcept { std::free(memory); }
SEEN void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
SEEN void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" {

SEEN ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
    if (now("write")) return -1;
    const iovec vector{const_cast<void*>(bytes), count};
    ssize_t answer = 0;
    if (note(&vector, 1, offset, answer)) return answer;
    return real<decltype(pwrite)>("pwrite")(file, bytes, cut(count), offset);
}

SEEN ssize_t pwritev(int file, const iovec* vectors, int count, off_t offset) {
    if (now("write")) return -1;
    ssize_t answer = 0;
    if (note(vectors, count, offset, answer)) return answer;
    if (most_a_call.load() != 0)
        return real<decltype(pwrite)>("pwrite")(file, vectors->iov_base, cut(vectors->iov_len), offset);
    return real<decltype(pwritev)>("pwritev")(file, vectors, count, offset);
}

SEEN ssize_t pread(int file, void* bytes, size_t count, off_t offset) {
    if (now("read")) return -1;
    return real<decltype(pread)>("pread")(file, bytes, cut(count), offset);
}

SEEN ssize_t preadv(int file, const iovec* vectors, int count, off_t offset) {
    if (now("read")) return -1;
    if (most_a_call.load() != 0)
        return real<decltype(pread)>("pread")(file, vectors->iov_base, cut(vectors->iov_len), offset);
    return real<decltype(preadv)>("preadv")(file, vectors, count, offset);
}

SEEN int fsync(int file) {
    if (now("fsync")) return -1;
    return real<decltype(fsync)>("fsync")(file);
}

SEEN int rename(const char* from, const char* to) noexcept {
    if (now("rename")) return -1;
    return real<int(const char*, const char*)>("rename")(from, to);
}

SEEN int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                   unsigned flags) noexcept {
    if (now("rename")) return -1;
    return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from, to_folder,
                                                                                to, flags);
}

SEEN int open(const char* path, int flags, ...) {
    if (std::strstr(path, "/data") != nullptr && now("open")) return -1;
    mode_t mode = 0;
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
        va_list list;
        va_start(list, flags);
        mode = va_arg(list, mode_t);
        va_end(list);
    }
    return real<int(const char*, int, ...)>("open")(path, flags, mode);
}

}  // extern "C"
