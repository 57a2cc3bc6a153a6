// Reads through io_uring: one ring a queue, built once.
//
// Reads of cached pages are done inside the submitting call, at the cost of a pread; others go to
// the device, and come back by wait(). IOSQE_ASYNC, which hands a read to a kernel thread, is for
// the rare read that the kernel could not start without blocking: for cached pages the detour costs
// more than the copy.

#include "platform/file_io_internal.hpp"

#if defined(TWINRUN_HAVE_URING) && TWINRUN_HAVE_URING

#include <liburing.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <new>

namespace twinrun::file_io {

namespace {

constexpr std::size_t kDeepest = 4096;
// The kernel's limit on one registered buffer.
constexpr std::size_t kLargestBuffer = std::size_t{1} << 30;
// How often in a row a kernel without memory for a single request is asked again.
constexpr int kMostRefusals = 10000;
// Marks the answers to cancellations; reads are marked by their slots.
constexpr std::uint64_t kCancelling = ~std::uint64_t{0};

Error unavailable(int error_number) {
    return say(ErrorCode::unsupported, [&] {
        char buffer[256];
        std::string why = ::strerror_r(error_number, buffer, sizeof buffer);
        if (error_number == EPERM || error_number == ENOSYS || error_number == EACCES) {
            why += ": the kernel, its setting io_uring_disabled, or the container forbids it";
        } else if (error_number == ENOMEM) {
            why += ", perhaps because the limit of locked memory is too low (ulimit -l)";
        }
        return "io_uring is not available: " + why + "; use TWINRUN_IO=pread";
    });
}

// A ring's memory may be given to another thread's next ring. liburing maps and unmaps by system
// calls of its own, which ThreadSanitizer does not see; this tells it that the one was over before
// the other began.
std::atomic<unsigned> ring_changes{0};

void close_ring(io_uring* ring) {
    ring_changes.fetch_add(1, std::memory_order_acq_rel);
    ::io_uring_queue_exit(ring);
}

// 0 or minus errno.
int open_ring(unsigned entries, io_uring* ring) {
    // COOP_TASKRUN (Linux 5.19): completions do not interrupt the caller, who collects them in
    // wait() anyway. No SINGLE_ISSUER: a queue may be made in one thread and handed to another.
    for (const unsigned flags : {unsigned{IORING_SETUP_COOP_TASKRUN}, 0U}) {
        const int result = ::io_uring_queue_init(entries, ring, flags);
        ring_changes.fetch_add(1, std::memory_order_acq_rel);
        if (result != -EINVAL) return result;
    }
    return -EINVAL;
}

class UringQueue final : public ReadQueue {
   public:
    explicit UringQueue(std::size_t depth) : slots_(depth), depth_(depth), owner_(::getpid()) {
        free_.reserve(depth);
        again_.reserve(depth);
        for (std::size_t i = depth; i-- > 0;)
            free_.push_back(static_cast<std::uint32_t>(i));
    }

    ~UringQueue() override {
        if (!open_) return;
        // In a forked child the ring is the parent's: its completions are not ours to take.
        if (owner_ == ::getpid()) finish();
        close_ring(&ring_);
    }

    Result<> open() {
        const int result = open_ring(static_cast<unsigned>(depth_), &ring_);
        if (result != 0) return unavailable(-result);
        open_ = true;
        return success();
    }

    const char* name() const override { return "io_uring"; }
    std::size_t depth() const override { return depth_; }
    std::size_t outstanding() const override { return outstanding_; }

    Result<> register_buffers(std::span<const std::span<std::byte>> buffers) override try {
        if (owner_ != ::getpid()) return used_after_fork();
        if (outstanding_ != 0) {
            return Error{ErrorCode::invalid_argument,
                         "buffers cannot change under reads; wait for all of them first"};
        }
        if (!buffers_.empty()) ::io_uring_unregister_buffers(&ring_);
        buffers_.clear();
        std::vector<iovec> pinned;
        for (const auto& buffer : buffers) {
            for (std::size_t at = 0; at < buffer.size(); at += kLargestBuffer) {
                pinned.push_back({buffer.data() + at, std::min(buffer.size() - at, kLargestBuffer)});
            }
        }
        std::sort(pinned.begin(), pinned.end(), [](const iovec& a, const iovec& b) {
            return reinterpret_cast<std::uintptr_t>(a.iov_base) <
                   reinterpret_cast<std::uintptr_t>(b.iov_base);
        });
        if (pinned.empty()) return success();
        // Refused (limit on locked memory, memory of another kind): reads pin their pages one by
        // one, as ever.
        if (::io_uring_register_buffers(&ring_, pinned.data(), static_cast<unsigned>(pinned.size())) == 0) {
            buffers_ = std::move(pinned);
        }
        return success();
    } catch (const std::bad_alloc&) {
        return out_of_memory("io_uring queue");
    }

