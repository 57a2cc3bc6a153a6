// SPDX-License-Identifier: Apache-2.0
// A fixed team of threads that runs one function at a time on all of them, and the work queue over
// it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace minihacc {

class ThreadTeam {
   public:
    // The calling thread is rank 0; size - 1 threads are started. Throws std::system_error when
    // they cannot be.
    explicit ThreadTeam(int size);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    int size() const { return static_cast<int>(threads_.size()) + 1; }

    // Calls body(rank) once on every thread, starting when all have arrived; returns when all are
    // done. The first exception thrown by a body is thrown again here.
    void run(const std::function<void(int)>& body);

    // Calls body(begin, end) for pieces of [0, count), handed out to whichever thread is free.
    template <class Body>
    void for_pieces(std::size_t count, std::size_t piece, Body&& body) {
        std::atomic<std::size_t> next{0};
        run([&](int) {
            for (;;) {
                const std::size_t begin = next.fetch_add(piece, std::memory_order_relaxed);
                if (begin >= count) return;
                body(begin, std::min(count, begin + piece));
            }
        });
    }

   private:
    void work(int rank);
    void call(int rank) noexcept;
    void stop() noexcept;

    std::vector<std::thread> threads_;
    const std::function<void(int)>* body_ = nullptr;
    std::atomic<std::uint32_t> round_{0};
    std::atomic<int> arrived_{0};
    std::atomic<int> running_{0};
    std::atomic<bool> stopping_{false};
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
};

}  // namespace minihacc
