// Digests of many arrays by their words, wherever the arrays lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "sketch/root_queue.hpp"
#include "source/device_array.hpp"
#include "source/stream.hpp"

namespace twinrun {

// The roots of arrays that were started together. Not thread-safe.
class WordRoots {
   public:
    // words: as as_words() gives them; those in host memory are dense, and stay only until this
    // returns: they are digested now. If they have fewer than few_bytes bytes together, one thread
    // does it. Those on devices are digested in the background, by one queue a device: work that is
    // put into their streams later may change them. Errors: those of plan_words(),
    // HostSketch::build() and queue_roots(). Throws std::bad_alloc.
    static Result<WordRoots> start(std::span<const DeviceArray> words, std::uint64_t few_bytes,
                                   StreamOptions options);
    // Whether roots() may wait for devices.
    [[nodiscard]] bool on_devices() const { return !queued_.empty(); }
    // Waits for devices. One an array, in their order; 0 where it has no element. Errors: the
    // device's.
    Result<std::vector<std::uint64_t>> roots();

   private:
    // What one device was asked for.
    struct Queued {
        std::vector<std::size_t> numbers;  // of the arrays
        std::shared_ptr<QueuedRoots> roots;
    };
    std::vector<std::uint64_t> roots_;  // of each array; 0 while it is queued
    std::vector<Queued> queued_;
};

}  // namespace twinrun
