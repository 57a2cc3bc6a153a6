// Host memory in which captured bytes wait until they are written: a ring of fixed size.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include "base/result.hpp"

namespace twinrun {

// Blocks are allocated in order and may be released in any order; memory is reused in order. Owned
// by a session. Thread-safe.
class StagingRing {
   public:
    static constexpr std::size_t kSmallest = 8 << 20;
    static constexpr std::size_t kAlignment = 4096;  // of blocks, in bytes

    // Reserves address space; the system gives pages at first use, and the ring keeps them. bytes:
    // at least kSmallest. Errors: invalid_argument, out_of_memory.
    static Result<std::unique_ptr<StagingRing>> create(std::size_t bytes);
    ~StagingRing();
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;

    // A block of at least `bytes` bytes. Waits until there is room; some other thread must release
    // blocks meanwhile. `waited` grows by the seconds of waiting. Null: bytes exceeds
    // largest_block(), or stop() was called.
    std::byte* allocate(std::size_t bytes, double& waited);
    // block: one that allocate() returned.
    void release(const std::byte* block);
    // From now on allocate() returns null, also to threads that wait in it.
    void stop();

    // Half of the ring, in bytes. A block of this size finds room as soon as all earlier ones are
    // released, wherever they lie.
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
    // Oldest first; a gap between two blocks is reused with the older one.
    std::deque<Block> blocks_;
    std::size_t used_ = 0;
    std::size_t most_ = 0;
    bool stopped_ = false;
};

// Owns a block of the ring until a load takes it.
struct RingBlock {
    explicit RingBlock(StagingRing* of) : ring(of) {}
    ~RingBlock() {
        if (block != nullptr) ring->release(block);
    }
    RingBlock(const RingBlock&) = delete;
    RingBlock& operator=(const RingBlock&) = delete;
    StagingRing* ring;
    const std::byte* block = nullptr;
};

}  // namespace twinrun
