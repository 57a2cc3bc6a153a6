// Private to dedup_cuda.cu: exchange between the lanes of a warp, bytes of any alignment, and parts
// of an image.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dedup/chunk_hash.cuh"
#include "dedup/dedup_device.hpp"
#include "device/gpu.hpp"
#include "device/staging.cuh"
#include "device/warp.cuh"

namespace twinrun {

namespace gpu {

namespace {

constexpr unsigned kSimpleThreads = 256;
constexpr std::uint64_t kUnplaced = kMostPayloadChunks;  // as in host_deduplicator.cpp

using Word = unsigned long long;  // what atomic operations take

// ---- to the host ----

// to: page-locked memory of the host.
__global__ void __launch_bounds__(kSimpleThreads)
    write_words(std::uint32_t* to, const std::uint32_t* from, std::uint32_t words) {
    const std::uint32_t i = blockIdx.x * kSimpleThreads + threadIdx.x;
    if (i < words) to[i] = from[i];
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

// Sums of content on their way to a segment: one atomic operation for as long as the segment stays
// the same.
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
        const std::uint64_t sum = warp::sum(sum_);
        sum_ = 0;
        if (threadIdx.x % 32 == 0 && sum != 0)
            atomicAdd(reinterpret_cast<Word*>(content_ + segment_), static_cast<Word>(sum));
    }

   private:
    std::uint64_t* content_;
    std::uint32_t segment_ = ~std::uint32_t{0};
    std::uint64_t sum_ = 0;
};

}  // namespace

}  // namespace gpu

}  // namespace twinrun
