/* Heat in a plate, instrumented for VELOC: it compiles against VELOC's own header and library, and against twinrun's, with
 * nothing changed. Rows are shared out over the ranks of MPI.
 *
 *     heatdis CONFIG COLUMNS ROWS STEPS EVERY [reverse] [die=STEP]
 *
 * CONFIG: VELOC's configuration file. EVERY: steps between checkpoints. reverse: each rank adds its cells up in the other
 * order, as another compiler or thread count may. die: the last rank ends, as if killed, after this step.
 * At the end rank 0 prints a fingerprint of all bits of the plate. */
#include <inttypes.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <veloc.h>

static void stop(int rank, const char* what) {
    fprintf(stderr, "heatdis: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2); /* it may return */
}

/* First row that belongs to a rank. */
static int first_row(int rows, int rank, int ranks) { return (int)((int64_t)rows * rank / ranks); }

static uint64_t mixed(uint64_t sum, const void* data, size_t bytes) {
    const unsigned char* at = data;
    while (bytes-- > 0)
        sum = (sum ^ *at++) * UINT64_C(0x100000001b3);
    return sum;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 6) stop(rank, "usage: heatdis CONFIG COLUMNS ROWS STEPS EVERY [reverse] [die=STEP]");
    const int columns = atoi(argv[2]), rows = atoi(argv[3]), steps = atoi(argv[4]), every = atoi(argv[5]);
    int reverse = 0, die = -1;
    for (int i = 6; i < argc; ++i) {
        if (strcmp(argv[i], "reverse") == 0) reverse = 1;
        if (strncmp(argv[i], "die=", 4) == 0) die = atoi(argv[i] + 4);
    }
    if (VELOC_Init(MPI_COMM_WORLD, argv[1]) != VELOC_SUCCESS) stop(rank, "VELOC_Init failed");

    const int own = first_row(rows, rank + 1, ranks) - first_row(rows, rank, ranks);
    const size_t cells = (size_t)own * (size_t)columns;
    /* Each rank's rows with one of each neighbour above and below. */
    double* now = calloc((size_t)(own + 2) * (size_t)columns, sizeof(double));
    double* next = calloc((size_t)(own + 2) * (size_t)columns, sizeof(double));
    if (now == NULL || next == NULL) stop(rank, "no memory");
    double* mine = now + columns;
    for (size_t c = 0; c < cells; ++c)
        mine[c] = (double)((c * 7919 + (size_t)rank * 104729) % 1000) / 997.0;

    int step = 0;
    VELOC_Mem_protect(0, &step, 1, sizeof step);
    VELOC_Mem_protect(1, mine, cells, sizeof(double));

    const int found = VELOC_Restart_test("heatdis", 0);
    if (found > 0) {
        if (VELOC_Restart("heatdis", found) != VELOC_SUCCESS) stop(rank, "VELOC_Restart failed");
        if (rank == 0) printf("restarted from step %d\n", step);
    }

    const int above = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    const int below = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    while (step < steps) {
        MPI_Sendrecv(mine, columns, MPI_DOUBLE, above, 0, mine + cells, columns, MPI_DOUBLE, below, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(mine + cells - (size_t)columns, columns, MPI_DOUBLE, below, 1, now, columns, MPI_DOUBLE,
                     above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        /* The plate loses heat in proportion to its mean: a sum, whose last bits depend on the order of its terms. */
        double sum = 0, total = 0;
        for (size_t c = 0; c < cells; ++c)
            sum += mine[reverse ? cells - 1 - c : c];
        MPI_Allreduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        const double loss = 1e-3 * total / ((double)rows * columns);
        double* out = next + columns;
        for (int r = 0; r < own; ++r) {
            for (int c = 0; c < columns; ++c) {
                const double* at = mine + (ptrdiff_t)r * columns + c;
                const double left = c > 0 ? at[-1] : *at, right = c < columns - 1 ? at[1] : *at;
                out[(ptrdiff_t)r * columns + c] =
                    0.2 * (*at + left + right + at[-columns] + at[columns]) - loss;
            }
        }
        memcpy(mine, out, cells * sizeof(double)); /* what is protected stays where it is */
        ++step;
        if (step % every == 0 && VELOC_Checkpoint("heatdis", step) != VELOC_SUCCESS)
            stop(rank, "VELOC_Checkpoint failed");
        if (step == die && rank == ranks - 1) raise(SIGKILL);
    }

    uint64_t fingerprint = mixed(UINT64_C(0xcbf29ce484222325), mine, cells * sizeof(double));
    uint64_t* all = calloc((size_t)ranks, sizeof *all);
    if (all == NULL) stop(rank, "no memory");
    MPI_Gather(&fingerprint, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("fingerprint %016" PRIx64 "\n",
               mixed(UINT64_C(0xcbf29ce484222325), all, (size_t)ranks * sizeof *all));
    free(all);
    if (VELOC_Finalize(1) != VELOC_SUCCESS) stop(rank, "VELOC_Finalize failed");
    free(next);
    free(now);
    MPI_Finalize();
    return 0;
}
