// One rank's record while a history or files are packed into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "history/captured_step.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"
#include "history/recorder.hpp"
#include "history/writer.hpp"

namespace twinrun {

// Owned by a packing. Not thread-safe.
class RankRecord {
   public:
    // Opens or makes the record. settings.record: set. Errors: those of HistoryWriter::open(),
    // RecordStore::open() and Recorder.
    static Result<std::unique_ptr<RankRecord>> open(FileSystem& system, const std::string& target,
                                                    HistorySettings settings, std::uint32_t rank,
                                                    std::uint32_t ranks, const PackOptions& options);

    [[nodiscard]] bool has(std::int64_t step) const { return writer_->journal().steps.contains(step); }
    [[nodiscard]] HistoryWriter& writer() { return *writer_; }

    // Packs and commits a step, whose data is `image`. captured: the step with its metadata; null:
    // it has none. attempt: of the step; larger than the one that the record has already, if it has
    // one.
    Result<PackedStep> add(std::int64_t step, std::uint32_t attempt, RecordDirectory directory,
                           std::span<const ImageSegment> image, const CapturedStep* captured,
                           double blocked_seconds);

   private:
    RankRecord() = default;
    // Chooses the step from which the recorder computes the next difference.
    Result<> choose_base(std::int64_t step);
    // The path of the step's metadata file, whose name `files` gets.
    [[nodiscard]] static std::string name_metadata(const std::string& folder, RankFiles& files);
    Result<std::vector<std::byte>> read_image(std::uint32_t ordinal);
    RecordSettings settings_;
    std::shared_ptr<RecordStore> parent_;
    std::unique_ptr<HistoryWriter> writer_;
    std::unique_ptr<Recorder> recorder_;
    // the last step was a new version of an earlier one: the next needs another base
    bool base_is_old_ = false;
};

// The error if a PackProgress returned false.
Error stopped(const std::string& target);

}  // namespace twinrun
