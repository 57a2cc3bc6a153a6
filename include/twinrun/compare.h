/* twinrun, from C: compare two runs, where, by how much and from which step on they differ.
 *
 *     twr_comparison* found;
 *     int status = twr_compare("runs/a", "runs/b", NULL, &found);
 *     if (status != TWR_OK) puts(twr_error_message());
 *     if (found != NULL) puts(twr_comparison_json(found));
 *     twr_comparison_destroy(found);
 *
 * Verdict and facts are those of Python's twinrun.compare. TWR_OK is returned only where all was
 * compared and agrees. What Python compares beyond this (arrays that the ranks of the runs cut
 * differently, particles by their IDs, steps by their time, files of other programs, rules by
 * field) is an error or makes the runs TWR_INCOMPARABLE, and the text says why.
 *
 * Functions return a twr_status (status.h), unless they say otherwise. No function prints, aborts
 * or throws. Calls from several threads are independent. A comparison belongs to one thread at a
 * time. Texts and arrays that functions return belong to it: they are valid until it is
 * destroyed. */
#ifndef TWINRUN_COMPARE_H
#define TWINRUN_COMPARE_H

#include "twinrun.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What was found. */
typedef struct twr_comparison twr_comparison;

/* ---- what is asked for ---- */

/* Of atol, rtol and ulps: not asked for. */
#define TWR_AS_CAPTURED (-1)

typedef enum twr_method {
    /* Metadata first, and the elements that it leaves open. */
    TWR_METHOD_AUTO = 0,
    /* Every element. */
    TWR_METHOD_DIRECT = 1
} twr_method;

/* Set it up with TWR_COMPARE_OPTIONS_INIT. */
typedef struct twr_compare_options {
    /* sizeof(twr_compare_options): which version of this structure the caller knows. */
    size_t size;
    /* Elements differ where |a - b| > atol + rtol |a|, decided as if in infinite precision. atol
     * has the unit of the data. TWR_AS_CAPTURED for all three: the tolerance that a field was
     * captured for (of arrays in memory: their own, and two that differ are a problem; otherwise
     * equality). Integers and booleans compare exactly. */
    double atol;
    double rtol;
    /* Floating-point numbers at most this many representable values apart agree, whatever atol and
       rtol say. */
    int64_t ulps;
    /* 1: a NaN differs from a NaN. 0: they agree. */
    int nan_differs;
    /* 1: atol and rtol hold for integers and booleans too. Histories keep them for equality: set
     * atol or rtol here. */
    int tolerate_integers;
    /* 1: steps and fields that only one run has are left out, and noted. 0: they are problems. A
     * rank that only one run has is always a problem. */
    int common;
    /* A twr_method. */
    int method;
    /* TWR_DETECT: where it is expected to be faster. TWR_HOST, or a device's number. */
    int device;
    /* Threads that work. 0: all cores of this process. */
    int threads;
    /* Of read buffers, at most. 0: 1 GiB. */
    uint64_t memory_bytes;
} twr_compare_options;
#define TWR_COMPARE_OPTIONS_INIT                                                                 \
    {                                                                                            \
        sizeof(twr_compare_options), TWR_AS_CAPTURED, TWR_AS_CAPTURED, TWR_AS_CAPTURED, 0, 0, 0, \
            TWR_METHOD_AUTO, TWR_DETECT, 0, 0                                                    \
    }

/* ---- comparing ----
 *
 * The calling thread needs 256 KiB of stack. */

