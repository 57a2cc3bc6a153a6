// What capture is given: arrays of the application's, on the host or on a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "metadata/metadata.hpp"
#include "record/settings.hpp"
#include "sketch/build.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// What a history digests and keeps, fixed when it is made.
struct HistorySettings {
    Tolerance tolerance;
    unsigned residue_bits = 4;
    std::uint32_t chunk_bytes = kSmallestChunk;
    DigestKind kind = DigestKind::linear;
    bool keep_data = true;                 // false: metadata only
    std::optional<RecordSettings> record;  // data is kept as differences
    bool shared = false;                   // data of several ranks may lie in one file
    bool operator==(const HistorySettings&) const = default;
};

// An array to capture. The memory is read during capture only.
struct CapturedField {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::uint64_t> shape;
    const void* data = nullptr;
    // Bytes between items. Either one constant stride of the flattened array (0: dense), or, if `strides` is not empty, one a
    // dimension; these may be in any order and negative.
    std::uint64_t stride = 0;
    std::vector<std::int64_t> strides;
    ArrayOrder order = ArrayOrder::row_major;  // in which items are kept; dense data lies in this order
    bool own_tolerance = false;                // else the run's
    Tolerance tolerance;
    // Place in the global array of all ranks; both empty: none.
    std::vector<std::uint64_t> global_shape;
    std::vector<std::uint64_t> global_offset;
    // Name of a captured one-dimensional integer field with an ID for each item of the first dimension (of the last one where
    // the order is column-major): items are kept in ascending order of IDs, so that their order in memory does not matter.
    std::string ids;
    // Set: the elements are these, of the same type and as many; data and strides are not used. Digests are made on the
    // device. Only if the history keeps data do elements come to the host, of a record only those that are new; where they do not
    // there are no checksums of them (a record has its own).
    std::optional<DeviceArray> device;
};

// Shapes, and places in global arrays, as metadata keeps them: slowest dimension first, so reversed where the order is
// column-major.
std::vector<std::uint64_t> stored_shape(std::vector<std::uint64_t> shape, ArrayOrder order);

// The field of a step's metadata, before its data is seen. Errors: plan_field's.
Result<FieldMetadata> plan_captured(const CapturedField& field, const HistorySettings& settings);

}  // namespace twinrun
