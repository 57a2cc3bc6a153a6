/* A program of MPI-IO alone: it knows nothing of twinrun. Linked with the library before MPI, its collective calls are aggregated.
 *
 * usage: collective_write FILE */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char** argv) {
    int values[1000], rank, i;
    MPI_File file;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (i = 0; i < 1000; ++i)
        values[i] = 1000 * rank + i;
    if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file) !=
        MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    if (MPI_File_write_at_all(file, 4000 * (MPI_Offset)rank, values, 1000, MPI_INT, MPI_STATUS_IGNORE) !=
        MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    MPI_File_close(&file);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
