/* A parallel HDF5 program that knows nothing of twinrun: it writes arrays in many layouts, changes them, and reads them back in other
 * cuttings. scenarios.py chooses its driver by the environment, and compares the files of different drivers.
 *
 * usage: [PROGRAM_METADATA=1] program write|change|read|overlap|hints|full|die|atomic PATH
 * Exit status 0, and "done" by rank 0, if all is as it should be. An error of HDF5 that the scenario may expect: "rank R refused: STEP",
 * and HDF5's stack of errors, on standard error, without "done". */
#include <hdf5.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int me, ranks;
static struct rlimit before;

/* How long a file may be. 0: as long as at the start. */
static void limit_files(rlim_t bytes) {
    if (before.rlim_max == 0) getrlimit(RLIMIT_FSIZE, &before);
    struct rlimit now = before;
    if (bytes != 0) now.rlim_cur = bytes;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &now);
}

static void refused(const char* step) {
    limit_files(0);
    fprintf(stderr, "rank %d refused: %s\n", me, step);
    H5Eprint2(H5E_DEFAULT, stderr);
    fflush(NULL);
    /* Status 0: mpiexec would kill the other ranks before they have said so. */
    MPI_Finalize();
    exit(0);
}

static void expect(int condition, const char* what) {
    if (condition) return;
    fprintf(stderr, "program.c: rank %d: %s\n", me, what);
    H5Eprint2(H5E_DEFAULT, stderr);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

enum { PLANES = 5, ROWS = 23, COLUMNS = 11 };
static const hsize_t shape[3] = {PLANES, ROWS, COLUMNS};

static double value(hsize_t p, hsize_t r, hsize_t c, int salt) {
    return (double)((p * ROWS + r) * COLUMNS + c) * 1.25 + salt;
}

/* How a dataset is made and moved. */
struct kind {
    const char* name;
    int chunked, checked, converted;
    H5FD_mpio_xfer_t mode;
    H5D_selection_io_mode_t selection;
    int individual;
};
static const struct kind kinds[] = {
    {"whole", 0, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_DEFAULT, 0},
    {"chunked", 1, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_DEFAULT, 0},
    {"typed", 0, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_OFF, 0},
    {"typed and chunked", 1, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_OFF, 0},
    {"converted", 0, 0, 1, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_DEFAULT, 0},
    {"converted and chunked", 1, 0, 1, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_OFF, 0},
    {"filtered", 1, 1, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_DEFAULT, 0},
    {"alone", 0, 0, 0, H5FD_MPIO_INDEPENDENT, H5D_SELECTION_IO_MODE_DEFAULT, 0},
    {"alone and chunked", 1, 0, 0, H5FD_MPIO_INDEPENDENT, H5D_SELECTION_IO_MODE_OFF, 0},
    {"individual", 0, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_OFF, 1},
    {"individual and chunked", 1, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_DEFAULT, 1},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Rows `first`, first + ranks, ... of each plane; their number. With more ranks than rows some have none. */
static hsize_t select_rows(hid_t space, int first) {
    const hsize_t rows = first < ROWS ? (hsize_t)(ROWS - first + ranks - 1) / (hsize_t)ranks : 0;
    const hsize_t start[3] = {0, (hsize_t)first, 0}, stride[3] = {1, (hsize_t)ranks, 1};
    const hsize_t count[3] = {PLANES, rows, COLUMNS};
    if (rows == 0) {
        H5Sselect_none(space);
    } else {
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL);
    }
    return rows;
}

/* Memory of these rows, with a halo of one item on each side of a row. */
static hid_t memory_of(hsize_t rows) {
    const hsize_t local[3] = {PLANES, rows + (rows == 0), COLUMNS + 2};
    const hid_t memory = H5Screate_simple(3, local, NULL);
    const hsize_t start[3] = {0, 0, 1}, count[3] = {PLANES, rows, COLUMNS};
    if (rows == 0) {
        H5Sselect_none(memory);
    } else {
        H5Sselect_hyperslab(memory, H5S_SELECT_SET, start, NULL, count, NULL);
    }
    return memory;
}

static hid_t transfer_of(const struct kind* k) {
    const hid_t transfer = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_dxpl_mpio(transfer, k->mode);
    if (k->individual) H5Pset_dxpl_mpio_collective_opt(transfer, H5FD_MPIO_INDIVIDUAL_IO);
    H5Pset_selection_io(transfer, k->selection);
    return transfer;
}

static void write_rows(hid_t set, const struct kind* k, int salt) {
    const hid_t space = H5Dget_space(set);
    const hsize_t rows = select_rows(space, me);
    const hid_t memory = memory_of(rows), transfer = transfer_of(k);
    double* const data = calloc(PLANES * (rows + 1) * (COLUMNS + 2), sizeof *data);
    for (hsize_t p = 0; p < PLANES; ++p)
        for (hsize_t r = 0; r < rows; ++r)
            for (hsize_t c = 0; c < COLUMNS; ++c)
                data[(p * rows + r) * (COLUMNS + 2) + c + 1] =
                    value(p, r * (hsize_t)ranks + (hsize_t)me, c, salt);
    if (H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, space, transfer, data) < 0) refused(k->name);
    free(data);
    H5Pclose(transfer);
    H5Sclose(memory);
    H5Sclose(space);
    /* Independent writes of other ranks are there, too. */
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The rows of the next rank, then all of it at once. */
static void read_rows(hid_t set, const struct kind* k, int salt) {
    const hid_t space = H5Dget_space(set), transfer = transfer_of(k);
    const int next = (me + 1) % ranks;
    const hsize_t rows = select_rows(space, next);
    const hid_t memory = memory_of(rows);
    double* const data = calloc(PLANES * (rows + 1) * (COLUMNS + 2), sizeof *data);
    if (H5Dread(set, H5T_NATIVE_DOUBLE, memory, space, transfer, data) < 0) refused(k->name);
    for (hsize_t p = 0; p < PLANES; ++p)
        for (hsize_t r = 0; r < rows; ++r)
            for (hsize_t c = 0; c < COLUMNS + 2; ++c) {
                const double is = data[(p * rows + r) * (COLUMNS + 2) + c];
                if (c == 0 || c == COLUMNS + 1) {
                    expect(is == 0, "a read changed the halo");
                } else {
                    expect(is == value(p, r * (hsize_t)ranks + (hsize_t)next, c - 1, salt), k->name);
                }
            }
    free(data);
    double* const all = malloc(sizeof *all * PLANES * ROWS * COLUMNS);
    if (H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, transfer, all) < 0) refused(k->name);
    for (hsize_t i = 0; i < PLANES * ROWS * COLUMNS; ++i)
        expect(all[i] == value(0, 0, i, salt), k->name);
    free(all);
    MPI_Barrier(MPI_COMM_WORLD);
    H5Pclose(transfer);
    H5Sclose(memory);
    H5Sclose(space);
}

