/* The interface of VELOC (github.com/ECP-VeloC/VELOC), versions 1.5 and newer, on top of twinrun:
 * checkpoints become steps of histories that `twinrun compare` compares, and restarts read them
 * back, checked. Written after VELOC's documentation. Names, values and signatures are VELOC's: an
 * application changes only its link line. docs/reference/veloc.md has the keys of the
 * configuration file and what differs.
 *
 * Every function returns VELOC_SUCCESS or VELOC_FAILURE, unless its comment says otherwise. After a
 * failure twr_veloc_error_message() has the reason. None prints or ends the process. In the
 * collective mode (VELOC_Init) all ranks call those marked [collective], in the same order. Only
 * one thread at a time may call these functions. Sizes are bytes. */
#ifndef TWINRUN_VELOC_H
#define TWINRUN_VELOC_H

#include <mpi.h>
#include <stddef.h>
#include <string.h> /* VELOC's header includes it, and applications rely on that */

#define VELOC_SUCCESS (0)
#define VELOC_FAILURE (-1)

/* The most bytes that VELOC_Route_file writes, with the terminating 0. */
#define VELOC_MAX_NAME (1024)

#define VELOC_CKPT_ALL (0)
#define VELOC_CKPT_SOME (1)
#define VELOC_CKPT_REST (2)

#define VELOC_RECOVER_ALL (0)
#define VELOC_RECOVER_SOME (1)
#define VELOC_RECOVER_REST (2)

#define VELOC_OBSERVE_CKPT_END (0)

#if defined(__GNUC__)
#define TWR_VELOC_API __attribute__((visibility("default")))
#else
#define TWR_VELOC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* [collective] Every process of comm takes part in every checkpoint. */
TWR_VELOC_API int VELOC_Init(MPI_Comm comm, const char* cfg_file);
/* This process checkpoints alone, into histories of its own; id distinguishes it from other
 * processes. MPI is not used. */
TWR_VELOC_API int VELOC_Init_single(unsigned int id, const char* cfg_file);
/* [collective] Waits until all checkpoints are on persistent storage, even if drain is 0. Fails if
 * a checkpoint was lost. */
TWR_VELOC_API int VELOC_Finalize(int drain);

/* Memory for checkpoints: count items of base_size bytes. A region with the same id is replaced.
 * With a name: only for checkpoints of that name, which then have only such regions. */
TWR_VELOC_API int VELOC_Mem_protect(int id, void* ptr, size_t count, size_t base_size);
TWR_VELOC_API int VELOC_Region_protect(int id, void* ptr, size_t count, size_t base_size, const char* name);
TWR_VELOC_API int VELOC_Mem_unprotect(int id);
TWR_VELOC_API int VELOC_Region_unprotect(int id, const char* name);
TWR_VELOC_API int VELOC_Mem_clear(void);
TWR_VELOC_API int VELOC_Region_clear(const char* name);

/* Between begin and end of a checkpoint: the path to which the application writes the checkpoint as
 * a file. Between begin and end of a restart: the path from which it reads the file. routed must
 * have room for VELOC_MAX_NAME bytes. */
TWR_VELOC_API int VELOC_Route_file(const char* original, char* routed);

/* [collective] Removes checkpoints of this name from scratch, after they are on persistent
 * storage. */
TWR_VELOC_API int VELOC_Cleanup(const char* name);

/* [collective] begin, mem and end in one; succeeds on all ranks or on none. */
TWR_VELOC_API int VELOC_Checkpoint(const char* name, int version);
TWR_VELOC_API int VELOC_Checkpoint_begin(const char* name, int version);
/* The regions may change when it returns. */
TWR_VELOC_API int VELOC_Checkpoint_mem(void);
TWR_VELOC_API int VELOC_Checkpoint_selective(int mode, int* ids, int id_count);
/* [collective] If success is 0 on any rank it fails on all ranks, and discards the checkpoint. */
TWR_VELOC_API int VELOC_Checkpoint_end(int success);
/* [collective] Waits for all checkpoints. Fails if one was lost since the last call that reported
 * a loss. */
TWR_VELOC_API int VELOC_Checkpoint_wait(void);
/* VELOC_SUCCESS if no checkpoint of this process is under way. */
TWR_VELOC_API int VELOC_Checkpoint_finished(void);

/* [collective] Returns the newest version that every rank completed, at most `version` (0: any), or
 * VELOC_FAILURE. */
TWR_VELOC_API int VELOC_Restart_test(const char* name, int version);
/* [collective] begin, mem and end in one; succeeds on all ranks or on none. Fails if a saved
 * region is not protected. */
TWR_VELOC_API int VELOC_Restart(const char* name, int version);
/* [collective] Begins a restart from this version. */
TWR_VELOC_API int VELOC_Restart_begin(const char* name, int version);
/* Returns the bytes of a region as it was saved; VELOC_FAILURE if it was not saved. */
TWR_VELOC_API int VELOC_Recover_size(int id);
/* Restores saved regions: all, or those that mode and ids select. Each of them must be protected. A
 * protected region that was not saved keeps its values; it is an error if ids names it. */
TWR_VELOC_API int VELOC_Recover_mem(void);
TWR_VELOC_API int VELOC_Recover_selective(int mode, int* ids, int id_count);
/* [collective] Fails on all ranks if success is 0 on any rank. */
TWR_VELOC_API int VELOC_Restart_end(int success);

/* Not in VELOC: why this thread's last call failed; "" if it succeeded. The same text as
 * twr_error_message() of twinrun/status.h. Valid until the next call. */
TWR_VELOC_API const char* twr_veloc_error_message(void);

#ifdef __cplusplus
}
#endif
#endif
