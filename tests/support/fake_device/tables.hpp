// The tables of functions that the core asks for, one a subject.
#pragma once

#include "dedup/dedup_device.hpp"
#include "device/device.hpp"
#include "difference/difference_device.hpp"
#include "digest/digest_device.hpp"
#include "digest/sums_device.hpp"
#include "element/element_device.hpp"
#include "record/pack_device.hpp"
#include "tree/tree_device.hpp"

namespace twinrun::fake {

extern const DeviceRuntime kRuntime;
extern const DeviceElementKernels kElement;
extern const DeviceDigestKernels kDigest;
extern const DeviceSumsKernels kSums;
extern const DeviceTreeKernels kTree;
extern const DeviceDifferenceKernels kDifference;
extern const DeviceDedupKernels kDedup;
extern const DevicePackKernels kPacking;

// How many events there are.
std::uint64_t event_count();
// FakeDeviceControl::work_ahead.
void work_ahead(unsigned every);

}  // namespace twinrun::fake
