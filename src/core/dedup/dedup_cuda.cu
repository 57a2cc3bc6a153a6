// De-duplication on devices: the table of dedup_device.hpp.
//
// Hashing: a warp takes 32 chunks (64 of 64 bytes, 128 of 32), a lane one of them, and they come through shared memory, 4 KiB
// at a time and two steps ahead (cp.async): all reads are whole lines, and a chunk's hash needs no exchange between lanes.
// Where chunks are so large that a slice has few of them, a warp takes one. What changed becomes marks, and a scan of
// their numbers a list in order, with no atomic operation on a counter: results are the same from run to run.
//
// Looking up: an entry of the table is one sector of 32 bytes, so that a probe, the Location and the use of it are one access
// to memory. The protocol is that of hash_table.cpp.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "device/gpu.hpp"

#if defined(__HIPCC__)
#include <hipcub/hipcub.hpp>
namespace cub = hipcub;
#else
#include <cub/device/device_scan.cuh>
#endif

#include "dedup/chunk_hash.cuh"
#include "dedup/dedup_device.hpp"

namespace twinrun {

namespace gpu {

namespace {

constexpr unsigned kAll = 0xFFFFFFFFU;
constexpr unsigned kSimpleThreads = 256;
constexpr int kMostDevices = 64;
constexpr std::uint64_t kUnplaced = kMostPayloadChunks;  // as in host_deduplicator.cpp

using Word = unsigned long long;  // what atomic operations take

// ---- what differs between vendors ----

__device__ inline unsigned ballot(bool value) {
#if defined(__HIPCC__)
    return static_cast<unsigned>(__ballot(value) >> (threadIdx.x / 32 % 2 * 32));
#else
    return __ballot_sync(kAll, value);
#endif
}
__device__ inline std::uint64_t shuffle_xor(std::uint64_t value, int lanes) {
#if defined(__HIPCC__)
    return __shfl_xor(static_cast<Word>(value), lanes, 32);
#else
    return __shfl_xor_sync(kAll, static_cast<Word>(value), lanes, 32);
#endif
}
__device__ inline std::uint32_t shuffle_from(std::uint32_t value, int lane) {
#if defined(__HIPCC__)
    return __shfl(value, lane, 32);
#else
    return __shfl_sync(kAll, value, lane, 32);
#endif
}
__device__ inline std::uint64_t shuffle_wide(std::uint64_t value, int lane) {
    return static_cast<std::uint64_t>(shuffle_from(static_cast<std::uint32_t>(value), lane)) |
           static_cast<std::uint64_t>(shuffle_from(static_cast<std::uint32_t>(value >> 32), lane)) << 32;
}
// From the lane before.
template <class T>
__device__ inline T shuffle_up(T value) {
#if defined(__HIPCC__)
    return __shfl_up(value, 1, 32);
#else
    return __shfl_up_sync(kAll, value, 1, 32);
#endif
}
__device__ inline void warp_sync() {
#if defined(__HIPCC__)
    __threadfence_block();
#else
    __syncwarp();
#endif
}
__device__ inline std::uint64_t warp_sum(std::uint64_t value) {
    for (int lanes = 16; lanes != 0; lanes /= 2)
        value += shuffle_xor(value, lanes);
    return value;
}
// How the L2 cache treats what is read once: it makes room first, and leaves hashes and the table there.
struct ReadPolicy {
    std::uint64_t bits = 0;
    __device__ static ReadPolicy evict_first() {
        ReadPolicy policy;
#if defined(__CUDA_ARCH__)
        asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy.bits));
#endif
        return policy;
    }
};
__device__ inline void stage_16(std::byte* to, const void* from, ReadPolicy policy) {
#if defined(__CUDA_ARCH__)
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(address),
                 "l"(from), "l"(policy.bits)
                 : "memory");
#else
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
#endif
}
__device__ inline void stage_commit() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int Left>
__device__ inline void stage_wait() {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
}

// ---- bytes of any alignment ----

__device__ inline uint4 as_uint4(std::uint64_t x, std::uint64_t y) {
    return make_uint4(static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32),
                      static_cast<std::uint32_t>(y), static_cast<std::uint32_t>(y >> 32));
}
// 16 bytes of a and b one behind the other, from byte `skew` on: 1 to 15.
__device__ inline uint4 joined(const uint4& a, const uint4& b, unsigned skew) {
    const std::uint64_t words[4] = {
        a.x | static_cast<std::uint64_t>(a.y) << 32, a.z | static_cast<std::uint64_t>(a.w) << 32,
        b.x | static_cast<std::uint64_t>(b.y) << 32, b.z | static_cast<std::uint64_t>(b.w) << 32};
    const unsigned shift = skew % 8 * 8;
    const std::uint64_t w0 = skew < 8 ? words[0] : words[1];
    const std::uint64_t w1 = skew < 8 ? words[1] : words[2];
    const std::uint64_t w2 = skew < 8 ? words[2] : words[3];
    return shift == 0 ? as_uint4(w0, w1)
                      : as_uint4(w0 >> shift | w1 << (64 - shift), w1 >> shift | w2 << (64 - shift));
}
// 16 bytes from `at` on, zeros from `end` on. Nothing outside [begin, end) is read.
__device__ __noinline__ uint4 load_edge(const std::byte* at, const std::byte* begin, const std::byte* end) {
    const auto skew = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(at) % 16);
    const std::byte* const low = at - skew;
    if (skew != 0 && low >= begin && low + 32 <= end)
        return joined(*reinterpret_cast<const uint4*>(low), *reinterpret_cast<const uint4*>(low + 16), skew);
    std::uint64_t x = 0;
    std::uint64_t y = 0;
