// Takes one step during capture(): from the application's arrays, through the intake and the device
// stage, to the pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "capture/device_stage.hpp"
#include "capture/intake.hpp"
#include "capture/pipeline.hpp"
#include "capture/staging.hpp"
#include "history/field.hpp"
#include "history/reference.hpp"

namespace twinrun {

// A session's member, used by the thread that captures.
class StepIntake {
   public:
    // What a step goes through. All of it outlives this, except for the stage, which ends first:
    // its thread calls the intake.
    struct Stations {
        Intake* intake = nullptr;
        Pipeline* pipeline = nullptr;
        const Reference* reference = nullptr;  // null: nothing to compare with
        StagingRing* ring = nullptr;           // null: the capturing thread does all work
        DeviceStage* stage = nullptr;          // null: capture() copies arrays from devices itself
    };
    // stop_on_divergence: the comparison with the reference ends before take() returns.
    StepIntake(const Stations& stations, bool stop_on_divergence)
        : to_(stations), stop_on_divergence_(stop_on_divergence) {}

    // A step that is being taken. finish() must be called, whatever happens.
    struct Taking {
        std::shared_ptr<PendingStep> step;
        bool added = false;  // to the pipeline: the step will be settled there
        Intake::OnDevices devices;
        std::shared_ptr<StagedArrays> staged;  // null: the stage holds no arrays of the step
        Result<> taken = success();            // whether all bytes were taken
        double waited_seconds = 0;             // spent waiting for memory
        // Where the step differs from the reference, if that is known when take() returns.
        std::optional<Divergence> divergence;
    };
    // Begins a step with the layout that the intake planned. ordinal: its number among the steps
    // that all ranks agreed on. Throws std::bad_alloc.
    [[nodiscard]] Taking begin(std::int64_t number, std::uint32_t attempt, std::uint64_t ordinal) const;
    // Copies or digests the fields that were planned, or copies those on devices to the stage. Sets
    // all other members of `taking`.
    void take(Taking& taking, const std::vector<CapturedField>& fields) const;
    // Seals the step if it was added: now, or when the stage has brought its arrays to the host.
    // After an error, `taking.taken` says so.
    void finish(Taking& taking) const;

   private:
    [[nodiscard]] bool residues_stay(const StepLayout& layout, const Intake::OnDevices& devices) const;
    bool hand_over(Taking& taking) const;

    const Stations to_;
    const bool stop_on_divergence_;
};

}  // namespace twinrun
