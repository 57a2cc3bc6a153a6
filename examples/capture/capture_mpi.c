/* Heat in a rod that the ranks of an MPI program share. Started again, with as many ranks, it goes on from the last step that was
 * captured.
 *
 * usage: mpiexec -n 4 capture_mpi RUN STEPS */
#include <stdio.h>
#include <stdlib.h>
#include <twinrun/mpi.h>

#define ITEMS 10000

/* An error on one rank ends the job: the others may wait for it. */
#define CHECK(call)                                                                     \
    do {                                                                                \
        const int status = (call);                                                      \
        if (status != TWR_OK) {                                                         \
            fprintf(stderr, "%s (%s)\n", twr_error_message(), twr_status_name(status)); \
            MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);                                    \
        }                                                                               \
    } while (0)

/* Each rank has room for the whole rod, and works on items first .. last - 1. */
static double u[ITEMS], next[ITEMS];
static int rank, ranks, first, last;

static void diffuse(void) {
    const int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    double* const before = left == MPI_PROC_NULL ? u : u + first - 1;
    double* const behind = right == MPI_PROC_NULL ? u : u + last;
    int i;
    MPI_Sendrecv(u + last - 1, 1, MPI_DOUBLE, right, 0, before, left != MPI_PROC_NULL, MPI_DOUBLE, left, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(u + first, 1, MPI_DOUBLE, left, 1, behind, right != MPI_PROC_NULL, MPI_DOUBLE, right, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (i = first > 0 ? first : 1; i < last && i + 1 < ITEMS; ++i)
        next[i] = u[i] + 0.25 * (u[i - 1] - 2 * u[i] + u[i + 1]);
    for (i = first > 0 ? first : 1; i < last && i + 1 < ITEMS; ++i)
        u[i] = next[i];
}

/* The sum over the rod, in the order of its items whatever the number of ranks: rank 0 has it. */
static double sum_of_rod(void) {
    double sum = 0;
    int i, from;
    if (rank > 0) MPI_Send(u + first, last - first, MPI_DOUBLE, 0, 2, MPI_COMM_WORLD);
    for (from = 1; rank == 0 && from < ranks; ++from) {
        const int begin = (int)((long)ITEMS * from / ranks), end = (int)((long)ITEMS * (from + 1) / ranks);
        MPI_Recv(u + begin, end - begin, MPI_DOUBLE, from, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    for (i = 0; rank == 0 && i < ITEMS; ++i)
        sum += u[i] * (double)i;
    return sum;
}

int main(int argc, char** argv) {
    const int64_t steps = argc == 3 ? atoi(argv[2]) : 0;
    const uint64_t whole[] = {ITEMS};
    uint64_t shape[1], offset[1];
    twr_array part = TWR_ARRAY_INIT;
    twr_settings* settings;
    twr_run* run;
    int64_t step = 0;
    double sum;
    int found, i;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    first = (int)((long)ITEMS * rank / ranks);
    last = (int)((long)ITEMS * (rank + 1) / ranks);
    for (i = 0; i < ITEMS; ++i)
        u[i] = (double)(i % 100);

    CHECK(twr_settings_create(&settings));
    CHECK(twr_settings_set(settings, "atol", "1e-9"));
    CHECK(twr_settings_set(settings, "existing", "append"));
    CHECK(twr_open_mpi(&run, argc == 3 ? argv[1] : "run", settings, MPI_COMM_WORLD));
    twr_settings_destroy(settings);

    /* A part of the rod, and its place there: runs on any number of ranks compare. */
    shape[0] = (uint64_t)(last - first);
    offset[0] = (uint64_t)first;
    part.name = "u";
    part.data = u + first;
    part.dimensions = 1;
    part.shape = shape;
    part.global_shape = whole;
    part.global_offset = offset;
    CHECK(twr_protect_array(run, &part));

    found = twr_latest(run, INT64_MAX, &step);
    if (found == TWR_OK) {
        CHECK(twr_restore(run, step));
    } else if (found != TWR_ERROR_NOT_FOUND) {
        CHECK(found);
    }
    while (step < steps) {
        diffuse();
        if (++step % 10 == 0) CHECK(twr_capture(run, step));
    }
    CHECK(twr_close(run));

    sum = sum_of_rod();
    if (rank == 0) printf("%.17g\n", sum);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
