// Arrays as the C interface describes them.
#pragma once

#include "history/field.hpp"
#include "twinrun/twinrun.h"

namespace twinrun::capi {

// The array as capture takes it. `array` may be of an older version of the interface or of a newer
// one (README.md). Errors name the array.
Result<CapturedField> captured_field(const twr_array* array);

}  // namespace twinrun::capi