    Result<> submit(std::span<const ReadRequest> requests) override {
        if (owner_ != ::getpid()) return used_after_fork();
        for (const auto& request : requests)
            TWR_CHECK(check_request(request));
        const std::size_t before = waiting_.size();
        try {
            finished_.reserve(outstanding_ + requests.size());
            for (const auto& request : requests) {
                if (request.bytes != 0) waiting_.push_back(request);
            }
        } catch (const std::bad_alloc&) {
            while (waiting_.size() > before)
                waiting_.pop_back();
            return out_of_memory("io_uring queue");
        }
        for (const auto& request : requests) {
            if (request.bytes == 0) finished_.push_back({request.tag, 0, std::nullopt});
        }
        outstanding_ += requests.size();
        // Requests that the kernel does not take now are submitted again by wait(), which reports
        // their errors.
        fill();
        if (::io_uring_sq_ready(&ring_) != 0) ::io_uring_submit(&ring_);
        return success();
    }

    Result<> wait(std::size_t at_least, std::vector<ReadCompletion>& out) override {
        if (owner_ != ::getpid()) return used_after_fork();
        const std::size_t enough = std::min(at_least, outstanding_);
        collect();
        fill();
        int refusals = 0;
        while (finished_.size() < enough) {
            std::size_t still = std::min(enough - finished_.size(), in_flight());
            // Others queue for a place: come back early enough to keep the device busy.
            if (!waiting_.empty()) still = std::min(still, std::max<std::size_t>(depth_ / 8, 1));
            const int result = ::io_uring_submit_and_wait(&ring_, static_cast<unsigned>(still));
            if (result < 0 && result != -EINTR) {
                const bool passing = result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
                if (!passing || ++refusals > kMostRefusals) {
                    return system_error("io_uring queue", "wait for reads", -result);
                }
                // Requests under way free memory when they complete.
                io_uring_cqe* first = nullptr;
                if (in_kernel() == 0 || ::io_uring_wait_cqe(&ring_, &first) != 0) ::sched_yield();
            } else {
                refusals = 0;
            }
            collect();
            fill();
        }
        // Keep the device busy while the caller works on what we return.
        if (::io_uring_sq_ready(&ring_) != 0) {
            ::io_uring_submit(&ring_);
        } else if (enough == 0 && in_flight() != 0) {
            ::io_uring_get_events(&ring_);
        }
        if (enough == 0) collect();
        const std::size_t count = finished_.size();
        TWR_CHECK(deliver(finished_, out));  // without memory they stay for the next call
        outstanding_ -= count;
        return success();
    }

   private:
    // Reads with an entry in the submission ring or in the kernel.
    std::size_t in_flight() const { return depth_ - free_.size() - again_.size(); }
    std::size_t in_kernel() const { return in_flight() - ::io_uring_sq_ready(&ring_); }

    // Index of the registered buffer that holds the range, or -1.
    int registered(const std::byte* to, std::size_t bytes) const {
        const auto begin = reinterpret_cast<std::uintptr_t>(to);
        auto after = std::upper_bound(buffers_.begin(), buffers_.end(), begin,
                                      [](std::uintptr_t address, const iovec& buffer) {
                                          return address < reinterpret_cast<std::uintptr_t>(buffer.iov_base);
                                      });
        if (after == buffers_.begin()) return -1;
        --after;
        const std::uintptr_t skipped = begin - reinterpret_cast<std::uintptr_t>(after->iov_base);
        if (skipped > after->iov_len || bytes > after->iov_len - skipped) return -1;
        return static_cast<int>(after - buffers_.begin());
    }

    // Before the ring goes: until a read has ended the kernel may write to its buffer. Reads that
    // would never end (the descriptor was closed by mistake and its number is a pipe's now) are
    // cancelled; the device's are waited for.
    void finish() {
        std::size_t coming = in_flight();
        if (coming == 0) return;
        for (std::size_t slot = 0; slot < depth_; ++slot) {
            io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
            if (entry == nullptr) {
                ::io_uring_submit(&ring_);
                entry = ::io_uring_get_sqe(&ring_);
                if (entry == nullptr) break;
            }
            ::io_uring_prep_cancel64(entry, slot, 0);
            ::io_uring_sqe_set_data64(entry, kCancelling);
            ++coming;
        }
        ::io_uring_submit(&ring_);
        // Each entry that the kernel took answers once, cancelled or not.
        for (coming -= ::io_uring_sq_ready(&ring_); coming > 0;) {
            io_uring_cqe* entry = nullptr;
            const int result = ::io_uring_wait_cqe(&ring_, &entry);
            if (result == -EINTR || result == -EAGAIN) continue;
            if (result != 0) return;  // the ring itself is broken: nothing will come
            ::io_uring_cqe_seen(&ring_, entry);
            --coming;
        }
    }

