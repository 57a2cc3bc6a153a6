// Shared by the parts of this library: failures and files.
#pragma once

#include <cstddef>
#include <string>

namespace twinrun::veloc {

// Thrown when a function of the interface fails, and caught at its boundary.
struct Failure {
    std::string message;
    // false: expected conditions, as that there is no checkpoint to restart from yet
    bool for_log = true;
};
[[noreturn]] void fail(std::string message);
// Throws with twinrun's error text unless the status is TWR_OK.
void require(int status);

std::string system_words(int number);

// A descriptor, closed by the destructor.
class File {
   public:
    explicit File(int descriptor) : descriptor_(descriptor) {}
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    [[nodiscard]] int get() const { return descriptor_; }

   private:
    int descriptor_;
};

// A file's bytes as memory.
class Mapping {
   public:
    explicit Mapping(const std::string& path);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    [[nodiscard]] void* data() const { return data_; }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

   private:
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// Writes the file completely under its name, or not at all. durable: it survives a crash of the
// machine.
void write_file(const std::string& path, const std::byte* data, std::size_t bytes, bool durable);

}  // namespace twinrun::veloc
