/* Captures by several ranks, in C, through the public interface alone. tests/mpi/scenarios.py starts it and looks at what
 * is left.
 *
 *     ranks SCENARIO HISTORY [ARGUMENTS]
 *
 * Every rank has a slab of the global array "x" and an array "mark". What they hold is a function of step, rank and place, so
 * that any later process can tell whether a restored one is right. A check that fails ends the job with status 3.
 *
 * die POINT COUNT RANK: this rank kills itself in the COUNT-th call of POINT (fsync, rename, pwrite, allreduce) that is
 * made while it captures; the functions of that name are taken from the C library and from MPI by those below.
 * shared_fault POINT COUNT RANK: that call fails instead, once.
 * stop [SETTINGS]: the last rank stops for good before it waits. */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <twinrun/mpi.h>
#include <unistd.h>

static int rank, ranks;

_Noreturn static void stop(int line, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "ranks.c:%d: rank %d: ", line, rank);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 3);
    abort();
}
#define CHECK(condition) ((condition) ? (void)0 : stop(__LINE__, "%s does not hold", #condition))
#define OK(call)                                                                                \
    do {                                                                                        \
        const int status_ = (call);                                                             \
        if (status_ != TWR_OK)                                                                  \
            stop(__LINE__, "%s: %s: %s", #call, twr_status_name(status_), twr_error_message()); \
    } while (0)
#define FAILS(wanted, call)                                                            \
    do {                                                                               \
        const int status_ = (call);                                                    \
        if (status_ != (wanted))                                                       \
            stop(__LINE__, "%s gives %s, not %s: %s", #call, twr_status_name(status_), \
                 twr_status_name(wanted), twr_error_message());                        \
        CHECK(twr_error_message()[0] != '\0');                                         \
    } while (0)

/* ---- places to die at ---- */

static const char* die_at = "";
static atomic_int calls_left = -1; /* negative: not armed */
static int only_fails = 0;         /* instead of dying */

/* Whether the call is to fail. */
static int reached(const char* point) {
    if (strcmp(point, die_at) != 0 || atomic_load(&calls_left) < 0 || atomic_fetch_sub(&calls_left, 1) != 0)
        return 0;
    if (!only_fails) raise(SIGKILL);
    errno = EIO;
    return 1;
}

static int (*next_fsync)(int);
static int (*next_rename)(int, const char*, int, const char*, unsigned);
static ssize_t (*next_pwrite)(int, const void*, size_t, off_t);

__attribute__((constructor)) static void find_next(void) {
    /* ISO C cannot cast what dlsym gives. */
    void* found[] = {dlsym(RTLD_NEXT, "fsync"), dlsym(RTLD_NEXT, "renameat2"), dlsym(RTLD_NEXT, "pwrite64")};
    memcpy(&next_fsync, &found[0], sizeof found[0]);
    memcpy(&next_rename, &found[1], sizeof found[1]);
    memcpy(&next_pwrite, &found[2], sizeof found[2]);
}

int fsync(int descriptor) {
    if (reached("fsync")) return -1;
    return next_fsync(descriptor);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
    if (reached("rename")) return -1;
    return next_rename(from_folder, from, to_folder, to, flags);
}

ssize_t pwrite64(int descriptor, const void* bytes, size_t count, off_t offset) {
    if (!only_fails && strcmp(die_at, "pwrite") == 0 && atomic_load(&calls_left) == 0 && count > 1)
        next_pwrite(descriptor, bytes, count / 2, offset); /* a part of it is written */
    if (reached("pwrite")) return -1;
    return next_pwrite(descriptor, bytes, count, offset);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
    return pwrite64(descriptor, bytes, count, offset);
}

int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    reached("allreduce");
    return PMPI_Allreduce(in, out, count, type, op, comm);
}

/* ---- the arrays ---- */

enum { ROWS = 24, COLUMNS = 700 };
static uint64_t first, own; /* rows of this rank */
static double* x;
static int32_t mark[3];

