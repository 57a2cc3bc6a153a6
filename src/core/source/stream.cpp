#include "source/stream.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/checked.hpp"
#include "base/parallel.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr std::size_t kPiecesOfAThread = 16;  // small ones: fewer run while a thread starts

// What the workers of one run share.
class Run {
   public:
    Run(SliceJob& job, const StreamOptions& options) : job_(job), options_(options), total_(job.slices()) {}

    std::optional<std::uint64_t> next() {
        if (stopped_.load(std::memory_order_relaxed)) return std::nullopt;
        const std::uint64_t slice = next_.fetch_add(1, std::memory_order_relaxed);
        if (slice >= total_) return std::nullopt;
        return slice;
    }
    void fail(Error error) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::move(error);
        stopped_.store(true);
    }
    [[nodiscard]] bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
    void finished_one() { done_.fetch_add(1, std::memory_order_relaxed); }
    void count_read(std::uint64_t bytes) { bytes_read_.fetch_add(bytes, std::memory_order_relaxed); }

    // One thread polls, the caller's where it works: a poll may run the host's signal handlers.
    void poll() {
        if (!options_.poll) return;
        const auto now = Clock::now();
        if (now - polled_ < kPollInterval) return;
        polled_ = now;
        if (!options_.poll(done_.load(), total_)) fail({ErrorCode::interrupted, "interrupted"});
    }

    // True: under way, finish() must follow.
    Result<bool> begin(std::uint64_t slice, std::byte* buffer, int worker) {
        auto result = job_.begin(slice, buffer, worker);
        if (!result || !result.value()) finished_one();
        return result;
    }
    Result<> finish(std::uint64_t slice, std::byte* buffer, int worker) {
        auto result = job_.finish(slice, buffer, worker);
        finished_one();
        return result;
    }

    std::optional<Error> error() { return std::move(error_); }
    [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_.load(); }
    SliceJob& job() { return job_; }
    const StreamOptions& options() { return options_; }

   private:
    SliceJob& job_;
    const StreamOptions& options_;
    std::uint64_t total_;
    std::atomic<std::uint64_t> next_{0};
    std::atomic<std::uint64_t> done_{0};
    std::atomic<std::uint64_t> bytes_read_{0};
    std::atomic<bool> stopped_{false};
    std::mutex mutex_;
    std::optional<Error> error_;
    Clock::time_point polled_ = Clock::now();
};

struct Slot {
    std::uint64_t slice = 0;
    std::size_t pending = 0;
    std::byte* buffer = nullptr;
    bool busy = false;
};

// One worker: keeps its slots filled with reads, works on whatever is complete.
class Worker {
   public:
    Worker(Run& run, int number, std::size_t slots, std::size_t slot_bytes, std::byte* memory,
           ReadQueue& queue)
        : run_(run),
          number_(number),
          most_under_way_(std::max<std::size_t>(1, run.job().most_under_way())),
          queue_(queue),
          slots_(slots) {
        under_way_.reserve(slots);  // what has begun must be kept: no allocation then
        for (std::size_t i = 0; i < slots; ++i)
            slots_[i].buffer = memory + i * slot_bytes;
    }

    Result<> work() {
        try {
            Result<> result = loop();
            drain();
            return result;
        } catch (...) {
            drain();
            throw;
        }
    }

   private:
    Result<> loop() {
        for (;;) {
            TWR_CHECK(fill_slots());
            if (busy_ == 0) return success();
            // Reads go on by themselves meanwhile: what is under way elsewhere is waited for first,
            // as it frees a slot.
            if (queue_.outstanding() > 0) TWR_CHECK(collect(ready_.empty() && under_way_.empty() ? 1 : 0));
            if (!ready_.empty()) {
                if (run_.stopped()) return success();
                if (under_way_.size() >= most_under_way_) TWR_CHECK(finish_oldest());
                TWR_CHECK(begin_first_ready());
            } else if (!under_way_.empty()) {
                TWR_CHECK(finish_oldest());
            }
            if (number_ == 0) run_.poll();
            if (run_.stopped()) return success();
        }
    }

    // Plans slices for free slots and submits their reads, until one can be worked on.
    Result<> fill_slots() {
        for (std::size_t i = 0; more_ && i < slots_.size(); ++i) {
            Slot& slot = slots_[i];
            if (slot.busy) continue;
            const auto slice = run_.next();
            if (!slice) {
                more_ = false;
                break;
            }
            requests_.clear();
            TWR_CHECK(run_.job().plan(*slice, slot.buffer, requests_));
            slot = {*slice, requests_.size(), slot.buffer, true};
            ++busy_;
            for (ReadRequest& r : requests_) {
                r.tag = i;
                run_.count_read(r.needed());
            }
            TWR_CHECK(take_from_memory(slots_[i]));
            if (requests_.empty()) {
                ready_.push_back(i);
                break;  // nothing to wait for: work on it now
            }
            TWR_CHECK(queue_.submit(requests_));
            // What the page cache holds is there at once: work on it while it is in the CPU's cache
            // too.
            TWR_CHECK(collect(0));
            if (!ready_.empty()) break;
        }
        return success();
    }

