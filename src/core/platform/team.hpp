// A few threads that help the one that calls, and sleep otherwise.
#pragma once

#include <condition_variable>
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
        while (static_cast<int>(threads_.size()) + 1 < size_) {
            const int worker = static_cast<int>(threads_.size()) + 1;
            try {
                threads_.push_back(start_thread([this, worker] { help(worker); }));
            } catch (const std::exception&) {
                // The system allows no further threads: the existing ones do the work.
                size_ = worker;
            }
        }
        {
            const std::lock_guard guard(mutex_);
            work_ = &work;
            ++round_;
            busy_ = static_cast<int>(threads_.size());
        }
        begin_.notify_all();
        work(0);
        std::unique_lock lock(mutex_);
        end_.wait(lock, [&] { return busy_ == 0; });
    }

   private:
    void help(int worker) {
        std::unique_lock lock(mutex_);
        for (unsigned long seen = 0;;) {
            begin_.wait(lock, [&] { return stopping_ || round_ != seen; });
            if (stopping_) return;
            seen = round_;
            const auto& work = *work_;
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
    std::vector<std::thread> threads_;
};

}  // namespace twinrun
