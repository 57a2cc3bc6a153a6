// A file by its descriptor: what the back ends posix and uring stand on.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

#include "aggregate/mpi/storage.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

// The most bytes of one system or MPI call, whose counts are ints. Tests set a smaller limit.
std::uint64_t most_a_call();
// For messages: which transfer it was.
std::string place_text(Mode mode, std::uint64_t count, std::uint64_t offset);
Error ended_early(const std::string& path, std::uint64_t offset);

class Descriptor {
   public:
    Descriptor() = default;
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    Result<> adopt(const OpenFile& file, Mode mode);

    Result<> open(const std::string& path, const Opening& how);
    [[nodiscard]] int number() const { return number_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] Mode mode() const { return mode_; }
    [[nodiscard]] std::uint64_t shift() const { return shift_; }

    // Adjacent pieces share one call.
    Result<> transfer(std::span<const Piece> pieces) const;
    // Reads one piece, or what the file has of it. Returns the number of bytes.
    Result<std::uint64_t> read_to_end(const Piece& piece) const;

    Result<> sync() const;
    Result<> close();

   private:
    Result<> transfer_all(std::span<const Piece> pieces) const;

    ssize_t move(const iovec* vectors, int count, std::uint64_t offset) const;

    int number_ = -1;
    std::string path_;
    Mode mode_ = Mode::write;
    std::uint64_t shift_ = 0;
    bool sync_follows_ = false;
    bool zeros_ = false;  // behind the end of a file that is read
    bool borrowed_ = false;
};

}  // namespace twinrun::aggregation
