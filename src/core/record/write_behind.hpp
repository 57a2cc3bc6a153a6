// Writes a file while the caller makes what comes next.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "base/aligned.hpp"
#include "base/result.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// One caller; one write at a time, in the order of put(). Its thread starts with the first large
// write, and sleeps between writes.
class WriteBehind {
   public:
    // behind: false: each put() writes before it returns.
    explicit WriteBehind(bool behind) : behind_(behind) {}
    // wait() first.
    ~WriteBehind();
    WriteBehind(const WriteBehind&) = delete;
    WriteBehind& operator=(const WriteBehind&) = delete;

    // Writes the first `size` of `bytes` at `offset`, perhaps after it returned: `bytes` has other
    // memory then. The file must stay until wait(). Returns the error of a write before this one,
    // which is not begun then.
    Result<> put(OutputFile& file, std::uint64_t offset, AlignedBytes& bytes, std::size_t size);
    // Until nothing is being written. Returns the error of what was, once.
    Result<> wait();

   private:
    bool start();
    void run();

    bool behind_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool busy_ = false;
    bool stopping_ = false;
    Result<> done_ = success();  // of the last write
    OutputFile* file_ = nullptr;
    std::uint64_t offset_ = 0;
    std::size_t size_ = 0;
    AlignedBytes bytes_;  // what is being written; else memory for a later write
    std::thread thread_;
};

}  // namespace twinrun
