// What deduplicators have in common, wherever their images are: the course of a step, which steps
// are taken whole, and what an error leaves.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "base/result.hpp"
#include "dedup/chunk_hash.hpp"
#include "dedup/deduplicator.hpp"

namespace twinrun {

// Errors: invalid_argument: options that contradict each other wherever images are.
Result<> check_dedup_options(const DedupOptions& options);
// Whether the method looks chunks up in the table of hashes.
[[nodiscard]] bool looks_up(RecordMethod method);
// The bits of a hash that DedupOptions::hash_bits keeps.
[[nodiscard]] ChunkHash hash_mask(unsigned hash_bits);

class BaseDeduplicator : public Deduplicator {
   public:
    Result<StepOutcome> step(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                             PayloadSink& sink) final;
    Result<> rebase(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                    std::span<const Location> where) final;
    Result<> learn(Location first, std::span<const std::byte> chunks) final;
    void forget() final;

   protected:
    explicit BaseDeduplicator(DedupOptions options) : options_(std::move(options)) {}
    [[nodiscard]] const DedupOptions& options() const { return options_; }
    // Whether a step that begins like this keeps all its chunks, repeated ones too, and enters all
    // nodes of its tree in the table, which has so many entries: the first step of `tree`. Source:
    // Tan et al., ICPP'23, section 2.2 (figure 2).
    [[nodiscard]] bool taken_fully(const StepOutcome& outcome, std::uint64_t entries) const {
        return options_.method == RecordMethod::tree && outcome.base == kNoBase && entries == 0;
    }

   private:
    // Adds all that the step adds to `outcome`, which has its method, its base, and old runs whose
    // memory is to be used: overwrite them. Afterwards the image is the base.
    virtual Result<> take(std::uint32_t ordinal, std::span<const ImageSegment> segments, PayloadSink& sink,
                          StepOutcome& outcome) = 0;
    // Gives all chunks of the image to the sink, and returns how many they are. The base stays as
    // it is.
    virtual Result<std::uint64_t> send_all(std::span<const ImageSegment> segments, PayloadSink& sink) = 0;
    virtual Result<> replace_base(std::span<const ImageSegment> segments,
                                  std::span<const Location> where) = 0;
    // Enters these chunks in the table.
    virtual Result<> enter(Location first, std::span<const std::byte> chunks) = 0;
    // Forgets the table and the base.
    virtual void drop() = 0;
    // Gives memory back that only steps need. Called after an error, behind drop().
    virtual void release() {}

    Result<StepOutcome> take_by_method(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                                       PayloadSink& sink);
    Result<StepOutcome> take_whole(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                                   PayloadSink& sink);
    void plan_skips(const StepOutcome& outcome);
    void give_up();
    template <class Do>
    auto guarded(const char* what, Do action) -> decltype(action());

    const DedupOptions options_;
    std::uint32_t base_ = kNoBase;
    unsigned to_skip_ = 0;  // steps that are taken whole from now on
    unsigned skipped_ = 0;  // how many were, the last time
};

}  // namespace twinrun
