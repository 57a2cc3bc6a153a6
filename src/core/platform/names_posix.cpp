#include "platform/names_posix.hpp"

#include <linux/fs.h>
#include <sys/stat.h>

#include <cstdio>

namespace twinrun::file_io {

int sync_folder(int folder) {
    const int result = retrying([&] { return ::fsync(folder); });
    return result == 0 || errno == EINVAL || errno == ENOTSUP || errno == ENOSYS ? 0 : errno;
}

int rename_new(int from_folder, const char* from, int to_folder, const char* to, LastResort last) {
    const int result = ::renameat2(from_folder, from, to_folder, to, RENAME_NOREPLACE);
    if (result == 0 || (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)) return result;
    // A second name is never given to what has it already: safe for files, on every file system
    // that has links.
    if (::linkat(from_folder, from, to_folder, to, 0) == 0) return ::unlinkat(from_folder, from, 0);
    if (errno == EEXIST || last == LastResort::fail) return -1;
    struct stat status;
    if (::fstatat(to_folder, to, &status, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;
        return -1;
    }
    return ::renameat(from_folder, from, to_folder, to);
}

}  // namespace twinrun::file_io
