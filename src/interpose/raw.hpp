// Direct system calls, which no wrapper sees, and text without the C library: both are safe in
// signal handlers.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace twinrun::interpose {

inline int raw_open(const char* path, int flags, int mode = 0) {
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode));
}
inline long raw_read(int file, void* to, std::size_t size) { return syscall(SYS_read, file, to, size); }
inline void raw_close(int file) { syscall(SYS_close, file); }
inline bool raw_write_all(int file, const char* data, std::size_t size) {
    while (size > 0) {
        const long n = syscall(SYS_write, file, data, size);
        if (n <= 0) return false;
        data += n;
        size -= static_cast<std::size_t>(n);
    }
    return true;
}
inline bool raw_rename(const char* from, const char* to) {
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0) == 0;
}
inline void raw_unlink(const char* path) { syscall(SYS_unlinkat, AT_FDCWD, path, 0); }
inline long raw_readlink(const char* path, char* to, std::size_t size) {
    return syscall(SYS_readlinkat, AT_FDCWD, path, to, size);
}
inline int raw_pid() { return static_cast<int>(syscall(SYS_getpid)); }

// Reads the beginning of a text file; false if it cannot be read.
inline bool raw_text(const char* path, char* to, std::size_t size) {
    const int file = raw_open(path, O_RDONLY);
    if (file < 0) return false;
    std::size_t at = 0;
    while (at + 1 < size) {
        const long n = raw_read(file, to + at, size - 1 - at);
        if (n <= 0) break;
        at += static_cast<std::size_t>(n);
    }
    raw_close(file);
    to[at] = 0;
    return true;
}

// Text in a buffer of fixed size. Text that does not fit is truncated; whole() is false then.
class Text {
   public:
    Text(char* buffer, std::size_t size) : buffer_(buffer), size_(size) {
        if (size_ > 0) buffer_[0] = 0;
    }
    void put(char c) {
        if (at_ + 1 >= size_) {
            whole_ = false;
            return;
        }
        buffer_[at_++] = c;
        buffer_[at_] = 0;
    }
    void put(const char* text) {
        for (; *text != 0; ++text)
            put(*text);
    }
    void put(std::uint64_t value) {
        char digits[20];
        int n = 0;
        do {
            digits[n++] = static_cast<char>('0' + value % 10);
            value /= 10;
        } while (value != 0);
        while (n > 0)
            put(digits[--n]);
    }
    // Nanoseconds, as seconds.
    void put_seconds(std::uint64_t ns) {
        put(ns / 1000000000U);
        put('.');
        std::uint64_t part = ns % 1000000000U;
        for (std::uint64_t unit = 100000000U; unit > 0; unit /= 10) {
            put(static_cast<char>('0' + part / unit));
            part %= unit;
        }
    }
    // A JSON string. Bytes beyond ASCII are written as the characters of Latin-1: names of files
    // need not be UTF-8.
    void put_string(const char* text) {
        put('"');
        for (; *text != 0; ++text) {
            const auto c = static_cast<unsigned char>(*text);
            if (c == '"' || c == '\\') {
                put('\\');
                put(*text);
            } else if (c < 0x20 || c >= 0x7f) {
                put("\\u00");
                put("0123456789abcdef"[c >> 4]);
                put("0123456789abcdef"[c & 15]);
            } else {
                put(*text);
            }
        }
        put('"');
    }
    [[nodiscard]] bool whole() const { return whole_; }
    [[nodiscard]] std::size_t size() const { return at_; }
    [[nodiscard]] const char* data() const { return buffer_; }

   private:
    char* buffer_;
    std::size_t size_, at_ = 0;
    bool whole_ = true;
};

}  // namespace twinrun::interpose
