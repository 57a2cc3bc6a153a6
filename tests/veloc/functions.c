/* Every function of VELOC's interface, in C, through <veloc.h> alone. tests/veloc/scenarios.py starts it.
 *
 *     functions single|collective CONFIG FOLDER
 *
 * CONFIG says: twinrun_type_1 = f64, twinrun_name_1 = temperature, max_versions = 0. FOLDER is the test's own. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <veloc.h>

static int rank, ranks = 1, single;
static const char* config;

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "functions.c:%d: rank %d: %s does not hold (%s)\n", __LINE__, rank, #condition, \
                    twr_veloc_error_message());                                                             \
            if (!single) MPI_Abort(MPI_COMM_WORLD, 3);                                                      \
            exit(3);                                                                                        \
        }                                                                                                   \
    } while (0)
#define OK(call) CHECK((call) == VELOC_SUCCESS)
#define FAILS(call)                                  \
    do {                                             \
        CHECK((call) == VELOC_FAILURE);              \
        CHECK(twr_veloc_error_message()[0] != '\0'); \
    } while (0)
#define FAILS_SAYING(words, call)                                \
    do {                                                         \
        CHECK((call) == VELOC_FAILURE);                          \
        CHECK(strstr(twr_veloc_error_message(), words) != NULL); \
    } while (0)

static int initialise(void) {
    return single ? VELOC_Init_single(7, config) : VELOC_Init(MPI_COMM_WORLD, config);
}

enum { COUNT = 5000 };
static int number;
static double temperature[COUNT + 10];
static char text[32];

static void fill(int version) {
    number = version * 100 + rank;
    for (int i = 0; i < COUNT; ++i)
        temperature[i] = version + i / 1024.0 + 1000.0 * rank;
    snprintf(text, sizeof text, "version %d of rank %d", version, rank);
}

static int is(int version) {
    char wanted[sizeof text];
    snprintf(wanted, sizeof wanted, "version %d of rank %d", version, rank);
    for (int i = 0; i < COUNT; ++i) {
        if (temperature[i] != version + i / 1024.0 + 1000.0 * rank) return 0;
    }
    return number == version * 100 + rank && strcmp(text, wanted) == 0;
}

static void protect(void) {
    OK(VELOC_Mem_protect(0, &number, 1, sizeof number));
    OK(VELOC_Mem_protect(1, temperature, COUNT, sizeof(double)));
    OK(VELOC_Mem_protect(-2, text, sizeof text, 1));
}

static void not_initialised(void) {
    int id = 1;
    char routed[VELOC_MAX_NAME];
    FAILS_SAYING("VELOC_Init", VELOC_Mem_protect(1, &id, 1, sizeof id));
    FAILS_SAYING("VELOC_Init", VELOC_Region_protect(1, &id, 1, sizeof id, "x"));
    FAILS_SAYING("VELOC_Init", VELOC_Mem_unprotect(1));
    FAILS_SAYING("VELOC_Init", VELOC_Region_unprotect(1, "x"));
    FAILS_SAYING("VELOC_Init", VELOC_Mem_clear());
    FAILS_SAYING("VELOC_Init", VELOC_Region_clear("x"));
    FAILS_SAYING("VELOC_Init", VELOC_Route_file("x", routed));
    FAILS_SAYING("VELOC_Init", VELOC_Cleanup("x"));
    FAILS_SAYING("VELOC_Init", VELOC_Checkpoint("x", 1));
    FAILS_SAYING("VELOC_Init", VELOC_Checkpoint_begin("x", 1));
    FAILS_SAYING("VELOC_Init", VELOC_Checkpoint_mem());
    FAILS_SAYING("VELOC_Init", VELOC_Checkpoint_selective(VELOC_CKPT_SOME, &id, 1));
    FAILS_SAYING("VELOC_Init", VELOC_Checkpoint_end(1));
    FAILS_SAYING("VELOC_Init", VELOC_Checkpoint_wait());
    FAILS_SAYING("VELOC_Init", VELOC_Checkpoint_finished());
    FAILS_SAYING("VELOC_Init", VELOC_Restart_test("x", 0));
    FAILS_SAYING("VELOC_Init", VELOC_Restart("x", 1));
    FAILS_SAYING("VELOC_Init", VELOC_Restart_begin("x", 1));
    FAILS_SAYING("VELOC_Init", VELOC_Recover_size(1));
    FAILS_SAYING("VELOC_Init", VELOC_Recover_mem());
    FAILS_SAYING("VELOC_Init", VELOC_Recover_selective(VELOC_RECOVER_SOME, &id, 1));
    FAILS_SAYING("VELOC_Init", VELOC_Restart_end(1));
    FAILS_SAYING("VELOC_Init", VELOC_Finalize(1));
}

static void initialising(const char* folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/no such file", folder);
    const char* right = config;
    config = path;
    FAILS_SAYING("no such file", initialise());
    config = folder;
    FAILS(initialise());
    config = right;
    if (single) {
        FAILS_SAYING("MPI_Init", VELOC_Init(MPI_COMM_WORLD, config));
    } else {
        FAILS(VELOC_Init(MPI_COMM_NULL, config));
        if (ranks > 1) { /* one rank's file alone is bad: told to all */
            config = rank == ranks - 1 ? path : right;
            FAILS_SAYING(rank == ranks - 1 ? "no such file" : "another rank", initialise());
            config = right;
        }
    }
    OK(initialise());
    OK(initialise()); /* again: nothing, as in VELOC */
}

