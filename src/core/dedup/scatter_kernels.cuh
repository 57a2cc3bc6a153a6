// Private to dedup_cuda.cu: copies between images, payload and bases, of any alignment; payload
// back to its places.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dedup/kernel_support.cuh"

namespace twinrun {

namespace gpu {

namespace {

// ---- copies ----

struct Stretches {
    const DeviceDedupPart* parts;
    std::uint32_t part_count;
    std::uint32_t chunk_bytes;
    std::uint32_t shift;  // log2 of the pieces of 16 bytes of a chunk
};
__device__ inline const DeviceDedupPart& part_with(const Stretches& s, std::uint32_t chunk) {
    return s.part_count == 1 ? *s.parts : s.parts[part_of_chunk(s.parts, s.part_count, chunk)];
}
// A piece of a chunk, zeros where the segment has ended.
__device__ inline uint4 piece_of(const Stretches& s, std::uint32_t chunk, std::uint32_t piece) {
    const DeviceDedupPart& part = part_with(s, chunk);
    const std::byte* const end = part.data + part.bytes;
    const std::byte* const at =
        part.data + std::uint64_t{chunk - part.first} * s.chunk_bytes + piece * std::uint64_t{16};
    return at < end ? load_16(at, part.data, end) : make_uint4(0, 0, 0, 0);
}

constexpr int kCopyLoads = 4;  // at once

__global__ void __launch_bounds__(kSimpleThreads) consolidate_all(DeviceConsolidate what, Stretches s) {
    const std::uint64_t stride = std::uint64_t{gridDim.x} * kSimpleThreads;
    const std::uint64_t thread = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    for (std::uint64_t e = thread; e < what.entry_count; e += stride)
        reinterpret_cast<uint4*>(what.to_entries)[e] = reinterpret_cast<const uint4*>(what.entries)[e];
    const std::uint64_t pieces = what.chunk_count << s.shift;
    const std::uint32_t last = (1U << s.shift) - 1;
    auto* const to = reinterpret_cast<uint4*>(what.to);
    for (std::uint64_t i = thread; i < pieces; i += kCopyLoads * stride) {
        uint4 values[kCopyLoads];
#pragma unroll
        for (int k = 0; k < kCopyLoads; ++k) {
            const std::uint64_t at = i + static_cast<unsigned>(k) * stride;
            if (at >= pieces) continue;
            const std::uint64_t number = at >> s.shift;
            const std::uint32_t chunk = what.chunks != nullptr
                                            ? what.chunks[number]
                                            : what.first_chunk + static_cast<std::uint32_t>(number);
            values[k] = piece_of(s, chunk, static_cast<std::uint32_t>(at) & last);
        }
#pragma unroll
        for (int k = 0; k < kCopyLoads; ++k) {
            const std::uint64_t at = i + static_cast<unsigned>(k) * stride;
            if (at < pieces) to[at] = values[k];
        }
    }
    if (what.base == nullptr) return;
    auto* const to_base = reinterpret_cast<uint4*>(what.to_base);
    for (std::uint64_t at = thread; at < pieces; at += stride) {
        const std::uint64_t number = at >> s.shift;
        const std::uint32_t piece = static_cast<std::uint32_t>(at) & last;
        const std::uint32_t chunk = what.chunks != nullptr
                                        ? what.chunks[number]
                                        : what.first_chunk + static_cast<std::uint32_t>(number);
        const DeviceDedupPart& part = part_with(s, chunk);
        const bool had = chunk - part.first < part.with_base;
        to_base[at] =
            had ? reinterpret_cast<const uint4*>(what.base)[(std::uint64_t{chunk} << s.shift) + piece]
                : make_uint4(0, 0, 0, 0);
        if (piece == 0) what.to_base_at[number] = had ? what.base_at[chunk] : kNoLocation;
    }
}

__global__ void __launch_bounds__(kSimpleThreads)
    put_base(Stretches s, const std::uint32_t* changed, const Location* sources, std::uint32_t count,
             DeviceBase base) {
    const std::uint64_t stride = std::uint64_t{gridDim.x} * kSimpleThreads;
    const std::uint64_t pieces = std::uint64_t{count} << s.shift;
    const std::uint32_t last = (1U << s.shift) - 1;
    for (std::uint64_t at = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x; at < pieces;
         at += stride) {
        const std::uint64_t j = at >> s.shift;
        const std::uint32_t piece = static_cast<std::uint32_t>(at) & last;
        const std::uint32_t chunk = changed[j];
        reinterpret_cast<uint4*>(base.image)[(std::uint64_t{chunk} << s.shift) + piece] =
            piece_of(s, chunk, piece);
        if (piece == 0) base.where[chunk] = sources[j] & ~kDeviceFresh;
    }
}

// A warp 32 chunks.
__global__ void __launch_bounds__(kSimpleThreads)
    move_chunks(const DeviceBaseMove* moves, std::uint64_t count, std::uint64_t chunks, std::uint32_t shift,
                DeviceBase from, DeviceBase to, std::uint64_t* content) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint64_t warps = std::uint64_t{gridDim.x} * (kSimpleThreads / 32);
    for (std::uint64_t g = blockIdx.x * std::uint64_t{kSimpleThreads / 32} + threadIdx.x / 32;
         g * 32 < chunks; g += warps) {
        const std::uint64_t number = g * 32 + lane;
        const bool there = number < chunks;
        const DeviceBaseMove& move =
            moves[last_not_above(moves, count, there ? number : chunks - 1, &DeviceBaseMove::before)];
        const std::uint64_t i = there ? number - move.before : 0;
        std::uint64_t term = 0;
        if (there) {
            const ChunkHash hash = from.hashes[move.from + i];
            to.hashes[move.to + i] = hash;
            if (from.where != nullptr) to.where[move.to + i] = from.where[move.from + i];
            term = content_term(hash, i);
        }
        // Segments are few, or small: mostly all lanes have the same.
        const auto segment = static_cast<std::uint32_t>(move.segment);
        if (warp::ballot(segment != warp::from(segment, 0)) == 0) {
            const std::uint64_t sum = warp::sum(term);
            if (lane == 0) atomicAdd(reinterpret_cast<Word*>(content + segment), static_cast<Word>(sum));
        } else if (there) {
            atomicAdd(reinterpret_cast<Word*>(content + segment), static_cast<Word>(term));
        }
        if (from.image == nullptr) continue;
        const std::uint64_t pieces = (chunks - g * 32 < 32 ? chunks - g * 32 : 32) << shift;
        for (std::uint64_t p = lane; p < pieces; p += 32) {
            const std::uint64_t chunk = g * 32 + (p >> shift);
            const DeviceBaseMove& of = moves[last_not_above(moves, count, chunk, &DeviceBaseMove::before)];
            const std::uint64_t piece = p & ((1ULL << shift) - 1);
            const std::uint64_t k = chunk - of.before;
            reinterpret_cast<uint4*>(to.image)[((of.to + k) << shift) + piece] =
                reinterpret_cast<const uint4*>(from.image)[((of.from + k) << shift) + piece];
        }
    }
}

// ---- restore ----

constexpr std::uint64_t kScatterTile = 512;  // pieces: 8 KiB a warp

// A warp a tile of what all runs give. It finds the runs at its ends, and lanes look between those
// only.
//
// Shifted: the segment is not aligned to 16 bytes. A lane then writes the 16 bytes that begin
// within the piece before its own, if that goes right before it; the first and last bytes of a
// stretch are written one by one.
template <bool Shifted>
__global__ void __launch_bounds__(kSimpleThreads) scatter_runs(DeviceScatter what, std::uint32_t shift) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint64_t pieces = what.chunks << shift;
    const std::uint64_t warps = std::uint64_t{gridDim.x} * (kSimpleThreads / 32);
    const std::uint64_t last_piece = (1ULL << shift) - 1;
    const std::byte* const stop = what.to + what.bytes;
    const auto skew = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(what.to) % 16);
    for (std::uint64_t tile = blockIdx.x * std::uint64_t{kSimpleThreads / 32} + threadIdx.x / 32;
         tile * kScatterTile < pieces; tile += warps) {
        const std::uint64_t begin = tile * kScatterTile;
        const std::uint64_t end = begin + kScatterTile < pieces ? begin + kScatterTile : pieces;
        const std::uint64_t of = (lane % 2 == 0 ? begin : end - 1) >> shift;
        const std::uint64_t found = last_not_above(what.runs, what.run_count, of, &DeviceScatterRun::before);
        const std::uint64_t other = warp::across(found, 1);
        const std::uint64_t low = lane % 2 == 0 ? found : other;
        const std::uint64_t high = lane % 2 == 0 ? other : found;
        DeviceScatterRun run = what.runs[low];
        // The last lane's piece of the round before, and the end of it.
        uint4 carried = make_uint4(0, 0, 0, 0);
        std::uint64_t carried_to = 0;
        for (std::uint64_t i = begin; i < end; i += kCopyLoads * 32) {
            uint4 values[kCopyLoads];
            std::byte* to[kCopyLoads];
#pragma unroll
            for (int k = 0; k < kCopyLoads; ++k) {
                const std::uint64_t at = i + static_cast<unsigned>(k) * 32U + lane;
                to[k] = nullptr;
                if (at >= end) continue;
                const std::uint64_t chunk = at >> shift;
                if (low != high && (chunk < run.before || chunk - run.before >= run.count)) {
                    run = what.runs[low + last_not_above(what.runs + low, high - low + 1, chunk,
                                                         &DeviceScatterRun::before)];
                }
                const std::uint64_t number = chunk - run.before;
                const std::uint64_t piece = at & last_piece;
                const std::uint64_t from = (run.source + (run.repeat != 0 ? 0 : number)) << shift;
                values[k] = __ldcs(reinterpret_cast<const uint4*>(what.payload) + from + piece);
                std::byte* const place = what.to + (((run.begin + number) << shift) + piece) * 16;
                if (place < stop) to[k] = place;
            }
#pragma unroll
            for (int k = 0; k < kCopyLoads; ++k) {
                const bool whole = to[k] != nullptr && to[k] + 16 <= stop;
                if constexpr (!Shifted) {
                    if (whole) {
                        __stcs(reinterpret_cast<uint4*>(to[k]), values[k]);
                    } else if (to[k] != nullptr) {
                        store_edge(to[k], values[k], 0, static_cast<unsigned>(stop - to[k]));
                    }
                } else {
                    const std::uint64_t place = reinterpret_cast<std::uintptr_t>(to[k]);
                    const std::uint64_t my_end = whole ? place + 16 : 0;
                    uint4 before;
                    before.x = warp::up(values[k].x);
                    before.y = warp::up(values[k].y);
                    before.z = warp::up(values[k].z);
                    before.w = warp::up(values[k].w);
                    std::uint64_t before_end = warp::up(my_end);
                    if (lane == 0) {
                        before = carried;
                        before_end = carried_to;
                    }
                    const bool follows = whole && before_end == place;
                    const unsigned all = warp::ballot(follows);
                    if (follows) {
                        __stcs(reinterpret_cast<uint4*>(to[k] - skew), joined(before, values[k], 16 - skew));
                    } else {
                        // What was carried ends here.
                        if (lane == 0 && carried_to != 0)
                            store_edge(reinterpret_cast<std::byte*>(carried_to) - 16, carried, 16 - skew, 16);
                        if (to[k] != nullptr)
                            store_edge(to[k], values[k], 0,
                                       whole ? 16 - skew : static_cast<unsigned>(stop - to[k]));
                    }
                    if (lane != 31 && whole && (all >> (lane + 1) & 1) == 0)
                        store_edge(to[k], values[k], 16 - skew, 16);
                    carried.x = warp::from(values[k].x, 31);
                    carried.y = warp::from(values[k].y, 31);
                    carried.z = warp::from(values[k].z, 31);
                    carried.w = warp::from(values[k].w, 31);
                    carried_to = warp::from(my_end, 31);
                }
            }
        }
        if (Shifted && lane == 0 && carried_to != 0)
            store_edge(reinterpret_cast<std::byte*>(carried_to) - 16, carried, 16 - skew, 16);
    }
}

}  // namespace

}  // namespace gpu

}  // namespace twinrun
