// SPDX-License-Identifier: Apache-2.0
#include "minihacc/team.hpp"

#include <utility>

namespace minihacc {

ThreadTeam::ThreadTeam(int size) {
    try {
        threads_.reserve(static_cast<std::size_t>(std::max(size, 1) - 1));
        for (int rank = 1; rank < size; ++rank)
            threads_.emplace_back([this, rank] { work(rank); });
    } catch (...) {
        stop();
        throw;
    }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() noexcept {
    stopping_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    for (auto& thread : threads_)
        thread.join();
    threads_.clear();
}

void ThreadTeam::run(const std::function<void(int)>& body) {
    body_ = &body;
    arrived_.store(0);
    running_.store(size());
    round_.fetch_add(1);
    round_.notify_all();
    call(0);
    for (int left = running_.load(); left != 0; left = running_.load())
        running_.wait(left);
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadTeam::work(int rank) {
    std::uint32_t seen = 0;
    for (;;) {
        round_.wait(seen);
        ++seen;  // run() waits for every thread, so no round is ever skipped
        if (stopping_.load()) return;
        call(rank);
    }
}

void ThreadTeam::call(int rank) noexcept {
    // A thread that slept takes tens of microseconds to wake, in which the others could drain a
    // small queue.
    arrived_.fetch_add(1);
    while (arrived_.load() < size())
        std::this_thread::yield();
    try {
        (*body_)(rank);
    } catch (...) {
        const std::lock_guard lock(failure_mutex_);
        if (!failure_) failure_ = std::current_exception();
    }
    if (running_.fetch_sub(1) == 1) running_.notify_all();
}

}  // namespace minihacc
