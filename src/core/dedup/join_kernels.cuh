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

__global__ void __launch_bounds__(kSimpleThreads) write_runs(DeviceJoin what, HeadsOf heads) {
    const std::uint64_t at = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (at >= what.count) return;
    const auto j = static_cast<std::uint32_t>(at);
    // All are constant: the first one is.
    const auto here = static_cast<std::uint32_t>(what.heads[j]);
    const std::uint32_t entry = (here & ~kHead) - 1;
    const bool head = (here & kHead) != 0;
    if (head || j == 0) {
        bool repeat = false;
        if (!head) {
            repeat = heads.step_to(0) == 0;
        } else if (j + 1 < what.count && (static_cast<std::uint32_t>(what.heads[j + 1]) & kHead) == 0) {
            repeat = heads.step_to(j + 1) == 0;
        }
        what.entries[entry].begin = what.changed[j];
        what.entries[entry].source = (what.sources[j] & ~kDeviceFresh) | (repeat ? kDeviceFresh : 0);
        if (j != 0) what.entries[entry - 1].last = what.changed[j - 1];
    }
    if (j + 1 == what.count) what.entries[entry].last = what.changed[j];
}
// After it: the state was read until then.
__global__ void end_runs(DeviceJoin what, HeadsOf heads) {
    const std::uint32_t j = what.count - 1;
    const auto here = static_cast<std::uint32_t>(what.heads[j]);
    const std::uint32_t step = heads.step_to(j);
    *what.entry_count = here & ~kHead;
    *what.continues = (static_cast<std::uint32_t>(what.heads[0]) & kHead) == 0 ? 1 : 0;
    DeviceJoinState next;
    if (!what.alone) {
        next.chunk = what.first + what.changed[j];
        next.source = what.sources[j];
        next.open = 1;
        next.head = (here & kHead) != 0 ? 1 : 0;
        next.step = next.head != 0 ? 0 : step;
    }
    *what.state = next;
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

// For each changed chunk that begins a region: the levels above it.
__global__ void __launch_bounds__(kSimpleThreads) find_regions(DeviceTreeJoin what) {
    const std::uint64_t j = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j >= what.count) return;
    std::uint64_t node = what.width + what.changed[j];
    std::uint8_t level = 0;
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
__global__ void __launch_bounds__(kSimpleThreads) write_regions(DeviceTreeJoin what) {
    const std::uint64_t j = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j >= what.count) return;
    const std::uint8_t level = what.levels[j];
    const std::uint32_t place = what.places[j];
    if (level != kNoRegion) {
        const std::uint32_t begin = what.changed[j];
        const std::uint64_t node = (what.width + begin) >> level;
        what.entries[place] = {begin, begin + (1U << level) - 1, what.at[node]};
    }
    if (j + 1 == what.count) {
        *what.entry_count = place + (level != kNoRegion ? 1 : 0);
        *what.continues = 0;
        *what.state = {};
    }
}

}  // namespace

}  // namespace gpu

}  // namespace twinrun
