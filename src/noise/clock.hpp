// Clocks that cost a few nanoseconds to read, in ticks of their own.
#pragma once

#include <time.h>

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace twinrun {

// CLOCK_MONOTONIC: ticks are nanoseconds.
struct MonotonicClock {
    static std::uint64_t now() {
        timespec t{};
        clock_gettime(CLOCK_MONOTONIC, &t);
        return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(t.tv_nsec);
    }
};

// The CPU's counter, if its rate does not depend on the core's clock.
struct CounterClock {
#if defined(__x86_64__)
    static constexpr const char* name = "tsc";
    static std::uint64_t now() { return __rdtsc(); }
    static bool steady() {  // Intel SDM volume 3, 18.17.1; AMD APM volume 3, CPUID Fn8000_0007
        unsigned a = 0;
        unsigned b = 0;
        unsigned c = 0;
        unsigned d = 0;
        return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
    }
#elif defined(__aarch64__)
    static constexpr const char* name = "cntvct";
    static std::uint64_t now() {
        std::uint64_t t = 0;
        asm volatile("mrs %0, cntvct_el0" : "=r"(t));
        return t;
    }
    static bool steady() { return true; }
#else
    static constexpr const char* name = "none";
    static std::uint64_t now() { return MonotonicClock::now(); }
    static bool steady() { return false; }
#endif
};

// One moment on two clocks.
struct ClockPair {
    std::uint64_t ticks = 0;
    std::uint64_t ns = 0;
};

// The fastest of several tries.
template <class Clock>
ClockPair same_moment() {
    ClockPair best;
    std::uint64_t least = ~std::uint64_t{0};
    for (int i = 0; i < 16; ++i) {
        const std::uint64_t before = Clock::now();
        const std::uint64_t ns = MonotonicClock::now();
        const std::uint64_t after = Clock::now();
        if (after >= before && after - before < least) {
            least = after - before;
            best = {before + least / 2, ns};
        }
    }
    return best;
}

}  // namespace twinrun
