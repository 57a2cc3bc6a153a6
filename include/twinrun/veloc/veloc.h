/* The interface of VELOC (github.com/ECP-VeloC/VELOC), versions 1.5 and newer, on top of twinrun:
 * checkpoints become steps of histories that `twinrun compare` compares, and restarts read them
 * back, checked. Written after VELOC's documentation; names, values and signatures are VELOC's, so
 * that a code changes its link line and nothing else. docs/veloc.md has the keys of the
 * configuration file and what differs.
 *
 * Every function returns VELOC_SUCCESS or VELOC_FAILURE, unless it says otherwise; none prints or
 * ends the process. In the collective mode (VELOC_Init) those marked [collective] are called by all
 * ranks in the same order. One thread at a time. */
#ifndef TWINRUN_VELOC_H
#define TWINRUN_VELOC_H

#include <mpi.h>
#include <stddef.h>
#include <string.h> /* VELOC's header brings it, and codes rely on it */

#define VELOC_SUCCESS (0)
#define VELOC_FAILURE (-1)

/* Bytes that VELOC_Route_file may write. */
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
/* This process checkpoints alone, into histories of its own; id tells it from others. MPI is not
 * used. */
TWR_VELOC_API int VELOC_Init_single(unsigned int id, const char* cfg_file);
/* [collective] Waits until all checkpoints are on persistent storage, also if drain is 0. */
TWR_VELOC_API int VELOC_Finalize(int drain);

/* Memory of checkpoints. A region of an id that is protected already is replaced. With a name: only
 * for checkpoints of that name, which then have these regions instead of the others. */
TWR_VELOC_API int VELOC_Mem_protect(int id, void* ptr, size_t count, size_t base_size);
TWR_VELOC_API int VELOC_Region_protect(int id, void* ptr, size_t count, size_t base_size, const char* name);
TWR_VELOC_API int VELOC_Mem_unprotect(int id);
TWR_VELOC_API int VELOC_Region_unprotect(int id, const char* name);
TWR_VELOC_API int VELOC_Mem_clear(void);
TWR_VELOC_API int VELOC_Region_clear(const char* name);

/* Between begin and end of a checkpoint: where to write a file that is the checkpoint. Between
 * begin and end of a restart: where it lies for reading. routed has room for VELOC_MAX_NAME
 * bytes. */
TWR_VELOC_API int VELOC_Route_file(const char* original, char* routed);

/* [collective] Removes what lies on scratch for checkpoints of this name, after it was brought to
 * persistent storage. */
TWR_VELOC_API int VELOC_Cleanup(const char* name);

/* [collective] begin, mem and end in one; succeeds on all ranks or on none. */
TWR_VELOC_API int VELOC_Checkpoint(const char* name, int version);
TWR_VELOC_API int VELOC_Checkpoint_begin(const char* name, int version);
/* The regions may change when it returns. */
TWR_VELOC_API int VELOC_Checkpoint_mem(void);
TWR_VELOC_API int VELOC_Checkpoint_selective(int mode, int* ids, int id_count);
/* [collective] Fails everywhere, and nothing is kept, if success is 0 on any rank. */
TWR_VELOC_API int VELOC_Checkpoint_end(int success);
/* [collective] Waits for all checkpoints. Fails if one was lost since the last call that said
 * so. */
TWR_VELOC_API int VELOC_Checkpoint_wait(void);
/* VELOC_SUCCESS if no checkpoint of this process is under way any more. */
TWR_VELOC_API int VELOC_Checkpoint_finished(void);

/* [collective] The newest version that every rank completed and that is not after `version` (0:
 * any), or VELOC_FAILURE. */
TWR_VELOC_API int VELOC_Restart_test(const char* name, int version);
/* [collective] begin, mem and end in one; succeeds on all ranks or on none. Fails if a region that
 * was saved is not protected. */
TWR_VELOC_API int VELOC_Restart(const char* name, int version);
/* [collective] */
TWR_VELOC_API int VELOC_Restart_begin(const char* name, int version);
/* Bytes of a region as it was saved; VELOC_FAILURE if it was not. */
TWR_VELOC_API int VELOC_Recover_size(int id);
/* Every region that was saved must be protected, or, selectively, each of those that are meant.
 * What is protected and was not saved keeps its values, unless it is named. */
TWR_VELOC_API int VELOC_Recover_mem(void);
TWR_VELOC_API int VELOC_Recover_selective(int mode, int* ids, int id_count);
/* [collective] Fails everywhere if success is 0 on any rank. */
TWR_VELOC_API int VELOC_Restart_end(int success);

/* Not of VELOC: what went wrong in this thread's last call, "" if it did not fail. The same text as
 * twr_error_message() of twinrun/status.h. Valid until the next call. */
TWR_VELOC_API const char* twr_veloc_error_message(void);

#ifdef __cplusplus
}
#endif
#endif
