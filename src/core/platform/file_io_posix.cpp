// The real FileSystem.

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "platform/anchored.hpp"
#include "platform/file_io_internal.hpp"
#include "platform/names_posix.hpp"
#include "platform/reserved_space.hpp"

namespace twinrun {

std::size_t most_open_files() {
    // A file may take a second descriptor, for direct reads, and there are two runs: with an eighth
    // of the limit for each of them at most half of it is taken.
    constexpr std::size_t kShare = 8;
    constexpr std::size_t kMost = 256;
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    return std::clamp<std::size_t>(limit.rlim_cur / kShare, 1, kMost);
}

using file_io::check_path;
using file_io::Descriptor;
using file_io::LastResort;
using file_io::open_at;
using file_io::system_error;

namespace {

constexpr auto kLastOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
// Linux cuts a write at 0x7ffff000 bytes
constexpr std::size_t kLargestWrite = std::size_t{1} << 30;
// Files from this size on are written around the page cache, where the bytes given allow it: that
// is up to three times as fast (2 cores, virtio disk), and does not use the application's memory
// for data that is not read soon.
constexpr std::uint64_t kDirectFrom = 32 << 20;
constexpr std::size_t kDirectWrite = 64 << 10;

bool direct_writes_wanted() {
    const char* setting = std::getenv("TWINRUN_DIRECT_WRITES");
    return setting == nullptr || std::strcmp(setting, "0") != 0;
}

// One that this process holds: see anchored.hpp. Its name in /proc is a link.
bool is_descriptor(const std::string& folder) {
    constexpr std::string_view kDescriptors = "/proc/self/fd/";
    return folder.size() > kDescriptors.size() && folder.starts_with(kDescriptors) &&
           folder.find_first_not_of("0123456789", kDescriptors.size()) == std::string::npos;
}

// A name, and the folder that has it: whoever puts a link in the folder's place afterwards changes
// nothing. Neither of both may be a link; the caller has named folders above by their real path.
class Place {
   public:
    static Result<Place> of(const std::string& path) {
        TWR_CHECK(check_path(path));
        Place place;
        const std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
        // "a/b/" is the folder b.
        const std::filesystem::path clean = whole.has_filename() ? whole : whole.parent_path();
        place.name_ = clean.has_filename() ? clean.filename().string() : ".";
        const std::string folder = clean.parent_path().string();
        if (folder.empty()) return place;
        const int links = is_descriptor(folder) ? 0 : O_NOFOLLOW;
        place.folder_ = Descriptor(open_at(AT_FDCWD, folder.c_str(), O_PATH | O_DIRECTORY | links));
        if (place.folder_.get() < 0) return refused(folder, "open the folder", errno);
        return place;
    }

    [[nodiscard]] int folder() const { return folder_.get(); }
    [[nodiscard]] const char* name() const { return name_.c_str(); }
    [[nodiscard]] bool has(struct stat& status) const {
        return ::fstatat(folder(), name(), &status, AT_SYMLINK_NOFOLLOW) == 0;
    }
    [[nodiscard]] bool is_there() const {
        struct stat status;
        return has(status);
    }
    // Of the kind of things that make twinrun stop: says so of links.
    static Error refused(const std::string& path, const std::string& what, int why) {
        struct stat status;
        if ((why == ELOOP || why == ENOTDIR) && ::lstat(path.c_str(), &status) == 0 &&
            S_ISLNK(status.st_mode)) {
            return file_io::say(ErrorCode::invalid_argument, [&] {
                return file_io::printable(path) + ": cannot " + what +
                       ": it is a symbolic link, and twinrun does not write through links: remove it, or "
                       "name "
                       "the folder that it leads to";
            });
        }
        return system_error(path, what, why);
    }

   private:
    Descriptor folder_{AT_FDCWD};
    std::string name_;
};

int open_place(const Place& place, int flags, mode_t mode = 0) {
    return open_at(place.folder(), place.name(), flags, mode);
}

Error taken(const std::string& path) {
    return file_io::say(ErrorCode::invalid_argument, [&] {
        return file_io::printable(path) +
               ": is there already, and was not made by this run: move it away, or name another path";
    });
}

class PosixOutputFile final : public OutputFile {
   public:
    PosixOutputFile(std::string path, Place place, bool created)
        : path_(std::move(path)), place_(std::move(place)), created_(created) {}

