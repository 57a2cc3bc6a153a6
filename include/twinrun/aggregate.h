/* twinrun's aggregation: many ranks' data to few files, and back, by two-phase I/O whose aggregators are placed by the machine's
 * topology. Stands alone: link with twinrun_aggregate, in CMake twinrun::aggregate. MPI 3.0 or newer.
 *
 *     twr_aggregate* aggregate;
 *     twr_aggregate_create(&aggregate, comm, NULL);
 *     twr_aggregate_variable variables[2] = {...};          // where each array's items lie in the file
 *     twr_aggregate_declare(aggregate, variables, 2);       // all of them, before the first byte moves
 *     for (step ...) twr_aggregate_write(aggregate, path, arrays);
 *     twr_aggregate_free(aggregate);
 *
 * Every function returns a twr_status (twinrun.h); after anything but 0 twr_aggregate_error_message() says what, where and what to
 * do. No function prints or throws, and none aborts but where `time_limit` says so. Functions marked [collective] are called by
 * all ranks of the communicator, in the same order, and fail on all ranks if they fail on one: the others return
 * TWR_ERROR_OTHER_RANK, with that rank's number and message. Calls come from one thread at a time; MPI_THREAD_FUNNELED is enough. */
#ifndef TWINRUN_AGGREGATE_H
#define TWINRUN_AGGREGATE_H

#include <mpi.h>

#include "twinrun.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct twr_aggregate twr_aggregate;

/* What this thread's last call that did not return TWR_OK says. Valid until the next call. */
TWR_API const char* twr_aggregate_error_message(void);

/* All values have defaults; set it up with TWR_AGGREGATE_OPTIONS_INIT. NULL for text: the default. */
typedef struct twr_aggregate_options {
    size_t size;           /* sizeof(twr_aggregate_options) */
    const char* files;     /* "one" shared file (default), "node": one a group of nodes, "rank": one a rank */
    int nodes_per_file;    /* with "node"; 0: 1 */
    int aggregators;       /* a file; 0: chosen by the volume and the nodes */
    const char* placement; /* "cost" (default), "rank", "bridge", "random", "worst" */
    const char*
        topology; /* "auto" (default: Slurm's where it tells, else nodes by shared memory), "flat", "node", "slurm",
                              "file:PATH", "torus:...", "dragonfly:...", "fattree:...", "hwloc" (docs/aggregate.md) */
    const char* backend; /* "posix" (default), "uring", "mpiio" */
    int buffers;         /* an aggregator; 0: 2 */
    uint64_t
        buffer_bytes; /* of each; 0: a quarter of the longest partition, 1 to 8 MiB; rounded up to the block */
    uint64_t
        block_bytes; /* partitions begin and end at its multiples; 0: what the file system says, at least 4096 */
    int sync;        /* 1: data is on storage when write returns (fsync) */
    int update; /* 1: write into the file that is there (made if not), and leave all bytes alone that nobody declared; 0
                              (default): a new file, which replaces an old one at once when it is complete (undeclared bytes are zeros) */
    double
        time_limit; /* seconds that a rank waits for the others before it gives up with an error; 0: as TWINRUN_AGGREGATE_TIME_LIMIT
                              says, else 600; negative: for ever */
    uint64_t seed;  /* of "random" */
    int no_index; /* 1: several files get no PATH.twr-index, and none is asked for: the program itself knows which belong together */
} twr_aggregate_options;
#define TWR_AGGREGATE_OPTIONS_INIT \
    { sizeof(twr_aggregate_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* One array of this rank's: `items` items of item_bytes, whose first byte goes to file_offset. */
typedef struct twr_aggregate_variable {
    uint64_t item_bytes;
    uint64_t items;         /* may be 0 */
    uint64_t file_offset;   /* of its file (twr_aggregate_file) */
    uint64_t file_stride;   /* bytes from item to item in the file; 0: item_bytes (dense) */
    uint64_t memory_stride; /* the same in memory; 0: dense */
} twr_aggregate_variable;

/* [collective] comm is duplicated; MPI errors are returned, not fatal. */
TWR_API int twr_aggregate_create(twr_aggregate** aggregate, MPI_Comm comm,
                                 const twr_aggregate_options* options);
/* Which of `files` files this rank's data goes to (0 to files - 1), and its place among the ranks of that file: offsets are within that
 * file. Any pointer may be NULL. `comm` (its ranks) belongs to the aggregate. */
TWR_API int twr_aggregate_file(const twr_aggregate* aggregate, int* file, int* files, int* rank, int* ranks,
                               MPI_Comm* comm);
/* [collective] All that this rank will write or read, in one go; replaces an earlier declaration. Elects aggregators. Errors: bytes
 * that two variables, of one rank or of two, both claim (the message names the ranks, the variables and the offset). */
TWR_API int twr_aggregate_declare(twr_aggregate* aggregate, const twr_aggregate_variable* variables,
                                  int count);

/* Layouts of records, each of `count` values: how variables of `items` items a rank share a file. */
typedef enum twr_aggregate_layout {
    TWR_RECORDS = 0,  /* array of structs: item i of all variables, then item i + 1; rank after rank */
    TWR_BLOCKS = 1,   /* rank after rank, in each the whole of one variable after the other */
    TWR_VARIABLES = 2 /* struct of arrays: the first variable of all ranks, then the second */
} twr_aggregate_layout;
/* [collective] The declaration for one of these: offsets by rank order from `file_offset` on, no padding. Arrays are dense in memory. */
TWR_API int twr_aggregate_declare_records(twr_aggregate* aggregate, const uint64_t* item_bytes, int count,
                                          uint64_t items, int layout, uint64_t file_offset);

/* [collective] data: a pointer for each declared variable (host memory). `path`: the same on all ranks; with several files, file k is
 * PATH.kkkkk (five digits and more), and PATH.twr-index says how many there are: written last, when all are in place, and gone while
 * they are replaced. Files of an earlier write that had more are removed where its index shows that nobody has touched them since.
 * Until it is complete a file is PATH.twr-partial. and 16 random hexadecimal digits. The file is there, whole, when this returns TWR_OK;
 * after an error an old one is as it was (unless `update`, or of several files some are in place when another one cannot be put
 * there). A power cut after a write without `sync` may take both. */
TWR_API int twr_aggregate_write(twr_aggregate* aggregate, const char* path, const void* const* data);
/* [collective] The declared bytes of the file(s) into the arrays. Errors: a file that ends before; TWR_ERROR_MISMATCH: another number of
 * files than were written; TWR_ERROR_NOT_FOUND: several files without their index (their write did not end). */
TWR_API int twr_aggregate_read(twr_aggregate* aggregate, const char* path, void* const* data);

/* What the last declare, write and read did: a JSON text (docs/aggregate.md), the same on all ranks of a file. Valid until the next call. */
TWR_API const char* twr_aggregate_report(twr_aggregate* aggregate);

/* [collective] NULL: nothing. */
TWR_API void twr_aggregate_free(twr_aggregate* aggregate);

#ifdef __cplusplus
}
#endif
#endif
