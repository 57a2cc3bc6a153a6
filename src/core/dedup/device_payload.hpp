// Brings runs and payload of a step's difference from the device to the host, in pieces of limited
// size, so that what is held does not grow with what changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "dedup/dedup_context.hpp"
#include "dedup/dedup_device.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/device_image.hpp"
#include "device/event.hpp"
#include "platform/team.hpp"
#include "record/device_packer.hpp"

namespace twinrun {

// The step under way.
struct DeviceStep {
    std::uint32_t ordinal = 0;
    PayloadSink* sink = nullptr;
    StepOutcome& outcome;
    bool fully = false;        // BaseDeduplicator::taken_fully
    std::size_t runs_put = 0;  // into the outcome, which may have old ones behind them
};

// Of one slice. Addresses on the device.
struct SlicePayload {
    const DeviceRunEntry* entries = nullptr;
    std::uint64_t entry_count = 0;
    // The first entry belongs to the last run of the slices before.
    bool continues = false;
    // Numbers of the chunks to send; null: all chunks of the slice.
    const std::uint32_t* fresh = nullptr;
    std::uint64_t chunks = 0;
};

// Not thread-safe. prepare() first. Errors: the device's and the sink's.
class DevicePayload {
   public:
    DevicePayload(DedupContext& context, const DeviceImage& image);
    Result<> prepare();

    // Brings entries and chunks of a slice on their way; hands out earlier pieces where the memory
    // of one is needed.
    Result<> send(DeviceStep& step, const ImageSlice& of, const SlicePayload& what);
    // Hands out the oldest piece if it is on the host. Whether it was.
    Result<bool> hand_out_arrived(DeviceStep& step);
    // Hands out all that is still on its way.
    Result<> finish(DeviceStep& step);
    // Drops what is on its way. The streams have been waited for.
    void drop();
    // Gives memory of pieces back.
    void release();
    // Memory that is idle between steps.
    DeviceMemory& idle_memory() { return pieces_[0].staged; }
    [[nodiscard]] std::uint64_t memory_bytes() const;

   private:
    static constexpr std::size_t kPieces = 6;
    struct Piece {
        DeviceMemory staged;
        DeviceMemory host;
        DeviceEvent done;
        std::uint64_t first = 0;  // chunk of the image that its entries count from
        std::uint64_t entries = 0;
        bool continues = false;
        std::uint64_t chunks = 0;
        bool base = false;
        // Offsets in both memories.
        std::size_t chunks_at = 0;
        std::size_t base_at = 0;
        std::size_t where_at = 0;
        std::size_t bytes = 0;
        // Bytes to fill with zeros: begin, end.
        std::vector<std::pair<std::size_t, std::size_t>> gaps;
    };
    // How far send() is with a slice.
    struct Sent {
        std::uint64_t entries = 0;
        std::uint64_t chunks = 0;
    };
    [[nodiscard]] bool gives_base(const SlicePayload& what) const {
        return context_.keeps_image() && what.entries != nullptr;
    }
    [[nodiscard]] std::size_t chunk_bytes(const SlicePayload& what) const;
    [[nodiscard]] std::size_t piece_bytes(const SlicePayload& what, const Sent& sent) const;
    [[nodiscard]] std::size_t idle_piece(std::size_t needed) const;
    void plan_piece(Piece& piece, const ImageSlice& of, const SlicePayload& what, const Sent& sent) const;
    Result<> stage(Piece& piece, const ImageSlice& of, const SlicePayload& what, const Sent& sent,
                   bool in_place);
    Result<> copy_in_place(const ImageSlice& of, std::uint64_t first, Piece& piece);
    Result<> add_runs(const Piece& piece, DeviceStep& step);
    Result<> hand_out(DeviceStep& step);
    Result<> pack(DeviceStep& step, const ImageSlice& of, const SlicePayload& what);
    Result<> hand_out_packed(DeviceStep& step, bool all);
    [[nodiscard]] DeviceConsolidate consolidation(const ImageSlice& of, const SlicePayload& what,
                                                  std::uint64_t first_chunk) const;

    DedupContext& context_;
    const DeviceImage& image_;
    std::unique_ptr<DevicePacker> packer_;
    std::array<Piece, kPieces> pieces_;
    std::deque<std::size_t> under_way_;  // pieces, oldest first
    Team team_;                          // for many runs
};

}  // namespace twinrun
