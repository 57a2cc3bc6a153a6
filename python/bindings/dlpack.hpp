// DLPack capsules: where an array of another library lies.
#pragma once

#include <nanobind/nanobind.h>

namespace twinrun {

// {device_type, device, code, bits, lanes, shape, strides (in elements, or None), address, read_only}. The capsule is not
// consumed: its memory stays as long as it does. Raises BufferError for what is no capsule of DLPack's, or a newer one.
nanobind::dict dlpack_facts(nanobind::handle capsule);

}  // namespace twinrun
