// For the sources of the device library only (*.cu): CUDA's runtime, and checked calls of it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/device.hpp"

namespace twinrun {

// What is asked of a device once is remembered for so many.
constexpr int kMostDevices = 64;

// device_cuda.cu. what: the call, or the kernel's name.
DeviceStatus gpu_failure(cudaError_t error, int device, const char* what);
DeviceStatus gpu_failure(ErrorCode code, int device, const char* what);

// Makes a device current for a scope.
class CurrentDevice {
   public:
    explicit CurrentDevice(int device) {
        error_ = cudaGetDevice(&before_);
        if (error_ == cudaSuccess && before_ != device) error_ = cudaSetDevice(device);
        changed_ = error_ == cudaSuccess && before_ != device;
    }
    ~CurrentDevice() {
        if (changed_) static_cast<void>(cudaSetDevice(before_));
    }
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;
    [[nodiscard]] cudaError_t error() const { return error_; }

   private:
    int before_ = 0;
    bool changed_ = false;
    cudaError_t error_ = cudaSuccess;
};

// In functions that return DeviceStatus and have an int `device`.
#define TWR_GPU(call)                                                         \
    do {                                                                      \
        if (const cudaError_t twr_error = (call); twr_error != cudaSuccess) { \
            return ::twinrun::gpu_failure(twr_error, device, #call);          \
        }                                                                     \
    } while (0)
#define TWR_GPU_CURRENT(device)                         \
    const ::twinrun::CurrentDevice twr_current(device); \
    TWR_GPU(twr_current.error())
// After a launch: what the launch itself says. (What a kernel does wrong shows at the next
// synchronization.)
#define TWR_GPU_LAUNCHED(kernel)                                                          \
    do {                                                                                  \
        if (const cudaError_t twr_error = cudaGetLastError(); twr_error != cudaSuccess) { \
            return ::twinrun::gpu_failure(twr_error, device, kernel);                     \
        }                                                                                 \
    } while (0)

inline cudaStream_t gpu_stream(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace twinrun
