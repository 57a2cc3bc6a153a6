// Calls of POSIX and stdio whose numbers and bytes check.py knows. usage: calls FOLDER MODE
//   files     each call some times, in the main thread      threads   4 threads with 100 writes each
//   fork      a child with 5 writes, which leaves by _exit   exec      writes, then becomes `calls FOLDER files`
//   endless   writes without end (until it is killed)        abort, quick_exit, exit   3 writes, and that end
//   cancel    a thread that is cancelled while it reads      nothing   no call at all
//   delayed   a thread that is cancelled while its mkdir is delayed: it ends where it would without a delay
//   memory    streams in memory                              words     execl with 1100 words
//   numbers   descriptors closed by closefrom, and their numbers used again, for pipes
//   signals   calls, and a signal handler with the same one  ending    a thread whose keys' destructors write
//   taken     3 writes; the name that a profile had in its making is another's
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            char line_[200];                                                                               \
            int n_ =                                                                                       \
                snprintf(line_, sizeof line_, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            if (write(2, line_, (size_t)n_) < 0) exit(2);                                                  \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

static char* in(const char* name) {
    static char paths[4][4096];
    static int next;
    extern const char* folder;
    char* path = paths[next++ % 4];
    strcpy(path, folder);
    strcat(path, "/");
    return strcat(path, name);
}
const char* folder;

static void posix_calls(void) {
    char data[64];
    memset(data, 'x', sizeof data);
    int file = open(in("a.bin"), O_CREAT | O_TRUNC | O_RDWR, 0640);  // open 1
    CHECK(file >= 0);
    CHECK(write(file, data, 10) == 10);  // write 3, 60 bytes
    CHECK(write(file, data, 20) == 20);
    CHECK(write(file, data, 30) == 30);
    CHECK(pwrite(file, data, 7, 60) == 7);  // pwrite 2, 14 bytes
    CHECK(pwrite64(file, data, 7, 67) == 7);
    struct iovec parts[2] = {{data, 5}, {data, 6}};
    CHECK(writev(file, parts, 2) == 11);       // writev 1, 11 bytes
    CHECK(pwritev(file, parts, 2, 71) == 11);  // pwritev 1, 11 bytes
    CHECK(lseek(file, 0, SEEK_SET) == 0);      // lseek 1
    CHECK(fsync(file) == 0);                   // fsync 1
    CHECK(fdatasync(file) == 0);               // fdatasync 1
    volatile size_t ask = 40;                  // not a constant: __read_chk where the program was fortified
    CHECK(read(file, data, ask) == 40);        // read 2, 62 bytes
    CHECK(read(file, data, 64) == 42);         // (82 bytes are in the file)
    CHECK(pread(file, data, ask, 2) == 40);    // pread 1, 40 bytes
    CHECK(lseek(file, 0, SEEK_SET) == 0);      // lseek 2
    CHECK(readv(file, parts, 2) == 11);        // readv 1, 11 bytes
    CHECK(preadv(file, parts, 2, 3) == 11);    // preadv 1, 11 bytes
    CHECK(ftruncate(file, 50) == 0);           // truncate 1
    struct stat facts;
    CHECK(fstat(file, &facts) == 0 && facts.st_size == 50 && (facts.st_mode & 0777) == 0640);  // stat 1
    CHECK(close(file) == 0);                                                                   // close 1
    CHECK(truncate(in("a.bin"), 20) == 0);                                                     // truncate 2
    CHECK(stat(in("a.bin"), &facts) == 0 && facts.st_size == 20);                              // stat 2
    CHECK(rename(in("a.bin"), in("b.bin")) == 0);                                              // rename 1
    CHECK(access(in("b.bin"), R_OK) == 0);                                                     // access 1
    CHECK(mkdir(in("sub"), 0755) == 0);                                                        // mkdir 1
    CHECK(rmdir(in("sub")) == 0);                                                              // rmdir 1
    int here = open(folder, O_RDONLY | O_DIRECTORY);                                           // open 2
    file = openat(here, "b.bin", O_RDONLY);                                                    // open 3
    CHECK(file >= 0 && close(file) == 0 && close(here) == 0);                                  // close 3
    CHECK(unlink(in("b.bin")) == 0);                                                           // unlink 1
    errno = 0;
    CHECK(open(in("missing"), O_RDONLY) == -1 && errno == ENOENT);  // open 4
    errno = 0;
    CHECK(read(-1, data, 1) == -1 && errno == EBADF);  // read 3
    int ends[2];
    CHECK(pipe(ends) == 0);
    CHECK(write(ends[1], data, 9) == 9);                // write_stream 1, 9 bytes
    CHECK(read(ends[0], data, ask) == 9);               // read_stream 1, 9 bytes
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);  // close 5
    // The numbers of the pipe, now of files.
    file = open(in("c.bin"), O_CREAT | O_RDWR, 0600);  // open 5
    CHECK(write(file, data, 4) == 4);                  // write 4, 64 bytes
    CHECK(dup2(file, 100) == 100);
    CHECK(write(100, data, 4) == 4);             // write 5, 68 bytes
    CHECK(close(100) == 0 && close(file) == 0);  // close 7
    CHECK(unlink(in("c.bin")) == 0);             // unlink 2
}

