#include "noise/noise.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <new>
#include <set>
#include <system_error>
#include <thread>

#include "noise/clock.hpp"
#include "noise/loops.hpp"

namespace twinrun {
namespace {

constexpr std::uint64_t kReadings = 200'000;  // to find an undisturbed step; about 2 to 5 ms
// Of the work that is counted in windows; about 100 ns.
constexpr std::uint64_t kUnitRounds = 64;
// From the moment at which all threads are ready to the first loop's start.
constexpr std::uint64_t kLeadNs = 20'000'000;
// Before the first loop: counters of the system are read.
constexpr std::uint64_t kBeforeNs = 200'000;
constexpr std::uint64_t kGapNs = 5'000'000;  // between two loops
constexpr std::size_t kMostSamples = 1U << 22;

// The start of each loop, by CLOCK_MONOTONIC.
struct Schedule {
    std::uint64_t detours = 0;
    std::uint64_t work = 0;
    std::uint64_t windows = 0;
};

struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t ready = 0;
    std::size_t done = 0;
    bool go = false;
    Schedule schedule;
    std::atomic<bool> stop = false;
};

struct Worker {
    CoreNoise found;
    Result<> state = success();
    std::vector<TickDetour> detours;
    std::vector<std::uint64_t> work;
    std::vector<std::uint64_t> windows;
};

std::uint64_t nanoseconds(double seconds) { return static_cast<std::uint64_t>(seconds * 1e9); }

Result<> check(const NoiseOptions& o) {
    const auto bad = [](const char* what) {
        return Error{ErrorCode::invalid_argument, std::string("noise: ") + what};
    };
    if (o.cores.empty()) return bad("no core was named");
    std::set<int> seen;
    for (const int core : o.cores)
        if (core < 0 || core >= CPU_SETSIZE || !seen.insert(core).second)
            return bad("cores must be numbers from 0 to 1023, each once");
    for (const double seconds : {o.detour_seconds, o.work_seconds, o.time_seconds})
        if (!(seconds >= 0 && seconds <= 86400)) return bad("a loop lasts from 0 to 86400 s");
    if (!(o.detour_seconds + o.work_seconds + o.time_seconds > 0)) return bad("no loop has any time");
    if (!(o.threshold >= 2 && o.threshold <= 1e9))
        return bad("the threshold must be from 2 to 1e9 times an undisturbed step");
    if (o.threshold_ns > 1'000'000'000'000) return bad("the threshold must be at most 1000 s");
    if (o.work_ns < 1000 || o.work_ns > 1'000'000'000) return bad("a piece of work lasts from 1 us to 1 s");
    if (o.window_ns < 10'000 || o.window_ns > 1'000'000'000) return bad("a window lasts from 10 us to 1 s");
    if (o.most_detours < 1 || o.most_detours > (1U << 26))
        return bad("from 1 to 67108864 detours can be kept a core");
    if (o.time_seconds * 1e9 / static_cast<double>(o.window_ns) > static_cast<double>(kMostSamples) ||
        o.work_seconds * 1e9 / static_cast<double>(o.work_ns) > static_cast<double>(kMostSamples))
        return bad("more than 4194304 windows or pieces of work: make them longer");
    return success();
}

std::int64_t run_queue_ns() {
    std::ifstream file("/proc/thread-self/schedstat");
    std::int64_t on_core = 0;
    std::int64_t waiting = 0;
    return file >> on_core >> waiting ? waiting : -1;
}

std::int64_t involuntary_switches() {
    rusage usage{};
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

// Spins, so that the core is awake and at full clock when the loop begins.
void wait_until(std::uint64_t ns, const std::atomic<bool>& stop) {
    while (MonotonicClock::now() < ns && !stop.load(std::memory_order_relaxed)) {
    }
}

template <class Clock>
struct Instance {
    std::uint64_t now() const { return Clock::now(); }
};

// The thread of one core. ratio: approximate ticks per nanosecond; exact figures follow from this
// thread's own first and last moment.
template <class Clock>
void run_loops(const NoiseOptions& options, double ratio, Gate& gate, Worker& worker) {
    Instance<Clock> clock;
    CoreNoise& found = worker.found;
    const std::uint64_t undisturbed = undisturbed_step(clock, kReadings);
    std::uint64_t threshold =
        options.threshold_ns != 0
            ? static_cast<std::uint64_t>(static_cast<double>(options.threshold_ns) * ratio)
            : static_cast<std::uint64_t>(options.threshold * static_cast<double>(undisturbed));
    threshold = std::max(threshold, 2 * undisturbed);
    // Rounds for a piece of work, scaled from the fastest of some short pieces.
    std::uint64_t shortest = ~std::uint64_t{0};
    constexpr std::uint64_t kProbe = 4096;
    for (int i = 0; i < 100; ++i) {
        const std::uint64_t before = clock.now();
        spin_work(kProbe);
        const std::uint64_t after = clock.now();
        if (after > before) shortest = std::min(shortest, after - before);
    }
    const double rounds =
        static_cast<double>(options.work_ns) * ratio * kProbe / static_cast<double>(shortest);
    const auto piece = static_cast<std::uint64_t>(std::clamp(rounds, 1.0, 1e12));
    {
        std::unique_lock lock(gate.mutex);
        ++gate.ready;
        gate.changed.notify_all();
        gate.changed.wait(lock, [&] { return gate.go; });
    }
    const ClockPair first = same_moment<Clock>();
    const auto tick_of = [&](std::uint64_t ns) {
        const double since = static_cast<double>(static_cast<std::int64_t>(ns - first.ns));
        return first.ticks + static_cast<std::uint64_t>(static_cast<std::int64_t>(since * ratio));
    };
    const Schedule at = gate.schedule;
    WatchedTime watched;
    if (options.detour_seconds > 0) {
        wait_until(at.detours - kBeforeNs, gate.stop);
        const std::int64_t switches = involuntary_switches();
        const std::int64_t waited = run_queue_ns();
        watched = watch_detours(clock, tick_of(at.detours),
                                tick_of(at.detours + nanoseconds(options.detour_seconds)), threshold,
                                worker.detours, gate.stop);
        found.involuntary_switches = involuntary_switches() - switches;
        if (const std::int64_t now = run_queue_ns(); waited >= 0 && now >= 0)
            found.run_queue_ns = now - waited;
    }
    std::size_t pieces = 0;
    if (options.work_seconds > 0) {
        wait_until(at.work, gate.stop);
        pieces = fixed_work(
            clock, [&] { spin_work(piece); }, tick_of(at.work + nanoseconds(options.work_seconds)),
            worker.work, gate.stop);
    }
    std::size_t windows = 0;
    if (options.time_seconds > 0) {
        wait_until(at.windows, gate.stop);
        const auto window = static_cast<std::uint64_t>(static_cast<double>(options.window_ns) * ratio);
        windows = fixed_time(
            clock, [] { spin_work(kUnitRounds); }, tick_of(at.windows), std::max<std::uint64_t>(window, 1),
            worker.windows, gate.stop);
    }
    const ClockPair last = same_moment<Clock>();
    const double tick_ns = last.ticks > first.ticks ? static_cast<double>(last.ns - first.ns) /
                                                          static_cast<double>(last.ticks - first.ticks)
                                                    : 1 / ratio;
    const auto length = [&](std::uint64_t ticks) {
        return std::llround(static_cast<double>(ticks) * tick_ns);
    };
    const auto place = [&](std::uint64_t ticks) {  // since the first loop's start
        const double since = static_cast<double>(static_cast<std::int64_t>(ticks - first.ticks)) * tick_ns;
        return std::llround(since) - static_cast<std::int64_t>(at.detours - first.ns);
    };
    found.undisturbed_ns = static_cast<double>(undisturbed) * tick_ns;
    found.threshold_ns = static_cast<double>(threshold) * tick_ns;
    if (options.detour_seconds > 0) {
        found.begin_ns = place(watched.begin);
        found.end_ns = place(watched.end);
    }
    found.iterations = watched.iterations;
    found.full = watched.full;
    found.detours.reserve(watched.detours);
    for (std::size_t i = 0; i < watched.detours; ++i)
        found.detours.push_back(
            {place(worker.detours[i].start), length(worker.detours[i].length - undisturbed)});
    found.work_ns.reserve(pieces);
    for (std::size_t i = 0; i < pieces; ++i)
        found.work_ns.push_back(length(worker.work[i]));
    found.window_work.assign(worker.windows.begin(),
                             worker.windows.begin() + static_cast<std::ptrdiff_t>(windows));
    found.moved = sched_getcpu() != found.core;
}

Result<> pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (const int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set); error != 0)
        return Error{ErrorCode::io, "core " + std::to_string(core) + " cannot be measured: " +
                                        std::strerror(error) + ": name cores that this process may run on"};
    return success();
}

void run_thread(const NoiseOptions& options, bool counter, double ratio, Gate& gate, Worker& worker) {
    worker.state = pin(worker.found.core);
    if (worker.state) {
        try {
            // Written here, so that every page exists and is in memory near this core.
            if (options.detour_seconds > 0) worker.detours.resize(options.most_detours);
            worker.work.resize(static_cast<std::size_t>(
                2 * options.work_seconds * 1e9 / static_cast<double>(options.work_ns) + 16));
            worker.windows.resize(static_cast<std::size_t>(options.time_seconds * 1e9 /
                                                           static_cast<double>(options.window_ns)));
            if (counter) {
                run_loops<CounterClock>(options, ratio, gate, worker);
            } else {
                run_loops<MonotonicClock>(options, ratio, gate, worker);
            }
        } catch (const std::bad_alloc&) {
            worker.state = Error{ErrorCode::out_of_memory, "noise: no memory for lists of detours"};
        }
    }
    worker.detours = {};
    const std::lock_guard guard(gate.mutex);
    ++gate.done;
    gate.changed.notify_all();
}

// Ticks per nanosecond, measured over 20 ms.
double ticks_a_nanosecond() {
    const ClockPair a = same_moment<CounterClock>();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const ClockPair b = same_moment<CounterClock>();
    return static_cast<double>(b.ticks - a.ticks) / static_cast<double>(b.ns - a.ns);
}

}  // namespace

