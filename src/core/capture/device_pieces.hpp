// Brings the elements of arrays on devices to the host, in pieces of the data file.
#pragma once

#include <vector>

#include "capture/pipeline.hpp"
#include "capture/staging.hpp"
#include "platform/team.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// What is brought, and with what. All of it outlives the call.
struct DevicePieces {
    Team& team;
    StagingRing* ring;  // null: a thread processes each piece that it brought
    Pipeline& pipeline;
    // For each field of the step its array on a device; null: its elements are not brought.
    std::vector<const DeviceArray*> arrays;
};

// Gives the pipeline each piece on devices that one of the arrays has elements in. The team's
// threads have a piece each on its way, and another under work. The bytes of fields that are not
// brought are left as they are. waited: grows by the seconds that one thread, at most, waited for
// the ring. Errors: the devices'; out_of_memory.
Result<> bring_pieces(const std::shared_ptr<PendingStep>& step, const DevicePieces& with, double& waited);

}  // namespace twinrun
