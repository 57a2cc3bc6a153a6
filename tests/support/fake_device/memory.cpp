#include "support/fake_device/memory.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "support/fake_device/streams.hpp"

namespace twinrun::fake {

namespace {

constexpr int kFresh = 0xCD;
constexpr int kReleased = 0xDD;

std::map<const std::byte*, Block> blocks;
std::array<std::uint64_t, kMostDevices> used{};

}  // namespace

std::uint64_t memory_of_each() {
    static const std::uint64_t once = number_of("TWINRUN_FAKE_DEVICE_MEMORY", std::uint64_t{8} << 30);
    return once;
}
std::uint64_t free_bytes(int device) { return memory_of_each() - used[static_cast<std::size_t>(device)]; }
std::uint64_t block_count() { return blocks.size(); }

const std::pair<const std::byte* const, Block>* block_of(const void* memory) {
    const auto* at = static_cast<const std::byte*>(memory);
    auto next = blocks.upper_bound(at);
    if (next == blocks.begin()) return nullptr;
    --next;
    return at < next->first + next->second.bytes ? &*next : nullptr;
}

bool lies_on(int device, const void* memory, std::size_t bytes) {
    if (bytes == 0) return true;
    const auto* block = block_of(memory);
    return block != nullptr && block->second.device == device &&
           bytes <= block->second.bytes -
                        static_cast<std::size_t>(static_cast<const std::byte*>(memory) - block->first);
}

DeviceStatus take(int device, std::size_t bytes, void** memory) {
    *memory = nullptr;
    const bool here = device >= 0;
    if (here && bytes > memory_of_each() - std::min(memory_of_each(), used[static_cast<std::size_t>(device)]))
        return failure(ErrorCode::out_of_memory, device, "not enough device memory");
    *memory = std::aligned_alloc(256, (std::max<std::size_t>(bytes, 1) + 255) / 256 * 256);
    if (*memory == nullptr)
        return failure(ErrorCode::out_of_memory, std::max(device, 0), "not enough memory");
    std::memset(*memory, kFresh, bytes);
    blocks[static_cast<const std::byte*>(*memory)] = {device, bytes};
    if (here) used[static_cast<std::size_t>(device)] += bytes;
    return {};
}

void drop(int device, void* memory) {
    const Lock lock(lock_of_all);
    if (memory == nullptr) return;
    const auto found = blocks.find(static_cast<const std::byte*>(memory));
    if (found == blocks.end() || found->second.device != device) {
        std::fprintf(stderr, "fake device: memory that was not given here is released\n");
        std::abort();
    }
    // As the driver does: it waits for the device.
    for (int d = 0; d < kMostDevices; ++d) {
        if (device == kHostMemory || d == device) finish_all(d);
    }
    if (device >= 0) used[static_cast<std::size_t>(device)] -= found->second.bytes;
    std::memset(memory, kReleased, found->second.bytes);
    blocks.erase(found);
    std::free(memory);
}

}  // namespace twinrun::fake
