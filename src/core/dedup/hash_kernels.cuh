// Private to dedup_cuda.cu: which chunks changed, and their hashes.
//
// A warp takes 32 chunks (64 of 64 bytes, 128 of 32), a lane one of them, and they come through
// shared memory, 4 KiB at a time and two steps ahead (cp.async): all reads are whole lines, and a
// chunk's hash needs no exchange between lanes. Where chunks are so large that a slice has few of
// them, a warp takes one. What changed becomes marks, and sums of them a list in order. No place in
// it comes from an atomic operation: results are the same from run to run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dedup/kernel_support.cuh"
#include "dedup/scans.cuh"

namespace twinrun {

namespace gpu {

namespace {

// ---- hashes of chunks of up to 2 KiB: a lane a chunk ----

struct HashLaunch {
    const DeviceDedupPart* parts;  // null: `one`
    DeviceDedupPart one;
    std::uint32_t part_count;
    std::uint32_t first_group;
    std::uint32_t end_group;
    ChunkHash* hashes;       // null: not computed
    std::uint64_t* content;  // null: not computed
    std::uint32_t* words;    // null: not computed
    std::uint32_t* changed;  // null: not counted
    ChunkHash mask;
    std::uint32_t chunk_bytes;
};

constexpr int kHashWarps = 4;  // of a thread block
constexpr int kStages = 3;
constexpr std::uint32_t kStageBytes = 4096;
constexpr std::uint32_t kNoEnd = ~std::uint32_t{0};  // of a part behind which there is none

template <int ChunkBytes>
struct HashShape {
    static constexpr std::uint32_t kGroup = dedup_group_chunks(ChunkBytes);
    static constexpr int kSteps = ChunkBytes <= 128 ? 1 : ChunkBytes / 128;
    // The base's hashes behind the data.
    static constexpr std::uint32_t kStage = kStageBytes + kGroup * sizeof(ChunkHash);
    static constexpr std::size_t kShared = std::size_t{kHashWarps} * kStages * kStage;
};

// The part of a group, for groups that come in ascending order.
class PartCursor {
   public:
    __device__ explicit PartCursor(const HashLaunch& launch) : launch_(launch), part_(launch.one) {
        end_ = launch.parts == nullptr ? kNoEnd : 0;
    }
    __device__ const DeviceDedupPart& at(std::uint32_t group) {
        if (group >= end_) {
            const std::uint32_t number = part_of_group(launch_.parts, launch_.part_count, group);
            part_ = launch_.parts[number];
            if (launch_.words == nullptr) part_.with_base = 0;
            end_ = number + 1 == launch_.part_count ? kNoEnd : launch_.parts[number + 1].group;
        }
        return part_;
    }

