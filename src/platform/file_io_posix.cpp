// The real FileSystem.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>
#include <system_error>

#include "platform/file_io_internal.hpp"

namespace twinrun {

using file_io::check_path;
using file_io::system_error;

namespace {

constexpr auto kLastOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
constexpr std::size_t kLargestStep = std::size_t{1} << 30;  // Linux cuts a write at 0x7ffff000 bytes
// Files from this size on are written around the page cache, where the bytes given allow it: that is up to three times as
// fast (2 cores, virtio disk), and does not take the application's memory for what nobody reads soon.
constexpr std::uint64_t kDirectFrom = 32 << 20;
constexpr std::size_t kDirectWrite = 64 << 10;

bool direct_writes_wanted() {
    const char* wanted = std::getenv("TWINRUN_DIRECT_WRITES");
    return wanted == nullptr || std::strcmp(wanted, "0") != 0;
}

int open_retrying(const char* path, int flags, mode_t mode = 0) {
    int descriptor = -1;
    do {
        descriptor = ::open(path, flags | O_CLOEXEC, mode);
    } while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

class PosixOutputFile final : public OutputFile {
   public:
    PosixOutputFile(std::string path, bool created) : path_(std::move(path)), created_(created) {}

    void adopt(int descriptor) { descriptor_ = descriptor; }

    ~PosixOutputFile() override {
        if (descriptor_ < 0) return;
        struct stat ours, there;
        const bool still_ours = created_ && ::fstat(descriptor_, &ours) == 0 &&
                                ::lstat(path_.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
                                ours.st_ino == there.st_ino;
        if (still_ours) ::unlink(path_.c_str());
        close_direct();
        ::close(descriptor_);
    }

    // Aligned writes go around the page cache from now on, if the file system lets them.
    void write_directly() { direct_ = open_retrying(path_.c_str(), O_WRONLY | O_DIRECT | O_NONBLOCK); }

    // fallocate and not posix_fallocate: where the file system cannot, glibc's would write every block. The size stays
    // as it is, so that a file's length is always that of its data.
    Result<> reserve(std::uint64_t bytes) try {
        if (bytes == 0) return success();
        if (bytes > kLastOffset)
            return system_error(path_, "reserve " + std::to_string(bytes) + " bytes", EFBIG);
        int result = 0;
        do {
            result = ::fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
        } while (result != 0 && errno == EINTR);
        if (result == 0) {
            reserved_ = bytes;
            return success();
        }
        const int why = errno;
        // Anything else (EOPNOTSUPP, ENOSYS, EINVAL of odd file systems) leaves the answer to the writes.
        if (why != ENOSPC && why != EDQUOT && why != EFBIG && why != EIO) return success();
        return system_error(path_, "reserve " + std::to_string(bytes) + " bytes", why);
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path_);
    }

    Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override try {
        if (descriptor_ < 0) return closed();
        if (bytes.size() > kLastOffset || offset > kLastOffset - bytes.size()) {
            return system_error(path_, "write at offset " + std::to_string(offset), EFBIG);
        }
        const auto aligned = [](std::uint64_t n) { return n % kDirectAlignment == 0; };
        int to = descriptor_;
        if (const int direct = direct_.load(std::memory_order_relaxed);
            direct >= 0 && bytes.size() >= kDirectWrite && aligned(offset) && aligned(bytes.size()) &&
            aligned(reinterpret_cast<std::uintptr_t>(bytes.data())))
            to = direct;
        for (std::size_t done = 0; done < bytes.size();) {
            const ssize_t put = ::pwrite(to, bytes.data() + done, std::min(bytes.size() - done, kLargestStep),
                                         static_cast<off_t>(offset + done));
            if (to != descriptor_ &&
                (put < 0 ? errno == EINVAL : !aligned(static_cast<std::uint64_t>(put)))) {
                // This file system wants other alignments, or wrote a part: the rest takes the other way.
                to = descriptor_;
                if (put < 0) continue;
            }
            if (put > 0) {
                done += static_cast<std::size_t>(put);
            } else if (put == 0 || errno != EINTR) {
                // A regular file takes nothing only when it has no room.
                return system_error(
                    path_,
                    "write " + std::to_string(bytes.size()) + " bytes at offset " + std::to_string(offset),
                    put == 0 ? ENOSPC : errno);
            }
        }
        const std::uint64_t end = offset + bytes.size();
        std::uint64_t seen = end_.load(std::memory_order_relaxed);
        while (seen < end && !end_.compare_exchange_weak(seen, end, std::memory_order_relaxed)) {
        }
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path_);
    }

    Result<> sync() override {
        if (descriptor_ < 0) return closed();
        if (sync_failure_ == 0) {
            while (::fsync(descriptor_) != 0) {
                if (errno == EINTR) continue;
                sync_failure_ = errno;
                break;
            }
        }
        if (sync_failure_ != 0) return system_error(path_, "bring to the disk", sync_failure_);
        return success();
    }

    Result<> close() override {
        if (descriptor_ < 0) return success();
        // Gives back what was reserved and not used. A failure costs space, not data.
        if (reserved_ > end_.load(std::memory_order_relaxed)) {
            if (::ftruncate(descriptor_, static_cast<off_t>(end_.load(std::memory_order_relaxed))) != 0)
                reserved_ = 0;
        }
        close_direct();
        const int result = ::close(descriptor_);
        const int why = errno;
        descriptor_ = -1;  // closed even if it failed: to close again could hit another thread's file
        if (result != 0 && why != EINTR) return system_error(path_, "close", why);
        return success();
    }

   private:
    void close_direct() {
        if (const int direct = direct_.exchange(-1); direct >= 0) ::close(direct);
    }
    Error closed() const {
        return file_io::say(ErrorCode::invalid_argument,
                            [&] { return file_io::printable(path_) + ": used after close; open it again"; });
    }

    std::string path_;
    int descriptor_ = -1;
    std::atomic<int> direct_ = -1;
    bool created_;
    std::uint64_t reserved_ = 0;
    std::atomic<std::uint64_t> end_{0};
    int sync_failure_ = 0;
};

class PosixFileSystem final : public FileSystem {
   public:
    Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t expected_bytes) override
        try {
        TWR_CHECK(check_path(path));
        TWR_TRY(auto file, open(path, O_TRUNC, true));
        TWR_CHECK(file->reserve(expected_bytes));  // the destructor removes the file
        if (expected_bytes >= kDirectFrom && direct_writes_wanted()) file->write_directly();
        return std::unique_ptr<OutputFile>(std::move(file));
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t& size) override
        try {
        TWR_CHECK(check_path(path));
        // Not O_APPEND, with which pwrite would ignore its offset.
        TWR_TRY(auto file, open(path, 0, false, &size));
        return std::unique_ptr<OutputFile>(std::move(file));
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<> rename(const std::string& from, const std::string& to) override try {
        TWR_CHECK(check_path(from));
        TWR_CHECK(check_path(to));
        if (::rename(from.c_str(), to.c_str()) != 0) {
            const int why = errno;
            return system_error(from, "rename to " + file_io::printable(to), why);
        }
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(from);
    }

    Result<> sync_folder(const std::string& path) override {
        TWR_CHECK(check_path(path));
        const int descriptor = open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY);
        if (descriptor < 0) return system_error(path, "open the folder", errno);
        int result = 0;
        do {
            result = ::fsync(descriptor);
        } while (result != 0 && errno == EINTR);
        const int why = errno;
        ::close(descriptor);
        // Some network and user-space file systems have no such thing, and bring names to disk by themselves.
        if (result != 0 && why != EINVAL && why != ENOTSUP && why != ENOSYS) {
            return system_error(path, "bring the folder to the disk", why);
        }
        return success();
    }

