// The HDF5 library that called the driver, and its functions. A process may have several: each
// package of Python brings its own. So they are found from the address that the call came from, and
// not by their names alone.
#pragma once

#include <mpi.h>
#include <sys/types.h>

#include <string>

#include "aggregate/hdf5/abi.hpp"
#include "base/result.hpp"

namespace twinrun::hdf5 {

struct Library {
    std::string path;  // for messages
    herr_t (*push_error)(hid_t stack, const char* file, const char* function, unsigned line, hid_t of_class,
                         hid_t major, hid_t minor, const char* format, ...) = nullptr;
    const hid_t* error_class = nullptr;
    const hid_t* major = nullptr;    // of file drivers
    const hid_t* opening = nullptr;  // minor ones
    const hid_t* closing = nullptr;
    const hid_t* reading = nullptr;
    const hid_t* writing = nullptr;
    ssize_t (*driver_config)(hid_t fapl, char* text, std::size_t size) = nullptr;
    herr_t (*file_locking)(hid_t fapl, bool* use, bool* ignore) = nullptr;
    // Of a parallel library.
    herr_t (*mpi_params)(hid_t fapl, MPI_Comm* comm, MPI_Info* info) = nullptr;
    // HDF5 tells its own drivers by these, and no public function, what the current transfer is.
    herr_t (*transfer_mode)(int* mode) = nullptr;
    herr_t (*collective_option)(int* option) = nullptr;
    herr_t (*collective_types)(MPI_Datatype* memory, MPI_Datatype* file) = nullptr;
    const void* mpi = nullptr;  // PMPI_Comm_rank, as this library sees it

    [[nodiscard]] bool parallel() const { return mpi_params != nullptr; }
};

// caller: an address in the library. Never freed. Null: there is no HDF5 1.14 or later at it whose
// functions can be found, as where a program has HDF5 inside and does not export it.
[[nodiscard]] const Library* library_at(const void* caller);
// Whether handles of MPI mean the same in the library and here. Error: a parallel library of
// another MPI.
[[nodiscard]] Result<> fit_for_mpi(const Library& library);
// Whether files may be opened by several ranks. Error: a library that hides what a driver must
// know.
[[nodiscard]] Result<> fit_for_ranks(const Library& library);

// Puts an error on HDF5's stack. minor: one of the above.
void push(const Library& library, const hid_t* minor, const Error& error) noexcept;

}  // namespace twinrun::hdf5
