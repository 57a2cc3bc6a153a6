// Files: batched asynchronous reads, and writes that are either whole or not there.
//
// Reading: a ReadQueue belongs to one thread. Requests go in by submit(), completions come out by
// wait(), in any order. Two implementations behind one interface: io_uring (registered buffers
// where it can, deep queue), and a pool of threads that call pread, for kernels and containers that
// forbid io_uring. A completion is checked, always: short reads are continued by the queue itself,
// the end of the file before the last byte asked for is an error.
//
// Writing: every change to disk goes through FileSystem, so that tests can inject faults and lose
// unsynced writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "platform/held_folder.hpp"
#include "platform/new_files.hpp"
#include "platform/remote_files.hpp"

namespace twinrun {

// Offsets, lengths and addresses of O_DIRECT reads.
inline constexpr std::size_t kDirectAlignment = 4096;

// How many files of one kind may stay open to be used again: a part of what this process may have.
[[nodiscard]] std::size_t most_open_files();

// Identifies the content of a file without reading it.
struct FileStamp {
    std::uint64_t size = 0;
    std::int64_t mtime_ns = 0;
    bool operator==(const FileStamp&) const = default;
};

// A file open for reading. Thread-safe after open: all use is positional. Holds one descriptor for
// the page cache and, where the file system has it, opens a second one with O_DIRECT on demand.
class InputFile {
   public:
    // most_in_memory: a file of at most so many bytes is read at once, and closed. Reads then copy
    // what was read. folder: where the path may be looked up; null: none is held.
    static Result<std::shared_ptr<InputFile>> open(const std::string& path, std::uint64_t most_in_memory = 0,
                                                   const HeldFolder* folder = nullptr);
    // Bytes that are on no file system: `read` brings them when they are asked for. name: for
    // messages.
    static std::shared_ptr<InputFile> elsewhere(std::string name, std::uint64_t bytes, RangeReader read);
    ~InputFile();
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

    const std::string& path() const { return path_; }
    const FileStamp& stamp() const { return stamp_; }
    std::uint64_t size() const { return stamp_.size; }
    int descriptor() const { return descriptor_; }  // -1: all bytes are in memory, or elsewhere
    // Whether it is an object elsewhere, which has no descriptor, and is read by ranges.
    bool remote() const { return reader_ != nullptr; }
    // Whether all bytes were read when it was opened: read_at() is what reads them, and no queue is
    // needed.
    bool in_memory() const { return content_ != nullptr; }
    std::span<const std::byte> content() const {
        return {content_.get(), in_memory() ? static_cast<std::size_t>(size()) : 0};
    }
    // The descriptor for direct reads, or -1 where the file system refuses O_DIRECT.
    int direct_descriptor();
    // Share of up to `samples` evenly spread pages of [offset, offset + bytes) that lie in the page
    // cache: 0 to 1.
    double cached_share(std::uint64_t offset, std::uint64_t bytes, int samples = 64) const;
    // Tells the kernel that these bytes will be read soon: storage works on them meanwhile. Never
    // blocks, never fails.
    void will_need(std::uint64_t offset, std::uint64_t bytes) const;
    // Synchronous read of exactly `to.size()` bytes.
    Result<> read_at(std::uint64_t offset, std::span<std::byte> to) const;

   private:
    InputFile() = default;
    std::string path_;
    FileStamp stamp_;
    Result<> read_all();
    int descriptor_ = -1;
    int direct_ = -2;                            // -2: not tried yet
    std::unique_ptr<std::byte[]> content_;       // null: not in memory
    std::shared_ptr<const RangeReader> reader_;  // of an object elsewhere
    struct Lock;
    std::unique_ptr<Lock> lock_;
};

struct ReadRequest {
    InputFile* file = nullptr;  // outlives the request
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::byte* to = nullptr;
    // O_DIRECT: offset, bytes and `to` are multiples of kDirectAlignment; a last read may pass the
    // end of the file. Where the file system has no O_DIRECT, the same request goes through the
    // page cache.
    bool direct = false;
    // How many bytes must come for success (the end of the file may cut a direct read short); 0:
    // all.
    std::size_t at_least = 0;
    std::size_t skip = 0;   // bytes at the begin to leave out: they were read for alignment only
    std::uint64_t tag = 0;  // comes back with the completion; need not be unique

