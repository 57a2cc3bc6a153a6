/* A parallel HDF5 program that knows nothing of twinrun but the hint that turns it off: arrays in several layouts are written into two
 * files, one of them without twinrun, and read back in other cuttings. The files are equal byte for byte.
 *
 * usage: hdf5_program FOLDER; exit status 0 and "done" by rank 0 if all is as it should be. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foreign_program.h"

static double value(hsize_t index, int salt) { return (double)index * 1.25 + salt; }

enum { PLANES = 6, COLUMNS = 10 };

/* The rows of all ranks in turns: rank r has rows r, r + ranks, ... of each plane. */
static void select_rows(hid_t space, int first, hsize_t rows) {
    const hsize_t start[3] = {0, (hsize_t)first, 0};
    const hsize_t stride[3] = {1, (hsize_t)ranks, 1};
    const hsize_t count[3] = {PLANES, rows, COLUMNS};
    expect(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL) >= 0,
           "H5Sselect_hyperslab");
}

static void write_file(const char* path, int plain) {
    MPI_Info info;
    MPI_Info_create(&info);
    if (plain) MPI_Info_set(info, "twinrun_enable", "false");
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, info);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    expect(file >= 0, "H5Fcreate");
    const hid_t transfer = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
    const hsize_t rows = 4;
    const hsize_t shape[3] = {PLANES, rows * (hsize_t)ranks, COLUMNS};
    double* const data = malloc(sizeof(double) * PLANES * rows * COLUMNS);
    double* const read = malloc(sizeof(double) * PLANES * rows * COLUMNS);
    for (int layout = 0; layout < 2; ++layout) {
        const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_obj_track_times(properties, 0);
        const hsize_t chunk[3] = {2, 3, 5};
        if (layout == 1) H5Pset_chunk(properties, 3, chunk);
        const hid_t space = H5Screate_simple(3, shape, NULL);
        const hid_t set = H5Dcreate2(file, layout == 0 ? "whole" : "chunked", H5T_NATIVE_DOUBLE, space,
                                     H5P_DEFAULT, properties, H5P_DEFAULT);
        expect(set >= 0, "H5Dcreate");
        select_rows(space, me, rows);
        const hsize_t local[3] = {PLANES, rows, COLUMNS};
        const hid_t memory = H5Screate_simple(3, local, NULL);
        for (int step = 0; step < 3; ++step) {
            hsize_t k = 0;
            for (hsize_t p = 0; p < PLANES; ++p)
                for (hsize_t r = 0; r < rows; ++r)
                    for (hsize_t c = 0; c < COLUMNS; ++c)
                        data[k++] =
                            value((p * shape[1] + r * (hsize_t)ranks + (hsize_t)me) * COLUMNS + c, step);
            expect(H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, space, transfer, data) >= 0, "H5Dwrite");
        }
        /* The rows of the next rank. */
        const int next = (me + 1) % ranks;
        select_rows(space, next, rows);
        expect(H5Dread(set, H5T_NATIVE_DOUBLE, memory, space, transfer, read) >= 0, "H5Dread");
        hsize_t k = 0;
        for (hsize_t p = 0; p < PLANES; ++p)
            for (hsize_t r = 0; r < rows; ++r)
                for (hsize_t c = 0; c < COLUMNS; ++c)
                    expect(read[k++] ==
                               value((p * shape[1] + r * (hsize_t)ranks + (hsize_t)next) * COLUMNS + c, 2),
                           "an item that was read");
        H5Sclose(memory);
        H5Sclose(space);
        H5Dclose(set);
        H5Pclose(properties);
    }
    free(data);
    free(read);
    H5Pclose(transfer);
    expect(H5Fclose(file) >= 0, "H5Fclose");
    H5Pclose(access);
    MPI_Info_free(&info);
}

int main(int argc, char** argv) {
    char names[2][4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect(argc > 1, "usage: hdf5_program FOLDER");
    for (int plain = 0; plain < 2; ++plain) {
        snprintf(names[plain], sizeof names[plain], "%s/%s", argv[1], plain ? "plain" : "ours");
        write_file(names[plain], plain);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        expect(compare(names[0], names[1]) > 8L * PLANES * COLUMNS * ranks, "the files are short");
        puts("done");
    }
    MPI_Finalize();
    return 0;
}
