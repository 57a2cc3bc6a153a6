#include "veloc/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <twinrun/twinrun.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace twinrun::veloc {

namespace {

namespace fs = std::filesystem;

void write_all(int descriptor, const std::byte* data, std::size_t bytes, const std::string& path) {
    while (bytes != 0) {
        const ssize_t written = ::write(descriptor, data, std::min(bytes, std::size_t{1} << 30));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail(path + ": cannot be written: " + system_words(errno));
        data += written;
        bytes -= static_cast<std::size_t>(written);
    }
}

std::string random_digits() {
    std::uint64_t number = 0;
    // Reached in sandboxes only.
    if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
        number = static_cast<std::uint64_t>(::getpid()) * 0x9e3779b97f4a7c15ULL;
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016" PRIx64, number);
    return digits;
}

}  // namespace

void fail(std::string message) { throw Failure{std::move(message), true}; }

void require(int status) {
    if (status != TWR_OK) fail(twr_error_message());
}

std::string system_words(int number) { return std::generic_category().message(number); }

File::~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

Mapping::Mapping(const std::string& path) {
    const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat facts = {};
    if (file.get() < 0 || ::fstat(file.get(), &facts) != 0)
        fail(path + ": the file of this checkpoint cannot be opened: " + system_words(errno));
    if (!S_ISREG(facts.st_mode)) fail(path + ": the file of this checkpoint is not a regular file");
    bytes_ = static_cast<std::size_t>(facts.st_size);
    if (bytes_ == 0) return;
    data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data_ == MAP_FAILED) {
        data_ = nullptr;
        fail(path + ": cannot be read: " + system_words(errno));
    }
}

Mapping::~Mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

void write_file(const std::string& path, const std::byte* data, std::size_t bytes, bool durable) {
    // A new name, so that no existing file is replaced.
    const std::string temporary = path + ".twinrun-" + random_digits();
    const File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file.get() < 0) fail(temporary + ": cannot be made: " + system_words(errno));
    try {
        write_all(file.get(), data, bytes, temporary);
        if (durable && ::fsync(file.get()) != 0)
            fail(temporary + ": cannot be synced: " + system_words(errno));
        if (::rename(temporary.c_str(), path.c_str()) != 0)
            fail(path + ": cannot be given its name: " + system_words(errno));
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
    if (!durable) return;
    const std::string folder = fs::path(path).parent_path().string();
    const File parent(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent.get() < 0 || ::fsync(parent.get()) != 0)
        fail(folder + ": cannot be synced: " + system_words(errno));
}

}  // namespace twinrun::veloc