    [[nodiscard]] std::size_t needed() const { return (at_least != 0 ? at_least : bytes) - skip; }
};

// Brings what a request needs, at once, in the calling thread.
Result<> read_now(const ReadRequest& request);

struct ReadCompletion {
    std::uint64_t tag = 0;
    std::size_t bytes = 0;       // that were read
    std::optional<Error> error;  // names file and offset
};

class ReadQueue {
   public:
    // Drops what has not started, waits for what is under way: buffers must outlive it.
    virtual ~ReadQueue() = default;
    virtual const char* name() const = 0;  // "io_uring" or "pread"
    virtual std::size_t depth() const = 0;
    virtual std::size_t outstanding() const = 0;
    // Tells where later requests will read to, so that the kernel need not pin that memory for
    // every read. Never needed, and without effect where the kernel refuses. Replaces the buffers
    // of an earlier call; nothing may be outstanding; the buffers outlive the queue.
    virtual Result<> register_buffers(std::span<const std::span<std::byte>> /*buffers*/) { return success(); }
    // Takes all requests, or none and returns an error (a request without meaning, no memory).
    // Those beyond the depth wait inside the queue. What goes wrong with a single read comes with
    // its completion.
    virtual Result<> submit(std::span<const ReadRequest> requests) = 0;
    // Blocks until at least `at_least` (or all outstanding, if fewer) completions are there;
    // appends them, and any more that are there, to `out`. 0 does not block.
    virtual Result<> wait(std::size_t at_least, std::vector<ReadCompletion>& out) = 0;
};

enum class ReadBackend { automatic, uring, pread };

struct ReadQueueOptions {
    // automatic: what TWINRUN_IO=uring|pread says; without it io_uring if the kernel allows it,
    // otherwise pread. uring and pread are forced: an error where they are not available.
    ReadBackend backend = ReadBackend::automatic;
    std::size_t depth = 64;  // reads under way at once; the pread pool has one a thread
    int threads = 4;         // of the pread pool
};

Result<std::unique_ptr<ReadQueue>> make_read_queue(const ReadQueueOptions& options = {});
bool uring_available();  // probed once

// ---- writing ----

// An open file that is being written. Whole or not there: create a temporary name, write, sync,
// close, rename to the final name, sync_folder.
class OutputFile {
   public:
    // Without a close() before it the file counts as abandoned: what create() made is removed
    // (unless it was renamed meanwhile), what open_append() opened stays as it is.
    virtual ~OutputFile() = default;
    // All bytes or an error. Thread-safe for disjoint ranges.
    virtual Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
    // Once it failed it fails for good: the kernel may have dropped the pages that it could not
    // write.
    virtual Result<> sync() = 0;
    // Gives the file a time of change, as its original has it: after the last write, before sync().
    // Where that cannot be, it keeps its own.
    virtual void set_time(std::int64_t mtime_ns) = 0;
    // The file's size is then the end of the last write, however much create() reserved. No sync.
    // Again: no effect.
    virtual Result<> close() = 0;
};

// Of what is made under a name of its own.
inline constexpr const char* kHiddenPrefix = ".twinrun-";

// All changes to storage. The posix one is the real one; tests wrap it to fail, cut short, or
// forget.
//
// Nothing here harms what its caller did not make: a new file is a new file, a name that is taken
// stays as it is, and neither the file nor the folder that it is in may be a symbolic link, which
// could lead anywhere. A caller whose folder was named by the user, and may well be a link, names
// it by its real_path().
class FileSystem {
   public:
    virtual ~FileSystem() = default;
    // New; reserves space where it can: a full disk shows here, and leaves no file behind.
    // Something of that name is there: an error (ErrorCode::invalid_argument).
    virtual Result<std::unique_ptr<OutputFile>> create(const std::string& path,
                                                       std::uint64_t expected_bytes) = 0;
    // Existing or new; write_at(size, …) appends.
    virtual Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t& size) = 0;
    // Atomic, of a file or a folder. Something is there under the new name: an error
    // (ErrorCode::invalid_argument). Survives a power cut after sync_folder of the parents.
    virtual Result<> rename(const std::string& from, const std::string& to) = 0;
    // Atomic, of a file, in the place of one that is there. For callers who know that they made
    // that one.
    virtual Result<> replace(const std::string& from, const std::string& to) = 0;
    virtual Result<> sync_folder(const std::string& path) = 0;
    // Like mkdir -p. Folders that it makes survive a power cut: only it knows which parents are to
    // be synced.
    virtual Result<> make_folders(const std::string& path) = 0;
    // A folder with an empty file in it, in a parent that is there: both, or nothing. false:
    // something of that name is there, and stays as it is. Survives a power cut.
    virtual Result<bool> make_marked_folder(const std::string& path, const std::string& marker) = 0;
    // A file; not there: success.
    virtual Result<> remove(const std::string& path) = 0;
    // Not empty, or not there: success.
    virtual Result<> remove_empty_folder(const std::string& path) = 0;
    virtual Result<> truncate(const std::string& path, std::uint64_t size) = 0;
    // To put files beside what is in a folder, which is there: new_files.hpp.
    virtual Result<std::unique_ptr<NewFiles>> open_new(const std::string& folder) {
        return open_new_files(folder);
    }
    // For changes to this folder alone, which is there: see anchored.hpp. Null: this file system
    // knows names only.
    virtual Result<std::unique_ptr<FileSystem>> anchored(const std::string& /*root*/) {
        return std::unique_ptr<FileSystem>();
    }
};

FileSystem& posix_file_system();

// Whether something has this name, be it a link that leads nowhere.
bool is_there(const std::string& path);
// The names in a folder, without "." and ".."; as far as it can be read. May throw std::bad_alloc,
// as directory_iterator may not: that one ends the program.
struct FolderEntry {
    std::string name;
    bool is_file = false;    // a regular one
    bool is_folder = false;  // links are neither
};
std::vector<FolderEntry> entries_of(const std::string& path);
// Absolute, and without symbolic links; what is not there yet stays as it is named.
std::string real_path(const std::string& path);
// A name for what becomes `path` once it is whole, that nothing else has:
// "x.twm.9f86d081884c7d65.tmp".
std::string temporary_name(const std::string& path);
std::string random_hex(int digits);  // from the system's random numbers

// Whether what has this name is a regular file, no link, that begins with these bytes.
bool begins_with(const std::string& path, std::span<const std::byte> head);
Result<FileStamp> stamp_of(const std::string& path, const HeldFolder* folder = nullptr);
// A time up to a second earlier, which depends on the name. Clocks of file systems move every few
// milliseconds: files that are written one after another often have the same time.
std::int64_t own_time(std::int64_t mtime_ns, const std::string& temporary);
// Closes a synced file, and gives it an own_time(). Returns what it has then. temporary: its path.
Result<FileStamp> close_at_own_time(OutputFile& file, const std::string& temporary);
// More than `limit` bytes: an error.
Result<std::vector<std::byte>> read_whole_file(const std::string& path, std::uint64_t limit);

}  // namespace twinrun
