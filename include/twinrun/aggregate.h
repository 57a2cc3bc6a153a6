/* twinrun's aggregation: many ranks' data to few files, and back, by two-phase I/O whose
 * aggregators are placed by the machine's topology. Link with twinrun_aggregate, in CMake
 * twinrun::aggregate; it brings libtwinrun, for the text of errors. MPI 3.0 or newer.
 *
 *     twr_aggregate* aggregate;
 *     twr_aggregate_create(&aggregate, comm, NULL);
 *     twr_aggregate_variable variables[2] = {...};     // where each array's items lie in the file
 *     twr_aggregate_declare(aggregate, variables, 2);  // all of them, before the first byte moves
 *     for (step ...) twr_aggregate_write(aggregate, path, arrays);
 *     twr_aggregate_free(aggregate);
 *
 * Functions return a twr_status (status.h), unless they say otherwise; TWR_OK is success. After
 * anything else twr_error_message() says what, where and what to do. "Returns" below names the
 * codes of a function besides those that every function may return (status.h). No function prints
 * or throws, and none aborts but where `time_limit` says so.
 *
 * Functions marked [collective] are called by all ranks of the communicator, in the same order, and
 * fail on all ranks if they fail on one: the others return TWR_ERROR_OTHER_RANK, with that rank's
 * number and text. So do those that wait longer than `time_limit` for another rank. Arguments that
 * must be the same on all ranks and are not: TWR_ERROR_INVALID_ARGUMENT. Calls come from one thread
 * at a time; MPI_THREAD_FUNNELED is enough. Texts that functions return belong to the library: they
 * are valid until the next call for the same aggregate. What arguments point to is copied, but for
 * data.
 *
 * twr_aggregate_options begins with its size, so that it can grow (docs/capture.md says how). */
#ifndef TWINRUN_AGGREGATE_H
#define TWINRUN_AGGREGATE_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct twr_aggregate twr_aggregate;

/* Deprecated: the older name of twr_error_message(), with the same text. It stays for one
 * release. */
TWR_API const char* twr_aggregate_error_message(void);

/* ---- settings ----
 * As text, or as a structure. Names and meanings are the same; docs/aggregate.md lists them. */

typedef struct twr_aggregate_settings twr_aggregate_settings;

TWR_API int twr_aggregate_settings_create(twr_aggregate_settings** settings);

/* Returns TWR_ERROR_INVALID_ARGUMENT: an unknown name, or a bad value. Then nothing is set. */
TWR_API int twr_aggregate_settings_set(twr_aggregate_settings* settings, const char* name, const char* value);

/* Lines "name = value"; # begins a comment. After an error nothing of the file is set.
 * Returns what twr_aggregate_settings_set returns, a file's codes, and
 *   TWR_ERROR_DAMAGED: more than 1 MiB, which is no file of settings */
TWR_API int twr_aggregate_settings_load(twr_aggregate_settings* settings, const char* path);

/* NULL: nothing. */
TWR_API void twr_aggregate_settings_destroy(twr_aggregate_settings* settings);

