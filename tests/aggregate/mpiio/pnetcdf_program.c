/* A PnetCDF program that knows nothing of twinrun but the hint that turns it off: fixed and record variables are written into two files,
 * one of them without twinrun, and read back in another cutting. The files are equal byte for byte.
 *
 * usage: pnetcdf_program FOLDER; exit status 0 and "done" by rank 0 if all is as it should be. */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>

#include "foreign_program.h"

static void well(int code, const char* what) {
    if (code != NC_NOERR) fprintf(stderr, "%s: %s\n", what, ncmpi_strerror(code));
    expect(code == NC_NOERR, what);
}

enum { ROWS = 7, COLUMNS = 5, RECORDS = 4 };

static void write_file(const char* path, int plain) {
    MPI_Info info;
    MPI_Info_create(&info);
    if (plain) MPI_Info_set(info, "twinrun_enable", "false");
    int file, dimensions[3], fixed, records;
    well(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, info, &file), "ncmpi_create");
    well(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dimensions[0]), "ncmpi_def_dim");
    well(ncmpi_def_dim(file, "y", ROWS, &dimensions[1]), "ncmpi_def_dim");
    well(ncmpi_def_dim(file, "x", (MPI_Offset)COLUMNS * ranks, &dimensions[2]), "ncmpi_def_dim");
    well(ncmpi_def_var(file, "fixed", NC_INT, 2, dimensions + 1, &fixed), "ncmpi_def_var");
    well(ncmpi_def_var(file, "records", NC_DOUBLE, 3, dimensions, &records), "ncmpi_def_var");
    well(ncmpi_enddef(file), "ncmpi_enddef");
    int ints[ROWS][COLUMNS];
    double doubles[ROWS][COLUMNS];
    const MPI_Offset start[3] = {0, 0, (MPI_Offset)COLUMNS * me};
    const MPI_Offset count[3] = {1, ROWS, COLUMNS};
    for (int y = 0; y < ROWS; ++y)
        for (int x = 0; x < COLUMNS; ++x)
            ints[y][x] = y * 1000 + COLUMNS * me + x;
    well(ncmpi_put_vara_int_all(file, fixed, start + 1, count + 1, &ints[0][0]), "ncmpi_put_vara_int_all");
    for (int record = 0; record < RECORDS; ++record) {
        const MPI_Offset at[3] = {record, 0, start[2]};
        for (int y = 0; y < ROWS; ++y)
            for (int x = 0; x < COLUMNS; ++x)
                doubles[y][x] = record * 1e6 + y * 1000 + COLUMNS * me + x;
        well(ncmpi_put_vara_double_all(file, records, at, count, &doubles[0][0]),
             "ncmpi_put_vara_double_all");
    }
    const int next = (me + 1) % ranks;
    const MPI_Offset there[3] = {RECORDS - 1, 0, (MPI_Offset)COLUMNS * next};
    well(ncmpi_get_vara_double_all(file, records, there, count, &doubles[0][0]), "ncmpi_get_vara_double_all");
    for (int y = 0; y < ROWS; ++y)
        for (int x = 0; x < COLUMNS; ++x)
            expect(doubles[y][x] == (RECORDS - 1) * 1e6 + y * 1000 + COLUMNS * next + x,
                   "an item that was read");
    well(ncmpi_close(file), "ncmpi_close");
    MPI_Info_free(&info);
}

int main(int argc, char** argv) {
    char names[2][4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect(argc > 1, "usage: pnetcdf_program FOLDER");
    for (int plain = 0; plain < 2; ++plain) {
        snprintf(names[plain], sizeof names[plain], "%s/%s", argv[1], plain ? "plain" : "ours");
        write_file(names[plain], plain);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        expect(compare(names[0], names[1]) > 8L * ROWS * COLUMNS * RECORDS * ranks, "the files are short");
        puts("done");
    }
    MPI_Finalize();
    return 0;
}
