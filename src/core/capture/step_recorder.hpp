// A session's steps into the record of its history, one after another.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "capture/layout.hpp"
#include "capture/tiers.hpp"
#include "history/record_store.hpp"
#include "history/recorder.hpp"

namespace twinrun {

// Not thread-safe.
class StepRecorder {
   public:
    struct Places {
        std::string history;  // folders
        std::string local;    // of this rank; empty: none
        std::uint32_t rank = 0;
    };
    // What is on storage already is read with the first step.
    static Result<std::unique_ptr<StepRecorder>> create(const RecorderOptions& options, Places places);
    ~StepRecorder();

    // The data file that would have been; but for fields that are still on a device, dense, all work on them done.
    struct Image {
        const std::byte* bytes = nullptr;
        std::span<const std::optional<DeviceArray>> on_device;  // of each field, or empty
    };
    // Writes the difference of a step into its folder on `place`, and completes what the journal will say of it. What is new in
    // a step is found where most of its bytes are, and the rest is brought there; on the host, for good, once that fails for want
    // of device memory.
    Result<> record(Tiers& tiers, const Tiers::Place& place, std::int64_t step, const StepLayout& layout,
                    const Image& image, RankStep& ready);
    // What became of it: of a step that its journal does not have, nothing may be copied.
    void settled(const Tiers& tiers, const Tiers::Place& place, std::int64_t step, const RankStep* ready);

   private:
    StepRecorder(RecorderOptions options, Places places);
    Result<> begin(int device);
    Result<std::string> locate(std::uint32_t ordinal) const;
    void forget();
    RecorderOptions options_;
    Places places_;
    std::shared_ptr<RecordStore> stored_;  // what was there when the session began: on the last tier,
    std::shared_ptr<RecordStore> local_;   // and on the node-local one
    std::shared_ptr<RecordStore> parent_;
    std::map<std::uint32_t, std::string> own_;  // paths within a tier
    std::set<std::uint32_t>
        local_only_;  // that later steps may need, and that may not be on the last tier yet
    std::unique_ptr<Recorder> recorder_;
};

}  // namespace twinrun
