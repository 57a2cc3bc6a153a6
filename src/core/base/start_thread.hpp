// Starts threads that may throw where there is no memory.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace twinrun {

// What a thread needs to throw is allocated with its first exception. If that one says that there
// is no memory, the C library ends the process. So it is allocated here: there is memory of each
// size that it may have, because this thread has just freed it. False: there is none.
inline bool allocate_what_throws() noexcept {
    constexpr std::size_t kSizes = 32;
    constexpr std::size_t kStep = 16;
    std::array<void*, kSizes> all{};
    bool there = true;
    for (std::size_t i = 0; i < kSizes; ++i) {
        all[i] = std::malloc((i + 1) * kStep + kStep / 2);
        there = there && all[i] != nullptr;
    }
    for (void* const one : all)
        std::free(one);
    // The call allocates. It is never less; without the comparison a compiler leaves the call out.
    return there && std::uncaught_exceptions() >= 0;
}

// A thread that does this work. Returns when it can; else throws std::system_error, as where the
// system has no thread. Thread: std::thread or std::jthread.
template <class Thread = std::thread, class Work>
Thread start_thread(Work work) {
    struct {
        std::mutex mutex;
        std::condition_variable changed;
        bool started = false;
        bool able = false;
    } start;
    Thread thread([&start, work = std::move(work)]() mutable {
        const bool able = allocate_what_throws();
        {
            const std::lock_guard guard(start.mutex);
            start.started = true;
            start.able = able;
            start.changed.notify_one();  // under the lock: `start` is gone soon after
        }
        if (able) work();
    });
    std::unique_lock lock(start.mutex);
    start.changed.wait(lock, [&] { return start.started; });
    if (!start.able) {
        lock.unlock();
        thread.join();
        throw std::system_error(std::make_error_code(std::errc::not_enough_memory));
    }
    return thread;
}

}  // namespace twinrun
