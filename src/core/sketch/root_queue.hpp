// Roots of the digests of arrays on devices, made in the background: a queue a device, whose
// answers come back in order. For who digests many arrays, a few at a time, and reads the roots
// later.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "metadata/metadata.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// Roots that were asked for together. Thread-safe.
class QueuedRoots {
   public:
    QueuedRoots() = default;
    QueuedRoots(const QueuedRoots&) = delete;
    QueuedRoots& operator=(const QueuedRoots&) = delete;
    virtual ~QueuedRoots() = default;

    // Waits until they are made. One a field, in the order of the fields; 0 where it has no
    // element.
    // Errors: the device's.
    virtual Result<std::vector<std::uint64_t>> roots() = 0;
};

// Returns as soon as the work is in a stream of the device; waits only where results of more than
// kQueuedBytes are under way. Work that is put into the arrays' streams later waits for it: it may
// change the arrays, or free them. Fields: whole, without residues, linear. All arrays lie on one
// device; what is strided is gathered. Thread-safe. Errors: those of build_on_device().
Result<std::shared_ptr<QueuedRoots>> queue_roots(std::vector<FieldMetadata> fields,
                                                 std::vector<DeviceArray> arrays);

// Page-locked memory of the host for what is under way on a device.
inline constexpr std::size_t kQueuedBytes = std::size_t{16} << 20;

}  // namespace twinrun
