// Takes a step from the caller's arrays: reads each field's items in stored order, fills the pieces
// of the data file with them, and digests them on the host or on their device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/aligned.hpp"
#include "base/result.hpp"
#include "capture/device_stage.hpp"
#include "capture/layout.hpp"
#include "capture/pipeline.hpp"
#include "capture/staging.hpp"
#include "history/field.hpp"
#include "history/gather.hpp"
#include "platform/team.hpp"

namespace twinrun {

// A session's member, used by the thread that captures. Exception: the thread of a DeviceStage may
// call take_devices(), with the staged arrays of an earlier step, while the capturing thread makes
// any other call.
class Intake {
   public:
    // ring: memory that pieces are copied to. null: each piece is processed in the calling thread,
    // and no work is left when a call returns. shared: ranks write data into a common file.
    // stage_team: for the thread of a DeviceStage. All arguments by reference outlive this.
    Intake(const HistorySettings& history, bool shared, Team& team, Team& stage_team, StagingRing* ring,
           Pipeline& pipeline);

    // Makes the layout of a step of these fields, and decides how each one is read. Reads no data
    // but IDs, and these device arrays: arrays of IDs, and arrays whose rows are sorted by IDs.
    // Both are copied to the host, and `fields` then refers to the copies. Errors: those of
    // check_array(), StepLayout::make(), order_by_ids() and FieldReader::create(); mismatch;
    // not_found where the IDs of a field are not captured with it.
    Result<> plan(std::vector<CapturedField>& fields);
    [[nodiscard]] const std::shared_ptr<const StepLayout>& layout() const { return layout_; }
    // For each planned field the IDs of its rows, in the order in which rows are stored; null: it
    // has none.
    [[nodiscard]] std::vector<std::shared_ptr<const RowIds>> ids() const;

    // The fields of a step that are on devices: their numbers in the layout, metadata and arrays,
    // in the same order.
    struct OnDevices {
        std::vector<std::size_t> numbers;
        std::vector<const FieldMetadata*> metadata;
        std::vector<DeviceArray> arrays;
    };
    static OnDevices on_devices(const PendingStep& step, const std::vector<CapturedField>& fields);
    // Digests these fields on their devices, and copies their residues, and their elements if data
    // is kept, to staging memory. staged: copies or sketches of the arrays that were made earlier;
    // null: reads the arrays themselves. waited: grows by the seconds spent waiting for memory,
    // here and in take_host(), by the thread that waited longest.
    Result<> take_devices(const std::shared_ptr<PendingStep>& step, const OnDevices& fields,
                          const std::shared_ptr<StagedArrays>& staged, double& waited);
    // Takes all other fields, with the team's threads. digest_now: these threads digest too;
    // otherwise the pipeline's threads do so later.
    Result<> take_host(const std::shared_ptr<PendingStep>& step, bool digest_now, double& waited);

   private:
    // How a field of the planned step is read.
    struct Source {
        const std::byte* dense = nullptr;   // set: the items lie here in stored order, without gaps
        std::optional<FieldReader> reader;  // otherwise, for fields in host memory
        std::shared_ptr<const RowIds> ids;  // IDs of the rows in stored order; null: none
        std::vector<std::byte> brought;     // host copy of a device array that IDs are in or sort
    };
    Result<> read_order(std::vector<CapturedField>& fields);
    Result<> submit_residues(const std::shared_ptr<PendingStep>& step, std::size_t field,
                             std::uint64_t offset, std::span<const std::byte> bytes, double& waited);
    static bool leave_residues(const std::shared_ptr<PendingStep>& step, const OnDevices& fields,
                               std::span<const DeviceArray> arrays, std::vector<BuiltField>& built);
    void leave_on_devices(PendingStep& step, const OnDevices& fields,
                          const std::shared_ptr<StagedArrays>& staged) const;
    // Memory of one thread, from piece to piece.
    struct Own {
        AlignedBytes piece;            // without a ring
        std::vector<std::byte> slice;  // that no single view describes
    };
    Result<> take_piece(const std::shared_ptr<PendingStep>& step, const Piece& piece, bool digest_now,
                        Own& own, double& waited);
    Result<> digest_in_place(PendingStep& step, const Piece& piece, std::byte* residues,
                             std::vector<std::byte>& scratch);
    void copy_out_of(const Piece& piece, std::byte* image) const;

    const HistorySettings& history_;
    const bool shared_;
    Team& team_;
    Team& stage_team_;
    StagingRing* const ring_;
    Pipeline& pipeline_;
    const std::uint64_t piece_bytes_;
    std::vector<CapturedField> planned_;  // the fields that layout_ was made for
    std::shared_ptr<const StepLayout> layout_;
    std::vector<Source> sources_;
};

}  // namespace twinrun
