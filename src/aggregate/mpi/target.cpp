#include "aggregate/mpi/target.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "aggregate/lustre.hpp"
#include "base/checked.hpp"

namespace twinrun::aggregation {

namespace {

// Stretches that a rank writes itself. On a local file system whoever writes copies to the page cache, and a detour is a copy
// more; shorter ones cost more in calls than the copy (measured with 16 ranks on two cores). On a network each writer of a block
// takes its lock: there it is long stretches of whole blocks only.
constexpr std::uint64_t kDirectHere = std::uint64_t{16} << 10;
constexpr std::uint64_t kDirectAway = std::uint64_t{16} << 20;

// Of statfs(2), and of the headers of those that it does not know: NFS, SMB (three), Lustre, GPFS, Ceph, BeeGFS, OrangeFS, FUSE,
// 9P, AFS (two), PanFS.
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
    return Error{ErrorCode::invalid_argument,
                 path + ": is there and is no regular file (a folder, a device, a pipe): it is not replaced"};
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

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::string partial_name(const std::string& path) { return path + ".twr-partial"; }

Result<> create_partial(const std::string& path) {
    TWR_CHECK(no_other_kind(path));
    const std::string partial = partial_name(path);
    if (::unlink(partial.c_str()) != 0 && errno != ENOENT) return file_error(partial, "remove", errno);
    return open_and(partial, O_WRONLY | O_CREAT | O_EXCL, "create", nullptr);
}

Result<> commit_partial(const std::string& path, bool sync) {
    const std::string partial = partial_name(path);
    // Without sync both names are exchanged and the old file is removed then: a rename onto a file makes ext4 write out all that the
    // new one has (its option auto_da_alloc), as long as the write itself took.
    const bool exchanged =
        !sync && ::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0;
    if (exchanged) {
        ::unlink(partial.c_str());
    } else if (::rename(partial.c_str(), path.c_str()) != 0) {
        return file_error(path, "rename of '" + partial + "' to it", errno);
    }
    if (sync) TWR_CHECK(open_and(folder_of(path), O_RDONLY | O_DIRECTORY, "fsync", ::fsync));
    return success();
}

void remove_partial(const std::string& path) { ::unlink(partial_name(path).c_str()); }

Result<> touch_file(const std::string& path) {
    TWR_CHECK(no_other_kind(path));
    return open_and(path, O_WRONLY | O_CREAT, "open", nullptr);
}

Result<> sync_file(const std::string& path) { return open_and(path, O_WRONLY, "fsync", ::fsync); }

Result<std::uint64_t> file_size(const std::string& path) {
    struct stat about {};
    if (::stat(path.c_str(), &about) != 0) return file_error(path, "stat", errno);
    if (!S_ISREG(about.st_mode)) return Error{ErrorCode::invalid_argument, path + ": is no regular file"};
    return static_cast<std::uint64_t>(about.st_size);
}

Result<StorageTraits> storage_traits(const std::string& path, std::uint64_t block) {
    struct stat about {};
    struct statfs system {};
    if (::stat(path.c_str(), &about) != 0) return file_error(path, "stat", errno);
    if (::statfs(path.c_str(), &system) != 0) return file_error(path, "statfs", errno);
    constexpr std::uint64_t kLeast = 4096;
    constexpr std::uint64_t kLargestBlock = std::uint64_t{64} << 20;
    constexpr std::uint32_t kLustre = 0x0BD00BD0;
    const auto type = static_cast<std::uint32_t>(system.f_type);
    StorageTraits traits;
    traits.block = block;
    if (block == 0) {
        // What it wants to be given at a time, but for those that would have a partition end at multiples of gigabytes.
        const auto wanted =
            std::clamp<std::uint64_t>(static_cast<std::uint64_t>(about.st_blksize), kLeast, kLargestBlock);
        traits.block = divide_up(wanted, kLeast) * kLeast;
        // There a block is not what the lock of a writer covers: that is a stripe.
        const auto stripe = type == kLustre ? stripe_bytes_of(path) : std::nullopt;
        if (stripe) traits.block = block_of_stripes(*stripe, kLargestBlock);
    }
    const bool network = std::find(kNetworks.begin(), kNetworks.end(), type) != kNetworks.end();
    traits.direct.least_bytes = network ? kDirectAway : kDirectHere;
    traits.direct.alignment = network ? traits.block : 1;
    if (const char* const text = std::getenv("TWINRUN_AGGREGATE_DIRECT")) {
        traits.direct.least_bytes =
            std::strcmp(text, "never") == 0 ? UINT64_MAX : std::strtoull(text, nullptr, 10);
    }
    return traits;
}

}  // namespace twinrun::aggregation
