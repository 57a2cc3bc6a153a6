// Steps of a record into device memory.
#pragma once

#include <cstdint>

#include "device/device.hpp"
#include "restore/chain.hpp"

namespace twinrun {

// A whole segment to `to`, device memory of its size, any alignment. Each payload chunk goes to the
// device once, however many places it has there; and what has come is checked against the content
// that was recorded, on the device. Returns when all is there; `stream` is the caller's, and what
// is in it before comes first. Errors: those of RecordChain; unsupported: no library for devices.
Result<> read_segment_to_device(RecordChain& chain, const StepMap& map, std::size_t segment, int device,
                                std::byte* to, StreamHandle stream);

}  // namespace twinrun
