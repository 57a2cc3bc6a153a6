#include "engine/device_place.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "base/stopwatch.hpp"
#include "device/device.hpp"
#include "difference/difference.hpp"
#include "engine/device_team.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

// What earlier work of this process found out.
std::atomic<bool> device_started{false};
std::atomic<double> measured_device_rate{0};

// Bytes a second of both runs that a thread compares, of data that is not in the CPU's caches.
double measure_cpu_rate(const Measure& measure) {
    constexpr std::size_t scalars = 1 << 20;
    std::vector<float> a(scalars, 1.0F);
    std::vector<float> b(scalars, 1.0F);
    DifferenceRule rule;
    rule.tolerance.atol = 1e-3;
    rule.measure = measure;
    double best = 0;
    for (int round = 0; round < 2; ++round) {
        DifferenceStats stats;
        const Stopwatch watch;
        compare_elements(difference_kernels(), dense_view(DType::f32, a.data()),
                         dense_view(DType::f32, b.data()), 0, scalars, 0, rule, &stats);
        best = std::max(best, 8.0 * scalars / std::max(watch.seconds(), 1e-6));
    }
    return best;
}
double cpu_rate(bool measured) {
    if (measured) {
        static const double once = measure_cpu_rate({.ulps = 1});
        return once;
    }
    static const double once = measure_cpu_rate({});
    return once;
}

std::string text(const char* format, double a, double b) {
    char buffer[160];
    std::snprintf(buffer, sizeof buffer, format, a, b);
    return buffer;
}

}  // namespace

bool device_pays(const DeviceWork& work, const DeviceRates& rates, int devices, std::string* why) {
    if (work.bytes < kSmallestDeviceWork) {
        *why = "little data: the CPU is done before a device has started";
        return false;
    }
    const auto bytes = static_cast<double>(work.bytes);
    const double on_cpu = bytes / (rates.cpu * std::max(work.threads, 1));
    const double on_device = rates.start + bytes / (rates.device * std::max(devices, 1));
    const bool pays = on_device < on_cpu;
    *why = text(pays ? "estimated: %.2g s on the CPU, %.2g s on devices"
                     : "estimated: %.2g s on the CPU, no less (%.2g s) on devices",
                on_cpu, on_device);
    return pays;
}

std::string device_names(std::span<const int> devices) {
    std::vector<int> all(devices.begin(), devices.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::string names = "cuda:";
    for (std::size_t i = 0; i < all.size();) {
        std::size_t last = i;
        while (last + 1 < all.size() && all[last + 1] == all[last] + 1)
            ++last;
        if (i != 0) names += ',';
        names += std::to_string(all[i]);
        if (last > i) {
            names += last == i + 1 ? ',' : '-';
            names += std::to_string(all[last]);
        }
        i = last + 1;
    }
    return names;
}

Result<DevicePlace> choose_place(const DeviceChoice& choice, const DeviceWork& work) {
    DevicePlace place;
    if (choice.use == DeviceUse::cpu) {
        place.reason = "asked for";
        return place;
    }
    const bool automatic = choice.use == DeviceUse::automatic;
    const bool array = work.array_a || work.array_b;
    if (automatic && !array) {
        if (work.bytes < kSmallestDeviceWork) {
            static_cast<void>(device_pays(work, {}, 1, &place.reason));
            return place;
        }
        if (device_runtime() == nullptr) {
            // That of the library: no driver is started for it.
            place.reason = probe_devices().reason;
            return place;
        }
        const double measured = measured_device_rate.load();
        const DeviceRates rates{cpu_rate(work.measured), measured > 0 ? measured : kAssumedDeviceRate,
                                device_started.load() ? 0 : kDeviceStartSeconds};
        const int devices = choice.devices.empty() ? 1 : static_cast<int>(choice.devices.size());
        if (!device_pays(work, rates, devices, &place.reason)) return place;
    } else {
        place.reason = automatic ? "the array lies there" : "asked for";
    }
    const auto refuse = [&](const std::string& why) -> Result<DevicePlace> {
        if (!automatic) return Error{ErrorCode::unsupported, why + ": compare on the CPU (device: cpu)"};
        return DevicePlace{{}, why};
    };
    const DeviceProbe& found = probe_devices();
    const std::vector<int> usable = found.usable();
    if (usable.empty()) return refuse(found.reason);
    if (const auto complete = check_device_tables(); !complete) return refuse(complete.error().message);
    for (const int d : choice.devices) {
        if (std::find(usable.begin(), usable.end(), d) != usable.end()) continue;
        const bool there = d >= 0 && static_cast<std::size_t>(d) < found.devices.size();
        return refuse("cuda:" + std::to_string(d) + " cannot be used: " +
                      (there ? std::string(found.devices[static_cast<std::size_t>(d)].reason)
                             : "there is no device of that number"));
    }
    const std::vector<int>& allowed = choice.devices.empty() ? usable : choice.devices;
    if (array) {
        for (const auto& of : {work.array_a, work.array_b}) {
            if (of && std::find(allowed.begin(), allowed.end(), *of) != allowed.end()) {
                place.devices = {*of};
                return place;
            }
        }
        if (automatic) return refuse("the device that the array lies on is not one to be used");
        place.devices = {allowed.front()};
        return place;
    }
    place.devices = allowed;
    if (choice.devices.empty()) {
        // Small work is not spread: every device costs its start.
        const std::uint64_t most = std::max<std::uint64_t>(1, work.bytes / kSmallestDeviceWork);
        if (place.devices.size() > most) place.devices.resize(most);
    }
    return place;
}

void device_has_started() { device_started.store(true); }
void device_has_copied(std::uint64_t bytes, double seconds) {
    constexpr std::uint64_t least = 256 << 20;  // less tells little of the rate
    if (bytes >= least && seconds > 0) measured_device_rate.store(static_cast<double>(bytes) / seconds);
}

}  // namespace twinrun