static void regions(void) {
    double some[3];
    FAILS_SAYING("null", VELOC_Mem_protect(3, NULL, 1, 8));
    FAILS_SAYING("more than", VELOC_Mem_protect(3, some, SIZE_MAX, 8));
    FAILS_SAYING("more than", VELOC_Mem_protect(3, some, SIZE_MAX / 2 + 1, 1));
    FAILS_SAYING("twinrun_type_1", VELOC_Mem_protect(1, some, 3, 4)); /* 12 bytes are no doubles */
    FAILS(VELOC_Region_protect(1, some, 3, 8, NULL));
    FAILS(VELOC_Region_unprotect(1, NULL));
    FAILS(VELOC_Region_clear(NULL));
    FAILS_SAYING("not protected", VELOC_Mem_unprotect(3));
    FAILS(VELOC_Region_unprotect(3, "nobody"));
    OK(VELOC_Mem_protect(3, some, 3, 8));
    OK(VELOC_Mem_protect(3, some, 2, 8)); /* replaced */
    OK(VELOC_Mem_unprotect(3));
    FAILS(VELOC_Mem_unprotect(3));
    OK(VELOC_Region_protect(3, some, 3, 8, "x"));
    OK(VELOC_Region_unprotect(3, "x"));
    OK(VELOC_Region_clear("x"));
    OK(VELOC_Mem_protect(3, some, 3, 8));
    OK(VELOC_Mem_clear());
    FAILS(VELOC_Mem_unprotect(3));
}

static void phases(void) {
    FAILS(VELOC_Restart_test("heat", 0)); /* nothing there, and the question leaves nothing behind */
    FAILS(VELOC_Restart("heat", 1));
    FAILS(VELOC_Restart_begin("heat", 1));
    FAILS_SAYING("protect", VELOC_Checkpoint("heat", 1)); /* no regions */
    protect();
    FAILS(VELOC_Checkpoint_mem());
    FAILS(VELOC_Checkpoint_end(1));
    FAILS(VELOC_Recover_mem());
    FAILS(VELOC_Recover_size(1));
    FAILS(VELOC_Restart_end(1));
    FAILS(VELOC_Checkpoint_begin("heat", -1));
    FAILS(VELOC_Checkpoint_begin("", 1));
    FAILS(VELOC_Checkpoint_begin(NULL, 1));
    FAILS(VELOC_Checkpoint_begin("..", 1));
    FAILS(VELOC_Checkpoint_begin("a/b", 1));
    FAILS(VELOC_Checkpoint_begin("a-b", 1));
    FAILS(VELOC_Checkpoint("a b", 1));
    FAILS(VELOC_Restart_test("a b", 0));
    FAILS(VELOC_Restart_test("heat", -1));
    FAILS(VELOC_Cleanup("../x"));
    OK(VELOC_Checkpoint_begin("heat", 1));
    FAILS(VELOC_Checkpoint_begin("heat", 2)); /* the first one stays begun */
    FAILS(VELOC_Checkpoint("heat", 2));
    FAILS(VELOC_Checkpoint_wait());
    FAILS(VELOC_Checkpoint_finished());
    FAILS(VELOC_Restart_begin("heat", 1));
    FAILS_SAYING("nothing was saved", VELOC_Checkpoint_end(1)); /* no mem */
    FAILS(VELOC_Checkpoint_end(1));
    FAILS(VELOC_Restart_test("heat", 0));
}