static hid_t access_list(MPI_Info info) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    expect(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, info) >= 0, "H5Pset_fapl_mpio");
    /* Metadata of the newest format, written and read by all ranks together. */
    if (getenv("PROGRAM_METADATA") != NULL) {
        H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
        H5Pset_coll_metadata_write(access, 1);
        H5Pset_all_coll_metadata_ops(access, 1);
    }
    return access;
}

static hid_t make_set(hid_t file, const struct kind* k) {
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk[3] = {2, 5, 4};
    H5Pset_obj_track_times(properties, 0);
    if (k->chunked) H5Pset_chunk(properties, 3, chunk);
    if (k->checked) H5Pset_fletcher32(properties);
    const hid_t space = H5Screate_simple(3, shape, NULL);
    const hid_t set = H5Dcreate2(file, k->name, k->converted ? H5T_IEEE_F32BE : H5T_NATIVE_DOUBLE, space,
                                 H5P_DEFAULT, properties, H5P_DEFAULT);
    H5Sclose(space);
    H5Pclose(properties);
    return set;
}

/* A growing series, and what a program does between: attributes, flushes, groups. */
static void write_series(hid_t file, hsize_t steps, int again) {
    const struct kind* const k = &kinds[1];
    const hsize_t none[2] = {0, COLUMNS}, most[2] = {H5S_UNLIMITED, COLUMNS}, chunk[2] = {3, COLUMNS};
    hid_t set;
    if (again) {
        set = H5Dopen2(file, "group/series", H5P_DEFAULT);
    } else {
        const hid_t untimed = H5Pcreate(H5P_GROUP_CREATE);
        H5Pset_obj_track_times(untimed, 0);
        const hid_t group = H5Gcreate2(file, "group", H5P_DEFAULT, untimed, H5P_DEFAULT);
        H5Pclose(untimed);
        const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_obj_track_times(properties, 0);
        H5Pset_chunk(properties, 2, chunk);
        const hid_t space = H5Screate_simple(2, none, most);
        set = H5Dcreate2(group, "series", H5T_NATIVE_INT, space, H5P_DEFAULT, properties, H5P_DEFAULT);
        H5Sclose(space);
        H5Pclose(properties);
        H5Gclose(group);
    }
    expect(set >= 0, "the series");
    for (hsize_t step = again ? steps - 2 : 0; step < steps; ++step) {
        const hsize_t now[2] = {step + 1, COLUMNS}, start[2] = {step, 0}, count[2] = {1, COLUMNS};
        expect(H5Dset_extent(set, now) >= 0, "H5Dset_extent");
        const hid_t space = H5Dget_space(set), memory = H5Screate_simple(2, count, NULL);
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL);
        if ((int)(step % (hsize_t)ranks) != me) {
            H5Sselect_none(space);
            H5Sselect_none(memory);
        }
        int data[COLUMNS];
        for (int c = 0; c < COLUMNS; ++c)
            data[c] = (int)step * 100 + c;
        const hid_t transfer = transfer_of(k);
        if (H5Dwrite(set, H5T_NATIVE_INT, memory, space, transfer, data) < 0) refused("series");
        H5Pclose(transfer);
        H5Sclose(memory);
        H5Sclose(space);
        if (step % 3 == 1 && H5Fflush(file, H5F_SCOPE_GLOBAL) < 0) refused("flush");
    }
    H5Dclose(set);
}

