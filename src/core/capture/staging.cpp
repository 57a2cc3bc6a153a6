#include "capture/staging.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "base/checked.hpp"

namespace twinrun {

Result<std::unique_ptr<StagingRing>> StagingRing::create(std::size_t bytes) {
    if (bytes < kSmallest) {
        return Error{ErrorCode::invalid_argument, "staging memory of " + std::to_string(bytes) +
                                                      " bytes: set at least 8 MiB, or 0 for none"};
    }
    bytes = bytes / kAlignment * kAlignment;
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return Error{ErrorCode::out_of_memory, "staging memory of " + std::to_string(bytes) + " bytes: " +
                                                   std::strerror(errno) + ": set a smaller limit"};
    }
    ::madvise(memory, bytes, MADV_HUGEPAGE);  // fewer page faults; if it fails, nothing is wrong
    return std::unique_ptr<StagingRing>(new StagingRing(static_cast<std::byte*>(memory), bytes));
}

StagingRing::~StagingRing() { ::munmap(memory_, bytes_); }

// Allocates after the newest block; if there is no room up to the ring's end, at its beginning. The
// room ends at the oldest block. Null: there is not enough.
std::byte* StagingRing::find_room(std::size_t bytes) {
    std::size_t begin = 0;
    if (!blocks_.empty()) {
        const std::size_t head = blocks_.back().end;
        const std::size_t tail = blocks_.front().begin;
        if (blocks_.back().begin >= tail) {  // in use: [tail, head)
            if (bytes_ - head >= bytes) {
                begin = head;
            } else if (tail >= bytes) {
                begin = 0;
            } else {
                return nullptr;
            }
        } else if (tail - head >= bytes) {  // in use: all but [head, tail)
            begin = head;
        } else {
            return nullptr;
        }
    }
    blocks_.push_back({begin, begin + bytes, false});
    used_ += bytes;
    most_ = std::max(most_, used_);
    return memory_ + begin;
}

std::byte* StagingRing::allocate(std::size_t bytes, double& waited) {
    bytes = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
    std::unique_lock lock(mutex_);
    if (stopped_ || bytes > largest_block()) return nullptr;
    if (std::byte* found = find_room(bytes)) return found;
    const auto start = std::chrono::steady_clock::now();
    std::byte* found = nullptr;
    room_.wait(lock, [&] { return stopped_ || (found = find_room(bytes)) != nullptr; });
    waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return found;
}

void StagingRing::release(const std::byte* block) {
    const auto begin = static_cast<std::size_t>(block - memory_);
    {
        const std::lock_guard guard(mutex_);
        // A linear search: there are few blocks, one for each piece under way.
        const auto it = std::find_if(blocks_.begin(), blocks_.end(),
                                     [&](const Block& b) { return b.begin == begin && !b.free; });
        if (it == blocks_.end()) return;
        it->free = true;
        used_ -= it->end - it->begin;
        while (!blocks_.empty() && blocks_.front().free)
            blocks_.pop_front();
    }
    room_.notify_all();
}

void StagingRing::stop() {
    {
        const std::lock_guard guard(mutex_);
        stopped_ = true;
    }
    room_.notify_all();
}

std::size_t StagingRing::used() const {
    const std::lock_guard guard(mutex_);
    return used_;
}

std::size_t StagingRing::most_used() const {
    const std::lock_guard guard(mutex_);
    return most_;
}

}  // namespace twinrun
