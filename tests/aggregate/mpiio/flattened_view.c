/* A view whose file type is made of several subarrays, without twinrun: does plain MPI-IO write each byte where it belongs? ROMIO of
   MPICH before 4.1 does not: it takes wrong offsets from such a type (MPICH's issue 7169). Tests look here before they compare with
   plain MPI-IO, and people may look whether their MPI has that error:

       mpicc flattened_view.c -o flattened_view && mpiexec -n 1 ./flattened_view FILE

   Exit status 0: right. 3: wrong, with the first byte that is. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { kSide = 6, kItems = 2 * 2 * 3, kBytes = 2 * kSide * kSide };

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    if (argc != 2) {
        fprintf(stderr, "usage: flattened_view FILE\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    /* Two blocks of 2 x 3 bytes, each in a square of 6 x 6. */
    const int sizes[2] = {kSide, kSide};
    const int parts[2] = {2, 3};
    const int starts[2] = {1, 2};
    MPI_Datatype block;
    MPI_Datatype both;
    MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_BYTE, &block);
    const int lengths[2] = {1, 1};
    const MPI_Aint places[2] = {0, kSide * kSide};
    MPI_Type_create_hindexed(2, lengths, places, block, &both);
    MPI_Type_commit(&both);

    char data[kItems];
    char expected[kBytes];
    memset(expected, 0, sizeof expected);
    for (int i = 0; i < kItems; ++i)
        data[i] = (char)(i + 1);
    for (int k = 0; k < 2; ++k) {
        for (int row = 0; row < 2; ++row)
            memcpy(expected + k * kSide * kSide + (1 + row) * kSide + 2, data + (k * 2 + row) * 3, 3);
    }

    MPI_File file;
    MPI_File_delete(argv[1], MPI_INFO_NULL);
    int code = MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    if (code == MPI_SUCCESS) code = MPI_File_set_size(file, kBytes);
    if (code == MPI_SUCCESS) code = MPI_File_set_view(file, 0, MPI_BYTE, both, "native", MPI_INFO_NULL);
    if (code == MPI_SUCCESS) code = MPI_File_write(file, data, kItems, MPI_BYTE, MPI_STATUS_IGNORE);
    char found[kBytes];
    memset(found, -1, sizeof found);
    if (code == MPI_SUCCESS) code = MPI_File_close(&file);
    FILE* const read = fopen(argv[1], "rb");
    if (code != MPI_SUCCESS || read == NULL || fread(found, 1, kBytes, read) != kBytes) {
        fprintf(stderr, "%s: cannot be written or read\n", argv[1]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    fclose(read);
    int wrong = -1;
    for (int i = kBytes - 1; i >= 0; --i) {
        if (found[i] != expected[i]) wrong = i;
    }
    if (wrong >= 0) printf("byte %d is %d instead of %d\n", wrong, found[wrong], expected[wrong]);
    MPI_Type_free(&block);
    MPI_Type_free(&both);
    MPI_Finalize();
    return wrong >= 0 ? 3 : 0;
}
