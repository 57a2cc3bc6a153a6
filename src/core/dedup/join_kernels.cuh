// Private to dedup_cuda.cu: from the sources of chunks to the entries of a step: runs, or regions
// of the published method.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dedup/kernel_support.cuh"
#include "dedup/scans.cuh"
#include "dedup/table_kernels.cuh"

namespace twinrun {

namespace gpu {

namespace {

// ---- entries ----

// Here a thread has four chunks in a row.
constexpr std::uint32_t kChunksOfThread = ChunkTile::kItems / kSimpleThreads;
struct HeadsOfThread {
    std::uint32_t first;
    HeadMap maps[kChunksOfThread];
    HeadMap all;
    __device__ HeadsOfThread(const HeadsOf& heads, std::uint32_t count)
        : first(blockIdx.x * ChunkTile::kItems + threadIdx.x * kChunksOfThread), all(same_head()) {
#pragma unroll
        for (std::uint32_t k = 0; k < kChunksOfThread; ++k) {
            maps[k] = first + k < count ? heads(first + k) : same_head();
            all = join_heads(all, maps[k]);
        }
    }
};

__global__ void __launch_bounds__(kSimpleThreads)
    find_heads(HeadsOf heads, std::uint32_t count, HeadMap* tiles) {
    const HeadsOfThread own(heads, count);
    HeadMap all;
    joined_threads_before(own.all, all);
    if (threadIdx.x == 0) tiles[blockIdx.x] = all;
}

__global__ void __launch_bounds__(kSimpleThreads)
    write_runs(DeviceJoin what, HeadsOf heads, const HeadMap* tiles) {
    // What the tiles before this one make: each thread joins some of them, in order.
    HeadMap some = same_head();
    const std::uint32_t each = (blockIdx.x + kSimpleThreads - 1) / kSimpleThreads;
    for (std::uint32_t t = threadIdx.x * each; t < min(blockIdx.x, (threadIdx.x + 1) * each); ++t)
        some = join_heads(some, tiles[t]);
    HeadMap tiles_before;
    joined_threads_before(some, tiles_before);

    const HeadsOfThread own(heads, what.count);
    HeadMap tile;
    const HeadMap before = join_heads(tiles_before, joined_threads_before(own.all, tile));
    // It is the same for a head and for another chunk: that of the first chunk is.
    auto here = static_cast<std::uint32_t>(before);
#pragma unroll
    for (std::uint32_t k = 0; k < kChunksOfThread; ++k) {
        const std::uint32_t j = own.first + k;
        if (j >= what.count) return;
        here = head_after(own.maps[k], here);
        const std::uint32_t entry = (here & ~kHead) - 1;
        const bool head = (here & kHead) != 0;
        if (head || j == 0) {
            bool repeat = false;
            if (!head) {
                repeat = heads.step_to(0) == 0;
            } else if (j + 1 < what.count) {
                const HeadMap next = k + 1 < kChunksOfThread ? own.maps[k + 1] : heads(j + 1);
                repeat = (head_after(next, here) & kHead) == 0 && heads.step_to(j + 1) == 0;
            }
            what.entries[entry].begin = what.changed[j];
            what.entries[entry].source = (what.sources[j] & ~kDeviceFresh) | (repeat ? kDeviceFresh : 0);
            if (j != 0) what.entries[entry - 1].last = what.changed[j - 1];
        }
        if (j == 0) *what.continues = head ? 0 : 1;
        if (j + 1 != what.count) continue;
        what.entries[entry].last = what.changed[j];
        *what.entry_count = here & ~kHead;
        DeviceJoinState next;
        if (!what.alone) {
            next.chunk = what.first + what.changed[j];
            next.source = what.sources[j];
            next.open = 1;
            next.head = head ? 1 : 0;
            next.step = head ? 0 : heads.step_to(j);
        }
        *what.next = next;
    }
}

// ---- the published compaction ----

enum Label : std::uint8_t { kNone, kFirst, kCopy };
constexpr std::uint32_t kSubtree = 1024;

__global__ void __launch_bounds__(kSimpleThreads) label_leaves(DeviceTreeJoin what) {
    const std::uint64_t j = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j >= what.count) return;
    const std::uint64_t leaf = what.width + what.changed[j];
    const Location source = what.sources[j];
    what.labels[leaf] = (source & kDeviceFresh) != 0 ? kFirst : kCopy;
    what.at[leaf] = source & ~kDeviceFresh;
}

// A block the levels above `leaves` nodes of a level of `nodes`: up to ten of them. Where no two
// neighbours have the label, nothing is done.
template <Label Which>
__global__ void __launch_bounds__(kSimpleThreads)
    climb(DeviceTreeJoin what, std::uint64_t nodes, std::uint32_t leaves, std::uint32_t level) {
    __shared__ std::uint8_t labels[2 * kSubtree];
    __shared__ ChunkHash hashes[kSubtree];
    const std::uint64_t root = nodes / leaves + blockIdx.x;
    const std::uint64_t bottom = nodes + std::uint64_t{blockIdx.x} * leaves;
    bool some = false;
    for (std::uint32_t i = threadIdx.x; i < leaves; i += kSimpleThreads) {
        const std::uint8_t label = what.labels[bottom + i];
        labels[leaves + i] = label;
        some = some || label == Which;
    }
    if (__syncthreads_or(some ? 1 : 0) == 0) return;
    std::uint32_t above = 0;
    for (std::uint32_t n = leaves / 2; n != 0; n /= 2) {
        ++above;
        bool made = false;
        for (std::uint32_t i = threadIdx.x; i < n; i += kSimpleThreads) {
            const std::uint32_t h = n + i;
            labels[h] = kNone;
            if (labels[2 * h] != Which || labels[2 * h + 1] != Which) continue;
            const std::uint64_t node = root * n + i;  // in the tree
            ChunkHash left;
            ChunkHash right;
            if (2 * n == leaves) {
                const ChunkHash* const from =
                    level == 0 ? what.leaf_hashes + (2 * node - what.width) : what.hashes + 2 * node;
                left = from[0];
                right = from[1];
            } else {
                left = hashes[2 * h];
                right = hashes[2 * h + 1];
            }
            const ChunkHash hash = node_hash(left, right, level + above);
            const std::uint64_t low = key(hash.low & what.mask.low);
            const std::uint64_t high = key(hash.high & what.mask.high);
            if constexpr (Which == kFirst) {
                const Location at = what.at[2 * node];
                const Found found = claim_slot(what.table.slots, what.table.count, low, high);
                lower(what.table.slots[found.slot], found.made, at, what.ordinal);
                count_made(found.made, what.table.entries);
                what.at[node] = at;
            } else {
                const std::uint64_t slot = find_slot(what.table.slots, what.table.count, low, high);
                if (slot == ~std::uint64_t{0}) continue;
                DeviceDedupSlot& found = what.table.slots[slot];
                what.at[node] = ~found.not_at;
                if (found.used != what.ordinal) found.used = what.ordinal;
            }
            labels[h] = Which;
            hashes[h] = hash;
            what.labels[node] = Which;
            if (n == 1) what.hashes[node] = hash;
            made = true;
        }
        if (__syncthreads_or(made ? 1 : 0) == 0) return;
    }
}

constexpr std::uint8_t kNoRegion = 0xFF;

// For each changed chunk that begins a region: the levels above it. tiles: how many do.
__global__ void __launch_bounds__(kSimpleThreads) find_regions(DeviceTreeJoin what, std::uint32_t* tiles) {
    MarksOfWarp<ChunkTile> begins;
#pragma unroll 1
    for (unsigned r = 0; r < ChunkTile::kRounds; ++r) {
        const std::uint32_t j = ChunkTile::item(r);
        std::uint8_t level = kNoRegion;
        if (j < what.count) {
            level = 0;
            std::uint64_t node = what.width + what.changed[j];
            // A label above is that of all below it.
            while (node > 1 && what.labels[node / 2] != kNone) {
                if (node % 2 != 0) {
                    level = kNoRegion;
                    break;
                }
                node /= 2;
                ++level;
            }
            what.levels[j] = level;
        }
        begins.marks[r] = warp::ballot(level != kNoRegion);
    }
    const std::uint32_t sum = sum_of_warps(begins.count());
    if (threadIdx.x == 0) tiles[blockIdx.x] = sum;
}
__global__ void __launch_bounds__(kSimpleThreads)
    write_regions(DeviceTreeJoin what, const std::uint32_t* tiles) {
    std::uint8_t levels[ChunkTile::kRounds];
    MarksOfWarp<ChunkTile> begins;
#pragma unroll
    for (unsigned r = 0; r < ChunkTile::kRounds; ++r) {
        const std::uint32_t j = ChunkTile::item(r);
        levels[r] = j < what.count ? what.levels[j] : kNoRegion;
        begins.marks[r] = warp::ballot(levels[r] != kNoRegion);
    }
    const std::uint32_t tiles_before = sum_of_tiles_before(tiles);
    const std::uint32_t before = tiles_before + sum_of_warps_before(begins.count());
#pragma unroll
    for (unsigned r = 0; r < ChunkTile::kRounds; ++r) {
        if (!begins.has(r)) continue;
        const std::uint32_t begin = what.changed[ChunkTile::item(r)];
        const std::uint64_t node = (what.width + begin) >> levels[r];
        what.entries[before + begins.before(r)] = {begin, begin + (1U << levels[r]) - 1, what.at[node]};
    }
    if (blockIdx.x + 1 == gridDim.x && threadIdx.x + 1 == kSimpleThreads) {
        *what.entry_count = before + begins.count();
        *what.continues = 0;
        *what.next = {};
    }
}

}  // namespace

}  // namespace gpu

}  // namespace twinrun