    // Reads of files that are in memory are done at once: no queue knows them.
    Result<> take_from_memory(Slot& slot) {
        std::size_t left = 0;
        for (const ReadRequest& r : requests_) {
            if (r.file->in_memory()) {
                TWR_CHECK(read_now(r));
            } else {
                requests_[left++] = r;
            }
        }
        requests_.resize(left);
        slot.pending = left;
        return success();
    }

    Result<> collect(std::size_t at_least) {
        completions_.clear();
        TWR_CHECK(queue_.wait(at_least, completions_));
        for (ReadCompletion& c : completions_) {
            if (c.error) return std::move(*c.error);
            if (--slots_[c.tag].pending == 0) ready_.push_back(c.tag);
        }
        return success();
    }

    Result<> begin_first_ready() {
        const std::size_t at = ready_.front();
        ready_.pop_front();
        Slot& slot = slots_[at];
        TWR_TRY(const bool goes_on, run_.begin(slot.slice, slot.buffer, number_));
        if (goes_on) {
            under_way_.push_back(at);
        } else {
            slot.busy = false;
            --busy_;
        }
        return success();
    }

    Result<> finish_oldest() {
        Slot& slot = slots_[under_way_.front()];
        under_way_.erase(under_way_.begin());
        slot.busy = false;
        --busy_;
        return run_.finish(slot.slice, slot.buffer, number_);
    }

    // Waits until no read and no other work under way points into the buffers. Their results no
    // longer matter.
    void drain() {
        while (!under_way_.empty()) {
            try {
                static_cast<void>(finish_oldest());
            } catch (const std::exception&) {
            }
        }
        while (queue_.outstanding() > 0) {
            completions_.clear();
            if (!queue_.wait(queue_.outstanding(), completions_)) break;
        }
    }

    Run& run_;
    const int number_;
    const std::size_t most_under_way_;
    ReadQueue& queue_;
    std::vector<Slot> slots_;
    std::vector<ReadRequest> requests_;
    std::vector<ReadCompletion> completions_;
    std::deque<std::size_t> ready_;
    std::vector<std::size_t> under_way_;  // begun, in this order
    std::size_t busy_ = 0;
    bool more_ = true;
};

// How a run uses each worker.
struct Shape {
    std::size_t slots = 1;
    std::size_t slot_bytes = 0;
    // Telling the kernel where reads go pins every page once: worth it where each is used many
    // times.
    bool registers = false;
    [[nodiscard]] std::size_t bytes() const { return slots * slot_bytes; }
};

// memory: the job's, or null. io: the name of the queue.
Result<> work(Run& run, int worker, const Shape& shape, std::byte* memory, StreamPlace& place,
              const char*& io) {
    if (memory == nullptr) {
        TWR_TRY(memory, place.memory(shape.bytes()));
    }
    ReadQueueOptions options;
    options.backend = run.options().io;
    options.depth = kQueueDepth;
    TWR_TRY(ReadQueue * queue, place.queue(options));
    TWR_CHECK(place.register_buffer({memory, shape.registers ? shape.bytes() : 0}));
    io = queue->name();
    return Worker(run, worker, shape.slots, shape.slot_bytes, memory, *queue).work();
}

// Small jobs: this thread, plain reads.
Result<> work_inline(Run& run, StreamTeam& team) {
    const std::size_t bytes = std::max<std::size_t>(run.job().buffer_bytes(), 1);
    TWR_TRY(std::byte * memory, run.job().allocate(0, bytes));
    if (memory == nullptr) {
        TWR_TRY(memory, team.own().memory(bytes));
    }
    std::vector<ReadRequest> requests;
    while (const auto slice = run.next()) {
        requests.clear();
        TWR_CHECK(run.job().plan(*slice, memory, requests));
        for (const ReadRequest& r : requests) {
            TWR_CHECK(read_now(r));
            run.count_read(r.needed());
        }
        TWR_TRY(const bool goes_on, run.begin(*slice, memory, 0));
        if (goes_on) TWR_CHECK(run.finish(*slice, memory, 0));
        run.poll();
        if (run.stopped()) break;
    }
    return success();
}

}  // namespace