#pragma unroll 1
    for (int i = 0; i < 16 && at + i < end; ++i) {
        const std::uint64_t byte = static_cast<std::uint8_t>(at[i]);
        if (i < 8) {
            x |= byte << (i * 8);
        } else {
            y |= byte << (i * 8 - 64);
        }
    }
    return as_uint4(x, y);
}
__device__ inline uint4 load_16(const std::byte* at, const std::byte* begin, const std::byte* end) {
    if (reinterpret_cast<std::uintptr_t>(at) % 16 == 0 && at + 16 <= end)
        return __ldcs(reinterpret_cast<const uint4*>(at));
    return load_edge(at, begin, end);
}
// Bytes [from, to) of these 16 to at + from and behind.
__device__ __noinline__ void store_edge(std::byte* at, const uint4& value, unsigned from, unsigned to) {
#pragma unroll 1
    for (unsigned i = from; i < to; ++i) {
        const std::uint32_t word = i < 4 ? value.x : i < 8 ? value.y : i < 12 ? value.z : value.w;
        at[i] = static_cast<std::byte>(word >> (i % 4 * 8));
    }
}

// ---- parts ----

// The last of `count` items whose number is not larger. count > 0.
template <class Item>
__device__ inline std::uint64_t last_not_above(const Item* items, std::uint64_t count, std::uint64_t number,
                                               std::uint64_t Item::*member) {
    std::uint64_t low = 0;
    std::uint64_t high = count;
    while (high - low > 1) {
        const std::uint64_t middle = low + (high - low) / 2;
        (items[middle].*member <= number ? low : high) = middle;
    }
    return low;
}
__device__ inline std::uint32_t part_of_chunk(const DeviceDedupPart* parts, std::uint32_t count,
                                              std::uint32_t chunk) {
    std::uint32_t low = 0;
    std::uint32_t high = count;
    while (high - low > 1) {
        const std::uint32_t middle = low + (high - low) / 2;
        (parts[middle].first <= chunk ? low : high) = middle;
    }
    return low;
}
__device__ inline std::uint32_t part_of_group(const DeviceDedupPart* parts, std::uint32_t count,
                                              std::uint32_t group) {
    std::uint32_t low = 0;
    std::uint32_t high = count;
    while (high - low > 1) {
        const std::uint32_t middle = low + (high - low) / 2;
        (parts[middle].group <= group ? low : high) = middle;
    }
    return low;
}

// Sums of content on their way to a segment: one atomic operation for as long as the segment stays the same.
class Content {
   public:
    __device__ explicit Content(std::uint64_t* content) : content_(content) {}
    __device__ void enter(std::uint32_t segment) {  // all lanes the same
        if (segment == segment_) return;
        flush();
        segment_ = segment;
    }
    __device__ void add(std::uint64_t term) { sum_ += term; }
    __device__ void flush() {
        if (content_ == nullptr || segment_ == ~std::uint32_t{0}) return;
        const std::uint64_t sum = warp_sum(sum_);
        sum_ = 0;
        if (threadIdx.x % 32 == 0 && sum != 0)
            atomicAdd(reinterpret_cast<Word*>(content_ + segment_), static_cast<Word>(sum));
    }

   private:
    std::uint64_t* content_;
    std::uint32_t segment_ = ~std::uint32_t{0};
    std::uint64_t sum_ = 0;
};

// ---- hashes of chunks of up to 2 KiB: a lane a chunk ----

struct HashLaunch {
    const DeviceDedupPart* parts;  // null: `one`
    DeviceDedupPart one;
    std::uint32_t part_count;
    std::uint32_t groups;
    ChunkHash* hashes;       // null: not wanted
    std::uint64_t* content;  // null: not wanted
    std::uint32_t* words;    // null: not wanted
    ChunkHash mask;
    std::uint32_t chunk_bytes;
};

constexpr int kHashWarps = 4;  // of a thread block
constexpr int kStages = 3;
constexpr std::uint32_t kStageBytes = 4096;

template <int ChunkBytes>
struct HashShape {
    static constexpr std::uint32_t kGroup = dedup_group_chunks(ChunkBytes);
    static constexpr int kSteps = ChunkBytes <= 128 ? 1 : ChunkBytes / 128;
    static constexpr std::uint32_t kStage =
        kStageBytes + kGroup * sizeof(ChunkHash);  // the base's hashes behind the data
    static constexpr std::size_t kShared = std::size_t{kHashWarps} * kStages * kStage;
};

// The part of a group, for groups that come in ascending order.
class PartCursor {
   public:
    __device__ explicit PartCursor(const HashLaunch& launch) : launch_(launch), part_(launch.one) {
        end_ = launch.parts == nullptr ? kAll : 0;
    }
    __device__ const DeviceDedupPart& at(std::uint32_t group) {
        if (group >= end_) {
            const std::uint32_t number = part_of_group(launch_.parts, launch_.part_count, group);
            part_ = launch_.parts[number];
            if (launch_.words == nullptr) part_.with_base = 0;
            end_ = number + 1 == launch_.part_count ? kAll : launch_.parts[number + 1].group;
        }
        return part_;
    }

   private:
    const HashLaunch& launch_;
    DeviceDedupPart part_;
    std::uint32_t end_;
};

// Where piece i of a stage's 256 lies: eight lanes that write neighbours, and eight that read theirs of as many chunks, use
// all banks.
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

