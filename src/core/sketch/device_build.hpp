// Digests, residues, trees and sums by place of arrays that live on devices: made there, all fields of a device in one batch.
//
// Results equal those of the host (build_in_memory) bit for bit. Our work follows each array's own stream on the device and
// does not hold it up; the calling thread waits until the results are there.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "difference/difference.hpp"
#include "sketch/build.hpp"
#include "sketch/device_sums.hpp"
#include "source/device_array.hpp"

namespace twinrun {

struct DeviceBuildOptions {
    // Device memory for results, scratch and gathered elements, on each device. 0: as much as is free, less a reserve. Less
    // than the work needs, or than the device has: the work is done in slices, the results are the same.
    std::uint64_t memory_bytes = 0;
};
struct DeviceBuildStats {
    std::uint64_t batches = 0;  // of all devices: one a device, unless memory is short
    std::uint64_t devices = 0;
    double seconds = 0;  // in all, of the caller's time
};

// Takes residues of field `field` as they come, in order, from `offset` of its section on (a multiple of kPageBytes; so is
// the size, unless it ends the section). Called from one thread a device.
using TakeResidues =
    std::function<Result<>(std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes)>;

// into[i] becomes what build_in_memory() makes of fields[i], whose elements are arrays[i]. With `take`, residues go there
// and into[i].residues is left empty. Thread-safe. Errors: an array that does not fit its field or check_array(), a device.
Result<DeviceBuildStats> build_on_device(std::span<const FieldMetadata* const> fields,
                                         std::span<const DeviceArray* const> arrays,
                                         std::vector<BuiltField>& into,
                                         const DeviceBuildOptions& options = {},
                                         const TakeResidues& take = nullptr);

// What two sketches of a field say, as the staged comparison of metadata would.
struct SketchComparison {
    std::uint64_t chunks = 0;
    std::uint64_t by_tree = 0;                // scalars of chunks whose coarse digests are equal
    std::vector<std::uint32_t> flagged;       // chunks whose coarse digests differ; ascending
    std::vector<std::uint32_t> open;          // of these, those that residues do not prove equal; ascending
    std::array<std::uint64_t, 8> by_cells{};  // scalars of proven chunks by |c|
    [[nodiscard]] bool same() const { return open.empty(); }
};

// Tree, fine digests and residues of one field, kept in device memory: for comparing runs while they run, without storage
// and without the data of the other run. Move-only; a const sketch may be used from several threads.
class DeviceSketch {
   public:
    // One sketch a field, all arrays on one device; they share one block of device memory, which goes back to a pool with the
    // last of them. Strided arrays are gathered in slices; what is kept must fit. Waits until the sketches are made: then
    // the arrays may change.
    static Result<std::vector<DeviceSketch>> build(std::span<const FieldMetadata* const> fields,
                                                   std::span<const DeviceArray* const> arrays,
                                                   const DeviceBuildOptions& options = {});
    // A sketch that was made before: from memory, or from a metadata file (a reference history), whose checksums are checked.
    static Result<DeviceSketch> upload(const FieldMetadata& field, const BuiltField& built, int device);
    static Result<DeviceSketch> upload(MetadataFile& file, std::size_t field, int device);
    // The first for many fields, which share one block of device memory.
    static Result<std::vector<DeviceSketch>> upload(std::span<const FieldMetadata* const> fields,
                                                    std::span<const BuiltField* const> built, int device);

    // The tree walked and the residues of what differs checked, on the device. b: of the same device and settings. Errors:
    // mismatch if the two cannot be compared this way under the rule (why_not_staged's words).
    [[nodiscard]] Result<SketchComparison> compare(const DeviceSketch& b, const DifferenceRule& rule) const;

    // Back to the host.
    Result<> download(BuiltField& into) const;

    [[nodiscard]] const FieldMetadata& field() const { return field_; }  // with counts and largest_sampled
    [[nodiscard]] int device() const;
    [[nodiscard]] std::uint64_t bytes() const;  // of device memory

   private:
    struct Memory;
    FieldMetadata field_;
    std::shared_ptr<Memory> memory_;  // of all sketches that were built together
    std::size_t tree_ = 0;            // where in it
    std::size_t fine_ = 0;
    std::size_t residues_ = 0;
    std::size_t sums_ = 0;
    std::shared_ptr<const DeviceSumsPlan> plan_;  // of its sums; null: there are none on the device
    std::optional<BuiltSums> made_sums_;          // of what was uploaded
};

}  // namespace twinrun
