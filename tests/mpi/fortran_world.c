#include <mpi.h>

void world_begin(int* comm, int* rank, int* ranks);
void world_end(void);

void world_begin(int* comm, int* rank, int* ranks) {
    MPI_Init(0, 0);
    *comm = MPI_Comm_c2f(MPI_COMM_WORLD);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, ranks);
}

void world_end(void) { MPI_Finalize(); }