static void checkpoints(void) {
    fill(1);
    OK(VELOC_Checkpoint("heat", 1));
    fill(99); /* it may change now */
    OK(VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_finished());
    CHECK(VELOC_Restart_test("heat", 0) == 1);

    /* What mem saw is what is kept. */
    OK(VELOC_Checkpoint_begin("heat", 2));
    fill(2);
    OK(VELOC_Checkpoint_mem());
    fill(98);
    OK(VELOC_Checkpoint_end(1));

    /* A rank that did not manage its part. */
    fill(3);
    OK(VELOC_Checkpoint_begin("heat", 3));
    OK(VELOC_Checkpoint_mem());
    FAILS(VELOC_Checkpoint_end(rank != ranks - 1));
    /* One without regions, one with another version or name. */
    if (ranks > 1) {
        if (rank == 0) OK(VELOC_Mem_clear());
        FAILS_SAYING(rank == 0 ? "protect" : "another rank", VELOC_Checkpoint("heat", 3));
        protect();
        FAILS_SAYING("same", VELOC_Checkpoint("heat", rank == 0 ? 3 : 4));
        FAILS_SAYING("same", VELOC_Checkpoint(rank == 0 ? "heat" : "cold", 3));
        FAILS_SAYING("same", VELOC_Restart_test("heat", rank == 0 ? 3 : 4));
        FAILS(VELOC_Restart("heat", rank == 0 ? 1 : 2));
    }
    CHECK(VELOC_Restart_test("heat", 0) == 2);

    /* Parts. */
    fill(5);
    int ids[] = {1, -2};
    OK(VELOC_Checkpoint_begin("heat", 5));
    FAILS(VELOC_Checkpoint_selective(3, ids, 1));
    FAILS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, NULL, 1));
    FAILS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, ids, -1));
    FAILS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, ids, 0));
    OK(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, ids, 1));
    OK(VELOC_Checkpoint_end(1));
    fill(6);
    OK(VELOC_Checkpoint_begin("heat", 6));
    OK(VELOC_Checkpoint_selective(VELOC_CKPT_REST, ids, 2));     /* the number */
    OK(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, ids + 1, 1)); /* and the text */
    OK(VELOC_Checkpoint_end(1));
    OK(VELOC_Checkpoint_wait());
}

