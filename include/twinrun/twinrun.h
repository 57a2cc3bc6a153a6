/* twinrun, from C: protect arrays once, capture them at steps.
 *
 *     twr_settings* settings;
 *     twr_run* run;
 *     twr_settings_create(&settings);
 *     twr_settings_set(settings, "atol", "1e-6");
 *     twr_open(&run, "runs/a", settings);
 *     uint64_t shape[] = {n};
 *     twr_protect(run, "x", x, TWR_F64, 1, shape);
 *     for (step = 0; step < steps; ++step) { ...; twr_capture(run, step); }
 *     twr_close(run);
 *
 * twr_capture returns when the arrays may change. What was captured flows to storage in the
 * background, and is committed there whole or not at all. twr_close waits for that.
 *
 * Functions return a twr_status (status.h), unless they say otherwise; TWR_OK is success. After
 * anything else twr_error_message() says what, where and what to do. "Returns" below names the
 * codes of a function besides those that every function may return (status.h). No function prints,
 * aborts or throws.
 *
 * A run belongs to one thread at a time; different runs are independent. Functions marked
 * [collective] are called by all ranks of a communicator, in the same order. Texts that functions
 * return belong to the library: they are valid until the next call for the same run. Functions copy
 * what arguments point to, except the elements of arrays.
 *
 * Structures begin with their size, so that they can grow (docs/reference/capture.md says how). */
#ifndef TWINRUN_TWINRUN_H
#define TWINRUN_TWINRUN_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum twr_dtype {
    TWR_F16 = 1,
    TWR_BF16 = 2,
    TWR_F32 = 3,
    TWR_F64 = 4,
    TWR_I8 = 5,
    TWR_I16 = 6,
    TWR_I32 = 7,
    TWR_I64 = 8,
    TWR_U8 = 9,
    TWR_U16 = 10,
    TWR_U32 = 11,
    TWR_U64 = 12,
    TWR_BOOL = 13,
    /* Pairs of f32 and of f64. */
    TWR_C64 = 14,
    TWR_C128 = 15
} twr_dtype;

typedef enum twr_order { TWR_ROW_MAJOR = 0, TWR_COLUMN_MAJOR = 1 } twr_order;

/* Values of twr_array.device; 0 and more are numbers of devices. */

/* Memory of this process. */
#define TWR_HOST (-1)
/* Ask the driver where the pointer lies; without a driver it is the host. */
#define TWR_DETECT (-2)
/* The same for memory that this process cannot read. On the host it is an error. */
#define TWR_DETECT_DEVICE (-3)

typedef struct twr_settings twr_settings;
typedef struct twr_run twr_run;

/* ---- settings ----
 * Names and values are text; docs/reference/capture.md lists them. */

TWR_API int twr_settings_create(twr_settings** settings);

/* Returns TWR_ERROR_INVALID_ARGUMENT: an unknown name, or a bad value. Then nothing is set. */
TWR_API int twr_settings_set(twr_settings* settings, const char* name, const char* value);

/* Lines "name = value"; # begins a comment. After an error no setting of the file is set.
 * Returns what twr_settings_set returns, a file's codes, and
 *   TWR_ERROR_DAMAGED: more than 1 MiB, too large for a file of settings */
TWR_API int twr_settings_load(twr_settings* settings, const char* path);

/* NULL: does nothing. */
TWR_API void twr_settings_destroy(twr_settings* settings);

/* ---- a run ---- */

/* The ranks of a run, for codes whose processes talk by other means than MPI (twinrun/mpi.h has
 * twr_open_mpi). Functions return 0, or anything else for failure; -TWR_ERROR_OTHER_RANK after
 * twr_fail() if another rank did not come, with that text. All ranks call them in the same order,
 * from the thread that called twinrun. This structure has no size: it never changes. */
typedef struct twr_comm {
    void* context;
    int rank;
    int size;
    /* Each value becomes its minimum over all ranks. */
    int (*minimum)(void* context, int64_t* values, int count);
    /* Rank 0's bytes, everywhere. */
    int (*broadcast)(void* context, void* bytes, size_t byte_count);
    /* At twr_close; may be NULL. */
    void (*release)(void* context);
} twr_comm;

