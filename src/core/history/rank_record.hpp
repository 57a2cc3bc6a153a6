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

class RankRecord {
   public:
    static Result<std::unique_ptr<RankRecord>> open(FileSystem& system, const std::string& target,
                                                    HistorySettings settings, std::uint32_t rank,
                                                    std::uint32_t ranks, const PackOptions& options);

    [[nodiscard]] bool has(std::int64_t step) const { return writer_->journal().steps.contains(step); }
    [[nodiscard]] HistoryWriter& writer() { return *writer_; }

    // captured: with its metadata; null: the step has none. attempt: the step's; where the record
    // has the step already, its attempt is smaller.
    Result<PackedStep> add(std::int64_t step, std::uint32_t attempt, RecordDirectory directory,
                           std::span<const ImageSegment> image, const CapturedStep* captured,
                           double blocked_seconds);

   private:
    RankRecord() = default;
    // Makes the recorder compute the step's difference from the base that fits it.
    Result<> choose_base(std::int64_t step);
    // ordinal: of the difference that has the step's data.
    Result<> write_metadata(const std::string& folder, const CapturedStep& captured, std::uint32_t ordinal,
                            RankFiles& files);
    Result<std::vector<std::byte>> read_image(std::uint32_t ordinal);
    RecordSettings settings_;
    std::shared_ptr<RecordStore> parent_;
    std::unique_ptr<HistoryWriter> writer_;
    std::unique_ptr<Recorder> recorder_;
    bool strayed_ = false;  // the step before was a new version of an earlier one
};

// For a PackProgress that returned false.
Error stopped(const std::string& target);

}  // namespace twinrun
