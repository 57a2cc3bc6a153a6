/* twinrun's aggregation: many ranks' data to few files, and back, by two-phase I/O whose
 * aggregators are placed by the machine's topology. Link with twinrun_aggregate, in CMake
 * twinrun::aggregate; it is linked with libtwinrun, for error texts. MPI 3.0 or newer.
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
 * or throws. None aborts, except that after `time_limit` a call of MPI that only blocks ends the
 * job (docs/reference/aggregate.md).
 *
 * Functions marked [collective] are called by all ranks of the communicator, in the same order, and
 * fail on all ranks if they fail on one: the others return TWR_ERROR_OTHER_RANK, with that rank's
 * number and text. So do those that wait longer than `time_limit` for another rank. Arguments that
 * must be equal on all ranks and are not: TWR_ERROR_INVALID_ARGUMENT. One thread at a time may use
 * an aggregate; MPI_THREAD_FUNNELED is enough. Texts that functions return belong to the library:
 * they are valid until the next call for the same aggregate. Functions copy what arguments point
 * to, except the data of arrays. Sizes and offsets are bytes, times are seconds.
 *
 * twr_aggregate_options begins with its size, so that it can grow (docs/reference/capture.md says
 * how). */
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

/* For bindings to other languages: this thread's next [collective] call fails with this text,
 * whatever its other arguments are, and on the other ranks with TWR_ERROR_OTHER_RANK. So a rank
 * whose caller gave an array that C cannot judge makes the call all the same, and nobody waits for
 * it. A call of twr_aggregate_wait or twr_aggregate_free does not use it up.
 * Returns TWR_ERROR_INVALID_ARGUMENT: why is NULL or empty. */
TWR_API int twr_aggregate_refuse(const char* why);

/* ---- settings ----
 * As text, or as a structure. Names and meanings are the same; docs/reference/aggregate.md lists
 * them. */

typedef struct twr_aggregate_settings twr_aggregate_settings;

TWR_API int twr_aggregate_settings_create(twr_aggregate_settings** settings);

/* Returns TWR_ERROR_INVALID_ARGUMENT: an unknown name, or a bad value. Then nothing is set. */
TWR_API int twr_aggregate_settings_set(twr_aggregate_settings* settings, const char* name, const char* value);

/* Lines "name = value"; # begins a comment. After an error no setting of the file is set.
 * Returns what twr_aggregate_settings_set returns, a file's codes, and
 *   TWR_ERROR_DAMAGED: more than 1 MiB, too large for a file of settings */
TWR_API int twr_aggregate_settings_load(twr_aggregate_settings* settings, const char* path);

/* NULL: does nothing. */
TWR_API void twr_aggregate_settings_destroy(twr_aggregate_settings* settings);