   private:
    const HashLaunch& launch_;
    DeviceDedupPart part_;
    std::uint32_t end_;
};

// Where piece i of a stage's 256 lies: eight lanes that write neighbours, and eight that read
// theirs of as many chunks, use all banks.
__device__ inline std::uint32_t place_of(std::uint32_t i) { return (i & ~7U) | ((i ^ i >> 3) & 7U); }

template <int ChunkBytes>
__device__ inline void stage(const DeviceDedupPart& part, std::uint32_t group, int step,
                             const ChunkHash* base, std::byte* to, ReadPolicy policy) {
    using Shape = HashShape<ChunkBytes>;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t first = (group - part.group) * Shape::kGroup;
    const std::uint64_t offset = std::uint64_t{first} * ChunkBytes;
    const std::byte* const data = part.data + offset;
    const std::uint64_t there = part.bytes - offset;
    constexpr std::uint64_t kGroupBytes = std::uint64_t{Shape::kGroup} * ChunkBytes;
    const bool whole = there >= kGroupBytes && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
    const auto at = [&](std::uint32_t i) {
        if (ChunkBytes <= 128) return std::uint64_t{i} * 16;
        return std::uint64_t{i / 8} * ChunkBytes + static_cast<unsigned>(step) * 128U + i % 8 * 16;
    };
    if (whole) {
#pragma unroll
        for (std::uint32_t i = lane; i < 256; i += 32)
            stage_16(to + place_of(i) * 16, data + at(i), policy);
    } else {
#pragma unroll 1
        for (std::uint32_t i = lane; i < 256; i += 32) {
            *reinterpret_cast<uint4*>(to + place_of(i) * 16) =
                at(i) < there ? load_16(data + at(i), part.data, part.data + part.bytes)
                              : make_uint4(0, 0, 0, 0);
        }
    }
    if (step != Shape::kSteps - 1 || first >= part.with_base) return;
#pragma unroll
    for (std::uint32_t k = 0; k < Shape::kGroup / 32; ++k) {
        const std::uint32_t i = k * 32 + lane;
        if (first + i < part.with_base)
            stage_16(to + kStageBytes + i * sizeof(ChunkHash), base + part.first + first + i, policy);
    }
}

// A chunk's hash is there: whether it is another one than the base's, and what follows from that.
__device__ inline bool note(const HashLaunch& launch, const DeviceDedupPart& part, std::uint32_t i,
                            const ChunkHash& hash, const ChunkHash& base, Content& content) {
    if (i >= part.chunks) return false;
    const std::uint64_t number = part.number + i;
    if (i < part.with_base) {
        if ((((hash.low ^ base.low) & launch.mask.low) | ((hash.high ^ base.high) & launch.mask.high)) == 0)
            return false;
        content.add(0 - content_term(base, number));
    }
    content.add(content_term(hash, number));
    if (launch.hashes != nullptr) {
        *reinterpret_cast<ulonglong2*>(launch.hashes + part.first + i) = make_ulonglong2(hash.low, hash.high);
    }
    return true;
}

// The hash of a lane's chunk i of a group whose chunks are in one stage, and its base's.
template <int ChunkBytes>
__device__ inline ChunkHash hash_in_stage(const std::byte* from, std::uint32_t i, ChunkHash& base) {
    constexpr std::uint32_t kPieces = ChunkBytes / 16;
    ulonglong2 pieces[kPieces];
#pragma unroll
    for (std::uint32_t p = 0; p < kPieces; ++p)
        pieces[p] = *reinterpret_cast<const ulonglong2*>(from + place_of(i * kPieces + p) * 16);
    const auto b = *reinterpret_cast<const ulonglong2*>(from + kStageBytes + i * sizeof(ChunkHash));
    base = {b.x, b.y};
    return short_hash(pieces);
}

// Takes a stage of each lane's chunk: two stripes.
template <int ChunkBytes>
__device__ inline void accumulate_stage(std::uint64_t (&a)[8], const std::byte* from, int step,
                                        std::uint32_t lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int stripe = 2 * step + half;
        const int row = stripe == ChunkBytes / 64 - 1 ? 16 : stripe % 16;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const auto d = *reinterpret_cast<const ulonglong2*>(
                from + place_of(lane * 8 + static_cast<unsigned>(half * 4 + q)) * 16);
            accumulate(a[2 * q], a[2 * q + 1], d.x, d.y, kStripeKeys.of[row][2 * q],
                       kStripeKeys.of[row][2 * q + 1]);
        }
    }
    if (ChunkBytes > 1024 && step % 8 == 7 && step != HashShape<ChunkBytes>::kSteps - 1) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            a[i] = scramble(a[i], kKeys.scramble[i]);
    }
}

// The hash of what was accumulated of a lane's chunk.
__device__ inline ChunkHash merged_hash(const std::uint64_t (&a)[8], std::uint32_t chunk_bytes) {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        low += fold(a[2 * i] ^ kKeys.merge_low[2 * i], a[2 * i + 1] ^ kKeys.merge_low[2 * i + 1]);
        high += fold(a[2 * i] ^ kKeys.merge_high[2 * i], a[2 * i + 1] ^ kKeys.merge_high[2 * i + 1]);
    }
    return finish_long(low, high, chunk_bytes);
}

// A warp's ring of stages: it asks for data several stages before they are used.
template <int ChunkBytes>
class GroupRing {
   public:
    using Shape = HashShape<ChunkBytes>;
    // The warp takes group `first`, and every `every` groups one more.
    __device__ GroupRing(const HashLaunch& launch, std::byte* memory, std::uint64_t first,
                         std::uint32_t every)
        : launch_(launch),
          memory_(memory),
          every_(every),
          policy_(ReadPolicy::evict_first()),
          ahead_(launch),
          next_group_(first) {
#pragma unroll 1
        for (int s = 0; s < kStages - 1; ++s)
            ask();
    }
    // Asks for one more stage, and waits for the oldest one.
    __device__ const std::byte* next() {
        ask();
        stage_wait<kStages - 1>();
        warp::sync();
        return memory_ + now_ * Shape::kStage;
    }
    // The stage of next() is not needed any more.
    __device__ void done() {
        warp::sync();
        now_ = now_ + 1 == kStages ? 0 : now_ + 1;
    }

