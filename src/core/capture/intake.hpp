// How a step leaves the caller's arrays: which bytes of which field go into which piece, read in which order, digested where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "capture/device_stage.hpp"
#include "capture/layout.hpp"
#include "capture/pipeline.hpp"
#include "capture/staging.hpp"
#include "history/field.hpp"
#include "history/gather.hpp"
#include "platform/team.hpp"

namespace twinrun {

// Used by one thread at a time, but for take_devices of what a DeviceStage holds: its thread may call that beside the others.
class Intake {
   public:
    // ring: memory that pieces are copied to; null: pieces are worked on at once, and nothing is under way when a call returns.
    // shared: ranks write a file together. All that is referred to outlives this.
    Intake(const HistorySettings& history, bool shared, Team& team, StagingRing* ring, Pipeline& pipeline);

    // Makes the layout of a step of these fields, and finds out how each is read; reads nothing yet but IDs. Fields on devices by whose
    // IDs others are sorted, or that are sorted, are brought to the host.
    Result<> plan(std::vector<CapturedField>& fields);
    [[nodiscard]] const std::shared_ptr<const StepLayout>& layout() const { return layout_; }
    // Of the rows of each field, as they are kept; null: none.
    [[nodiscard]] std::vector<std::shared_ptr<const RowIds>> ids() const;

    // The fields of a step that lie on devices.
    struct OnDevices {
        std::vector<std::size_t> numbers;
        std::vector<const FieldMetadata*> metadata;
        std::vector<DeviceArray> arrays;
    };
    static OnDevices on_devices(const PendingStep& step, const std::vector<CapturedField>& fields);
    // Digests them there; their residues, and their elements if they are kept, come to staging memory. staged: what was taken of them
    // earlier, in place of the arrays themselves. waited: seconds for memory are added to it, here and below.
    Result<> take_devices(const std::shared_ptr<PendingStep>& step, const OnDevices& fields,
                          const std::shared_ptr<StagedArrays>& staged, double& waited);
    // All other fields. digest_now: in the calling threads; else behind the caller's back.
    Result<> take_host(const std::shared_ptr<PendingStep>& step, bool digest_now, double& waited);

   private:
    // A field of the step that is being captured, and how it is read.
    struct Source {
        const std::byte* dense = nullptr;  // its items lie here as they are kept
        std::optional<FieldReader> reader;
        std::shared_ptr<const RowIds> ids;  // of its rows, as they are kept; null: none
        std::vector<std::byte> brought;     // from a device, to be sorted by IDs
    };
    Result<> read_order(std::vector<CapturedField>& fields);
    void leave_on_devices(PendingStep& step, const OnDevices& fields,
                          const std::shared_ptr<StagedArrays>& staged) const;
    Result<> take_piece(const std::shared_ptr<PendingStep>& step, const Piece& piece, bool digest_now,
                        std::vector<std::byte>& scratch, double& waited);
    Result<> digest_in_place(PendingStep& step, const Piece& piece, std::byte* residues,
                             std::vector<std::byte>& scratch);
    void copy_out_of(const Piece& piece, std::byte* image) const;

    const HistorySettings& history_;
    const bool shared_;
    Team& team_;
    StagingRing* const ring_;
    Pipeline& pipeline_;
    const std::uint64_t piece_bytes_;
    std::vector<CapturedField> planned_;  // what layout_ was made for
    std::shared_ptr<const StepLayout> layout_;
    std::vector<Source> sources_;
};

}  // namespace twinrun
