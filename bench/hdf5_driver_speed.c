/* Collective writes and reads of one dataset by several drivers of HDF5 in turns: `hdf5_driver_table.py` compiles and reads it.
 *
 * usage: hdf5_driver_speed FOLDER PATTERN BYTES REPETITIONS FILES STRIPE; PATTERN: slab (a piece a rank), rows (rows of 4 KiB of each rank in
 * turns), block (a block of a cube), chunks (the same, in chunks as large as a block). BYTES: of each rank. FILES, STRIPE: of sub-files.
 * Prints lines "METHOD write|read BYTES_PER_SECOND" by rank 0, in the order of the repetitions. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int me, ranks;

static void expect(int condition, const char* what) {
    if (condition) return;
    fprintf(stderr, "hdf5_driver_speed.c: rank %d: %s\n", me, what);
    H5Eprint2(H5E_DEFAULT, stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

enum { MPIO, SUBFILING, ONE, SEVERAL, METHODS };
static const char* const names[] = {"mpio", "subfiling", "twinrun", "twinrun-sub-files"};

static hid_t access_list(int method, const char* files, const char* stripe) {
    char config[256];
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (method == MPIO) {
        expect(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0, "H5Pset_fapl_mpio");
        return access;
    }
    expect(H5Pset_mpi_params(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0, "H5Pset_mpi_params");
    if (method == SUBFILING) {
        /* Its sub-files and stripes: H5FD_SUBFILING_IOC_PER_NODE, H5FD_SUBFILING_STRIPE_SIZE. */
        expect(H5Pset_fapl_subfiling(access, NULL) >= 0, "H5Pset_fapl_subfiling");
        return access;
    }
    snprintf(config, sizeof config, "files = %s; stripe = %s", files, stripe);
    expect(H5Pset_driver_by_name(access, "twinrun", method == ONE ? "" : config) >= 0, "the driver twinrun");
    return access;
}

/* Where this rank's items lie in the dataset. */
struct part {
    int dimensions;
    hsize_t shape[3], start[3], stride[3], count[3];
    hsize_t items;
};

static struct part part_of(const char* pattern, long bytes) {
    struct part p = {1, {0}, {0}, {1, 1, 1}, {0}, 0};
    const hsize_t items = (hsize_t)bytes / 8;
    if (strcmp(pattern, "slab") == 0) {
        p.shape[0] = items * (hsize_t)ranks;
        p.start[0] = items * (hsize_t)me;
        p.count[0] = items;
    } else if (strcmp(pattern, "rows") == 0) {
        p.dimensions = 2;
        p.count[0] = items / 512;
        p.count[1] = p.shape[1] = 512;
        p.shape[0] = p.count[0] * (hsize_t)ranks;
        p.start[0] = (hsize_t)me;
        p.stride[0] = (hsize_t)ranks;
    } else {
        int grid[3] = {0, 0, 0};
        hsize_t side = 1;
        p.dimensions = 3;
        while ((side + 1) * (side + 1) * (side + 1) <= items)
            ++side;
        MPI_Dims_create(ranks, 3, grid);
        int left = me;
        for (int d = 2; d >= 0; --d) {
            p.shape[d] = side * (hsize_t)grid[d];
            p.start[d] = side * (hsize_t)(left % grid[d]);
            p.count[d] = side;
            left /= grid[d];
        }
    }
    p.items = 1;
    for (int d = 0; d < p.dimensions; ++d)
        p.items *= p.count[d];
    return p;
}

static double slowest(double since) {
    double seconds = MPI_Wtime() - since;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

static void report(const char* method, const char* kind, const struct part* p, double seconds,
                   int repetition) {
    if (me == 0 && repetition >= 0)
        printf("%s %s %.9g\n", method, kind, (double)p->items * 8 * ranks / seconds);
}

int main(int argc, char** argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect(argc == 7, "usage: hdf5_driver_speed FOLDER PATTERN BYTES REPETITIONS FILES STRIPE");
    expect(provided == MPI_THREAD_MULTIPLE, "subfiling needs MPI_THREAD_MULTIPLE");
    const struct part p = part_of(argv[2], atol(argv[3]));
    const int repetitions = atoi(argv[4]);
    double* const data = malloc(p.items * 8);
    double* const read = malloc(p.items * 8);
    for (hsize_t i = 0; i < p.items; ++i)
        data[i] = (double)(i * 31 + (hsize_t)me * 7);
    const hid_t memory = H5Screate_simple(1, &p.items, NULL);
    const hid_t transfer = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    if (strcmp(argv[2], "chunks") == 0) H5Pset_chunk(creation, 3, p.count);
    /* The first round is a warm-up. */
    for (int repetition = -1; repetition < repetitions; ++repetition) {
        for (int turn = 0; turn < METHODS; ++turn) {
            const int method = (turn + repetition + 1) % METHODS;
            char path[4096];
            snprintf(path, sizeof path, "%s/%s-%d.h5", argv[1], names[method], repetition);
            const hid_t access = access_list(method, argv[5], argv[6]);
            MPI_Barrier(MPI_COMM_WORLD);
            double since = MPI_Wtime();
            hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
            expect(file >= 0, "H5Fcreate");
            hid_t space = H5Screate_simple(p.dimensions, p.shape, NULL);
            hid_t set = H5Dcreate2(file, "x", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
            H5Sselect_hyperslab(space, H5S_SELECT_SET, p.start, p.stride, p.count, NULL);
            expect(H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, space, transfer, data) >= 0, "H5Dwrite");
            H5Dclose(set);
            expect(H5Fclose(file) >= 0, "H5Fclose");
            report(names[method], "write", &p, slowest(since), repetition);
            memset(read, 0, p.items * 8);
            MPI_Barrier(MPI_COMM_WORLD);
            since = MPI_Wtime();
            file = H5Fopen(path, H5F_ACC_RDONLY, access);
            expect(file >= 0, "H5Fopen");
            set = H5Dopen2(file, "x", H5P_DEFAULT);
            expect(H5Dread(set, H5T_NATIVE_DOUBLE, memory, space, transfer, read) >= 0, "H5Dread");
            H5Dclose(set);
            H5Fclose(file);
            report(names[method], "read", &p, slowest(since), repetition);
            expect(memcmp(data, read, p.items * 8) == 0, "what was read is not what was written");
            H5Sclose(space);
            /* Its sub-files too; twinrun's go with their index. */
            MPI_Barrier(MPI_COMM_WORLD);
            expect(H5Fdelete(path, access) >= 0, "H5Fdelete");
            MPI_Barrier(MPI_COMM_WORLD);
            H5Pclose(access);
        }
    }
    H5Pclose(creation);
    H5Pclose(transfer);
    H5Sclose(memory);
    free(data);
    free(read);
    H5close();
    MPI_Finalize();
    return 0;
}
