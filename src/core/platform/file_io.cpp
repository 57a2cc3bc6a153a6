#include "platform/file_io.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>

#include "base/checksum.hpp"
#include "platform/file_io_internal.hpp"

namespace twinrun {

using file_io::system_error;

namespace {

// Linux cuts a read at 0x7ffff000 bytes; a round number below keeps direct continuations aligned.
constexpr std::size_t kLargestStep = std::size_t{1} << 30;
// Attempts in a row without a byte (EINTR, EAGAIN) before a read is given up: never reached on a
// sound system.
constexpr int kMostFruitless = 10000;

ErrorCode code_of(int error_number) {
    switch (error_number) {
        case ENOENT:
        case ENOTDIR: return ErrorCode::not_found;
        case ENOSPC:
        case EDQUOT: return ErrorCode::no_space;
        case ENOMEM: return ErrorCode::out_of_memory;
        default: return ErrorCode::io;
    }
}

const char* advice_for(int error_number) {
    switch (error_number) {
        case ENOENT:
        case ENOTDIR: return "check the path";
        case ENOSPC: return "free some space or choose another file system";
        case EDQUOT: return "free some space or have the quota raised";
        case EACCES:
        case EPERM: return "check owner and permissions";
        case EROFS: return "choose a file system that is mounted writable";
        case EMFILE:
        case ENFILE: return "close some files or raise the limit (ulimit -n)";
        case ENOMEM: return "free some memory";
        case EFBIG: return "choose a file system or a limit (ulimit -f) that allows larger files";
        case EBADF: return "the file was closed too early, which is a defect in the program";
        case EIO: return "look for device errors in the system's log";
        case EISDIR: return "name a file, not a folder";
        default: return "look at the path and its file system";
    }
}

FileStamp stamp_from(const struct stat& status) {
    return {static_cast<std::uint64_t>(status.st_size),
            static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
}

bool same_file(int left, int right) {
    struct stat a, b;
    return ::fstat(left, &a) == 0 && ::fstat(right, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

namespace file_io {

void set_time(int descriptor, std::int64_t mtime_ns) {
    constexpr std::int64_t kSecond = 1'000'000'000;
    struct timespec times[2] = {};
    times[0].tv_nsec = UTIME_OMIT;
    times[1].tv_nsec = static_cast<long>((mtime_ns % kSecond + kSecond) % kSecond);
    times[1].tv_sec = static_cast<time_t>((mtime_ns - times[1].tv_nsec) / kSecond);
    static_cast<void>(::futimens(descriptor, times));
}

std::string printable(const std::string& path) {
    std::string line = path;
    for (char& c : line) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return line;
}

Error out_of_memory(const std::string& what) {
    return say(ErrorCode::out_of_memory,
               [&] { return printable(what) + ": out of memory; free some memory or ask for less at once"; });
}

Error system_error(const std::string& path, std::string_view what, int error_number) {
    return say(code_of(error_number), [&] {
        char buffer[256];
        std::string words = ::strerror_r(error_number, buffer, sizeof buffer);
        // "No space left" → "no space left", but not "RFS specific error".
        if (words.size() > 1 && words[1] >= 'a' && words[1] <= 'z' && words[0] >= 'A' && words[0] <= 'Z') {
            words[0] = static_cast<char>(words[0] - 'A' + 'a');
        }
        return printable(path).append(": cannot ").append(what) + ": " + words + "; " +
               advice_for(error_number);
    });
}

Result<> check_path(const std::string& path) {
    if (path.empty()) {
        return say(ErrorCode::invalid_argument, [] { return "the path is empty; name a file or folder"; });
    }
    if (path.find('\0') != std::string::npos) {
        return say(ErrorCode::invalid_argument,
                   [&] { return printable(path) + ": a path cannot hold a NUL; check the path"; });
    }
    return success();
}

Result<> check_request(const ReadRequest& request) {
    if (request.file == nullptr || (request.to == nullptr && request.bytes != 0)) {
        return say(ErrorCode::invalid_argument,
                   [] { return "a read request lacks a file or a buffer; give both"; });
    }
    const auto refuse = [&](const char* why) {
        return say(ErrorCode::invalid_argument, [&] {
            return printable(request.file->path()) + ": cannot read " + std::to_string(request.bytes) +
                   " bytes at offset " + std::to_string(request.offset) + ": " + why;
        });
    };
    constexpr auto last = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (request.bytes > last || request.offset > last - request.bytes) {
        return refuse("no file is that long; check the offset");
    }
    if (request.at_least > request.bytes) return refuse("at_least exceeds the length; lower it");
    if (request.direct && (request.offset % kDirectAlignment != 0 || request.bytes % kDirectAlignment != 0 ||
                           reinterpret_cast<std::uintptr_t>(request.to) % kDirectAlignment != 0)) {
        return refuse("a direct read needs offset, length and buffer at multiples of 4096; align them");
    }
    return success();
}

Error used_after_fork() {
    return say(ErrorCode::invalid_argument,
               [] { return "a read queue cannot be used after fork; make one in the child"; });
}

Result<> deliver(std::vector<ReadCompletion>& finished, std::vector<ReadCompletion>& out) try {
    const std::size_t size = out.size() + finished.size();
    if (size > out.capacity()) out.reserve(std::max(size, 2 * out.capacity()));
    for (auto& completion : finished)
        out.push_back(std::move(completion));
    finished.clear();
    return success();
} catch (const std::bad_alloc&) {
    return out_of_memory("read queue");
} catch (const std::length_error&) {
    return out_of_memory("read queue");
}

namespace {

// size: of the file now.
Error truncated(const ReadRequest& request, std::size_t needed, std::size_t there,
                std::optional<std::uint64_t> size) {
    return say(ErrorCode::damaged, [&] {
        return printable(request.file->path()) + ": truncated: " + std::to_string(needed) +
               " bytes requested at offset " + std::to_string(request.offset) + ", only " +
               std::to_string(there) + " there; the file has " + (size ? std::to_string(*size) : "?") +
               " bytes (" + std::to_string(request.file->size()) +
               " when it was opened); write or copy it again";
    });
}

}  // namespace

ReadProgress::ReadProgress(const ReadRequest& request)
    : request_(request),
      needed_(request.at_least == 0 ? request.bytes : request.at_least),
      direct_(request.direct ? request.file->direct_descriptor() : -1),
      descriptor_(request.file->descriptor()) {}

ReadProgress::Step ReadProgress::next() const {
    const std::uint64_t offset = request_.offset + done_;
    const std::size_t rest = std::min(request_.bytes - done_, kLargestStep);
    // A direct read that came short at an odd place has met the end of the file; the page cache
    // tells whether it moved.
    const bool direct = direct_ >= 0 && done_ % kDirectAlignment == 0;
    return {direct ? direct_ : descriptor_, offset, rest, request_.to + done_};
}

bool ReadProgress::advance(std::int64_t result) {
    if (result > 0) {
        done_ += static_cast<std::size_t>(result);
        fruitless_ = 0;
        would_block_ = false;
        return done_ >= needed_;
    }
    if (result == -EINVAL && direct_ >= 0 && done_ % kDirectAlignment == 0) {
        direct_ = -1;  // a device with larger sectors than our alignment
        return false;
    }
    // ECANCELED: the thread that submitted the read ended before it was done.
    const bool again = result == -EINTR || result == -EAGAIN || result == -ECANCELED;
    if (again && ++fruitless_ < kMostFruitless) {
        would_block_ = true;
        return false;
    }
    fail(result);
    return true;
}

void ReadProgress::fail(std::int64_t result) {
    if (result != 0) {
        char what[96];
        std::snprintf(what, sizeof what, "read %zu bytes at offset %" PRIu64, needed_, request_.offset);
        error_ = system_error(request_.file->path(), what, static_cast<int>(-result));
        return;
    }
    struct stat status;
    const bool known = ::fstat(descriptor_, &status) == 0;
    error_ = truncated(request_, needed_, done_,
                       known ? std::optional(static_cast<std::uint64_t>(status.st_size)) : std::nullopt);
}

void ReadProgress::read_remote() {
    auto read = read_now(request_);
    if (read) {
        done_ = needed_;
    } else {
        error_ = std::move(read).error();
    }
}

ReadCompletion ReadProgress::take_completion() { return {request_.tag, done_, std::move(error_)}; }

}  // namespace file_io

// ---- InputFile ----

struct InputFile::Lock {
    std::mutex mutex;
};

Result<std::shared_ptr<InputFile>> InputFile::open(const std::string& path, std::uint64_t most_in_memory,
                                                   const HeldFolder* folder) try {
    TWR_CHECK(file_io::check_path(path));
    auto file = std::shared_ptr<InputFile>(new InputFile());
    file->path_ = path;
    file->lock_ = std::make_unique<Lock>();
    if (auto elsewhere = remote_file(path)) {
        file->stamp_.size = elsewhere->size;
        file->reader_ = std::move(elsewhere->reader);
        if (file->size() != 0 && file->size() <= most_in_memory) TWR_CHECK(file->read_all());
        return file;
    }
    // O_NONBLOCK: a pipe must not hold us up before we can see that it is one.
    const auto [from, name] = HeldFolder::place_of(folder, path);
    do {
        file->descriptor_ = ::openat(from, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (file->descriptor_ < 0 && errno == EINTR);
    if (file->descriptor_ < 0) return system_error(path, "open for reading", errno);
    struct stat status;
    if (::fstat(file->descriptor_, &status) != 0) return system_error(path, "look up the size", errno);
    if (S_ISDIR(status.st_mode)) return system_error(path, "read as a file", EISDIR);
    if (!S_ISREG(status.st_mode)) {
        return Error{ErrorCode::unsupported,
                     file_io::printable(path) + ": not a regular file; copy its bytes to a file first"};
    }
    file->stamp_ = stamp_from(status);
    if (file->size() != 0 && file->size() <= most_in_memory) {
        TWR_CHECK(file->read_all());
        return file;
    }
    // We plan our reads. Otherwise the kernel would read far beyond small ones (megabytes on some
    // machines).
    static_cast<void>(::posix_fadvise(file->descriptor_, 0, 0, POSIX_FADV_RANDOM));
    // Left on, io_uring would answer EAGAIN instead of waiting for the disk. No other flag of the
    // file can be set this way.
    if (::fcntl(file->descriptor_, F_SETFL, 0) != 0) return system_error(path, "set up for reading", errno);
    return file;
} catch (const std::bad_alloc&) {
    return file_io::out_of_memory(path);
}

std::shared_ptr<InputFile> InputFile::elsewhere(std::string name, std::uint64_t bytes, RangeReader read) {
    auto file = std::shared_ptr<InputFile>(new InputFile());
    file->path_ = std::move(name);
    file->lock_ = std::make_unique<Lock>();
    file->stamp_.size = bytes;
    file->reader_ = std::make_shared<const RangeReader>(std::move(read));
    return file;
}

Result<> InputFile::read_all() {
    const auto bytes = static_cast<std::size_t>(size());
    auto content = std::make_unique_for_overwrite<std::byte[]>(bytes);
    TWR_CHECK(read_at(0, {content.get(), bytes}));
    content_ = std::move(content);
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
    return success();
}

InputFile::~InputFile() {
    if (direct_ >= 0) ::close(direct_);
    if (descriptor_ >= 0) ::close(descriptor_);
}

int InputFile::direct_descriptor() {
    if (in_memory() || remote()) return -1;
    const std::lock_guard guard(lock_->mutex);
    if (direct_ != -2) return direct_;
    direct_ = -1;
    char self[64];
    std::snprintf(self, sizeof self, "/proc/self/fd/%d", descriptor_);
    // By descriptor, as the path may name another file by now; by path where /proc is not mounted.
    for (const char* name : {static_cast<const char*>(self), path_.c_str()}) {
        const int opened = ::open(name, O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (opened < 0) continue;
        if (same_file(opened, descriptor_)) {
            direct_ = opened;
            break;
        }
        ::close(opened);
    }
    return direct_;
}

namespace {

struct CachestatRange {
    std::uint64_t offset, bytes;
};
struct Cachestat {
    std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
};
constexpr long kCachestatNumber = 451;  // the same on every architecture; Linux 6.5

}  // namespace

double InputFile::cached_share(std::uint64_t offset, std::uint64_t bytes, int samples) const {
    if (offset >= size() || bytes == 0 || samples <= 0) return 0;
    if (in_memory()) return 1;
    if (remote()) return 0;
    bytes = std::min(bytes, size() - offset);
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t first = offset / page;
    const std::uint64_t pages = (offset + bytes - 1) / page - first + 1;
    const std::uint64_t looks = std::min(pages, static_cast<std::uint64_t>(samples));
    // The middle of each of `looks` equal parts. Two products, so that no file size overflows.
    const auto page_of = [&](std::uint64_t look) {
        return first + pages / looks * look + (pages % looks) * look / looks + pages / looks / 2;
    };

    std::uint64_t cached = 0;
    bool known = true;
    for (std::uint64_t look = 0; look < looks && known; ++look) {
        CachestatRange range{page_of(look) * page, page};
        Cachestat counts{};
        known = ::syscall(kCachestatNumber, descriptor_, &range, &counts, 0U) == 0;
        if (counts.cached > 0) ++cached;
    }
    if (known) return static_cast<double>(cached) / static_cast<double>(looks);

    // Older kernels. Where mincore may not tell (a file of somebody else) it says that all is
    // cached: the better error, as reading cached data from the device costs more than reading
    // device data through the cache.
    const std::size_t length = static_cast<std::size_t>(pages * page);
    void* map = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor_, static_cast<off_t>(first * page));
    if (map == MAP_FAILED) return 1;
    cached = 0;
    for (std::uint64_t look = 0; look < looks; ++look) {
        unsigned char resident = 1;
        ::mincore(static_cast<std::byte*>(map) + (page_of(look) - first) * page,
                  static_cast<std::size_t>(page), &resident);
        cached += resident & 1U;
    }
    ::munmap(map, length);
    return static_cast<double>(cached) / static_cast<double>(looks);
}

void InputFile::will_need(std::uint64_t offset, std::uint64_t bytes) const {
    if (bytes == 0 || offset >= size() || in_memory() || remote()) return;
    static_cast<void>(::posix_fadvise(descriptor_, static_cast<off_t>(offset),
                                      static_cast<off_t>(std::min(bytes, size() - offset)),
                                      POSIX_FADV_WILLNEED));
}

Result<> InputFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
    ReadRequest request;
    request.file = const_cast<InputFile*>(this);  // only a direct request would change it
    request.offset = offset;
    request.bytes = to.size();
    request.to = to.data();
    TWR_CHECK(file_io::check_request(request));
    if (to.empty()) return success();
    if (in_memory() || remote()) {
        const std::uint64_t there = offset < size() ? std::min<std::uint64_t>(to.size(), size() - offset) : 0;
        if (there < to.size())
            return file_io::truncated(request, to.size(), static_cast<std::size_t>(there), size());
        if (!in_memory()) return (*reader_)(path_, offset, to);
        std::memcpy(to.data(), content_.get() + offset, to.size());
        return success();
    }
    file_io::ReadProgress progress(request);
    for (;;) {
        const auto step = progress.next();
        const ssize_t got = ::pread(step.descriptor, step.to, step.bytes, static_cast<off_t>(step.offset));
        if (progress.advance(got < 0 ? -errno : got)) break;
    }
    auto completion = progress.take_completion();
    if (completion.error) return std::move(*completion.error);
    return success();
}

Result<> read_now(const ReadRequest& request) {
    const std::size_t end = request.at_least != 0 ? request.at_least : request.bytes;
    // Bytes for alignment only cost nothing in the page cache, but elsewhere they do.
    const std::size_t begin = request.file->remote() ? std::min(request.skip, end) : 0;
    return request.file->read_at(request.offset + begin, {request.to + begin, end - begin});
}

// ---- queues ----

bool uring_available() {
    static const bool available = file_io::probe_uring().ok();
    return available;
}

Result<std::unique_ptr<ReadQueue>> make_read_queue(const ReadQueueOptions& options) try {
    ReadBackend backend = options.backend;
    if (backend == ReadBackend::automatic) {
        const char* text = std::getenv("TWINRUN_IO");
        const std::string_view wish = text == nullptr ? "" : text;
        if (wish == "uring") {
            backend = ReadBackend::uring;
        } else if (wish == "pread") {
            backend = ReadBackend::pread;
        } else if (!wish.empty()) {
            return Error{ErrorCode::invalid_argument,
                         "TWINRUN_IO=" + file_io::printable(std::string(wish)) +
                             ": no such way to read; set uring or pread, or unset it"};
        }
    }
    if (backend == ReadBackend::uring) {
        TWR_TRY(auto queue, file_io::make_uring_queue(options));
        return file_io::make_routed_queue(std::move(queue));
    }
    if (backend == ReadBackend::automatic && uring_available()) {
        // A ring can be refused later than the probe: locked memory, descriptors, a sandbox entered
        // meanwhile.
        auto queue = file_io::make_uring_queue(options);
        if (queue.ok()) return file_io::make_routed_queue(std::move(queue).value());
    }
    TWR_TRY(auto queue, file_io::make_pread_queue(options));
    return file_io::make_routed_queue(std::move(queue));
} catch (const std::bad_alloc&) {
    return file_io::out_of_memory("read queue");
}

// ---- helpers ----

Result<FileStamp> stamp_of(const std::string& path, const HeldFolder* folder) {
    TWR_CHECK(file_io::check_path(path));
    const auto [from, name] = HeldFolder::place_of(folder, path);
    struct stat status;
    if (::fstatat(from, name, &status, 0) != 0) return system_error(path, "look up size and time", errno);
    return stamp_from(status);
}

std::int64_t own_time(std::int64_t mtime_ns, const std::string& temporary) {
    constexpr std::uint64_t kSecond = 1'000'000'000;
    return mtime_ns - static_cast<std::int64_t>(xxh3(std::string_view(temporary)) % kSecond);
}

Result<FileStamp> close_at_own_time(OutputFile& file, const std::string& temporary) {
    TWR_TRY(const FileStamp synced, stamp_of(temporary));
    file.set_time(own_time(synced.mtime_ns, temporary));
    TWR_CHECK(file.close());
    // What storage made of it: its clock may be coarse.
    return stamp_of(temporary);
}

Result<std::vector<std::byte>> read_whole_file(const std::string& path, std::uint64_t limit) try {
    TWR_TRY(const auto file, InputFile::open(path));
    if (file->size() > limit) {
        return Error{ErrorCode::damaged, file_io::printable(path) + ": " + std::to_string(file->size()) +
                                             " bytes, at most " + std::to_string(limit) +
                                             " expected; check that it is the right file"};
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(file->size()));
    TWR_CHECK(file->read_at(0, bytes));
    return bytes;
} catch (const std::bad_alloc&) {
    return file_io::out_of_memory(path);
} catch (const std::length_error&) {
    return file_io::out_of_memory(path);
}

}  // namespace twinrun
