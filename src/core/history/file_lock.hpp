// A lock on a file or folder, of one process at a time.
#pragma once

#include <string>

namespace twinrun {

// Held until this is gone. Storage may have no locks: then nobody waits.
class FileLock {
   public:
    FileLock() = default;
    ~FileLock() { release(); }
    FileLock(FileLock&& other) noexcept;
    FileLock& operator=(FileLock&& other) noexcept;
    // shared: with others that take it so. false: another process has it. What is not there is not
    // locked, and nobody else's.
    bool take(const std::string& path, bool shared = false);
    [[nodiscard]] int descriptor() const { return descriptor_; }
    void release();

   private:
    int descriptor_ = -1;
    int owner_ = 0;  // process that locked it
};

}  // namespace twinrun