   private:
    __device__ void ask() {
        if (next_group_ < launch_.end_group) {
            const auto group = static_cast<std::uint32_t>(next_group_);
            stage<ChunkBytes>(ahead_.at(group), group, next_step_, launch_.hashes,
                              memory_ + next_stage_ * Shape::kStage, policy_);
            if (++next_step_ == Shape::kSteps) {
                next_step_ = 0;
                next_group_ += every_;
            }
            next_stage_ = next_stage_ + 1 == kStages ? 0 : next_stage_ + 1;
        }
        stage_commit();
    }

    const HashLaunch& launch_;
    std::byte* const memory_;
    const std::uint32_t every_;
    const ReadPolicy policy_;
    PartCursor ahead_;
    // What is asked for next.
    std::uint64_t next_group_;
    int next_step_ = 0;
    int next_stage_ = 0;
    int now_ = 0;
};

template <int ChunkBytes>
__global__ void __launch_bounds__(kHashWarps * 32) hash_groups(const __grid_constant__ HashLaunch launch) {
    using Shape = HashShape<ChunkBytes>;
    extern __shared__ __align__(128) std::byte shared_memory[];
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t warps = gridDim.x * kHashWarps;
    const std::uint64_t first_group =
        std::uint64_t{launch.first_group} + blockIdx.x * kHashWarps + threadIdx.x / 32;
    PartCursor here(launch);
    Content content(launch.content);
    std::uint32_t changed = 0;

    GroupRing<ChunkBytes> ring(launch, shared_memory + threadIdx.x / 32 * (kStages * Shape::kStage),
                               first_group, warps);
    for (std::uint64_t g = first_group; g < launch.end_group; g += warps) {
        const auto group = static_cast<std::uint32_t>(g);
        const DeviceDedupPart& part = here.at(group);
        const std::uint32_t first = (group - part.group) * Shape::kGroup;
        content.enter(part.segment);
        if constexpr (ChunkBytes <= 128) {
            const std::byte* const from = ring.next();
#pragma unroll
            for (std::uint32_t k = 0; k < Shape::kGroup / 32; ++k) {
                const std::uint32_t i = k * 32 + lane;
                ChunkHash base;
                const ChunkHash hash = hash_in_stage<ChunkBytes>(from, i, base);
                const unsigned marks = warp::ballot(note(launch, part, first + i, hash, base, content));
                if (launch.words != nullptr && lane == 0)
                    launch.words[std::uint64_t{group} * (Shape::kGroup / 32) + k] = marks;
                changed += static_cast<unsigned>(__popc(marks));
            }
            ring.done();
        } else {
            std::uint64_t a[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                a[i] = kKeys.start[i];
            ChunkHash base;
#pragma unroll 1
            for (int step = 0; step < Shape::kSteps; ++step) {
                const std::byte* const from = ring.next();
                accumulate_stage<ChunkBytes>(a, from, step, lane);
                if (step == Shape::kSteps - 1) {
                    const auto b =
                        *reinterpret_cast<const ulonglong2*>(from + kStageBytes + lane * sizeof(ChunkHash));
                    base = {b.x, b.y};
                }
                ring.done();
            }
            const unsigned marks =
                warp::ballot(note(launch, part, first + lane, merged_hash(a, ChunkBytes), base, content));
            if (launch.words != nullptr && lane == 0) launch.words[group] = marks;
            changed += static_cast<unsigned>(__popc(marks));
        }
    }
    content.flush();
    if (launch.changed != nullptr && lane == 0 && changed != 0) atomicAdd(launch.changed, changed);
}

// ---- hashes of larger chunks: a warp a chunk, for 512 MiB of 4 KiB are too few warps of 32 chunks
// to fill a device ----

// A chunk is taken in blocks of 1024 bytes. Lane 4 s + q has piece q of stripes s and s + 8 of each
// block. These are the keys of a lane.
struct LaneKeys {
    std::uint64_t stripe[2][2];  // of both stripes
    std::uint64_t last[2];       // of the second one, in a chunk's last block
    std::uint64_t scrambler[2];
    std::uint64_t merge_low[2];
    std::uint64_t merge_high[2];
    std::uint64_t start[2];

    __device__ explicit LaneKeys(std::uint32_t lane) {
        const std::uint32_t q = lane % 4;
        const std::uint32_t s = lane / 4;
#pragma unroll
        for (unsigned w = 0; w < 2; ++w) {
            stripe[0][w] = kStripeKeys.of[s][2 * q + w];
            stripe[1][w] = kStripeKeys.of[s + 8][2 * q + w];
            last[w] = s == 7 ? kStripeKeys.of[16][2 * q + w] : stripe[1][w];
            start[w] = kKeys.start[2 * q + w];
            scrambler[w] = kKeys.scramble[2 * q + w];
            merge_low[w] = kKeys.merge_low[2 * q + w];
            merge_high[w] = kKeys.merge_high[2 * q + w];
        }
    }
};

// Takes a block: this lane's pieces of it, and the sums of all lanes that hold other stripes.
__device__ inline void accumulate_block(std::uint64_t& a0, std::uint64_t& a1, const uint4* pieces,
                                        bool is_last, const LaneKeys& keys) {
    std::uint64_t p0 = 0;
    std::uint64_t p1 = 0;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
        const uint4 v = pieces[half];
        const bool other = half == 1 && is_last;
        accumulate(p0, p1, v.x | static_cast<std::uint64_t>(v.y) << 32,
                   v.z | static_cast<std::uint64_t>(v.w) << 32, other ? keys.last[0] : keys.stripe[half][0],
                   other ? keys.last[1] : keys.stripe[half][1]);
    }
#pragma unroll
    for (int lanes = 4; lanes <= 16; lanes *= 2) {
        p0 += warp::across(p0, lanes);
        p1 += warp::across(p1, lanes);
    }
    a0 += p0;
    a1 += p1;
    if (!is_last) {
        a0 = scramble(a0, keys.scrambler[0]);
        a1 = scramble(a1, keys.scrambler[1]);
    }
}

