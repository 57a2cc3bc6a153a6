// Checksums (base/checksum.hpp) of bytes that are in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

struct DeviceChecksums {
    std::vector<std::uint64_t> pages;
    std::vector<std::uint64_t> others;
};

// XXH3 of each page of `pages`, which is 16-byte aligned and whole pages of page_bytes (a power of
// two, at least 256), and of each of `others`, which are short: they come to the host. Waits for
// the device; what wrote these bytes is complete. Thread-safe. Errors: of the device;
// out_of_memory.
Result<DeviceChecksums> device_checksums(int device, std::span<const std::byte> pages,
                                         std::uint32_t page_bytes,
                                         std::span<const std::span<const std::byte>> others);

}  // namespace twinrun
