// Calls of MPI whose numbers and bytes check.py knows; what arrives is checked too. usage: calls_mpi FOLDER
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) {                                         \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1);                           \
        }                                                           \
    } while (0)
#define MPI(call) CHECK(call == MPI_SUCCESS)

static int equal(const double* values, int n, double wanted) {
    for (int i = 0; i < n; ++i) {
        if (values[i] != wanted) return 0;
    }
    return 1;
}

int main(int argc, char** argv) {
    int provided, rank, ranks;
    if (argc > 2 && strcmp(argv[2], "thread") == 0) {
        MPI(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided));
    } else {
        MPI(MPI_Init(&argc, &argv));
    }
    MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    MPI(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    double a[64], b[64];
    for (int i = 0; i < 64; ++i)
        a[i] = rank;
    MPI_Request requests[2];
    MPI_Status statuses[2];

    for (int i = 0; i < 5; ++i) {  // Sendrecv 5, 5 * 80 bytes: 12 arguments, six of them on the stack
        memset(b, 0, sizeof b);
        MPI(MPI_Sendrecv(a, 10, MPI_DOUBLE, next, 100 + i, b, 10, MPI_DOUBLE, before, 100 + i, MPI_COMM_WORLD,
                         &statuses[0]));
        CHECK(equal(b, 10, before) && statuses[0].MPI_SOURCE == before && statuses[0].MPI_TAG == 100 + i);
    }
    for (int i = 0; i < 3; ++i) {  // Irecv 3 (24 ints), Isend 3, Waitall 3
        int sent[8] = {rank, 1, 2, 3, 4, 5, 6, 7}, got[8] = {0};
        MPI(MPI_Irecv(got, 8, MPI_INT, before, 7, MPI_COMM_WORLD, &requests[0]));
        MPI(MPI_Isend(sent, 8, MPI_INT, next, 7, MPI_COMM_WORLD, &requests[1]));
        MPI(MPI_Waitall(2, requests, statuses));
        CHECK(got[0] == before && got[7] == 7);
    }
    if (rank == 0) {  // Send 1 for each other rank; Recv 1 of each other rank: 16 bytes
        for (int i = 1; i < ranks; ++i)
            MPI(MPI_Send(a, 2, MPI_DOUBLE, i, 3, MPI_COMM_WORLD));
    } else {
        MPI(MPI_Recv(b, 2, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        CHECK(equal(b, 2, 0));
    }
    MPI(MPI_Irecv(b, 1, MPI_DOUBLE, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &requests[0]));  // Irecv 4: 8 bytes
    MPI(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));                                    // Wait 1

    for (int i = 0; i < 7; ++i) {  // Allreduce 7 * 80 bytes
        MPI(MPI_Allreduce(a, b, 10, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
        CHECK(equal(b, 10, ranks * (ranks - 1) / 2));
    }
    b[0] = 1;
    MPI(MPI_Allreduce(MPI_IN_PLACE, b, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));  // Allreduce 8: 8 bytes more
    CHECK(b[0] == ranks);
    MPI(MPI_Bcast(b, 3, MPI_DOUBLE, ranks - 1, MPI_COMM_WORLD));  // Bcast 1: 24 bytes
    double* all = calloc((size_t)ranks * 4, sizeof(double));
    all[0] = all[1] = 0;
    // Gather 1: 16 bytes, none where the root's part is in place already, and its type is not one
    if (rank == 0) {
        MPI(MPI_Gather(MPI_IN_PLACE, 5, MPI_DATATYPE_NULL, all, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD));
        for (int i = 0; i < ranks; ++i)
            CHECK(all[2 * i] == i);
    } else {
        MPI(MPI_Gather(a, 2, MPI_DOUBLE, NULL, 0, MPI_DATATYPE_NULL, 0, MPI_COMM_WORLD));
    }
    MPI(MPI_Allgather(a, 4, MPI_DOUBLE, all, 4, MPI_DOUBLE, MPI_COMM_WORLD));  // Allgather 1: 32 bytes
    CHECK(all[4 * (ranks - 1)] == ranks - 1);
    int* counts = calloc((size_t)ranks, sizeof(int));
    int* places = calloc((size_t)ranks, sizeof(int));
    for (int i = 0; i < ranks; ++i) {
        counts[i] = 1;
        places[i] = i;
    }
    MPI(MPI_Alltoallv(a, counts, places, MPI_DOUBLE, all, counts, places, MPI_DOUBLE,
                      MPI_COMM_WORLD));  // 8 * ranks bytes
    CHECK(all[ranks - 1] == ranks - 1);
    MPI(MPI_Reduce_scatter(a, b, counts, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));  // 8 * ranks bytes
    CHECK(b[0] == ranks * (ranks - 1) / 2);
    MPI_Comm half;
    MPI(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half));  // Comm_split 1
    MPI(MPI_Barrier(half));                                      // Barrier 1
    MPI(MPI_Comm_free(&half));                                   // Comm_free 1

    MPI_Win window;
    double place = rank, old = -1, one = 1;
    MPI(MPI_Win_create(&place, sizeof place, sizeof place, MPI_INFO_NULL, MPI_COMM_WORLD,
                       &window));   // Win_create 1
    MPI(MPI_Win_fence(0, window));  // Win_fence 2
    // Get_accumulate 1: 8 bytes, 12 arguments
    MPI(MPI_Get_accumulate(&one, 1, MPI_DOUBLE, &old, 1, MPI_DOUBLE, next, 0, 1, MPI_DOUBLE, MPI_SUM,
                           window));
    MPI(MPI_Win_fence(0, window));
    CHECK(old == next && place == rank + 1);
    MPI(MPI_Win_free(&window));  // Win_free 1

    char path[4096];
    snprintf(path, sizeof path, "%s/mpi.bin", argv[1]);
    MPI_File file;
    MPI(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL,
                      &file));     // File_open 1
    for (int i = 0; i < 6; ++i) {  // File_write_at 6 * 512 bytes
        MPI(MPI_File_write_at(file, (MPI_Offset)(rank * 6 + i) * 512, a, 64, MPI_DOUBLE, MPI_STATUS_IGNORE));
    }
    MPI(MPI_File_sync(file));          // File_sync 1
    MPI(MPI_Barrier(MPI_COMM_WORLD));  // Barrier 2
    MPI(MPI_File_read_at_all(file, (MPI_Offset)next * 6 * 512, b, 64, MPI_DOUBLE,
                             MPI_STATUS_IGNORE));  // 512 bytes
    CHECK(equal(b, 64, next));
    MPI(MPI_File_close(&file));  // File_close 1
    free(all);
    free(counts);
    free(places);
    MPI(MPI_Finalize());
    return 0;
}