template <int ChunkBytes>
__global__ void __launch_bounds__(kHashWarps * 32) hash_groups(const __grid_constant__ HashLaunch launch) {
    using Shape = HashShape<ChunkBytes>;
    extern __shared__ __align__(128) std::byte shared_memory[];
    const std::uint32_t lane = threadIdx.x % 32;
    std::byte* const ring = shared_memory + threadIdx.x / 32 * (kStages * Shape::kStage);
    const std::uint32_t warps = gridDim.x * kHashWarps;
    const std::uint32_t warp = blockIdx.x * kHashWarps + threadIdx.x / 32;
    const ReadPolicy policy = ReadPolicy::evict_first();
    PartCursor ahead(launch);
    PartCursor here(launch);
    Content content(launch.content);

    // What is asked for next.
    std::uint64_t next_group = warp;
    int next_step = 0;
    int next_stage = 0;
    const auto ask = [&] {
        if (next_group < launch.groups) {
            const auto group = static_cast<std::uint32_t>(next_group);
            stage<ChunkBytes>(ahead.at(group), group, next_step, launch.hashes,
                              ring + next_stage * Shape::kStage, policy);
            if (++next_step == Shape::kSteps) {
                next_step = 0;
                next_group += warps;
            }
            next_stage = next_stage + 1 == kStages ? 0 : next_stage + 1;
        }
        stage_commit();
    };
#pragma unroll 1
    for (int s = 0; s < kStages - 1; ++s)
        ask();

    int now = 0;
    for (std::uint64_t g = warp; g < launch.groups; g += warps) {
        const auto group = static_cast<std::uint32_t>(g);
        const DeviceDedupPart& part = here.at(group);
        const std::uint32_t first = (group - part.group) * Shape::kGroup;
        content.enter(part.segment);
        if constexpr (ChunkBytes <= 128) {
            ask();
            stage_wait<kStages - 1>();
            warp_sync();
            const std::byte* const from = ring + now * Shape::kStage;
            constexpr std::uint32_t kPieces = ChunkBytes / 16;
#pragma unroll
            for (std::uint32_t k = 0; k < Shape::kGroup / 32; ++k) {
                const std::uint32_t i = k * 32 + lane;
                ulonglong2 pieces[kPieces];
#pragma unroll
                for (std::uint32_t p = 0; p < kPieces; ++p)
                    pieces[p] = *reinterpret_cast<const ulonglong2*>(from + place_of(i * kPieces + p) * 16);
                const auto base =
                    *reinterpret_cast<const ulonglong2*>(from + kStageBytes + i * sizeof(ChunkHash));
                const bool changed =
                    note(launch, part, first + i, short_hash(pieces), {base.x, base.y}, content);
                const unsigned marks = ballot(changed);
                if (launch.words != nullptr && lane == 0)
                    launch.words[std::uint64_t{group} * (Shape::kGroup / 32) + k] = marks;
            }
            warp_sync();
            now = now + 1 == kStages ? 0 : now + 1;
        } else {
            std::uint64_t a[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                a[i] = kKeys.start[i];
            ChunkHash base;
#pragma unroll 1
            for (int step = 0; step < Shape::kSteps; ++step) {
                ask();
                stage_wait<kStages - 1>();
                warp_sync();
                const std::byte* const from = ring + now * Shape::kStage;
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
                if (ChunkBytes > 1024 && step % 8 == 7 && step != Shape::kSteps - 1) {
#pragma unroll
                    for (int i = 0; i < 8; ++i)
                        a[i] = scramble(a[i], kKeys.scramble[i]);
                }
                if (step == Shape::kSteps - 1) {
                    const auto b =
                        *reinterpret_cast<const ulonglong2*>(from + kStageBytes + lane * sizeof(ChunkHash));
                    base = {b.x, b.y};
                }
                warp_sync();
                now = now + 1 == kStages ? 0 : now + 1;
            }
            std::uint64_t low = 0;
            std::uint64_t high = 0;
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                low += fold(a[2 * i] ^ kKeys.merge_low[2 * i], a[2 * i + 1] ^ kKeys.merge_low[2 * i + 1]);
                high += fold(a[2 * i] ^ kKeys.merge_high[2 * i], a[2 * i + 1] ^ kKeys.merge_high[2 * i + 1]);
            }
            const bool changed =
                note(launch, part, first + lane, finish_long(low, high, ChunkBytes), base, content);
            const unsigned marks = ballot(changed);
            if (launch.words != nullptr && lane == 0) launch.words[group] = marks;
        }
    }
    content.flush();
}

// ---- hashes of larger chunks: a warp a chunk, for 512 MiB of 4 KiB are too few warps of 32 chunks to fill a device ----

// Lane 4 s + q has piece q of stripes s and s + 8 of each block of 1024 bytes.
__global__ void __launch_bounds__(kSimpleThreads, 2)
    hash_large(const __grid_constant__ HashLaunch launch, std::uint32_t chunks) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t q = lane % 4;
    const std::uint32_t stripe = lane / 4;
    const std::uint64_t warps = std::uint64_t{gridDim.x} * (kSimpleThreads / 32);
    std::uint64_t keys[2][2];
    std::uint64_t last[2];
    std::uint64_t scrambler[2];
    std::uint64_t merge_low[2];
    std::uint64_t merge_high[2];
    std::uint64_t start[2];