/* Compares two histories: folders that twinrun captured. a is the reference. A rank's part of a
 * node-local tier is a history of that rank. options: NULL for the defaults. *result is NULL after
 * an error.
 * Returns TWR_OK where all was compared and agrees. With a result also
 *   TWR_DIFFERENT: all was compared, and something differs
 *   TWR_INCOMPARABLE: something could not be compared: twr_comparison_problem
 * Without a result
 *   TWR_ERROR_INVALID_ARGUMENT: options that have no meaning, such as a tolerance that is NaN
 *   TWR_ERROR_NOT_FOUND: a path is not a history
 *   TWR_ERROR_MISMATCH: nothing was compared: the histories have no step in common, or are empty
 *   TWR_ERROR_DAMAGED: a manifest or a journal; or nothing was compared, for all that could be is
 *     damaged
 *   TWR_ERROR_STALE: nothing was compared, for the data was changed after its capture
 *   TWR_ERROR_UNSUPPORTED: of a newer version; packed files of other programs; a device that
 *     cannot be used; options of a newer version
 *   a file's codes */
TWR_API int twr_compare(const char* a, const char* b, const twr_compare_options* options,
                        twr_comparison** result);

/* Compares arrays in memory by their names. The arrays of one call have one `size`. Their elements
 * must not change meanwhile. `atol` and `rtol` of an array hold where the options ask for none.
 * Returns what twr_compare returns, and
 *   TWR_ERROR_INVALID_ARGUMENT: an array that cannot be: see twr_protect; two arrays of one name; a
 *     name that is not UTF-8
 *   TWR_ERROR_UNSUPPORTED: arrays with `ids` */
TWR_API int twr_compare_arrays(const twr_array* a, size_t a_count, const twr_array* b, size_t b_count,
                               const twr_compare_options* options, twr_comparison** result);

/* Compares the step that this rank captured last with the same step and rank of a reference, which
 * is a history of as many ranks. Waits until this rank has committed the step on some tier. Other
 * ranks need not call it; with shared_files they must have captured the step. reference: NULL for
 * the setting `reference`. The reference is a, this run is b.
 *
 * The setting `reference` alone compares metadata while a step is captured, and finds a place that
 * could not be proven equal. This function reads the data where metadata leaves something open.
 * Returns what twr_compare returns, and
 *   TWR_ERROR_INVALID_ARGUMENT: there is no reference
 *   TWR_ERROR_NOT_FOUND: nothing was captured yet; the step is lost; the reference has no such step
 *   TWR_ERROR_MISMATCH: the reference has another number of ranks */
TWR_API int twr_compare_step(twr_run* run, const char* reference, const twr_compare_options* options,
                             twr_comparison** result);

/* NULL: nothing. */
TWR_API void twr_comparison_destroy(twr_comparison* comparison);

/* ---- what was found ---- */

/* Where there is no number. */
#define TWR_NONE UINT64_MAX
/* The step of arrays in memory. */
#define TWR_NO_STEP INT64_MIN

typedef struct twr_comparison_report {
    /* sizeof(twr_comparison_report), set by the caller. */
    size_t size;
    /* TWR_OK: the same. TWR_DIFFERENT. TWR_INCOMPARABLE. */
    int verdict;
    /* Entries: one for each step, rank and field that was compared, in this order. */
    uint64_t fields;
    /* Of these: those that differ; and the number of the first, or TWR_NONE. */
    uint64_t different_fields;
    uint64_t first_field;
    /* Elements that differ. */
    uint64_t different;
    /* Texts of twr_comparison_problem and twr_comparison_note. */
    uint64_t problems;
    uint64_t notes;
    /* Of the data of one run; and what was read of both, metadata too. */
    uint64_t bytes_compared;
    uint64_t bytes_read;
    double seconds;
} twr_comparison_report;

/* Returns TWR_ERROR_INVALID_ARGUMENT: a size that no version of twr_comparison_report has. */
TWR_API int twr_comparison_facts(const twr_comparison* comparison, twr_comparison_report* report);

/* An element, exactly. This structure has no size: it never changes. */
typedef struct twr_value {
    /* TWR_F64: real. TWR_I64: integer. TWR_U64: whole. 0: there is no value. */
    int dtype;
    union {
        double real;
        int64_t integer;
        uint64_t whole;
    } of;
} twr_value;

