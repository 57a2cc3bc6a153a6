// Packing on devices: the table of pack_device.hpp, by nvCOMP's batched Zstandard. Of nvCOMP only
// what its documentation says of the C interface of versions 5 and 6 is used, declared here: to
// build this, nvCOMP need not be there.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <dlfcn.h>

#include "device/gpu.hpp"
#include "record/pack_device.hpp"

namespace twinrun {

namespace gpu {

namespace {

// ---- the library ----

struct Options {
    char reserved[64] = {};
};
struct Properties {
    std::uint32_t version = 0;  // 6100 is 6.1.0
    std::uint32_t runtime = 0;
};
using GetProperties = int (*)(Properties*);
using ScratchBytes5 = int (*)(std::size_t blocks, std::size_t block_bytes, Options, std::size_t* bytes,
                              std::size_t all);
using ScratchBytes6 = int (*)(std::size_t blocks, std::size_t block_bytes, Options, std::size_t* bytes,
                              std::size_t all, cudaStream_t);
using MostBytes = int (*)(std::size_t block_bytes, Options, std::size_t* bytes);
using Compress = int (*)(const void* const* from, const std::size_t* from_bytes, std::size_t block_bytes,
                         std::size_t blocks, void* scratch, std::size_t scratch_bytes, void* const* to,
                         std::size_t* to_bytes, Options, int* statuses, cudaStream_t);

struct Library {
    std::string name;
    std::string reason;  // not empty: there is none
    ScratchBytes5 scratch_bytes_5 = nullptr;
    ScratchBytes6 scratch_bytes_6 = nullptr;
    MostBytes most_bytes = nullptr;
    Compress compress = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

Library open_library() {
    Library found;
    const char* const given = std::getenv("TWINRUN_NVCOMP");
    void* opened = nullptr;
    if (given != nullptr && *given != 0) {
        opened = ::dlopen(given, RTLD_NOW | RTLD_LOCAL);
        if (opened == nullptr) {
            const char* const why = ::dlerror();
            found.reason = std::string("TWINRUN_NVCOMP: ") + (why != nullptr ? why : given);
            return found;
        }
    } else {
        for (const char* const name : {"libnvcomp.so.6", "libnvcomp.so.5"}) {
            if (opened == nullptr) opened = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
        }
        if (opened == nullptr) {
            found.reason =
                "no nvCOMP 5 or 6 is found: install nvidia-libnvcomp-cu12 or -cu13, or name libnvcomp.so in "
                "TWINRUN_NVCOMP";
            return found;
        }
    }
    GetProperties properties = nullptr;
    Properties of;
    const bool told = find(opened, "nvcompGetProperties", properties) && properties(&of) == 0;
    const std::uint32_t major = of.version / 1000;
    // The one for the size of scratch memory changed its name and its arguments with version 6.
    const bool whole =
        told && (major == 5 || major == 6) &&
        (major == 5 ? find(opened, "nvcompBatchedZstdCompressGetTempSizeAsync", found.scratch_bytes_5)
                    : find(opened, "nvcompBatchedZstdCompressGetTempSize", found.scratch_bytes_6)) &&
        find(opened, "nvcompBatchedZstdCompressGetMaxOutputChunkSize", found.most_bytes) &&
        find(opened, "nvcompBatchedZstdCompressAsync", found.compress);
    if (!whole) {
        found.reason =
            "the nvCOMP that is found (version " + std::to_string(of.version) + ") is neither 5 nor 6";
        return found;
    }
    found.name = "nvCOMP " + std::to_string(major) + "." + std::to_string(of.version / 100 % 10);
    return found;
}

const Library& library_found() {
    static const Library found = open_library();
    return found;
}

DeviceStatus unsupported(const std::string& why) {
    DeviceStatus status;
    status.failed = true;
    status.code = ErrorCode::unsupported;
    std::snprintf(status.text, sizeof status.text, "%s", why.c_str());
    return status;
}
DeviceStatus of_nvcomp(int device, const char* what, int code) {
    if (code == 0) return {};
    DeviceStatus status;
    status.failed = true;
    status.code = ErrorCode::io;
    std::snprintf(status.text, sizeof status.text, "cuda:%d: nvCOMP: %s: status %d", device, what, code);
    return status;
}

// ---- around it ----

constexpr unsigned kThreads = 256;

__host__ __device__ constexpr std::size_t aligned_to(std::size_t bytes, std::size_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

// The layout of scratch memory.
struct Layout {
    const void** from = nullptr;
    std::size_t* from_bytes = nullptr;
    void** slots = nullptr;
    std::size_t* slot_bytes = nullptr;
    int* statuses = nullptr;
    std::uint64_t* offsets = nullptr;
    std::byte* temporary = nullptr;
    std::size_t temporary_bytes = 0;
    std::byte* slot = nullptr;
    std::size_t slot_stride = 0;
    std::size_t end = 0;
};

int lay_out(std::uint32_t block_bytes, std::uint64_t blocks, std::byte* memory, Layout& at,
            cudaStream_t stream) {
    const Library& library = library_found();
    std::size_t most = 0;
    if (const int code = library.most_bytes(block_bytes, {}, &most)) return code;
    at.slot_stride = device_aligned(most);
    const int code =
        library.scratch_bytes_6 != nullptr
            ? library.scratch_bytes_6(blocks, block_bytes, {}, &at.temporary_bytes, blocks * block_bytes,
                                      stream)
            : library.scratch_bytes_5(blocks, block_bytes, {}, &at.temporary_bytes, blocks * block_bytes);
    if (code != 0) return code;
    std::size_t end = 0;
    const auto place = [&](auto*& pointer, std::size_t bytes) {
        using T = std::remove_reference_t<decltype(*pointer)>;
        if (memory != nullptr) pointer = reinterpret_cast<T*>(memory + end);
        end += device_aligned(bytes);
    };
    place(at.from, blocks * sizeof(void*));
    place(at.from_bytes, blocks * sizeof(std::size_t));
    place(at.slots, blocks * sizeof(void*));
    place(at.slot_bytes, blocks * sizeof(std::size_t));
    place(at.statuses, blocks * sizeof(int));
    place(at.offsets, blocks * sizeof(std::uint64_t));
    place(at.temporary, at.temporary_bytes);
    place(at.slot, blocks * at.slot_stride);
    at.end = end;
    return 0;
}

__global__ void name_blocks(Layout at, const std::byte* from, std::uint64_t bytes, std::uint32_t block_bytes,
                            std::uint64_t blocks) {
    const std::uint64_t b = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (b >= blocks) return;
    const std::uint64_t begin = b * block_bytes;
    at.from[b] = from + begin;
    at.from_bytes[b] = bytes - begin < block_bytes ? bytes - begin : block_bytes;
    at.slots[b] = at.slot + b * at.slot_stride;
    at.slot_bytes[b] = 0;
    at.statuses[b] = 0;
}

// Which blocks became smaller, and where all of them go: one thread block, as they are few.
__global__ void place_blocks(Layout at, std::uint64_t blocks, std::uint32_t* sizes, std::uint64_t* end) {
    __shared__ std::uint64_t sums[kThreads];
    std::uint64_t base = 0;
    for (std::uint64_t first = 0; first < blocks; first += kThreads) {
        const std::uint64_t b = first + threadIdx.x;
        std::uint64_t own = 0;
        if (b < blocks) {
            const bool stored =
                at.statuses[b] != 0 || at.slot_bytes[b] == 0 || at.slot_bytes[b] >= at.from_bytes[b];
            const std::size_t size = stored ? at.from_bytes[b] : at.slot_bytes[b];
            sizes[b] = static_cast<std::uint32_t>(size) | (stored ? kDeviceStoredBlock : 0);
            own = aligned_to(size, kPackedAlignment);
        }
        sums[threadIdx.x] = own;
        __syncthreads();
        for (unsigned step = 1; step < kThreads; step *= 2) {
            const std::uint64_t other = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += other;
            __syncthreads();
        }
        if (b < blocks) at.offsets[b] = base + sums[threadIdx.x] - own;
        base += sums[kThreads - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) *end = base;
}

// A thread block a block. All begin at multiples of 16 bytes; what is read behind the last one lies
// in scratch memory, or is cut off.
__global__ void gather_blocks(Layout at, const std::uint32_t* sizes, std::byte* to) {
    const std::uint64_t b = blockIdx.x;
    const bool stored = (sizes[b] & kDeviceStoredBlock) != 0;
    const std::uint32_t bytes = sizes[b] & ~kDeviceStoredBlock;
    const auto* const from = static_cast<const std::byte*>(stored ? at.from[b] : at.slots[b]);
    std::byte* const target = to + at.offsets[b];
    const std::uint32_t whole = bytes / 16;
    for (std::uint32_t i = threadIdx.x; i < whole; i += blockDim.x)
        reinterpret_cast<uint4*>(target)[i] = reinterpret_cast<const uint4*>(from)[i];
    for (std::uint32_t i = whole * 16 + threadIdx.x; i < bytes; i += blockDim.x)
        target[i] = from[i];
}

DeviceStatus library_name(const char** name) {
    const Library& library = library_found();
    if (!library.reason.empty()) return unsupported(library.reason);
    *name = library.name.c_str();
    return {};
}

DeviceStatus scratch(int device, std::uint32_t block_bytes, std::uint64_t blocks, std::size_t* bytes,
                     StreamHandle stream) {
    const Library& library = library_found();
    if (!library.reason.empty()) return unsupported(library.reason);
    TWR_GPU_CURRENT(device);
    Layout at;
    if (const int code = lay_out(block_bytes, blocks, nullptr, at, gpu_stream(stream)))
        return of_nvcomp(device, "scratch memory", code);
    *bytes = at.end;
    return {};
}

DeviceStatus pack(int device, const DevicePack& what, StreamHandle stream) {
    const std::uint64_t blocks = what.blocks();
    if (blocks == 0) return {};
    const Library& library = library_found();
    if (!library.reason.empty()) return unsupported(library.reason);
    TWR_GPU_CURRENT(device);
    const cudaStream_t in = gpu_stream(stream);
    Layout at;
    if (const int code = lay_out(what.block_bytes, blocks, what.scratch, at, in))
        return of_nvcomp(device, "scratch memory", code);
    if (at.end > what.scratch_bytes) return of_nvcomp(device, "too little scratch memory", -1);
    name_blocks<<<static_cast<unsigned>((blocks + kThreads - 1) / kThreads), kThreads, 0, in>>>(
        at, what.from, what.bytes, what.block_bytes, blocks);
    TWR_GPU_LAUNCHED("names of blocks");
    if (const int code = library.compress(at.from, at.from_bytes, what.block_bytes, blocks, at.temporary,
                                          at.temporary_bytes, at.slots, at.slot_bytes, {}, at.statuses, in))
        return of_nvcomp(device, "compression", code);
    place_blocks<<<1, kThreads, 0, in>>>(
        at, blocks, what.sizes,
        reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::byte*>(what.sizes) +
                                         DevicePack::end_at(blocks)));
    TWR_GPU_LAUNCHED("places of packed blocks");
    gather_blocks<<<static_cast<unsigned>(blocks), kThreads, 0, in>>>(at, what.sizes, what.to);
    TWR_GPU_LAUNCHED("gathering of packed blocks");
    return {};
}

}  // namespace

}  // namespace gpu

extern const DevicePackKernels kDevicePackTable;
const DevicePackKernels kDevicePackTable = {gpu::library_name, gpu::scratch, gpu::pack};

}  // namespace twinrun
