#include "platform/reserved_space.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <ctime>

namespace twinrun::file_io {

namespace {

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // Linux 6.1
#endif

constexpr std::uint64_t kHuge = 2 << 20;
// Asked for at once. Each request makes all processors give back pages that they hold for later, so
// there should be few. They begin small, because what is expensive is known only afterwards.
constexpr std::uint64_t kFirstWindow = 4 << 20;
constexpr std::uint64_t kLargestWindow = 16 << 20;
// Seconds of the processor for a byte in huge pages, at most. They take 0.06 ns a byte where memory
// is at hand, and 0.5 to 1.5 where the system must move other pages first. To reserve and fill a
// byte in small pages takes 0.25 ns more than in huge ones.
constexpr double kWorth = 0.25e-9;
// Not counted: the clock's grain, and what the first request costs by itself.
constexpr double kSlack = 0.5e-3;

// After a try that was too expensive the next 2 files get small pages, then 4, and so on to 64:
// what moves pages needs time.
class Patience {
   public:
    [[nodiscard]] bool tries() {
        std::uint32_t left = waiting_.load(std::memory_order_relaxed);
        while (left != 0 && !waiting_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
        }
        return left == 0;
    }
    void failed() {
        const std::uint32_t times = std::min(failures_.load(std::memory_order_relaxed) + 1, kMost);
        failures_.store(times, std::memory_order_relaxed);
        waiting_.store(1U << times, std::memory_order_relaxed);
    }
    void worked() { failures_.store(0, std::memory_order_relaxed); }

   private:
    static constexpr std::uint32_t kMost = 6;
    std::atomic<std::uint32_t> failures_ = 0;  // in a row
    std::atomic<std::uint32_t> waiting_ = 0;   // files that are not tried
};
Patience patience;

double processor_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Address space for a window of a file. It is never read or written here: a file that somebody cuts
// short cannot harm this process.
class Window {
   public:
    Window(int descriptor, std::uint64_t offset, std::uint64_t bytes) : all_(bytes + kHuge), bytes_(bytes) {
        base_ = ::mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base_ == MAP_FAILED) return;
        const auto address = reinterpret_cast<std::uintptr_t>(base_);
        void* const aligned = static_cast<std::byte*>(base_) + (kHuge - address % kHuge) % kHuge;
        file_ = ::mmap(aligned, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor,
                       static_cast<off_t>(offset));
    }
    ~Window() {
        if (base_ != MAP_FAILED) ::munmap(base_, all_);
    }
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

    // Gives this part of the file huge pages. Each needs one small page that is there.
    [[nodiscard]] bool collapse() const {
        return file_ != MAP_FAILED && ::madvise(file_, bytes_, kCollapse) == 0;
    }

   private:
    std::uint64_t all_;
    std::uint64_t bytes_;
    void* base_ = MAP_FAILED;
    void* file_ = MAP_FAILED;
};

// Gives a file of zeros huge pages from its beginning on, until they are all there, or the system
// has none, or they cost more than they save.
void take_huge_pages(int descriptor, std::uint64_t bytes) {
    if (!patience.tries()) return;
    std::uint64_t window = kFirstWindow;
    for (std::uint64_t at = 0; bytes - at >= kHuge;
         at += window, window = std::min(2 * window, kLargestWindow)) {
        window = std::min(window, (bytes - at) / kHuge * kHuge);
        const double start = processor_seconds();
        const char zero = 0;
        for (std::uint64_t page = at; page < at + window; page += kHuge) {
            if (::pwrite(descriptor, &zero, 1, static_cast<off_t>(page)) != 1) return;
        }
        const bool collapsed = Window(descriptor, at, window).collapse();
        if (!collapsed || processor_seconds() - start > kSlack + static_cast<double>(window) * kWorth) {
            patience.failed();
            return;
        }
    }
    patience.worked();
}

}  // namespace

int reserve_space(int descriptor, std::uint64_t bytes, bool sized, ReservedSpace& got) {
    got = {};
    if (bytes == 0) return 0;
    struct statfs system;
    if (sized && ::fstatfs(descriptor, &system) == 0 && system.f_type == TMPFS_MAGIC) {
        got.one_writer = true;
        if (::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) {
            got.bytes = bytes;
            take_huge_pages(descriptor, bytes);
        }
    }
    // fallocate and not posix_fallocate: where the file system cannot, glibc's would write every
    // block.
    int result = 0;
    do {
        result = ::fallocate(descriptor, sized ? 0 : FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        got.bytes = bytes;
        return 0;
    }
    // Anything else (EOPNOTSUPP, ENOSYS, EINVAL of odd file systems) leaves the answer to the
    // writes.
    const int why = errno;
    return why == ENOSPC || why == EDQUOT || why == EFBIG || why == EIO ? why : 0;
}

}  // namespace twinrun::file_io
