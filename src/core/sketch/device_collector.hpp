// The results of a batch, brought from device memory to the host and put where they belong in each
// field. For device_build.cpp and device_sketch.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device_workspace.hpp"
#include "sketch/device_batch.hpp"
#include "sketch/device_build.hpp"

namespace twinrun::device_batch {

// All arguments by reference outlive this.
class Collector {
   public:
    Collector(const Fields& fields, std::vector<BuiltField>& into, const TakeResidues& take)
        : fields_(fields), into_(into), take_(take), halves_(fields.fields.size()) {}

    // Page-locked memory that collect() needs.
    [[nodiscard]] static std::size_t staging_bytes(const Batch& batch);

    // Copies the batch's arena in the workspace's stream, in parts, and takes one part while the
    // next is on its way. Batches of one field follow one another in the order of its chunks.
    Result<> collect(const Tables& tables, const Batch& batch, DeviceWorkspace& workspace,
                     const std::byte* arena, std::byte* staging, std::size_t staging_bytes);

   private:
    enum class Kind { stats, sums, tree, fine, residues };
    struct Area {
        std::size_t at;
        std::size_t bytes;
        Kind kind;
        std::size_t piece;
    };
    void prepare(const Piece& p, bool residues_stay);
    void finish(const Piece& p);
    Result<> take_part(const Batch& batch, std::size_t begin, std::span<const std::byte> bytes);
    Result<> take_area(const Piece& p, const Area& area, std::size_t offset,
                       std::span<const std::byte> bytes);

    const Fields& fields_;
    std::vector<BuiltField>& into_;
    const TakeResidues& take_;
    std::vector<std::vector<std::uint64_t>> halves_;  // of the sums of each field
    std::vector<Area> areas_;
    std::size_t next_ = 0;
};

}  // namespace twinrun::device_batch
