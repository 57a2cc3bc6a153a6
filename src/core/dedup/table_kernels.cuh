// Private to dedup_cuda.cu: from hashes to the chunks that hold the same bytes already.
//
// An entry of the table is one sector of 32 bytes, so that a probe, the Location and the use of it
// are one access to memory. The protocol is that of hash_table.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dedup/kernel_support.cuh"
#include "dedup/scans.cuh"

namespace twinrun {

namespace gpu {

namespace {

// ---- the table ----

struct Found {
    std::uint64_t slot;
    bool made;
};
__device__ inline std::uint64_t key(std::uint64_t half) { return half == 0 ? 1 : half; }

// The slot of this hash, made if there is none. What is read may be older than what another thread
// wrote: then it is zero, and the atomic operation says what is there.
__device__ inline Found claim_slot(DeviceDedupSlot* slots, std::uint64_t count, std::uint64_t low,
                                   std::uint64_t high) {
    for (std::uint64_t at = low & (count - 1);; at = (at + 1) & (count - 1)) {
        DeviceDedupSlot* const slot = slots + at;
        const ulonglong2 there = __ldcg(reinterpret_cast<const ulonglong2*>(slot));
        Word found = there.x;
        if (found == 0) {
            found = atomicCAS(reinterpret_cast<Word*>(&slot->high), Word{0}, static_cast<Word>(high));
            if (found == 0) found = high;
        }
        if (found != high) continue;
        found = there.y;
        bool made = false;
        if (found == 0) {
            found = atomicCAS(reinterpret_cast<Word*>(&slot->low), Word{0}, static_cast<Word>(low));
            made = found == 0;
            if (made) found = low;
        }
        if (found == low) return {at, made};
    }
}
__device__ inline std::uint64_t find_slot(const DeviceDedupSlot* slots, std::uint64_t count,
                                          std::uint64_t low, std::uint64_t high) {
    for (std::uint64_t at = low & (count - 1);; at = (at + 1) & (count - 1)) {
        const ulonglong2 there = __ldcg(reinterpret_cast<const ulonglong2*>(slots + at));
        if (there.x == 0) return ~std::uint64_t{0};
        if (there.x == high && there.y == low) return at;
    }
}
// Lowers a slot's Location to `at`; what it was before, at the least.
__device__ inline Location lower(DeviceDedupSlot& slot, bool made, Location at, std::uint32_t ordinal) {
    Word before = 0;
    std::uint32_t used = 0;
    if (!made) {
        const ulonglong2 rest = __ldcg(reinterpret_cast<const ulonglong2*>(&slot.not_at));
        before = rest.x;
        used = static_cast<std::uint32_t>(rest.y);
    }
    if (before < ~at) before = atomicMax(reinterpret_cast<Word*>(&slot.not_at), static_cast<Word>(~at));
    if (used != ordinal || made) __stcg(&slot.used, ordinal);
    return ~before;
}
// Added up over the lanes that are here.
__device__ inline void count_made(bool made, Word* entries) {
    const unsigned here = __activemask();
    const unsigned all = warp::ballot(made, here);
    if (all != 0 && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(here)) - 1)
        atomicAdd(entries, static_cast<Word>(__popc(all)));
}

__global__ void __launch_bounds__(kSimpleThreads)
    insert_hashes(DeviceDedupTable table, const ChunkHash* hashes, std::uint64_t count, ChunkHash mask,
                  Location first, std::uint32_t ordinal) {
    const std::uint64_t i = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (i >= count) return;
    const Found found =
        claim_slot(table.slots, table.count, key(hashes[i].low & mask.low), key(hashes[i].high & mask.high));
    lower(table.slots[found.slot], found.made, first + i, ordinal);
    count_made(found.made, table.entries);
}

__global__ void __launch_bounds__(kSimpleThreads)
    uses(DeviceDedupTable table, unsigned shift, std::uint32_t above, Word* counts) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    const std::uint64_t stride = std::uint64_t{gridDim.x} * kSimpleThreads;
    for (std::uint64_t i = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x; i < table.count;
         i += stride) {
        const DeviceDedupSlot& slot = table.slots[i];
        if (slot.high != 0 && (slot.used >> shift) >> 8 == above)
            atomicAdd(own + (slot.used >> shift & 255), 1U);
    }
    __syncthreads();
    if (own[threadIdx.x] != 0) atomicAdd(counts + threadIdx.x, static_cast<Word>(own[threadIdx.x]));
}

__global__ void __launch_bounds__(kSimpleThreads)
    take_slots(DeviceDedupTable table, std::uint32_t used_since, DeviceDedupSlot* taken, Word* count) {
    const std::uint64_t stride = std::uint64_t{gridDim.x} * kSimpleThreads;
    const unsigned lane = threadIdx.x % 32;
    for (std::uint64_t i = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x; i < table.count;
         i += stride) {
        // The number of slots is a multiple of 1024: whole warps come here.
        const DeviceDedupSlot slot = table.slots[i];
        const unsigned stay = warp::ballot(slot.high != 0 && slot.used >= used_since);
        if (stay == 0) continue;
        std::uint64_t to = 0;
        if (lane == 0) to = atomicAdd(count, static_cast<Word>(__popc(stay)));
        to = warp::from(to, 0);
        if ((stay >> lane & 1) != 0)
            taken[to + static_cast<unsigned>(__popc(stay & ((1U << lane) - 1)))] = slot;
    }
}

__global__ void __launch_bounds__(kSimpleThreads)
    put_slots(DeviceDedupTable table, const DeviceDedupSlot* taken, std::uint64_t count) {
    const std::uint64_t i = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (i >= count) return;
    const DeviceDedupSlot from = taken[i];
    const Found found = claim_slot(table.slots, table.count, from.low, from.high);
    table.slots[found.slot].not_at = from.not_at;
    table.slots[found.slot].used = from.used;
}

// ---- from hashes to sources ----

constexpr Location kPending = kNoLocation;

__device__ inline Location location_of(std::uint32_t ordinal, std::uint64_t chunk) {
    return static_cast<Location>(ordinal) << kLocationChunkBits | chunk;
}

__global__ void __launch_bounds__(kSimpleThreads) enter_changed(DeviceLookUp what) {
    const std::uint64_t j = what.begin + blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j >= what.end) return;
    const ulonglong2 hash = __ldcg(reinterpret_cast<const ulonglong2*>(what.hashes + what.changed[j]));
    const Found found = claim_slot(what.table.slots, what.table.count, key(hash.x & what.mask.low),
                                   key(hash.y & what.mask.high));
    const Location before = lower(what.table.slots[found.slot], found.made,
                                  location_of(what.ordinal, kUnplaced + j), what.ordinal);
    what.slots[j] = static_cast<std::uint32_t>(found.slot);
    // One that has its place is smaller than any of those that come in now, and stays.
    what.sources[j] = before < location_of(what.ordinal, kUnplaced) ? before : kPending;
    count_made(found.made, what.table.entries);
}
// The smallest Location of each chunk; a new one is its own. tiles: how many are.
__global__ void __launch_bounds__(kSimpleThreads) see_smallest(DeviceLookUp what, std::uint32_t* tiles) {
    const Location first_unplaced = location_of(what.ordinal, kUnplaced);
    MarksOfWarp<ChunkTile> fresh;
#pragma unroll
    for (unsigned r = 0; r < ChunkTile::kRounds; ++r) {
        const std::uint64_t j = std::uint64_t{what.begin} + ChunkTile::item(r);
        Location source = 0;
        if (j < what.end) {
            source = what.sources[j];
            if (source == kPending) {
                source = ~what.table.slots[what.slots[j]].not_at;
                what.sources[j] = source;
            }
        }
        fresh.marks[r] = warp::ballot(source == first_unplaced + j);
    }
    const std::uint32_t sum = sum_of_warps(fresh.count());
    if (threadIdx.x == 0) tiles[blockIdx.x] = sum;
}
// New chunks get their places in the payload.
__global__ void __launch_bounds__(kSimpleThreads) place_fresh(DeviceLookUp what, const std::uint32_t* tiles) {
    const Location first_unplaced = location_of(what.ordinal, kUnplaced);
    MarksOfWarp<ChunkTile> fresh;
#pragma unroll
    for (unsigned r = 0; r < ChunkTile::kRounds; ++r) {
        const std::uint64_t j = std::uint64_t{what.begin} + ChunkTile::item(r);
        fresh.marks[r] = warp::ballot(j < what.end && what.sources[j] == first_unplaced + j);
    }
    const std::uint32_t tiles_before = sum_of_tiles_before(tiles);
    const std::uint32_t before = tiles_before + sum_of_warps_before(fresh.count());
#pragma unroll
    for (unsigned r = 0; r < ChunkTile::kRounds; ++r) {
        if (!fresh.has(r)) continue;
        const std::uint64_t j = std::uint64_t{what.begin} + ChunkTile::item(r);
        const std::uint32_t place = before + fresh.before(r);
        what.places[j] = place;
        what.table.slots[what.slots[j]].not_at = ~location_of(what.ordinal, what.placed + place);
        what.fresh[what.placed_in_slice + place] = what.changed[j];
    }
    if (blockIdx.x + 1 == gridDim.x && threadIdx.x + 1 == kSimpleThreads)
        *what.fresh_count = before + fresh.count();
}
// After it: places of new chunks, and of those that are equal to one of them, become Locations.
__global__ void __launch_bounds__(kSimpleThreads) locate_fresh(DeviceLookUp what) {
    const std::uint64_t j = what.begin + blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j >= what.end) return;
    const Location first_unplaced = location_of(what.ordinal, kUnplaced);
    const Location source = what.sources[j];
    if (source < first_unplaced || source >= first_unplaced + what.end) return;
    const Location at = location_of(what.ordinal, what.placed + what.places[source - first_unplaced]);
    what.sources[j] = source == first_unplaced + j ? at | kDeviceFresh : at;
}
__global__ void __launch_bounds__(kSimpleThreads)
    place_each(std::uint32_t ordinal, std::uint64_t placed, std::uint32_t count, Location* sources) {
    const std::uint64_t j = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j < count) sources[j] = location_of(ordinal, placed + j) | kDeviceFresh;
}

}  // namespace

}  // namespace gpu

}  // namespace twinrun
