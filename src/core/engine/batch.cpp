#include "engine/batch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/start_thread.hpp"
#include "device/device.hpp"
#include "engine/device_pairs.hpp"
#include "engine/pair_stream.hpp"
#include "source/device_array.hpp"
#include "source/stream_team.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kMostInBlock = 64;  // pairs that a thread takes at a time
constexpr auto kPollInterval = std::chrono::milliseconds(50);
// Large pairs under way: one ends while the next one begins.
constexpr std::size_t kPairsAtOnce = 2;

// A pair is compared by one thread alone where its bytes are no more than this share of what one
// thread has of all bytes: then all threads end at about the same time.
constexpr std::uint64_t kSharesOfAThread = 8;
// Beyond, the caller would wait long for the answer to an interrupt, and a device may be worth its
// start.
constexpr std::uint64_t kMostOfAThread = 512 << 20;
// Metadata is about this part of the elements.
constexpr std::uint64_t kBytesPerMetadataByte = 8;

// Of both sides.
std::uint64_t bytes_of(const FieldPair& pair) {
    std::uint64_t bytes = 0;
    for (const FieldSide* side : {&pair.a, &pair.b}) {
        if (side->metadata != nullptr) {
            bytes += side->metadata->directory().fields[side->field].data_bytes();
        } else if (side->elements != nullptr) {
            bytes += side->elements->items() * item_bytes(side->elements->dtype());
        }
    }
    return bytes;
}

bool is_small(const FieldPair& pair) { return bytes_of(pair) <= kInlineBytes; }

bool has_metadata(const FieldPair& pair) { return pair.a.metadata != nullptr && pair.b.metadata != nullptr; }

// Whether any thread may compare a pair: its elements are in memory of the host or in files. On
// devices threads take turns anyway.
bool for_any_thread(const FieldPair& pair, DeviceUse use) {
    if (use == DeviceUse::gpu && has_metadata(pair)) return false;
    for (const FieldSide* side : {&pair.a, &pair.b}) {
        if (side->elements == nullptr) {
            if (side->metadata == nullptr) return false;
            continue;
        }
        const bool anywhere =
            side->elements->in_memory() || (side->elements->in_files() && use != DeviceUse::gpu);
        if (!anywhere || side->elements->device_array() != nullptr) return false;
    }
    return true;
}

Error interrupted() { return {ErrorCode::interrupted, "interrupted"}; }
Error out_of_memory() {
    return {ErrorCode::out_of_memory, "not enough memory for the comparison: set a smaller limit of memory"};
}

// What one batch compares, and what its threads share.
class Batch {
   public:
    Batch(std::span<const FieldPair> pairs, const CompareOptions& options, const TakeResult& take)
        : pairs_(pairs),
          options_(options),
          take_(take),
          is_done_(pairs.size()),
          on_device_(pairs.size()),
          on_devices_(options.device, [this](const FoundPairs& found) { take_results(found); }) {
        options_.ranges.reset();
        options_.stream.threads = worker_count(options.stream);
        options_.stream.team = nullptr;
        for (std::size_t at = 0; at < pairs.size(); ++at)
            on_device_[at] = add_on_device(at);
        divide();
    }

    void run() {
        on_devices_.start();
        const std::uint64_t threads =
            std::min<std::uint64_t>({static_cast<std::uint64_t>(options_.stream.threads), blocks_.size(),
                                     std::max<std::uint64_t>(1, bytes_of_blocks_ / kBytesOfAThread)});
        {
            std::vector<std::jthread> others;
            for (std::uint64_t t = 1; t < threads; ++t) {
                try {
                    others.push_back(
                        start_thread<std::jthread>([this, threads] { take_blocks(false, threads); }));
                } catch (const std::exception&) {  // no more threads can start: fewer do it
                    break;
                }
            }
            take_blocks(true, threads);
        }
        finish_devices();
        compare_large();
        const Error why = stopped_.load() ? interrupted() : out_of_memory();
        for (std::size_t at = 0; at < pairs_.size(); ++at) {
            if (!is_done_[at]) take_(at, why);
        }
    }

   private:
    // What comparing a pair costs beside its bytes, and what starting a thread costs, as bytes that
    // are compared meanwhile.
    static constexpr std::uint64_t kBytesOfAPair = 8 << 10;
    static constexpr std::uint64_t kBytesOfAThread = 1 << 20;

    // ---- arrays on devices ----

