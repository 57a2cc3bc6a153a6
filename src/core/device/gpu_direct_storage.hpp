// GPUDirect Storage: from a file straight into device memory, without a buffer on the host.
// NVIDIA's libcufile.so.0 is looked for and opened at run time; nothing is needed to build. Where
// anything refuses, callers read through the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/result.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

struct DirectStorageFacts {
    bool available = false;  // the library is there and its driver could be opened
    std::string library;     // as it was opened
    std::string reason;      // why not; or, where it is, what is known to make it slow
};
// Opens the library and its driver at the first call, which takes tenths of a second.
const DirectStorageFacts& probe_direct_storage();

// A file that devices read from. Thread-safe.
class DirectStorageFile {
   public:
    // Errors (unsupported): no library, no O_DIRECT, or a file system that it refuses.
    static Result<std::unique_ptr<DirectStorageFile>> open(InputFile& file);
    ~DirectStorageFile();
    DirectStorageFile(const DirectStorageFile&) = delete;
    DirectStorageFile& operator=(const DirectStorageFile&) = delete;
    // Bytes from `offset` of the file to memory + to (device memory, and the beginning of its
    // allocation). Blocks. At least `at_least` bytes come, or it is an error (damaged: the file
    // ends before).
    Result<> read(std::byte* memory, std::size_t to, std::uint64_t offset, std::size_t bytes,
                  std::size_t at_least);

   private:
    DirectStorageFile(InputFile& file, void* handle) : file_(file), handle_(handle) {}
    InputFile& file_;
    void* handle_;
};

// Tells the library that device memory will be read into many times. Never needed: refused, reads
// still work.
class DirectStorageBuffer {
   public:
    DirectStorageBuffer() = default;
    DirectStorageBuffer(std::byte* memory, std::size_t bytes);
    ~DirectStorageBuffer();
    DirectStorageBuffer(DirectStorageBuffer&& other) noexcept : memory_(other.memory_) {
        other.memory_ = nullptr;
    }
    DirectStorageBuffer& operator=(DirectStorageBuffer&& other) noexcept {
        std::swap(memory_, other.memory_);
        return *this;
    }

   private:
    std::byte* memory_ = nullptr;
};

}  // namespace twinrun