#pragma unroll
    for (unsigned w = 0; w < 2; ++w) {
        keys[0][w] = kStripeKeys.of[stripe][2 * q + w];
        keys[1][w] = kStripeKeys.of[stripe + 8][2 * q + w];
        last[w] = stripe == 7 ? kStripeKeys.of[16][2 * q + w] : keys[1][w];
        start[w] = kKeys.start[2 * q + w];
        scrambler[w] = kKeys.scramble[2 * q + w];
        merge_low[w] = kKeys.merge_low[2 * q + w];
        merge_high[w] = kKeys.merge_high[2 * q + w];
    }
    Content content(launch.content);
    const std::uint32_t blocks = launch.chunk_bytes / 1024;
    std::uint32_t part_begin = 1;
    std::uint32_t part_end = 0;
    DeviceDedupPart part;
    for (std::uint64_t c = blockIdx.x * std::uint64_t{kSimpleThreads / 32} + threadIdx.x / 32; c < chunks;
         c += warps) {
        const auto chunk = static_cast<std::uint32_t>(c);
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
        std::uint64_t a0 = start[0];
        std::uint64_t a1 = start[1];
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
            for (unsigned block = 0; block < 4; ++block) {
                std::uint64_t p0 = 0;
                std::uint64_t p1 = 0;
                const bool is_last = b + block + 1 == blocks;
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    const uint4 v = loaded[2 * block + half];
                    const bool other = half == 1 && is_last;
                    accumulate(p0, p1, v.x | static_cast<std::uint64_t>(v.y) << 32,
                               v.z | static_cast<std::uint64_t>(v.w) << 32, other ? last[0] : keys[half][0],
                               other ? last[1] : keys[half][1]);
                }
#pragma unroll
                for (int lanes = 4; lanes <= 16; lanes *= 2) {
                    p0 += shuffle_xor(p0, lanes);
                    p1 += shuffle_xor(p1, lanes);
                }
                a0 += p0;
                a1 += p1;
                if (!is_last) {
                    a0 = scramble(a0, scrambler[0]);
                    a1 = scramble(a1, scrambler[1]);
                }
            }
        }
        std::uint64_t low = fold(a0 ^ merge_low[0], a1 ^ merge_low[1]);
        std::uint64_t high = fold(a0 ^ merge_high[0], a1 ^ merge_high[1]);
#pragma unroll
        for (int lanes = 1; lanes <= 2; lanes *= 2) {
            low += shuffle_xor(low, lanes);
            high += shuffle_xor(high, lanes);
        }
        if (lane != 0) continue;
        ChunkHash base;
        if (i < part.with_base) base = launch.hashes[chunk];
        if (note(launch, part, i, finish_long(low, high, launch.chunk_bytes), base, content) &&
            launch.words != nullptr)
            atomicOr(launch.words + part.group + i / 32, 1U << (i % 32));
    }
    content.flush();
}

// ---- scans ----

// An iterator over what a function gives for 0, 1, …
template <class Function, class T>
class Generated {
   public:
    using value_type = T;
    using reference = T;
    using pointer = const T*;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::random_access_iterator_tag;
    __host__ __device__ Generated(Function function, difference_type at) : function_(function), at_(at) {}
    __device__ T operator*() const { return function_(static_cast<std::uint32_t>(at_)); }
    __device__ T operator[](difference_type i) const {
        return function_(static_cast<std::uint32_t>(at_ + i));
    }
    __host__ __device__ Generated operator+(difference_type i) const { return {function_, at_ + i}; }
    __host__ __device__ Generated operator-(difference_type i) const { return {function_, at_ - i}; }
    __host__ __device__ Generated& operator+=(difference_type i) {
        at_ += i;
        return *this;
    }
    __host__ __device__ Generated& operator++() {
        ++at_;
        return *this;
    }
    __host__ __device__ difference_type operator-(const Generated& other) const { return at_ - other.at_; }
    __host__ __device__ bool operator==(const Generated& other) const { return at_ == other.at_; }
    __host__ __device__ bool operator!=(const Generated& other) const { return at_ != other.at_; }

   private:
    Function function_;
    difference_type at_;
};

struct MarksOf {
    const std::uint32_t* words;
    std::uint32_t count;
    __device__ std::uint32_t operator()(std::uint32_t i) const {
        return i < count ? static_cast<std::uint32_t>(__popc(words[i])) : 0;
    }
};
struct IsFresh {
    const Location* sources;
    std::uint32_t begin;
    Location unplaced;  // of changed chunk 0
    __device__ std::uint32_t operator()(std::uint32_t i) const {
        return sources[begin + i] == unplaced + begin + i ? 1 : 0;
    }
};
constexpr std::uint8_t kNoRegion = 0xFF;
struct BeginsRegion {
    const std::uint8_t* levels;
    __device__ std::uint32_t operator()(std::uint32_t i) const { return levels[i] != kNoRegion ? 1 : 0; }
};

template <class Function>
cudaError_t sum_before(void* scratch, std::size_t& bytes, const Function& function, std::uint32_t* sums,
                       std::uint32_t count, cudaStream_t stream) {
    return cub::DeviceScan::ExclusiveSum(scratch, bytes, Generated<Function, std::uint32_t>(function, 0),
                                         sums, count, stream);
}

