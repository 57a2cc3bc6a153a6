/* What all libraries of twinrun share: codes of status, the text of the last error, the version.
 *
 * The functions are in libtwinrun. libtwinrun_aggregate, libtwinrun_mpi and libtwinrun_veloc are
 * linked with it: each thread has one text, whichever library failed. All functions are
 * thread-safe. */
#ifndef TWINRUN_STATUS_H
#define TWINRUN_STATUS_H

#if defined(__GNUC__)
#define TWR_API __attribute__((visibility("default")))
#else
#define TWR_API
#endif

/* The version of these headers. Compare numbers in #if: TWINRUN_VERSION_NUMBER >= 1002 is 0.10.2 or
 * newer. twr_version_number() has that of the library, which may be newer than the headers. */
#define TWINRUN_VERSION_MAJOR 0
#define TWINRUN_VERSION_MINOR 1
#define TWINRUN_VERSION_PATCH 0
#define TWINRUN_VERSION_NUMBER \
    (TWINRUN_VERSION_MAJOR * 10000 + TWINRUN_VERSION_MINOR * 100 + TWINRUN_VERSION_PATCH)
#define TWINRUN_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return, unless they say otherwise. The numbers are fixed for good; later versions
 * may add codes. So test for TWR_OK, for those that you handle, and take all others for failures.
 *
 * Three codes may come from every function, and are not named with each of them:
 *   TWR_ERROR_INVALID_ARGUMENT  a pointer that must be given is NULL, or a handle is of no use
 *   TWR_ERROR_OUT_OF_MEMORY
 *   TWR_ERROR_INTERNAL          a defect in twinrun, or an exception of the application's
 * Two more may come from every function marked [collective], where there are several ranks:
 *   TWR_ERROR_OTHER_RANK        another rank failed, and its own text says why
 *   TWR_ERROR_IO                ranks cannot reach each other
 * Where "a file's codes" are named, any of these is meant: TWR_ERROR_NOT_FOUND, TWR_ERROR_IO,
 * TWR_ERROR_NO_SPACE. */
typedef enum twr_status {
    TWR_OK = 0,
    /* The call makes no sense: NULL, a bad value, a step that is captured already. */
    TWR_ERROR_INVALID_ARGUMENT = 1,
    /* A file, step, rank or field. */
    TWR_ERROR_NOT_FOUND = 2,
    /* The operating system or the communicator refused. */
    TWR_ERROR_IO = 3,
    /* Storage or quota is full. */
    TWR_ERROR_NO_SPACE = 4,
    /* Bytes contradict their checksum or format. */
    TWR_ERROR_DAMAGED = 5,
    /* A newer format, or a feature that this installation lacks. */
    TWR_ERROR_UNSUPPORTED = 6,
    /* Metadata is older than its data. */
    TWR_ERROR_STALE = 7,
    /* Types, shapes, settings or steps do not fit together. */
    TWR_ERROR_MISMATCH = 8,
    TWR_ERROR_OUT_OF_MEMORY = 9,
    /* No function of this version returns it. */
    TWR_ERROR_INTERRUPTED = 10,
    /* A defect in twinrun. */
    TWR_ERROR_INTERNAL = 11,
    /* This rank has no error of its own, but another rank has: no rank did what was asked. */
    TWR_ERROR_OTHER_RANK = 12,

    /* From 100 on: success, with a condition to report. */

    /* The step differs from the reference, and stop_on_divergence is set. */
    TWR_DIVERGED = 100,
    /* An earlier step could not be committed. twr_error_message() says which, and why. */
    TWR_STEP_LOST = 101,
    /* Two runs were compared (compare.h), and something differs. */
    TWR_DIFFERENT = 102,
    /* Two runs were compared, but parts of them could not be. */
    TWR_INCOMPARABLE = 103
} twr_status;

/* The text of this thread's last call that did not return TWR_OK: what happened, where, and what to
 * do. "" if there was none. Texts of more than 4095 bytes are truncated. Valid until this thread's
 * next call of twinrun. */
TWR_API const char* twr_error_message(void);

/* The name of a code, as "TWR_ERROR_IO". The text is a constant. */
TWR_API const char* twr_status_name(int status);

/* For layers on top of these interfaces: sets the thread's text, and returns `status`. NULL: "". */
TWR_API int twr_fail(int status, const char* message);

/* The library's version: as a text ("0.1.0", a constant), and as a number in the form of
 * TWINRUN_VERSION_NUMBER. */
TWR_API const char* twr_version(void);
TWR_API int twr_version_number(void);

#ifdef __cplusplus
}
#endif
#endif
