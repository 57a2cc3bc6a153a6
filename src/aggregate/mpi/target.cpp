#include "aggregate/mpi/target.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "aggregate/plan/lustre.hpp"
#include "base/checked.hpp"

namespace twinrun::aggregation {

namespace {

// Direct stretches. On a local file system every writer copies to the page cache, and an aggregator
// adds a second copy; for shorter stretches the system calls cost more than that copy (measured
// with 16 ranks on two cores). On a network file system each writer of a block takes its lock:
// there only long stretches of whole blocks are direct.
constexpr std::uint64_t kDirectHere = std::uint64_t{16} << 10;
constexpr std::uint64_t kDirectAway = std::uint64_t{16} << 20;

// Magic numbers of network file systems, from statfs(2) or their own headers: NFS, SMB (three),
// Lustre, GPFS, Ceph, BeeGFS, OrangeFS, FUSE, 9P, AFS (two), PanFS.
constexpr std::array<std::uint32_t, 14> kNetworks{0x6969,     0x517B,     0xFF534D42, 0xFE534D42, 0x0BD00BD0,
                                                  0x47504653, 0x00C36400, 0x19830326, 0x20030528, 0x65735546,
                                                  0x01021997, 0x5346414F, 0x6B414653, 0xAAD7AAEA};

Result<> no_other_kind(const std::string& path) {
    struct stat about {};
    if (::stat(path.c_str(), &about) != 0) {
        if (errno == ENOENT) return success();
        return file_error(path, "stat", errno);
    }
    if (S_ISREG(about.st_mode)) return success();
    return Error{
        ErrorCode::invalid_argument,
        path + ": is there and is not a regular file (a folder, a device, a pipe): it is not replaced"};
}

Result<> open_and(const std::string& path, int flags, const char* what, int (*action)(int)) {
    const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (file < 0) return file_error(path, "open", errno);
    const int failed = action == nullptr ? 0 : action(file);
    const int error_number = errno;
    ::close(file);
    if (failed != 0) return file_error(path, what, error_number);
    return success();
}

}  // namespace

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

std::uint64_t random_number() {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) == static_cast<ssize_t>(sizeof number)) return number;
    timespec now{};  // reached in sandboxes only
    ::clock_gettime(CLOCK_REALTIME, &now);
    return (static_cast<std::uint64_t>(now.tv_sec) << 32 ^ static_cast<std::uint64_t>(now.tv_nsec) << 2 ^
            static_cast<std::uint64_t>(::getpid())) *
           0x9e3779b97f4a7c15ULL;
}

std::string partial_name(const std::string& path, std::uint64_t number) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016" PRIx64, number);
    const std::size_t slash = path.rfind('/');
    const std::size_t begin = slash == std::string::npos ? 0 : slash + 1;
    const std::string suffix = std::string(".twr-partial.") + digits;
    // If the file name itself is that long, the suffix alone is the name.
    return path.size() - begin + suffix.size() <= NAME_MAX ? path + suffix : path.substr(0, begin) + suffix;
}

PartialFile::~PartialFile() {
    if (file_ < 0) return;
    if (there()) ::unlink(name_.c_str());
    ::close(file_);
}

bool PartialFile::there() const {
    struct stat ours {};
    struct stat found {};
    return ::fstat(file_, &ours) == 0 && ::lstat(name_.c_str(), &found) == 0 && ours.st_dev == found.st_dev &&
           ours.st_ino == found.st_ino;
}

Result<> PartialFile::create(const std::string& path, const std::string& name, const Striping& striping) {
    TWR_CHECK(no_other_kind(path));
    path_ = path;
    name_ = name;
    if (striping.asked() && on_lustre(folder_of(path))) {
        if (const auto striped = create_striped(name_, striping)) {
            file_ = *striped;
            return success();
        }
        // Nothing else has the name: what is there is what could not be striped.
        ::unlink(name_.c_str());
    }
    file_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file_ < 0) return file_error(name_, "create", errno);
    return success();
}

