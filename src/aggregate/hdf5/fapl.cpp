// For programs that ask for HDF5's driver mpio by H5Pset_fapl_mpio, which HDF5_DRIVER alone does
// not change: where this library is preloaded, and HDF5_DRIVER is twinrun, they get this driver
// with their communicator and hints.
#include <dlfcn.h>
#include <mpi.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "aggregate/hdf5/abi.hpp"

using twinrun::hdf5::herr_t;
using twinrun::hdf5::hid_t;

namespace {

// A communicator or hints of the caller's MPI, which need not be the one that this library is built
// with: a number in one, an address in another. Passed on as it came, and not looked at.
using Foreign = std::intptr_t;
static_assert(sizeof(MPI_Comm) <= sizeof(Foreign) && sizeof(MPI_Info) <= sizeof(Foreign));

bool asked() {
    const char* const driver = std::getenv("HDF5_DRIVER");
    return driver != nullptr && std::strcmp(driver, "twinrun") == 0;
}

// A function of the HDF5 that the caller uses. Packages of Python have one of their own, which is
// found among what their modules depend on.
template <class Function>
Function function_for(const void* caller, const char* name) {
    if (void* const next = ::dlsym(RTLD_NEXT, name)) return reinterpret_cast<Function>(next);
    Dl_info where{};
    if (::dladdr(caller, &where) == 0) return nullptr;
    void* const handle = ::dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) return nullptr;
    const auto found = reinterpret_cast<Function>(::dlsym(handle, name));
    ::dlclose(handle);
    return found;
}

}  // namespace

extern "C" {

#define TWINRUN_SHOWN __attribute__((visibility("default"), noinline))

TWINRUN_SHOWN herr_t H5Pset_fapl_mpio(hid_t fapl, Foreign comm, Foreign info) {
    using Set = herr_t (*)(hid_t, Foreign, Foreign);
    using SetDriver = herr_t (*)(hid_t, const char*, const char*);
    const void* const caller = __builtin_return_address(0);
    if (asked()) {
        const auto params = function_for<Set>(caller, "H5Pset_mpi_params");
        const auto driver = function_for<SetDriver>(caller, "H5Pset_driver_by_name");
        if (params != nullptr && driver != nullptr) {
            if (params(fapl, comm, info) < 0) return twinrun::hdf5::kFail;
            return driver(fapl, "twinrun", std::getenv("HDF5_DRIVER_CONFIG"));
        }
    }
    const auto plain = function_for<Set>(caller, "H5Pset_fapl_mpio");
    return plain != nullptr ? plain(fapl, comm, info) : twinrun::hdf5::kFail;
}

TWINRUN_SHOWN herr_t H5Pget_fapl_mpio(hid_t fapl, void* comm, void* info) {
    using Get = herr_t (*)(hid_t, void*, void*);
    const void* const caller = __builtin_return_address(0);
    const char* const name = asked() ? "H5Pget_mpi_params" : "H5Pget_fapl_mpio";
    const auto get = function_for<Get>(caller, name);
    return get != nullptr ? get(fapl, comm, info) : twinrun::hdf5::kFail;
}
}
