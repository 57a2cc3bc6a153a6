// The device library's calls: one lock for all, how many devices there are, and which calls fail.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "device/device.hpp"

namespace twinrun::fake {

constexpr int kMostDevices = 16;

// What a stream does, it does in the thread that waits, with the lock held.
extern std::recursive_mutex lock_of_all;
using Lock = std::lock_guard<std::recursive_mutex>;

// The number in a variable of the environment.
std::uint64_t number_of(const char* variable, std::uint64_t otherwise);
int devices();

DeviceStatus failure(ErrorCode code, int device, const std::string& text);

// The functions that can fail.
enum Function : std::uint8_t {
    kVersions,
    kCount,
    kDescribe,
    kFreeMemory,
    kPlaceOf,
    kPageLocked,
    kAllocate,
    kAllocateHost,
    kMakeStream,
    kWaitStream,
    kMakeEvent,
    kRecord,
    kStreamWait,
    kWaitEvent,
    kEventDone,
    kElapsed,
    kCopy,
    kFill,
    kGather,
    kCopyAll,
    kDigestCall,
    kSketch,
    kRoots,
    kAddSums,
    kBuild,
    kWalk,
    kEqualRoots,
    kCompare,
    kReport,
    kFindChanged,
    kListChanged,
    kHashContent,
    kHashChunks,
    kInsert,
    kCountByUse,
    kTakeOut,
    kPutIn,
    kLookUp,
    kPlaceAll,
    kJoin,
    kJoinTree,
    kConsolidate,
    kKeepBase,
    kMoveBase,
    kScatter,
    kPackLibrary,
    kPackScratch,
    kPack,
    kFunctions,
};
extern const char* const kNames[kFunctions + 1];  // the last is null

// At the beginning of every call that may fail. What is the host's counts as the first device's.
DeviceStatus enter(Function function, int device = 0);
#define FAKE_ENTER(...)           \
    const Lock lock(lock_of_all); \
    if (const DeviceStatus entered = enter(__VA_ARGS__); entered.failed) return entered

// FakeDeviceControl::fail, failed and calls.
bool set_fault(const char* text);
std::uint64_t failed_calls();
std::uint64_t calls_of(const char* function);

}  // namespace twinrun::fake
