// The device library: its runtime, and the one symbol by which all of its tables are found.
#include <cstdio>
#include <cstring>

#include "device/gpu.hpp"

namespace twinrun {

DeviceStatus gpu_failure(ErrorCode code, int device, const char* what) {
    DeviceStatus status;
    status.failed = true;
    status.code = code;
    std::snprintf(status.text, sizeof status.text, "cuda:%d: %s", device, what);
    return status;
}

DeviceStatus gpu_failure(cudaError_t error, int device, const char* what) {
    // Clears the error: the next launch must not report it again.
    static_cast<void>(cudaGetLastError());
    DeviceStatus status;
    status.failed = true;
    const char* advice = "";
    switch (error) {
        case cudaErrorMemoryAllocation: status.code = ErrorCode::out_of_memory; break;
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInvalidDevice: status.code = ErrorCode::unsupported; break;
        case cudaErrorDevicesUnavailable:
            status.code = ErrorCode::io;
            advice = ": the device is busy or in exclusive use: wait, or use another device";
            break;
        default:
            status.code = ErrorCode::io;
            advice =
                ": the device cannot be used by this process any more: start it again, or work on the CPU "
                "(device: cpu)";
    }
    // Only the name of the call is kept: its arguments do not help a reader.
    const char* end = std::strchr(what, '(');
    const int length = end == nullptr ? static_cast<int>(std::strlen(what)) : static_cast<int>(end - what);
    std::snprintf(status.text, sizeof status.text, "cuda:%d: %.*s: %s (%s)%s", device, length, what,
                  cudaGetErrorString(error), cudaGetErrorName(error), advice);
    return status;
}

namespace {

constexpr int kSmallestMajor = 8;

DeviceStatus versions(int* runtime, int* driver) {
    constexpr int device = 0;
    TWR_GPU(cudaRuntimeGetVersion(runtime));
    if (cudaDriverGetVersion(driver) != cudaSuccess) *driver = 0;
    static_cast<void>(cudaGetLastError());
    return {};
}

DeviceStatus count(int* devices) {
    const cudaError_t error = cudaGetDeviceCount(devices);
    static_cast<void>(cudaGetLastError());
    if (error == cudaSuccess) return {};
    *devices = 0;
    if (error == cudaErrorNoDevice) return {};
    DeviceStatus status;
    status.failed = true;
    status.code = ErrorCode::unsupported;
    int driver = 0;
    int runtime = 0;
    static_cast<void>(cudaRuntimeGetVersion(&runtime));
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    static_cast<void>(cudaGetLastError());
    if (driver == 0) {
        std::snprintf(status.text, sizeof status.text, "there is no NVIDIA driver (%s)",
                      cudaGetErrorName(error));
    } else if (driver / 1000 < runtime / 1000) {
        std::snprintf(status.text, sizeof status.text,
                      "the driver is for CUDA %d.%d, this library for %d.%d: update the driver",
                      driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    } else {
        std::snprintf(status.text, sizeof status.text, "devices cannot be counted: %s (%s)",
                      cudaGetErrorString(error), cudaGetErrorName(error));
    }
    return status;
}

__global__ void answer(int* value) { *value = 42; }

// Whether a kernel of ours runs here: there may be no code for the device, or somebody else may own
// it.
DeviceStatus try_kernel(int device) {
    int* value = nullptr;
    int host = 0;
    TWR_GPU(cudaMalloc(&value, sizeof *value));
    answer<<<1, 1>>>(value);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaMemcpy(&host, value, sizeof host, cudaMemcpyDeviceToHost);
    static_cast<void>(cudaFree(value));
    if (error != cudaSuccess) return gpu_failure(error, device, "a first kernel");
    if (host != 42) return gpu_failure(ErrorCode::internal, device, "a first kernel gave a wrong answer");
    return {};
}

DeviceStatus describe(int device, DeviceFacts* facts) {
    cudaDeviceProp properties{};
    TWR_GPU(cudaGetDeviceProperties(&properties, device));
    std::snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    TWR_GPU(cudaDeviceGetPCIBusId(facts->bus, sizeof facts->bus, device));
    facts->compute_major = properties.major;
    facts->compute_minor = properties.minor;
    facts->multiprocessors = properties.multiProcessorCount;
    facts->memory_bytes = properties.totalGlobalMem;
    if (properties.major < kSmallestMajor) {
        std::snprintf(facts->reason, sizeof facts->reason,
                      "compute capability %d.%d: %d.0 or newer is needed", properties.major, properties.minor,
                      kSmallestMajor);
        return {};
    }
    TWR_GPU_CURRENT(device);
    if (const DeviceStatus status = try_kernel(device); status.failed) {
        std::memcpy(facts->reason, status.text, sizeof facts->reason);
        return {};
    }
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    TWR_GPU(cudaMemGetInfo(&free_bytes, &total));
    facts->free_bytes = free_bytes;
    facts->usable = true;
    return {};
}

DeviceStatus free_memory(int device, std::uint64_t* bytes) {
    TWR_GPU_CURRENT(device);
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    TWR_GPU(cudaMemGetInfo(&free_bytes, &total));
    *bytes = free_bytes;
    return {};
}

DeviceStatus place_of(const void* memory, int* place) {
    constexpr int device = 0;
    *place = kHostMemory;
    if (memory == nullptr) return {};
    cudaPointerAttributes attributes{};
    TWR_GPU(cudaPointerGetAttributes(&attributes, memory));
    if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
        *place = attributes.device;
    }
    return {};
}

DeviceStatus page_locked(const void* memory, bool* is) {
    constexpr int device = 0;
    cudaPointerAttributes attributes{};
    TWR_GPU(cudaPointerGetAttributes(&attributes, memory));
    *is = attributes.type == cudaMemoryTypeHost;
    return {};
}

DeviceStatus allocate(int device, std::size_t bytes, void** memory) {
    TWR_GPU_CURRENT(device);
    if (const cudaError_t error = cudaMalloc(memory, bytes); error != cudaSuccess) {
        DeviceStatus status = gpu_failure(error, device, "cudaMalloc");
        if (status.code == ErrorCode::out_of_memory) {
            std::snprintf(status.text, sizeof status.text, "cuda:%d: not enough device memory for %zu MiB",
                          device, (bytes >> 20) + 1);
        }
        return status;
    }
    return {};
}

void release(int device, void* memory) {
    const CurrentDevice current(device);
    static_cast<void>(cudaFree(memory));
}

DeviceStatus allocate_host(std::size_t bytes, void** memory) {
    constexpr int device = 0;
    // Portable: page-locked for every device.
    TWR_GPU(cudaHostAlloc(memory, bytes, cudaHostAllocPortable));
    return {};
}

void release_host(void* memory) { static_cast<void>(cudaFreeHost(memory)); }

DeviceStatus make_stream(int device, StreamHandle* stream) {
    TWR_GPU_CURRENT(device);
    cudaStream_t made = nullptr;
    TWR_GPU(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    *stream = made;
    return {};
}

void drop_stream(int device, StreamHandle stream) {
    const CurrentDevice current(device);
    static_cast<void>(cudaStreamDestroy(gpu_stream(stream)));
}

DeviceStatus wait_stream(int device, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    TWR_GPU(cudaStreamSynchronize(gpu_stream(stream)));
    return {};
}

DeviceStatus make_event(int device, bool timed, EventHandle* event) {
    TWR_GPU_CURRENT(device);
    cudaEvent_t made = nullptr;
    const unsigned flags =
        cudaEventBlockingSync | (timed ? 0U : static_cast<unsigned>(cudaEventDisableTiming));
    TWR_GPU(cudaEventCreateWithFlags(&made, flags));
    *event = made;
    return {};
}

void drop_event(int device, EventHandle event) {
    const CurrentDevice current(device);
    static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
}

DeviceStatus record(int device, EventHandle event, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    TWR_GPU(cudaEventRecord(static_cast<cudaEvent_t>(event), gpu_stream(stream)));
    return {};
}

DeviceStatus stream_wait(int device, StreamHandle stream, EventHandle event) {
    TWR_GPU_CURRENT(device);
    TWR_GPU(cudaStreamWaitEvent(gpu_stream(stream), static_cast<cudaEvent_t>(event), 0));
    return {};
}

DeviceStatus wait_event(int device, EventHandle event) {
    TWR_GPU_CURRENT(device);
    TWR_GPU(cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
    return {};
}

DeviceStatus event_done(int device, EventHandle event, bool* done) {
    TWR_GPU_CURRENT(device);
    const cudaError_t found = cudaEventQuery(static_cast<cudaEvent_t>(event));
    *done = found == cudaSuccess;
    if (found != cudaErrorNotReady) TWR_GPU(found);
    return {};
}

DeviceStatus elapsed(int device, EventHandle begin, EventHandle end, float* milliseconds) {
    TWR_GPU_CURRENT(device);
    TWR_GPU(
        cudaEventElapsedTime(milliseconds, static_cast<cudaEvent_t>(begin), static_cast<cudaEvent_t>(end)));
    return {};
}

DeviceStatus copy(int device, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
    if (bytes == 0) return {};
    TWR_GPU_CURRENT(device);
    TWR_GPU(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu_stream(stream)));
    return {};
}

DeviceStatus fill(int device, void* to, int byte, std::size_t bytes, StreamHandle stream) {
    if (bytes == 0) return {};
    TWR_GPU_CURRENT(device);
    TWR_GPU(cudaMemsetAsync(to, byte, bytes, gpu_stream(stream)));
    return {};
}

const DeviceRuntime kRuntime = {
    "CUDA",  versions,      count,        describe,    free_memory, place_of,    page_locked, allocate,
    release, allocate_host, release_host, make_stream, drop_stream, wait_stream, make_event,  drop_event,
    record,  stream_wait,   wait_event,   elapsed,     copy,        fill,        event_done,
};

}  // namespace

struct DeviceElementKernels;
struct DeviceDigestKernels;
struct DeviceTreeKernels;
struct DeviceDifferenceKernels;
struct DeviceDedupKernels;
struct DeviceSumsKernels;
struct DevicePackKernels;
extern const DeviceElementKernels kDeviceElementTable;
extern const DeviceDigestKernels kDeviceDigestTable;
extern const DeviceSumsKernels kDeviceSumsTable;
extern const DeviceTreeKernels kDeviceTreeTable;
extern const DeviceDifferenceKernels kDeviceDifferenceTable;
extern const DeviceDedupKernels kDeviceDedupTable;
extern const DevicePackKernels kDevicePackTable;

}  // namespace twinrun

// The table of this name, or null: for another version of the core there is none.
extern "C" __attribute__((visibility("default"))) const void* twinrun_device_table(const char* name,
                                                                                   std::uint32_t abi,
                                                                                   const char* version) {
    using namespace twinrun;
    if (abi != kDeviceAbi || std::strcmp(version, TWINRUN_VERSION) != 0) return nullptr;
    if (std::strcmp(name, "runtime") == 0) return &kRuntime;
    if (std::strcmp(name, "element") == 0) return &kDeviceElementTable;
    if (std::strcmp(name, "digest") == 0) return &kDeviceDigestTable;
    if (std::strcmp(name, "sums") == 0) return &kDeviceSumsTable;
    if (std::strcmp(name, "tree") == 0) return &kDeviceTreeTable;
    if (std::strcmp(name, "difference") == 0) return &kDeviceDifferenceTable;
    if (std::strcmp(name, "dedup") == 0) return &kDeviceDedupTable;
    if (std::strcmp(name, "pack") == 0) return &kDevicePackTable;
    return nullptr;
}
