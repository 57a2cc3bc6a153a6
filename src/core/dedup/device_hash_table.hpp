// The table of all hashes seen, in device memory: grows, and at its limit drops the entries whose
// last use is longest ago.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.hpp"
#include "dedup/dedup_context.hpp"
#include "dedup/dedup_device.hpp"

namespace twinrun {

// As HashTable of the host. Not thread-safe. All work is put into the context's stream `working`.
class DeviceHashTable {
   public:
    explicit DeviceHashTable(DedupContext& context);

    // For kernels. Entries that they add are counted in DedupCounts::made.
    [[nodiscard]] DeviceDedupTable view() const {
        return {table_.as<DeviceDedupSlot>(), slots_, &context_.device_counts()->made};
    }
    // The most entries that one batch may add.
    [[nodiscard]] std::uint64_t most_at_once() const { return most_slots_ / 2; }
    // How many more entries there is room for, without one that leaves.
    [[nodiscard]] std::uint64_t room() const { return most_at_once() - std::min(entries_, most_at_once()); }
    // Makes room for this many more entries, at most most_at_once(). Counts are lost.
    Result<> reserve(std::uint64_t more);
    // Entries that kernels have added.
    void added(std::uint64_t entries) { entries_ += entries; }
    // Enters the hashes of whole chunks in host memory, at Locations from `first` on. scratch:
    // device memory that is idle.
    Result<> learn(Location first, std::span<const std::byte> chunks, DeviceMemory& scratch);
    // Drops all entries and their memory.
    void clear();

    [[nodiscard]] std::uint64_t entries() const { return entries_; }
    [[nodiscard]] std::uint64_t evicted() const { return evicted_; }
    [[nodiscard]] std::uint64_t table_bytes() const { return slots_ * sizeof(DeviceDedupSlot); }
    [[nodiscard]] std::uint64_t memory_bytes() const { return table_.bytes(); }

   private:
    Result<> rebuild(std::uint64_t slots, std::uint32_t used_since, std::uint64_t kept);

    DedupContext& context_;
    const std::uint64_t most_slots_;
    std::uint64_t slots_ = 0;
    std::uint64_t entries_ = 0;
    std::uint64_t evicted_ = 0;
    DeviceMemory table_;
};

}  // namespace twinrun