// Whether a chunk is the head of a run, for each of what the one before it may be, and entries up to here: what a stretch of
// chunks makes of the chunk before it. The lower word is for a chunk before it that is no head, the upper one for a head.
using HeadMap = std::uint64_t;
constexpr std::uint32_t kHead = 1U << 31;
__host__ __device__ inline HeadMap head_map(std::uint32_t after_other, std::uint32_t after_head) {
    return after_other | static_cast<std::uint64_t>(after_head) << 32;
}
struct JoinHeads {
    __host__ __device__ HeadMap operator()(HeadMap a, HeadMap b) const {
        const auto after = [b](std::uint32_t before) {
            const auto part = static_cast<std::uint32_t>((before & kHead) != 0 ? b >> 32 : b);
            return part + (before & ~kHead);
        };
        return head_map(after(static_cast<std::uint32_t>(a)), after(static_cast<std::uint32_t>(a >> 32)));
    }
};
struct HeadsOf {
    const std::uint32_t* changed;
    const Location* sources;
    std::uint64_t first;
    const DeviceJoinState* state;
    bool copies;
    bool alone;
    // What its source adds to the one before it, where the two may be in one run; otherwise more than 1.
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
cudaError_t scan_heads(void* scratch, std::size_t& bytes, const HeadsOf& heads, HeadMap* to,
                       std::uint32_t count, cudaStream_t stream) {
    return cub::DeviceScan::InclusiveScan(scratch, bytes, Generated<HeadsOf, HeadMap>(heads, 0), to,
                                          JoinHeads{}, count, stream);
}

// ---- marks to numbers ----

__global__ void __launch_bounds__(kSimpleThreads)
    list_marks(DeviceDedupSlice slice, std::uint32_t words, std::uint32_t per_group, std::uint32_t* changed) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint64_t warp = (blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x) / 32;
    if (warp * 32 >= words) return;
    const std::uint64_t w = warp * 32 + lane;
    std::uint32_t marks = w < words ? slice.words[w] : 0;
    std::uint32_t to = 0;
    std::uint32_t first = 0;
    if (marks != 0) {
        to = slice.before[w];
        const DeviceDedupPart& part = slice.parts[part_of_group(slice.parts, slice.part_count,
                                                                static_cast<std::uint32_t>(w) / per_group)];
        first = part.first + (static_cast<std::uint32_t>(w) - part.group * per_group) * 32;
    }
    for (unsigned some = ballot(marks != 0); some != 0; some &= some - 1) {
        const int other = __ffs(static_cast<int>(some)) - 1;
        const std::uint32_t word = shuffle_from(marks, other);
        const std::uint32_t at = shuffle_from(to, other);
        const std::uint32_t chunk = shuffle_from(first, other);
        if ((word >> lane & 1) != 0)
            changed[at + static_cast<unsigned>(__popc(word & ((1U << lane) - 1)))] = chunk + lane;
    }
}

// ---- the table ----

struct Found {
    std::uint64_t slot;
    bool made;
};
__device__ inline std::uint64_t key(std::uint64_t half) { return half == 0 ? 1 : half; }

// The slot of this hash, made if there is none. What is read may be older than what another thread wrote: then it is zero, and
// the atomic operation says what is there.
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
#if defined(__HIPCC__)
    if (made) atomicAdd(entries, Word{1});
#else
    const unsigned here = __activemask();
    const unsigned all = __ballot_sync(here, made);
    if (all != 0 && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(here)) - 1)
        atomicAdd(entries, static_cast<Word>(__popc(all)));
#endif
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
        const unsigned stay = ballot(slot.high != 0 && slot.used >= used_since);
        if (stay == 0) continue;
        std::uint64_t to = 0;
        if (lane == 0) to = atomicAdd(count, static_cast<Word>(__popc(stay)));
        to = shuffle_wide(to, 0);
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
__global__ void __launch_bounds__(kSimpleThreads) see_smallest(DeviceLookUp what) {
    const std::uint64_t j = what.begin + blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j >= what.end || what.sources[j] != kPending) return;
    what.sources[j] = ~what.table.slots[what.slots[j]].not_at;
}
__global__ void __launch_bounds__(kSimpleThreads) place_fresh(DeviceLookUp what) {
    const std::uint64_t j = what.begin + blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j >= what.end) return;
    const Location first_unplaced = location_of(what.ordinal, kUnplaced);
    const Location source = what.sources[j];
    const std::uint32_t place = what.places[j];
    const bool fresh = source == first_unplaced + j;
    if (fresh) {
        const Location at = location_of(what.ordinal, what.placed + place);
        what.table.slots[what.slots[j]].not_at = ~at;
        what.sources[j] = at | kDeviceFresh;
        what.fresh[what.placed_in_slice + place] = what.changed[j];
    } else if (source >= first_unplaced && source < first_unplaced + what.end) {
        what.sources[j] = location_of(what.ordinal, what.placed + what.places[source - first_unplaced]);
    }
    if (j + 1 == what.end) *what.fresh_count = place + (fresh ? 1 : 0);
}
__global__ void __launch_bounds__(kSimpleThreads)
    place_each(std::uint32_t ordinal, std::uint64_t placed, std::uint32_t count, Location* sources) {
    const std::uint64_t j = blockIdx.x * std::uint64_t{kSimpleThreads} + threadIdx.x;
    if (j < count) sources[j] = location_of(ordinal, placed + j) | kDeviceFresh;
}

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

// A block the levels above `leaves` nodes of a level of `nodes`: up to ten of them. Where no two neighbours have the label,
// nothing is done.
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

// Of each changed chunk that begins a region: levels above it.
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
        if (ballot(segment != shuffle_from(segment, 0)) == 0) {
            const std::uint64_t sum = warp_sum(term);
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

// A warp a tile of what all runs give. It finds the runs at its ends, and lanes look between those only.
//
// Shifted: the segment is not aligned to 16 bytes. A lane then writes the 16 bytes that begin within the piece before its own,
// if that goes right before it; the first and last bytes of a stretch are written one by one.
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
        const std::uint64_t other = shuffle_xor(found, 1);
        const std::uint64_t low = lane % 2 == 0 ? found : other;
        const std::uint64_t high = lane % 2 == 0 ? other : found;
        DeviceScatterRun run = what.runs[low];
        uint4 carried =
            make_uint4(0, 0, 0, 0);  // the last lane's piece of the round before, and the end of it
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
                    before.x = shuffle_up(values[k].x);
                    before.y = shuffle_up(values[k].y);
                    before.z = shuffle_up(values[k].z);
                    before.w = shuffle_up(values[k].w);
                    std::uint64_t before_end = shuffle_up(my_end);
                    if (lane == 0) {
                        before = carried;
                        before_end = carried_to;
                    }
                    const bool follows = whole && before_end == place;
                    const unsigned all = ballot(follows);
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
                    carried.x = shuffle_from(values[k].x, 31);
                    carried.y = shuffle_from(values[k].y, 31);
                    carried.z = shuffle_from(values[k].z, 31);
                    carried.w = shuffle_from(values[k].w, 31);
                    carried_to = shuffle_wide(my_end, 31);
                }
            }
        }
        if (Shifted && lane == 0 && carried_to != 0)
            store_edge(reinterpret_cast<std::byte*>(carried_to) - 16, carried, 16 - skew, 16);
    }
}

