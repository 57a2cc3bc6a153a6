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
 * twr_capture returns when the arrays may change; what was captured flows to storage in the background and is committed
 * there whole, or is not there at all. twr_close waits for that.
 *
 * Every function returns a twr_status; 0 is success. After anything else twr_error_message() says what, where and what to
 * do. No function prints, aborts or throws. A run belongs to one thread at a time; different runs are independent.
 * Functions marked [collective] are called by all ranks of a communicator, in the same order. */
#ifndef TWINRUN_TWINRUN_H
#define TWINRUN_TWINRUN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TWR_API __attribute__((visibility("default")))
#else
#define TWR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are fixed for good. */
typedef enum twr_status {
    TWR_OK = 0,
    TWR_ERROR_INVALID_ARGUMENT = 1,
    TWR_ERROR_NOT_FOUND = 2, /* a file, step, rank or field */
    TWR_ERROR_IO = 3,
    TWR_ERROR_NO_SPACE = 4,
    TWR_ERROR_DAMAGED = 5, /* bytes contradict their checksum or format */
    TWR_ERROR_UNSUPPORTED = 6,
    TWR_ERROR_STALE = 7,
    TWR_ERROR_MISMATCH = 8, /* types, shapes, settings or steps that do not fit together */
    TWR_ERROR_OUT_OF_MEMORY = 9,
    TWR_ERROR_INTERRUPTED = 10,
    TWR_ERROR_INTERNAL = 11,
    TWR_ERROR_OTHER_RANK = 12, /* this rank is well, another one is not: none did what was asked */
    /* The call did what was asked, and there is news: */
    TWR_DIVERGED = 100, /* the step differs from the reference, and stop_on_divergence is set */
    TWR_STEP_LOST = 101 /* an earlier step could not be committed; twr_error_message() has it and the cause */
} twr_status;

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
    TWR_C64 = 14, /* pairs of f32 */
    TWR_C128 = 15 /* pairs of f64 */
} twr_dtype;

typedef enum twr_order { TWR_ROW_MAJOR = 0, TWR_COLUMN_MAJOR = 1 } twr_order;

#define TWR_HOST (-1)   /* twr_array.device: memory of this process */
#define TWR_DETECT (-2) /* ask the driver where the pointer lies; the host, where there is none */
#define TWR_DETECT_DEVICE \
    (-3) /* the same for memory that this process cannot read: not the host's, or it is an error */

typedef struct twr_settings twr_settings;
typedef struct twr_run twr_run;

/* What went wrong in this thread's last call that did not return TWR_OK; "" if none did. Valid until the next call. */
TWR_API const char* twr_error_message(void);
/* For layers on top of this interface, as twinrun/mpi.h is: makes this the thread's message, and returns the status. */
TWR_API int twr_fail(int status, const char* message);
TWR_API const char* twr_status_name(int status);
TWR_API const char* twr_version(void); /* "0.1.0" */

/* ---- settings: names and values as text, listed in docs/capture.md; unknown names and bad values are errors ---- */

TWR_API int twr_settings_create(twr_settings** settings);
TWR_API int twr_settings_set(twr_settings* settings, const char* name, const char* value);
/* Lines "name = value"; # begins a comment. After an error nothing of the file is set. */
TWR_API int twr_settings_load(twr_settings* settings, const char* path);
TWR_API void twr_settings_destroy(twr_settings* settings); /* NULL: nothing */

/* ---- a run ---- */

/* The ranks of a run, for codes whose processes talk by other means than MPI (twinrun/mpi.h has twr_open_mpi). Functions
 * return 0, or anything else for failure; all ranks call them in the same order, from the thread that called twinrun. */
typedef struct twr_comm {
    void* context;
    int rank;
    int size;
    int (*minimum)(void* context, int64_t* values, int count); /* each becomes its minimum over all ranks */
    int (*broadcast)(void* context, void* bytes, size_t byte_count); /* rank 0's bytes, everywhere */
    void (*release)(void* context);                                  /* at twr_close; may be NULL */
} twr_comm;

/* For ranks that can write one file together (setting: shared_files); twr_open_mpi has this by itself. Functions return a twr_status,
 * and say with twr_fail what went wrong. */