static double value(int64_t step, uint64_t row, uint64_t column) {
    return (double)(step * 1000003 + (int64_t)(row * COLUMNS + column) * 7919 % 100003) / 1024.0;
}

static void fill(int64_t step) {
    for (uint64_t r = 0; r < own; ++r) {
        for (uint64_t c = 0; c < COLUMNS; ++c)
            x[r * COLUMNS + c] = value(step, first + r, c);
    }
    for (int i = 0; i < 3; ++i)
        mark[i] = (int32_t)(step * 10 + i) ^ (rank << 20);
}

static void check(int64_t step) {
    for (uint64_t r = 0; r < own; ++r) {
        for (uint64_t c = 0; c < COLUMNS; ++c)
            CHECK(x[r * COLUMNS + c] == value(step, first + r, c));
    }
    for (int i = 0; i < 3; ++i)
        CHECK(mark[i] == ((int32_t)(step * 10 + i) ^ (rank << 20)));
}

static void protect(twr_run* run) {
    const uint64_t shape[] = {own, COLUMNS}, global[] = {ROWS, COLUMNS}, offset[] = {first, 0};
    twr_array array = TWR_ARRAY_INIT;
    array.name = "x";
    array.data = x;
    array.dtype = TWR_F64;
    array.dimensions = 2;
    array.shape = shape;
    array.global_shape = global;
    array.global_offset = offset;
    OK(twr_protect_array(run, &array));
    const uint64_t three[] = {3};
    OK(twr_protect(run, "mark", mark, TWR_I32, 1, three));
}

static twr_run* opened(const char* path, const char* const* settings) {
    twr_settings* s;
    twr_run* run = NULL;
    OK(twr_settings_create(&s));
    for (; settings != NULL && settings[0] != NULL; settings += 2)
        OK(twr_settings_set(s, settings[0], settings[1]));
    OK(twr_open_mpi(&run, path, s, MPI_COMM_WORLD));
    twr_settings_destroy(s);
    CHECK(run != NULL);
    return run;
}

static const char* const kAppend[] = {"existing", "append", NULL};

/* Steps first, first + 1, ..., each committed by all before rank 0 says so. */
static void capture_steps(twr_run* run, int64_t from, int64_t to, int say) {
    for (int64_t step = from; step <= to; ++step) {
        fill(step);
        OK(twr_capture(run, step));
        fill(-step); /* it may change now */
        if (!say) continue;
        OK(twr_wait(run));
        if (rank == 0) {
            printf("committed %" PRId64 "\n", step);
            fflush(stdout);
        }
    }
}

static void capture(const char* path, int64_t to) {
    twr_run* run = opened(path, NULL);
    protect(run);
    capture_steps(run, 1, to, 0);
    OK(twr_close(run));
}

/* Goes on after any end: the newest step is there, right, and not before `at_least`; then up to `to`. */
static void resume(const char* path, int64_t at_least, int64_t to) {
    twr_run* run = opened(path, kAppend);
    protect(run);
    int64_t newest = 0;
    const int status = twr_latest(run, INT64_MAX, &newest);
    if (status == TWR_ERROR_NOT_FOUND)
        newest = 0;
    else
        OK(status);
    CHECK(newest >= at_least);
    if (newest > 0) {
        fill(12345);
        OK(twr_restore(run, newest));
        check(newest);
    }
    if (rank == 0) printf("newest %" PRId64 "\n", newest);
    capture_steps(run, newest + 1, to, 1);
    for (int64_t step = 1; step <= to; ++step) {
        fill(12345);
        OK(twr_restore(run, step));
        check(step);
    }
    OK(twr_close(run));
}

