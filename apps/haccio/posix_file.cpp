// SPDX-License-Identifier: Apache-2.0
#include "haccio/posix_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include <system_error>

#include "haccio/method.hpp"

namespace haccio {

PosixFile::PosixFile(const std::string& path, Mode mode) : path_(path) {
    descriptor_ =
        ::open(path.c_str(), (mode == Mode::read ? O_RDONLY : O_WRONLY | O_CREAT) | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("cannot open it");
}

PosixFile::~PosixFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

void PosixFile::fail(const char* what) const {
    throw Failure(path_ + ": " + what + ": " + std::generic_category().message(errno));
}

void PosixFile::write(std::span<const std::byte> bytes, std::uint64_t offset) {
    while (!bytes.empty()) {
        const ssize_t done = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) fail("cannot write");
        bytes = bytes.subspan(static_cast<std::size_t>(done));
        offset += static_cast<std::uint64_t>(done);
    }
}

void PosixFile::read(std::span<std::byte> bytes, std::uint64_t offset) {
    while (!bytes.empty()) {
        const ssize_t done = ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) fail("cannot read");
        if (done == 0)
            throw Failure(path_ + ": ends at byte " + std::to_string(offset) + ", where " +
                          std::to_string(bytes.size()) + " more should be");
        bytes = bytes.subspan(static_cast<std::size_t>(done));
        offset += static_cast<std::uint64_t>(done);
    }
}

void PosixFile::sync() {
    if (::fsync(descriptor_) != 0) fail("cannot sync");
}

void PosixFile::close() {
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("cannot close it");
}

std::uint64_t PosixFile::size() const {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail("cannot find its size");
    return static_cast<std::uint64_t>(status.st_size);
}

double PosixFile::drop_cache() {
    sync();  // dirty pages stay
    if (const int error = ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); error != 0) {
        errno = error;
        fail("cannot be dropped from the page cache");
    }
    const std::uint64_t bytes = size();
    if (bytes == 0) return 0;
    void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (mapped == MAP_FAILED) fail("cannot be mapped");
    const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages((bytes + page - 1) / page);
    const int status = ::mincore(mapped, bytes, pages.data());
    ::munmap(mapped, bytes);
    if (status != 0) fail("the kernel does not report which part of it is in the page cache");
    const auto resident = std::count_if(pages.begin(), pages.end(), [](unsigned char x) { return x & 1; });
    return static_cast<double>(resident) / static_cast<double>(pages.size());
}

}  // namespace haccio