__global__ void __launch_bounds__(kSimpleThreads, 2)
    hash_large(const __grid_constant__ HashLaunch launch, std::uint32_t first, std::uint32_t chunks) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint64_t warps = std::uint64_t{gridDim.x} * (kSimpleThreads / 32);
    const LaneKeys keys(lane);
    Content content(launch.content);
    const std::uint32_t blocks = launch.chunk_bytes / 1024;
    std::uint32_t changed = 0;
    std::uint32_t part_begin = 1;
    std::uint32_t part_end = 0;
    DeviceDedupPart part;
    for (std::uint64_t c = blockIdx.x * std::uint64_t{kSimpleThreads / 32} + threadIdx.x / 32; c < chunks;
         c += warps) {
        const auto chunk = static_cast<std::uint32_t>(first + c);
        if (chunk < part_begin || chunk >= part_end) {
            part = launch.parts == nullptr
                       ? launch.one
                       : launch.parts[part_of_chunk(launch.parts, launch.part_count, chunk)];
            if (launch.words == nullptr) part.with_base = 0;
            part_begin = part.first;
            part_end = part.first + part.chunks;
        }
        content.enter(part.segment);
        const std::uint32_t i = chunk - part.first;
        const std::uint64_t offset = std::uint64_t{i} * launch.chunk_bytes;
        const std::byte* const data = part.data + offset;
        const std::byte* const end = part.data + part.bytes;
        const bool whole =
            part.bytes - offset >= launch.chunk_bytes && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
        std::uint64_t a0 = keys.start[0];
        std::uint64_t a1 = keys.start[1];
        for (std::uint32_t b = 0; b < blocks; b += 4) {
            uint4 loaded[8];
#pragma unroll
            for (unsigned k = 0; k < 8; ++k) {
                const std::byte* const at = data + std::uint64_t{b} * 1024 + k * 512 + lane * 16;
                if (whole) {
                    loaded[k] = __ldcs(reinterpret_cast<const uint4*>(at));
                } else {
                    loaded[k] = at < end ? load_16(at, part.data, end) : make_uint4(0, 0, 0, 0);
                }
            }
#pragma unroll
            for (unsigned block = 0; block < 4; ++block)
                accumulate_block(a0, a1, loaded + 2 * block, b + block + 1 == blocks, keys);
        }
        std::uint64_t low = fold(a0 ^ keys.merge_low[0], a1 ^ keys.merge_low[1]);
        std::uint64_t high = fold(a0 ^ keys.merge_high[0], a1 ^ keys.merge_high[1]);
#pragma unroll
        for (int lanes = 1; lanes <= 2; lanes *= 2) {
            low += warp::across(low, lanes);
            high += warp::across(high, lanes);
        }
        if (lane != 0) continue;
        ChunkHash base;
        if (i < part.with_base) base = launch.hashes[chunk];
        if (!note(launch, part, i, finish_long(low, high, launch.chunk_bytes), base, content)) continue;
        ++changed;
        if (launch.words != nullptr) atomicOr(launch.words + part.group + i / 32, 1U << (i % 32));
    }
    content.flush();
    if (launch.changed != nullptr && lane == 0 && changed != 0) atomicAdd(launch.changed, changed);
}