    // False where a pair is not for a batch on a device.
    bool add_on_device(std::size_t at) {
        const FieldPair& pair = pairs_[at];
        if (pair.a.metadata != nullptr || pair.b.metadata != nullptr) return false;
        if (pair.a.elements == nullptr || pair.b.elements == nullptr) return false;
        const DeviceArray* a = pair.a.elements->device_array();
        const DeviceArray* b = pair.b.elements->device_array();
        if (a == nullptr || b == nullptr) return false;
        const auto arrays = DevicePairs::pair_of(*a, *b, pair.rule);
        if (!arrays || !on_devices_.takes(a->device)) return false;
        on_devices_.add(at, a->device, *arrays);
        return true;
    }
    void finish_devices() {
        on_devices_.finish([this] {
            poll(false);
            return !stopped_.load();
        });
        large_.insert(large_.end(), on_devices_.failed().begin(), on_devices_.failed().end());
        std::sort(large_.begin(), large_.end());
    }
    void take_results(const FoundPairs& found) {
        CompareOptions own = options_;
        for (std::size_t i = 0; i < found.numbers.size(); ++i) {
            const std::size_t at = found.numbers[i];
            const DevicePairResult& result = found.of(i);
            // Devices tell the first places as elements lie.
            if (!pairs_[at].columns.empty() && result.found.stats.max_rel_at != kNowhere) {
                large_.push_back(at);
                continue;
            }
            const ComparedElements compared{result, found.device, found.reason, found.seconds(i)};
            compare(at, own, &compared);
        }
    }

    // ---- arrays in memory of the host, or in files ----

    // Pairs that follow one another, of so many bytes that a thread is worth it, are a block.
    void divide() {
        std::vector<bool> elsewhere = on_device_;  // or shared by threads
        std::uint64_t all = 0;
        for (std::size_t at = 0; at < pairs_.size(); ++at) {
            if (elsewhere[at]) continue;
            elsewhere[at] = !for_any_thread(pairs_[at], options_.device.use);
            if (!elsewhere[at]) all += bytes_of(pairs_[at]);
        }
        const auto threads = static_cast<std::uint64_t>(options_.stream.threads);
        const std::uint64_t most =
            threads == 1 ? kInlineBytes
                         : std::max(kInlineBytes, std::min(all / threads / kSharesOfAThread, kMostOfAThread));
        Range block{0, 0};
        std::uint64_t bytes = 0;
        for (std::size_t at = 0; at < pairs_.size(); ++at) {
            const std::uint64_t own = elsewhere[at] ? 0 : bytes_of(pairs_[at]);
            if (elsewhere[at] || own > most) {
                if (!on_device_[at]) large_.push_back(at);
                continue;
            }
            if (block.end != at || bytes > kSliceBytesInCache || block.size() == kMostInBlock) {
                if (block.size() != 0) blocks_.push_back(block);
                block = {at, at};
                bytes = 0;
            }
            ++block.end;
            const std::uint64_t work =
                (has_metadata(pairs_[at]) ? own / kBytesPerMetadataByte : own) + kBytesOfAPair;
            bytes += work;
            bytes_of_blocks_ += work;
        }
        if (block.size() != 0) blocks_.push_back(block);
    }

    // threads: that do this.
    void take_blocks(bool polls, std::uint64_t threads) noexcept {
        try {
            take_each_block(polls, threads);
        } catch (const std::exception&) {
            // No memory: other threads take what is left, or run() says so.
        }
    }
    void take_each_block(bool polls, std::uint64_t threads) {
        StreamTeam team;
        CompareOptions own = options_;
        own.stream.threads = 1;
        own.stream.team = &team;
        own.stream.memory_bytes /= std::max<std::uint64_t>(1, threads);
        // Python's is called by the calling thread: between blocks, and within large pairs
        own.stream.poll = nullptr;
        CompareOptions watched = own;
        watched.stream.poll = [this, polls](std::uint64_t, std::uint64_t) {
            return polls ? poll(true) : !stopped_.load();
        };
        for (;;) {
            const std::size_t at = next_.fetch_add(1);
            if (at >= blocks_.size() || stopped_.load()) return;
            for (std::uint64_t i = blocks_[at].begin; i < blocks_[at].end; ++i)
                compare(i, is_small(pairs_[i]) ? own : watched);
            if (polls) poll(false);
        }
    }

    // ---- pairs that all threads work on ----

    // One after another; where several that any thread may compare follow one another, the next one
    // is under way before one ends.
    void compare_large() {
        const bool overlap = options_.stream.threads > 1 &&
                             (options_.device.use == DeviceUse::cpu || device_runtime() == nullptr);
        const auto alone = [&](std::size_t at) {
            return !overlap || on_device_[at] || !for_any_thread(pairs_[at], options_.device.use);
        };
        StreamTeam team;
        CompareOptions own = options_;
        own.stream.team = &team;
        own.stream.poll = [&](std::uint64_t, std::uint64_t) { return poll(true); };
        const std::span<const std::size_t> all = large_;
        for (std::size_t at = 0; at < all.size() && !stopped_.load();) {
            std::size_t end = at;
            while (end < all.size() && !alone(all[end]))
                ++end;
            if (end - at > 1 && compare_overlapping(all.subspan(at, end - at))) {
                at = end;
                continue;
            }
            compare(all[at], own);
            poll(false);
            ++at;
        }
    }