// ---- launches ----

// Blocks that fill a device, for kernels whose blocks take what comes: asked for once a kernel and device.
template <auto Kernel>
DeviceStatus fit(int device, unsigned threads, std::size_t shared, unsigned* blocks) {
    static std::atomic<int> known[kMostDevices];
    if (device < kMostDevices && known[device].load() != 0) {
        *blocks = static_cast<unsigned>(known[device].load());
        return {};
    }
    int multiprocessors = 0;
    int each = 0;
    TWR_GPU(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    const void* const kernel = reinterpret_cast<const void*>(Kernel);
    if (shared != 0)
        TWR_GPU(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared)));
    TWR_GPU(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, static_cast<int>(threads), shared));
    if (each == 0)
        return gpu_failure(ErrorCode::unsupported, device,
                           "the device has too little shared memory for hashes");
    *blocks = static_cast<unsigned>(each * multiprocessors);
    if (device < kMostDevices) known[device] = each * multiprocessors;
    return {};
}
unsigned grid_for(std::uint64_t work, unsigned each, unsigned most = 0x7FFFFFFF) {
    return static_cast<unsigned>(std::min<std::uint64_t>((work + each - 1) / each, most));
}
std::uint32_t piece_shift(std::uint32_t chunk_bytes) {
    std::uint32_t shift = 0;
    while (16U << shift < chunk_bytes)
        ++shift;
    return shift;
}

template <int ChunkBytes>
DeviceStatus launch_groups(int device, const HashLaunch& launch, cudaStream_t stream) {
    unsigned blocks = 0;
    constexpr std::size_t kShared = HashShape<ChunkBytes>::kShared;
    if (const DeviceStatus status = fit<hash_groups<ChunkBytes>>(device, kHashWarps * 32, kShared, &blocks);
        status.failed)
        return status;
    hash_groups<ChunkBytes>
        <<<grid_for(launch.groups, kHashWarps, blocks), kHashWarps * 32, kShared, stream>>>(launch);
    TWR_GPU_LAUNCHED("hashes of chunks");
    return {};
}
DeviceStatus launch_hashes(int device, const HashLaunch& launch, std::uint32_t chunks, cudaStream_t stream) {
    switch (launch.chunk_bytes) {
        case 32: return launch_groups<32>(device, launch, stream);
        case 64: return launch_groups<64>(device, launch, stream);
        case 128: return launch_groups<128>(device, launch, stream);
        case 256: return launch_groups<256>(device, launch, stream);
        case 512: return launch_groups<512>(device, launch, stream);
        case 1024: return launch_groups<1024>(device, launch, stream);
        case 2048: return launch_groups<2048>(device, launch, stream);
        default: break;
    }
    unsigned blocks = 0;
    if (const DeviceStatus status = fit<hash_large>(device, kSimpleThreads, 0, &blocks); status.failed)
        return status;
    if (launch.words != nullptr)
        TWR_GPU(cudaMemsetAsync(launch.words, 0, std::size_t{launch.groups} * 4, stream));
    hash_large<<<grid_for(chunks, kSimpleThreads / 32, blocks), kSimpleThreads, 0, stream>>>(launch, chunks);
    TWR_GPU_LAUNCHED("hashes of large chunks");
    return {};
}
HashLaunch launch_of(const DeviceDedupSlice& slice) {
    HashLaunch launch{};
    launch.parts = slice.parts;
    launch.part_count = slice.part_count;
    launch.groups = slice.groups;
    launch.content = slice.content;
    launch.chunk_bytes = slice.chunk_bytes;
    return launch;
}

std::size_t scan_scratch(int device, std::uint64_t items) {
    const CurrentDevice current(device);
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(items, 0xFFFFFFFFU));
    std::size_t most = 256;
    std::size_t bytes = 0;
    if (sum_before(nullptr, bytes, MarksOf{}, nullptr, count, nullptr) == cudaSuccess)
        most = std::max(most, bytes);
    if (sum_before(nullptr, bytes, IsFresh{}, nullptr, count, nullptr) == cudaSuccess)
        most = std::max(most, bytes);
    if (sum_before(nullptr, bytes, BeginsRegion{}, nullptr, count, nullptr) == cudaSuccess)
        most = std::max(most, bytes);
    if (scan_heads(nullptr, bytes, HeadsOf{}, nullptr, count, nullptr) == cudaSuccess)
        most = std::max(most, bytes);
    static_cast<void>(cudaGetLastError());
    return most;
}

DeviceStatus find_changed(int device, const DeviceDedupSlice& slice, StreamHandle stream_handle) {
    TWR_GPU_CURRENT(device);
    const cudaStream_t stream = gpu_stream(stream_handle);
    HashLaunch launch = launch_of(slice);
    launch.hashes = slice.hashes;
    launch.words = slice.words;
    launch.mask = slice.mask;
    if (slice.chunks != 0) {
        if (const DeviceStatus status = launch_hashes(device, launch, slice.chunks, stream); status.failed)
            return status;
    }
    std::size_t bytes = slice.scratch_bytes;
    const std::uint32_t words = slice.words_of();
    TWR_GPU(sum_before(slice.scratch, bytes, MarksOf{slice.words, words}, slice.before, words + 1, stream));
    return {};
}

