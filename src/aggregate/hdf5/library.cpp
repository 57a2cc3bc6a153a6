#include "aggregate/hdf5/library.hpp"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/caught.hpp"

namespace twinrun::hdf5 {

namespace {

template <class T>
void find(void* handle, const char* name, T& to) {
    to = reinterpret_cast<T>(::dlsym(handle, name));
}

// By its name of the profiling interface: a tool may have put an MPI_Comm_rank of its own in front,
// and leaves this one to the library. An MPI may be built without that interface.
const void* rank_function(void* handle) {
    const void* const profiled = ::dlsym(handle, "PMPI_Comm_rank");
    return profiled != nullptr ? profiled : ::dlsym(handle, "MPI_Comm_rank");
}

// All that a library of HDF5 has. Null: one without what every driver needs.
std::unique_ptr<Library> look(const char* path) {
    // The program itself has no path by which it could be opened.
    void* handle = ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr || ::dlsym(handle, "H5Epush2") == nullptr) handle = ::dlopen(nullptr, RTLD_LAZY);
    if (handle == nullptr) return nullptr;
    auto library = std::make_unique<Library>();
    library->path = path;
    find(handle, "H5Epush2", library->push_error);
    find(handle, "H5E_ERR_CLS_g", library->error_class);
    find(handle, "H5E_VFL_g", library->major);
    find(handle, "H5E_CANTOPENFILE_g", library->opening);
    find(handle, "H5E_CANTCLOSEFILE_g", library->closing);
    find(handle, "H5E_READERROR_g", library->reading);
    find(handle, "H5E_WRITEERROR_g", library->writing);
    find(handle, "H5Pget_driver_config_str", library->driver_config);
    find(handle, "H5Pget_file_locking", library->file_locking);
    find(handle, "H5Pget_mpi_params", library->mpi_params);
    find(handle, "H5CX_get_io_xfer_mode", library->transfer_mode);
    find(handle, "H5CX_get_mpio_coll_opt", library->collective_option);
    find(handle, "H5CX_get_mpi_coll_datatypes", library->collective_types);
    // What a handle's dependencies have is found through it as well.
    library->mpi = rank_function(handle);
    const bool whole = library->push_error != nullptr && library->error_class != nullptr &&
                       library->major != nullptr && library->opening != nullptr &&
                       library->closing != nullptr && library->reading != nullptr &&
                       library->writing != nullptr && library->driver_config != nullptr;
    return whole ? std::move(library) : nullptr;
}

}  // namespace

const Library* library_at(const void* caller) {
    struct Known {
        std::mutex mutex;
        std::map<const void*, std::unique_ptr<Library>> libraries;  // by where they lie in memory
    };
    // Never destroyed: HDF5 closes files when a program exits.
    static Known* const known = new Known;
    Dl_info where{};
    if (::dladdr(caller, &where) == 0) return nullptr;
    const std::lock_guard lock(known->mutex);
    const auto at = known->libraries.find(where.dli_fbase);
    if (at != known->libraries.end()) return at->second.get();
    return known->libraries.emplace(where.dli_fbase, look(where.dli_fname)).first->second.get();
}

Result<> fit_for_mpi(const Library& library) {
    if (!library.parallel()) return success();
    // As this library's dependencies have it. What its own calls reach may be another MPI: the
    // program's libraries come before those of a library that is preloaded or loaded later.
    static const void* const own = [] {
        Dl_info where{};
        ::dladdr(reinterpret_cast<const void*>(&library_at), &where);
        void* const handle = ::dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        return handle == nullptr ? nullptr : rank_function(handle);
    }();
    if (own != nullptr && library.mpi == own) return success();
    return Error{ErrorCode::unsupported,
                 library.path + ": this HDF5 was built with another MPI than twinrun: build both with one"};
}

Result<> fit_for_ranks(const Library& library) {
    if (library.transfer_mode == nullptr || library.collective_option == nullptr ||
        library.collective_types == nullptr) {
        return Error{ErrorCode::unsupported, library.path +
                                                 ": this build of HDF5 hides what a driver of several "
                                                 "ranks must know: use one with all symbols visible"};
    }
    return success();
}

void push(const Library& library, const hid_t* minor, const Error& error) noexcept {
    library.push_error(kDefault, "twinrun", "twinrun", 0, *library.error_class, *library.major, *minor, "%s",
                       error.message.c_str());
}

}  // namespace twinrun::hdf5
