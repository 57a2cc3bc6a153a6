#include "sketch/sketch_plan.hpp"

#include <utility>

namespace twinrun {

using namespace device_batch;

namespace {

template <class T>
std::vector<const T*> pointers_to(const std::vector<T>& objects) {
    std::vector<const T*> all;
    all.reserve(objects.size());
    for (const T& object : objects)
        all.push_back(&object);
    return all;
}

}  // namespace

SketchPlan::SketchPlan(std::vector<const FieldMetadata*> all_fields, std::vector<DeviceArray> all_arrays)
    : metadata(std::move(all_fields)),
      own_arrays(std::move(all_arrays)),
      arrays(pointers_to(own_arrays)),
      fields(metadata, arrays),
      batch(fields) {}

SketchPlan::SketchPlan(std::vector<FieldMetadata> all_fields, std::vector<DeviceArray> all_arrays)
    : own_metadata(std::move(all_fields)),
      metadata(pointers_to(own_metadata)),
      own_arrays(std::move(all_arrays)),
      arrays(pointers_to(own_arrays)),
      fields(metadata, arrays),
      batch(fields) {}

Result<> SketchPlan::make() {
    TWR_CHECK(check_fields(fields));
    TWR_TRY(tables, device_batch::tables());
    fields.plan_sums();
    if (!arrays.empty()) device = arrays[0]->device;
    piece_of.assign(metadata.size(), kNoPiece);
    for (std::size_t f = 0; f < metadata.size(); ++f) {
        if (arrays[f]->device != device) {
            return Error{ErrorCode::invalid_argument,
                         "sketches of arrays of several devices: build those of each by themselves"};
        }
        if (metadata[f]->items() == 0) continue;
        piece_of[f] = batch.pieces().size();
        batch.add(fields.piece(f, 0, fields.slices(f)));
        if (!fields.dense(f)) to_gather += device_aligned(metadata[f]->data_bytes());
    }
    if (to_gather == 0) {
        batch.lay_out(tables, 0);
    } else {
        batch.lay_out_arena();
    }
    return success();
}

}  // namespace twinrun