    void adopt(int descriptor) { descriptor_ = descriptor; }
    [[nodiscard]] const Place& place() const { return place_; }

    ~PosixOutputFile() override {
        if (descriptor_ < 0) return;
        struct stat ours, there;
        const bool still_ours = created_ && ::fstat(descriptor_, &ours) == 0 && place_.has(there) &&
                                ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
        if (still_ours) ::unlinkat(place_.folder(), place_.name(), 0);
        close_direct();
        ::close(descriptor_);
    }

    // Aligned writes go around the page cache from now on, if the file system lets them.
    void write_directly() {
        const int direct = open_place(place_, O_WRONLY | O_DIRECT | O_NONBLOCK | O_NOFOLLOW);
        struct stat ours, there;
        if (direct >= 0 && (::fstat(descriptor_, &ours) != 0 || ::fstat(direct, &there) != 0 ||
                            ours.st_dev != there.st_dev || ours.st_ino != there.st_ino)) {
            ::close(direct);  // another file by now
            return;
        }
        direct_ = direct;
    }

    // sized: the file gets this size at once; otherwise its length is always that of its data.
    Result<> reserve(std::uint64_t bytes, bool sized) try {
        sized_ = sized;
        const int why =
            bytes > kLastOffset ? EFBIG : file_io::reserve_space(descriptor_, bytes, sized, reserved_);
        if (why == 0) return success();
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
        std::unique_lock turn(writing_, std::defer_lock);
        if (reserved_.one_writer) turn.lock();
        for (std::size_t done = 0; done < bytes.size();) {
            const ssize_t put =
                ::pwrite(to, bytes.data() + done, std::min(bytes.size() - done, kLargestWrite),
                         static_cast<off_t>(offset + done));
            if (to != descriptor_ &&
                (put < 0 ? errno == EINVAL : !aligned(static_cast<std::uint64_t>(put)))) {
                // This file system needs other alignments, or wrote a part: the rest is written
                // through the page cache.
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
        // Before the length is synced with the data.
        if (sized_) TWR_CHECK(trim());
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

    void set_time(std::int64_t mtime_ns) override {
        // What is cut off later would change the time.
        if (descriptor_ >= 0 && trim()) file_io::set_time(descriptor_, mtime_ns);
    }

    Result<> close() override {
        if (descriptor_ < 0) return success();
        const auto trimmed = trim();
        close_direct();
        const int result = ::close(descriptor_);
        const int why = errno;
        // Closed even if it failed: to close again could hit another thread's file.
        descriptor_ = -1;
        if (!trimmed) return trimmed;
        if (result != 0 && why != EINTR) return system_error(path_, "close", why);
        return success();
    }

   private:
    // Gives back what was reserved and not used.
    Result<> trim() {
        const std::uint64_t end = end_.load(std::memory_order_relaxed);
        if (reserved_.bytes <= end) return success();
        reserved_.bytes = 0;
        // A failure costs space; of a file that has its size already, the right length too.
        while (::ftruncate(descriptor_, static_cast<off_t>(end)) != 0) {
            if (errno == EINTR) continue;
            if (!sized_) break;
            return system_error(path_, "cut to " + std::to_string(end) + " bytes", errno);
        }
        return success();
    }
    void close_direct() {
        if (const int direct = direct_.exchange(-1); direct >= 0) ::close(direct);
    }
    Error closed() const {
        return file_io::say(ErrorCode::invalid_argument,
                            [&] { return file_io::printable(path_) + ": used after close; open it again"; });
    }

    std::string path_;
    Place place_;
    int descriptor_ = -1;
    std::atomic<int> direct_ = -1;
    bool created_;
    bool sized_ = false;  // it has had its expected size since it was made
    file_io::ReservedSpace reserved_;
    std::mutex writing_;  // held while writing, if reserved_.one_writer
    std::atomic<std::uint64_t> end_{0};
    int sync_failure_ = 0;
};

int rename_new(const Place& from, const Place& to) {
    return file_io::rename_new(from.folder(), from.name(), to.folder(), to.name(), LastResort::look_first);
}

class PosixFileSystem final : public FileSystem {
   public:
    Result<std::unique_ptr<FileSystem>> anchored(const std::string& root) override try {
        auto system = std::make_unique<AnchoredFileSystem>(*this, root);
        TWR_CHECK(system->anchor());
        return std::unique_ptr<FileSystem>(std::move(system));
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(root);
    }

    Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t expected_bytes) override
        try {
        const bool large = expected_bytes >= kDirectFrom;
        // Read access too: reserve() maps large files of tmpfs.
        TWR_TRY(auto file, open(path, O_EXCL | (large ? O_RDWR : O_WRONLY), true));
        TWR_CHECK(file->reserve(expected_bytes, large));  // the destructor removes the file
        if (large && direct_writes_wanted()) file->write_directly();
        return std::unique_ptr<OutputFile>(std::move(file));
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t& size) override
        try {
        // Not O_APPEND, with which pwrite would ignore its offset.
        TWR_TRY(auto file, open(path, O_WRONLY, false, &size));
        return std::unique_ptr<OutputFile>(std::move(file));
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<> rename(const std::string& from, const std::string& to) override try {
        TWR_TRY(const Place source, Place::of(from));
        TWR_TRY(const Place target, Place::of(to));
        if (rename_new(source, target) == 0) return success();
        const int why = errno;
        if (why == EEXIST || why == ENOTEMPTY) return taken(to);
        return system_error(from, "rename to " + file_io::printable(to), why);
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(from);
    }

    Result<> replace(const std::string& from, const std::string& to) override try {
        TWR_TRY(const Place source, Place::of(from));
        TWR_TRY(const Place target, Place::of(to));
        if (::renameat(source.folder(), source.name(), target.folder(), target.name()) == 0) return success();
        return system_error(from, "rename to " + file_io::printable(to), errno);
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(from);
    }

    Result<> sync_folder(const std::string& path) override {
        TWR_CHECK(check_path(path));
        const int descriptor = open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY);
        if (descriptor < 0) return system_error(path, "open the folder", errno);
        const int why = file_io::sync_folder(descriptor);
        ::close(descriptor);
        return why == 0 ? success() : system_error(path, "bring the folder to the disk", why);
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
            // EACCES and EROFS may be said of a folder that is there; only the last one must be
            // checked.
            const int why = errno;
            struct stat status;
            if (::stat(folder.c_str(), &status) != 0) return system_error(folder, "make the folder", why);
            if (!S_ISDIR(status.st_mode)) return system_error(folder, "make the folder", EEXIST);
        }
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<bool> make_marked_folder(const std::string& path, const std::string& marker) override try {
        const std::filesystem::path whole(path);
        const std::string parent = whole.parent_path().empty() ? "." : whole.parent_path().string();
        TWR_TRY(const Place place, Place::of(path));
        if (place.is_there()) return false;
        // Made under a temporary name first, so that the folder never appears without its marker.
        const std::string name = kHiddenPrefix + random_hex(16);
        TWR_TRY(const Place hidden, Place::of((std::filesystem::path(parent) / name).string()));
        if (::mkdirat(hidden.folder(), hidden.name(), 0777) != 0)
            return system_error(path, "make the folder", errno);
        const int inside = open_place(hidden, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
        const auto give_up = [&](int why) {
            if (inside >= 0) {
                ::unlinkat(inside, marker.c_str(), 0);
                ::close(inside);
            }
            ::unlinkat(hidden.folder(), hidden.name(), AT_REMOVEDIR);
            return system_error(path, "make the folder", why);
        };
        if (inside < 0) return give_up(errno);
        const int file = open_at(inside, marker.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
        if (file < 0) return give_up(errno);
        ::close(file);
        if (rename_new(hidden, place) != 0) {
            const int why = errno;
            Error failure = give_up(why);
            if (why == EEXIST || why == ENOTEMPTY || why == ENOTDIR) return false;
            return failure;
        }
        ::close(inside);
        TWR_CHECK(sync_folder(parent));
        return true;
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<> remove(const std::string& path) override try {
        auto found = Place::of(path);
        if (!found) return found.error().code == ErrorCode::not_found ? success() : Result<>(found.error());
        const Place& place = *found;
        if (::unlinkat(place.folder(), place.name(), 0) != 0 && errno != ENOENT)
            return system_error(path, "remove", errno);
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<> remove_empty_folder(const std::string& path) override try {
        auto found = Place::of(path);
        if (!found) return found.error().code == ErrorCode::not_found ? success() : Result<>(found.error());
        const Place& place = *found;
        if (::unlinkat(place.folder(), place.name(), AT_REMOVEDIR) != 0 && errno != ENOENT &&
            errno != ENOTEMPTY && errno != EEXIST)
            return system_error(path, "remove the folder", errno);
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

    Result<> truncate(const std::string& path, std::uint64_t size) override try {
        TWR_TRY(const Place place, Place::of(path));
        int why = EFBIG;
        if (size <= kLastOffset) {
            const int descriptor = open_place(place, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
            if (descriptor < 0) return Place::refused(path, "open for writing", errno);
            int result = 0;
            do {
                result = ::ftruncate(descriptor, static_cast<off_t>(size));
                why = errno;
            } while (result != 0 && why == EINTR);
            ::close(descriptor);
            if (result == 0) return success();
        }
        return system_error(path, "cut to " + std::to_string(size) + " bytes", why);
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path);
    }

   private:
    static Result<std::unique_ptr<PosixOutputFile>> open(const std::string& path, int flags, bool created,
                                                         std::uint64_t* size = nullptr) {
        TWR_TRY(Place place, Place::of(path));
        // Before the open, so that nothing between it and the object that closes can throw.
        auto file = std::make_unique<PosixOutputFile>(path, std::move(place), created);
        // O_NONBLOCK: a pipe without a reader must not hold us up.
        const int descriptor = open_place(file->place(), O_CREAT | O_NONBLOCK | O_NOFOLLOW | flags, 0666);
        if (descriptor < 0) {
            if (errno == EEXIST) return taken(path);
            return Place::refused(path, "open for writing", errno);
        }
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

bool is_there(const std::string& path) {
    struct stat status;
    return ::lstat(path.c_str(), &status) == 0;
}

bool begins_with(const std::string& path, std::span<const std::byte> head) {
    struct stat status;
    std::array<std::byte, 16> there{};
    if (head.size() > there.size() || ::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
        return false;
    // O_NONBLOCK: it may have become a pipe just now.
    const int descriptor = open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) return false;
    std::size_t done = 0;
    while (done < head.size()) {
        const ssize_t got =
            ::pread(descriptor, there.data() + done, head.size() - done, static_cast<off_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += static_cast<std::size_t>(got);
    }
    ::close(descriptor);
    return done == head.size() && std::equal(head.begin(), head.end(), there.begin());
}

std::vector<FolderEntry> entries_of(const std::string& path) {
    std::vector<FolderEntry> entries;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()),
                                                     [](DIR* open) { return ::closedir(open); });
    if (folder == nullptr) return entries;
    while (const dirent* entry = ::readdir(folder.get())) {
        const std::string_view name = entry->d_name;
        if (name == "." || name == "..") continue;
        FolderEntry one{std::string(name), entry->d_type == DT_REG, entry->d_type == DT_DIR};
        struct stat status;
        if (entry->d_type == DT_UNKNOWN &&
            ::fstatat(::dirfd(folder.get()), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0) {
            one.is_file = S_ISREG(status.st_mode);
            one.is_folder = S_ISDIR(status.st_mode);
        }
        entries.push_back(std::move(one));
    }
    return entries;
}

std::string real_path(const std::string& path) {
    std::error_code failure;
    const auto whole = std::filesystem::absolute(path, failure);
    if (failure || path.empty()) return path;
    const auto real = std::filesystem::weakly_canonical(whole, failure);
    const std::string text = (failure ? whole : real).string();
    return text.size() > 1 && text.back() == '/' ? text.substr(0, text.size() - 1) : text;
}

std::string random_hex(int digits) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text(static_cast<std::size_t>(digits), '0');
    for (char& digit : text) {
        unsigned char bits = 0;
        // Sixteen values of 256 each: as likely as each other. It fails in sandboxes only.
        if (::getrandom(&bits, 1, 0) != 1) {
            static std::atomic<std::uint64_t> calls{0};
            const std::uint64_t seed = static_cast<std::uint64_t>(::getpid()) << 32 ^
                                       static_cast<std::uint64_t>(std::time(nullptr)) << 8 ^ ++calls;
            bits = static_cast<unsigned char>(std::hash<std::uint64_t>{}(seed * 0x9e3779b97f4a7c15ULL) >> 24);
        }
        digit = kDigits[bits & 15U];
    }
    return text;
}

std::string temporary_name(const std::string& path) { return path + "." + random_hex(16) + ".tmp"; }

FileSystem& posix_file_system() {
    static PosixFileSystem file_system;
    return file_system;
}

}  // namespace twinrun
