// Calls of stdio. Calls that the C library makes inside them (the write of a full buffer) pass no
// wrapper, and are part of their time. Functions for single characters (getc, putc) are not
// wrapped: they take 2 ns each, and most are inlined.
#ifndef __NO_INLINE__
// Without it, glibc's headers define getline and vprintf inline.
#define __NO_INLINE__ 1  // NOLINT(bugprone-reserved-identifier)
#endif
#include <cstdarg>
#include <cstdio>

#include "interpose/wrap.hpp"

using namespace twinrun::interpose;

namespace {

// A stream in memory has no descriptor: fileno fails and sets errno, which belongs to the program
// and is restored.
Target of(FILE* file) {
    if (file == nullptr) return {};
    const int error = errno;
    const int descriptor = fileno(file);
    errno = error;
    return {.descriptor = descriptor};
}

FILE* opened(Call call, const char* path, FILE* (*real)(const char*, const char*), const char* mode) {
    if (real == nullptr) return missing<FILE*>(nullptr);
    Scope scope(call, {.path = path});
    FILE* file = real(path, mode);
    if (file != nullptr) forget(fileno(file));
    scope.end();
    return file;
}

template <typename Real, typename... Arguments>
std::size_t items(Call call, FILE* file, std::size_t size, std::size_t count, Real* real,
                  Arguments... arguments) {
    if (real == nullptr) return missing<std::size_t>(0);
    Scope scope(call, of(file));
    const std::size_t result = scope.pretended() ? (size == 0 ? 0 : count) : real(arguments...);
    scope.end(result * size);
    return result;
}

template <typename Real, typename... Arguments>
int printed(FILE* file, Real* real, Arguments... arguments) {
    if (real == nullptr) return missing(-1);
    Scope scope(Call::fprintf, of(file));
    const int result = real(arguments...);
    scope.end(moved(result));
    return result;
}

std::size_t length(const char* text) { return text == nullptr ? 0 : __builtin_strlen(text); }

}  // namespace

#define TWR_NEXT(type, name)                \
    static constinit Next<type> next{name}; \
    auto* real = next.get()