Result<NoiseMeasurement> measure_noise(const NoiseOptions& options, const std::function<bool()>& poll) {
    TWR_CHECK(check(options));
    const bool counter = options.counter && CounterClock::steady();
    const double ratio = counter ? ticks_a_nanosecond() : 1.0;
    if (!(ratio > 1e-4 && ratio < 1e3))
        return Error{ErrorCode::unsupported,
                     "noise: the CPU's counter does not count: ask for the other clock"};
    std::vector<Worker> workers(options.cores.size());
    for (std::size_t i = 0; i < workers.size(); ++i)
        workers[i].found.core = options.cores[i];
    Gate gate;
    std::vector<std::thread> threads;
    bool interrupted = false;
    const auto end = [&] {
        for (auto& thread : threads)
            thread.join();
    };
    try {
        threads.reserve(workers.size());
        for (Worker& worker : workers)
            threads.emplace_back([&options, counter, ratio, &gate, &worker] {
                run_thread(options, counter, ratio, gate, worker);
            });
    } catch (const std::exception& e) {
        {
            const std::lock_guard guard(gate.mutex);
            gate.stop = true;
            gate.go = true;
        }
        gate.changed.notify_all();
        end();
        return Error{ErrorCode::io, std::string("noise: a thread a core cannot be started: ") + e.what()};
    }
    {
        std::unique_lock lock(gate.mutex);
        gate.changed.wait(lock, [&] { return gate.ready + gate.done >= workers.size(); });
        // A thread could not start: the others need not measure.
        if (gate.done > 0) gate.stop = true;
        const std::uint64_t start = MonotonicClock::now() + kLeadNs;
        gate.schedule.detours = start;
        gate.schedule.work = start + nanoseconds(options.detour_seconds) + kGapNs;
        gate.schedule.windows = gate.schedule.work + nanoseconds(options.work_seconds) + kGapNs;
        gate.go = true;
        gate.changed.notify_all();
        while (!gate.changed.wait_for(lock, std::chrono::milliseconds(250),
                                      [&] { return gate.done == workers.size(); })) {
            lock.unlock();
            if (poll && !interrupted && !poll()) {
                interrupted = true;
                gate.stop = true;
            }
            lock.lock();
        }
    }
    end();
    for (Worker& worker : workers)
        TWR_CHECK(std::move(worker.state));
    if (interrupted) return Error{ErrorCode::interrupted, "noise: interrupted"};
    NoiseMeasurement measurement;
    measurement.clock = counter ? CounterClock::name : "clock_gettime";
    measurement.tick_ns = 1 / ratio;
    for (Worker& worker : workers)
        measurement.cores.push_back(std::move(worker.found));
    return measurement;
}

}  // namespace twinrun