static void die(const char* path, const char* point, int count, int who, const char* const* settings) {
    twr_run* run = opened(path, settings);
    protect(run);
    capture_steps(run, 1, 2, 1);
    if (rank == who) {
        die_at = point;
        atomic_store(&calls_left, count);
    }
    if (strcmp(point, "captured") == 0) { /* between the capture and its commit, or just after */
        fill(3);
        OK(twr_capture(run, 3));
        if (rank == who) raise(SIGKILL);
        OK(twr_wait(run));
        MPI_Barrier(MPI_COMM_WORLD); /* of which one rank never hears */
    }
    capture_steps(run, 3, 5, 1);
    atomic_store(&calls_left, -1);
    if (rank == who) printf("alive\n"); /* the point has fewer calls */
    OK(twr_close(run));
}

/* Ranks that do not agree: an error on each, soon, and the run goes on. */
static void disagree(const char* path) {
    twr_run* run = opened(path, NULL);
    protect(run);
    capture_steps(run, 1, 1, 0);
    if (ranks > 1) {
        const int status = twr_capture(run, rank == 0 ? 5 : 6);
        CHECK(status != TWR_OK && status < TWR_DIVERGED);
        CHECK(twr_error_message()[0] != '\0');
    }
    /* A step that is there. */
    const int again = twr_capture(run, 1);
    CHECK(again != TWR_OK && again < TWR_DIVERGED);
    capture_steps(run, 7, 7, 1);
    OK(twr_close(run));
}

/* What is wrong on one rank is told to all, and taken by none. */
static void invalid(const char* path) {
    const int who = ranks - 1;
    twr_run* run = opened(path, NULL);
    protect(run);
    const char* const names[] = {"x", rank == who ? "nobody" : "mark"};
    fill(1);
    FAILS(rank == who ? TWR_ERROR_NOT_FOUND : TWR_ERROR_OTHER_RANK, twr_capture_some(run, 1, names, 2));
    if (rank == who) CHECK(strstr(twr_error_message(), "nobody") != NULL);
    capture_steps(run, 1, 1, 1);
    /* An array whose rows are ordered by what is not there. */
    const uint64_t shape[] = {own, COLUMNS};
    twr_array array = TWR_ARRAY_INIT;
    array.name = "x";
    array.data = x;
    array.dimensions = 2;
    array.shape = shape;
    array.ids = "no such array";
    if (rank == who) {
        const int status = twr_protect_array(run, &array);
        if (status == TWR_OK) {
            fill(2);
            const int captured = twr_capture(run, 2);
            CHECK(captured != TWR_OK && captured < TWR_DIVERGED);
            protect(run);
        } else {
            const char* const missing[] = {"nobody"};
            FAILS(TWR_ERROR_NOT_FOUND, twr_capture_some(run, 2, missing, 1));
        }
    } else {
        FAILS(TWR_ERROR_OTHER_RANK, twr_capture(run, 2));
    }
    capture_steps(run, 2, 3, 1);
    OK(twr_close(run));

    /* Arguments of twr_open_mpi that are bad on one rank alone. */
    twr_run* none = NULL;
    if (ranks > 1) {
        FAILS(rank == who ? TWR_ERROR_INVALID_ARGUMENT : TWR_ERROR_OTHER_RANK,
              twr_open_mpi(&none, rank == who ? NULL : "unused", NULL, MPI_COMM_WORLD));
        CHECK(none == NULL);
    }
    FAILS(TWR_ERROR_INVALID_ARGUMENT, twr_open_mpi(&none, path, NULL, MPI_COMM_NULL));
    /* The history is there, and nobody said to append. */
    const int refused = twr_open_mpi(&none, path, NULL, MPI_COMM_WORLD);
    CHECK(refused != TWR_OK && none == NULL);
}

/* Two runs at once over different communicators, and a communicator of part of the ranks. */
static void communicators(const char* path) {
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    char name[4096];
    snprintf(name, sizeof name, "%s-%d", path, rank % 2);
    twr_run *all, *part;
    OK(twr_open_mpi(&all, path, NULL, MPI_COMM_WORLD));
    OK(twr_open_mpi_f(&part, name, NULL, MPI_Comm_c2f(half)));
    MPI_Comm_free(&half); /* theirs is a duplicate */
    protect(all);
    protect(part);
    for (int64_t step = 1; step <= 3; ++step) {
        fill(step);
        OK(twr_capture(all, step));
        OK(twr_capture(part, 10 * step));
    }
    fill(0);
    OK(twr_wait(part));
    OK(twr_restore(part, 20));
    check(2);
    OK(twr_close(part));
    OK(twr_close(all));
}

