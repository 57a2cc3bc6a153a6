// Slices of work whose data must be read first: reads of some slices overlap the work on others, on
// all cores, in bounded memory. Everything that is read in bulk goes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "platform/file_io.hpp"
#include "source/stream_team.hpp"

namespace twinrun {

struct StreamOptions {
    int threads = 0;                          // 0: all cores of this process
    std::uint64_t memory_bytes = 1ULL << 30;  // for buffers
    ReadBackend io = ReadBackend::automatic;
    // Threads, queues and buffers of earlier runs, which one thread gives to one run at a time;
    // null: each run makes its own.
    StreamTeam* team = nullptr;
    // Called now and then by the thread that called run_slices, with the slices done: false stops
    // the work. Where the team's workers are shared, one of them calls it.
    std::function<bool(std::uint64_t done, std::uint64_t total)> poll;
};

struct StreamStats {
    std::uint64_t bytes_read = 0;
    const char* io = "none";  // the queue that was used
    int threads = 1;
};

class SliceJob {
   public:
    virtual ~SliceJob() = default;
    [[nodiscard]] virtual std::uint64_t slices() const = 0;
    // Buffer that any slice needs at most.
    [[nodiscard]] virtual std::size_t buffer_bytes() const = 0;
    // About how many bytes all slices read: decides whether threads pay.
    [[nodiscard]] virtual std::uint64_t total_bytes() const = 0;
    // True if reads wait for storage: then even little work goes through a queue that has many
    // under way.
    [[nodiscard]] virtual bool on_storage() const { return false; }
    // At most this many buffers a worker; 0: the stream's choice.
    [[nodiscard]] virtual std::size_t most_slots() const { return 0; }
    // Memory for all buffers of a worker, aligned to kDirectAlignment, valid as long as the job:
    // page-locked, say. Null: the stream takes its own. Called by the thread that called
    // run_slices.
    virtual Result<std::byte*> allocate(int /*worker*/, std::size_t /*bytes*/) { return nullptr; }
    // Adds the reads of a slice into its buffer (aligned to kDirectAlignment). Called once a slice,
    // by any worker.
    virtual Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) = 0;
    // The reads are done. Called by the worker that planned it; at most one call a worker at a
    // time.
    virtual Result<> process(std::uint64_t slice, std::byte* buffer, int worker) = 0;

    // For work that goes on elsewhere (on a device), called in place of process(): true if it is
    // under way and still needs the buffer. Then finish() waits for it: called by the same worker,
    // once for each such slice, in the order in which they began, and also where an error ends the
    // run. begin() that fails leaves nothing under way.
    virtual Result<bool> begin(std::uint64_t slice, std::byte* buffer, int worker) {
        TWR_CHECK(process(slice, buffer, worker));
        return false;
    }
    virtual Result<> finish(std::uint64_t /*slice*/, std::byte* /*buffer*/, int /*worker*/) {
        return success();
    }
    // How many slices of one worker may be under way at once.
    [[nodiscard]] virtual std::size_t most_under_way() const { return 1; }
};

[[nodiscard]] int worker_count(const StreamOptions& options);

// Runs all slices; the first error ends it (slices under way are finished or abandoned, never half
// counted).
Result<StreamStats> run_slices(SliceJob& job, const StreamOptions& options);

// run(piece, options) for each piece, of so many bytes each. Small ones are divided over threads,
// each of which runs a piece alone; the others follow one by one, each on all threads. in_order:
// pieces that must not run at the same time, and in their order. The first error ends all.
// options.poll is called with pieces, and within large ones as run_slices does.
Result<> run_pieces(std::span<const std::uint64_t> bytes, const std::vector<bool>& in_order,
                    const StreamOptions& options,
                    const std::function<Result<>(std::size_t piece, const StreamOptions& options)>& run);

}  // namespace twinrun
