// Reads by a pool of threads that call pread: for kernels and containers without io_uring, and the
// reference for it.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "base/start_thread.hpp"
#include "platform/file_io_internal.hpp"

namespace twinrun::file_io {

namespace {

constexpr int kMostThreads = 256;

class PreadQueue final : public ReadQueue {
   public:
    explicit PreadQueue(std::size_t depth)
        : state_(std::make_unique<State>()), depth_(depth), owner_(::getpid()) {}

    ~PreadQueue() override {
        if (owner_ != ::getpid()) {
            // The threads stayed in the parent, perhaps holding the lock: nothing here can be taken
            // down safely, nor can threads that are not there be detached.
            static_cast<void>(state_.release());
            return;
        }
        {
            const std::lock_guard guard(state_->mutex);
            state_->stop = true;
            state_->waiting.clear();
        }
        state_->work.notify_all();
        for (auto& thread : state_->threads)
            thread.join();
    }

    // As many threads as the system grants, at least one.
    Result<> start(int threads) {
        state_->threads.reserve(static_cast<std::size_t>(threads));
        for (int i = 0; i < threads; ++i) {
            try {
                state_->threads.push_back(start_thread([state = state_.get()] { state->serve(); }));
            } catch (const std::system_error& failure) {
                if (state_->threads.empty())
                    return system_error("pread queue", "start a thread", failure.code().value());
                break;
            }
        }
        return success();
    }

    const char* name() const override { return "pread"; }
    std::size_t depth() const override { return depth_; }
    std::size_t outstanding() const override { return outstanding_; }

    Result<> submit(std::span<const ReadRequest> requests) override {
        if (owner_ != ::getpid()) return used_after_fork();
        for (const auto& request : requests)
            TWR_CHECK(check_request(request));
        {
            const std::lock_guard guard(state_->mutex);
            const std::size_t before = state_->waiting.size();
            try {
                // Reserves room for every completion now: a worker could not report that memory is
                // exhausted.
                state_->finished.reserve(outstanding_ + requests.size());
                for (const auto& request : requests) {
                    if (request.bytes != 0) state_->waiting.emplace_back(request);
                }
            } catch (const std::bad_alloc&) {
                while (state_->waiting.size() > before)
                    state_->waiting.pop_back();
                return out_of_memory("pread queue");
            }
            for (const auto& request : requests) {
                if (request.bytes == 0) state_->finished.push_back({request.tag, 0, std::nullopt});
            }
        }
        outstanding_ += requests.size();
        if (requests.size() == 1) {
            state_->work.notify_one();
        } else {
            state_->work.notify_all();
        }
        return success();
    }

    Result<> wait(std::size_t at_least, std::vector<ReadCompletion>& out) override {
        if (owner_ != ::getpid()) return used_after_fork();
        const std::size_t enough = std::min(at_least, outstanding_);
        std::unique_lock lock(state_->mutex);
        state_->enough = enough;
        state_->done.wait(lock, [&] { return state_->finished.size() >= enough; });
        const std::size_t count = state_->finished.size();
        TWR_CHECK(deliver(state_->finished, out));  // without memory they stay for the next call
        outstanding_ -= count;
        return success();
    }

   private:
    struct State {
        std::mutex mutex;
        std::condition_variable work;
        std::condition_variable done;
        std::deque<ReadProgress> waiting;
        std::vector<ReadCompletion> finished;
        std::size_t enough = 0;  // completions that the waiting caller asked for
        bool stop = false;
        std::vector<std::thread> threads;  // that serve()

        void serve() {
            std::unique_lock lock(mutex);
            for (;;) {
                work.wait(lock, [&] { return stop || !waiting.empty(); });
                if (stop) return;
                ReadProgress progress = std::move(waiting.front());
                waiting.pop_front();
                lock.unlock();
                if (progress.remote()) progress.read_remote();
                while (!progress.remote()) {
                    const auto step = progress.next();
                    const ssize_t got =
                        ::pread(step.descriptor, step.to, step.bytes, static_cast<off_t>(step.offset));
                    if (progress.advance(got < 0 ? -errno : got)) break;
                }
                lock.lock();
                finished.push_back(progress.take_completion());
                if (finished.size() >= enough) done.notify_one();
            }
        }
    };

    std::unique_ptr<State> state_;
    std::size_t depth_;
    std::size_t outstanding_ = 0;
    pid_t owner_;
};

}  // namespace

Result<std::unique_ptr<ReadQueue>> make_pread_queue(const ReadQueueOptions& options) try {
    const int threads = std::clamp(options.threads, 1, kMostThreads);
    auto queue = std::make_unique<PreadQueue>(std::max<std::size_t>(options.depth, 1));
    TWR_CHECK(queue->start(threads));
    return std::unique_ptr<ReadQueue>(std::move(queue));
} catch (const std::bad_alloc&) {
    return out_of_memory("pread queue");
}

}  // namespace twinrun::file_io
