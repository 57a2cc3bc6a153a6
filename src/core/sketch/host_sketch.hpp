// Tree, fine digests and residues of one field in host memory: what device_sketch.hpp keeps on
// devices, for arrays that are not on one. Comparisons say the same, whichever holds them.
#pragma once

#include <span>
#include <vector>

#include "sketch/device_sketch.hpp"

namespace twinrun {

class HostSketch {
   public:
    static Result<HostSketch> build(const FieldMetadata& field, ElementSource& source,
                                    const StreamOptions& options = {});
    // Of many arrays, in their order: small ones are divided over threads.
    static Result<std::vector<HostSketch>> build(std::span<const FieldMetadata* const> fields,
                                                 std::span<ElementSource* const> sources,
                                                 const StreamOptions& options = {});
    // From a metadata file, whose checksums are checked.
    static Result<HostSketch> load(MetadataFile& file, std::size_t field);
    // A copy of what a device has.
    static Result<HostSketch> download(const DeviceSketch& sketch);

    // As DeviceSketch::compare.
    [[nodiscard]] Result<SketchComparison> compare(const HostSketch& b, const DifferenceRule& rule) const;

    // With counts and largest_sampled.
    [[nodiscard]] const FieldMetadata& field() const { return field_; }
    [[nodiscard]] const BuiltField& built() const { return built_; }
    [[nodiscard]] std::uint64_t bytes() const;

   private:
    HostSketch(const FieldMetadata& field, BuiltField built);
    FieldMetadata field_;
    BuiltField built_;
};

}  // namespace twinrun
