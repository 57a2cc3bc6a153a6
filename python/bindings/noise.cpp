// Noise of the operating system: what each core's loops saw, as arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "noise/noise.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace twinrun;

namespace {

// 64-bit numbers in the machine's byte order, for numpy.frombuffer.
template <class T, class Of>
nb::bytes numbers(const std::vector<T>& values, Of&& of) {
    std::vector<std::int64_t> flat;
    flat.reserve(values.size());
    for (const T& value : values)
        flat.push_back(static_cast<std::int64_t>(of(value)));
    return nb::bytes(flat.data(), flat.size() * sizeof(std::int64_t));
}

nb::dict core_dict(const CoreNoise& core) {
    const auto same = [](auto value) { return value; };
    nb::dict d;
    d["core"] = core.core;
    d["undisturbed_ns"] = core.undisturbed_ns;
    d["threshold_ns"] = core.threshold_ns;
    d["begin_ns"] = core.begin_ns;
    d["end_ns"] = core.end_ns;
    d["iterations"] = core.iterations;
    d["full"] = core.full;
    d["starts"] = numbers(core.detours, [](const Detour& x) { return x.start_ns; });
    d["lengths"] = numbers(core.detours, [](const Detour& x) { return x.length_ns; });
    d["work_ns"] = numbers(core.work_ns, same);
    d["window_work"] = numbers(core.window_work, same);
    d["involuntary_switches"] = core.involuntary_switches;
    d["run_queue_ns"] = core.run_queue_ns;
    d["moved"] = core.moved;
    return d;
}

nb::dict measure(const std::vector<int>& cores, double detour_seconds, double work_seconds,
                 double time_seconds, double threshold, std::uint64_t threshold_ns, std::uint64_t work_ns,
                 std::uint64_t window_ns, std::uint64_t most_detours, bool counter) {
    const NoiseOptions options{cores,        detour_seconds, work_seconds, time_seconds, threshold,
                               threshold_ns, work_ns,        window_ns,    most_detours, counter};
    const auto poll = [] {
        const nb::gil_scoped_acquire lock;
        return PyErr_CheckSignals() == 0;
    };
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return measure_noise(options, poll);
    };
    const NoiseMeasurement found = take(run());
    nb::list list;
    for (const CoreNoise& core : found.cores)
        list.append(core_dict(core));
    nb::dict d;
    d["clock"] = found.clock;
    d["tick_ns"] = found.tick_ns;
    d["cores"] = list;
    return d;
}

}  // namespace

void twinrun::define_noise(nb::module_& m) {
    m.def("measure_noise", &measure, "cores"_a, "detour_seconds"_a = 1.0, "work_seconds"_a = 0.5,
          "time_seconds"_a = 0.5, "threshold"_a = 9.0, "threshold_ns"_a = std::uint64_t{0},
          "work_ns"_a = std::uint64_t{100'000}, "window_ns"_a = std::uint64_t{1'000'000},
          "most_detours"_a = std::uint64_t{1} << 18, "counter"_a = true);
}
