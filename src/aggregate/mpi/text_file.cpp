#include "aggregate/mpi/text_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

#include "aggregate/mpi/storage.hpp"

namespace twinrun::aggregation {

namespace {

class Open {
   public:
    explicit Open(int number) : number_(number) {}
    ~Open() {
        if (number_ >= 0) ::close(number_);
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    [[nodiscard]] int number() const { return number_; }

   private:
    int number_;
};

Result<std::string> whole_text(int file, const std::string& name, std::uint64_t bytes) {
    std::string text(bytes, '\0');
    std::size_t at = 0;
    while (at < text.size()) {
        const ssize_t got = ::read(file, text.data() + at, text.size() - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return file_error(name, "read", errno);
        if (got == 0) break;
        at += static_cast<std::size_t>(got);
    }
    text.resize(at);
    return text;
}

Result<> put_text(int file, const std::string& name, const std::string& text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const ssize_t done = ::write(file, text.data() + at, text.size() - at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return file_error(name, "write", done < 0 ? errno : EIO);
        at += static_cast<std::size_t>(done);
    }
    return success();
}

// Makes a file with a new name, and returns the name.
Result<std::string> own_file(const std::string& name, int& file) {
    for (int attempt = 0; attempt < 100; ++attempt) {
        timespec now{};
        ::clock_gettime(CLOCK_REALTIME, &now);
        std::string own = name + "." + std::to_string(::getpid()) + "-" + std::to_string(now.tv_sec) + "-" +
                          std::to_string(now.tv_nsec);
        file = ::open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (file >= 0) return own;
        if (errno != EEXIST) return file_error(own, "create", errno);
    }
    return file_error(name, "create", EEXIST);
}

Result<> put_in_place(const std::string& from, const std::string& to, bool replace) {
    int result = -1;
    if (!replace) result = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
    // A file system without RENAME_NOREPLACE: whether `to` exists was checked before this write.
    if (replace || (result != 0 && (errno == EINVAL || errno == ENOSYS)))
        result = ::rename(from.c_str(), to.c_str());
    if (result != 0) return file_error(to, "rename of '" + from + "' to it", errno);
    return success();
}

}  // namespace

Error not_ours(const std::string& name, const std::string& why, const char* what) {
    return Error{ErrorCode::invalid_argument,
                 name + ": is not " + what + " (" + why +
                     "), and is left alone: choose another path, or move it away"};
}

Result<> sync_folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
    const Open file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (file.number() < 0) return file_error(folder, "open", errno);
    if (::fsync(file.number()) != 0) return file_error(folder, "fsync", errno);
    return success();
}

Result<std::optional<std::string>> text_of_file(const std::string& name, std::uint64_t most,
                                                const char* what) {
    const Open file(::open(name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file.number() < 0) {
        if (errno == ENOENT || errno == ENOTDIR) return std::optional<std::string>();
        if (errno == ELOOP) return not_ours(name, "a symbolic link", what);
        return file_error(name, "open", errno);
    }
    struct stat about {};
    if (::fstat(file.number(), &about) != 0) return file_error(name, "stat", errno);
    if (!S_ISREG(about.st_mode)) return not_ours(name, "no regular file", what);
    if (static_cast<std::uint64_t>(about.st_size) > most) return not_ours(name, "too large", what);
    TWR_TRY(std::string text, whole_text(file.number(), name, static_cast<std::uint64_t>(about.st_size)));
    return std::optional<std::string>(std::move(text));
}

Result<> put_text_file(const std::string& name, const std::string& text, bool replace, bool sync) {
    int number = -1;
    TWR_TRY(const std::string own, own_file(name, number));
    const auto finish = [&]() -> Result<> {
        const Open file(number);
        TWR_CHECK(put_text(number, own, text));
        if (sync && ::fsync(number) != 0) return file_error(own, "fsync", errno);
        return put_in_place(own, name, replace);
    };
    if (auto done = finish(); !done) {
        ::unlink(own.c_str());
        return done;
    }
    return sync ? sync_folder_of(name) : success();
}

}  // namespace twinrun::aggregation