static void stdio_calls(void) {
    double value = 1.5;
    FILE* file = fopen(in("d.txt"), "w+");  // fopen 1
    CHECK(file != NULL);
    for (int i = 0; i < 1000; ++i)
        CHECK(fwrite(&value, sizeof value, 1, file) == 1);         // fwrite 1000, 8000 bytes
    CHECK(fwrite(&value, 1, sizeof value, file) == sizeof value);  // fwrite 1001, 8008 bytes
    volatile int number = 1234;  // not a constant: no compiler makes another call of it
    CHECK(fprintf(file, "\n%d %d\n", number, number) == 11);  // fprintf 1, 11 bytes
    const char* volatile line = "a line\n";
    CHECK(fputs(line, file) >= 0);         // fputs 1, 7 bytes
    CHECK(fflush(file) == 0);              // fflush 1
    CHECK(fseek(file, 0, SEEK_SET) == 0);  // fseek 1
    double back[4];
    volatile size_t items = 4;
    CHECK(fread(back, sizeof value, items, file) == 4 && back[3] == 1.5);  // fread 1, 32 bytes
    CHECK(ftell(file) == 32);                                              // ftell 1
    CHECK(fseeko(file, 8009, SEEK_SET) == 0);                              // fseek 2
    int first = 0, second = 0;
    CHECK(fscanf(file, "%d %d\n", &first, &second) == 2 && first == 1234 && second == 1234);  // fscanf 1
    char text[32];
    volatile int room = sizeof text;
    CHECK(fgets(text, room, file) == text && strcmp(text, "a line\n") == 0);  // fgets 1, 7 bytes
    rewind(file);                                                             // fseek 3
    char* all = NULL;
    size_t size = 0;
    CHECK(getline(&all, &size, file) == 8009);  // getline 1, 8009 bytes
    free(all);
    CHECK(fclose(file) == 0);                                 // fclose 1
    int descriptor = open(in("d.txt"), O_RDONLY);             // open
    file = fdopen(descriptor, "r");                           // fdopen 1
    CHECK(file != NULL && fread(back, 1, items, file) == 4);  // fread 2, 36 bytes
    CHECK(fclose(file) == 0);                                 // fclose 2
    CHECK(unlink(in("d.txt")) == 0);                          // unlink
}

static int shared;

static void* write_some(void* given) {
    char byte = 'y';
    for (long i = 0; i < 100; ++i)
        CHECK(pwrite(shared, &byte, 1, (long)given * 100 + i) == 1);
    return NULL;
}

static void* read_forever(void* given) {
    char byte;
    for (;;)
        CHECK(read(*(int*)given, &byte, 1) >= 0);
    return NULL;
}

