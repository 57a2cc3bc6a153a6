// The file of a rank while it is written or read: jobs in the background, and transfers that the
// caller waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregate/plan/stripes.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

enum class Backend : std::uint8_t { posix, uring, mpiio };
[[nodiscard]] const char* backend_name(Backend backend);
Result<Backend> backend_of(const std::string& name);
// An error if this build or this machine lacks it.
Result<> backend_usable(Backend backend);

// Bytes of memory and their place in the file.
struct Piece {
    std::uint64_t offset = 0;
    std::byte* bytes = nullptr;  // read from, or written to
    std::uint64_t count = 0;
};

enum class Mode : std::uint8_t { write, read };

// An error from errno, with the code that fits.
[[nodiscard]] Error file_error(const std::string& path, const std::string& what, int error_number);

// Jobs end in the order in which they were started.
class Storage {
   public:
    virtual ~Storage() = default;  // waits for jobs under way
    // Number of jobs that have ended. After a failed job, later ones end without being tried.
    virtual std::uint64_t ended() = 0;
    // Starts a job that writes all pieces to the file, or reads them. Returns its number, from 1.
    virtual std::uint64_t start(std::vector<Piece> pieces) = 0;
    // True: jobs make progress only in calls of ended(). False: another thread calls `on_end`.
    [[nodiscard]] virtual bool polls() const = 0;
    // The first error of a job.
    [[nodiscard]] virtual std::optional<Error> error() = 0;
    [[nodiscard]] virtual double seconds() = 0;  // the total time of jobs
    // Writes or reads in the calling thread. Adjacent pieces of the file share one system call
    // where possible.
    virtual Result<> transfer(std::span<const Piece> pieces) = 0;
    // Call these after all jobs have ended.
    virtual Result<> sync() = 0;
    virtual Result<> close() = 0;
};

// How an existing file is opened.
struct Opening {
    Mode mode = Mode::read;
    bool sync_follows = false;  // a sync comes at the end: the system may begin to write at once
    bool follow = true;         // true: follows a symbolic link; false: a link is an error
};

// A whole file in stripes over files that are open, and stay open.
struct StripedFiles {
    StripeCut stripes;
    std::vector<int> numbers;
    std::vector<std::string> paths;  // for messages
};

// A file that is open already, and stays open. Offsets of pieces count from `shift` on.
struct OpenFile {
    int number = -1;
    std::string path;  // for messages
    std::uint64_t shift = 0;
    bool zeros = false;  // bytes behind the end are read as zeros; otherwise they are an error
    // In place of `number`; must stay until the storage is destroyed. By the back end posix alone.
    const StripedFiles* striped = nullptr;
};
// on_end: another thread may call it until the storage is destroyed. Errors: unsupported: a back
// end that opens files itself.
Result<std::unique_ptr<Storage>> storage_of(Backend backend, const OpenFile& file, Mode mode,
                                            std::function<void()> on_end);

// Files that are read as if they lay one behind the other.
struct SubFiles {
    std::vector<std::string> paths;
    std::vector<std::uint64_t> ends;  // of each, in the stream of all
};
// Opens each file when a piece of it is read first. files must stay until the storage is destroyed.
Result<std::unique_ptr<Storage>> open_sub_files(const SubFiles& files, std::function<void()> on_end);

// on_end: as above.
Result<std::unique_ptr<Storage>> open_storage(Backend backend, const std::string& path, const Opening& how,
                                              std::function<void()> on_end);

}  // namespace twinrun::aggregation
