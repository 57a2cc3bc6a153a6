// Comparison on GPUs: slices of elements and sketches go through page-locked buffers to one or
// several devices; arrays that lie on a device are used where they are. Results equal those of the
// CPU, but for the last bits of the two sums of squares.
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
