// Independent pieces of work, divided over a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include "base/start_thread.hpp"

namespace twinrun {

// work(i, thread) for each i below count, on at most `threads` threads, the caller's among them,
// which is number 0, and on no more than there are `least` pieces for. Returns when all are done.
// work must not throw.
template <class Work>
void in_parallel(std::size_t count, int threads, std::size_t least, const Work& work) {
    std::atomic<std::size_t> next{0};
    const auto take = [&](std::size_t thread) {
        for (std::size_t at = next.fetch_add(1); at < count; at = next.fetch_add(1))
            work(at, thread);
    };
    const std::size_t wanted = std::min(static_cast<std::size_t>(std::max(1, threads)), count / least + 1);
    std::vector<std::jthread> others;
    for (std::size_t thread = 1; thread < wanted; ++thread) {
        try {
            others.emplace_back([&take, thread] {
                if (allocate_what_throws()) take(thread);  // the others take all
            });
        } catch (const std::exception&) {  // no more threads can start: fewer do it
            break;
        }
    }
    take(0);
}

}  // namespace twinrun
