// For the sources of the device library only (*.cu): the runtime under CUDA's names, checked calls, and what differs between
// vendors. HIP compiles the same sources through the aliases below; that is not tested.
#pragma once

#if defined(__HIPCC__)
#define OCML_BASIC_ROUNDED_OPERATIONS  // __dmul_rd and its like
#include <hip/hip_runtime.h>
#define cudaError_t hipError_t
#define cudaSuccess hipSuccess
#define cudaErrorMemoryAllocation hipErrorOutOfMemory
#define cudaErrorNoDevice hipErrorNoDevice
#define cudaErrorInsufficientDriver hipErrorInsufficientDriver
#define cudaErrorInvalidValue hipErrorInvalidValue
#define cudaErrorNotReady hipErrorNotReady
#define cudaErrorDevicesUnavailable hipErrorUnknown
#define cudaErrorNoKernelImageForDevice hipErrorNoBinaryForGpu
#define cudaErrorInvalidDevice hipErrorInvalidDevice
#define cudaGetErrorName hipGetErrorName
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaGetDevice hipGetDevice
#define cudaSetDevice hipSetDevice
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaDeviceProp hipDeviceProp_t
#define cudaGetDeviceProperties hipGetDeviceProperties
#define cudaDeviceGetAttribute hipDeviceGetAttribute
#define cudaDeviceGetPCIBusId hipDeviceGetPCIBusId
#define cudaDevAttrMultiProcessorCount hipDeviceAttributeMultiprocessorCount
#define cudaRuntimeGetVersion hipRuntimeGetVersion
#define cudaDriverGetVersion hipDriverGetVersion
#define cudaMemGetInfo hipMemGetInfo
#define cudaMalloc hipMalloc
#define cudaFree hipFree
#define cudaHostAlloc hipHostMalloc
#define cudaHostAllocPortable hipHostMallocPortable
#define cudaFreeHost hipHostFree
#define cudaMemcpy hipMemcpy
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemcpyDefault hipMemcpyDefault
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemsetAsync hipMemsetAsync
#define cudaStream_t hipStream_t
#define cudaStreamCreateWithFlags hipStreamCreateWithFlags
#define cudaStreamNonBlocking hipStreamNonBlocking
#define cudaStreamDestroy hipStreamDestroy
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaStreamWaitEvent hipStreamWaitEvent
#define cudaEvent_t hipEvent_t
#define cudaEventCreateWithFlags hipEventCreateWithFlags
#define cudaEventDisableTiming hipEventDisableTiming
#define cudaEventBlockingSync hipEventBlockingSync
#define cudaEventDestroy hipEventDestroy
#define cudaEventRecord hipEventRecord
#define cudaEventSynchronize hipEventSynchronize
#define cudaEventElapsedTime hipEventElapsedTime
#define cudaPointerAttributes hipPointerAttribute_t
#define cudaPointerGetAttributes hipPointerGetAttributes
#define cudaMemoryTypeDevice hipMemoryTypeDevice
#define cudaMemoryTypeHost hipMemoryTypeHost
#define cudaMemoryTypeManaged hipMemoryTypeManaged
#define cudaFuncSetAttribute hipFuncSetAttribute
#define cudaFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor hipOccupancyMaxActiveBlocksPerMultiprocessor
#else
#include <cuda_runtime.h>
#endif

#include <cstdint>

#include "device/device.hpp"

namespace twinrun {

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
// After a launch: what the launch itself says. (What a kernel does wrong shows at the next synchronization.)
#define TWR_GPU_LAUNCHED(kernel)                                                          \
    do {                                                                                  \
        if (const cudaError_t twr_error = cudaGetLastError(); twr_error != cudaSuccess) { \
            return ::twinrun::gpu_failure(twr_error, device, kernel);                     \
        }                                                                                 \
    } while (0)

inline cudaStream_t gpu_stream(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace twinrun
