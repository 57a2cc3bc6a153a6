// Sketches of many arrays on one device while they are made: started by the caller, waited for or
// brought to the host by any thread.
#pragma once

#include <memory>
#include <vector>

#include "sketch/build.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// Used by one thread at a time.
class StartedSketches {
   public:
    // Returns as soon as the work is in a stream of the device. Work that is put into the arrays'
    // streams later waits for it: it may change the arrays. All arrays lie on one device; what is
    // strided is gathered in slices. The fields must stay as long as this. Errors: those of
    // build_on_device(); not enough memory of the device for all that is kept.
    static Result<std::unique_ptr<StartedSketches>> start(std::vector<const FieldMetadata*> fields,
                                                          std::vector<DeviceArray> arrays,
                                                          const DeviceBuildOptions& options = {});
    // The same for fields that become those of the sketches.
    static Result<std::unique_ptr<StartedSketches>> start(std::vector<FieldMetadata> fields,
                                                          std::vector<DeviceArray> arrays,
                                                          const DeviceBuildOptions& options = {});
    ~StartedSketches();  // waits for the work

    // Waits until they are made.
    Result<> wait();
    // Waits; one a field, which share one block of device memory. Once.
    Result<std::vector<DeviceSketch>> sketches();
    // Waits, and brings all of them to the host, as build_on_device() does.
    Result<> bring(std::vector<BuiltField>& into, const TakeResidues& take = nullptr);

   private:
    struct Work;
    explicit StartedSketches(std::unique_ptr<Work> work);
    std::unique_ptr<Work> work_;
};

}  // namespace twinrun
