// Noise of the operating system: what each core's loops saw, as arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <utility>

#include "noise/noise.hpp"
#include "owned_array.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace twinrun;

namespace {

// A fact of each value, as an array of 64-bit numbers.
template <class T, class Of>
nb::object numbers(const std::vector<T>& values, Of&& of) {
    std::vector<std::int64_t> flat;
    flat.reserve(values.size());
    for (const T& value : values)
        flat.push_back(static_cast<std::int64_t>(of(value)));
    return owned_array(std::move(flat));
}

void define_measurement(nb::module_& m) {
    using C = CoreNoise;
    nb::class_<C>(m, "CoreNoise", "What the loops on a core saw. Times: ns since all cores began.")
        .def_ro("core", &C::core)
        .def_ro("undisturbed_ns", &C::undisturbed_ns, "Length of a step of the loop.")
        .def_ro("threshold_ns", &C::threshold_ns)
        .def_ro("begin_ns", &C::begin_ns, "Of the time in which detours were recorded.")
        .def_ro("end_ns", &C::end_ns)
        .def_ro("iterations", &C::iterations)
        .def_ro("full", &C::full, "It ended early, after as many detours as were asked for.")
        .def_prop_ro(
            "starts",
            [](const C& self) { return numbers(self.detours, [](const Detour& x) { return x.start_ns; }); })
        .def_prop_ro(
            "lengths",
            [](const C& self) { return numbers(self.detours, [](const Detour& x) { return x.length_ns; }); })
        .def_prop_ro("work_ns", [](const C& self) { return numbers(self.work_ns, std::identity()); })
        .def_prop_ro("window_work", [](const C& self) { return numbers(self.window_work, std::identity()); })
        .def_ro("involuntary_switches", &C::involuntary_switches)
        .def_ro("run_queue_ns", &C::run_queue_ns, "-1: the system does not report it.")
        .def_ro("moved", &C::moved, "The thread was on another core at the end.");
    nb::class_<NoiseMeasurement>(m, "NoiseMeasurement")
        .def_ro("clock", &NoiseMeasurement::clock)
        .def_ro("tick_ns", &NoiseMeasurement::tick_ns)
        .def_ro("cores", &NoiseMeasurement::cores);
}

NoiseMeasurement measure(const std::vector<int>& cores, double detour_seconds, double work_seconds,
                         double time_seconds, double threshold, std::uint64_t threshold_ns,
                         std::uint64_t work_ns, std::uint64_t window_ns, std::uint64_t most_detours,
                         bool counter) {
    const NoiseOptions options{cores,        detour_seconds, work_seconds, time_seconds, threshold,
                               threshold_ns, work_ns,        window_ns,    most_detours, counter};
    const auto poll = [] { return handle_signals_and([] {}); };
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return measure_noise(options, poll);
    };
    return take(run());
}

}  // namespace

void twinrun::define_noise(nb::module_& m) {
    define_measurement(m);
    m.def("measure_noise", &measure, "cores"_a, "detour_seconds"_a = 1.0, "work_seconds"_a = 0.5,
          "time_seconds"_a = 0.5, "threshold"_a = 9.0, "threshold_ns"_a = std::uint64_t{0},
          "work_ns"_a = std::uint64_t{100'000}, "window_ns"_a = std::uint64_t{1'000'000},
          "most_detours"_a = std::uint64_t{1} << 18, "counter"_a = true);
}
