#include "device/device.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

namespace twinrun {

namespace {

namespace fs = std::filesystem;
constexpr const char* kLibraryName = "libtwinrun_cuda.so";

using TableFunction = const void* (*)(const char* name, std::uint32_t abi, const char* version);

// The library, opened once and never closed: its threads and handlers may outlive any use.
struct Library {
    std::string path;
    std::string reason;
    TableFunction table = nullptr;
    const DeviceRuntime* runtime = nullptr;
};

// The folder of the program or module that this code was linked into.
fs::path own_folder() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&probe_devices), &info) == 0 || info.dli_fname == nullptr)
        return {};
    std::error_code ignored;
    return fs::weakly_canonical(info.dli_fname, ignored).parent_path();
}

Library open_library() {
    Library library;
    std::vector<fs::path> places;
    if (const char* named = std::getenv("TWINRUN_CUDA_LIBRARY"); named != nullptr && *named != '\0') {
        places.emplace_back(named);
    } else if (const fs::path folder = own_folder(); !folder.empty()) {
        // Beside the module or program; in an installed tree; in the wheel twinrun-cuda13 or
        // twinrun-cuda12, installed beside the package.
        const fs::path above = folder.parent_path();
        places = {folder / kLibraryName, above / "lib" / kLibraryName,
                  above / "twinrun_cuda13" / kLibraryName, above / "twinrun_cuda12" / kLibraryName};
    }
    for (const fs::path& place : places) {
        std::error_code ignored;
        if (!fs::exists(place, ignored)) continue;
        void* handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (handle == nullptr) {
            const char* why = dlerror();
            library.reason = place.string() + " cannot be opened: " + (why == nullptr ? "unknown" : why);
            return library;
        }
        library.path = place.string();
        library.table = reinterpret_cast<TableFunction>(dlsym(handle, "twinrun_device_table"));
        const void* runtime =
            library.table == nullptr ? nullptr : library.table("runtime", kDeviceAbi, TWINRUN_VERSION);
        if (runtime == nullptr) {
            library.table = nullptr;
            library.reason = place.string() + " belongs to another version of twinrun than " +
                             TWINRUN_VERSION + ": install both together";
            return library;
        }
        library.runtime = static_cast<const DeviceRuntime*>(runtime);
        return library;
    }
    library.reason =
        places.empty() || std::getenv("TWINRUN_CUDA_LIBRARY") == nullptr
            ? std::string("this installation has no ") + kLibraryName +
                  ": pip install twinrun-cuda13 or twinrun-cuda12, or build it where there is a CUDA "
                  "compiler"
            : places.front().string() + ", which TWINRUN_CUDA_LIBRARY names, is not there";
    return library;
}

const Library& library() {
    static const Library once = open_library();
    return once;
}

DeviceProbe probe() {
    DeviceProbe found;
    found.library = library().path;
    found.reason = library().reason;
    const DeviceRuntime* runtime = library().runtime;
    if (runtime == nullptr) return found;
    if (const auto status = runtime->versions(&found.runtime_version, &found.driver_version); status.failed) {
        found.reason = status.text;
        return found;
    }
    int count = 0;
    if (const auto status = runtime->count(&count); status.failed) {
        found.reason = status.text;
        return found;
    }
    for (int d = 0; d < count; ++d) {
        DeviceFacts facts;
        if (const auto status = runtime->describe(d, &facts); status.failed) {
            facts.usable = false;
            static_assert(sizeof facts.reason == sizeof status.text);
            std::copy(std::begin(status.text), std::end(status.text), std::begin(facts.reason));
        }
        found.devices.push_back(facts);
    }
    if (found.devices.empty()) {
        found.reason = std::string(runtime->name) + " finds no device";
    } else if (found.usable().empty()) {
        found.reason = std::string("no device can be used: ") + found.devices.front().reason;
    }
    return found;
}

}  // namespace

std::vector<int> DeviceProbe::usable() const {
    std::vector<int> numbers;
    for (std::size_t d = 0; d < devices.size(); ++d) {
        if (devices[d].usable) numbers.push_back(static_cast<int>(d));
    }
    return numbers;
}

const DeviceProbe& probe_devices() {
    static const DeviceProbe once = probe();
    return once;
}

const DeviceRuntime* device_runtime() { return library().runtime; }

const void* device_table(const char* name) {
    return library().table == nullptr ? nullptr : library().table(name, kDeviceAbi, TWINRUN_VERSION);
}

// ---- owned memory and streams ----

Result<> DeviceMemory::reserve(int device, std::size_t bytes) {
    if (data_ != nullptr && device == device_ && bytes <= bytes_) return success();
    clear();
    device_ = device;
    if (bytes == 0) return success();
    const DeviceRuntime* runtime = device_runtime();
    if (runtime == nullptr) return Error{ErrorCode::unsupported, library().reason};
    void* memory = nullptr;
    TWR_CHECK(to_result(device == kHostMemory ? runtime->allocate_host(bytes, &memory)
                                              : runtime->allocate(device, bytes, &memory)));
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    return success();
}

void DeviceMemory::clear() {
    if (data_ != nullptr) {
        if (device_ == kHostMemory) {
            device_runtime()->release_host(data_);
        } else {
            device_runtime()->release(device_, data_);
        }
    }
    data_ = nullptr;
    bytes_ = 0;
}

Result<DeviceStream> DeviceStream::create(int device) {
    const DeviceRuntime* runtime = device_runtime();
    if (runtime == nullptr) return Error{ErrorCode::unsupported, library().reason};
    StreamHandle stream = nullptr;
    TWR_CHECK(to_result(runtime->make_stream(device, &stream)));
    DeviceStream owned(device, stream, nullptr);
    TWR_CHECK(to_result(runtime->make_event(device, false, &owned.event_)));
    return owned;
}

DeviceStream::~DeviceStream() {
    if (event_ != nullptr) device_runtime()->drop_event(device_, event_);
    if (stream_ != nullptr) device_runtime()->drop_stream(device_, stream_);
}

Result<> DeviceStream::follow(StreamHandle other) {
    TWR_CHECK(to_result(device_runtime()->record(device_, event_, other)));
    return to_result(device_runtime()->stream_wait(device_, stream_, event_));
}

Result<> DeviceStream::lead(StreamHandle other) {
    TWR_CHECK(to_result(device_runtime()->record(device_, event_, stream_)));
    return to_result(device_runtime()->stream_wait(device_, other, event_));
}

Result<> DeviceStream::wait() {
    // Through the event, which was made to block: waiting for a stream spins on a core.
    TWR_CHECK(to_result(device_runtime()->record(device_, event_, stream_)));
    return to_result(device_runtime()->wait_event(device_, event_));
}

Result<> DeviceStream::wait_soon() {
    TWR_CHECK(to_result(device_runtime()->record(device_, event_, stream_)));
    return twinrun::wait_soon(device_, event_);
}

Result<> wait_soon(int device, EventHandle event) {
    const auto begin = std::chrono::steady_clock::now();
    std::chrono::nanoseconds waited{0};
    while (waited < kNapsUntil) {
        bool is_done = false;
        TWR_CHECK(to_result(device_runtime()->event_done(device, event, &is_done)));
        if (is_done) return success();
        if (waited >= kSpinsUntil) std::this_thread::sleep_for(waited / 64);
        waited = std::chrono::steady_clock::now() - begin;
    }
    return to_result(device_runtime()->wait_event(device, event));
}

}  // namespace twinrun
