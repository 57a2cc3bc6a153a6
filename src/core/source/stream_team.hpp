// What one run of slices leaves for the next one: threads that sleep, queues and buffers. So many
// small runs, one after another, start no thread and no queue each.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/result.hpp"
#include "platform/file_io.hpp"
#include "platform/team.hpp"

namespace twinrun {

// Aligned memory, of large pages where there is much of it and the kernel has them: fewer faults,
// faster pinning.
class StreamMemory {
   public:
    static Result<StreamMemory> make(std::size_t bytes);
    StreamMemory() = default;
    StreamMemory(StreamMemory&& other) noexcept;
    StreamMemory& operator=(StreamMemory&& other) noexcept;
    ~StreamMemory();
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

   private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t alignment_ = 0;
};

// What a worker keeps from run to run. Used by its thread alone.
class StreamPlace {
   public:
    // Nothing is outstanding in it.
    Result<ReadQueue*> queue(const ReadQueueOptions& options);
    // Memory of so many bytes, aligned to kDirectAlignment, valid until the next call.
    Result<std::byte*> memory(std::size_t bytes);
    // Tells the queue where it reads to; empty: anywhere.
    Result<> register_buffer(std::span<std::byte> buffer);
    // At the end of a run: a queue that did not end all of its reads is given up.
    void settle();

   private:
    StreamMemory memory_;  // outlives the queue
    ReadBackend backend_ = ReadBackend::automatic;
    std::unique_ptr<ReadQueue> queue_;
    std::span<std::byte> known_;  // to the queue
};

// Threads that take the runs of several callers in turn: those that one run has no more slices for
// begin the next run, while others are still at its last ones.
class StreamWorkers {
   public:
    // So many threads, as far as the system has them, for so many callers at once.
    StreamWorkers(int threads, std::size_t callers);
    ~StreamWorkers();
    StreamWorkers(const StreamWorkers&) = delete;
    StreamWorkers& operator=(const StreamWorkers&) = delete;

    [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
    [[nodiscard]] StreamPlace& place(int worker) { return members_[static_cast<std::size_t>(worker)]->place; }
    // work(worker) for each worker below `workers`, each on its thread after the runs that were
    // handed in before; returns when all have returned. It must not throw.
    void run(int workers, const std::function<void(int worker)>& work);

   private:
    struct Turn {
        const std::function<void(int)>* work;
        int left;
        std::condition_variable end;
    };
    struct Member {
        std::vector<Turn*> turns;
        StreamPlace place;
        std::thread thread;
    };
    void serve(int worker, Member& member);

    std::mutex mutex_;
    std::condition_variable begin_;
    bool stopping_ = false;
    std::vector<std::unique_ptr<Member>> members_;
};

class StreamTeam {
   public:
    StreamTeam() = default;
    // Its workers are those of several teams, which run at the same time.
    explicit StreamTeam(StreamWorkers& shared) : shared_(&shared) {}
    StreamTeam(const StreamTeam&) = delete;
    StreamTeam& operator=(const StreamTeam&) = delete;

    // How many of so many workers there are at most.
    [[nodiscard]] int most(int workers) const {
        return shared_ == nullptr ? workers : std::min(workers, shared_->size());
    }
    // work(worker) for each worker below `workers`, on a thread each, as far as the system has
    // threads; the caller is worker 0, unless workers are shared. It must not throw.
    void run(int workers, const std::function<void(int worker)>& work);
    // Within run(): of a worker.
    [[nodiscard]] StreamPlace& place(int worker) {
        return shared_ == nullptr ? *places_[static_cast<std::size_t>(worker)] : shared_->place(worker);
    }
    // Outside of run(): of the caller.
    [[nodiscard]] StreamPlace& own() { return own_; }

   private:
    StreamWorkers* shared_ = nullptr;
    StreamPlace own_;
    std::vector<std::unique_ptr<StreamPlace>> places_;
    std::unique_ptr<Team> members_;  // null: the caller alone
    int most_ = 1;                   // that members_ was made for
};

}  // namespace twinrun