// ---- marks to numbers ----

// words: of the slice; tiles: marks of each WordTile of them.
__global__ void __launch_bounds__(kSimpleThreads)
    count_marks(const std::uint32_t* words, std::uint32_t count, std::uint32_t* tiles) {
    std::uint32_t marks = 0;
#pragma unroll
    for (unsigned r = 0; r < WordTile::kRounds; ++r) {
        const std::uint32_t i = WordTile::item(r);
        if (i < count) marks += static_cast<unsigned>(__popc(words[i]));
    }
    const std::uint32_t sum = sum_of_warps(warp::sum(marks));
    if (threadIdx.x == 0) tiles[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSimpleThreads)
    list_marks(DeviceDedupSlice slice, std::uint32_t words, std::uint32_t per_group,
               const std::uint32_t* tiles, std::uint32_t* changed) {
    const std::uint32_t lane = threadIdx.x % 32;
    std::uint32_t marks[WordTile::kRounds];
    std::uint32_t in_warp = 0;
#pragma unroll
    for (unsigned r = 0; r < WordTile::kRounds; ++r) {
        const std::uint32_t i = WordTile::item(r);
        marks[r] = i < words ? slice.words[slice.first_group * per_group + i] : 0;
        in_warp += static_cast<unsigned>(__popc(marks[r]));
    }
    in_warp = warp::sum(in_warp);
    const std::uint32_t tiles_before = sum_of_tiles_before(tiles);
    std::uint32_t round_at = tiles_before + sum_of_warps_before(in_warp);
#pragma unroll
    for (unsigned r = 0; r < WordTile::kRounds; ++r) {
        const auto own = static_cast<unsigned>(__popc(marks[r]));
        std::uint32_t up_to_here = own;
#pragma unroll
        for (unsigned by = 1; by < 32; by *= 2) {
            const std::uint32_t before = warp::up(up_to_here, by);
            if (lane >= by) up_to_here += before;
        }
        const std::uint32_t to = round_at + up_to_here - own;
        round_at += warp::from(up_to_here, 31);
        std::uint32_t first = 0;
        if (own != 0) {
            const std::uint32_t w = slice.first_group * per_group + WordTile::item(r);
            const DeviceDedupPart& part =
                slice.parts[part_of_group(slice.parts, slice.part_count, w / per_group)];
            first = part.first + (w - part.group * per_group) * 32;
        }
        for (unsigned some = warp::ballot(own != 0); some != 0; some &= some - 1) {
            const int other = __ffs(static_cast<int>(some)) - 1;
            const std::uint32_t word = warp::from(marks[r], other);
            const std::uint32_t at = warp::from(to, other);
            const std::uint32_t chunk = warp::from(first, other);
            if ((word >> lane & 1) != 0)
                changed[at + static_cast<unsigned>(__popc(word & ((1U << lane) - 1)))] = chunk + lane;
        }
    }
}

}  // namespace

}  // namespace gpu

}  // namespace twinrun
