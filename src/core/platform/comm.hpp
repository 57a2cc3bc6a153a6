// The other processes of a run. The core knows them only through this: a process alone by itself,
// MPI through a table of functions that the application's side hands in (include/twinrun/twinrun.h:
// twr_comm), so that nothing here links to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.hpp"

namespace twinrun {

class FileSystem;

// Which ranks write their data of a step into one file.
enum class SharedFiles : std::uint8_t {
    off,   // none: each has its own
    one,   // all
    node,  // those of one node
};

// The beginning of the names of such files, and of all that is made on the way to them.
inline constexpr const char* kSharedPrefix = "group.";
// Its name, or the beginning of it: several are "group.data.00000" and on.
inline constexpr const char* kSharedFile = "group.data";

// This rank's part of a step's shared file.
struct SharedPart {
    // Number of the step among all steps that were to be written: equal on all ranks, ascending.
    std::uint64_t ordinal = 0;
    const char* folder = "";           // the step's, as a path
    std::span<const std::byte> bytes;  // a multiple of 4096 of them
    // false: this rank cannot write its part; then no rank writes
    bool well = true;
};

// Where it went.
struct SharedPlace {
    std::uint64_t offset = 0;
    std::uint64_t file_bytes = 0;
};

// All functions are collective: every rank calls them, in the same order. Not thread-safe, except
// that write_shared may be called while another thread calls another function. After an error the
// other ranks may wait for ever: the transport decides what happens then (MPI ends the job by
// default).
class Comm {
   public:
    virtual ~Comm() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    // Each value becomes its minimum over all ranks.
    virtual Result<> minimum(std::span<std::int64_t> values) = 0;
    // Rank 0's bytes, everywhere.
    virtual Result<> broadcast(std::span<std::byte> bytes) = 0;

    // Before the first write_shared. background: write_shared will run on another thread. The name
    // of this rank's file in each step's folder; it begins with kSharedPrefix. The same for all of
    // a run. Errors: of this rank; the caller agrees.
    virtual Result<std::string> prepare_shared(SharedFiles files, bool background);
    // The bytes of all ranks into their files, which are whole and on storage under their names
    // when this returns, or are not there. Every rank calls it once a step, well or not. Errors:
    // the same step fails on every rank. Ranks whose ordinals differ: those of the lowest fail, and
    // the others go on to wait for them.
    virtual Result<SharedPlace> write_shared(FileSystem& system, const SharedPart& part);
};

// One process.
class SelfComm final : public Comm {
   public:
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int size() const override { return 1; }
    Result<> minimum(std::span<std::int64_t>) override { return success(); }
    Result<> broadcast(std::span<std::byte>) override { return success(); }
    Result<std::string> prepare_shared(SharedFiles files, bool background) override;
    Result<SharedPlace> write_shared(FileSystem& system, const SharedPart& part) override;
};

// A file of several parts, one behind the other: written under a temporary name, synced, renamed,
// and its folder synced.
Result<> write_parts(FileSystem& system, const std::string& folder, const std::string& name,
                     std::span<const std::span<const std::byte>> parts);

}  // namespace twinrun
