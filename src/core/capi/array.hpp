// Arrays as the C interface describes them.
#pragma once

#include "history/field.hpp"
#include "twinrun/twinrun.h"

namespace twinrun::capi {

// The array as capture takes it. `array` may be of an older version of the interface or of a newer one (README.md). Errors
// name the array.
Result<CapturedField> captured_field(const twr_array* array);

// Structures that begin with their size: an error if no version of the interface has this one. `known` is ours, `least` the
// end of what every version has.
Result<> check_size(std::size_t size, std::size_t known, std::size_t least, const char* type);

}  // namespace twinrun::capi