static void writes(int number) {
    int file = open(in("w.bin"), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(file >= 0);
    for (int i = 0; number < 0 || i < number; ++i) {
        CHECK(pwrite(file, &i, sizeof i, 0) == sizeof i);
        if (i == 100) CHECK(mkdir(in("going"), 0700) == 0);  // tells that it is under way
    }
    CHECK(close(file) == 0);
}

static volatile int started = 0, passed = 0;

static void* make_folder(void* given) {
    (void)given;
    started = 1;
    CHECK(mkdir(in("slow"), 0755) == 0);  // no point of cancellation
    passed = 1;
    pthread_testcancel();
    return NULL;
}

static void memory_calls(void) {
    char text[] = "one\ntwo\n";
    errno = 0;
    FILE* file = fmemopen(text, strlen(text), "r");
    CHECK(file != NULL && errno == 0);
    char* line = NULL;
    size_t size = 0;
    int lines = 0;
    while (getline(&line, &size, file) != -1)
        ++lines;
    CHECK(lines == 2 && errno == 0);
    rewind(file);
    char word[8];
    CHECK(fgets(word, sizeof word, file) == word && fread(word, 1, 2, file) == 2 && ftell(file) == 6);
    CHECK(errno == 0 && fclose(file) == 0 && errno == 0);
    free(line);
    char* made = NULL;
    file = open_memstream(&made, &size);
    CHECK(file != NULL && fprintf(file, "%d", 12) == 2 && fputs("x", file) >= 0 && fflush(file) == 0);
    CHECK(errno == 0 && fclose(file) == 0 && errno == 0 && strcmp(made, "12x") == 0);
    free(made);
}

static volatile long handled = 0;

static void on_signal(int number) {
    (void)number;
    const int error = errno;
    CHECK(lseek(shared, 0, SEEK_CUR) == 0);
    ++handled;
    errno = error;
}

static void* send_signals(void* to) {
    for (long i = 0; i < 100; ++i) {
        CHECK(pthread_kill(*(pthread_t*)to, SIGUSR1) == 0);
        while (handled <= i)
            sched_yield();
    }
    return NULL;
}

static void end_with_writes(void* given) {
    const long round = (long)given;
    CHECK(pwrite(shared, "e", 1, round) == 1);
}

static void* ending(void* key) {
    CHECK(pthread_setspecific(*(pthread_key_t*)key, (void*)1L) == 0);
    CHECK(pwrite(shared, "b", 1, 0) == 1);
    return NULL;
}

extern char** environ;

int main(int argc, char** argv) {
    CHECK(argc >= 3);
    folder = argv[1];
    const char* mode = argv[2];
    if (strcmp(mode, "count") == 0) return argc == 3 + 1100 ? 0 : 4;
    if (strcmp(mode, "files") == 0) {
        posix_calls();
        stdio_calls();
    } else if (strcmp(mode, "threads") == 0) {
        shared = open(in("t.bin"), O_CREAT | O_WRONLY, 0600);
        for (int round = 0; round < 3; ++round) {
            pthread_t threads[4];
            for (long i = 0; i < 4; ++i)
                CHECK(pthread_create(&threads[i], NULL, write_some, (void*)i) == 0);
            for (int i = 0; i < 4; ++i)
                CHECK(pthread_join(threads[i], NULL) == 0);
        }
    } else if (strcmp(mode, "fork") == 0) {
        writes(2);
        pid_t child = fork();
        if (child == 0) {
            writes(5);
            _exit(0);
        }
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        child = vfork();  // shares memory with this process, and leaves no profile of its own
        if (child == 0) {
            execl("/bin/true", "true", (char*)NULL);
            _exit(1);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        char* words[] = {"true", NULL};
        CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, words, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        writes(4);
    } else if (strcmp(mode, "exec") == 0) {
        writes(3);
        execl(argv[0], argv[0], folder, "files", (char*)NULL);
        return 1;
    } else if (strcmp(mode, "endless") == 0) {
        writes(-1);
    } else if (strcmp(mode, "cancel") == 0) {
        int ends[2];
        CHECK(pipe(ends) == 0);
        for (int i = 0; i < 3; ++i) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, read_forever, &ends[0]) == 0);
            CHECK(write(ends[1], "x", 1) == 1);
            CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
        }
        pthread_t thread;
        shared = open(in("t.bin"), O_CREAT | O_WRONLY, 0600);
        CHECK(pthread_create(&thread, NULL, write_some, NULL) == 0 && pthread_join(thread, NULL) == 0);
    } else if (strcmp(mode, "delayed") == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, make_folder, NULL) == 0);
        while (!started)
            sched_yield();
        void* result = NULL;
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED && passed == 1);
    } else if (strcmp(mode, "memory") == 0) {
        memory_calls();
    } else if (strcmp(mode, "words") == 0) {
#define TEN(x) x, x, x, x, x, x, x, x, x, x
        execl(argv[0], argv[0], folder, "count", TEN(TEN(TEN("w"))), TEN(TEN("w")), (char*)NULL);
        return 1;
    } else if (strcmp(mode, "numbers") == 0) {
        int file = open(in("n.bin"), O_CREAT | O_WRONLY, 0600);
        CHECK(file >= 3 && write(file, "xy", 2) == 2);
        closefrom(3);
        int ends[2];
        CHECK(pipe(ends) == 0 && (ends[0] == file || ends[1] == file));
        CHECK(write(ends[1], "abc", 3) == 3);
        char name[4096], back[3];
        strcpy(name, in("n-XXXXXX.tmp"));
        CHECK(mkostemps(name, 4, O_CLOEXEC) >= 0);
        CHECK(read(ends[0], back, 3) == 3);
    } else if (strcmp(mode, "signals") == 0) {
        shared = open(in("s.bin"), O_CREAT | O_WRONLY, 0600);
        struct sigaction action = {.sa_handler = on_signal};
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
        pthread_t self = pthread_self(), thread;
        CHECK(pthread_create(&thread, NULL, send_signals, &self) == 0);
        long own = 0;
        for (; handled < 100; ++own)
            CHECK(lseek(shared, 0, SEEK_CUR) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        char text[64];
        const int length = snprintf(text, sizeof text, "%ld", own + handled);
        FILE* file = fopen(in("calls"), "w");
        CHECK(fwrite(text, 1, (size_t)length, file) == (size_t)length && fclose(file) == 0);
    } else if (strcmp(mode, "ending") == 0) {
        shared = open(in("e.bin"), O_CREAT | O_WRONLY, 0600);
        pthread_key_t key;
        CHECK(pthread_key_create(&key, end_with_writes) == 0);
        for (int i = 0; i < 3; ++i) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, ending, &key) == 0 && pthread_join(thread, NULL) == 0);
        }
    } else if (strcmp(mode, "taken") == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/.profile-%d.tmp", getenv("TWINRUN_INTERPOSE_FOLDER"), (int)getpid());
        CHECK(syscall(SYS_mkdirat, AT_FDCWD, path, 0755) == 0);
        writes(3);
        return 0;
    } else if (strcmp(mode, "nothing") != 0) {
        writes(3);
        if (strcmp(mode, "abort") == 0) abort();
        if (strcmp(mode, "quick_exit") == 0) quick_exit(0);
        if (strcmp(mode, "exit") == 0) exit(0);
        if (strcmp(mode, "_exit") == 0) _exit(0);
        return 3;
    }
    return 0;
}
