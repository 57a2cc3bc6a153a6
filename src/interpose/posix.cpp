// Calls of POSIX on files. Variants with 64 in their name are the same functions on 64-bit Linux,
// and so are wrapped alike.
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "interpose/rules.hpp"
#include "interpose/wrap.hpp"

using namespace twinrun::interpose;

namespace {

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// The real function of this name, looked up once for each call site.
#define TWR_NEXT(type, name)                \
    static constinit Next<type> next{name}; \
    auto* real = next.get();                \
    if (real == nullptr) return missing(-1)

template <typename Function>
int opened(const char* path, Function&& function) {
    Scope scope(Call::open, {.path = path});
    const int file = function();
    if (file >= 0) forget(file);
    scope.end();
    return file;
}

// Descriptors beyond these are not remembered.
void forget_range(unsigned first, unsigned last) {
    const unsigned end = last < 65535 ? last : 65535;
    for (unsigned file = first; file <= end; ++file)
        forget(static_cast<int>(file));
}

template <typename Function>
auto plain(Call call, Target target, Function&& function) {
    Scope scope(call, target);
    const auto result = function();
    scope.end();
    return result;
}

// The call of a read or write: on a file, or on a stream, which has a name of its own.
template <typename Function>
ssize_t transfer(Call call, Call stream, int file, std::size_t size, Function&& function) {
    Scope scope(is_file(file) ? call : stream, {.descriptor = file});
    const ssize_t result = scope.pretended() ? static_cast<ssize_t>(size) : function();
    scope.end(moved(result));
    return result;
}

std::size_t size_of(const iovec* parts, int count) {
    std::size_t size = 0;
    for (int i = 0; i < count; ++i)
        size += parts[i].iov_len;
    return size;
}

}  // namespace

// ---- open and close

