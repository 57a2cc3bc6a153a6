// How sketches of arrays of one device are made together: for started_sketches.cpp and
// sketch_plan.cpp only.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "metadata/metadata.hpp"
#include "sketch/device_batch.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// Does not change once it is made: any thread may use it, and again for the same arrays.
struct SketchPlan {
    static constexpr std::size_t kNoPiece = std::numeric_limits<std::size_t>::max();

    // The caller keeps the fields.
    SketchPlan(std::vector<const FieldMetadata*> all_fields, std::vector<DeviceArray> all_arrays);
    SketchPlan(std::vector<FieldMetadata> all_fields, std::vector<DeviceArray> all_arrays);
    SketchPlan(const SketchPlan&) = delete;  // it points into itself
    SketchPlan& operator=(const SketchPlan&) = delete;

    // Errors: those of StartedSketches::plan().
    Result<> make();

    std::vector<FieldMetadata> own_metadata;  // or the caller has them
    std::vector<const FieldMetadata*> metadata;
    std::vector<DeviceArray> own_arrays;
    std::vector<const DeviceArray*> arrays;
    device_batch::Fields fields;
    device_batch::Tables tables{};
    int device = 0;
    std::vector<std::size_t> piece_of;  // of each field; kNoPiece: it has no element
    // Bytes of arrays that must be gathered. How much of them at a time is found out with each use:
    // the batch is laid out then.
    std::uint64_t to_gather = 0;
    device_batch::Batch batch;
};

}  // namespace twinrun
