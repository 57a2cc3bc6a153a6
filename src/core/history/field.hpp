// The application's arrays that capture reads, on the host or on a device, and the settings of
// their history.
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

// Which exact digests are tokens, as earlier versions made them: of no type, of all types but f16,
// bf16 and f32, or of all. Digests of arrays (spec/digest.md, section 13) stay what they were, and
// those of a run can be held against an earlier reference.
enum class Tokens : std::uint8_t { none, but_binary32, all };

// Settings of what a history digests and stores. Fixed when the history is made.
struct HistorySettings {
    Tolerance tolerance;
    unsigned residue_bits = 4;
    std::uint32_t chunk_bytes = kSmallestChunk;
    DigestKind kind = DigestKind::linear;
    bool keep_data = true;                 // false: metadata only
    std::optional<RecordSettings> record;  // set: data is stored as differences
    bool shared = false;                   // data of several ranks may lie in one file
    Tokens tokens = Tokens::none;          // not stored
    bool operator==(const HistorySettings&) const = default;
};

// An array to capture. Its memory is the application's, and is read only during capture().
struct CapturedField {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::uint64_t> shape;
    const void* data = nullptr;
    // Distance of items in bytes. If `strides` is empty, `stride` is the constant distance in the
    // flattened array (0: dense). Otherwise `strides` has one distance for each dimension, in any
    // order of size, and negative ones too.
    std::uint64_t stride = 0;
    std::vector<std::int64_t> strides;
    // In which items are stored; dense data lies in this order.
    ArrayOrder order = ArrayOrder::row_major;
    bool own_tolerance = false;  // false: the run's tolerance is used
    Tolerance tolerance;
    // Place in the global array of all ranks; both empty: there is none.
    std::vector<std::uint64_t> global_shape;
    std::vector<std::uint64_t> global_offset;
    // Name of a captured one-dimensional integer field with an ID for each row (index of the first
    // dimension; of the last one if the order is column-major). Rows are stored in ascending order
    // of IDs, so that their order in memory does not matter. Empty: no IDs.
    std::string ids;
    // Set: the elements are in this array, of the same type and size; data and strides are ignored.
    // Digests are made on the device. Elements come to the host only if the history keeps data, in
    // a record only those that are new. Elements that stay on the device get no data sums (a record
    // has checksums of its own).
    std::optional<DeviceArray> device;
};

// A shape, or a place in a global array, as metadata stores it: slowest dimension first, that is
// reversed if the order is column-major.
std::vector<std::uint64_t> stored_shape(std::vector<std::uint64_t> shape, ArrayOrder order);

// Metadata of the field before its data is read. Errors: those of plan_field().
Result<FieldMetadata> plan_captured(const CapturedField& field, const HistorySettings& settings);

}  // namespace twinrun
