// What one run of slices leaves for the next one: threads that sleep, queues and buffers. So many
// small runs, one after another, start no thread and no queue each.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
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

class StreamTeam {
   public:
    StreamTeam() = default;
    StreamTeam(const StreamTeam&) = delete;
    StreamTeam& operator=(const StreamTeam&) = delete;

    // work(worker) for each worker below `workers`, on a thread each, as far as the system has
    // threads; the caller is worker 0. It must not throw.
    void run(int workers, const std::function<void(int worker)>& work);
    // The queue of a worker. Nothing is outstanding in it.
    Result<ReadQueue*> queue(int worker, const ReadQueueOptions& options);
    // Memory of so many bytes, aligned to kDirectAlignment, valid until the next call.
    Result<std::byte*> memory(std::size_t bytes);
    // Tells the queue of a worker where it reads to; empty: anywhere.
    Result<> register_buffer(int worker, std::span<std::byte> buffer);
    // At the end of a run: a queue that did not end all of its reads is given up.
    void settle();

   private:
    struct Queue {
        ReadBackend backend = ReadBackend::automatic;
        std::unique_ptr<ReadQueue> queue;
        bool knows_buffer = false;
    };
    void forget_buffers();

    StreamMemory memory_;  // outlives the queues
    std::vector<Queue> queues_;
    std::unique_ptr<Team> members_;  // null: the caller alone
    int most_ = 1;                   // that members_ was made for
};

}  // namespace twinrun
