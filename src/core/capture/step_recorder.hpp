// Writes the steps of a session into its record, one after another.
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
#include "history/record_residues.hpp"
#include "history/record_store.hpp"
#include "history/recorder.hpp"

namespace twinrun {

// Owned by a session, used by its pipeline: by the thread that commits. Not thread-safe.
class StepRecorder {
   public:
    struct Places {
        std::string history;  // the history's folder
        std::string local;    // this rank's folder on the local tier; empty: none
        std::uint32_t rank = 0;
    };
    // Checks the settings. Existing records are read only when the first step is recorded.
    static Result<std::unique_ptr<StepRecorder>> create(const RecorderOptions& options, Places places);
    ~StepRecorder();

    // A step's data: the content of its data file, except for fields that are read from their
    // device. Such arrays are dense, and all work on them is complete.
    struct Image {
        const std::byte* bytes = nullptr;
        // of each field; or empty: no field is read from a device
        std::span<const std::optional<DeviceArray>> on_device;
        ResidueBytes residues;  // what the step's metadata file lacks
    };
    // Writes the difference of a step into its folder on `place`, and sets the members of `ready`
    // that describe it. The device that holds most bytes of the first step (or the host) finds what
    // is new in every step; data from elsewhere is copied there. After a failure of the device, the
    // host does so for all later steps. After an error the step must not be committed.
    Result<> record(Tiers& tiers, const Tiers::Place& place, std::int64_t step, const StepLayout& layout,
                    const Image& image, RankStep& ready);
    // Called after the commit of a recorded step. ready: what was committed; null: the step is
    // lost. If the journal lacks the step, later steps do not refer to it.
    void settled(const Tiers& tiers, const Tiers::Place& place, std::int64_t step, const RankStep* ready);

   private:
    StepRecorder(RecorderOptions options, Places places);
    Result<> begin(int device);
    [[nodiscard]] Result<DifferencePlace> locate(std::uint32_t ordinal) const;
    void forget();
    RecorderOptions options_;
    Places places_;
    // Differences that existed when the session began: in the history, on the local tier, in the
    // record that this one is against. null: there are none.
    std::shared_ptr<RecordStore> stored_;
    std::shared_ptr<RecordStore> local_;
    std::shared_ptr<RecordStore> parent_;
    // files of differences by ordinal, relative to the tier's folder
    std::map<std::uint32_t, DifferencePlace> own_;
    // Differences that later steps may refer to, and that may not be in the history yet.
    std::set<std::uint32_t> local_only_;
    std::unique_ptr<Recorder> recorder_;  // null until the first step
};

}  // namespace twinrun
