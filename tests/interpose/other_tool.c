// A tool of another kind that is preloaded too: it counts writes. It prints how many it saw.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

static int seen;

ssize_t write(int file, const void* from, size_t size) {
    static ssize_t (*real)(int, const void*, size_t);
    if (!real) real = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
    ++seen;
    return real(file, from, size);
}

__attribute__((destructor)) static void tell(void) { dprintf(2, "other tool: %d\n", seen); }
