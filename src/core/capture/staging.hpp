// Host memory that captured bytes wait in until they are written: a ring of a set size.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include "base/result.hpp"

namespace twinrun {

// Blocks are handed out in order and may come back in any order; room is reused in order. Thread-safe.
class StagingRing {
   public:
    static constexpr std::size_t kSmallest = 8 << 20;
    static constexpr std::size_t kAlignment = 4096;  // of blocks

    // Address space only: pages are taken at first use, and kept. bytes: at least kSmallest.
    static Result<std::unique_ptr<StagingRing>> create(std::size_t bytes);
    ~StagingRing();
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;

    // Blocks the thread until there is room: somebody must be giving blocks back. `waited` grows by the seconds that it took.
    // bytes: at most largest_block(). Null once stop() was called.
    std::byte* allocate(std::size_t bytes, double& waited);
    void release(const std::byte* block);
    // All that wait, and all that will, get null.
    void stop();

    // Half of the ring: whatever lies in it, such a block finds room once the others are given back.
    [[nodiscard]] std::size_t largest_block() const { return bytes_ / 2 / kAlignment * kAlignment; }
    [[nodiscard]] std::size_t used() const;
    [[nodiscard]] std::size_t most_used() const;

   private:
    struct Block {
        std::size_t begin;
        std::size_t end;
        bool free;
    };
    StagingRing(std::byte* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
    std::byte* find_room(std::size_t bytes);

    std::byte* memory_;
    std::size_t bytes_;
    mutable std::mutex mutex_;
    std::condition_variable room_;
    std::deque<Block> blocks_;  // oldest first; the bytes between them belong to the older one
    std::size_t used_ = 0;
    std::size_t most_ = 0;
    bool stopped_ = false;
};

}  // namespace twinrun