typedef struct twr_shared_part {
    size_t size;        /* sizeof(twr_shared_part) */
    uint64_t ordinal;   /* of the step; ascending, and the same on all ranks */
    const char* folder; /* that the file is to be in; it is there. Only if `well` */
    const void* bytes;  /* of this rank, a multiple of 4096 */
    uint64_t byte_count;
    int well;            /* 0: this rank's step has failed, and no rank's may be written */
    uint64_t offset;     /* set by the function: where this rank's bytes are in the file */
    uint64_t file_bytes; /* set by the function: of the whole file */
} twr_shared_part;
typedef struct twr_shared_files {
    size_t size; /* sizeof(twr_shared_files) */
    void* context;
    /* By all ranks, before the first write. files: "one" for all, or "node": one a node. background: write will be called by a
     * thread of twinrun's, while others call what they like. name: of this rank's file in every folder; begins with "group." */
    int (*prepare)(void* context, const char* files, int background, char* name, size_t name_bytes);
    /* Once a step by every rank, in the same order. On success the file is whole and synced under its name, and so is its folder; a
     * failure is one on every rank. A rank whose ordinal is not the lowest waits for those that are behind; theirs fail. */
    int (*write)(void* context, twr_shared_part* part);
    void (*release)(void* context); /* at twr_close, before twr_comm's; may be NULL */
} twr_shared_files;

/* Begins a run whose history is the folder `path`. settings: NULL for the defaults; may be destroyed afterwards. The file
 * that the environment variable TWINRUN_SETTINGS names is loaded on top of them. */
TWR_API int twr_open(twr_run** run, const char* path, const twr_settings* settings);
/* [collective] comm is copied; its context is released by twr_close, and where this fails. */
TWR_API int twr_open_comm(twr_run** run, const char* path, const twr_settings* settings,
                          const twr_comm* comm);
/* [collective] The same for ranks that can write files together; shared is copied, its context released as comm's is. NULL: they
 * cannot. */
TWR_API int twr_open_comm_shared(twr_run** run, const char* path, const twr_settings* settings,
                                 const twr_comm* comm, const twr_shared_files* shared);
/* [collective] Waits until all that was captured is committed, and ends the run. The run is gone whatever is returned.
 * NULL: nothing. */
TWR_API int twr_close(twr_run* run);

/* An array: where its elements lie, and what they are. Set it up with TWR_ARRAY_INIT, which also says which version of
 * this structure the caller knows. */
typedef struct twr_array {
    size_t size; /* sizeof(twr_array) */
    const char* name;
    void* data; /* read by captures only; written by twr_restore only */
    int dtype;  /* twr_dtype */
    int order;  /* twr_order */
    int dimensions;
    const uint64_t* shape; /* items */
    /* Bytes from item to item, one a dimension, by the array's indices whatever the order; NULL: dense, in its order. */
    const int64_t* strides;
    /* Place in the array of all ranks: both, or neither (NULL). Runs that cut that array otherwise compare by it. */
    const uint64_t* global_shape;
    const uint64_t* global_offset;
    double atol; /* this array's own tolerance; negative: the run's */
    double rtol;
    /* Name of a protected integer array, one-dimensional: items (rows) are kept in ascending order of these IDs, whatever
     * their order in memory, and compare by them (`compare --key`) whatever rank they are on; NULL: none. */
    const char* ids;
    int device; /* TWR_DETECT, TWR_DETECT_DEVICE, TWR_HOST or a device's number */
    /* Of the device, whose earlier work makes the data (a cudaStream_t); NULL: the default stream. */
    void* stream;
} twr_array;
#define TWR_ARRAY_INIT \
    { sizeof(twr_array), 0, 0, TWR_F64, TWR_ROW_MAJOR, 0, 0, 0, 0, 0, -1.0, 0.0, 0, TWR_DETECT, 0 }

/* From now on this array belongs to the run's captures, until twr_unprotect. A name that is protected already is replaced:
 * that is how a pointer or a shape changes. What the arguments point to is copied, but for the elements themselves. */
TWR_API int twr_protect(twr_run* run, const char* name, void* data, int dtype, int dimensions,
                        const uint64_t* shape);
TWR_API int twr_protect_array(twr_run* run, const twr_array* array);
TWR_API int twr_unprotect(twr_run* run, const char* name);

