// SPDX-License-Identifier: Apache-2.0
// A file, through the operating system's own calls. All throw Failure, with the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace haccio {

class PosixFile {
   public:
    enum class Mode : std::uint8_t { read, write };
    // write: made where it is not there, never truncated
    PosixFile(const std::string& path, Mode mode);
    PosixFile(const PosixFile&) = delete;
    PosixFile& operator=(const PosixFile&) = delete;
    ~PosixFile();

    void write(std::span<const std::byte> bytes, std::uint64_t offset);
    // All of it, or a failure.
    void read(std::span<std::byte> bytes, std::uint64_t offset);
    void sync();
    void close();
    [[nodiscard]] std::uint64_t size() const;

    // Asks the kernel to drop the file from the page cache. Returns the share that is still there.
    double drop_cache();

   private:
    [[noreturn]] void fail(const char* what) const;

    std::string path_;
    int descriptor_ = -1;
};

}  // namespace haccio
