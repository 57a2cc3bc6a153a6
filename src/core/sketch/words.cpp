#include "sketch/words.hpp"

#include <utility>

#include "digest/digest_device.hpp"
#include "sketch/build.hpp"

namespace twinrun {

namespace {

// The size of a chunk is a part of the definition.
constexpr std::uint32_t kChunkBytes = kRootChunkBytes;
// Each integer is its own cell.
constexpr Tolerance kOfWords{1, 0};

}  // namespace

DType word_type(DType dtype) {
    switch (item_bytes(scalar_type(dtype))) {
        case 1: return DType::i8;
        case 2: return DType::i16;
        default: return DType::i32;
    }
}

std::vector<std::uint64_t> word_shape(DType dtype, std::vector<std::uint64_t> shape) {
    if (scalars_per_item(dtype) != 1) shape.push_back(scalars_per_item(dtype));
    if (item_bytes(scalar_type(dtype)) == 8) shape.push_back(2);
    return shape;
}

DeviceArray as_words(DeviceArray array) {
    const auto scalar = static_cast<std::int64_t>(item_bytes(scalar_type(array.dtype)));
    if (!array.strides.empty()) {
        if (scalars_per_item(array.dtype) != 1) array.strides.push_back(scalar);
        if (scalar == 8) array.strides.push_back(4);
    }
    array.shape = word_shape(array.dtype, std::move(array.shape));
    array.dtype = word_type(array.dtype);
    return array;
}

Result<FieldMetadata> plan_words(DType word, std::vector<std::uint64_t> shape) {
    FieldPlan plan;
    plan.name = "words";
    plan.dtype = word;
    plan.shape = std::move(shape);
    plan.tolerance = kOfWords;
    plan.residue_bits = 0;
    plan.chunk_bytes = kChunkBytes;
    return plan_field(std::move(plan));
}

}  // namespace twinrun
