// Private to dedup_cuda.cu: sums over marks, and heads of runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "device/gpu.hpp"

#include <cub/device/device_scan.cuh>

#include "dedup/kernel_support.cuh"

namespace twinrun {

namespace gpu {

namespace {

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

// Whether a chunk is the head of a run, for each of what the one before it may be, and entries up
// to here: what a stretch of chunks makes of the chunk before it. The lower word is for a chunk
// before it that is no head, the upper one for a head.
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
cudaError_t scan_heads(void* scratch, std::size_t& bytes, const HeadsOf& heads, HeadMap* to,
                       std::uint32_t count, cudaStream_t stream) {
    return cub::DeviceScan::InclusiveScan(scratch, bytes, Generated<HeadsOf, HeadMap>(heads, 0), to,
                                          JoinHeads{}, count, stream);
}

}  // namespace

}  // namespace gpu

}  // namespace twinrun
