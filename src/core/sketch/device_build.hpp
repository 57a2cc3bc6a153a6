// Digests, residues, trees and sums by place of arrays that live on devices: made there, all fields
// of a device in one batch.
//
// Results equal those of the host (build_in_memory) bit for bit. Our work follows each array's own
// stream on the device and does not hold it up; the calling thread waits until the results are
// there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sketch/build.hpp"
#include "source/device_array.hpp"

namespace twinrun {

struct DeviceBuildOptions {
    // Device memory for results, scratch and gathered elements, on each device. 0: as much as is
    // free, less a reserve. Less than the work needs, or than the device has: the work is done in
    // slices, the results are the same.
    std::uint64_t memory_bytes = 0;
};
struct DeviceBuildStats {
    std::uint64_t batches = 0;  // of all devices: one a device, unless memory is short
    std::uint64_t devices = 0;
    double seconds = 0;  // in all, of the caller's time
};

// Takes residues of field `field` as they come, in order, from `offset` of its section on (a
// multiple of kPageBytes; so is the size, unless it ends the section). Called from one thread a
// device.
using TakeResidues =
    std::function<Result<>(std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes)>;

// into[i] becomes what build_in_memory() makes of fields[i], whose elements are arrays[i]. With
// `take`, residues go there and into[i].residues is left empty. Thread-safe. Errors: an array that
// does not fit its field or check_array(), a device.
Result<DeviceBuildStats> build_on_device(std::span<const FieldMetadata* const> fields,
                                         std::span<const DeviceArray* const> arrays,
                                         std::vector<BuiltField>& into,
                                         const DeviceBuildOptions& options = {},
                                         const TakeResidues& take = nullptr);

}  // namespace twinrun
