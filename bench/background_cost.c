/* What writing costs a program that computes: `background_table.py` compiles and reads it.
 *
 * usage: background_cost FOLDER BYTES STEPS SECONDS REPETITIONS SYNC; BYTES: of each rank and step. Each step computes for about SECONDS
 * (the same work each time, measured before on an idle rank), then writes an array in records of 8 bytes of all ranks in turns. Three ways
 * take turns: compute (no write), caller (twr_aggregate_write), background (twr_aggregate_write_begin, and twr_aggregate_wait at the
 * end). Prints lines "WAY SECONDS_IN_ALL SECONDS_IN_CALLS" of the slowest rank. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <twinrun/aggregate.h>

static int me, ranks;

static void ok(int status, const char* what) {
    if (status == TWR_OK) return;
    fprintf(stderr, "background_cost.c: rank %d: %s: %s\n", me, what, twr_error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Sweeps over an array that fits the second-level cache: it competes for cores, not for memory. */
enum { CELLS = 20000 };
static double cells[CELLS];
static double compute(long sweeps) {
    for (long s = 0; s < sweeps; ++s) {
        for (int i = 1; i < CELLS - 1; ++i)
            cells[i] = 0.25 * (cells[i - 1] + 2 * cells[i] + cells[i + 1]) + 1e-9;
    }
    return cells[CELLS / 2];
}

int main(int argc, char** argv) {
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 7) ok(1, "usage: background_cost FOLDER BYTES STEPS SECONDS REPETITIONS SYNC");
    const uint64_t items = strtoull(argv[2], NULL, 10) / 8;
    const int steps = atoi(argv[3]), repetitions = atoi(argv[5]);
    const double seconds = atof(argv[4]);
    /* The fastest of five: work, not waiting for a core. */
    long sweeps = 200;
    double fastest = 1e9;
    for (int i = 0; i < 5; ++i) {
        const double begin = MPI_Wtime();
        compute(sweeps);
        const double took = MPI_Wtime() - begin;
        if (took < fastest) fastest = took;
    }
    sweeps = (long)((double)sweeps * seconds / fastest);
    MPI_Bcast(&sweeps, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.sync = atoi(argv[6]);
    twr_aggregate* aggregate = NULL;
    ok(twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options), "create");
    const twr_aggregate_variable variable = {8, items, 8 * (uint64_t)me, 8 * (uint64_t)ranks, 0};
    ok(twr_aggregate_declare(aggregate, &variable, 1), "declare");
    char* const array = malloc(8 * items);
    memset(array, me, 8 * items);
    const void* const data[1] = {array};
    const char* const ways[] = {"compute", "caller", "background"};
    char path[4096];
    double sum = 0;
    for (int round = -1; round < repetitions; ++round) { /* the first makes files and buffers */
        for (int turn = 0; turn < 3; ++turn) {
            const int way = (turn + round + 3) % 3;
            MPI_Barrier(MPI_COMM_WORLD);
            double times[2] = {0, 0};
            const double begin = MPI_Wtime();
            for (int step = 0; step < steps; ++step) {
                sum += compute(sweeps);
                snprintf(path, sizeof path, "%s/step-%d", argv[1], step % 2);
                const double call = MPI_Wtime();
                if (way == 1) ok(twr_aggregate_write(aggregate, path, data), "write");
                if (way == 2) ok(twr_aggregate_write_begin(aggregate, path, data), "write_begin");
                times[1] += MPI_Wtime() - call;
            }
            const double call = MPI_Wtime();
            ok(twr_aggregate_wait(aggregate), "wait");
            times[1] += MPI_Wtime() - call;
            MPI_Barrier(MPI_COMM_WORLD);
            times[0] = MPI_Wtime() - begin;
            MPI_Allreduce(MPI_IN_PLACE, times, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (me == 0 && round >= 0) printf("%s %.6f %.6f\n", ways[way], times[0], times[1]);
        }
    }
    if (me == 0) fprintf(stderr, "%s\n%s\n", sum > 0 ? "" : "no work", twr_aggregate_report(aggregate));
    twr_aggregate_free(aggregate);
    free(array);
    MPI_Finalize();
    return 0;
}