static void read_series(hid_t file, hsize_t steps) {
    const hid_t set = H5Dopen2(file, "group/series", H5P_DEFAULT);
    int* const data = malloc(sizeof *data * steps * COLUMNS);
    expect(set >= 0, "the series is there");
    if (H5Dread(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) refused("series");
    for (hsize_t step = 0; step < steps; ++step)
        for (int c = 0; c < COLUMNS; ++c)
            expect(data[step * COLUMNS + (hsize_t)c] == (int)step * 100 + c, "the series");
    free(data);
    H5Dclose(set);
}

/* Several datasets in one call. */
static void write_several(hid_t file) {
    enum { SETS = 3 };
    static const struct kind several[SETS] = {
        {"one of several", 0, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_DEFAULT, 0},
        {"two of several", 1, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_DEFAULT, 0},
        {"three of several", 0, 0, 0, H5FD_MPIO_COLLECTIVE, H5D_SELECTION_IO_MODE_DEFAULT, 0}};
    hid_t sets[SETS], memories[SETS], spaces[SETS], types[SETS];
    const void* data[SETS];
    hsize_t rows = 0;
    for (int i = 0; i < SETS; ++i) {
        sets[i] = make_set(file, &several[i]);
        spaces[i] = H5Dget_space(sets[i]);
        rows = select_rows(spaces[i], (me + i) % ranks);
        memories[i] = memory_of(rows);
        types[i] = H5T_NATIVE_DOUBLE;
        double* const own = calloc(PLANES * (rows + 1) * (COLUMNS + 2), sizeof *own);
        for (hsize_t p = 0; p < PLANES; ++p)
            for (hsize_t r = 0; r < rows; ++r)
                for (hsize_t c = 0; c < COLUMNS; ++c)
                    own[(p * rows + r) * (COLUMNS + 2) + c + 1] =
                        value(p, r * (hsize_t)ranks + (hsize_t)((me + i) % ranks), c, i);
        data[i] = own;
    }
    const hid_t transfer = transfer_of(&several[0]);
    if (H5Dwrite_multi(SETS, sets, types, memories, spaces, transfer, data) < 0) refused("several");
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < SETS; ++i) {
        read_rows(sets[i], &several[i], i);
        free((void*)data[i]);
        H5Sclose(memories[i]);
        H5Sclose(spaces[i]);
        H5Dclose(sets[i]);
    }
    H5Pclose(transfer);
}

static void finish(hid_t file, hid_t access) {
    if (H5Fclose(file) < 0) refused("close");
    H5Pclose(access);
}

static void write_all(const char* path) {
    const hid_t access = access_list(MPI_INFO_NULL);
    /* No times: the files of two programs are to be equal. */
    const hid_t creation = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_obj_track_times(creation, 0);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, creation, access);
    if (file < 0) refused("create");
    H5Pclose(creation);
    for (int i = 0; i < KINDS; ++i) {
        const hid_t set = make_set(file, &kinds[i]);
        expect(set >= 0, kinds[i].name);
        for (int salt = 0; salt < 2; ++salt)
            write_rows(set, &kinds[i], salt);
        if (i % 2 == 0) read_rows(set, &kinds[i], 1);
        H5Dclose(set);
    }
    write_several(file);
    write_series(file, 7, 0);
    finish(file, access);
}

/* By another number of ranks, perhaps. */
static void change(const char* path) {
    const hid_t access = access_list(MPI_INFO_NULL);
    const hid_t file = H5Fopen(path, H5F_ACC_RDWR, access);
    if (file < 0) refused("open");
    for (int i = 0; i < KINDS; ++i) {
        const hid_t set = H5Dopen2(file, kinds[i].name, H5P_DEFAULT);
        expect(set >= 0, kinds[i].name);
        read_rows(set, &kinds[i], 1);
        write_rows(set, &kinds[i], 2);
        write_rows(set, &kinds[i], 1);
        H5Dclose(set);
    }
    write_series(file, 9, 1);
    finish(file, access);
}

