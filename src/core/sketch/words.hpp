// The bits of an array's scalars as words, integers that are each their own cell: what the digest
// of an array is made of (spec/digest.md, section 13).
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "metadata/metadata.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// i8, i16 or i32: the word of scalars of 1, 2, or 4 and 8 bytes.
DType word_type(DType dtype);
// The words of an array of this type and shape; dense.
std::vector<std::uint64_t> word_shape(DType dtype, std::vector<std::uint64_t> shape);
// The same memory as words: of each scalar of 8 bytes the lower half first.
DeviceArray as_words(DeviceArray array);
// What the digest of words is made by. Errors: an impossible shape.
Result<FieldMetadata> plan_words(DType word, std::vector<std::uint64_t> shape);

}  // namespace twinrun