/* A rank's part of a file of several ranks. */
typedef struct twr_shared_part {
    /* sizeof(twr_shared_part) of the library. */
    size_t size;
    /* Of the step: ascending, and the same on all ranks. */
    uint64_t ordinal;
    /* The folder of the file, which exists. Set only if `well` is not 0. */
    const char* folder;
    /* Of this rank: a multiple of 4096. */
    const void* bytes;
    uint64_t byte_count;
    /* 0: this rank's step has failed, and no rank's may be written. */
    int well;
    /* Set by the function: where this rank's bytes are in the file, and the size of the file. */
    uint64_t offset;
    uint64_t file_bytes;
} twr_shared_part;

/* Of ranks that can write one file together (setting: shared_files); twr_open_mpi has this by
 * itself. Functions return a twr_status, and say with twr_fail what went wrong. */
typedef struct twr_shared_files {
    /* sizeof(twr_shared_files) */
    size_t size;
    void* context;
    /* By all ranks, before the first write. files: "one" for all, or "node": one a node.
     * background: write will be called by a thread of twinrun's, while others call what they like.
     * name: of this rank's file in every folder; begins with "group." */
    int (*prepare)(void* context, const char* files, int background, char* name, size_t name_bytes);
    /* Once a step by every rank, in the same order. On success the file is whole and synced under
     * its name, and so is its folder; a failure is one on every rank. A rank whose ordinal is not
     * the lowest waits for those that are behind; theirs fail. */
    int (*write)(void* context, twr_shared_part* part);
    /* At twr_close, before twr_comm's; may be NULL. */
    void (*release)(void* context);
} twr_shared_files;

/* Begins a run whose history is the folder `path`. settings: NULL for the defaults; may be
 * destroyed afterwards. The file that the environment variable TWINRUN_SETTINGS names is loaded on
 * top of them. *run is NULL after an error.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: settings that contradict each other; a history exists already, and
 *     `existing` is refuse; the folder has files that twinrun did not write
 *   TWR_ERROR_MISMATCH: the history was begun with other settings or by another number of ranks;
 *     `reference` or `record_against` has another number of ranks, or other chunks; `local` has
 *     steps of another run
 *   TWR_ERROR_DAMAGED: the history, `local`, `reference` or `record_against`
 *   TWR_ERROR_UNSUPPORTED: one of these is of a newer version
 *   a file's codes; TWR_ERROR_IO also where another process writes this history */
TWR_API int twr_open(twr_run** run, const char* path, const twr_settings* settings);

/* [collective] comm is copied. Its context is released by twr_close, and where this fails.
 * Returns what twr_open returns, and
 *   TWR_ERROR_MISMATCH: settings that must be the same on all ranks are not
 *   TWR_ERROR_UNSUPPORTED: shared_files is set, which needs twr_open_comm_shared */
TWR_API int twr_open_comm(twr_run** run, const char* path, const twr_settings* settings,
                          const twr_comm* comm);

/* [collective] The same for ranks that can write files together. shared is copied, its context
 * released as comm's is, unless its size is wrong. NULL: they cannot.
 * Returns what twr_open_comm returns, and what shared's `prepare` returns. */
TWR_API int twr_open_comm_shared(twr_run** run, const char* path, const twr_settings* settings,
                                 const twr_comm* comm, const twr_shared_files* shared);

/* [collective] Waits until all that was captured is committed, and ends the run. The handle is
 * invalid afterwards, also after an error. NULL: does nothing.
 * Returns what twr_wait returns. */
TWR_API int twr_close(twr_run* run);

/* An array: where its elements lie, and what they are. Set it up with TWR_ARRAY_INIT. */
typedef struct twr_array {
    /* sizeof(twr_array): which version of this structure the caller knows. */
    size_t size;
    const char* name;
    /* Read by captures only; written by twr_restore only. */
    void* data;
    /* A twr_dtype, and a twr_order. */
    int dtype;
    int order;
    int dimensions;
    /* Items, one number for each dimension. */
    const uint64_t* shape;
    /* Bytes from item to item, one number for each dimension, in the order of `shape` for both
     * orders. NULL: dense, in the order `order`. */
    const int64_t* strides;
    /* Shape of the array of all ranks, and this rank's place in it: both, or neither (NULL). Runs
     * that divide that array differently are compared by them. */
    const uint64_t* global_shape;
    const uint64_t* global_offset;
    /* This array's own tolerance; integers have one, too, and booleans are exact. atol negative:
     * the run's. */
    double atol;
    double rtol;
    /* Name of a protected integer array, one-dimensional; NULL: none. Items (rows) are kept in
     * ascending order of these IDs, whatever their order in memory, and compare by them
     * (`compare --key`) whatever rank they are on. */
    const char* ids;
    /* TWR_DETECT, TWR_DETECT_DEVICE, TWR_HOST or a device's number. */
    int device;
    /* The stream of the device whose earlier work makes the data (a cudaStream_t). NULL: the
     * default stream. */
    void* stream;
} twr_array;
#define TWR_ARRAY_INIT \
    { sizeof(twr_array), 0, 0, TWR_F64, TWR_ROW_MAJOR, 0, 0, 0, 0, 0, -1.0, 0.0, 0, TWR_DETECT, 0 }

