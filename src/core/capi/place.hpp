// Where memory lies that an application names.
#pragma once

#include "base/result.hpp"

namespace twinrun::capi {

// The device's number, or kHostMemory. Costs next to nothing in a process that uses no device.
// Error: memory on a device that this installation cannot read.
Result<int> place_of(const void* memory);

}  // namespace twinrun::capi
