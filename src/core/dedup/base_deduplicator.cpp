#include "dedup/base_deduplicator.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <string>

namespace twinrun {

Result<> check_dedup_options(const DedupOptions& options) {
    const auto wrong = [](std::string what) { return Error{ErrorCode::invalid_argument, std::move(what)}; };
    if (!record_chunk_ok(options.chunk_bytes)) {
        return wrong("chunks of " + std::to_string(options.chunk_bytes) +
                     " bytes: it must be a power of two from 32 to 65536");
    }
    if (options.slice_chunks != 0 && !std::has_single_bit(options.slice_chunks))
        return wrong("a slice is a power of two of chunks");
    if (options.skip_when_all_new && options.keep_base)
        return wrong("no step can be skipped where a base is kept");
    return success();
}

bool looks_up(RecordMethod method) { return method != RecordMethod::full && method != RecordMethod::basic; }

ChunkHash hash_mask(unsigned hash_bits) {
    const auto low_bits = [](unsigned bits) {
        return bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
    };
    return {low_bits(hash_bits), low_bits(hash_bits <= 64 ? 0 : hash_bits - 64)};
}

// Returns what action() returns. After an error, all that was known is forgotten. what: needed the
// memory, where that ran out.
template <class Do>
auto BaseDeduplicator::guarded(const char* what, Do action) -> decltype(action()) {
    try {
        auto done = action();
        if (!done) give_up();
        return done;
    } catch (const std::bad_alloc&) {
        give_up();
        return Error{ErrorCode::out_of_memory, std::string("not enough memory ") + what};
    }
}

Result<StepOutcome> BaseDeduplicator::step(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                                           PayloadSink& sink) {
    return guarded("to find what the step adds to the record",
                   [&] { return take_by_method(ordinal, segments, sink); });
}

Result<> BaseDeduplicator::rebase(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                                  std::span<const Location> where) {
    return guarded("for the base of a record", [&]() -> Result<> {
        TWR_CHECK(replace_base(segments, where));
        base_ = ordinal;
        return success();
    });
}

Result<> BaseDeduplicator::learn(Location first, std::span<const std::byte> chunks) {
    if (!looks_up(options_.method)) return success();
    return guarded("for the table of a record's hashes", [&] { return enter(first, chunks); });
}

void BaseDeduplicator::forget() {
    drop();
    base_ = kNoBase;
    to_skip_ = 0;
    skipped_ = 0;
}

void BaseDeduplicator::give_up() {
    forget();
    release();
}

Result<StepOutcome> BaseDeduplicator::take_by_method(std::uint32_t ordinal,
                                                     std::span<const ImageSegment> segments,
                                                     PayloadSink& sink) {
    if (options_.method == RecordMethod::full || to_skip_ != 0) {
        TWR_TRY(StepOutcome whole, take_whole(ordinal, segments, sink));
        if (to_skip_ != 0) --to_skip_;
        return whole;
    }
    StepOutcome outcome;
    outcome.runs = spare_runs();
    outcome.method = options_.method;
    outcome.base = base_;
    TWR_CHECK(take(ordinal, segments, sink, outcome));
    base_ = ordinal;
    if (options_.skip_when_all_new) plan_skips(outcome);
    return outcome;
}

// Every chunk is payload, and nothing is learned.
Result<StepOutcome> BaseDeduplicator::take_whole(std::uint32_t ordinal,
                                                 std::span<const ImageSegment> segments, PayloadSink& sink) {
    StepOutcome outcome;
    outcome.method = RecordMethod::full;
    TWR_TRY(outcome.chunks, send_all(segments, sink));
    outcome.changed = outcome.payload = outcome.chunks;
    outcome.content.resize(segments.size());
    if (outcome.chunks != 0) outcome.runs.push_back({0, outcome.chunks, location(ordinal, 0), false});
    return outcome;
}

// A step is all new where more than 95 % of its chunks are payload. Its successors are taken whole:
// 1, 2, 4, … 16 of them, as long as those that are looked at between them are all new too.
void BaseDeduplicator::plan_skips(const StepOutcome& outcome) {
    const bool all_new = outcome.payload > outcome.chunks - outcome.chunks / 20 && outcome.base != kNoBase;
    skipped_ = all_new ? std::min(16U, std::max(1U, skipped_ * 2)) : 0;
    to_skip_ = skipped_;
}

}  // namespace twinrun