DeviceStatus list_changed(int device, const DeviceDedupSlice& slice, std::uint32_t* changed,
                          StreamHandle stream) {
    if (slice.groups == 0) return {};
    TWR_GPU_CURRENT(device);
    const std::uint32_t words = slice.words_of();
    list_marks<<<grid_for(words, kSimpleThreads), kSimpleThreads, 0, gpu_stream(stream)>>>(
        slice, words, dedup_group_chunks(slice.chunk_bytes) / 32, changed);
    TWR_GPU_LAUNCHED("numbers of changed chunks");
    return {};
}

DeviceStatus hash_content(int device, const DeviceDedupSlice& slice, StreamHandle stream) {
    if (slice.chunks == 0) return {};
    TWR_GPU_CURRENT(device);
    return launch_hashes(device, launch_of(slice), slice.chunks, gpu_stream(stream));
}

DeviceStatus hash_chunks(int device, const std::byte* chunks, std::uint64_t count, std::uint32_t chunk_bytes,
                         ChunkHash* hashes, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    for (std::uint64_t done = 0; done < count;) {
        const auto part = static_cast<std::uint32_t>(std::min(count - done, kMostSliceChunks));
        HashLaunch launch{};
        launch.one.data = chunks + done * chunk_bytes;
        launch.one.bytes = std::uint64_t{part} * chunk_bytes;
        launch.one.chunks = part;
        launch.part_count = 1;
        launch.groups = (part + dedup_group_chunks(chunk_bytes) - 1) / dedup_group_chunks(chunk_bytes);
        launch.hashes = hashes + done;
        launch.chunk_bytes = chunk_bytes;
        if (const DeviceStatus status = launch_hashes(device, launch, part, gpu_stream(stream));
            status.failed)
            return status;
        done += part;
    }
    return {};
}

DeviceStatus insert(int device, const DeviceDedupTable& table, const ChunkHash* hashes, std::uint64_t count,
                    const ChunkHash& mask, Location first, std::uint32_t ordinal, StreamHandle stream) {
    if (count == 0) return {};
    TWR_GPU_CURRENT(device);
    insert_hashes<<<grid_for(count, kSimpleThreads), kSimpleThreads, 0, gpu_stream(stream)>>>(
        table, hashes, count, mask, first, ordinal);
    TWR_GPU_LAUNCHED("entries of a table of hashes");
    return {};
}

DeviceStatus count_by_use(int device, const DeviceDedupTable& table, unsigned shift, std::uint32_t above,
                          unsigned long long* counts, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    uses<<<grid_for(table.count, kSimpleThreads, 2048), kSimpleThreads, 0, gpu_stream(stream)>>>(
        table, shift, above, counts);
    TWR_GPU_LAUNCHED("uses of a table of hashes");
    return {};
}

DeviceStatus take_out(int device, const DeviceDedupTable& table, std::uint32_t used_since,
                      DeviceDedupSlot* taken, unsigned long long* count, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    take_slots<<<grid_for(table.count, kSimpleThreads, 8192), kSimpleThreads, 0, gpu_stream(stream)>>>(
        table, used_since, taken, count);
    TWR_GPU_LAUNCHED("what stays of a table of hashes");
    return {};
}

DeviceStatus put_in(int device, const DeviceDedupTable& table, const DeviceDedupSlot* taken,
                    std::uint64_t count, StreamHandle stream) {
    if (count == 0) return {};
    TWR_GPU_CURRENT(device);
    put_slots<<<grid_for(count, kSimpleThreads), kSimpleThreads, 0, gpu_stream(stream)>>>(table, taken,
                                                                                          count);
    TWR_GPU_LAUNCHED("growth of a table of hashes");
    return {};
}

DeviceStatus look_up(int device, const DeviceLookUp& what, StreamHandle stream_handle) {
    if (what.begin >= what.end) return {};
    TWR_GPU_CURRENT(device);
    const cudaStream_t stream = gpu_stream(stream_handle);
    const std::uint32_t count = what.end - what.begin;
    const unsigned grid = grid_for(count, kSimpleThreads);
    enter_changed<<<grid, kSimpleThreads, 0, stream>>>(what);
    TWR_GPU_LAUNCHED("entries of changed chunks");
    see_smallest<<<grid, kSimpleThreads, 0, stream>>>(what);
    TWR_GPU_LAUNCHED("sources of changed chunks");
    const Location unplaced = static_cast<Location>(what.ordinal) << kLocationChunkBits | kUnplaced;
    std::size_t bytes = what.scratch_bytes;
    TWR_GPU(sum_before(what.scratch, bytes, IsFresh{what.sources, what.begin, unplaced},
                       what.places + what.begin, count, stream));
    place_fresh<<<grid, kSimpleThreads, 0, stream>>>(what);
    TWR_GPU_LAUNCHED("places of new chunks");
    return {};
}

DeviceStatus place_all(int device, std::uint32_t ordinal, std::uint64_t placed, std::uint32_t count,
                       Location* sources, StreamHandle stream) {
    if (count == 0) return {};
    TWR_GPU_CURRENT(device);
    place_each<<<grid_for(count, kSimpleThreads), kSimpleThreads, 0, gpu_stream(stream)>>>(ordinal, placed,
                                                                                           count, sources);
    TWR_GPU_LAUNCHED("places of changed chunks");
    return {};
}

DeviceStatus join(int device, const DeviceJoin& what, StreamHandle stream_handle) {
    if (what.count == 0) return {};
    TWR_GPU_CURRENT(device);
    const cudaStream_t stream = gpu_stream(stream_handle);
    const HeadsOf heads{what.changed, what.sources, what.first, what.state, what.copies, what.alone};
    std::size_t bytes = what.scratch_bytes;
    TWR_GPU(scan_heads(what.scratch, bytes, heads, what.heads, what.count, stream));
    write_runs<<<grid_for(what.count, kSimpleThreads), kSimpleThreads, 0, stream>>>(what, heads);
    TWR_GPU_LAUNCHED("runs");
    end_runs<<<1, 1, 0, stream>>>(what, heads);
    TWR_GPU_LAUNCHED("the end of runs");
    return {};
}