int worker_count(const StreamOptions& options) {
    if (options.threads > 0) return options.threads;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

Result<StreamStats> run_slices(SliceJob& job, const StreamOptions& options) try {
    StreamStats stats;
    Run run(job, options);
    if (job.slices() == 0) return stats;
    std::optional<StreamTeam> own;
    if (options.team == nullptr) own.emplace();
    StreamTeam& team = options.team == nullptr ? *own : *options.team;
    if (!job.on_storage() && (job.slices() == 1 || job.total_bytes() <= kInlineBytes)) {
        if (auto result = work_inline(run, team); !result) run.fail(std::move(result).error());
        if (auto error = run.error()) return std::move(*error);
        stats.bytes_read = run.bytes_read();
        stats.io = "pread";
        return stats;
    }
    Shape shape;
    shape.slot_bytes = round_up(std::max<std::size_t>(job.buffer_bytes(), 1), kDirectAlignment);
    const std::uint64_t fits = std::max<std::uint64_t>(1, options.memory_bytes / shape.slot_bytes);
    const int workers = team.most(static_cast<int>(std::max<std::uint64_t>(
        1,
        std::min<std::uint64_t>({static_cast<std::uint64_t>(worker_count(options)), fits, job.slices()}))));
    const std::size_t most_slots = job.most_slots() == 0 ? kMostSlots : job.most_slots();
    shape.slots = std::clamp<std::size_t>(fits / static_cast<std::uint64_t>(workers), 1, most_slots);
    shape.registers =
        // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a slot has at least one byte.
        job.total_bytes() / kReusesToRegister / shape.bytes() >= static_cast<std::uint64_t>(workers);
    std::vector<std::byte*> memory(static_cast<std::size_t>(workers));
    std::vector<const char*> io(static_cast<std::size_t>(workers), "none");
    for (int w = 0; w < workers; ++w) {
        TWR_TRY(memory[static_cast<std::size_t>(w)], job.allocate(w, shape.bytes()));
    }
    team.run(workers, [&](int worker) {
        const auto at = static_cast<std::size_t>(worker);
        StreamPlace& place = team.place(worker);
        try {
            auto result = work(run, worker, shape, memory[at], place, io[at]);
            if (!result) run.fail(std::move(result).error());
        } catch (const std::bad_alloc&) {
            run.fail({ErrorCode::out_of_memory, "not enough memory: set a smaller limit of memory"});
        } catch (const std::exception& e) {
            run.fail({ErrorCode::internal, e.what()});
        }
        place.settle();
    });
    if (auto error = run.error()) return std::move(*error);
    stats.bytes_read = run.bytes_read();
    stats.io = io.front();
    stats.threads = workers;
    return stats;
} catch (const std::exception& e) {
    return Error{ErrorCode::internal, e.what()};
}

Result<> run_pieces(std::span<const std::uint64_t> bytes, const std::vector<bool>& in_order,
                    const StreamOptions& options,
                    const std::function<Result<>(std::size_t piece, const StreamOptions& options)>& run) {
    const int threads = worker_count(options);
    std::vector<std::size_t> small;
    std::vector<std::size_t> large;
    for (std::size_t at = 0; at < bytes.size(); ++at)
        (in_order[at] || bytes[at] > kInlineBytes || threads == 1 ? large : small).push_back(at);
    std::vector<StreamTeam> teams(static_cast<std::size_t>(threads));
    std::mutex mutex;
    std::optional<Error> error;
    std::atomic<bool> stopped{false};
    std::atomic<std::uint64_t> done{0};
    auto polled = Clock::now();  // of the calling thread
    const auto poll = [&] {
        const auto now = Clock::now();
        if (!options.poll || now - polled < kPollInterval) return true;
        polled = now;
        return options.poll(done.load(), bytes.size());
    };
    const auto fail = [&](Error why) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::move(why);
        stopped.store(true);
    };
    const auto guarded = [&](std::size_t at, const StreamOptions& own) {
        try {
            if (auto result = run(at, own); !result) fail(std::move(result).error());
        } catch (const std::bad_alloc&) {
            fail({ErrorCode::out_of_memory, "not enough memory: set a smaller limit of memory"});
        } catch (const std::exception& e) {
            fail({ErrorCode::internal, e.what()});
        }
        done.fetch_add(1);
    };
    in_parallel(small.size(), threads, kPiecesOfAThread, [&](std::size_t number, std::size_t thread) {
        if (stopped.load()) return;
        StreamOptions own;
        own.threads = 1;
        own.memory_bytes = options.memory_bytes / static_cast<std::uint64_t>(threads);
        own.io = options.io;
        own.team = &teams[thread];
        guarded(small[number], own);
        if (thread == 0 && !poll()) fail({ErrorCode::interrupted, "interrupted"});
    });
    StreamOptions own = options;
    own.team = &teams.front();
    for (const std::size_t at : large) {
        if (stopped.load()) break;
        guarded(at, own);
        if (!poll()) fail({ErrorCode::interrupted, "interrupted"});
    }
    if (error) return std::move(*error);
    return success();
}

}  // namespace twinrun
