// A device library without a device: all tables that the core asks for, on the host, with the portable kernels and host memory
// in place of devices'. What surrounds the kernels (slices, orders of streams, scratch memory, pools, errors) is tested with
// it on any machine; it is never installed.
//
//   TWINRUN_CUDA_LIBRARY=…/libtwinrun_fake_device.so test_engine --gtest_filter='Device*'
//
// Streams are as lazy as they may be: work is done when somebody waits for it, so that a wait that is missing shows as wrong
// data. Memory is filled with rubbish when it is given and when it goes back. Kernels refuse addresses that are not on their
// device, or not aligned; scratch memory on the host that changes before the kernel has run is an error.
//
//   TWINRUN_FAKE_DEVICES=2                  how many; 1 where it is not set
//   TWINRUN_FAKE_DEVICE_MEMORY=30000000     bytes of each
//   TWINRUN_FAKE_DEVICE_FAIL=copy:3:io      the third call of `copy` fails, once; copy:3+:io: and all after it. Functions:
//                                           kNames of faults.cpp, or any (each call counted). Codes:
//                                           out_of_memory (where none is given), io, unsupported, internal; or lost: io, and
//                                           so does every later call for that device, whose work is never done
#include "support/fake_device.hpp"

#include <cstring>

#include "support/fake_device/faults.hpp"
#include "support/fake_device/memory.hpp"
#include "support/fake_device/streams.hpp"
#include "support/fake_device/tables.hpp"

namespace twinrun::fake {
namespace {

void held_now(twinrun::testing::FakeDeviceHeld* held) {
    const Lock lock(lock_of_all);
    *held = {block_count(), stream_count(), event_count()};
}
const twinrun::testing::FakeDeviceControl kControl = {.fail = set_fault,
                                                      .failed = failed_calls,
                                                      .calls = calls_of,
                                                      .functions = kNames,
                                                      .held = held_now,
                                                      .work_ahead = work_ahead};

}  // namespace
}  // namespace twinrun::fake

extern "C" __attribute__((visibility("default"))) const void* twinrun_device_table(const char* name,
                                                                                   std::uint32_t abi,
                                                                                   const char* version) {
    using namespace twinrun;
    using namespace twinrun::fake;
    if (abi != kDeviceAbi || std::strcmp(version, TWINRUN_VERSION) != 0) return nullptr;
    if (std::strcmp(name, "runtime") == 0) return &kRuntime;
    if (std::strcmp(name, "element") == 0) return &kElement;
    if (std::strcmp(name, "digest") == 0) return &kDigest;
    if (std::strcmp(name, "sums") == 0) return &kSums;
    if (std::strcmp(name, "tree") == 0) return &kTree;
    if (std::strcmp(name, "difference") == 0) return &kDifference;
    if (std::strcmp(name, "dedup") == 0) return &kDedup;
    if (std::strcmp(name, "pack") == 0) return &kPacking;
    if (std::strcmp(name, "fake") == 0) return &kControl;
    return nullptr;
}