static void restarts(void) {
    CHECK(VELOC_Restart_test("heat", 0) == 6);
    CHECK(VELOC_Restart_test("heat", INT_MAX) == 6);
    CHECK(VELOC_Restart_test("heat", 6) == 6);
    CHECK(VELOC_Restart_test("heat", 4) == 2);
    CHECK(VELOC_Restart_test("heat", 1) == 1);
    FAILS(VELOC_Restart("heat", 3));
    FAILS(VELOC_Restart("heat", 7));

    fill(50);
    OK(VELOC_Restart("heat", 2));
    CHECK(is(2));
    OK(VELOC_Restart("heat", 1));
    CHECK(is(1));

    /* A region with more room than was saved; one with less, and then nothing is read. */
    OK(VELOC_Mem_protect(1, temperature, COUNT + 10, sizeof(double)));
    fill(50);
    OK(VELOC_Restart("heat", 2));
    CHECK(is(2));
    OK(VELOC_Mem_protect(1, temperature, COUNT - 1, sizeof(double)));
    fill(50);
    FAILS_SAYING("room", VELOC_Restart("heat", 2));
    CHECK(is(50));
    if (ranks > 1) { /* on one rank: all hear of it */
        OK(VELOC_Mem_protect(1, temperature, rank == 0 ? COUNT - 1 : COUNT, sizeof(double)));
        FAILS_SAYING(rank == 0 ? "room" : "another rank", VELOC_Restart("heat", 2));
    }
    protect();

    /* Sizes before anything is protected; parts. */
    OK(VELOC_Mem_clear());
    OK(VELOC_Restart_begin("heat", 2));
    CHECK(VELOC_Recover_size(0) == (int)sizeof number);
    CHECK(VELOC_Recover_size(1) == COUNT * (int)sizeof(double));
    CHECK(VELOC_Recover_size(-2) == (int)sizeof text);
    FAILS(VELOC_Recover_size(4));
    FAILS(VELOC_Recover_mem()); /* nothing is protected */
    protect();
    fill(50);
    int ids[] = {0, 4};
    FAILS(VELOC_Recover_selective(VELOC_RECOVER_SOME, ids, 2)); /* 4 is not protected */
    FAILS(VELOC_Recover_selective(17, ids, 1));
    OK(VELOC_Recover_selective(VELOC_RECOVER_SOME, ids, 1));
    CHECK(number == 200 + rank && temperature[3] != 2 + 3 / 1024.0 + 1000.0 * rank);
    OK(VELOC_Recover_selective(VELOC_RECOVER_REST, ids, 1));
    CHECK(is(2));
    OK(VELOC_Restart_end(1));
    FAILS(VELOC_Recover_mem());
    OK(VELOC_Restart_begin("heat", 2));
    FAILS(VELOC_Restart_end(rank != ranks - 1));

    /* A saved region that is not protected: nothing is read, unless it is left out by its id. */
    OK(VELOC_Mem_unprotect(1));
    fill(50);
    FAILS_SAYING("no protected region", VELOC_Restart("heat", 2));
    CHECK(is(50));
    OK(VELOC_Restart_begin("heat", 2));
    FAILS_SAYING("no protected region", VELOC_Recover_mem());
    int other = 0;
    FAILS_SAYING("no protected region", VELOC_Recover_selective(VELOC_RECOVER_REST, &other, 1));
    int left_out = 1;
    OK(VELOC_Recover_selective(VELOC_RECOVER_REST, &left_out, 1));
    CHECK(number == 200 + rank && temperature[3] == 50 + 3 / 1024.0 + 1000.0 * rank);
    OK(VELOC_Recover_selective(VELOC_RECOVER_SOME, &other, 1));
    OK(VELOC_Restart_end(1));
    protect();
    OK(VELOC_Restart("heat", 2));
    CHECK(is(2));

    /* Saved in part: the rest keeps its values. */
    fill(50);
    OK(VELOC_Restart("heat", 6));
    CHECK(number == 600 + rank && temperature[3] == 50 + 3 / 1024.0 + 1000.0 * rank);
    int one = 1;
    OK(VELOC_Restart_begin("heat", 6));
    FAILS(VELOC_Recover_selective(VELOC_RECOVER_SOME, &one, 1));
    OK(VELOC_Restart_end(1));
}

/* After a restart from an older version, versions that are there are taken again. */
static void again(void) {
    OK(VELOC_Restart("heat", 1));
    CHECK(is(1));
    fill(77);
    OK(VELOC_Checkpoint("heat", 2));
    fill(0);
    OK(VELOC_Restart("heat", 2));
    CHECK(is(77));
    fill(78);
    OK(VELOC_Checkpoint("heat", 2)); /* the same version twice in a process */
    OK(VELOC_Checkpoint_wait());
    fill(0);
    OK(VELOC_Restart("heat", 2));
    CHECK(is(78));
}

/* Names side by side, one of them with regions of its own. */
static void names(void) {
    short own[7] = {1, 2, 3, 4, 5, 6, (short)rank};
    OK(VELOC_Region_protect(0, own, 7, sizeof *own, "own_regions"));
    for (int version = 1; version <= 2; ++version) {
        fill(20 + version);
        own[0] = (short)version;
        OK(VELOC_Checkpoint("cold.1", version));
        OK(VELOC_Checkpoint("own_regions", version + 10));
    }
    fill(0);
    own[0] = 0;
    OK(VELOC_Restart("own_regions", 11));
    CHECK(own[0] == 1 && own[6] == rank && is(0));
    OK(VELOC_Restart_begin("own_regions", 12));
    CHECK(VELOC_Recover_size(0) == 14);
    OK(VELOC_Restart_end(1));
    OK(VELOC_Restart("cold.1", 2));
    CHECK(is(22));
    CHECK(VELOC_Restart_test("cold.1", 0) == 2);
    CHECK(VELOC_Restart_test("own_regions", 0) == 12);
    CHECK(VELOC_Restart_test("heat", 0) == 6);
    OK(VELOC_Region_clear("own_regions"));
}

