#include "source/stream_team.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/large_pages.hpp"
#include "base/start_thread.hpp"

namespace twinrun {

Result<StreamMemory> StreamMemory::make(std::size_t bytes) {
    StreamMemory made;
    made.bytes_ = std::max<std::size_t>(bytes, 1);
    made.alignment_ = wants_large_pages(made.bytes_) ? kLargePage : kDirectAlignment;
    made.data_ = static_cast<std::byte*>(
        ::operator new (made.bytes_, std::align_val_t{made.alignment_}, std::nothrow));
    if (made.data_ == nullptr) {
        return Error{ErrorCode::out_of_memory,
                     "not enough memory for read buffers: set a smaller limit of memory"};
    }
    if (made.alignment_ == kLargePage) ask_for_large_pages(made.data_, made.bytes_);
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

Result<ReadQueue*> StreamPlace::queue(const ReadQueueOptions& options) {
    if (queue_ == nullptr || backend_ != options.backend || queue_->depth() != options.depth) {
        known_ = {};
        TWR_TRY(queue_, make_read_queue(options));
        backend_ = options.backend;
    }
    return queue_.get();
}

Result<std::byte*> StreamPlace::memory(std::size_t bytes) {
    if (memory_.data() == nullptr || memory_.bytes() < bytes) {
        // The kernel reads into the pages that it was told of, whatever has their addresses by
        // then.
        if (!known_.empty() && !queue_->register_buffers({})) queue_ = nullptr;
        known_ = {};
        memory_ = StreamMemory();
        TWR_TRY(memory_, StreamMemory::make(bytes));
    }
    return memory_.data();
}

Result<> StreamPlace::register_buffer(std::span<std::byte> buffer) {
    if (buffer.empty() && known_.empty()) return success();
    // Pinning pages again takes as long as it took first. Memory of others may have been given back
    // meanwhile, and be another's now.
    const bool is_ours = buffer.data() == memory_.data() && buffer.size() <= memory_.bytes();
    if (is_ours && known_.data() == buffer.data() && known_.size() == buffer.size()) return success();
    known_ = {};
    TWR_CHECK(queue_->register_buffers(std::span(&buffer, buffer.empty() ? 0 : 1)));
    known_ = buffer;
    return success();
}

void StreamPlace::settle() {
    if (queue_ == nullptr || queue_->outstanding() == 0) return;
    known_ = {};
    queue_ = nullptr;
}

StreamWorkers::StreamWorkers(int threads, std::size_t callers) {
    members_.reserve(static_cast<std::size_t>(threads));
    for (int worker = 0; worker < threads; ++worker) {
        try {
            auto member = std::make_unique<Member>();
            member->turns.reserve(callers);  // run() allocates nothing
            member->thread = start_thread([this, worker, at = member.get()] { serve(worker, *at); });
            members_.push_back(std::move(member));
        } catch (const std::exception&) {  // fewer do it
            break;
        }
    }
}

StreamWorkers::~StreamWorkers() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    begin_.notify_all();
    for (const auto& member : members_)
        member->thread.join();
}

void StreamWorkers::serve(int worker, Member& member) {
    std::unique_lock lock(mutex_);
    for (;;) {
        begin_.wait(lock, [&] { return stopping_ || !member.turns.empty(); });
        if (member.turns.empty()) return;
        Turn& turn = *member.turns.front();
        member.turns.erase(member.turns.begin());
        lock.unlock();
        (*turn.work)(worker);
        lock.lock();
        if (--turn.left == 0) turn.end.notify_one();
    }
}

void StreamWorkers::run(int workers, const std::function<void(int worker)>& work) {
    Turn turn{&work, workers, {}};
    std::unique_lock lock(mutex_);
    for (int worker = 0; worker < workers; ++worker)
        members_[static_cast<std::size_t>(worker)]->turns.push_back(&turn);
    begin_.notify_all();
    turn.end.wait(lock, [&] { return turn.left == 0; });
}

void StreamTeam::run(int workers, const std::function<void(int worker)>& work) {
    if (shared_ != nullptr) {
        shared_->run(workers, work);
        return;
    }
    while (places_.size() < static_cast<std::size_t>(workers))
        places_.push_back(std::make_unique<StreamPlace>());
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

}  // namespace twinrun