    // What the threads that hand in large pairs share.
    struct Overlap {
        std::span<const std::size_t> pairs;
        StreamWorkers& workers;
        std::mutex mutex;
        std::condition_variable end;
        std::size_t next = 0;
        int at_work = 0;
    };
    // False: the system has no threads for it, and nothing was done.
    bool compare_overlapping(std::span<const std::size_t> pairs) {
        StreamWorkers workers(options_.stream.threads, kPairsAtOnce);
        if (workers.size() == 0) return false;
        Overlap shared{pairs, workers, {}, {}, 0, 0};
        std::vector<std::jthread> others;
        others.reserve(kPairsAtOnce);  // a thread without room would be waited for under the lock
        for (std::size_t t = 0; t < kPairsAtOnce; ++t) {
            try {
                const std::lock_guard lock(shared.mutex);
                others.push_back(start_thread<std::jthread>([this, &shared] { hand_in(shared); }));
                ++shared.at_work;
            } catch (const std::exception&) {  // the others hand in all
                break;
            }
        }
        if (others.empty()) return false;
        // Python's poll is called by the calling thread.
        std::unique_lock lock(shared.mutex);
        while (!shared.end.wait_for(lock, kPollInterval, [&] { return shared.at_work == 0; })) {
            lock.unlock();
            poll(true);
            lock.lock();
        }
        return true;
    }
    // A pair's files are opened, its trees walked and its reads planned by this thread, while
    // workers are at the pair that another thread handed in.
    void hand_in(Overlap& shared) noexcept {
        try {
            StreamTeam team(shared.workers);
            CompareOptions own = options_;
            own.stream.threads = shared.workers.size();
            own.stream.team = &team;
            own.stream.poll = [this](std::uint64_t, std::uint64_t) { return !stopped_.load(); };
            for (;;) {
                std::unique_lock lock(shared.mutex);
                if (shared.next == shared.pairs.size() || stopped_.load()) break;
                const std::size_t at = shared.pairs[shared.next++];
                lock.unlock();
                compare(at, own);
            }
        } catch (const std::exception&) {
            // No memory: the other thread takes what is left, or run() says so.
        }
        const std::lock_guard lock(shared.mutex);
        if (--shared.at_work == 0) shared.end.notify_one();
    }

    // own: its rule and columns become the pair's.
    void compare(std::size_t at, CompareOptions& own, const ComparedElements* compared = nullptr) {
        const FieldPair& pair = pairs_[at];
        try {
            own.rule = pair.rule;
            own.columns = pair.columns;
            give(at, compare_field(pair.a, pair.b, own, compared));
        } catch (const std::bad_alloc&) {
            fail(at, nullptr);
        } catch (const std::exception& e) {
            fail(at, e.what());
        }
        for (const FieldSide* side : {&pair.a, &pair.b}) {
            if (side->elements != nullptr) side->elements->release();
        }
        done_.fetch_add(1);
    }

    // what: the error, or null: out of memory. Where there is no memory to say so either, run()
    // says it at the end.
    void fail(std::size_t at, const char* what) noexcept {
        try {
            give(at, what == nullptr ? out_of_memory() : Error{ErrorCode::internal, what});
        } catch (const std::exception&) {
        }
    }
    // A result that was taken stays, whatever fails later.
    void give(std::size_t at, Result<FieldResult> result) {
        const std::lock_guard lock(mutex_);
        if (is_done_[at]) return;
        take_(at, std::move(result));
        is_done_[at] = true;
    }

    // Fields that are done, of all. now: whoever asks has waited long enough. False: the work ends.
    bool poll(bool now) {
        if (!options_.stream.poll) return true;
        const auto at = std::chrono::steady_clock::now();
        if (!now && at - polled_ < kPollInterval) return true;
        polled_ = at;
        if (!options_.stream.poll(done_.load(), pairs_.size())) stopped_.store(true);
        return !stopped_.load();
    }

    std::span<const FieldPair> pairs_;
    CompareOptions options_;
    const TakeResult& take_;
    std::mutex mutex_;           // of the next, and of calls of take_
    std::vector<bool> is_done_;  // by pair
    std::vector<Range> blocks_;
    std::vector<std::size_t> large_;
    std::vector<bool> on_device_;  // by pair
    PairStream on_devices_;
    std::uint64_t bytes_of_blocks_ = 0;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint64_t> done_{0};
    std::atomic<bool> stopped_{false};
    std::chrono::steady_clock::time_point polled_ = std::chrono::steady_clock::now();
};

}  // namespace

std::vector<Result<FieldResult>> compare_fields(std::span<const FieldPair> pairs,
                                                const CompareOptions& options) {
    std::vector<Result<FieldResult>> results(pairs.size(), Result<FieldResult>(interrupted()));
    compare_fields(pairs, options,
                   [&](std::size_t at, Result<FieldResult> result) { results[at] = std::move(result); });
    return results;
}

void compare_fields(std::span<const FieldPair> pairs, const CompareOptions& options, const TakeResult& take) {
    Batch(pairs, options, take).run();
}

}  // namespace twinrun
