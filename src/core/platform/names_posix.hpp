// Names relative to a folder's descriptor: whoever puts a link in the folder's place afterwards
// changes nothing. Shared by the files of file_io and new_files, for nobody else.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace twinrun::file_io {

// Closes what it has. AT_FDCWD stands for the program's own folder, and is not closed; -1 for
// nothing.
class Descriptor {
   public:
    explicit Descriptor(int value = -1) : value_(value) {}
    Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    ~Descriptor() {
        if (value_ >= 0) ::close(value_);
    }
    [[nodiscard]] int get() const { return value_; }

   private:
    int value_;
};
static_assert(AT_FDCWD < 0);

// A system call, again as long as a signal interrupts it.
template <class Call>
auto retrying(Call call) {
    decltype(call()) result;
    do {
        result = call();
    } while (result < 0 && errno == EINTR);
    return result;
}

// Opens, or with O_CREAT makes, a name in a folder; -1 and errno.
inline int open_at(int folder, const char* name, int flags, mode_t mode = 0) {
    return retrying([&] { return ::openat(folder, name, flags | O_CLOEXEC, mode); });
}

// 0, or what went wrong. Some network and user-space file systems have no such thing, and bring
// names to disk by themselves.
int sync_folder(int folder);

// Of files and folders: the new name must not be there (EEXIST). A file system that knows no such
// rename may know links, which never replace either; `last` says what to do where it has none of
// both: fail, or look first, and then rename, so that what comes in between is lost, which can only
// be an empty folder, or a file.
enum class LastResort { fail, look_first };
int rename_new(int from_folder, const char* from, int to_folder, const char* to, LastResort last);

}  // namespace twinrun::file_io
