// Private to dedup_cuda.cu: sums over marks, and heads of runs.
//
// Items are looked at in tiles, a block of threads each. One kernel writes what each tile makes.
// The next one adds up the tiles before its own, which are few, and goes on within it. These are
// the kernels that make and use the items. A scan of a library is two launches more, and its
// kernels wait for shared memory while chunks are hashed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dedup/kernel_support.cuh"

namespace twinrun {

namespace gpu {

namespace {

constexpr unsigned kTileWarps = kSimpleThreads / 32;

// The items of a tile: each warp has Rounds * 32 in a row, and a lane one of each 32.
template <unsigned Rounds>
struct Tile {
    static constexpr unsigned kRounds = Rounds;
    static constexpr std::uint32_t kItems = kSimpleThreads * Rounds;
    __device__ static std::uint32_t item(unsigned round) {
        return blockIdx.x * kItems + (threadIdx.x / 32 * Rounds + round) * 32 + threadIdx.x % 32;
    }
};
using WordTile = Tile<2>;   // of words of marks
using ChunkTile = Tile<4>;  // of changed chunks
constexpr std::uint32_t kSmallestTile = WordTile::kItems;

// For each thread of the block the sum of what those warps have that `counts` says. mine: of the
// caller's warp, the same for all its lanes.
template <class Counts>
__device__ inline std::uint32_t add_warps(std::uint32_t mine, Counts counts) {
    __shared__ std::uint32_t sums[kTileWarps];
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
    __syncthreads();
    std::uint32_t sum = 0;
#pragma unroll
    for (unsigned w = 0; w < kTileWarps; ++w)
        sum += counts(w) ? sums[w] : 0;
    return sum;
}
__device__ inline std::uint32_t sum_of_warps(std::uint32_t mine) {
    return add_warps(mine, [](unsigned) { return true; });
}
__device__ inline std::uint32_t sum_of_warps_before(std::uint32_t mine) {
    return add_warps(mine, [](unsigned warp) { return warp < threadIdx.x / 32; });
}
// Of the tiles before the block's own.
__device__ inline std::uint32_t sum_of_tiles_before(const std::uint32_t* tiles) {
    std::uint32_t sum = 0;
    for (std::uint32_t t = threadIdx.x; t < blockIdx.x; t += kSimpleThreads)
        sum += tiles[t];
    return sum_of_warps(warp::sum(sum));
}
// Marks of lanes, of each round of a tile: how many of the warp's own there are before the
// caller's, and how many in all.
template <class Of>
struct MarksOfWarp {
    static constexpr unsigned kRounds = Of::kRounds;
    unsigned marks[kRounds];
    __device__ std::uint32_t count() const {
        std::uint32_t sum = 0;
#pragma unroll
        for (unsigned r = 0; r < kRounds; ++r)
            sum += static_cast<unsigned>(__popc(marks[r]));
        return sum;
    }
    __device__ bool has(unsigned round) const { return (marks[round] >> threadIdx.x % 32 & 1) != 0; }
    __device__ std::uint32_t before(unsigned round) const {
        std::uint32_t sum = 0;
#pragma unroll
        for (unsigned r = 0; r < kRounds; ++r)
            sum += r < round ? static_cast<unsigned>(__popc(marks[r])) : 0;
        return sum + static_cast<unsigned>(__popc(marks[round] & ((1U << threadIdx.x % 32) - 1)));
    }
};

// ---- heads of runs ----

// Whether a chunk is the head of a run, for each of what the one before it may be, and entries up
// to here: what a stretch of chunks makes of the chunk before it. The lower word is for a chunk
// before it that is no head, the upper one for a head.
using HeadMap = std::uint64_t;
constexpr std::uint32_t kHead = 1U << 31;
__device__ inline HeadMap head_map(std::uint32_t after_other, std::uint32_t after_head) {
    return after_other | static_cast<std::uint64_t>(after_head) << 32;
}
// Of no chunks.
__device__ inline HeadMap same_head() { return head_map(0, kHead); }
__device__ inline std::uint32_t head_after(HeadMap map, std::uint32_t before) {
    const auto part = static_cast<std::uint32_t>((before & kHead) != 0 ? map >> 32 : map);
    return part + (before & ~kHead);
}
__device__ inline HeadMap join_heads(HeadMap first, HeadMap second) {
    return head_map(head_after(second, static_cast<std::uint32_t>(first)),
                    head_after(second, static_cast<std::uint32_t>(first >> 32)));
}
// Of all lanes up to this one, itself included.
__device__ inline HeadMap joined_lanes(HeadMap map) {
#pragma unroll
    for (unsigned by = 1; by < 32; by *= 2) {
        const HeadMap before = warp::up(map, by);
        if (threadIdx.x % 32 >= by) map = join_heads(before, map);
    }
    return map;
}
// Of all threads of the block before the caller's; all: of all of them. own: what the thread makes.
__device__ inline HeadMap joined_threads_before(HeadMap own, HeadMap& all) {
    __shared__ HeadMap maps[kTileWarps];
    const HeadMap up_to_here = joined_lanes(own);
    HeadMap before = warp::up(up_to_here);
    if (threadIdx.x % 32 == 0) before = same_head();
    __syncthreads();
    if (threadIdx.x % 32 == 31) maps[threadIdx.x / 32] = up_to_here;
    __syncthreads();
    HeadMap warps = same_head();
    all = same_head();
#pragma unroll
    for (unsigned w = 0; w < kTileWarps; ++w) {
        if (w == threadIdx.x / 32) warps = all;
        all = join_heads(all, maps[w]);
    }
    return join_heads(warps, before);
}

struct HeadsOf {
    const std::uint32_t* changed;
    const Location* sources;
    std::uint64_t first;
    const DeviceJoinState* state;
    bool copies;
    bool alone;
    // What its source adds to the one before it, where the two may be in one run; otherwise more
    // than 1.
    __device__ std::uint32_t step_to(std::uint32_t j) const {
        if (alone) return 2;
        const Location source = sources[j];
        if (!copies && (source & kDeviceFresh) == 0) return 2;
        Location before = 0;
        if (j == 0) {
            if (state->open == 0 || state->chunk + 1 != first + changed[0]) return 2;
            before = state->source;
        } else {
            if (changed[j - 1] + 1 != changed[j]) return 2;
            before = sources[j - 1];
        }
        if (((source ^ before) & kDeviceFresh) != 0) return 2;
        const std::uint64_t step = source - before;
        return step <= 1 ? static_cast<std::uint32_t>(step) : 2;
    }
    __device__ HeadMap operator()(std::uint32_t j) const {
        constexpr std::uint32_t kEntry = kHead | 1;
        const std::uint32_t step = step_to(j);
        if (j == 0) {
            // Always an entry, be it the rest of a run.
            const bool head = step > 1 || (state->head == 0 && step != state->step);
            const std::uint32_t map = head ? kEntry : 1;
            return head_map(map, map);
        }
        if (step > 1) return head_map(kEntry, kEntry);
        return head_map(step != step_to(j - 1) ? kEntry : 0, 0);
    }
};

}  // namespace

}  // namespace gpu

}  // namespace twinrun
