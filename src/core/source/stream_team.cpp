#include "source/stream_team.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace twinrun {

namespace {
constexpr std::size_t kLargePage = 2 << 20;
}

Result<StreamMemory> StreamMemory::make(std::size_t bytes) {
    StreamMemory made;
    made.bytes_ = std::max<std::size_t>(bytes, 1);
    made.alignment_ = made.bytes_ >= 2 * kLargePage ? kLargePage : kDirectAlignment;
    made.data_ = static_cast<std::byte*>(
        ::operator new (made.bytes_, std::align_val_t{made.alignment_}, std::nothrow));
    if (made.data_ == nullptr) {
        return Error{ErrorCode::out_of_memory,
                     "not enough memory for read buffers: set a smaller limit of memory"};
    }
    if (made.alignment_ == kLargePage) static_cast<void>(::madvise(made.data_, made.bytes_, MADV_HUGEPAGE));
    return made;
}

StreamMemory::StreamMemory(StreamMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      alignment_(other.alignment_) {}

StreamMemory& StreamMemory::operator=(StreamMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(alignment_, other.alignment_);
    return *this;
}

StreamMemory::~StreamMemory() {
    if (data_ != nullptr) ::operator delete (data_, std::align_val_t{alignment_});
}

void StreamTeam::run(int workers, const std::function<void(int worker)>& work) {
    if (workers <= 1) {
        work(0);
        return;
    }
    if (workers > most_) {
        members_ = std::make_unique<Team>(workers);
        most_ = workers;
    }
    members_->run([&](int worker) {
        if (worker < workers) work(worker);
    });
}

Result<ReadQueue*> StreamTeam::queue(int worker, const ReadQueueOptions& options) {
    const auto at = static_cast<std::size_t>(worker);
    if (queues_.size() <= at) queues_.resize(at + 1);
    Queue& kept = queues_[at];
    if (kept.queue == nullptr || kept.backend != options.backend || kept.queue->depth() != options.depth) {
        TWR_TRY(kept.queue, make_read_queue(options));
        kept.backend = options.backend;
        kept.knows_buffer = false;
    }
    return kept.queue.get();
}

Result<std::byte*> StreamTeam::memory(std::size_t bytes) {
    if (memory_.data() == nullptr || memory_.bytes() < bytes) {
        forget_buffers();
        memory_ = StreamMemory();
        TWR_TRY(memory_, StreamMemory::make(bytes));
    }
    return memory_.data();
}

Result<> StreamTeam::register_buffer(int worker, std::span<std::byte> buffer) {
    Queue& kept = queues_[static_cast<std::size_t>(worker)];
    if (buffer.empty() && !kept.knows_buffer) return success();
    const auto count = static_cast<std::size_t>(buffer.empty() ? 0 : 1);
    TWR_CHECK(kept.queue->register_buffers(std::span(&buffer, count)));
    kept.knows_buffer = !buffer.empty();
    return success();
}

void StreamTeam::forget_buffers() {
    for (Queue& kept : queues_) {
        // The kernel reads into the pages that it was told of, whatever has their addresses by
        // then.
        if (kept.knows_buffer && !kept.queue->register_buffers({})) kept.queue = nullptr;
        kept.knows_buffer = false;
    }
}

void StreamTeam::settle() {
    for (Queue& kept : queues_) {
        if (kept.queue != nullptr && kept.queue->outstanding() != 0) kept = {};
    }
}

}  // namespace twinrun