/* Checkpoints that are files of the code's own. */
static void files(const char* folder) {
    char original[4096], routed[VELOC_MAX_NAME], line[100] = "";
    FAILS(VELOC_Route_file("x", routed));
    CHECK(routed[0] == '\0');
    FAILS(VELOC_Route_file("x", NULL));
    for (int version = 1; version <= 2; ++version) {
        snprintf(original, sizeof original, "%s/file-%d-%d.txt", folder, rank, version);
        OK(VELOC_Checkpoint_begin("file", version));
        FAILS(VELOC_Route_file("", routed));
        FAILS(VELOC_Route_file(NULL, routed));
        OK(VELOC_Route_file(original, routed));
        CHECK(strcmp(original, routed) != 0);
        FILE* file = fopen(routed, "wb");
        CHECK(file != NULL);
        fprintf(file, "file %d of rank %d\n", version, rank);
        fclose(file);
        OK(VELOC_Checkpoint_end(1));
    }
    OK(VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_finished());
    for (int version = 1; version <= 2; ++version) { /* it is under its own name */
        char wanted[100];
        snprintf(wanted, sizeof wanted, "file %d of rank %d\n", version, rank);
        snprintf(original, sizeof original, "%s/file-%d-%d.txt", folder, rank, version);
        FILE* file = fopen(original, "rb");
        CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
        fclose(file);
        CHECK(strcmp(line, wanted) == 0);
        CHECK(remove(original) == 0);
        /* And in the history. */
        OK(VELOC_Restart_begin("file", version));
        OK(VELOC_Route_file(original, routed));
        file = fopen(routed, "rb");
        CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
        fclose(file);
        CHECK(strcmp(line, wanted) == 0);
        OK(VELOC_Restart_end(1));
        CHECK(access(routed, F_OK) != 0);
    }
    /* It was routed, and not written: no checkpoint. */
    OK(VELOC_Checkpoint_begin("file", 3));
    OK(VELOC_Route_file("three", routed));
    FAILS(VELOC_Checkpoint_end(1));
    CHECK(VELOC_Restart_test("file", 0) == 2);
    /* Where it cannot go under its own name, that is told; it is in the history all the same. */
    snprintf(original, sizeof original, "%s/no such folder/x", folder);
    OK(VELOC_Checkpoint_begin("file", 4));
    OK(VELOC_Route_file(original, routed));
    FILE* file = fopen(routed, "wb");
    CHECK(file != NULL);
    fclose(file); /* of no bytes */
    const int ended = VELOC_Checkpoint_end(1);
    if (ended == VELOC_SUCCESS) FAILS_SAYING(rank == 0 ? "no such folder" : "", VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("file", 0) == 4);
    OK(VELOC_Restart_begin("file", 4));
    CHECK(VELOC_Recover_size(0) == VELOC_FAILURE);
    OK(VELOC_Restart_end(1));
    OK(VELOC_Cleanup("file"));
    OK(VELOC_Cleanup("nobody"));
    CHECK(VELOC_Restart_test("file", 0) == 4);
    OK(VELOC_Cleanup("file")); /* what that question made of its own, too */
}

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    single = strcmp(argv[1], "single") == 0;
    config = argv[2];
    if (!single) {
        MPI_Init(&argc, &argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    }
    not_initialised();
    initialising(argv[3]);
    regions();
    phases();
    checkpoints();
    restarts();
    again();
    names();
    files(argv[3]);
    OK(VELOC_Finalize(1));
    not_initialised();
    /* Another life of the library in the same process. */
    OK(initialise());
    protect();
    fill(0);
    OK(VELOC_Restart("heat", 2));
    CHECK(is(78));
    OK(VELOC_Checkpoint_begin("heat", 9));
    FAILS_SAYING("not ended", VELOC_Finalize(0));
    if (!single) MPI_Finalize();
    if (rank == 0) printf("done\n");
    return 0;
}
