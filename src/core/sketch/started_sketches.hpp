// Sketches of many arrays on one device while they are made: started by the caller, waited for or
// brought to the host by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sketch/build.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// How the sketches of certain arrays are made. Any thread may use it, and several times: the arrays
// are the same then, their elements are not.
struct SketchPlan;

// Sketches that were made together. An object of one is made where it is asked for, by any thread.
class SketchGroup {
   public:
    [[nodiscard]] std::size_t size() const;
    [[nodiscard]] DeviceSketch at(std::size_t number) const;

   private:
    friend class StartedSketches;
    std::shared_ptr<const SketchPlan> plan_;
    std::shared_ptr<SketchMemory> memory_;
    std::vector<std::byte> stats_;
};

// Residues of the fields of one device, in its memory. They lie as in a metadata file that has no
// others (ResidueLayout), with zeros between them.
struct DeviceResidues {
    std::shared_ptr<const void> memory;  // owns them
    const std::byte* bytes = nullptr;
    std::uint64_t size = 0;  // whole pages
    int device = 0;
    std::vector<std::uint64_t> places;  // where those of each field begin
};

// Used by one thread at a time.
class StartedSketches {
   public:
    // All arrays lie on one device. The owners of arrays are kept as long as the plan. Errors:
    // those of build_on_device().
    static Result<std::shared_ptr<const SketchPlan>> plan(std::vector<FieldMetadata> fields,
                                                          std::vector<DeviceArray> arrays);
    // Returns as soon as the work is in a stream of the device. Work that is put into the arrays'
    // streams later waits for it: it may change the arrays. What is strided is gathered in slices.
    // Errors: of the device; not enough memory of it for all that is kept.
    static Result<std::unique_ptr<StartedSketches>> start(std::shared_ptr<const SketchPlan> plan,
                                                          const DeviceBuildOptions& options = {});
    // The same, but later work of the streams of the arrays waits from lead() on only: what is
    // begun behind this does not wait for it.
    static Result<std::unique_ptr<StartedSketches>> begin(std::shared_ptr<const SketchPlan> plan,
                                                          const DeviceBuildOptions& options = {});
    Result<> lead();
    // As start(), without a plan. The fields must stay as long as this.
    static Result<std::unique_ptr<StartedSketches>> start(std::vector<const FieldMetadata*> fields,
                                                          std::vector<DeviceArray> arrays,
                                                          const DeviceBuildOptions& options = {});
    // The same for bring_but_residues().
    static Result<std::unique_ptr<StartedSketches>> start_with_residues(
        std::vector<const FieldMetadata*> fields, std::vector<DeviceArray> arrays,
        const DeviceBuildOptions& options = {});
    ~StartedSketches();  // waits for the work

    // Waits until they are made.
    Result<> wait();
    // Waits; one a field, which share one block of device memory. Once.
    Result<SketchGroup> sketches();
    // Waits, and brings all of them to the host, as build_on_device() does.
    Result<> bring(std::vector<BuiltField>& into, const TakeResidues& take = nullptr);
    // The same, but residues stay on the device. Once.
    Result<DeviceResidues> bring_but_residues(std::vector<BuiltField>& into);

   private:
    struct Work;
    explicit StartedSketches(std::unique_ptr<Work> work);
    std::unique_ptr<Work> work_;
};

}  // namespace twinrun
