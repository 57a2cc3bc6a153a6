// Private to difference_cuda.cu: what a thread block has in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "difference/difference_stored.cuh"

namespace twinrun {

namespace {

struct WarpState {
    Totals* totals;
    std::uint32_t part;  // that all tiles lie in; kAnyPart: each is looked for
    Best best[3];        // distance; quotient; quotient of those that differ
    std::uint64_t first;
    // Facts of the tile, in memory and not in registers, because only rare cases use them.
    const std::byte* a;
    const std::byte* b;
    std::uint64_t index;  // of its first scalar in the field
    std::uint64_t chunk;  // `before` scalars before it this chunk begins
    std::uint64_t before;
    std::uint32_t component;       // of its first scalar
    std::uint64_t component_left;  // scalars until another one, where components do not take turns
    // Of the counters, likewise: the first one's bin; looks for another one, and groups with
    // outliers until the next.
    std::uint32_t base;
    std::uint32_t looks;
    std::uint32_t wait;
};

// The lanes' words of a group that is under way: those of a, then those of b.
struct Stage {
    uint4 words[2][kMostVectors][kLanes];
};
// What lies at an address in shared memory, which compilers do not follow through structures.
template <class T>
__device__ inline T& in_shared(std::uint32_t address) {
    return *static_cast<T*>(__cvta_shared_to_generic(address));
}
// A scalar there, zero-extended.
__device__ inline std::uint64_t bits_in_shared(std::uint32_t address, unsigned bytes) {
    switch (bytes) {
        case 1: return in_shared<const std::uint8_t>(address);
        case 2: return in_shared<const std::uint16_t>(address);
        case 4: return in_shared<const std::uint32_t>(address);
        default: return in_shared<const std::uint64_t>(address);
    }
}
__device__ inline std::uint32_t shared_address(const void* at) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

// A block's shared memory. Its stages follow, work.stages of each warp: each begins with a line of
// shared memory, so that copies to it are not split.
template <Kind kKind>
struct alignas(128) Shared {
    // Distances of floats: a table a warp, as each has its own counters.
    static constexpr bool kFloats = sizeof(typename Stored<kKind>::Value) == 4;
    using Bin = std::conditional_t<kFloats, FloatBin, BinEntry>;
    static constexpr unsigned kBins = kFloats ? 256 : 2048;

    Bin bins[kFloats ? kWarps : 1][kBins];
    WarpState warp[kWarps];
    Circle circles[Measure::kMostComponents];
    double sums[2 * kWarps];
    double largest[kWarps];
    std::uint32_t all[kHistogramBins];
    std::uint32_t over[kHistogramBins];
    std::uint32_t share;  // that the block has taken

    [[nodiscard]] __device__ Stage* stages() { return reinterpret_cast<Stage*>(this + 1); }
};

// Of Shared: its tables lie at multiples of their size.
constexpr unsigned kSharedAlignment = 256 * sizeof(FloatBin);
template <Kind kKind>
constexpr std::size_t shared_bytes(unsigned stages) {
    return kSharedAlignment + sizeof(Shared<kKind>) + sizeof(Stage) * kWarps * stages;
}

}  // namespace

}  // namespace twinrun
