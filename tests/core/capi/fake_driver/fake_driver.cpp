// Stands for the driver of GPUs that an application has loaded: so much of libcuda.so.1 as says where memory lies.
#include <cstdint>

namespace {
unsigned long long device_memory = 0;
bool managed = false;
}  // namespace

extern "C" {

// From now on this address is on a device.
__attribute__((visibility("default"))) void fake_driver_place(const void* memory, bool is_managed) {
    device_memory = reinterpret_cast<std::uintptr_t>(memory);
    managed = is_managed;
}

__attribute__((visibility("default"))) int cuPointerGetAttribute(void* value, int attribute,
                                                                 unsigned long long pointer) {
    constexpr int kInvalidValue = 1;
    if (pointer != device_memory) return kInvalidValue;
    switch (attribute) {
        case 2: *static_cast<unsigned*>(value) = 2; return 0;                // memory type: device
        case 8: *static_cast<unsigned*>(value) = managed ? 1 : 0; return 0;  // is managed
        default: return kInvalidValue;
    }
}
}
