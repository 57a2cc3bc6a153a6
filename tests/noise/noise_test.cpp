// Loops on clocks whose detours are known, exactly; threads on real cores, by what must hold on any machine.
#include "noise/noise.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <random>

#include "noise/clock.hpp"
#include "noise/loops.hpp"

namespace twinrun {
namespace {

// A step of `step` ticks a reading, and detours at given times: the first reading at or after `at` comes `length` later.
struct ScriptedClock {
    std::uint64_t step = 10;
    std::vector<TickDetour> planted;
    std::uint64_t time = 0;
    std::size_t next = 0;
    std::uint64_t now() {
        time += step;
        while (next < planted.size() && planted[next].start <= time)
            time += planted[next++].length;
        return time;
    }
};

const std::atomic<bool> kGoOn = false;

TEST(NoiseLoops, EveryPlantedDetourIsFoundWithItsLengthAndNoOther) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 200; ++round) {
        ScriptedClock clock{1 + random() % 40, {}, random() % (1ULL << 60), 0};
        const std::uint64_t threshold = 2 * clock.step + random() % 1000;
        const std::uint64_t begin = clock.time;
        std::uint64_t at = begin;
        std::uint64_t lost = 0;
        std::size_t long_ones = 0;
        for (int i = 0; i < 50; ++i) {
            at += 20'000 + random() % 3000;
            const std::uint64_t length = random() % 3000;
            clock.planted.push_back({at, length});
            at += length;
            if (length + clock.step >= threshold) {
                lost += length;
                ++long_ones;
            }
        }
        std::vector<TickDetour> kept(64);
        const WatchedTime watched = watch_detours(clock, begin + 5000, at + 50'000, threshold, kept, kGoOn);
        ASSERT_EQ(watched.detours, long_ones);
        EXPECT_FALSE(watched.full);
        std::uint64_t found = 0;
        std::uint64_t before = 0;
        for (std::size_t i = 0; i < watched.detours; ++i) {
            EXPECT_GE(kept[i].start, before);
            before = kept[i].start + kept[i].length;
            found += kept[i].length - clock.step;
        }
        EXPECT_EQ(found, lost);
        EXPECT_GE(watched.end, at + 50'000);
        EXPECT_EQ(watched.begin, begin + 5000);
    }
}

TEST(NoiseLoops, AFullListEndsTheLoopBeforeWhatItCannotKeep) {
    ScriptedClock clock{10, {{1000, 500}, {2000, 500}, {3000, 500}}, 0, 0};
    std::vector<TickDetour> kept(2);
    const WatchedTime watched = watch_detours(clock, 0, 100'000, 100, kept, kGoOn);
    EXPECT_TRUE(watched.full);
    EXPECT_EQ(watched.detours, 2U);
    EXPECT_LE(watched.end, 3000U);  // the third is in no figure
    EXPECT_GE(watched.end, kept[1].start + kept[1].length);
}

TEST(NoiseLoops, AnUndisturbedStepIsNeitherAFlukeNorADetour) {
    for (const std::uint64_t step : {1U, 3U, 26U, 3000U, 9999U}) {
        ScriptedClock clock{step, {{50'000, 1'000'000}, {1'060'000, 700}}, 0, 0};
        EXPECT_EQ(undisturbed_step(clock, 5000), std::min<std::uint64_t>(step, 4095));
    }
    struct Coarse {  // of ten readings nine see the same tick
        std::uint64_t readings = 0;
        std::uint64_t now() { return ++readings / 10; }
    } coarse;
    EXPECT_EQ(undisturbed_step(coarse, 5000), 1U);
    struct Fluke {  // one in a thousand seems to take no time
        std::uint64_t readings = 0;
        std::uint64_t now() {
            ++readings;
            return 26 * (readings - (readings % 1000 == 0 ? 1 : 0));
        }
    } fluke;
    EXPECT_EQ(undisturbed_step(fluke, 5000), 26U);
}

TEST(NoiseLoops, WhoComesLateHasLostThatTime) {
    ScriptedClock clock{10, {}, 70'000, 0};
    std::vector<TickDetour> kept(4);
    WatchedTime watched = watch_detours(clock, 1000, 100'000, 100, kept, kGoOn);
    ASSERT_EQ(watched.detours, 1U);
    EXPECT_EQ(kept[0].start, 1000U);
    EXPECT_GE(kept[0].length, 69'000U);
    clock.time = 200'000;  // all of it
    watched = watch_detours(clock, 1000, 100'000, 100, kept, kGoOn);
    ASSERT_EQ(watched.detours, 1U);
    EXPECT_EQ(kept[0].length, watched.end - watched.begin);
}

TEST(NoiseLoops, ItEndsWhenItIsTold) {
    const std::atomic<bool> stop = true;
    ScriptedClock clock;
    std::vector<TickDetour> kept(2);
    std::vector<std::uint64_t> samples(5);
    EXPECT_EQ(watch_detours(clock, 0, ~0ULL, 100, kept, stop).iterations, 0U);
    EXPECT_EQ(fixed_work(
                  clock, [] {}, ~0ULL, samples, stop),
              0U);
    EXPECT_EQ(fixed_time(
                  clock, [] {}, 0, 1000, samples, stop),
              0U);
}

TEST(NoiseLoops, AClockThatGoesBackIsNoDetour) {
    struct Jumping {
        std::uint64_t time = 1'000'000;
        std::uint64_t readings = 0;
        std::uint64_t now() {
            time += 10;
            return ++readings % 10 == 5 ? time - 5000 : time;
        }
    } clock;
    std::vector<TickDetour> kept(100);
    const WatchedTime watched = watch_detours(clock, 1'000'000, 1'050'000, 100, kept, kGoOn);
    EXPECT_EQ(watched.detours, 0U);
    EXPECT_EQ(undisturbed_step(clock, 1), 10U);
}

TEST(NoiseLoops, FixedWorkTakesItsTimeAndWhatWasStolen) {
    ScriptedClock clock{10, {{1000, 700}}, 0, 0};
    std::vector<std::uint64_t> took(1000);
    const std::size_t count = fixed_work(
        clock, [&] { clock.time += 90; }, 10'000, took, kGoOn);
    std::uint64_t disturbed = 0;
    for (std::size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(took[i] == 100 || took[i] == 800);
        disturbed += took[i] == 800 ? 1 : 0;
    }
    EXPECT_EQ(disturbed, 1U);
    EXPECT_EQ(fixed_work(
                  clock, [] {}, ~0ULL, std::span(took).first(3), kGoOn),
              3U);
}

TEST(NoiseLoops, WorkInWindowsAddsUpAndAWindowThatWasMissedIsEmpty) {
    // A piece of work and a reading are 10 ticks: 100 a window; windows 3 and 4 are lost wholly, and parts of 2 and 5.
    ScriptedClock clock{10, {{2500, 3000}}, 0, 0};
    std::vector<std::uint64_t> done(10);
    const std::size_t count = fixed_time(
        clock, [] {}, 0, 1000, done, kGoOn);
    ASSERT_EQ(count, 10U);
    EXPECT_EQ(done[3], 0U);
    EXPECT_EQ(done[4], 0U);
    EXPECT_EQ(done[1], 100U);
    EXPECT_EQ(done[9], 100U);
    EXPECT_NEAR(static_cast<double>(done[2]), 50, 2);
    EXPECT_NEAR(static_cast<double>(done[5]), 50, 2);
    std::uint64_t sum = 0;
    for (const std::uint64_t n : done)
        sum += n;
    EXPECT_NEAR(static_cast<double>(sum), (10'000 - 3000) / 10.0, 2);
}

std::vector<int> allowed_cores() {
    cpu_set_t set;
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
    for (int i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &set)) cores.push_back(i);
    return cores;
}

class NoiseClock : public ::testing::TestWithParam<bool> {};

TEST_P(NoiseClock, FiguresOfACoreAreConsistent) {
    NoiseOptions options;
    options.cores = allowed_cores();
    options.cores.resize(std::min<std::size_t>(options.cores.size(), 4));
    options.detour_seconds = 0.1;
    options.work_seconds = options.time_seconds = 0.05;
    options.counter = GetParam();
    Result<NoiseMeasurement> found = measure_noise(options, nullptr);
    ASSERT_TRUE(found.ok()) << found.error().message;
    if (!options.counter) {
        EXPECT_EQ(found->clock, "clock_gettime");
    }
    ASSERT_EQ(found->cores.size(), options.cores.size());
    for (std::size_t i = 0; i < found->cores.size(); ++i) {
        const CoreNoise& core = found->cores[i];
        EXPECT_EQ(core.core, options.cores[i]);
        EXPECT_FALSE(core.moved);
        EXPECT_GT(core.undisturbed_ns, 0);
        EXPECT_GE(core.threshold_ns, 1.9 * core.undisturbed_ns);
        ASSERT_FALSE(core.full);
        const std::int64_t watched = core.end_ns - core.begin_ns;
        // It ends with the first reading after 0.1 s; how late that is, is the machine's affair.
        EXPECT_GE(core.end_ns, 99'000'000);
        std::int64_t stolen = 0;
        std::int64_t before = core.begin_ns - 1;
        for (const Detour& detour : core.detours) {
            EXPECT_GE(static_cast<double>(detour.length_ns), core.threshold_ns - core.undisturbed_ns - 1);
            EXPECT_GE(detour.start_ns, before - 1);
            before = detour.start_ns + detour.length_ns;
            stolen += detour.length_ns;
        }
        EXPECT_LE(before, core.end_ns + 1000);
        EXPECT_LE(stolen, watched + 1000);
        // What was not stolen was spent on steps, none of which is shorter than the smallest by more than the clock's grain.
        EXPECT_GE(core.iterations + 1, core.detours.size());
        EXPECT_LE(core.window_work.size(), 50U);
        for (const std::int64_t ns : core.work_ns)
            EXPECT_GT(ns, 0);
    }
}
INSTANTIATE_TEST_SUITE_P(Both, NoiseClock, ::testing::Bool());

TEST(Noise, BadOptionsAreErrors) {
    const int core = allowed_cores().at(0);
    const auto code = [](NoiseOptions options) {
        const Result<NoiseMeasurement> found = measure_noise(options, nullptr);
        return found.ok() ? std::optional<ErrorCode>() : found.error().code;
    };
    NoiseOptions good;
    good.cores = {core};
    good.detour_seconds = good.work_seconds = good.time_seconds = 0.001;
    EXPECT_EQ(code(good), std::nullopt);
    const auto bad = [&](auto change) {
        NoiseOptions options = good;
        change(options);
        return code(options);
    };
    const auto invalid = ErrorCode::invalid_argument;
    EXPECT_EQ(bad([](auto& o) { o.cores.clear(); }), invalid);
    EXPECT_EQ(bad([&](auto& o) { o.cores = {core, core}; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.cores = {-1}; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.cores = {1 << 20}; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.detour_seconds = -1; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.work_seconds = std::nan(""); }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.time_seconds = 1e300; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.detour_seconds = o.work_seconds = o.time_seconds = 0; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.threshold = 1; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.threshold = std::nan(""); }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.work_ns = 0; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.window_ns = 1; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.most_detours = 0; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.most_detours = ~0ULL; }), invalid);
    EXPECT_EQ(bad([](auto& o) { o.time_seconds = 80000; }), invalid);
}

TEST(Noise, ACoreThatIsNotThereEndsAll) {
    NoiseOptions options;
    options.cores = {allowed_cores().at(0), CPU_SETSIZE - 1};
    options.detour_seconds = 600;
    const Result<NoiseMeasurement> found = measure_noise(options, nullptr);
    if (found.ok()) GTEST_SKIP() << "this machine has " << CPU_SETSIZE << " cores";
    EXPECT_EQ(found.error().code, ErrorCode::io);
    EXPECT_NE(found.error().message.find("core 1023"), std::string::npos);
}

TEST(Noise, TheCallersCheckEndsIt) {
    NoiseOptions options;
    options.cores = {allowed_cores().at(0)};
    options.detour_seconds = 600;
    const Result<NoiseMeasurement> found = measure_noise(options, [] { return false; });
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code, ErrorCode::interrupted);
}

}  // namespace
}  // namespace twinrun
