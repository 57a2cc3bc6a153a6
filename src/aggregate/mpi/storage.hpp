// A rank's file while it is written or read: jobs that run beside the rank, and transfers that it waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun::aggregation {

enum class Backend : std::uint8_t { posix, uring, mpiio };
[[nodiscard]] const char* backend_name(Backend backend);
Result<Backend> backend_of(const std::string& name);
// An error where this build or this machine has not got it.
Result<> backend_usable(Backend backend);

// Bytes of memory and their place in the file.
struct Piece {
    std::uint64_t offset = 0;
    std::byte* bytes = nullptr;  // read from, or written to
    std::uint64_t count = 0;
};

enum class Mode : std::uint8_t { write, read };

// What the system says of a failed call, with the right code.
[[nodiscard]] Error file_error(const std::string& path, const std::string& what, int error_number);

// Jobs end in the order in which they were started.
class Storage {
   public:
    virtual ~Storage() = default;  // waits for what is under way
    // Jobs that have ended; once one failed, those behind it end without being tried.
    virtual std::uint64_t ended() = 0;
    // Takes a job: its pieces go to the file, or come from it; all, or it is an error. Its number counts from 1.
    virtual std::uint64_t start(std::vector<Piece> pieces) = 0;
    // Whether ended() must be asked for jobs to go on; otherwise `on_end` is called, by another thread.
    [[nodiscard]] virtual bool polls() const = 0;
    // Of jobs.
    [[nodiscard]] virtual std::optional<Error> error() = 0;
    [[nodiscard]] virtual double seconds() = 0;  // that jobs took
    // In the calling thread; neighbours in the file go in one call where they can.
    virtual Result<> transfer(std::span<const Piece> pieces) = 0;
    // After all jobs.
    virtual Result<> sync() = 0;
    virtual Result<> close() = 0;
};

// How a file is opened, which is there already.
struct Opening {
    Mode mode = Mode::read;
    bool sync_follows = false;  // what is written may go on to storage at once
    bool follow = true;         // a symbolic link; else that is an error
};

// on_end: may be called by another thread until the storage is gone.
Result<std::unique_ptr<Storage>> open_storage(Backend backend, const std::string& path, const Opening& how,
                                              std::function<void()> on_end);

}  // namespace twinrun::aggregation