    Result<> make_folders(const std::string& path) override try {
        TWR_CHECK(check_path(path));
        for (std::size_t end = 0; end != path.size();) {
            end = path.find('/', end + 1);
            if (end == std::string::npos) end = path.size();
            const std::string folder = path.substr(0, end);
            if (::mkdir(folder.c_str(), 0777) == 0) {
                auto parent = std::filesystem::path(folder).parent_path().string();
                TWR_CHECK(sync_folder(parent.empty() ? "." : parent));
                continue;
            }
            // EACCES and EROFS may be said of a folder that is there; only the last one must be checked.
            const int why = errno;
            struct stat status;
            if (::stat(folder.c_str(), &status) != 0) return system_error(folder, "make the folder", why);
            if (!S_ISDIR(status.st_mode)) return system_error(folder, "make the folder", EEXIST);
        }
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<> remove(const std::string& path) override {
        TWR_CHECK(check_path(path));
        if (::unlink(path.c_str()) != 0 && errno != ENOENT) return system_error(path, "remove", errno);
        return success();
    }

    Result<> remove_folder(const std::string& path) override try {
        TWR_CHECK(check_path(path));
        struct stat status;
        if (::lstat(path.c_str(), &status) != 0) {
            if (errno == ENOENT) return success();
            return system_error(path, "remove the folder", errno);
        }
        if (!S_ISDIR(status.st_mode)) return system_error(path, "remove as a folder", ENOTDIR);
        std::error_code failure;
        std::filesystem::remove_all(path, failure);
        if (failure) return system_error(path, "remove the folder", failure.value());
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<> remove_empty_folder(const std::string& path) override {
        TWR_CHECK(check_path(path));
        if (::rmdir(path.c_str()) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST)
            return system_error(path, "remove the folder", errno);
        return success();
    }

    Result<> truncate(const std::string& path, std::uint64_t size) override try {
        TWR_CHECK(check_path(path));
        int result = 0;
        int why = EFBIG;
        if (size <= kLastOffset) {
            do {
                result = ::truncate(path.c_str(), static_cast<off_t>(size));
                why = errno;
            } while (result != 0 && why == EINTR);
            if (result == 0) return success();
        }
        return system_error(path, "cut to " + std::to_string(size) + " bytes", why);
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

   private:
    static Result<std::unique_ptr<PosixOutputFile>> open(const std::string& path, int flags, bool created,
                                                         std::uint64_t* size = nullptr) {
        // Before the open, so that nothing between it and the object that closes can throw.
        auto file = std::make_unique<PosixOutputFile>(path, created);
        // O_NONBLOCK: a pipe without a reader must not hold us up.
        const int descriptor = open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | flags, 0666);
        if (descriptor < 0) return system_error(path, "open for writing", errno);
        struct stat status;
        if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
            ::close(descriptor);
            return Error{ErrorCode::unsupported,
                         file_io::printable(path) + ": not a regular file; name another path"};
        }
        if (size != nullptr) *size = static_cast<std::uint64_t>(status.st_size);
        file->adopt(descriptor);
        return file;
    }
};

}  // namespace

FileSystem& posix_file_system() {
    static PosixFileSystem file_system;
    return file_system;
}

}  // namespace twinrun