/* A file of rank 0's on the way of the history: storage fails on open, everywhere and with its reason. */
static void storage(const char* path) {
    if (rank == 0) {
        FILE* file = fopen(path, "w");
        CHECK(file != NULL);
        fclose(file);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    char name[4096];
    snprintf(name, sizeof name, "%s/below", path);
    twr_run* run = NULL;
    const int status = twr_open_mpi(&run, name, NULL, MPI_COMM_WORLD);
    CHECK(status != TWR_OK && status < TWR_DIVERGED && run == NULL);
    CHECK(twr_error_message()[0] != '\0');
}

/* ---- files of several ranks ---- */

/* Arrays whose size differs from rank to rank and from step to step; now and then a rank has nothing, or no rank has. */
static uint64_t rows_at(int64_t step) {
    if (step % 7 == 4) return 0;
    if ((step + rank) % 5 == 3) return 0;
    return (uint64_t)((step * 7 + rank * 5) % 11) * (step % 3 == 1 ? 1 : 200);
}

static double varied(int64_t step, uint64_t i) {
    return (double)((step * 8191 + rank * 131 + (int64_t)i * 7919) % 1000003) / 1024.0;
}

/* The array "v" as it was at this step, or space for it. */
static double* vary(twr_run* run, int64_t step, double* old, int filled) {
    const uint64_t items = rows_at(step) * 13;
    double* v = realloc(old, (items + 1) * sizeof *v);
    CHECK(v != NULL);
    for (uint64_t i = 0; i < items; ++i)
        v[i] = filled ? varied(step, i) : -1.0;
    const uint64_t shape[] = {items};
    OK(twr_protect(run, "v", v, TWR_F64, 1, shape));
    return v;
}

static void check_varied(twr_run* run, int64_t from, int64_t to) {
    double* v = NULL;
    for (int64_t step = from; step <= to; ++step) {
        v = vary(run, step, v, 0);
        OK(twr_restore(run, step));
        for (uint64_t i = 0; i < rows_at(step) * 13; ++i)
            CHECK(v[i] == varied(step, i));
    }
    free(v);
}

static void shared(const char* path, int64_t from, int64_t to, const char* const* settings) {
    twr_run* run = opened(path, settings);
    double* v = NULL;
    for (int64_t step = from; step <= to; ++step) {
        v = vary(run, step, v, 1);
        OK(twr_capture(run, step));
        memset(v, 0, rows_at(step) * 13 * sizeof *v);
    }
    OK(twr_wait(run));
    int64_t oldest = from; /* of a run that keeps the newest alone */
    for (const char* const* s = settings; s[0] != NULL; s += 2) {
        if (strcmp(s[0], "keep_steps") == 0) oldest = to + 1 - atoll(s[1]);
    }
    check_varied(run, oldest, to);
    free(v);
    OK(twr_close(run));
}

static void shared_reread(const char* path, int64_t from, int64_t to) {
    const char* const append[] = {"existing", "append", NULL};
    twr_run* run = opened(path, append);
    check_varied(run, from, to);
    OK(twr_close(run));
}

/* Storage fails once on one rank: its step is gone for all, and what comes after it is well. */
static void shared_fault(const char* path, const char* point, int count, int who,
                         const char* const* settings) {
    twr_run* run = opened(path, settings);
    protect(run);
    capture_steps(run, 1, 2, 1);
    if (rank == who) {
        only_fails = 1;
        die_at = point;
        atomic_store(&calls_left, count);
    }
    fill(3);
    int status = twr_capture(run, 3);
    if (status != TWR_OK) CHECK(twr_error_message()[0] != '\0');
    const int waited = twr_wait(run);
    if (status == TWR_OK) status = waited;
    const int spent = atomic_exchange(&calls_left, -1) < 0;
    if (rank == who) printf("%s %d\n", spent ? "reached" : "spared", count);
    if (rank == who && !spent) OK(status);
    capture_steps(run, 4, 5, 1);
    for (int64_t step = 4; step <= 5; ++step) {
        fill(12345);
        OK(twr_restore(run, step));
        check(step);
    }
    OK(twr_close(run));
}

/* A thread of twinrun's may not call MPI here. */
static void shared_funneled(const char* path) {
    const char* const background[] = {"shared_files", "one", NULL};
    const char* const waiting[] = {"shared_files", "one", "background", "false", NULL};
    twr_settings* s;
    twr_run* run = NULL;
    OK(twr_settings_create(&s));
    OK(twr_settings_set(s, background[0], background[1]));
    FAILS(TWR_ERROR_UNSUPPORTED, twr_open_mpi(&run, path, s, MPI_COMM_WORLD));
    CHECK(run == NULL);
    CHECK(strstr(twr_error_message(), "MPI_THREAD_MULTIPLE") != NULL);
    CHECK(strstr(twr_error_message(), "background") != NULL);
    twr_settings_destroy(s);
    shared(path, 1, 3, waiting);
}

/* What does not go together with such files, and settings that are not the same on all ranks. */
static void shared_refused(const char* path) {
    static const char* const pairs[][2] = {
        {"record", "tree"}, {"local", "nowhere"}, {"keep_data_steps", "2"}, {"mode", "digests"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
        twr_settings* s;
        twr_run* run = NULL;
        OK(twr_settings_create(&s));
        OK(twr_settings_set(s, "shared_files", "one"));
        OK(twr_settings_set(s, pairs[i][0], pairs[i][1]));
        FAILS(TWR_ERROR_INVALID_ARGUMENT, twr_open_mpi(&run, path, s, MPI_COMM_WORLD));
        CHECK(run == NULL && strstr(twr_error_message(), "shared_files") != NULL);
        twr_settings_destroy(s);
    }
    if (ranks == 1) return;
    twr_settings* s;
    twr_run* run = NULL;
    OK(twr_settings_create(&s));
    OK(twr_settings_set(s, "shared_files", rank == ranks - 1 ? "off" : "one"));
    FAILS(TWR_ERROR_MISMATCH, twr_open_mpi(&run, path, s, MPI_COMM_WORLD));
    CHECK(run == NULL && strstr(twr_error_message(), "shared_files") != NULL);
    twr_settings_destroy(s);
}

/* The last rank stops before twr_wait: the others come out of it, and of what they call then. Files say so: MPI may not work any more. */
static void stop_before_wait(const char* path, const char* const* settings) {
    setenv("TWINRUN_AGGREGATE_TIME_LIMIT", "1", 1);
    twr_run* run = opened(path, settings);
    protect(run);
    fill(1);
    OK(twr_capture(run, 1));
    const int who = ranks - 1;
    int process = (int)getpid();
    OK(MPI_Bcast(&process, 1, MPI_INT, who, MPI_COMM_WORLD));
    if (rank == who) raise(SIGSTOP);
    FAILS(TWR_ERROR_OTHER_RANK, twr_wait(run));
    char name[4096], partial[4200];
    snprintf(name, sizeof name, "%s.survivor-%d", path, rank);
    snprintf(partial, sizeof partial, "%s.tmp", name);
    FILE* const file = fopen(partial, "w");
    CHECK(file != NULL);
    fprintf(file, "%s\n", twr_error_message());
    /* Nothing waits once more. */
    fill(2);
    FAILS(TWR_ERROR_OTHER_RANK, twr_capture(run, 2));
    const int closed = twr_close(run);
    CHECK(closed == TWR_ERROR_OTHER_RANK || closed == TWR_STEP_LOST);
    CHECK(fclose(file) == 0 && rename(partial, name) == 0);
    for (int other = 0; other < who; ++other) {
        snprintf(name, sizeof name, "%s.survivor-%d", path, other);
        while (access(name, F_OK) != 0)
            usleep(1000);
    }
    if (rank == 0) kill(process, SIGKILL);
    _exit(0);
}

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const char* scenario = argv[1];
    const char* path = argv[2];
    twr_run* run = NULL;
    /* Before MPI_Init. */
    FAILS(TWR_ERROR_INVALID_ARGUMENT, twr_open_mpi(&run, path, NULL, MPI_COMM_WORLD));
    FAILS(TWR_ERROR_INVALID_ARGUMENT, twr_open_mpi_f(&run, path, NULL, 0));
    CHECK(strstr(twr_error_message(), "MPI_Init") != NULL);

    int provided;
    int wanted = MPI_THREAD_FUNNELED;
    for (int i = 2; i < argc; ++i) {
        if (strcmp(argv[i], "shared_files") == 0) wanted = MPI_THREAD_MULTIPLE;
    }
    MPI_Init_thread(&argc, &argv, wanted, &provided);
    if (provided < wanted) {
        printf("threads %d\n", provided);
        MPI_Finalize();
        return 0;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    first = (uint64_t)(ROWS * rank / ranks);
    own = (uint64_t)(ROWS * (rank + 1) / ranks) - first;
    x = malloc((own * COLUMNS + 1) * sizeof *x);
    CHECK(x != NULL);

    const char* given[16] = {NULL}; /* settings, behind the arguments */
    const int numbers = strcmp(scenario, "shared") == 0 ? 5 : strcmp(scenario, "stop") == 0 ? 3 : 6;
    for (int i = numbers; i < argc && i < numbers + 14; ++i)
        given[i - numbers] = argv[i];
    twr_run* left = NULL;
    if (strcmp(scenario, "capture") == 0 && argc == 4) {
        capture(path, atoll(argv[3]));
    } else if (strcmp(scenario, "resume") == 0 && argc == 5) {
        resume(path, atoll(argv[3]), atoll(argv[4]));
    } else if (strcmp(scenario, "die") == 0 && argc >= 6) {
        die(path, argv[3], atoi(argv[4]), atoi(argv[5]), given);
    } else if (strcmp(scenario, "shared") == 0 && argc >= 5) {
        shared(path, atoll(argv[3]), atoll(argv[4]), given);
    } else if (strcmp(scenario, "shared_reread") == 0 && argc == 5) {
        shared_reread(path, atoll(argv[3]), atoll(argv[4]));
    } else if (strcmp(scenario, "shared_fault") == 0 && argc >= 6) {
        shared_fault(path, argv[3], atoi(argv[4]), atoi(argv[5]), given);
    } else if (strcmp(scenario, "stop") == 0) {
        stop_before_wait(path, given);
    } else if (strcmp(scenario, "shared_funneled") == 0) {
        shared_funneled(path);
    } else if (strcmp(scenario, "shared_refused") == 0) {
        shared_refused(path);
    } else if (strcmp(scenario, "disagree") == 0) {
        disagree(path);
    } else if (strcmp(scenario, "invalid") == 0) {
        invalid(path);
    } else if (strcmp(scenario, "communicators") == 0) {
        communicators(path);
    } else if (strcmp(scenario, "storage") == 0) {
        storage(path);
    } else if (strcmp(scenario, "finalize") == 0) {
        left = opened(path, NULL);
        protect(left);
        capture_steps(left, 1, 1, 1);
    } else {
        stop(__LINE__, "no scenario %s with these arguments", scenario);
    }
    MPI_Finalize();
    if (left != NULL) { /* MPI is over: no call of it may be made, and none is */
        const int status = twr_close(left);
        if (status == TWR_OK && ranks > 1) return 3;
    }
    free(x);
    if (rank == 0) printf("done\n");
    return 0;
}
