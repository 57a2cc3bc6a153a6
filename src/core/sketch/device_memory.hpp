// The block of device memory that sketches which were made together share. For device_sketch.cpp
// and started_sketches.cpp only.
#pragma once

#include "device/device_workspace.hpp"

namespace twinrun {

struct SketchMemory {
    DeviceWorkspaces::Lease workspace;
};

}  // namespace twinrun
