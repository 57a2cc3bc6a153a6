// libmpi_fake.so: an MPI without processes, for what real ones are seldom asked: groups of two sizes, roots that are none, errors that
// return, large counts, and handles that must not be asked about (kBad).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_mpi.h"

int mpi_fortran_in_place_;

// Rsend fails.
#define TWR_MPI(name, lower, group, arguments, kind, count, type, a, b) \
    int PMPI_##name() { return strcmp(#name, "Rsend") == 0 ? 16 : 0; }  \
    int MPI_##name() __attribute__((weak, alias("PMPI_" #name)));
#include "interpose/mpi_calls.inc"
#undef TWR_MPI

int MPI_Init() { return 0; }
int PMPI_Init() { return 0; }
int MPI_Finalize() { return 0; }
int MPI_Send_c(const void* from, long long count, long type, int to, int tag, long comm) {
    (void)from, (void)count, (void)type, (void)to, (void)tag, (void)comm;
    return 0;
}
int PMPI_Type_size(long type, int* size) {
    if (type == kBad) {
        fprintf(stderr, "asked for the size of a datatype that is none\n");
        abort();
    }
    *size = 8;
    return 0;
}
int PMPI_Comm_test_inter(long comm, int* flag) { return *flag = comm == kTwoGroups, 0; }
int PMPI_Comm_size(long comm, int* size) { return (void)comm, *size = 2, 0; }
int PMPI_Comm_remote_size(long comm, int* size) { return (void)comm, *size = 3, 0; }
int PMPI_Comm_rank(long comm, int* rank) {
    (void)comm, (void)rank;
    fprintf(stderr, "asked for the rank in a communicator that is not known\n");
    abort();
}

void mpi_gather_(void* s, int* sc, int* st, void* r, int* rc, int* rt, int* root, int* comm, int* error) {
    (void)s, (void)sc, (void)st, (void)r, (void)rc, (void)rt, (void)root, (void)comm;
    *error = 16;
}
void pmpi_allgatherv_(void* s, int* sc, int* st, void* r, int* rc, int* at, int* rt, int* comm, int* error) {
    (void)s, (void)sc, (void)st, (void)r, (void)rc, (void)at, (void)rt, (void)comm;
    *error = 0;
}
void mpi_allgatherv_() __attribute__((alias("pmpi_allgatherv_")));
void mpi_finalize_(int* error) { *error = 0; }
