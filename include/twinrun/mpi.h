/* twinrun, where the ranks of a run are the processes of an MPI communicator (MPI 3.0 or newer). Link with twinrun_mpi,
 * in CMake twinrun::mpi. Everything else is in twinrun/twinrun.h. */
#ifndef TWINRUN_MPI_H
#define TWINRUN_MPI_H

#include <mpi.h>

#include "twinrun.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [collective] As twr_open, for all processes of an intracommunicator. It is duplicated, so that no message of the
 * application's meets one of twinrun's; errors of the duplicate are returned, whatever the application's communicator does
 * with them. twr_close frees it: call that before MPI_Finalize. MPI is called only by the thread that calls a function
 * marked [collective], never by a thread of twinrun's: MPI_THREAD_FUNNELED is enough. But with the setting shared_files steps
 * are written by all ranks together, in the background: that needs MPI_THREAD_MULTIPLE, or background = false. */
TWR_API int twr_open_mpi(twr_run** run, const char* path, const twr_settings* settings, MPI_Comm comm);

/* The same for a communicator of Fortran's (an integer; of a type(MPI_Comm) its component MPI_VAL). */
TWR_API int twr_open_mpi_f(twr_run** run, const char* path, const twr_settings* settings, MPI_Fint comm);

#ifdef __cplusplus
}
#endif
#endif
