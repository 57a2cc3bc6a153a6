#include "history/field.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace twinrun {

std::vector<std::uint64_t> stored_shape(std::vector<std::uint64_t> shape, ArrayOrder order) {
    if (order == ArrayOrder::column_major) std::reverse(shape.begin(), shape.end());
    return shape;
}

Result<FieldMetadata> plan_captured(const CapturedField& field, const HistorySettings& settings) {
    FieldPlan plan;
    plan.name = field.name;
    plan.dtype = field.dtype;
    plan.byte_order = std::endian::native == std::endian::little ? ByteOrder::little : ByteOrder::big;
    plan.order = field.order;
    plan.shape = stored_shape(field.shape, field.order);
    plan.global_shape = stored_shape(field.global_shape, field.order);
    plan.global_offset = stored_shape(field.global_offset, field.order);
    plan.tolerance = field.own_tolerance ? field.tolerance : settings.tolerance;
    // Integers are compared exactly unless the field has its own tolerance, and booleans always.
    if (field.dtype == DType::boolean || (!field.own_tolerance && !is_floating(field.dtype)))
        plan.tolerance = {};
    plan.residue_bits = settings.residue_bits;
    plan.chunk_bytes = settings.chunk_bytes;
    plan.kind = settings.kind;
    const bool binary32 = exact_kind(scalar_type(field.dtype)) == CellKind::binary32;
    plan.tokens = settings.tokens == Tokens::all || (settings.tokens == Tokens::but_binary32 && !binary32);
    return plan_field(std::move(plan));
}

}  // namespace twinrun
