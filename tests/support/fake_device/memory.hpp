// Memory of the devices, and page-locked memory: blocks of the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "support/fake_device/faults.hpp"

namespace twinrun::fake {

std::uint64_t memory_of_each();  // bytes
std::uint64_t free_bytes(int device);

struct Block {
    int device;
    std::size_t bytes;
};
// The block that an address lies in, and where it begins; null: none.
const std::pair<const std::byte* const, Block>* block_of(const void* memory);
// Whether all of it lies in one block. device: kHostMemory for page-locked memory.
bool lies_on(int device, const void* memory, std::size_t bytes);
std::uint64_t block_count();

DeviceStatus take(int device, std::size_t bytes, void** memory);
void drop(int device, void* memory);

}  // namespace twinrun::fake