/* What is known of one field at one step and rank. Elements are scalars: a complex number counts
 * twice. An index has `index_length` numbers, of the array as the application knows it; of complex
 * numbers the last is 0 for the real part, 1 for the imaginary one. */
typedef struct twr_field_report {
    /* sizeof(twr_field_report), set by the caller. */
    size_t size;
    /* TWR_NO_STEP: there is none. */
    int64_t step;
    int rank;
    /* A twr_dtype. */
    int dtype;
    const char* field;
    int dimensions;
    int index_length;
    const uint64_t* shape;
    /* The tolerance that was used. ulps: -1 for none. */
    double atol;
    double rtol;
    int64_t ulps;
    uint64_t elements;
    /* Of one run. */
    uint64_t bytes;
    /* Elements that differ; and of these, those whose distance counts as infinite: a NaN against a
     * number, or an infinity against anything else. */
    uint64_t different;
    uint64_t infinite;
    /* The first element that differs, row by row however it is stored. NULL: nothing differs, or
     * `different_is_exact` is 0. */
    const uint64_t* first_index;
    twr_value first_a;
    twr_value first_b;
    /* |a - b| there. */
    double first_abs_diff;
    /* The largest |a - b|, or an upper bound, for a part was proven without reading it. NaN: not
     * even a bound is known. */
    double max_abs_diff;
    int max_abs_diff_is_bound;
    int rms_diff_all_is_bound;
    /* A lower bound of the largest |a - b|. */
    double max_abs_diff_at_least;
    /* Where it is; NULL: not known. */
    const uint64_t* max_abs_index;
    twr_value max_abs_a;
    twr_value max_abs_b;
    /* The largest |a - b| / |a| of elements that differ, and where it is. NaN: not known. */
    double max_rel_diff;
    const uint64_t* max_rel_index;
    /* Root mean square of |a - b| over elements that differ, and over all. NaN: not known. */
    double rms_diff;
    double rms_diff_all;
    /* Elements that were read. The others are proven to agree by metadata. */
    uint64_t elements_read;
    /* "staged", "direct" or "published"; and why, or "". */
    const char* method;
    const char* reason;
    /* What elements are that are not numbers; NULL: numbers. Then distances mean nothing. */
    const char* kind;
    /* 0: exact digests differ, and the data is not at hand. `different` then counts one element of
     * each chunk that differs, so that more may; no element is known (first_index is NULL). The
     * first of these chunks reaches from first_chunk_begin to first_chunk_end, both within, in the
     * order in which elements are stored. Else 1, and NULL. */
    int different_is_exact;
    const uint64_t* first_chunk_begin;
    const uint64_t* first_chunk_end;
} twr_field_report;

/* Of entry `number`, from 0.
 * Returns
 *   TWR_ERROR_INVALID_ARGUMENT: a size that no version of twr_field_report has
 *   TWR_ERROR_NOT_FOUND: there are not so many */
TWR_API int twr_comparison_field(const twr_comparison* comparison, uint64_t number, twr_field_report* report);

/* What could not be compared, and what the user should know: a line each, from 0.
 * Returns the text; NULL where there are not so many. */
TWR_API const char* twr_comparison_problem(const twr_comparison* comparison, uint64_t number);
TWR_API const char* twr_comparison_note(const twr_comparison* comparison, uint64_t number);

/* The verdict in a line: "different: first at step 10, rank 0, x[7]: |a-b| = 1.5e-06 > 1e-06".
 * Returns the text; "" for NULL. */
TWR_API const char* twr_comparison_verdict(const twr_comparison* comparison);

/* All facts as a JSON object: the document of `twinrun compare --json` (docs/reference/reports.md),
 * without the conditions of the runs. Made by the first call.
 * Returns the text; NULL where there is not enough memory, and for NULL. */
TWR_API const char* twr_comparison_json(twr_comparison* comparison);

#ifdef __cplusplus
}
#endif
#endif
