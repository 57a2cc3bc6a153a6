// A few threads that help the one that calls, and sleep otherwise.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/start_thread.hpp"

namespace twinrun {

// Below this size, to start other threads on bytes costs more than they save.
inline constexpr std::uint64_t kTeamBytes = 2 << 20;

class Team {
   public:
    // Threads start at the first run(), which is where a process that only captures little never
    // comes.
    explicit Team(int size) : size_(size) {}
    ~Team() {
        {
            const std::lock_guard guard(mutex_);
            stopping_ = true;
        }
        begin_.notify_all();
        for (auto& thread : threads_)
            thread.join();
    }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    [[nodiscard]] int size() const { return size_; }
    // work(worker) on every member at once, the caller as worker 0; returns when all have returned.
    // It must not throw.
    void run(const std::function<void(int worker)>& work) {
        if (!started_) start();
        {
            const std::lock_guard guard(mutex_);
            work_ = &work;
            ++round_;
            busy_ = size_ - 1;
        }
        begin_.notify_all();
        work(0);
        std::unique_lock lock(mutex_);
        end_.wait(lock, [&] { return busy_ == 0; });
    }

   private:
    enum : int { kUnknown = -2, kAble = -1, kUnable = 0 };

    // As many threads as the system allows, and as have memory to throw: those do the work.
    void start() {
        started_ = true;
        try {
            workers_.assign(static_cast<std::size_t>(std::max(0, size_ - 1)), kUnknown);
            for (std::size_t slot = 0; slot < workers_.size(); ++slot)
                threads_.emplace_back([this, slot] { help(slot); });
        } catch (const std::exception&) {
        }
        std::unique_lock lock(mutex_);
        end_.wait(lock, [&] { return reported_ == threads_.size(); });
        size_ = 1;
        for (int& worker : workers_) {
            if (worker == kAble) worker = size_++;
        }
    }
    void help(std::size_t slot) {
        const bool able = allocate_what_throws();
        std::unique_lock lock(mutex_);
        workers_[slot] = able ? kAble : kUnable;
        ++reported_;
        end_.notify_one();
        if (!able) return;
        for (unsigned long seen = 0;;) {
            begin_.wait(lock, [&] { return stopping_ || round_ != seen; });
            if (stopping_) return;
            seen = round_;
            const auto& work = *work_;
            const int worker = workers_[slot];
            lock.unlock();
            work(worker);
            lock.lock();
            if (--busy_ == 0) end_.notify_one();
        }
    }

    int size_;
    std::mutex mutex_;
    std::condition_variable begin_;
    std::condition_variable end_;
    const std::function<void(int)>* work_ = nullptr;
    unsigned long round_ = 0;
    int busy_ = 0;
    bool stopping_ = false;
    bool started_ = false;
    std::size_t reported_ = 0;  // threads that said whether they can throw
    std::vector<int> workers_;  // of each thread
    std::vector<std::thread> threads_;
};

}  // namespace twinrun