/* From now on this array belongs to the run's captures, until twr_unprotect. A name that is
 * protected already is replaced: that is how a pointer or a shape changes. dtype: a twr_dtype.
 * After an error an array protected under this name before stays protected.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: a name, type, shape or pointer that cannot be
 *   TWR_ERROR_UNSUPPORTED: it lies on a device that this installation cannot read
 *   TWR_ERROR_IO: the device's driver failed */
TWR_API int twr_protect(twr_run* run, const char* name, void* data, int dtype, int dimensions,
                        const uint64_t* shape);

/* The same with all properties of an array.
 * Returns what twr_protect returns, and
 *   TWR_ERROR_INVALID_ARGUMENT: a size that no version of twr_array has
 *   TWR_ERROR_UNSUPPORTED: members of a newer version, which are not 0 */
TWR_API int twr_protect_array(twr_run* run, const twr_array* array);

/* Returns TWR_ERROR_NOT_FOUND: no array of this name is protected. */
TWR_API int twr_unprotect(twr_run* run, const char* name);

/* [collective] Captures all protected arrays. Returns when they may change.
 * Returns TWR_DIVERGED or TWR_STEP_LOST after the step was taken. After any other code but TWR_OK
 * it was not taken, and will not appear. One case is left open: where a capture writes itself and
 * the last sync of its journal fails (TWR_ERROR_IO), the step may be there later, whole.
 * Codes:
 *   TWR_ERROR_INVALID_ARGUMENT: the step is captured already; nothing is protected; there are not
 *     as many IDs as rows; this process was forked from the one that opened the run
 *   TWR_ERROR_NOT_FOUND: IDs that are not captured with their rows
 *   TWR_ERROR_MISMATCH: ranks capture different steps
 *   TWR_ERROR_UNSUPPORTED, TWR_ERROR_IO: of a device
 *   where a capture writes itself (background = false, memory = 0): a file's codes, and
 *     TWR_ERROR_DAMAGED: another program changed the history */
TWR_API int twr_capture(twr_run* run, int64_t step);

/* [collective] The same for the named arrays. count must not be 0.
 * Returns what twr_capture returns; TWR_ERROR_NOT_FOUND also: a name that is not protected. */
TWR_API int twr_capture_some(twr_run* run, int64_t step, const char* const* names, size_t count);

/* [collective] Waits until every step captured so far is committed by every rank on the last tier,
 * or lost. The last tier is the history's folder; with flusher = none it is `local`, because the
 * run moves no steps then.
 * Returns TWR_STEP_LOST after that, or
 *   TWR_ERROR_INVALID_ARGUMENT: this process was forked from the one that opened the run */
TWR_API int twr_wait(twr_run* run);

/* How many steps of this rank are on the node-local tier only: those that are on their way, that
 * could not be brought on, or that wait for `twinrun flush`. */
TWR_API int twr_local_steps(twr_run* run, uint64_t* steps);

/* Removes this rank's part of the node-local tier: its steps now; the part's own files, and its
 * folder if it is empty, at twr_close. Files that twinrun did not write stay, with their folders.
 * Waits for steps on their way. Without `local` it does nothing.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: a step is on this tier only; then nothing is removed
 *   TWR_ERROR_DAMAGED: another program changed the part
 *   a file's codes */
TWR_API int twr_drop_local(twr_run* run);

