#include "interpose/calls.hpp"

namespace twinrun::interpose {

const CallInfo kCallInfos[kCalls] = {
#define TWR_CALL(name, group, pretend) {#name, Group::group, pretend},
#include "interpose/calls.inc"
#undef TWR_CALL
#define TWR_MPI(name, lower, group, arguments, kind, count, type, a, b) {"MPI_" #name, Group::group, false},
#include "interpose/mpi_calls.inc"
#undef TWR_MPI
    {"MPI_Init", Group::mpi_other, false},
    {"MPI_Init_thread", Group::mpi_other, false},
    {"MPI_Finalize", Group::mpi_other, false},
    {"MPI_Abort", Group::mpi_other, false},
};

const char* const kGroupNames[kGroups] = {
    "posix_read",     "posix_write", "posix_meta", "posix_stream",  "stdio",     "mpi_point_to_point",
    "mpi_collective", "mpi_wait",    "mpi_file",   "mpi_one_sided", "mpi_other",
};

}  // namespace twinrun::interpose