#define TWR_FOPEN(name)                                       \
    TWR_WRAP FILE* name(const char* path, const char* mode) { \
        TWR_NEXT(FILE*(const char*, const char*), #name);     \
        return opened(Call::fopen, path, real, mode);         \
    }
TWR_FOPEN(fopen)
TWR_FOPEN(fopen64)

#define TWR_FREOPEN(name)                                                 \
    TWR_WRAP FILE* name(const char* path, const char* mode, FILE* file) { \
        TWR_NEXT(FILE*(const char*, const char*, FILE*), #name);          \
        if (real == nullptr) return missing<FILE*>(nullptr);              \
        Scope scope(Call::fopen, {.path = path});                         \
        if (file != nullptr) forget(fileno(file));                        \
        FILE* result = real(path, mode, file);                            \
        if (result != nullptr) forget(fileno(result));                    \
        scope.end();                                                      \
        return result;                                                    \
    }
TWR_FREOPEN(freopen)
TWR_FREOPEN(freopen64)

#define TWR_TMPFILE(name)                                    \
    TWR_WRAP FILE* name() {                                  \
        TWR_NEXT(FILE*(), #name);                            \
        if (real == nullptr) return missing<FILE*>(nullptr); \
        Scope scope(Call::fopen);                            \
        FILE* result = real();                               \
        if (result != nullptr) forget(fileno(result));       \
        scope.end();                                         \
        return result;                                       \
    }
TWR_TMPFILE(tmpfile)
TWR_TMPFILE(tmpfile64)

TWR_WRAP FILE* fdopen(int descriptor, const char* mode) noexcept {
    TWR_NEXT(FILE * (int, const char*), "fdopen");
    if (real == nullptr) return missing<FILE*>(nullptr);
    Scope scope(Call::fdopen, {.descriptor = descriptor});
    FILE* result = real(descriptor, mode);
    scope.end();
    return result;
}

TWR_WRAP int fclose(FILE* file) {
    TWR_NEXT(int(FILE*), "fclose");
    if (real == nullptr) return missing(EOF);
    const Target target = of(file);
    Scope scope(Call::fclose, target);
    forget(target.descriptor);
    const int result = real(file);
    scope.end();
    return result;
}

#define TWR_FFLUSH(name)                                       \
    TWR_WRAP int name(FILE* file) {                            \
        TWR_NEXT(int(FILE*), #name);                           \
        if (real == nullptr) return missing(EOF);              \
        Scope scope(Call::fflush, of(file));                   \
        const int result = scope.pretended() ? 0 : real(file); \
        scope.end();                                           \
        return result;                                         \
    }
TWR_FFLUSH(fflush)
TWR_FFLUSH(fflush_unlocked)

#define TWR_FREAD(name)                                                            \
    TWR_WRAP size_t name(void* to, size_t size, size_t count, FILE* file) {        \
        TWR_NEXT(size_t(void*, size_t, size_t, FILE*), #name);                     \
        return items(Call::fread, file, size, count, real, to, size, count, file); \
    }
TWR_FREAD(fread)
TWR_FREAD(fread_unlocked)
#define TWR_FREAD_CHK(name)                                                              \
    TWR_WRAP size_t name(void* to, size_t room, size_t size, size_t count, FILE* file) { \
        TWR_NEXT(size_t(void*, size_t, size_t, size_t, FILE*), #name);                   \
        return items(Call::fread, file, size, count, real, to, room, size, count, file); \
    }
TWR_FREAD_CHK(__fread_chk)
TWR_FREAD_CHK(__fread_unlocked_chk)
#define TWR_FWRITE(name)                                                              \
    TWR_WRAP size_t name(const void* from, size_t size, size_t count, FILE* file) {   \
        TWR_NEXT(size_t(const void*, size_t, size_t, FILE*), #name);                  \
        return items(Call::fwrite, file, size, count, real, from, size, count, file); \
    }
TWR_FWRITE(fwrite)
TWR_FWRITE(fwrite_unlocked)

#define TWR_FGETS(name, parameters, arguments)               \
    TWR_WRAP char* name parameters {                         \
        TWR_NEXT(char* parameters, #name);                   \
        if (real == nullptr) return missing<char*>(nullptr); \
        Scope scope(Call::fgets, of(file));                  \
        char* result = real arguments;                       \
        scope.stop();                                        \
        scope.end(length(result));                           \
        return result;                                       \
    }
TWR_FGETS(fgets, (char* to, int size, FILE* file), (to, size, file))
TWR_FGETS(fgets_unlocked, (char* to, int size, FILE* file), (to, size, file))
TWR_FGETS(__fgets_chk, (char* to, size_t room, int size, FILE* file), (to, room, size, file))
TWR_FGETS(__fgets_unlocked_chk, (char* to, size_t room, int size, FILE* file), (to, room, size, file))

#define TWR_FPUTS(name)                               \
    TWR_WRAP int name(const char* text, FILE* file) { \
        TWR_NEXT(int(const char*, FILE*), #name);     \
        if (real == nullptr) return missing(EOF);     \
        Scope scope(Call::fputs, of(file));           \
        const int result = real(text, file);          \
        scope.stop();                                 \
        scope.end(result >= 0 ? length(text) : 0);    \
        return result;                                \
    }
TWR_FPUTS(fputs)
TWR_FPUTS(fputs_unlocked)
TWR_WRAP int puts(const char* text) {
    TWR_NEXT(int(const char*), "puts");
    if (real == nullptr) return missing(EOF);
    Scope scope(Call::fputs, of(stdout));
    const int result = real(text);
    scope.stop();
    scope.end(result >= 0 ? length(text) + 1 : 0);
    return result;
}

#define TWR_GETDELIM(name, parameters, arguments)         \
    TWR_WRAP ssize_t name parameters {                    \
        TWR_NEXT(ssize_t parameters, #name);              \
        if (real == nullptr) return missing<ssize_t>(-1); \
        Scope scope(Call::getline, of(file));             \
        const ssize_t result = real arguments;            \
        scope.end(moved(result));                         \
        return result;                                    \
    }
TWR_GETDELIM(getline, (char** to, size_t* size, FILE* file), (to, size, file))
TWR_GETDELIM(getdelim, (char** to, size_t* size, int end, FILE* file), (to, size, end, file))
TWR_GETDELIM(__getdelim, (char** to, size_t* size, int end, FILE* file), (to, size, end, file))

// ---- formatted: functions with ... call those with va_list

TWR_WRAP int vfprintf(FILE* file, const char* format, va_list list) {
    TWR_NEXT(int(FILE*, const char*, va_list), "vfprintf");
    return printed(file, real, file, format, list);
}
TWR_WRAP int fprintf(FILE* file, const char* format, ...) {
    va_list list;
    va_start(list, format);
    const int result = vfprintf(file, format, list);
    va_end(list);
    return result;
}
TWR_WRAP int vprintf(const char* format, va_list list) { return vfprintf(stdout, format, list); }
TWR_WRAP int printf(const char* format, ...) {
    va_list list;
    va_start(list, format);
    const int result = vfprintf(stdout, format, list);
    va_end(list);
    return result;
}
// These names are glibc's own.
// NOLINTBEGIN(bugprone-reserved-identifier)
TWR_WRAP int __vfprintf_chk(FILE* file, int flag, const char* format, va_list list) {
    TWR_NEXT(int(FILE*, int, const char*, va_list), "__vfprintf_chk");
    return printed(file, real, file, flag, format, list);
}
TWR_WRAP int __fprintf_chk(FILE* file, int flag, const char* format, ...) {
    va_list list;
    va_start(list, format);
    const int result = __vfprintf_chk(file, flag, format, list);
    va_end(list);
    return result;
}
TWR_WRAP int __vprintf_chk(int flag, const char* format, va_list list) {
    return __vfprintf_chk(stdout, flag, format, list);
}
TWR_WRAP int __printf_chk(int flag, const char* format, ...) {
    va_list list;
    va_start(list, format);
    const int result = __vfprintf_chk(stdout, flag, format, list);
    va_end(list);
    return result;
}
// NOLINTEND(bugprone-reserved-identifier)

// Each calls the va_list function of the same standard.
#define TWR_SCANF(name, behind)                              \
    TWR_WRAP int name(FILE* file, const char* format, ...) { \
        TWR_NEXT(int(FILE*, const char*, va_list), #behind); \
        if (real == nullptr) return missing(EOF);            \
        va_list list;                                        \
        va_start(list, format);                              \
        Scope scope(Call::fscanf, of(file));                 \
        const int result = real(file, format, list);         \
        scope.end();                                         \
        va_end(list);                                        \
        return result;                                       \
    }
#undef fscanf
TWR_SCANF(__isoc99_fscanf, __isoc99_vfscanf)
TWR_SCANF(__isoc23_fscanf, __isoc23_vfscanf)

// ---- positions

#define TWR_SEEK(name, type)                             \
    TWR_WRAP int name(FILE* file, type at, int whence) { \
        TWR_NEXT(int(FILE*, type, int), #name);          \
        if (real == nullptr) return missing(-1);         \
        Scope scope(Call::fseek, of(file));              \
        const int result = real(file, at, whence);       \
        scope.end();                                     \
        return result;                                   \
    }
TWR_SEEK(fseek, long)
TWR_SEEK(fseeko, off_t)
TWR_SEEK(fseeko64, off64_t)
#define TWR_TELL(name, type)                           \
    TWR_WRAP type name(FILE* file) {                   \
        TWR_NEXT(type(FILE*), #name);                  \
        if (real == nullptr) return missing<type>(-1); \
        Scope scope(Call::ftell, of(file));            \
        const type result = real(file);                \
        scope.end();                                   \
        return result;                                 \
    }
TWR_TELL(ftell, long)
TWR_TELL(ftello, off_t)
TWR_TELL(ftello64, off64_t)
TWR_WRAP void rewind(FILE* file) {
    TWR_NEXT(void(FILE*), "rewind");
    if (real == nullptr) return;
    Scope scope(Call::fseek, of(file));
    real(file);
    scope.end();
}
