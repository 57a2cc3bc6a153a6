// Where a comparison works: on the CPU, or on which devices. The choice compares measured and
// assumed rates.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

enum class DeviceUse : std::uint8_t {
    automatic,  // where the time is shorter by measured and assumed rates
    cpu,
    gpu,  // a device, or an error that says why there is none
};

struct DeviceChoice {
    DeviceUse use = DeviceUse::automatic;
    std::vector<int> devices;  // empty: all that can be used
    // Reads files straight into device memory (GPUDirect Storage), where that works.
    bool direct_storage = false;
};

struct DeviceWork {
    std::uint64_t bytes = 0;  // of both runs
    int threads = 1;          // that the CPU would have
    bool measured = false;    // elements by ULPs or on circles: the CPU decides pairs one by one
    // Of both sides' arrays, if they lie on devices.
    std::optional<int> array_a, array_b;
};

struct DevicePlace {
    std::vector<int> devices;  // empty: the CPU
    std::string reason;        // in words
};

struct DeviceRates {
    double cpu = 0;     // bytes a second of both runs that one thread compares
    double device = 0;  // bytes a second to one device
    double start = 0;   // seconds until a device can be used
};

// Whether devices are faster at work in host memory or storage; `why` says it in words either way.
bool device_pays(const DeviceWork& work, const DeviceRates& rates, int devices, std::string* why);

// Error: a device was asked for and is not available. Starts no driver for work that is too small
// to pay.
Result<DevicePlace> choose_place(const DeviceChoice& choice, const DeviceWork& work);

// "cuda:0", "cuda:0-3", "cuda:0,2"
[[nodiscard]] std::string device_names(std::span<const int> devices);

// What work on devices found out, for later choices of this process.
void device_has_started();
// From the host, in so many seconds in which the device had work.
void device_has_copied(std::uint64_t bytes, double seconds);

}  // namespace twinrun
