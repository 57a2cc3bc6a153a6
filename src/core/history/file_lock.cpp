#include "history/file_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace twinrun {

FileLock::FileLock(FileLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), owner_(other.owner_) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
    release();
    descriptor_ = std::exchange(other.descriptor_, -1);
    owner_ = other.owner_;
    return *this;
}

bool FileLock::take(const std::string& path, bool shared) {
    // Whether the path still names the file of this descriptor.
    const auto still_named = [&](int descriptor) {
        struct stat ours, there;
        return ::fstat(descriptor, &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
               ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
    };
    if (descriptor_ >= 0 && still_named(descriptor_)) return true;
    release();  // the lock on another file that had this path
    for (;;) {
        // O_NONBLOCK: open() must not block on a pipe that somebody else gave this name.
        const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        if (opened < 0) return true;
        const int result = ::flock(opened, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB);
        const int why = errno;
        // It is locked, or this storage has no locks.
        if ((result == 0 || (why != EINTR && why != EWOULDBLOCK)) && still_named(opened)) {
            descriptor_ = opened;
            owner_ = ::getpid();
            return true;
        }
        ::close(opened);
        if (result != 0 && why == EWOULDBLOCK) return false;
    }
}

void FileLock::release() {
    if (descriptor_ < 0) return;
    // A forked process has a copy of this descriptor, which would keep the lock after close():
    // unlock explicitly. The forked process itself must not unlock it.
    if (owner_ == ::getpid()) ::flock(descriptor_, LOCK_UN);
    ::close(descriptor_);
    descriptor_ = -1;
}

}  // namespace twinrun