template <Label Which>
DeviceStatus climb_all(int device, const DeviceTreeJoin& what, cudaStream_t stream) {
    std::uint32_t level = 0;
    for (std::uint64_t nodes = what.width; nodes > 1;) {
        const auto leaves = static_cast<std::uint32_t>(std::min<std::uint64_t>(nodes, kSubtree));
        climb<Which><<<static_cast<unsigned>(nodes / leaves), kSimpleThreads, 0, stream>>>(what, nodes,
                                                                                           leaves, level);
        TWR_GPU_LAUNCHED("regions of a tree");
        nodes /= leaves;
        level += piece_shift(leaves * 16);
    }
    return {};
}

DeviceStatus join_tree(int device, const DeviceTreeJoin& what, StreamHandle stream_handle) {
    if (what.count == 0) return {};
    TWR_GPU_CURRENT(device);
    const cudaStream_t stream = gpu_stream(stream_handle);
    const unsigned grid = grid_for(what.count, kSimpleThreads);
    TWR_GPU(cudaMemsetAsync(what.labels, kNone, 2 * what.width, stream));
    label_leaves<<<grid, kSimpleThreads, 0, stream>>>(what);
    TWR_GPU_LAUNCHED("leaves of a tree");
    // All that is new is entered before copies look for it.
    if (const DeviceStatus status = climb_all<kFirst>(device, what, stream); status.failed) return status;
    if (const DeviceStatus status = climb_all<kCopy>(device, what, stream); status.failed) return status;
    find_regions<<<grid, kSimpleThreads, 0, stream>>>(what);
    TWR_GPU_LAUNCHED("roots of a tree");
    std::size_t bytes = what.scratch_bytes;
    TWR_GPU(sum_before(what.scratch, bytes, BeginsRegion{what.levels}, what.places, what.count, stream));
    write_regions<<<grid, kSimpleThreads, 0, stream>>>(what);
    TWR_GPU_LAUNCHED("entries of a tree");
    return {};
}

constexpr unsigned kCopyBlocks = 2048;  // 8 to 16 a multiprocessor; each goes on with what is left

DeviceStatus consolidate(int device, const DeviceConsolidate& what, StreamHandle stream) {
    const Stretches s{what.parts, what.part_count, what.chunk_bytes, piece_shift(what.chunk_bytes)};
    const std::uint64_t work = std::max(what.entry_count, what.chunk_count << s.shift);
    if (work == 0) return {};
    TWR_GPU_CURRENT(device);
    consolidate_all<<<grid_for(work, kSimpleThreads, kCopyBlocks), kSimpleThreads, 0, gpu_stream(stream)>>>(
        what, s);
    TWR_GPU_LAUNCHED("consolidation");
    return {};
}

DeviceStatus keep_base(int device, std::uint32_t chunk_bytes, const DeviceDedupPart* parts,
                       std::uint32_t part_count, const std::uint32_t* changed, const Location* sources,
                       std::uint32_t count, const DeviceBase& base, StreamHandle stream) {
    if (count == 0) return {};
    TWR_GPU_CURRENT(device);
    const Stretches s{parts, part_count, chunk_bytes, piece_shift(chunk_bytes)};
    put_base<<<grid_for(std::uint64_t{count} << s.shift, kSimpleThreads, kCopyBlocks), kSimpleThreads, 0,
               gpu_stream(stream)>>>(s, changed, sources, count, base);
    TWR_GPU_LAUNCHED("the next base");
    return {};
}

DeviceStatus move_base(int device, std::uint32_t chunk_bytes, const DeviceBaseMove* moves,
                       std::uint64_t count, std::uint64_t chunks, const DeviceBase& from,
                       const DeviceBase& to, std::uint64_t* content, StreamHandle stream) {
    if (chunks == 0) return {};
    TWR_GPU_CURRENT(device);
    move_chunks<<<grid_for(chunks, kSimpleThreads, kCopyBlocks), kSimpleThreads, 0, gpu_stream(stream)>>>(
        moves, count, chunks, piece_shift(chunk_bytes), from, to, content);
    TWR_GPU_LAUNCHED("a base that moves");
    return {};
}

DeviceStatus scatter(int device, const DeviceScatter& what, StreamHandle stream) {
    if (what.chunks == 0) return {};
    TWR_GPU_CURRENT(device);
    const std::uint32_t shift = piece_shift(what.chunk_bytes);
    const std::uint64_t tiles = ((what.chunks << shift) + kScatterTile - 1) / kScatterTile;
    const unsigned grid = grid_for(tiles, kSimpleThreads / 32, 8 * kCopyBlocks);
    if (reinterpret_cast<std::uintptr_t>(what.to) % 16 == 0) {
        scatter_runs<false><<<grid, kSimpleThreads, 0, gpu_stream(stream)>>>(what, shift);
    } else {
        scatter_runs<true><<<grid, kSimpleThreads, 0, gpu_stream(stream)>>>(what, shift);
    }
    TWR_GPU_LAUNCHED("scattering of payload");
    return {};
}

}  // namespace

}  // namespace gpu

extern const DeviceDedupKernels kDeviceDedupTable;
const DeviceDedupKernels kDeviceDedupTable = {
    gpu::scan_scratch, gpu::find_changed, gpu::list_changed, gpu::hash_content, gpu::hash_chunks, gpu::insert,
    gpu::count_by_use, gpu::take_out,     gpu::put_in,       gpu::look_up,      gpu::place_all,   gpu::join,
    gpu::join_tree,    gpu::consolidate,  gpu::keep_base,    gpu::move_base,    gpu::scatter,
};

}  // namespace twinrun
