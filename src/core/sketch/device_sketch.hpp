// Sketches of fields that stay in device memory, and their comparison there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "difference/difference.hpp"
#include "sketch/build.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sums.hpp"
#include "source/device_array.hpp"

namespace twinrun {

struct SketchMemory;

// What two sketches of a field say, as the staged comparison of metadata would.
struct SketchComparison {
    std::uint64_t chunks = 0;
    std::uint64_t by_tree = 0;           // scalars of chunks whose coarse digests are equal
    std::vector<std::uint32_t> flagged;  // chunks whose coarse digests differ; ascending
    // Of these, those that residues do not prove equal; ascending.
    std::vector<std::uint32_t> open;
    bool decided = false;                     // a scalar of each open chunk differs: see digests_decide()
    std::array<std::uint64_t, 8> by_cells{};  // scalars of proven chunks by |c|
    [[nodiscard]] bool same() const { return open.empty(); }
};

// Tree, fine digests and residues of one field, kept in device memory: for comparing runs while
// they run, without storage and without the data of the other run. Move-only; a const sketch may be
// used from several threads.
class DeviceSketch {
   public:
    // One sketch a field, all arrays on one device. Hundreds share one block of device memory,
    // which goes back to a pool with the last of them. Strided arrays are gathered in slices; what
    // is kept must fit. Waits until the sketches are made: then the arrays may change.
    static Result<std::vector<DeviceSketch>> build(std::span<const FieldMetadata* const> fields,
                                                   std::span<const DeviceArray* const> arrays,
                                                   const DeviceBuildOptions& options = {});
    // A sketch that was made before: from memory, or from a metadata file (a reference history),
    // whose checksums are checked.
    static Result<DeviceSketch> upload(const FieldMetadata& field, const BuiltField& built, int device);
    static Result<DeviceSketch> upload(MetadataFile& file, std::size_t field, int device);
    // The first for many fields, which share one block of device memory.
    static Result<std::vector<DeviceSketch>> upload(std::span<const FieldMetadata* const> fields,
                                                    std::span<const BuiltField* const> built, int device);

    // The tree walked and the residues of what differs checked, on the device. b: of the same
    // device and settings. Errors: mismatch if the two cannot be compared this way under the rule
    // (why_not_staged's words).
    [[nodiscard]] Result<SketchComparison> compare(const DeviceSketch& b, const DifferenceRule& rule) const;
    // The same of many pairs, which wait for the device together: one that is equal costs a look at
    // two roots, and no launch of its own. Errors of a pair name its field.
    static Result<std::vector<SketchComparison>> compare(std::span<const DeviceSketch* const> a,
                                                         std::span<const DeviceSketch* const> b,
                                                         std::span<const DifferenceRule> rules);

    // Back to the host.
    Result<> download(BuiltField& into) const;

    // With counts and largest_sampled.
    [[nodiscard]] const FieldMetadata& field() const { return field_; }
    [[nodiscard]] int device() const;
    [[nodiscard]] std::uint64_t bytes() const;  // of device memory

   private:
    friend class SketchGroup;
    friend class SketchPairs;
    FieldMetadata field_;
    std::shared_ptr<SketchMemory> memory_;  // of all sketches that were built together
    std::size_t tree_ = 0;                  // where in it
    std::size_t fine_ = 0;
    std::size_t residues_ = 0;
    std::size_t sums_ = 0;
    std::shared_ptr<const DeviceSumsPlan> plan_;  // of its sums; null: there are none on the device
    std::optional<BuiltSums> made_sums_;          // of what was uploaded
};

}  // namespace twinrun