/* What the last capture did and cost this rank. */
typedef struct twr_report {
    /* sizeof(twr_report), set by the caller. */
    size_t size;
    int64_t step;
    /* Seconds for which the capture blocked the caller; and the part of them that it waited for
     * memory held by earlier steps. */
    double seconds;
    double waited_seconds;
    /* Bytes of the arrays. */
    uint64_t data_bytes;
    /* Bytes of memory that steps under way hold now. */
    uint64_t staged_bytes;
    /* 1 if it is known to differ from the reference. */
    int diverged;
    /* At the time of this call: steps that are captured, and neither committed by this rank on the
     * last tier nor lost. */
    uint64_t pending_steps;
} twr_report;

/* Returns TWR_ERROR_NOT_FOUND: nothing was captured yet; TWR_ERROR_INVALID_ARGUMENT: a size that no
 * version of twr_report has. */
TWR_API int twr_last_report(const twr_run* run, twr_report* report);

/* The same as a JSON object, whose keys are the members of twr_report; `diverged` is true or false.
 * Returns the text; "{}" if run is NULL or nothing was captured yet. */
TWR_API const char* twr_report_json(twr_run* run);

/* ---- going on from a step ---- */

/* [collective] The newest step that every rank completed, not after `not_after` (INT64_MAX: any).
 * Returns
 *   TWR_ERROR_NOT_FOUND: there is none
 *   with several ranks TWR_ERROR_DAMAGED, TWR_ERROR_UNSUPPORTED: the history cannot be read */
TWR_API int twr_latest(twr_run* run, int64_t not_after, int64_t* step);

/* Bytes of an array of a committed step of this rank, as twr_restore needs them.
 * Returns
 *   TWR_ERROR_NOT_FOUND: this rank has not committed the step; the array is not in it
 *   TWR_ERROR_IO, TWR_ERROR_DAMAGED, TWR_ERROR_UNSUPPORTED: its metadata cannot be read */
TWR_API int twr_stored_bytes(twr_run* run, int64_t step, const char* name, uint64_t* bytes);

/* Calls `callback` with the name of each array of a committed step of this rank, in the order of
 * capture. A name is valid during the call only. The callback must not call functions of this run.
 * Returns what twr_stored_bytes returns. */
typedef void (*twr_name_callback)(void* context, const char* name);
TWR_API int twr_stored_names(twr_run* run, int64_t step, twr_name_callback callback, void* context);

/* Reads all protected arrays back. Bytes are checked before they are written; after an error some
 * arrays, or a part of one, may hold the step's values and others their old ones.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: nothing is protected
 *   TWR_ERROR_NOT_FOUND: this rank has not committed the step; an array is not in it; its data was
 *     not kept
 *   TWR_ERROR_MISMATCH: an array was captured with another type, shape or order
 *   TWR_ERROR_DAMAGED: bytes contradict their checksum
 *   TWR_ERROR_UNSUPPORTED: of a newer version; an array on a device that is not dense
 *   TWR_ERROR_IO */
TWR_API int twr_restore(twr_run* run, int64_t step);

/* The same for the named arrays. count must not be 0.
 * Returns what twr_restore returns; TWR_ERROR_NOT_FOUND also: a name that is not protected. */
TWR_API int twr_restore_some(twr_run* run, int64_t step, const char* const* names, size_t count);

/* ---- comparison with a reference while the run goes on (setting: reference) ---- */

/* Where a step first differs from the reference's, by fields in the order of protection. Only
 * metadata is read, so this is a place that could not be proven equal: a difference above the
 * tolerance or, rarely, one just below it. */
typedef struct twr_divergence {
    /* sizeof(twr_divergence) of the library. */
    size_t size;
    int64_t step;
    int rank;
    /* Valid during the call only. */
    const char* field;
    /* The item of the flattened array at which the first chunk begins that is not proven equal. */
    uint64_t first_item;
    /* Chunks of this field that are not proven equal, and all its chunks. */
    uint64_t chunks;
    uint64_t chunks_in_all;
    /* "", or why the field could not be compared (its shape differs, a run lacks it). Valid as
     * `field` is. */
    const char* reason;
} twr_divergence;

/* Called once for each step and rank that diverges: from the capturing thread if stop_on_divergence
 * is set, otherwise from a thread of twinrun. It must not call functions of this run. callback:
 * NULL removes it. After twr_on_divergence has returned, the previous callback neither runs nor is
 * called. */
typedef void (*twr_divergence_callback)(const twr_divergence* divergence, void* context);
TWR_API int twr_on_divergence(twr_run* run, twr_divergence_callback callback, void* context);

#ifdef __cplusplus
}
#endif
#endif