/* Initialise it with TWR_AGGREGATE_OPTIONS_INIT. NULL or 0: the default. */
typedef struct twr_aggregate_options {
    /* sizeof(twr_aggregate_options): which version of this structure the caller knows. */
    size_t size;
    /* "one": one shared file (default); "node": one for each group of nodes; "rank": one for each
     * rank. */
    const char* files;
    /* For files = "node"; default: 1. */
    int nodes_per_file;
    /* Aggregators of a file; default: chosen by its bytes and nodes. */
    int aggregators;
    /* "cost" (default), "rank", "bridge", "random", "worst". */
    const char* placement;
    /* "auto" (default: Slurm's topology if there is one, otherwise "node"), "flat", "node",
     * "slurm", "file:PATH", "torus:...", "dragonfly:...", "fattree:...", "hwloc"
     * (docs/reference/aggregate.md). */
    const char* topology;
    /* "posix" (default), "uring", "mpiio". */
    const char* backend;
    /* Buffers of an aggregator; default: 2. */
    int buffers;
    /* Bytes of a buffer; default: a quarter of the longest partition, 1 to 8 MiB. Rounded up to a
     * multiple of block_bytes. */
    uint64_t buffer_bytes;
    /* Partitions begin and end at multiples of this; default: the file system's block, at least
     * 4096. */
    uint64_t block_bytes;
    /* 1: twr_aggregate_write returns after the data is on storage (fsync). */
    int sync;
    /* 1: writes into the existing file (or makes one), and leaves bytes unchanged that no rank
     * declared. 0 (default): writes a new file, which replaces an old one atomically when it is
     * complete; bytes that no rank declared are zeros. */
    int update;
    /* Seconds that a rank waits for others without progress before it returns an error; negative:
     * no limit. Default: the environment variable TWINRUN_AGGREGATE_TIME_LIMIT, or 600. */
    double time_limit;
    /* Seed of placement = "random". */
    uint64_t seed;
    /* 1: several files get no PATH.twr-index, and reads need none: the program itself knows which
     * files belong together. */
    int no_index;
    /* Where offsets of declarations count if there are several files: "file" (default): in this
     * rank's file; "whole": in the whole file, of which each file has the bytes of its ranks. Any
     * number of ranks can read the whole, and `twinrun aggregate join` makes one file of it. */
    const char* offsets;
    /* A file of saved elections: a declaration that is like an earlier one takes its aggregators
     * from it, and others add theirs. With several files the first has the name PLAN.00000. NULL:
     * none. */
    const char* plan;
    /* 1: several ranks may declare a byte, as blocks with their halo do. Then the aggregate only
     * reads. */
    int overlap;
    /* New files on Lustre: the bytes of a stripe, a multiple of 64 KiB, and how many storage
     * targets have stripes of them (-1: all). Default: those of the folder. On other file systems
     * both are without effect. */
    uint64_t striping_unit;
    int striping_factor;
} twr_aggregate_options;
#define TWR_AGGREGATE_OPTIONS_INIT \
    { sizeof(twr_aggregate_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ---- an aggregate ---- */

/* [collective] Creates an aggregate for the ranks of comm, which is duplicated. MPI's errors are
 * returned, not fatal. options: NULL for the defaults. *aggregate is NULL after an error.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: invalid options or an invalid topology; MPI is not initialised, or
 *     finalised already; comm is MPI_COMM_NULL or an intercommunicator
 *   TWR_ERROR_UNSUPPORTED: a back end or a topology that this installation lacks
 *   with topology = file:PATH a file's codes, and TWR_ERROR_DAMAGED */
TWR_API int twr_aggregate_create(twr_aggregate** aggregate, MPI_Comm comm,
                                 const twr_aggregate_options* options);

/* [collective] The same with settings as text. They may be destroyed afterwards. */
TWR_API int twr_aggregate_create_with(twr_aggregate** aggregate, MPI_Comm comm,
                                      const twr_aggregate_settings* settings);

/* [collective] The same for Fortran: comm is an integer of the module mpi, or a type(MPI_Comm) of
 * mpi_f08. */
TWR_API int twr_aggregate_create_f(twr_aggregate** aggregate, const MPI_Fint* comm,
                                   const twr_aggregate_settings* settings);

/* The number of this rank's file (0 to *files - 1), and this rank's number among the ranks of that
 * file. Offsets of variables are within that file. Any pointer except the first may be NULL. *comm,
 * the communicator of these ranks, belongs to the aggregate. */
TWR_API int twr_aggregate_file(const twr_aggregate* aggregate, int* file, int* files, int* rank, int* ranks,
                               MPI_Comm* comm);

/* An array of this rank: `items` items of item_bytes, whose first byte goes to file_offset. This
 * structure has no size, because it never changes. */
typedef struct twr_aggregate_variable {
    uint64_t item_bytes;
    /* May be 0. */
    uint64_t items;
    /* Within the file of this rank (twr_aggregate_file). */
    uint64_t file_offset;
    /* Bytes from item to item in the file and in memory; 0: item_bytes (dense). */
    uint64_t file_stride;
    uint64_t memory_stride;
} twr_aggregate_variable;

/* [collective] Declares all arrays that this rank will write or read; replaces an earlier
 * declaration. Elects aggregators.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: an invalid variable; bytes that two variables claim, of one rank,
 *     or without `overlap` of two (the text names the ranks, the variables and the offset)
 *   TWR_ERROR_UNSUPPORTED: more than 2^31 stretches of the file */
TWR_API int twr_aggregate_declare(twr_aggregate* aggregate, const twr_aggregate_variable* variables,
                                  int count);

/* Layouts of files of records, each of `count` values: how variables with `items` items on each
 * rank share a file. */
typedef enum twr_aggregate_layout {
    /* Array of structs: item i of all variables, then item i + 1. One rank after the other. */
    TWR_RECORDS = 0,
    /* One rank after the other; within a rank one whole variable after the other. */
    TWR_BLOCKS = 1,
    /* Struct of arrays: the first variable of all ranks, then the second. */
    TWR_VARIABLES = 2
} twr_aggregate_layout;

/* [collective] Declares variables in one of these layouts, from file_offset on, in the order of
 * ranks, without padding. Arrays are dense in memory. layout: a twr_aggregate_layout.
 * Returns what twr_aggregate_declare returns. */
TWR_API int twr_aggregate_declare_records(twr_aggregate* aggregate, const uint64_t* item_bytes, int count,
                                          uint64_t items, int layout, uint64_t file_offset);

/* Which index of an array runs fastest in memory and in the file. */
typedef enum twr_aggregate_order {
    /* The last one. */
    TWR_ORDER_C = 0,
    /* The first one. */
    TWR_ORDER_FORTRAN = 1
} twr_aggregate_order;

/* The most dimensions of a block. */
#define TWR_AGGREGATE_DIMENSIONS 32

/* A block (hyper-rectangle) of a global array that lies in the file without gaps, and its place in
 * an array of this rank. Arrays of lengths have `dimensions` members, in the order of the indices.
 * This structure has no size, because it never changes. */
typedef struct twr_aggregate_block {
    /* Of an item of the array: any number of bytes except 0. */
    uint64_t item_bytes;
    /* 0 to TWR_AGGREGATE_DIMENSIONS. */
    int dimensions;
    /* A twr_aggregate_order, of both arrays. */
    int order;
    /* The first byte of the global array, within the file of this rank (twr_aggregate_file). */
    uint64_t file_offset;
    const uint64_t* global_shape;
    /* The block's first item in the global array, and its lengths, which may be 0. */
    const uint64_t* start;
    const uint64_t* shape;
    /* Lengths of the array in memory, with its halo; NULL: those of the block. */
    const uint64_t* local_shape;
    /* The block's first item in the array in memory; NULL: zeros. */
    const uint64_t* local_start;
} twr_aggregate_block;

/* [collective] Declares blocks of global arrays, as twr_aggregate_declare declares variables: one
 * array (data[k]) for each. Several blocks may be parts of one global array; ranks may have
 * different numbers of blocks, also none. Items of the halo are neither written nor read.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: an invalid block, or one that leaves its global or local array;
 *     bytes that two blocks claim, of one rank or of two
 *   TWR_ERROR_UNSUPPORTED: a block of more than 2^22 pieces */
TWR_API int twr_aggregate_declare_blocks(twr_aggregate* aggregate, const twr_aggregate_block* blocks,
                                         int count);

/* Data that datatypes of MPI describe. This structure has no size, because it never changes. */
typedef struct twr_aggregate_typed {
    /* Where the file type begins, within the file of this rank: the displacement of an MPI view. */
    uint64_t file_offset;
    /* The places in the file; repeated by its extent as often as the data needs. Its places
       ascend. */
    MPI_Datatype file_type;
    /* Places in memory, from data[k] on; repeated by its extent. Need not be committed. */
    MPI_Datatype memory_type;
    uint64_t memory_count;
} twr_aggregate_typed;

/* [collective] Declares data by datatypes of MPI, which may be freed afterwards: those that
 * MPI_Type_contiguous, vector, indexed, struct, subarray, darray and their variants make, of any
 * depth. Addresses relative to MPI_BOTTOM are not supported, because data[k] may not be NULL.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: a file type whose places do not ascend or are negative;
 *     MPI_DATATYPE_NULL; bytes that two claim
 *   TWR_ERROR_UNSUPPORTED: a datatype of another constructor, or of more than 2^22 pieces */
TWR_API int twr_aggregate_declare_types(twr_aggregate* aggregate, const twr_aggregate_typed* types,
                                        int count);

/* [collective] Writes the declared arrays. data: a pointer for each declared variable, to host
 * memory. path: equal on all ranks. With several files, file k is PATH.kkkkk (at least five
 * digits), and the index PATH.twr-index has their number. It is written last, when all have their
 * names (not with `no_index`), and an old one is removed before they are replaced. If an earlier
 * write had more files, its surplus files are removed, provided that its index shows that they are
 * unchanged.
 *
 * Until it is complete a file has the name PATH.twr-partial. and 16 random hexadecimal digits.
 * After TWR_OK the file is complete. After an error an old file is unchanged, with two exceptions:
 * with `update`, and of several files some may be renamed already when a rename fails. A power cut
 * after a write without `sync` may destroy the old and the new file.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: nothing is declared; path or data is NULL; PATH exists and is no
 *     regular file; a file with the index' name is not an index
 *   TWR_ERROR_MISMATCH: with `update`, another number of files than were written
 *   TWR_ERROR_DAMAGED, TWR_ERROR_UNSUPPORTED: the index is truncated, or of a newer version; with
 *     `update`, TWR_ERROR_DAMAGED also where sub-files were exchanged by a rename
 *   a file's codes */
TWR_API int twr_aggregate_write(twr_aggregate* aggregate, const char* path, const void* const* data);

/* [collective] As twr_aggregate_write, but returns as soon as the arrays may change: this rank's
 * bytes are copied, and a thread of twinrun's writes them while the program computes. Up to two
 * writes of a rank are under way at a time; the third waits for the first. Memory: twice the bytes
 * that this rank declared. The writes end in the order of the calls.
 *
 * The thread calls no MPI if all ranks are on one node and the back end is not mpiio. Otherwise it
 * needs MPI_THREAD_MULTIPLE; without it this function writes before it returns. The report says
 * which (docs/reference/aggregate.md). Another collective call for the same aggregate, a report and
 * twr_aggregate_free wait for writes under way first.
 *
 * The first call after a declaration waits for all ranks; later ones do not. An error that is known
 * at once is returned on this rank alone; on the others, and every later error on all,
 * twr_aggregate_wait returns it.
 * Returns what twr_aggregate_write returns. */
TWR_API int twr_aggregate_write_begin(twr_aggregate* aggregate, const char* path, const void* const* data);

/* [collective] Waits until every write that began is complete. Call it before MPI_Finalize, and
 * before a program reads the files.
 * Returns the first error of these writes since the last call, as twr_aggregate_write does. Later
 * writes are made also after an error. */
TWR_API int twr_aggregate_wait(twr_aggregate* aggregate);

/* *done: 1 if no write of this rank is under way, 0 otherwise. Does not wait. */
TWR_API int twr_aggregate_test(twr_aggregate* aggregate, int* done);

/* [collective] Reads the declared bytes of the file or files into the arrays. data: as in
 * twr_aggregate_write. After an error arrays may be partly overwritten.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT, TWR_ERROR_UNSUPPORTED: as twr_aggregate_write
 *   TWR_ERROR_DAMAGED: a file ends before the last declared byte; the index is truncated;
 *     sub-files were exchanged by a rename
 *   TWR_ERROR_MISMATCH: another number of files than were written. With `offsets` = "whole" any
 *     number is read; with one file all files are, as if they lay one behind the other
 *   TWR_ERROR_NOT_FOUND: no file; several files without their index (their write did not finish)
 *   TWR_ERROR_IO */
TWR_API int twr_aggregate_read(twr_aggregate* aggregate, const char* path, void* const* data);

/* ---- reports ---- */

/* Bytes and times of a write or a read, of all files. Each time is that of the slowest rank, so the
 * times do not add up to the total. docs/reference/aggregate.md explains the members. */
typedef struct twr_aggregate_transfer {
    /* sizeof(twr_aggregate_transfer), set by the caller. */
    size_t size;
    /* In all; the next three are parts of it. */
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
    /* Of a write; 0 for a read. */
    double sync_seconds;
    double rename_seconds;
} twr_aggregate_transfer;

/* The last write and the last read that succeeded.
 * Returns
 *   TWR_ERROR_NOT_FOUND: there was none
 *   TWR_ERROR_INVALID_ARGUMENT: a size that no version of twr_aggregate_transfer has */
TWR_API int twr_aggregate_last_write(const twr_aggregate* aggregate, twr_aggregate_transfer* transfer);
TWR_API int twr_aggregate_last_read(const twr_aggregate* aggregate, twr_aggregate_transfer* transfer);

/* A report on the last declaration, write and read as a JSON object (docs/reference/aggregate.md),
 * equal on all ranks of a file.
 * Returns the text; "{}" if aggregate is NULL or memory is lacking. */
TWR_API const char* twr_aggregate_report(twr_aggregate* aggregate);

/* [collective] Frees the aggregate; call it before MPI_Finalize. NULL: does nothing. */
TWR_API void twr_aggregate_free(twr_aggregate* aggregate);

#ifdef __cplusplus
}
#endif
#endif
