/* A library in place of liblustreapi: says in the file TWINRUN_FAKE_LUSTRE what it was called with, and makes a plain file. A name with
 * "refused" in it is refused after the file was made, as by a Lustre that cannot set its layout. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int level = 3;

int llapi_msg_get_level(void) { return level; }
void llapi_msg_set_level(int to) { level = to; }

int llapi_file_open(const char* name, int flags, int mode, unsigned long long unit, int offset, int factor,
                    int pattern) {
    FILE* const log = fopen(getenv("TWINRUN_FAKE_LUSTRE"), "a");
    const int file = open(name, flags, mode);
    fprintf(log, "library %d %llu %d %d %d %s\n", factor, unit, offset, pattern, level, name);
    fclose(log);
    if (file < 0) return -errno;
    if (strstr(name, "refused") != NULL) {
        close(file);
        return -EPERM;
    }
    return file;
}
