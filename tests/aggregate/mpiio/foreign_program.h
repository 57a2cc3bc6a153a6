/* What programs share that write one file with twinrun and one without it. */
#pragma once

#include <mpi.h>
#include <stdio.h>

static int me, ranks;

static void expect(int condition, const char* what) {
    if (condition) return;
    fprintf(stderr, "%s: rank %d: %s\n", __BASE_FILE__, me, what);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Expects equal files; their bytes. */
static long compare(const char* one, const char* two) {
    FILE* const a = fopen(one, "rb");
    FILE* const b = fopen(two, "rb");
    long bytes = 0;
    expect(a != NULL && b != NULL, "a file is missing");
    for (;; ++bytes) {
        const int x = fgetc(a);
        expect(x == fgetc(b), "the files differ");
        if (x == EOF) break;
    }
    fclose(a);
    fclose(b);
    return bytes;
}
