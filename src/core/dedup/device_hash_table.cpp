#include "dedup/device_hash_table.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "dedup/hash_table.hpp"

namespace twinrun {

namespace {

// Chunks and their hashes that are on the device at once while they are learned.
constexpr std::size_t kLearnBytes = std::size_t{32} << 20;

std::uint64_t slot_limit(std::uint64_t table_bytes) {
    if (table_bytes == 0) return std::uint64_t{1} << 62;
    return std::max(HashTable::kSmallest,
                    std::bit_floor(table_bytes / (HashTable::kSlotBytes + HashTable::kSlotBytes / 2)));
}

}  // namespace

DeviceHashTable::DeviceHashTable(DedupContext& context)
    : context_(context), most_slots_(slot_limit(context.options.table_bytes)) {}

void DeviceHashTable::clear() {
    slots_ = 0;
    entries_ = 0;
    table_.clear();
}

Result<> DeviceHashTable::reserve(std::uint64_t more) {
    DedupContext& c = context_;
    if (more > most_at_once())
        return Error{ErrorCode::internal, "a table of hashes that is too small for a batch"};
    if (entries_ + more <= slots_ / 2) return success();
    const std::uint64_t needed = std::max(HashTable::kSmallest, std::bit_ceil(2 * (entries_ + more)));
    if (needed <= most_slots_) return rebuild(needed, 0, entries_);
    // The entries used last stay: as many whole steps of them as leave room for `more` and half of
    // the rest free.
    const std::uint64_t room = (most_slots_ / 2 - more) / 2;
    std::uint64_t kept = 0;
    std::uint32_t since = 0;
    for (unsigned shift = 24; shift != 0;) {  // ordinals have 24 bits: found 8 at a time
        shift -= 8;
        auto* const uses = c.control.as<unsigned long long>(DedupContext::kUsesAt);
        constexpr std::size_t kBytes = 256 * sizeof(unsigned long long);
        TWR_CHECK(c.fill(uses, 0, kBytes, c.working));
        TWR_CHECK(to_result(c.kernels.count_by_use(c.device, view(), shift, since, uses, c.working.get())));
        const auto* const found = c.control_host.as<unsigned long long>(DedupContext::kUsesAt);
        TWR_CHECK(c.copy(c.control_host.data() + DedupContext::kUsesAt, uses, kBytes, c.working));
        TWR_CHECK(c.wait(c.working));
        std::uint32_t digit = 256;
        while (digit != 0 && kept + found[digit - 1] <= room)
            kept += found[--digit];
        // Entries with the digit below are too many as a whole.
        since = since << 8 | (digit == 0 ? 0 : digit - 1);
        if (shift == 0 && digit != 0) ++since;
    }
    return rebuild(most_slots_, since, kept);
}

// A table of this many slots with the entries that were used since. They are taken out first and
// the old slots are given back, so that both tables are never there at once.
Result<> DeviceHashTable::rebuild(std::uint64_t slots, std::uint32_t used_since, std::uint64_t kept) {
    DedupContext& c = context_;
    if (slots > kMostDeviceSlots || slots > std::numeric_limits<std::size_t>::max() / sizeof(DeviceDedupSlot))
        return Error{ErrorCode::out_of_memory,
                     "more than 2^32 slots for a table of hashes on a device: set a limit"};
    DeviceMemory taken;
    if (kept != 0) {
        TWR_CHECK(taken.reserve(c.device, kept * sizeof(DeviceDedupSlot)));
        TWR_CHECK(c.clear_counts());
        TWR_CHECK(to_result(c.kernels.take_out(c.device, view(), used_since, taken.as<DeviceDedupSlot>(),
                                               &c.device_counts()->made, c.working.get())));
        TWR_CHECK(c.fetch_counts());
        if (c.counts().made != kept)
            return Error{ErrorCode::internal, "a table of hashes with another number of entries"};
    }
    const std::size_t bytes = slots * sizeof(DeviceDedupSlot);
    TWR_CHECK(table_.reserve(c.device, bytes));
    TWR_CHECK(c.fill(table_.data(), 0, bytes, c.working));
    slots_ = slots;
    evicted_ += entries_ - kept;
    entries_ = kept;
    if (kept == 0) return success();
    TWR_CHECK(
        to_result(c.kernels.put_in(c.device, view(), taken.as<DeviceDedupSlot>(), kept, c.working.get())));
    return c.wait(c.working);
}

Result<> DeviceHashTable::learn(Location first, std::span<const std::byte> chunks, DeviceMemory& scratch) {
    DedupContext& c = context_;
    const std::uint64_t count = chunks.size() / c.chunk;
    const std::uint64_t most = std::max<std::uint64_t>(1, most_at_once() / 2);
    const std::uint64_t at_once = std::min<std::uint64_t>(
        std::max<std::uint64_t>(1, kLearnBytes / (c.chunk + sizeof(ChunkHash))), count);
    TWR_CHECK(scratch.reserve(c.device, at_once * (c.chunk + sizeof(ChunkHash))));
    for (std::uint64_t done = 0; done < count;) {
        const std::uint64_t part = std::min(most, count - done);
        TWR_CHECK(reserve(part));
        TWR_CHECK(c.clear_counts());
        for (std::uint64_t from = done; from < done + part; from += at_once) {
            const std::uint64_t n = std::min(at_once, done + part - from);
            auto* const hashes = scratch.as<ChunkHash>(at_once * c.chunk);
            TWR_CHECK(c.copy(scratch.data(), chunks.data() + from * c.chunk, n * c.chunk, c.working));
            TWR_CHECK(to_result(c.kernels.hash_chunks(c.device, scratch.data(), n, c.options.chunk_bytes,
                                                      hashes, c.working.get())));
            TWR_CHECK(to_result(c.kernels.insert(c.device, view(), hashes, n, c.mask, first + from,
                                                 ordinal_of(first), c.working.get())));
        }
        TWR_CHECK(c.fetch_counts());
        entries_ += c.counts().made;
        done += part;
    }
    return success();
}

}  // namespace twinrun
