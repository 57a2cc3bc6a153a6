#include "capi/place.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "device/device.hpp"

namespace twinrun::capi {

namespace {

// The driver, if the application has loaded it. Memory on a device can only come from there; to
// load it ourselves would cost tenths of a second, and a context on a device that the application
// does not want.
void* loaded_driver() { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD); }

// Asks the driver itself whether the host cannot read memory.
bool is_device_only(void* driver, const void* memory) {
    // cuPointerGetAttribute, and the numbers of CUpointer_attribute and CUmemorytype (cuda.h).
    using Attribute = int (*)(void* value, int attribute, unsigned long long pointer);
    constexpr int kMemoryType = 2;
    constexpr int kIsManaged = 8;
    constexpr unsigned kDevice = 2;
    const auto attribute = reinterpret_cast<Attribute>(dlsym(driver, "cuPointerGetAttribute"));
    if (attribute == nullptr) return false;
    const auto pointer = static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(memory));
    unsigned type = 0;
    unsigned managed = 0;
    return attribute(&type, kMemoryType, pointer) == 0 && type == kDevice &&
           !(attribute(&managed, kIsManaged, pointer) == 0 && managed != 0);
}

}  // namespace

Result<int> place_of(const void* memory) {
    void* const driver = loaded_driver();
    // A device library that was named is asked in any case.
    if (driver == nullptr && std::getenv("TWINRUN_CUDA_LIBRARY") == nullptr) return kHostMemory;
    const DeviceRuntime* runtime = device_runtime();
    bool unreadable = false;
    int device = kHostMemory;
    DeviceStatus status;
    if (runtime != nullptr) {
        status = runtime->place_of(memory, &device);
    } else if (driver != nullptr) {
        unreadable = is_device_only(driver, memory);
    }
    if (driver != nullptr) dlclose(driver);
    if (unreadable) {
        return Error{ErrorCode::unsupported,
                     "it lies on a GPU, which cannot be used: " + probe_devices().reason};
    }
    // A driver that cannot say has no devices: not one of its pointers can be in use.
    return status.failed ? kHostMemory : device;
}

}  // namespace twinrun::capi
