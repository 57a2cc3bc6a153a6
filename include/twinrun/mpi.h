/* twinrun, where the ranks of a run are the processes of an MPI communicator (MPI 3.0 or newer).
 * Link with twinrun_mpi, in CMake twinrun::mpi. Everything else is in twinrun/twinrun.h. */
#ifndef TWINRUN_MPI_H
#define TWINRUN_MPI_H

#include <mpi.h>

#include "twinrun.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [collective] As twr_open, for all processes of an intracommunicator. It is duplicated, so that no
 * message of the application's meets one of twinrun's. Errors of the duplicate are returned,
 * whatever the application's communicator does with them. twr_close frees it: call that before
 * MPI_Finalize.
 *
 * MPI is called only by the thread that calls a function marked [collective], never by a thread of
 * twinrun's: MPI_THREAD_FUNNELED is enough. But with the setting shared_files all ranks write steps
 * together, in the background: that needs MPI_THREAD_MULTIPLE, or background = false.
 *
 * Returns what twr_open_comm_shared returns, and
 *   TWR_ERROR_INVALID_ARGUMENT: MPI is not initialised, or finalised already; this thread may not
 *     call MPI; the communicator is MPI_COMM_NULL, joins two groups or cannot be duplicated
 *   TWR_ERROR_UNSUPPORTED: shared_files in the background without MPI_THREAD_MULTIPLE */
TWR_API int twr_open_mpi(twr_run** run, const char* path, const twr_settings* settings, MPI_Comm comm);

/* The same for Fortran's communicators: an integer; of a type(MPI_Comm) its component MPI_VAL. */
TWR_API int twr_open_mpi_f(twr_run** run, const char* path, const twr_settings* settings, MPI_Fint comm);

#ifdef __cplusplus
}
#endif
#endif
