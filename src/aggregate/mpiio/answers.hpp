// What a program gets from a call: errors and status objects as MPI has them.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>

#include "aggregate/mpiio/file.hpp"
#include "base/result.hpp"

namespace twinrun::mpiio {

// An error code of MPI with this text: one for each class, whose text is that of the last error.
[[nodiscard]] int code_of(const Error& error) noexcept;
// The same, after the file's error handler was called with it.
int raise(MPI_File handle, const Error& error) noexcept;
// Sets what MPI_Get_count and MPI_Get_elements will return: both libraries keep bytes, whatever the
// datatype. status may be MPI_STATUS_IGNORE.
void fill(MPI_Status* status, std::uint64_t bytes);
// find(); null also for MPI_FILE_NULL, and where there is no memory.
[[nodiscard]] std::shared_ptr<File> known(MPI_File handle) noexcept;

}  // namespace twinrun::mpiio