/* All values have defaults: set it up with TWR_AGGREGATE_OPTIONS_INIT. NULL or 0: the default. */
typedef struct twr_aggregate_options {
    /* sizeof(twr_aggregate_options): which version of this structure the caller knows. */
    size_t size;
    /* "one" shared file (default), "node": one a group of nodes, "rank": one a rank. */
    const char* files;
    /* With "node"; default: 1. */
    int nodes_per_file;
    /* Of a file; default: chosen by the volume and the nodes. */
    int aggregators;
    /* "cost" (default), "rank", "bridge", "random", "worst". */
    const char* placement;
    /* "auto" (default: Slurm's where it tells, else nodes by shared memory), "flat", "node",
     * "slurm", "file:PATH", "torus:...", "dragonfly:...", "fattree:...", "hwloc"
     * (docs/aggregate.md). */
    const char* topology;
    /* "posix" (default), "uring", "mpiio". */
    const char* backend;
    /* Of an aggregator; default: 2. */
    int buffers;
    /* Of each; default: a quarter of the longest partition, 1 to 8 MiB. Rounded up to the block. */
    uint64_t buffer_bytes;
    /* Partitions begin and end at its multiples; default: what the file system says, at least
     * 4096. */
    uint64_t block_bytes;
    /* 1: data is on storage when write returns (fsync). */
    int sync;
    /* 1: write into the file that is there (made if not), and leave all bytes alone that nobody
     * declared. 0 (default): a new file, which replaces an old one at once when it is complete;
     * bytes that nobody declared are zeros. */
    int update;
    /* Seconds that a rank waits for the others before it gives up with an error; negative: for
     * ever. Default: as TWINRUN_AGGREGATE_TIME_LIMIT says, else 600. */
    double time_limit;
    /* Of "random". */
    uint64_t seed;
    /* 1: several files get no PATH.twr-index, and none is asked for: the program itself knows which
     * belong together. */
    int no_index;
} twr_aggregate_options;
#define TWR_AGGREGATE_OPTIONS_INIT \
    { sizeof(twr_aggregate_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ---- an aggregate ---- */

/* [collective] comm is duplicated. MPI's errors are returned, not fatal. options: NULL for the
 * defaults. *aggregate is NULL after an error.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: options or a topology that cannot be; MPI is not initialised, or
 *     finalised already; the communicator is MPI_COMM_NULL or joins two groups
 *   TWR_ERROR_UNSUPPORTED: a back end or a topology that this installation lacks
 *   with topology = file:PATH a file's codes, and TWR_ERROR_DAMAGED */
TWR_API int twr_aggregate_create(twr_aggregate** aggregate, MPI_Comm comm,
                                 const twr_aggregate_options* options);

/* [collective] The same with settings as text. They may be destroyed afterwards. */
TWR_API int twr_aggregate_create_with(twr_aggregate** aggregate, MPI_Comm comm,
                                      const twr_aggregate_settings* settings);

/* Which of `files` files this rank's data goes to (0 to files - 1), and its place among the ranks
 * of that file: offsets are within that file. Any pointer but the first may be NULL. `comm`, of
 * these ranks, belongs to the aggregate. */
TWR_API int twr_aggregate_file(const twr_aggregate* aggregate, int* file, int* files, int* rank, int* ranks,
                               MPI_Comm* comm);

/* One array of this rank's: `items` items of item_bytes, whose first byte goes to file_offset. This
 * structure has no size: it never changes. */
typedef struct twr_aggregate_variable {
    uint64_t item_bytes;
    /* May be 0. */
    uint64_t items;
    /* Of its file (twr_aggregate_file). */
    uint64_t file_offset;
    /* Bytes from item to item in the file and in memory; 0: item_bytes (dense). */
    uint64_t file_stride;
    uint64_t memory_stride;
} twr_aggregate_variable;

/* [collective] All that this rank will write or read, in one go; replaces an earlier declaration.
 * Elects aggregators.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: a variable that cannot be; bytes that two variables, of one rank or
 *     of two, both claim (the text names the ranks, the variables and the offset)
 *   TWR_ERROR_UNSUPPORTED: more than 2^31 stretches of the file */
TWR_API int twr_aggregate_declare(twr_aggregate* aggregate, const twr_aggregate_variable* variables,
                                  int count);

/* Layouts of records, each of `count` values: how variables of `items` items a rank share a
 * file. */
typedef enum twr_aggregate_layout {
    /* Array of structs: item i of all variables, then item i + 1; rank after rank. */
    TWR_RECORDS = 0,
    /* Rank after rank, in each the whole of one variable after the other. */
    TWR_BLOCKS = 1,
    /* Struct of arrays: the first variable of all ranks, then the second. */
    TWR_VARIABLES = 2
} twr_aggregate_layout;

/* [collective] The declaration for one of these: offsets by rank order from `file_offset` on, no
 * padding. Arrays are dense in memory. layout: a twr_aggregate_layout.
 * Returns what twr_aggregate_declare returns. */
TWR_API int twr_aggregate_declare_records(twr_aggregate* aggregate, const uint64_t* item_bytes, int count,
                                          uint64_t items, int layout, uint64_t file_offset);

/* [collective] data: a pointer for each declared variable (host memory). `path`: the same on all
 * ranks. With several files, file k is PATH.kkkkk (five digits and more), and PATH.twr-index says
 * how many there are: written last, when all are in place, and gone while they are replaced. Files
 * of an earlier write that had more are removed where its index shows that nobody has touched them
 * since.
 *
 * Until it is complete a file is PATH.twr-partial. and 16 random hexadecimal digits. The file is
 * there, whole, when this returns TWR_OK. After an error an old one is as it was (unless `update`,
 * or of several files some are in place when another one cannot be put there). A power cut after a
 * write without `sync` may take both.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: nothing is declared; a path or data that is NULL; PATH is no
 *     regular file, or something that is no index has the index' name
 *   TWR_ERROR_MISMATCH: with `update`, another number of files than were written
 *   TWR_ERROR_DAMAGED, TWR_ERROR_UNSUPPORTED: the index is cut, or of a newer version
 *   a file's codes */
TWR_API int twr_aggregate_write(twr_aggregate* aggregate, const char* path, const void* const* data);

/* [collective] The declared bytes of the file or files into the arrays.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT, TWR_ERROR_UNSUPPORTED: as twr_aggregate_write
 *   TWR_ERROR_DAMAGED: a file ends before the last declared byte; the index is cut
 *   TWR_ERROR_MISMATCH: another number of files than were written
 *   TWR_ERROR_NOT_FOUND: no file; several files without their index (their write did not end)
 *   TWR_ERROR_IO */
TWR_API int twr_aggregate_read(twr_aggregate* aggregate, const char* path, void* const* data);

/* ---- reports ---- */

/* What a write or a read moved, and how long it took: of all files, each time that of the slowest
 * rank, so that they do not add up. docs/aggregate.md says what the members are. */
typedef struct twr_aggregate_transfer {
    /* sizeof(twr_aggregate_transfer), set by the caller. */
    size_t size;
    /* All, and of these. */
    uint64_t bytes;
    uint64_t bytes_by_node_memory;
    uint64_t bytes_from_other_nodes;
    uint64_t bytes_direct;
    uint64_t windows;
    double total_seconds;
    double gather_seconds;
    double direct_seconds;
    double storage_seconds;
    double wait_seconds;
    /* 0 of a read. */
    double sync_seconds;
    double rename_seconds;
} twr_aggregate_transfer;

/* Of the last write and of the last read that succeeded.
 * Returns TWR_ERROR_NOT_FOUND: there was none; TWR_ERROR_INVALID_ARGUMENT: a size that no version
 * of twr_aggregate_transfer has. */
TWR_API int twr_aggregate_last_write(const twr_aggregate* aggregate, twr_aggregate_transfer* transfer);
TWR_API int twr_aggregate_last_read(const twr_aggregate* aggregate, twr_aggregate_transfer* transfer);

/* What the last declare, write and read did, as a JSON object (docs/aggregate.md), the same on all
 * ranks of a file.
 * Returns the text; "{}" where there is no aggregate, or no memory. */
TWR_API const char* twr_aggregate_report(twr_aggregate* aggregate);

/* [collective] NULL: nothing. */
TWR_API void twr_aggregate_free(twr_aggregate* aggregate);

#ifdef __cplusplus
}
#endif
#endif
