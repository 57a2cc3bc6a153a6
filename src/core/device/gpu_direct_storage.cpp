#include "device/gpu_direct_storage.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "device/cufile_abi.hpp"

namespace twinrun {

namespace {

constexpr const char* kLibraryName = "libcufile.so.0";
constexpr const char* kKernelModule = "/proc/driver/nvidia-fs/version";

// The CUDA driver's current context must be that of the memory: our own library leaves the thread's
// as it was.
using PointerAttribute = int (*)(void*, int, unsigned long long);
using PushContext = int (*)(void*);
using PopContext = int (*)(void**);
constexpr int kContextOfPointer = 1;  // CU_POINTER_ATTRIBUTE_CONTEXT

struct Library {
    DirectStorageFacts facts;
    cufile::DriverOpen driver_open = nullptr;
    cufile::HandleRegister handle_register = nullptr;
    cufile::HandleDeregister handle_deregister = nullptr;
    cufile::BufRegister buf_register = nullptr;
    cufile::BufDeregister buf_deregister = nullptr;
    cufile::Read read = nullptr;
    PointerAttribute pointer_attribute = nullptr;
    PushContext push = nullptr;
    PopContext pop = nullptr;
};

std::string words(const cufile::Error& error) {
    const char* meaning = "";
    switch (error.code < 0 ? -error.code : error.code) {
        case 5001:
            meaning = " (the driver nvidia-fs is not loaded, and the compatible mode is not allowed)";
            break;
        case 5004:
        case 5005: meaning = " (another version of nvidia-fs)"; break;
        case 5007: meaning = " (not supported on this platform)"; break;
        case 5008: meaning = " (not supported by the file system)"; break;
        case 5009: meaning = " (not supported by the device)"; break;
        case 5011: meaning = " (the CUDA driver failed)"; break;
        case 5015: meaning = " (another CUDA context)"; break;
        case 5018: meaning = " (not a file of a kind that it reads)"; break;
        case 5020: meaning = " (without O_DIRECT)"; break;
        case 5025: meaning = " (permission denied)"; break;
        case 5036: meaning = " (device memory cannot be mapped)"; break;
        default: break;
    }
    return "cuFile error " + std::to_string(error.code) + meaning;
}

template <class Function>
bool find(void* handle, const char* name, Function* to) {
    *to = reinterpret_cast<Function>(dlsym(handle, name));
    return *to != nullptr;
}

Library open_library() {
    Library found;
    const char* named = std::getenv("TWINRUN_CUFILE_LIBRARY");
    const char* const path = named != nullptr && *named != '\0' ? named : kLibraryName;
    // Without a driver the library is of no use, and slow to say so.
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) {
        found.facts.reason = "there is no NVIDIA driver (libcuda.so.1)";
        return found;
    }
    void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
        found.facts.reason =
            std::string(path) + " cannot be opened: install NVIDIA's GPUDirect Storage (cuFile)";
        return found;
    }
    found.facts.library = path;
    const bool complete = find(handle, "cuFileDriverOpen", &found.driver_open) &&
                          find(handle, "cuFileHandleRegister", &found.handle_register) &&
                          find(handle, "cuFileHandleDeregister", &found.handle_deregister) &&
                          find(handle, "cuFileBufRegister", &found.buf_register) &&
                          find(handle, "cuFileBufDeregister", &found.buf_deregister) &&
                          find(handle, "cuFileRead", &found.read) &&
                          find(driver, "cuPointerGetAttribute", &found.pointer_attribute) &&
                          find(driver, "cuCtxPushCurrent_v2", &found.push) &&
                          find(driver, "cuCtxPopCurrent_v2", &found.pop);
    if (!complete) {
        found.facts.reason = std::string(path) + " lacks functions that are needed: install a newer one";
        return found;
    }
    // Never closed: others in this process may use it as well.
    const cufile::Error opened = found.driver_open();
    if (opened.code != 0 && opened.code != cufile::kDriverAlreadyOpen) {
        found.facts.reason = words(opened);
        return found;
    }
    found.facts.available = true;
    if (::access(kKernelModule, F_OK) != 0)
        found.facts.reason = "the driver nvidia-fs is not loaded: cuFile may go through host memory";
    return found;
}

const Library& library() {
    static const Library once = open_library();
    return once;
}

class CurrentContext {
   public:
    explicit CurrentContext(const void* memory) {
        void* context = nullptr;
        const auto address = static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(memory));
        if (library().pointer_attribute(&context, kContextOfPointer, address) != 0 || context == nullptr)
            return;
        pushed_ = library().push(context) == 0;
    }
    ~CurrentContext() {
        void* ignored = nullptr;
        if (pushed_) library().pop(&ignored);
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

   private:
    bool pushed_ = false;
};

}  // namespace

const DirectStorageFacts& probe_direct_storage() { return library().facts; }

Result<std::unique_ptr<DirectStorageFile>> DirectStorageFile::open(InputFile& file) try {
    if (!library().facts.available) return Error{ErrorCode::unsupported, library().facts.reason};
    const int fd = file.direct_descriptor();
    if (fd < 0)
        return Error{ErrorCode::unsupported,
                     file.path() + ": the file system has no O_DIRECT, which cuFile needs"};
    cufile::Descriptor descriptor;
    descriptor.fd = fd;
    cufile::Handle handle = nullptr;
    const cufile::Error error = library().handle_register(&handle, &descriptor);
    if (error.code != 0) return Error{ErrorCode::unsupported, file.path() + ": " + words(error)};
    std::unique_ptr<DirectStorageFile> opened(new (std::nothrow) DirectStorageFile(file, handle));
    if (opened == nullptr) {
        library().handle_deregister(handle);
        return Error{ErrorCode::out_of_memory, {}};
    }
    return opened;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, {}};
}

DirectStorageFile::~DirectStorageFile() { library().handle_deregister(handle_); }

Result<> DirectStorageFile::read(std::byte* memory, std::size_t to, std::uint64_t offset, std::size_t bytes,
                                 std::size_t at_least) {
    const CurrentContext current(memory);
    if (at_least == 0) at_least = bytes;
    for (std::size_t done = 0; done < at_least;) {
        const ssize_t got = library().read(handle_, memory, bytes - done, static_cast<off_t>(offset + done),
                                           static_cast<off_t>(to + done));
        if (got > 0) {
            done += std::min(static_cast<std::size_t>(got), bytes - done);
            continue;
        }
        const int why = errno;
        if (got == -1 && why == EINTR) continue;
        const std::string where =
            file_.path() + ": " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset);
        if (got == 0) {
            return Error{ErrorCode::damaged,
                         where + ": truncated: the file ends before this offset: write or copy it again"};
        }
        const std::string cause =
            got == -1 ? std::string(std::strerror(why)) : words({static_cast<int>(got), 0});
        return Error{ErrorCode::io, where + ": cannot be read to the device: " + cause +
                                        ": read through the host instead (io: auto)"};
    }
    return success();
}

DirectStorageBuffer::DirectStorageBuffer(std::byte* memory, std::size_t bytes) {
    if (!library().facts.available || memory == nullptr) return;
    const CurrentContext current(memory);
    if (library().buf_register(memory, bytes, 0).code == 0) memory_ = memory;
}

DirectStorageBuffer::~DirectStorageBuffer() {
    if (memory_ == nullptr) return;
    const CurrentContext current(memory_);
    static_cast<void>(library().buf_deregister(memory_));
}

}  // namespace twinrun
