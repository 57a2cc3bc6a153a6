// Measures noise of the operating system on several cores at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

struct NoiseOptions {
    std::vector<int> cores;       // a thread is pinned to each
    double detour_seconds = 1.0;  // of each loop; 0: the loop does not run
    double work_seconds = 0.5;
    double time_seconds = 0.5;
    // A detour is a step of at least this many undisturbed ones ...
    double threshold = 9.0;
    // ... or, if this is not 0, of at least this many nanoseconds
    std::uint64_t threshold_ns = 0;
    std::uint64_t work_ns = 100'000;          // a piece of fixed work; approximate
    std::uint64_t window_ns = 1'000'000;      // a window of fixed time
    std::uint64_t most_detours = 1ULL << 18;  // on each core: 16 bytes each
    bool counter = true;  // false: CLOCK_MONOTONIC, even where the CPU has a steady counter
};

struct Detour {
    std::int64_t start_ns = 0;   // since all cores began
    std::int64_t length_ns = 0;  // lost time, without the loop's own step
};

struct CoreNoise {
    int core = 0;
    double undisturbed_ns = 0;  // length of a step of the loop
    double threshold_ns = 0;
    std::int64_t begin_ns = 0;  // of the time in which detours were recorded
    std::int64_t end_ns = 0;
    std::uint64_t iterations = 0;
    bool full = false;  // ended early, after most_detours
    std::vector<Detour> detours;
    std::vector<std::int64_t> work_ns;       // each piece of fixed work
    std::vector<std::uint64_t> window_work;  // units done in each window
    std::int64_t involuntary_switches = 0;   // while detours were recorded
    // Waiting for the core in that time; -1: the system does not report it.
    std::int64_t run_queue_ns = -1;
    bool moved = false;  // the thread was on another core at the end
};

struct NoiseMeasurement {
    std::string clock;  // tsc, cntvct or clock_gettime
    double tick_ns = 1;
    std::vector<CoreNoise> cores;  // in the order of the options
};

// poll: called about four times a second; false ends the measurement. Blocks for the sum of the
// loops' seconds and about 0.1 s.
// Errors: invalid_argument, interrupted, out_of_memory, io (a core that this process may not use).
Result<NoiseMeasurement> measure_noise(const NoiseOptions& options, const std::function<bool()>& poll);

}  // namespace twinrun
