// Something that is done once, by whichever thread comes first.
#pragma once

#include <atomic>
#include <mutex>

namespace twinrun {

// As std::call_once: the first thread does it, others wait; where it throws, the next one tries
// again. But an exception does not pass through the C library. That would load the library which
// unwinds, and end the process where there is no memory for it. Thread-safe.
class Once {
   public:
    template <typename Work>
    void run(Work work) {
        if (done_.load(std::memory_order_acquire)) return;
        const std::lock_guard guard(mutex_);
        if (done_.load(std::memory_order_relaxed)) return;
        work();
        done_.store(true, std::memory_order_release);
    }

   private:
    std::mutex mutex_;
    std::atomic<bool> done_{false};
};

}  // namespace twinrun
