/* twinrun, where the ranks of a run are the processes of an MPI communicator (MPI 3.0 or newer).
 * Link with twinrun_mpi, in CMake twinrun::mpi. Everything else is in twinrun/twinrun.h. */
#ifndef TWINRUN_MPI_H
#define TWINRUN_MPI_H

#include <mpi.h>

#include "twinrun.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [collective] As twr_open, for all processes of an intracommunicator. It is duplicated, so that
 * messages of the application and of twinrun never mix. Errors of the duplicate are returned,
 * whichever error handler the application's communicator has. twr_close frees the duplicate: call
 * it before MPI_Finalize.
 *
 * Only the thread that calls a function marked [collective] calls MPI, never a thread of twinrun:
 * MPI_THREAD_FUNNELED is enough. Exception: with the setting shared_files all ranks write steps
 * together in the background, which needs MPI_THREAD_MULTIPLE, or background = false.
 *
 * Returns what twr_open_comm_shared returns, and
 *   TWR_ERROR_INVALID_ARGUMENT: MPI is not initialised, or finalised already; this thread may not
 *     call MPI; comm is MPI_COMM_NULL or an intercommunicator, or cannot be duplicated
 *   TWR_ERROR_UNSUPPORTED: shared_files in the background without MPI_THREAD_MULTIPLE */
TWR_API int twr_open_mpi(twr_run** run, const char* path, const twr_settings* settings, MPI_Comm comm);

/* The same for Fortran's communicators: an integer, or the component MPI_VAL of a
   type(MPI_Comm). */
TWR_API int twr_open_mpi_f(twr_run** run, const char* path, const twr_settings* settings, MPI_Fint comm);

#ifdef __cplusplus
}
#endif
#endif
