/* The plainest direct comparison: both files mapped, elements of float32 that differ by more than a tolerance counted, in threads.
 *
 *     cc -O3 -march=native -pthread -o mapped_compare bench/mapped_compare.c
 *     mapped_compare EPS THREADS A B [A B ...]
 *
 * It prints the elements that differ and the seconds that opening, mapping and comparing took. It says nothing else of
 * them: no place, no largest difference, no statistics. bench/command_bench.py measures it as a bound.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, MOST_THREADS = 256 };

struct pair {
    const float *a, *b;
    size_t count;
    size_t first_piece;
};

static struct pair* pairs;
static int pair_count;
static size_t pieces;
static atomic_size_t next_piece;
static atomic_size_t different;
static float eps;

static const float* mapped(const char* path, size_t* count) {
    struct stat facts;
    const int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &facts) != 0 || facts.st_size == 0) {
        perror(path);
        exit(2);
    }
    void* data = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(file);
    *count = (size_t)facts.st_size / sizeof(float);
    return data;
}

static size_t differing(const float* a, const float* b, size_t n) {
    size_t all = 0;
    for (size_t at = 0; at < n; at += 4096) {
        const size_t end = n - at < 4096 ? n - at : 4096;
        unsigned found = 0;
        for (size_t i = 0; i < end; ++i)
            found += !(fabsf(a[at + i] - b[at + i]) <= eps);
        all += found;
    }
    return all;
}

static void* work(void* unused) {
    (void)unused;
    size_t found = 0;
    int at = 0;
    for (;;) {
        const size_t piece = atomic_fetch_add(&next_piece, 1);
        if (piece >= pieces) break;
        while (at + 1 < pair_count && pairs[at + 1].first_piece <= piece)
            ++at;
        const size_t first = (piece - pairs[at].first_piece) * PIECE;
        const size_t left = pairs[at].count - first;
        found += differing(pairs[at].a + first, pairs[at].b + first, left < PIECE ? left : PIECE);
    }
    atomic_fetch_add(&different, found);
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char** argv) {
    if (argc < 5 || argc % 2 == 0) {
        fprintf(stderr, "mapped_compare EPS THREADS A B [A B ...]\n");
        return 2;
    }
    const double start = now();
    eps = strtof(argv[1], NULL);
    const int threads = atoi(argv[2]);
    pair_count = (argc - 3) / 2;
    pairs = calloc((size_t)pair_count, sizeof *pairs);
    if (pairs == NULL || threads < 1 || threads > MOST_THREADS) return 2;
    for (int i = 0; i < pair_count; ++i) {
        size_t other;
        pairs[i].a = mapped(argv[3 + 2 * i], &pairs[i].count);
        pairs[i].b = mapped(argv[4 + 2 * i], &other);
        if (other != pairs[i].count) {
            fprintf(stderr, "%s: another size\n", argv[4 + 2 * i]);
            return 2;
        }
        pairs[i].first_piece = pieces;
        pieces += (other + PIECE - 1) / PIECE;
    }
    pthread_t others[MOST_THREADS];
    int started = 0;
    while (started < threads - 1 && pthread_create(&others[started], NULL, work, NULL) == 0)
        ++started;
    work(NULL);
    for (int i = 0; i < started; ++i)
        pthread_join(others[i], NULL);
    printf("%zu %.6f\n", atomic_load(&different), now() - start);
    return different != 0;
}
