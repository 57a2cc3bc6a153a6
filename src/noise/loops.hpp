// The loops that measure noise, for any clock: an object with now(), in ticks that never go back by
// much.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace twinrun {

struct TickDetour {
    std::uint64_t start = 0;
    std::uint64_t length = 0;  // including the loop's own step
};

// The length of an undisturbed step between two readings: the 1% quantile, because a few steps seem
// to take no time on CPUs that read the counter out of order. At least one tick, because a coarse
// clock often shows none.
template <class Clock>
std::uint64_t undisturbed_step(Clock& clock, std::uint64_t readings) {
    std::array<std::uint64_t, 4096> counts{};  // by ticks; the last counts all longer steps
    std::uint64_t last = clock.now();
    for (std::uint64_t i = 0; i < readings; ++i) {
        const std::uint64_t now = std::max(clock.now(), last);
        ++counts[std::min<std::uint64_t>(now - last, counts.size() - 1)];
        last = now;
    }
    std::uint64_t seen = 0;
    for (std::uint64_t step = 0; step < counts.size(); ++step) {
        seen += counts[step];
        if (seen * 100 > readings) return std::max<std::uint64_t>(step, 1);
    }
    return counts.size() - 1;
}

struct WatchedTime {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t iterations = 0;
    std::size_t detours = 0;
    bool full = false;  // it ended early, because there was no room for another detour
};

// Records steps of at least `threshold` ticks, from `begin` to `until`. The first step starts at
// `begin`, so that a late start counts as a detour. The step after a detour includes the time for
// recording it, so that no detour is missed meanwhile.
template <class Clock>
WatchedTime watch_detours(Clock& clock, std::uint64_t begin, std::uint64_t until, std::uint64_t threshold,
                          std::span<TickDetour> kept, const std::atomic<bool>& stop) {
    WatchedTime watched;
    while (clock.now() < begin && !stop.load(std::memory_order_relaxed)) {
    }
    std::uint64_t last = begin;
    watched.begin = last;
    while (last < until && !stop.load(std::memory_order_relaxed)) {
        const std::uint64_t now = std::max(clock.now(), last);
        const std::uint64_t step = now - last;
        if (step >= threshold) {
            if (watched.detours == kept.size()) {
                watched.full = true;
                break;
            }
            kept[watched.detours++] = {last, step};
        }
        ++watched.iterations;
        last = now;
    }
    watched.end = last;
    return watched;
}

// A chain of multiplications that the compiler cannot shorten.
inline std::uint64_t spin_work(std::uint64_t rounds) {
    std::uint64_t x = rounds;
    for (std::uint64_t i = 0; i < rounds; ++i) {
        x = x * 6364136223846793005U + 1442695040888963407U;
        asm volatile("" : "+r"(x));
    }
    return x;
}

// Writes the ticks of each work(), one after the other, until the clock reaches `until` or there is
// no room. Returns how many.
template <class Clock, class Work>
std::size_t fixed_work(Clock& clock, Work&& work, std::uint64_t until, std::span<std::uint64_t> took,
                       const std::atomic<bool>& stop) {
    std::size_t count = 0;
    std::uint64_t last = clock.now();
    while (last < until && count < took.size() && !stop.load(std::memory_order_relaxed)) {
        work();
        const std::uint64_t now = std::max(clock.now(), last);
        took[count++] = now - last;
        last = now;
    }
    return count;
}

// Counts how often work() was done in each of the windows [begin + i * window, begin + (i + 1) *
// window). Work counts in the window in which it ends. Returns how many windows ended.
template <class Clock, class Work>
std::size_t fixed_time(Clock& clock, Work&& work, std::uint64_t begin, std::uint64_t window,
                       std::span<std::uint64_t> done, const std::atomic<bool>& stop) {
    std::size_t count = 0;
    std::uint64_t units = 0;
    std::uint64_t end = begin + window;
    while (count < done.size() && !stop.load(std::memory_order_relaxed)) {
        work();
        const std::uint64_t now = clock.now();
        while (now >= end && count < done.size()) {
            done[count++] = units;
            units = 0;
            end += window;
        }
        ++units;
    }
    return count;
}

}  // namespace twinrun
