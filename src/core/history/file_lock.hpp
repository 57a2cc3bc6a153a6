// A lock on a file or folder, which one process at a time holds.
#pragma once

#include <string>

namespace twinrun {

// An advisory lock (flock) that excludes other processes until this object is destroyed. On storage
// without locks it excludes no process. Not thread-safe.
class FileLock {
   public:
    FileLock() = default;
    ~FileLock() { release(); }
    FileLock(FileLock&& other) noexcept;
    FileLock& operator=(FileLock&& other) noexcept;
    // Tries to lock what has this path now, without waiting. shared: other processes may hold it
    // shared too.
    // false: another process holds it. true: it is locked, or there is nothing to lock (no such
    // file, or storage without locks).
    bool take(const std::string& path, bool shared = false);
    // Of the locked file; -1: none.
    [[nodiscard]] int descriptor() const { return descriptor_; }
    void release();

   private:
    int descriptor_ = -1;
    int owner_ = 0;  // ID of the process that locked it
};

}  // namespace twinrun