/* [collective] Captures all protected arrays, or those that are named. Returns when they may change. TWR_DIVERGED and
 * TWR_STEP_LOST: the step was taken. Any other error: it was not, and will not appear. */
TWR_API int twr_capture(twr_run* run, int64_t step);
TWR_API int twr_capture_some(twr_run* run, int64_t step, const char* const* names, size_t count);

/* [collective] Waits until every step captured so far is committed by every rank on the last tier, or lost. TWR_STEP_LOST
 * as in twr_capture. The last tier is the history's folder; where flusher is none it is `local`: nobody brings steps on. */
TWR_API int twr_wait(twr_run* run);
/* How many steps of this rank are on the node-local tier only: those that are on their way, that could not be brought on, or that
 * wait for `twinrun flush`. */
TWR_API int twr_local_steps(twr_run* run, uint64_t* steps);
/* This rank's part of the node-local tier leaves: its steps at once, and with twr_close the files that say whose they were, and the
 * part's folder if nothing is left in it. Files that twinrun did not write stay, and the folders that have them. An error where a
 * step is on this tier only: then nothing leaves. Waits for steps on their way. Without `local` there is nothing to do. */
TWR_API int twr_drop_local(twr_run* run);

/* What the last capture did and cost this rank. */
typedef struct twr_report {
    size_t size; /* sizeof(twr_report), set by the caller */
    int64_t step;
    double seconds;        /* that it blocked the caller */
    double waited_seconds; /* of these: waited for memory that earlier steps held */
    uint64_t data_bytes;   /* of the arrays */
    uint64_t staged_bytes; /* memory now held by steps under way */
    int diverged;          /* 1 if it is known to differ from the reference */
    /* Now, not then: captured, and neither committed by this rank on the last tier nor lost. */
    uint64_t pending_steps;
} twr_report;
TWR_API int twr_last_report(const twr_run* run, twr_report* report);

/* ---- going on from a step ---- */

/* [collective] The newest step that every rank completed, not after `not_after` (INT64_MAX: any). TWR_ERROR_NOT_FOUND if
 * there is none. */
TWR_API int twr_latest(twr_run* run, int64_t not_after, int64_t* step);
/* Bytes of an array of a committed step of this rank, as twr_restore needs them. */
TWR_API int twr_stored_bytes(twr_run* run, int64_t step, const char* name, uint64_t* bytes);
/* Calls back with the name of each array of a committed step of this rank, in the order of capture. A name is valid during the call
 * only, which must not call functions of this run. */
typedef void (*twr_name_callback)(void* context, const char* name);
TWR_API int twr_stored_names(twr_run* run, int64_t step, twr_name_callback callback, void* context);
/* Reads all protected arrays back, or those that are named. Bytes are checked before they are written; after an error some
 * arrays, or a part of one, may hold the step's values and others their old ones. Types and sizes must be as captured. */
TWR_API int twr_restore(twr_run* run, int64_t step);
TWR_API int twr_restore_some(twr_run* run, int64_t step, const char* const* names, size_t count);

/* ---- comparison with a reference while the run goes on (setting: reference) ---- */

/* Where a step first differs from the reference's, by fields in the order of protection. Only metadata is read, so this
 * is a place that could not be proven equal: a difference above the tolerance, or, rarely, one just below it. */
typedef struct twr_divergence {
    size_t size; /* sizeof(twr_divergence) */
    int64_t step;
    int rank;
    const char* field;   /* valid during the call only */
    uint64_t first_item; /* of the flattened array: the first chunk that is not proven equal begins here */
    uint64_t chunks;     /* of this field that are not proven equal */
    uint64_t chunks_in_all;
    /* "", or why the field could not be compared (its shape differs, a run lacks it); valid as `field` is. */
    const char* reason;
} twr_divergence;
/* Called once a step and rank that diverges: from the thread that captures if stop_on_divergence is set, else from a thread
 * of twinrun's. It must not call functions of this run. One that was replaced (NULL: by none) is not called, nor running,
 * once twr_on_divergence has returned. */
typedef void (*twr_divergence_callback)(const twr_divergence* divergence, void* context);
TWR_API int twr_on_divergence(twr_run* run, twr_divergence_callback callback, void* context);

#ifdef __cplusplus
}
#endif
#endif
