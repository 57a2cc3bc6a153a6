// Calls of fake_mpi.c whose numbers and bytes check.py knows. usage: calls_fake writable|read-only
//   calls_fake_local LIBRARY OTHER: the same MPI, loaded as Python does, by a program that loads libraries in another thread too
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake_mpi.h"

#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) {                                         \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            exit(1);                                                \
        }                                                           \
    } while (0)

#ifdef LOCAL

static atomic_int loads = 0, done = 0;

static void* load(void* name) {
    while (!atomic_load(&done)) {
        void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL && dlclose(library) == 0);
        atomic_fetch_add(&loads, 1);
    }
    return NULL;
}

static const char* const names[] = {
#define TWR_MPI(name, lower, group, arguments, kind, count, type, a, b) "MPI_" #name,
#include "interpose/mpi_calls.inc"
#undef TWR_MPI
};

typedef int Any(long, long, long, long, long, long, long, long, long, long, long, long, long);
typedef void Fortran(void*, int*, int*, void*, int*, int*, int*, int*, int*);

int main(int argc, char** argv) {
    CHECK(argc == 3);
    static long zeros[16];
    const long z = (long)zeros;
    void* mpi = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(mpi != NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, load, argv[2]) == 0);
    while (atomic_load(&loads) == 0)
        sched_yield();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        Any* call = (Any*)dlsym(RTLD_DEFAULT, names[i]);
        CHECK(call != NULL && call(z, z, z, z, z, z, z, z, z, z, z, z, z) != 1);
    }
    // One that this MPI does not have is looked for each time, as MPI may yet come.
    Fortran* send = (Fortran*)dlsym(RTLD_DEFAULT, "mpi_send_");
    for (int i = 0; i < 200000; ++i)
        send(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    // The variable that stands for a place is found there too: the datatype is not asked about.
    Fortran* gather = (Fortran*)dlsym(RTLD_DEFAULT, "mpi_allgatherv_");
    int five = 5, bad = kBad, world = kWorld, error = 1;
    CHECK(gather != NULL && dlsym(mpi, "mpi_fortran_in_place_") != NULL);
    gather(dlsym(mpi, "mpi_fortran_in_place_"), &five, &bad, NULL, NULL, NULL, &bad, &world, &error);
    CHECK(error == 0);
    atomic_store(&done, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}

#else

extern int mpi_fortran_in_place_;
int MPI_Init(int*, char***);
int MPI_Send(const void*, int, long, int, int, long);
int MPI_Send_c(const void*, long long, long, int, int, long);
int MPI_Rsend(const void*, int, long, int, int, long);
int MPI_Reduce_scatter(const void*, void*, const int*, long, long, long);
int MPI_Alltoallv(const void*, const int*, const int*, long, void*, const int*, const int*, long, long);
int MPI_Gather(const void*, int, long, void*, int, long, int, long);
int MPI_Scatter(const void*, int, long, void*, int, long, int, long);
int MPI_Allgatherv(const void*, int, long, void*, const int*, const int*, long, long);
void mpi_gather_(void*, int*, int*, void*, int*, int*, int*, int*, int*);
void mpi_allgatherv_(void*, int*, int*, void*, int*, int*, int*, int*, int*);
void mpi_finalize_(int*);

int main(int argc, char** argv) {
    double buffer[16] = {0};
    CHECK(argc == 2 && MPI_Init(&argc, &argv) == 0);
    // In the page of the table with MPI_Send_c's entry, which the loader left writable: check.py saw to that.
    volatile long* beside = (volatile long*)&_DYNAMIC[0].d_un;
    if (argv[1][0] == 'w') *beside = *beside;
    CHECK(MPI_Send(buffer, 5, kDouble, 0, 0, kWorld) == 0);            // Send 1: 40 bytes
    CHECK(MPI_Send_c(buffer, 1LL << 33, kDouble, 0, 0, kWorld) == 0);  // Send 2: 64 GiB
    CHECK(MPI_Rsend(buffer, 5, kBad, 0, 0, kWorld) == 16);             // an error: no bytes
    const int own[3] = {3, 4, 1000}, other[3] = {2, 3, 4};
    CHECK(MPI_Reduce_scatter(buffer, buffer, own, kDouble, 0, kTwoGroups) == 0);  // of the own group, of two
    CHECK(MPI_Alltoallv(buffer, other, other, kDouble, buffer, other, other, kDouble, kTwoGroups) ==
          0);                                                                   // of three
    CHECK(MPI_Gather(buffer, 2, kDouble, buffer, 2, kDouble, 0, kWorld) == 0);  // Gather 1: 16 bytes
    CHECK(MPI_Gather(NULL, 5, kBad, buffer, 2, kDouble, kRoot, kTwoGroups) ==
          0);  // of the root nothing comes
    CHECK(MPI_Scatter(buffer, 2, kDouble, NULL, 5, kBad, kRoot, kTwoGroups) == 0);
    CHECK(MPI_Allgatherv(buffer, 2, kDouble, buffer, other, other, kDouble, kWorld) ==
          0);  // Allgatherv 1: 16 bytes
    int five = 5, bad = kBad, root = 0, world = kWorld, error = 0;
    mpi_gather_(buffer, &five, &bad, buffer, &five, &bad, &root, &world, &error);  // an error: no bytes
    CHECK(error == 16);
    mpi_allgatherv_(&mpi_fortran_in_place_, &five, &bad, buffer, (int*)other, (int*)other, &bad, &world,
                    &error);
    CHECK(error == 0);
    mpi_finalize_(&error);
    return error;
}

#endif
