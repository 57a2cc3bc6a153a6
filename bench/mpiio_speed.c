/* Collective MPI-IO of one pattern, with and without twinrun in turns: `mpiio_table.py` compiles, preloads and reads it.
 *
 * usage: mpiio_speed FILE PATTERN BYTES REPETITIONS; PATTERN: records-N (N bytes of each rank in turns), block (a block of a cube of
 * doubles), halo (the same, in memory with a halo), contiguous (a piece a rank), calls-N (many calls of one file, each of N bytes of each
 * rank). BYTES: of each rank. Prints lines "METHOD write|read BYTES_PER_SECOND" by rank 0, in the order of the repetitions. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int me, ranks;

static void expect(int condition, const char* what) {
    if (condition) return;
    fprintf(stderr, "mpiio_speed.c: rank %d: %s\n", me, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect(argc == 5, "usage: mpiio_speed FILE PATTERN BYTES REPETITIONS");
    const char* const pattern = argv[2];
    long bytes = atol(argv[3]);
    const int repetitions = atoi(argv[4]);
    MPI_Datatype view = MPI_BYTE, memory = MPI_BYTE;
    MPI_Offset displacement = 0;
    int count = 0;
    long allocated = 0, calls = 0; /* 0: one, by the file's pointer */
    if (strncmp(pattern, "records-", 8) == 0) {
        const int record = atoi(pattern + 8);
        MPI_Datatype tile;
        count = (int)(bytes / record) * record;
        bytes = allocated = count;
        MPI_Type_contiguous(record, MPI_BYTE, &tile);
        MPI_Type_create_resized(tile, 0, (MPI_Aint)record * ranks, &view);
        displacement = (MPI_Offset)record * me;
    } else if (strncmp(pattern, "calls-", 6) == 0) {
        count = atoi(pattern + 6);
        calls = bytes / count;
        bytes = allocated = count * calls;
    } else if (strcmp(pattern, "contiguous") == 0) {
        count = (int)bytes;
        allocated = bytes;
        displacement = (MPI_Offset)bytes * me;
    } else {
        const int halo = strcmp(pattern, "halo") == 0 ? 2 : 0;
        int grid[3] = {0, 0, 0}, side = 1, sizes[3], parts[3], starts[3], inner[3], first[3];
        expect(halo != 0 || strcmp(pattern, "block") == 0, "no such pattern");
        while ((long)(side + 1) * (side + 1) * (side + 1) * 8 <= bytes)
            ++side;
        MPI_Dims_create(ranks, 3, grid);
        int left = me;
        for (int d = 2; d >= 0; --d) {
            sizes[d] = side * grid[d];
            parts[d] = side;
            starts[d] = side * (left % grid[d]);
            left /= grid[d];
            inner[d] = side + 2 * halo;
            first[d] = halo;
        }
        MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &view);
        MPI_Type_create_subarray(3, inner, parts, first, MPI_ORDER_C, MPI_DOUBLE, &memory);
        count = 1;
        bytes = (long)side * side * side * 8;
        allocated = (long)inner[0] * inner[1] * inner[2] * 8;
    }
    if (view != MPI_BYTE) MPI_Type_commit(&view);
    if (memory != MPI_BYTE) MPI_Type_commit(&memory);
    const MPI_Datatype etype = memory == MPI_BYTE ? MPI_BYTE : MPI_DOUBLE;
    char* const data = malloc((size_t)allocated);
    char* const read = malloc((size_t)allocated);
    for (long i = 0; i < allocated; ++i)
        data[i] = (char)(i * 31 + me * 7);
    for (int repetition = -1; repetition < repetitions; ++repetition) {
        for (int turn = 0; turn < 2; ++turn) {
            const int plain = (turn + repetition) % 2 != 0;
            MPI_Info info;
            MPI_File file;
            MPI_Info_create(&info);
            MPI_Info_set(info, "twinrun_enable", plain ? "false" : "true");
            /* Every write makes a new file: rank 0 removes the old one. */
            if (me == 0) MPI_File_delete(argv[1], MPI_INFO_NULL);
            MPI_Barrier(MPI_COMM_WORLD);
            for (int reads = 0; reads < 2; ++reads) {
                MPI_Barrier(MPI_COMM_WORLD);
                const double begin = MPI_Wtime();
                expect(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file) ==
                           MPI_SUCCESS,
                       "MPI_File_open");
                MPI_File_set_view(file, displacement, etype, view, "native", MPI_INFO_NULL);
                memset(read, 0, reads ? (size_t)allocated : 0);
                int code = MPI_SUCCESS;
                if (calls == 0)
                    code = reads ? MPI_File_read_all(file, read, count, memory, MPI_STATUS_IGNORE)
                                 : MPI_File_write_all(file, data, count, memory, MPI_STATUS_IGNORE);
                for (long i = 0; i < calls && code == MPI_SUCCESS; ++i) {
                    const MPI_Offset at = (i * ranks + me) * count;
                    code = reads ? MPI_File_read_at_all(file, at, read + i * count, count, MPI_BYTE,
                                                        MPI_STATUS_IGNORE)
                                 : MPI_File_write_at_all(file, at, data + i * count, count, MPI_BYTE,
                                                         MPI_STATUS_IGNORE);
                }
                expect(code == MPI_SUCCESS, "a collective call failed");
                MPI_File_close(&file);
                double seconds = MPI_Wtime() - begin;
                MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
                if (me == 0 && repetition >= 0)
                    printf("%s %s %.0f\n", plain ? "plain" : "twinrun", reads ? "read" : "write",
                           (double)bytes * ranks / seconds);
                if (reads && memory == MPI_BYTE)
                    expect(memcmp(data, read, (size_t)bytes) == 0, "other bytes were read");
            }
            MPI_Info_free(&info);
        }
    }
    if (me == 0) MPI_File_delete(argv[1], MPI_INFO_NULL);
    MPI_Finalize();
    return 0;
}