Result<> PartialFile::commit(bool sync) {
    const auto renaming = [&](int error_number) {
        return file_error(path_, "rename of '" + name_ + "' to it", error_number);
    };
    if (!there()) {
        return Error{ErrorCode::io,
                     name_ + ": somebody renamed, removed or replaced it since this program made it, so " +
                         path_ + " stays as it was"};
    }
    // Without sync the names are exchanged and then the old file is removed. A rename onto a file
    // would make ext4 write the new file's data to storage at once (its option auto_da_alloc),
    // which takes as long as the write itself.
    const auto exchange = [&] {
        return ::renameat2(AT_FDCWD, name_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0;
    };
    if (!sync && exchange()) {
        // Checked when this object was created; since then another file may have taken the name.
        struct stat old {};
        int why =
            ::lstat(name_.c_str(), &old) == 0 && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode) ? EEXIST : 0;
        if (why == 0 && ::unlink(name_.c_str()) != 0 && errno != ENOENT) why = errno;
        if (why != 0) {
            static_cast<void>(exchange());
            return renaming(why);
        }
    } else if (::rename(name_.c_str(), path_.c_str()) != 0) {
        return renaming(errno);
    }
    ::close(std::exchange(file_, -1));
    if (sync) TWR_CHECK(open_and(folder_of(path_), O_RDONLY | O_DIRECTORY, "fsync", ::fsync));
    return success();
}

Result<> touch_file(const std::string& path, const Striping& striping) {
    TWR_CHECK(no_other_kind(path));
    struct stat about {};
    if (::stat(path.c_str(), &about) == 0) return open_and(path, O_WRONLY, "open", nullptr);
    if (::lstat(path.c_str(), &about) == 0) {
        return Error{
            ErrorCode::invalid_argument,
            path +
                ": is a symbolic link to a file that is not there: nothing is made elsewhere; remove "
                "the link, or name the file itself"};
    }
    if (striping.asked() && on_lustre(folder_of(path))) {
        if (const auto striped = create_striped(path, striping)) ::close(*striped);
    }
    return open_and(path, O_WRONLY | O_CREAT | O_NOFOLLOW, "create", nullptr);
}

Result<> sync_file(const std::string& path, bool follow) {
    return open_and(path, O_WRONLY | (follow ? 0 : O_NOFOLLOW), "fsync", ::fsync);
}

Result<struct stat> facts_of_file(const std::string& path) {
    struct stat about {};
    if (::stat(path.c_str(), &about) != 0) return file_error(path, "stat", errno);
    if (!S_ISREG(about.st_mode)) return Error{ErrorCode::invalid_argument, path + ": is not a regular file"};
    return about;
}

Result<std::uint64_t> file_size(const std::string& path) {
    TWR_TRY(const struct stat about, facts_of_file(path));
    return static_cast<std::uint64_t>(about.st_size);
}

Result<StorageTraits> storage_traits(const std::string& path, std::uint64_t block, std::uint64_t unit) {
    struct stat about {};
    struct statfs system {};
    if (::stat(path.c_str(), &about) != 0) return file_error(path, "stat", errno);
    if (::statfs(path.c_str(), &system) != 0) return file_error(path, "statfs", errno);
    constexpr std::uint64_t kLeast = 4096;
    constexpr std::uint64_t kLargestBlock = std::uint64_t{64} << 20;
    constexpr std::uint32_t kLustre = 0x0BD00BD0;
    constexpr std::uint32_t kGpfs = 0x47504653;
    constexpr std::uint32_t kBeeGfs = 0x19830326;
    const auto type = static_cast<std::uint32_t>(system.f_type);
    StorageTraits traits;
    traits.block = block;
    if (block == 0) {
        // The file system's preferred size, unless partitions would end at multiples of gigabytes.
        // GPFS and BeeGFS say by statfs what their blocks and chunks are.
        auto preferred = static_cast<std::uint64_t>(about.st_blksize);
        if (type == kGpfs || type == kBeeGfs)
            preferred = std::max(preferred, static_cast<std::uint64_t>(system.f_bsize));
        const auto goal = std::clamp<std::uint64_t>(preferred, kLeast, kLargestBlock);
        traits.block = divide_up(goal, kLeast) * kLeast;
        // On Lustre the lock of a writer covers a stripe, not a block.
        auto stripe = type == kLustre ? stripe_bytes_of(path) : std::nullopt;
        if (type == kLustre && unit != 0) stripe = unit;
        if (stripe) traits.block = block_of_stripes(*stripe, kLargestBlock);
    }
    const bool network = std::find(kNetworks.begin(), kNetworks.end(), type) != kNetworks.end();
    traits.direct.least_bytes = network ? kDirectAway : kDirectHere;
    traits.direct.alignment = network ? traits.block : 1;
    traits.direct.least_alone = network ? kDirectAway : 1;
    if (const char* const text = std::getenv("TWINRUN_AGGREGATE_DIRECT")) {
        traits.direct.least_bytes =
            std::strcmp(text, "never") == 0 ? UINT64_MAX : std::strtoull(text, nullptr, 10);
        traits.direct.least_alone = traits.direct.least_bytes;
    }
    return traits;
}

}  // namespace twinrun::aggregation