// For calls whose mode argument is present only if the flags require it.
#define TWR_OPEN(name, folder_parameter, folder_argument)                             \
    TWR_WRAP int name(folder_parameter const char* path, int flags, ...) {            \
        mode_t mode = 0;                                                              \
        if (takes_mode(flags)) {                                                      \
            va_list list;                                                             \
            va_start(list, flags);                                                    \
            mode = static_cast<mode_t>(va_arg(list, unsigned));                       \
            va_end(list);                                                             \
        }                                                                             \
        TWR_NEXT(int(folder_parameter const char*, int, ...), #name);                 \
        return opened(path, [&] { return real(folder_argument path, flags, mode); }); \
    }
#define TWR_COMMA ,
TWR_OPEN(open, , )
TWR_OPEN(open64, , )
TWR_OPEN(openat, int folder TWR_COMMA, folder TWR_COMMA)
TWR_OPEN(openat64, int folder TWR_COMMA, folder TWR_COMMA)

#define TWR_OPENED(name, parameters, arguments)              \
    TWR_WRAP int name parameters {                           \
        TWR_NEXT(int parameters, #name);                     \
        return opened(path, [&] { return real arguments; }); \
    }
TWR_OPENED(creat, (const char* path, mode_t mode), (path, mode))
TWR_OPENED(creat64, (const char* path, mode_t mode), (path, mode))
TWR_OPENED(__open_2, (const char* path, int flags), (path, flags))
TWR_OPENED(__open64_2, (const char* path, int flags), (path, flags))
TWR_OPENED(__openat_2, (int folder, const char* path, int flags), (folder, path, flags))
TWR_OPENED(__openat64_2, (int folder, const char* path, int flags), (folder, path, flags))
TWR_OPENED(mkstemp, (char* path), (path))
TWR_OPENED(mkstemp64, (char* path), (path))
TWR_OPENED(mkostemp, (char* path, int flags), (path, flags))
TWR_OPENED(mkostemp64, (char* path, int flags), (path, flags))
TWR_OPENED(mkstemps, (char* path, int suffix), (path, suffix))
TWR_OPENED(mkstemps64, (char* path, int suffix), (path, suffix))
TWR_OPENED(mkostemps, (char* path, int suffix, int flags), (path, suffix, flags))
TWR_OPENED(mkostemps64, (char* path, int suffix, int flags), (path, suffix, flags))

TWR_WRAP int close(int file) {
    TWR_NEXT(int(int), "close");
    Scope scope(Call::close, {.descriptor = file});
    forget(file);
    const int result = real(file);
    scope.end();
    return result;
}

// These change which file a descriptor stands for. They are not counted.
TWR_WRAP int dup2(int from, int to) noexcept {
    TWR_NEXT(int(int, int), "dup2");
    forget(to);
    return real(from, to);
}
TWR_WRAP int dup3(int from, int to, int flags) noexcept {
    TWR_NEXT(int(int, int, int), "dup3");
    forget(to);
    return real(from, to, flags);
}
TWR_WRAP int close_range(unsigned first, unsigned last, int flags) noexcept {
    TWR_NEXT(int(unsigned, unsigned, int), "close_range");
    forget_range(first, last);
    return real(first, last, flags);
}
TWR_WRAP void closefrom(int first) noexcept {
    static constinit Next<void(int)> next{"closefrom"};
    forget_range(first > 0 ? static_cast<unsigned>(first) : 0, ~0U);
    if (auto* real = next.get()) real(first);
}

// ---- reading and writing

TWR_WRAP ssize_t read(int file, void* to, size_t size) {
    TWR_NEXT(ssize_t(int, void*, size_t), "read");
    return transfer(Call::read, Call::read_stream, file, size, [&] { return real(file, to, size); });
}
// The name is glibc's own.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
TWR_WRAP ssize_t __read_chk(int file, void* to, size_t size, size_t room) {
    TWR_NEXT(ssize_t(int, void*, size_t, size_t), "__read_chk");
    return transfer(Call::read, Call::read_stream, file, size, [&] { return real(file, to, size, room); });
}
TWR_WRAP ssize_t write(int file, const void* from, size_t size) {
    TWR_NEXT(ssize_t(int, const void*, size_t), "write");
    return transfer(Call::write, Call::write_stream, file, size, [&] { return real(file, from, size); });
}

#define TWR_PREAD(name)                                                                                  \
    TWR_WRAP ssize_t name(int file, void* to, size_t size, off_t at) {                                   \
        TWR_NEXT(ssize_t(int, void*, size_t, off_t), #name);                                             \
        return transfer(Call::pread, Call::pread, file, size, [&] { return real(file, to, size, at); }); \
    }
TWR_PREAD(pread)
TWR_PREAD(pread64)
#define TWR_PREAD_CHK(name)                                                         \
    TWR_WRAP ssize_t name(int file, void* to, size_t size, off_t at, size_t room) { \
        TWR_NEXT(ssize_t(int, void*, size_t, off_t, size_t), #name);                \
        return transfer(Call::pread, Call::pread, file, size,                       \
                        [&] { return real(file, to, size, at, room); });            \
    }
TWR_PREAD_CHK(__pread_chk)
TWR_PREAD_CHK(__pread64_chk)
#define TWR_PWRITE(name)                                                                                     \
    TWR_WRAP ssize_t name(int file, const void* from, size_t size, off_t at) {                               \
        TWR_NEXT(ssize_t(int, const void*, size_t, off_t), #name);                                           \
        return transfer(Call::pwrite, Call::pwrite, file, size, [&] { return real(file, from, size, at); }); \
    }
TWR_PWRITE(pwrite)
TWR_PWRITE(pwrite64)

TWR_WRAP ssize_t readv(int file, const iovec* parts, int count) {
    TWR_NEXT(ssize_t(int, const iovec*, int), "readv");
    return transfer(Call::readv, Call::read_stream, file, 0, [&] { return real(file, parts, count); });
}
TWR_WRAP ssize_t writev(int file, const iovec* parts, int count) {
    TWR_NEXT(ssize_t(int, const iovec*, int), "writev");
    Scope scope(is_file(file) ? Call::writev : Call::write_stream, {.descriptor = file});
    const ssize_t result =
        scope.pretended() ? static_cast<ssize_t>(size_of(parts, count)) : real(file, parts, count);
    scope.end(moved(result));
    return result;
}

#define TWR_VECTOR(name, call, parameters, arguments)                                         \
    TWR_WRAP ssize_t name parameters {                                                        \
        TWR_NEXT(ssize_t parameters, #name);                                                  \
        Scope scope(call, {.descriptor = file});                                              \
        const ssize_t result =                                                                \
            scope.pretended() ? static_cast<ssize_t>(size_of(parts, count)) : real arguments; \
        scope.end(moved(result));                                                             \
        return result;                                                                        \
    }
TWR_VECTOR(preadv, Call::preadv, (int file, const iovec* parts, int count, off_t at),
           (file, parts, count, at))
TWR_VECTOR(preadv64, Call::preadv, (int file, const iovec* parts, int count, off_t at),
           (file, parts, count, at))
TWR_VECTOR(preadv2, Call::preadv, (int file, const iovec* parts, int count, off_t at, int flags),
           (file, parts, count, at, flags))
TWR_VECTOR(preadv64v2, Call::preadv, (int file, const iovec* parts, int count, off_t at, int flags),
           (file, parts, count, at, flags))
TWR_VECTOR(pwritev, Call::pwritev, (int file, const iovec* parts, int count, off_t at),
           (file, parts, count, at))
TWR_VECTOR(pwritev64, Call::pwritev, (int file, const iovec* parts, int count, off_t at),
           (file, parts, count, at))
TWR_VECTOR(pwritev2, Call::pwritev, (int file, const iovec* parts, int count, off_t at, int flags),
           (file, parts, count, at, flags))
TWR_VECTOR(pwritev64v2, Call::pwritev, (int file, const iovec* parts, int count, off_t at, int flags),
           (file, parts, count, at, flags))

#define TWR_SYNC(name)                                         \
    TWR_WRAP int name(int file) {                              \
        TWR_NEXT(int(int), #name);                             \
        Scope scope(Call::name, {.descriptor = file});         \
        const int result = scope.pretended() ? 0 : real(file); \
        scope.end();                                           \
        return result;                                         \
    }
TWR_SYNC(fsync)
TWR_SYNC(fdatasync)

#define TWR_SENDFILE(name)                                                     \
    TWR_WRAP ssize_t name(int to, int from, off_t* at, size_t size) noexcept { \
        TWR_NEXT(ssize_t(int, int, off_t*, size_t), #name);                    \
        Scope scope(Call::sendfile, {.descriptor = to});                       \
        const ssize_t result = real(to, from, at, size);                       \
        scope.end(moved(result));                                              \
        return result;                                                         \
    }
TWR_SENDFILE(sendfile)
TWR_SENDFILE(sendfile64)
TWR_WRAP ssize_t copy_file_range(int from, off64_t* from_at, int to, off64_t* to_at, size_t size,
                                 unsigned flags) {
    TWR_NEXT(ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned), "copy_file_range");
    Scope scope(Call::copy_file_range, {.descriptor = to});
    const ssize_t result = real(from, from_at, to, to_at, size, flags);
    scope.end(moved(result));
    return result;
}

// ---- names and sizes

#define TWR_META(result, name, call, target, parameters, arguments)                  \
    TWR_WRAP result name parameters noexcept {                                       \
        static constinit Next<result parameters> next{#name};                        \
        auto* real = next.get();                                                     \
        if (real == nullptr) return missing(static_cast<result>(-1));                \
        const auto done = plain(Call::call, target, [&] { return real arguments; }); \
        if (Call::call == Call::rename) forget_paths();                              \
        return done;                                                                 \
    }
TWR_META(int, rename, rename, (Target{.path = from}), (const char* from, const char* to), (from, to))
TWR_META(int, renameat, rename, (Target{.path = from}), (int a, const char* from, int b, const char* to),
         (a, from, b, to))
TWR_META(int, renameat2, rename, (Target{.path = from}),
         (int a, const char* from, int b, const char* to, unsigned flags), (a, from, b, to, flags))
TWR_META(int, unlink, unlink, (Target{.path = path}), (const char* path), (path))
TWR_META(int, unlinkat, unlink, (Target{.path = path}), (int folder, const char* path, int flags),
         (folder, path, flags))
TWR_META(int, truncate, truncate, (Target{.path = path}), (const char* path, off_t size), (path, size))
TWR_META(int, truncate64, truncate, (Target{.path = path}), (const char* path, off_t size), (path, size))
TWR_META(int, ftruncate, truncate, (Target{.descriptor = file}), (int file, off_t size), (file, size))
TWR_META(int, ftruncate64, truncate, (Target{.descriptor = file}), (int file, off_t size), (file, size))
TWR_META(off_t, lseek, lseek, (Target{.descriptor = file}), (int file, off_t at, int whence),
         (file, at, whence))
TWR_META(off_t, lseek64, lseek, (Target{.descriptor = file}), (int file, off_t at, int whence),
         (file, at, whence))
TWR_META(int, stat, stat, (Target{.path = path}), (const char* path, struct stat* to), (path, to))
TWR_META(int, stat64, stat, (Target{.path = path}), (const char* path, struct stat64* to), (path, to))
TWR_META(int, lstat, stat, (Target{.path = path}), (const char* path, struct stat* to), (path, to))
TWR_META(int, lstat64, stat, (Target{.path = path}), (const char* path, struct stat64* to), (path, to))
TWR_META(int, fstat, stat, (Target{.descriptor = file}), (int file, struct stat* to), (file, to))
TWR_META(int, fstat64, stat, (Target{.descriptor = file}), (int file, struct stat64* to), (file, to))
TWR_META(int, fstatat, stat, (Target{.path = path}),
         (int folder, const char* path, struct stat* to, int flags), (folder, path, to, flags))
TWR_META(int, fstatat64, stat, (Target{.path = path}),
         (int folder, const char* path, struct stat64* to, int flags), (folder, path, to, flags))
TWR_META(int, statx, stat, (Target{.path = path}),
         (int folder, const char* path, int flags, unsigned mask, struct statx* to),
         (folder, path, flags, mask, to))
TWR_META(int, access, access, (Target{.path = path}), (const char* path, int mode), (path, mode))
TWR_META(int, faccessat, access, (Target{.path = path}), (int folder, const char* path, int mode, int flags),
         (folder, path, mode, flags))
TWR_META(int, mkdir, mkdir, (Target{.path = path}), (const char* path, mode_t mode), (path, mode))
TWR_META(int, mkdirat, mkdir, (Target{.path = path}), (int folder, const char* path, mode_t mode),
         (folder, path, mode))
TWR_META(int, rmdir, rmdir, (Target{.path = path}), (const char* path), (path))

TWR_WRAP int remove(const char* path) noexcept {
    TWR_NEXT(int(const char*), "remove");
    return plain(Call::unlink, {.path = path}, [&] { return real(path); });
}
