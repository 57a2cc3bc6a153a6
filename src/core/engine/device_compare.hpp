// Comparison on GPUs: slices of elements and sketches go through page-locked buffers to one or several devices; arrays that
// lie on a device are used where they are. Results equal those of the CPU, but for the last bits of the two sums of squares.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "difference/difference.hpp"
#include "metadata/metadata.hpp"
#include "sketch/proof.hpp"
#include "source/source.hpp"
#include "source/stream.hpp"
#include "tree/walk.hpp"

namespace twinrun {

enum class DeviceUse : std::uint8_t {
    automatic,  // where the time is shorter by measured and assumed rates
    cpu,
    gpu,  // a device, or an error that says why there is none
};

struct DeviceChoice {
    DeviceUse use = DeviceUse::automatic;
    std::vector<int> devices;  // empty: all that can be used
    bool direct_storage =
        false;  // from files straight into device memory (GPUDirect Storage), where that works
};

// ---- where to work ----

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

// Error: a device was asked for and cannot be had. Starts no driver for work that is too small to pay.
Result<DevicePlace> choose_place(const DeviceChoice& choice, const DeviceWork& work);

[[nodiscard]] std::string device_names(std::span<const int> devices);  // "cuda:0", "cuda:0-3", "cuda:0,2"

// ---- work ----

struct DeviceOutcome {
    StreamStats stream;
    double device_seconds = 0;  // while any copy or kernel was under way, summed over devices
    std::string note;           // what could not be done as asked
};

struct DeviceElements {
    DeviceOutcome outcome;
    DifferenceStats stats;
    std::uint64_t different_chunks = 0;
};

// The elements of these chunks of both sides, which are prepared, of one type and size.
Result<DeviceElements> compare_elements_on(std::span<const int> devices, ElementSource& a, ElementSource& b,
                                           std::size_t chunk_items, std::span<const Range> chunks,
                                           const DifferenceRule& rule, const StreamOptions& options,
                                           bool direct_storage);

struct DeviceSketches {
    DeviceOutcome outcome;
    std::vector<Range> open;  // as SketchJob's
    std::uint64_t chunks_read = 0;
    std::array<std::uint64_t, 8> counts{};
};

Result<DeviceSketches> check_sketches_on(std::span<const int> devices, MetadataFile& a, std::size_t field_a,
                                         MetadataFile& b, std::size_t field_b, std::span<const Range> chunks,
                                         const ChunkProof& proof, bool elements_at_hand, CacheUse cache,
                                         const StreamOptions& options);

}  // namespace twinrun