static void read_all(const char* path, hsize_t steps) {
    const hid_t access = access_list(MPI_INFO_NULL);
    const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (file < 0) refused("open");
    for (int i = 0; i < KINDS; ++i) {
        const hid_t set = H5Dopen2(file, kinds[i].name, H5P_DEFAULT);
        expect(set >= 0, kinds[i].name);
        read_rows(set, &kinds[i], 1);
        H5Dclose(set);
    }
    read_series(file, steps);
    finish(file, access);
}

/* All ranks write all of it: MPI does not say whose bytes stay. */
static void overlap(const char* path, H5D_selection_io_mode_t selection) {
    const struct kind k = {"overlap", 0, 0, 0, H5FD_MPIO_COLLECTIVE, selection, 0};
    const hid_t access = access_list(MPI_INFO_NULL);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (file < 0) refused("create");
    const hid_t set = make_set(file, &k), transfer = transfer_of(&k);
    double* const data = malloc(sizeof *data * PLANES * ROWS * COLUMNS);
    for (hsize_t i = 0; i < PLANES * ROWS * COLUMNS; ++i)
        data[i] = value(0, 0, i, 1);
    if (H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, transfer, data) < 0) refused("overlap");
    free(data);
    read_rows(set, &k, 1);
    H5Pclose(transfer);
    H5Dclose(set);
    finish(file, access);
}

/* Hints that the last rank gives alone. */
static void hints(const char* path) {
    MPI_Info info;
    MPI_Info_create(&info);
    if (me == ranks - 1) MPI_Info_set(info, "twinrun_stripe", "8192");
    const hid_t access = access_list(info);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (file < 0) refused("create");
    finish(file, access);
    MPI_Info_free(&info);
}

/* Storage that takes no more, from the second dataset on. */
static void full(const char* path) {
    const hid_t access = access_list(MPI_INFO_NULL);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (file < 0) refused("create");
    for (int i = 0; i < 3; i += 2) {
        const hid_t set = make_set(file, &kinds[i]);
        write_rows(set, &kinds[i], 0);
        write_rows(set, &kinds[i], 1);
        H5Dclose(set);
        /* MPI has made its own files by now. */
        limit_files(4096);
    }
    expect(0, "a file grew behind its limit");
}

/* The last rank dies before a collective transfer. */
static void die(const char* path) {
    const hid_t access = access_list(MPI_INFO_NULL);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (file < 0) refused("create");
    const hid_t set = make_set(file, &kinds[0]);
    write_rows(set, &kinds[0], 0);
    expect(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0, "H5Fflush");
    write_rows(set, &kinds[0], 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == ranks - 1) raise(SIGKILL);
    write_rows(set, &kinds[0], 2);
    expect(0, "a transfer ended without a rank");
}

/* MPI's atomic mode, which the driver has not: an error, and no harm. */
static void atomic(const char* path) {
    const hid_t access = access_list(MPI_INFO_NULL);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (file < 0) refused("create");
    expect(H5Fset_mpi_atomicity(file, 1) < 0, "atomic mode was accepted");
    const hid_t set = make_set(file, &kinds[0]);
    write_rows(set, &kinds[0], 1);
    read_rows(set, &kinds[0], 1);
    H5Dclose(set);
    finish(file, access);
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect(argc > 2, "usage: program SCENARIO PATH");
    /* Errors are printed once, by refused() and expect(). */
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    const char* const scenario = argv[1];
    if (strcmp(scenario, "write") == 0) {
        write_all(argv[2]);
    } else if (strcmp(scenario, "change") == 0) {
        change(argv[2]);
    } else if (strcmp(scenario, "read") == 0) {
        read_all(argv[2], 7);
    } else if (strcmp(scenario, "read changed") == 0) {
        read_all(argv[2], 9);
    } else if (strcmp(scenario, "overlap") == 0) {
        overlap(argv[2], H5D_SELECTION_IO_MODE_DEFAULT);
    } else if (strcmp(scenario, "typed overlap") == 0) {
        overlap(argv[2], H5D_SELECTION_IO_MODE_OFF);
    } else if (strcmp(scenario, "hints") == 0) {
        hints(argv[2]);
    } else if (strcmp(scenario, "die") == 0) {
        die(argv[2]);
    } else if (strcmp(scenario, "full") == 0) {
        full(argv[2]);
    } else if (strcmp(scenario, "atomic") == 0) {
        atomic(argv[2]);
    } else {
        expect(0, "there is no such scenario");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) puts("done");
    MPI_Finalize();
    return 0;
}
