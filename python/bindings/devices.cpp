// What computes: instruction sets, cores, and devices with their arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "device/device.hpp"
#include "device/device_workspace.hpp"
#include "device/gpu_direct_storage.hpp"
#include "dlpack.hpp"
#include "platform/backend.hpp"
#include "shared.hpp"
#include "source/device_array.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

const DeviceProbe& probed() {
    const nb::gil_scoped_release unlocked;  // the first call takes a while
    return probe_devices();
}

// The device that memory lies on, -1 for the host's; None where nobody can say.
nb::object device_of(std::uintptr_t address) {
    const DeviceRuntime* runtime = nullptr;
    int device = kHostMemory;
    DeviceStatus status;
    {
        const nb::gil_scoped_release unlocked;
        if (!probe_devices().usable().empty()) runtime = device_runtime();
        if (runtime != nullptr) status = runtime->place_of(reinterpret_cast<const void*>(address), &device);
    }
    if (runtime == nullptr || status.failed) return nb::none();
    return nb::int_(device);
}

// What was found, and why something is not used.
struct PyDevices {
    const DeviceProbe* found;  // stays as long as the process
};

void define_facts(nb::module_& m) {
    using F = DeviceFacts;
    nb::class_<F>(m, "DeviceFacts", "A GPU.")
        .def_prop_ro("name", [](const F& self) { return std::string(self.name); })
        .def_prop_ro("bus", [](const F& self) { return std::string(self.bus); })
        .def_ro("compute_major", &F::compute_major)
        .def_ro("compute_minor", &F::compute_minor)
        .def_ro("multiprocessors", &F::multiprocessors)
        .def_ro("memory_bytes", &F::memory_bytes)
        .def_ro("free_bytes", &F::free_bytes)
        .def_ro("usable", &F::usable)
        .def_prop_ro(
            "reason", [](const F& self) { return std::string(self.reason); },
            "Why it cannot be used; '': it can.");
    nb::class_<DirectStorageFacts>(m, "DirectStorageFacts", "GPUDirect Storage on this machine.")
        .def_ro("available", &DirectStorageFacts::available)
        .def_ro("library", &DirectStorageFacts::library)
        .def_ro("reason", &DirectStorageFacts::reason);
    using D = PyDevices;
    nb::class_<D>(m, "Devices", "The GPUs of this machine, and what they are used by.")
        .def_prop_ro("library", [](const D& self) { return self.found->library; })
        .def_prop_ro(
            "reason", [](const D& self) { return self.found->reason; },
            "Why no GPU can be used; '': one can.")
        .def_prop_ro("runtime_version", [](const D& self) { return self.found->runtime_version; })
        .def_prop_ro("driver_version", [](const D& self) { return self.found->driver_version; })
        .def_prop_ro("devices", [](const D& self) { return self.found->devices; })
        .def_prop_ro("direct_storage", [](const D&) {
            const nb::gil_scoped_release unlocked;  // the first call takes a while
            return probe_direct_storage();
        });
}

}  // namespace

std::string device_problem(int device) {
    const DeviceProbe& found = probed();
    if (!found.reason.empty()) return found.reason;
    if (device < 0 || static_cast<std::size_t>(device) >= found.devices.size()) {
        return "there is no device of that number";
    }
    return found.devices[static_cast<std::size_t>(device)].reason;
}

// The stream as the core takes it. The default stream of a thread means another one in each thread:
// it is waited for here, in the thread that gave it.
StreamHandle given_stream(int device, std::uintptr_t stream) {
    constexpr std::uintptr_t kLegacyDefault = 1;
    constexpr std::uintptr_t kPerThreadDefault = 2;
    if (stream == kLegacyDefault) return nullptr;
    const auto handle = reinterpret_cast<StreamHandle>(stream);
    if (stream != kPerThreadDefault) return handle;
    DeviceStatus status;
    {
        const nb::gil_scoped_release unlocked;
        status = device_runtime()->wait_stream(device, handle);
    }
    take(to_result(status));
    return nullptr;
}

void check_device(int device) {
    if (const std::string problem = device_problem(device); !problem.empty()) {
        raise({ErrorCode::unsupported, "cuda:" + std::to_string(device) + " cannot be used: " + problem});
    }
}

DeviceArray device_array(DType dtype, std::vector<std::uint64_t> shape, std::vector<std::int64_t> strides,
                         std::uintptr_t address, int device, std::uintptr_t stream, bool swap) {
    check_device(device);
    DeviceArray array;
    array.device = device;
    array.data = reinterpret_cast<const void*>(address);
    array.dtype = dtype;
    array.shape = std::move(shape);
    array.strides = std::move(strides);
    array.swap = swap;
    take(check_array(array));
    array.stream = given_stream(device, stream);
    return array;
}

void define_devices(nb::module_& m) {
    m.def("backend", [] { return std::string(backend_name(active_backend())); });
    m.def("backends", [] {
        std::vector<std::string> names;
        for (const Backend b : {Backend::portable, Backend::avx2, Backend::avx512}) {
            if (backend_available(b)) names.emplace_back(backend_name(b));
        }
        return names;
    });
    m.def("backend_override_ignored", [] { return std::string(backend_override_ignored()); });
    m.def("uring_available", &uring_available);
    m.def(
        "release_device_memory",
        [] {
            const nb::gil_scoped_release unlocked;
            DeviceWorkspaces::release_all_idle();
        },
        "Releases memory of GPUs, and page-locked memory, that twinrun keeps between calls and does not "
        "use.\n"
        "\n"
        ">>> twinrun.release_device_memory()\n"
        "\n"
        "Notes\n"
        "-----\n"
        "Thread-safe. Without a GPU it does nothing. The next call that needs the memory allocates it "
        "again.\n");
    define_facts(m);
    m.def("devices", [] { return PyDevices{&probed()}; });
    m.def("device_problem", &device_problem, "device"_a);
    m.def("device_of", &device_of, "address"_a);
    nb::class_<DlpackFacts>(m, "DlpackFacts", "Where the array of a capsule of DLPack lies.")
        .def_ro("device_type", &DlpackFacts::device_type)
        .def_ro("device", &DlpackFacts::device)
        .def_ro("code", &DlpackFacts::code)
        .def_ro("bits", &DlpackFacts::bits)
        .def_ro("lanes", &DlpackFacts::lanes)
        .def_ro("shape", &DlpackFacts::shape)
        .def_ro("strides", &DlpackFacts::strides, "In elements; None: dense.")
        .def_ro("address", &DlpackFacts::address)
        .def_ro("read_only", &DlpackFacts::read_only);
    m.def("dlpack_facts", &dlpack_facts, "capsule"_a);
    m.def("worker_count", [] { return worker_count({}); });
}

}  // namespace twinrun
