#include "engine/batch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "source/device_array.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kMostInBlock = 64;  // pairs that a thread takes at a time
constexpr auto kPollInterval = std::chrono::milliseconds(50);

// Bytes of both sides; nothing where a pair is not compared by its own thread: elements that are not in memory of the host, or
// so many that threads share them.
std::optional<std::uint64_t> small_bytes(const FieldPair& pair) {
    const ElementSource* a = pair.a.elements;
    const ElementSource* b = pair.b.elements;
    if (pair.a.metadata != nullptr || pair.b.metadata != nullptr || a == nullptr || b == nullptr)
        return std::nullopt;
    if (!a->in_memory() || !b->in_memory() || a->device_array() != nullptr || b->device_array() != nullptr)
        return std::nullopt;
    const std::uint64_t most = kInlineBytes / 2 / std::max<std::size_t>(1, item_bytes(a->dtype()));
    if (a->items() > most || b->items() > most) return std::nullopt;
    return (a->items() + b->items()) * item_bytes(a->dtype());
}

Error interrupted() { return {ErrorCode::interrupted, "interrupted"}; }

// What one batch compares, and what its threads share.
class Batch {
   public:
    Batch(std::span<const FieldPair> pairs, const CompareOptions& options)
        : pairs_(pairs), options_(options), results_(pairs.size(), Result<FieldResult>(interrupted())) {
        options_.ranges.reset();
        options_.stream.threads = worker_count(options.stream);
        // Pairs that follow one another, of so many bytes that a thread is worth it.
        Range block{0, 0};
        std::uint64_t bytes = 0;
        for (std::size_t at = 0; at < pairs.size(); ++at) {
            const auto small = small_bytes(pairs[at]);
            if (!small) {
                large_.push_back(at);
                continue;
            }
            if (block.end != at || bytes > kSliceBytesInCache || block.size() == kMostInBlock) {
                if (block.size() != 0) blocks_.push_back(block);
                block = {at, at};
                bytes = 0;
            }
            ++block.end;
            bytes += *small + kBytesOfAPair;
            small_bytes_ += *small + kBytesOfAPair;
        }
        if (block.size() != 0) blocks_.push_back(block);
    }

    std::vector<Result<FieldResult>> run() {
        const std::uint64_t threads =
            std::min<std::uint64_t>({static_cast<std::uint64_t>(options_.stream.threads), blocks_.size(),
                                     std::max<std::uint64_t>(1, small_bytes_ / kBytesOfAThread)});
        {
            std::vector<std::jthread> others;
            for (std::uint64_t t = 1; t < threads; ++t) {
                try {
                    others.emplace_back([this] { take_blocks(false); });
                } catch (const std::exception&) {  // no thread is to be had: fewer do it
                    break;
                }
            }
            take_blocks(true);
        }
        CompareOptions own = options_;
        own.stream.poll = [&](std::uint64_t, std::uint64_t) { return poll(true); };
        for (const std::size_t at : large_) {
            if (stopped_.load()) break;
            compare(at, own);
            poll(false);
        }
        return std::move(results_);
    }

   private:
    // What comparing a pair costs beside its bytes, and what starting a thread costs, as bytes that are compared meanwhile.
    static constexpr std::uint64_t kBytesOfAPair = 8 << 10;
    static constexpr std::uint64_t kBytesOfAThread = 1 << 20;

    void take_blocks(bool polls) {
        CompareOptions own = options_;
        own.stream.threads = 1;
        own.stream.poll = nullptr;  // Python's is called by the calling thread, between blocks
        for (;;) {
            const std::size_t at = next_.fetch_add(1);
            if (at >= blocks_.size() || stopped_.load()) return;
            for (std::uint64_t i = blocks_[at].begin; i < blocks_[at].end; ++i)
                compare(i, own);
            if (polls) poll(false);
        }
    }

    void compare(std::size_t at, const CompareOptions& options) {
        const FieldPair& pair = pairs_[at];
        try {
            CompareOptions own = options;
            own.rule = pair.rule;
            own.columns = pair.columns;
            results_[at] = compare_field(pair.a, pair.b, own);
        } catch (const std::exception& e) {
            results_[at] = Error{ErrorCode::internal, e.what()};
        }
        done_.fetch_add(1);
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
    std::vector<Result<FieldResult>> results_;
    std::vector<Range> blocks_;
    std::vector<std::size_t> large_;
    std::uint64_t small_bytes_ = 0;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint64_t> done_{0};
    std::atomic<bool> stopped_{false};
    std::chrono::steady_clock::time_point polled_ = std::chrono::steady_clock::now();
};

}  // namespace

std::vector<Result<FieldResult>> compare_fields(std::span<const FieldPair> pairs,
                                                const CompareOptions& options) {
    return Batch(pairs, options).run();
}

}  // namespace twinrun