    bool prepare(std::uint32_t slot) {
        io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
        if (entry == nullptr) {
            ::io_uring_submit(&ring_);
            entry = ::io_uring_get_sqe(&ring_);
            if (entry == nullptr) return false;
        }
        const auto step = slots_[slot].next();
        const auto bytes = static_cast<unsigned>(step.bytes);
        const int buffer = registered(step.to, step.bytes);
        if (buffer >= 0) {
            ::io_uring_prep_read_fixed(entry, step.descriptor, step.to, bytes, step.offset, buffer);
        } else {
            ::io_uring_prep_read(entry, step.descriptor, step.to, bytes, step.offset);
        }
        if (slots_[slot].would_block()) ::io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
        ::io_uring_sqe_set_data64(entry, slot);
        return true;
    }

    // Moves unfinished reads, then new ones, into the submission ring as far as there is room.
    void fill() {
        while (!again_.empty()) {
            if (!prepare(again_.back())) return;
            again_.pop_back();
        }
        while (!waiting_.empty() && !free_.empty()) {
            const std::uint32_t slot = free_.back();
            slots_[slot] = ReadProgress(waiting_.front());
            if (!prepare(slot)) return;
            free_.pop_back();
            waiting_.pop_front();
        }
    }

    void collect() {
        unsigned head = 0;
        unsigned count = 0;
        io_uring_cqe* entry = nullptr;
        io_uring_for_each_cqe(&ring_, head, entry) {
            ++count;
            const auto slot = static_cast<std::uint32_t>(entry->user_data);
            if (slots_[slot].advance(entry->res)) {
                finished_.push_back(slots_[slot].take_completion());
                free_.push_back(slot);
            } else {
                again_.push_back(slot);
            }
        }
        ::io_uring_cq_advance(&ring_, count);
    }

    io_uring ring_{};
    bool open_ = false;
    std::vector<ReadProgress> slots_;
    std::vector<std::uint32_t> free_;
    std::vector<std::uint32_t> again_;  // slots whose read came short or was interrupted
    std::deque<ReadRequest> waiting_;   // beyond the depth
    std::vector<ReadCompletion> finished_;
    std::vector<iovec> buffers_;  // registered, by address
    std::size_t depth_;
    std::size_t outstanding_ = 0;
    pid_t owner_;
};

int run_nothing(io_uring* ring) {
    io_uring_sqe* entry = ::io_uring_get_sqe(ring);
    if (entry == nullptr) return -EBUSY;
    ::io_uring_prep_nop(entry);
    int result = 0;
    do {
        result = ::io_uring_submit_and_wait(ring, 1);
    } while (result == -EINTR);
    if (result < 0) return result;
    io_uring_cqe* done = nullptr;
    result = ::io_uring_peek_cqe(ring, &done);
    if (result != 0) return result;
    result = done->res;
    ::io_uring_cqe_seen(ring, done);
    return result;
}

}  // namespace

Result<> probe_uring() {
    io_uring ring{};
    int result = open_ring(2, &ring);
    if (result != 0) return unavailable(-result);
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring);
    const bool reads = probe != nullptr && ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       ::io_uring_opcode_supported(probe, IORING_OP_READ_FIXED) != 0;
    ::io_uring_free_probe(probe);
    result = reads ? run_nothing(&ring) : -ENOSYS;
    close_ring(&ring);
    if (result != 0) return unavailable(-result);
    return success();
}

Result<std::unique_ptr<ReadQueue>> make_uring_queue(const ReadQueueOptions& options) try {
    if (!uring_available()) TWR_CHECK(probe_uring());  // says why
    auto queue = std::make_unique<UringQueue>(std::clamp<std::size_t>(options.depth, 1, kDeepest));
    TWR_CHECK(queue->open());
    return std::unique_ptr<ReadQueue>(std::move(queue));
} catch (const std::bad_alloc&) {
    return out_of_memory("io_uring queue");
}

}  // namespace twinrun::file_io

#else

namespace twinrun::file_io {

namespace {
Error not_built() {
    return say(ErrorCode::unsupported,
               [] { return "io_uring is not available: built without liburing; use TWINRUN_IO=pread"; });
}
}  // namespace

Result<> probe_uring() { return not_built(); }
Result<std::unique_ptr<ReadQueue>> make_uring_queue(const ReadQueueOptions&) { return not_built(); }

}  // namespace twinrun::file_io

#endif
