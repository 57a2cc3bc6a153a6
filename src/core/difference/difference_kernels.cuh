// Private to difference_cuda.cu: the kernels. A block divides its tiles among warps
// (difference_warp.cuh) and gives what they found.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/warp.cuh"
#include "difference/difference_warp.cuh"

namespace twinrun {

namespace {

template <Kind kKind>
__device__ inline Shared<kKind>& shared_memory() {
    extern __shared__ uint4 memory[];
    auto* const begin = reinterpret_cast<std::byte*>(memory);
    const auto past = static_cast<unsigned>(__cvta_generic_to_shared(begin)) % kSharedAlignment;
    return *reinterpret_cast<Shared<kKind>*>(begin + (past == 0 ? 0 : kSharedAlignment - past));
}

template <Kind kKind, Rule kRule>
__device__ inline void prepare_tables(const Work& work, Shared<kKind>& shared) {
    if (kRule == Rule::circles && threadIdx.x < Measure::kMostComponents) {
        const double period = work.measured.period[threadIdx.x];
        shared.circles[threadIdx.x] =
            period > 0 ? Circle{period, 1 / period, kOneTurn * period} : Circle{0, 0, kInfiniteDistance};
    }
    if constexpr (!Shared<kKind>::kFloats) {
        for (unsigned i = threadIdx.x; i < Shared<kKind>::kBins; i += kThreads)
            shared.bins[0][i] = kBinTable.entries[i];
    }
}
template <Kind kKind>
__device__ inline void prepare_counts(Shared<kKind>& shared, Totals* totals, std::uint32_t part) {
    for (unsigned i = threadIdx.x; i < kHistogramBins; i += kThreads)
        shared.all[i] = shared.over[i] = 0;
    if (threadIdx.x < kWarps) {
        WarpState& state = shared.warp[threadIdx.x];
        state.totals = totals;
        state.part = part;
        for (Best& best : state.best)
            best = {0, kNowhere};
        state.first = kNowhere;
    }
}
// The results of the block's warps, once all of them are done.
template <Kind kKind>
__device__ inline void give(const Shared<kKind>& shared, Totals* totals, Partial* to) {
    for (unsigned i = threadIdx.x; i < kHistogramBins; i += kThreads) {
        if (shared.all[i] != 0) atomicAdd(&totals->all[i], Count64{shared.all[i]});
        if (shared.over[i] != 0) atomicAdd(&totals->over[i], Count64{shared.over[i]});
    }
    if (threadIdx.x != 0) return;
    Partial partial{0, 0, 0, kNowhere, {{0, kNowhere}, {0, kNowhere}, {0, kNowhere}}};
    for (unsigned w = 0; w < kWarps; ++w) {
        const WarpState& state = shared.warp[w];
        partial.sum += shared.sums[2 * w];
        partial.sum_different += shared.sums[2 * w + 1];
        partial.largest = shared.largest[w] > partial.largest ? shared.largest[w] : partial.largest;
        partial.first = state.first < partial.first ? state.first : partial.first;
        for (unsigned which = 0; which < 3; ++which)
            raise(partial.best[which], state.best[which].value, state.best[which].at);
    }
    *to = partial;
}

template <Kind kKind, Rule kRule>
__global__ void __launch_bounds__(kThreads, kMostBlocksEach)
    compare_kernel(const __grid_constant__ Work work) {
    Shared<kKind>& shared = shared_memory<kKind>();
    prepare_tables<kKind, kRule>(work, shared);
    prepare_counts(shared, work.totals, kAnyPart);
    __syncthreads();
    Warp<kKind, kRule>(work, shared)
        .run(std::uint64_t{blockIdx.x} * kWarps, work.tiles, std::uint64_t{gridDim.x} * kWarps);
    __syncthreads();
    give(shared, work.totals, work.partials + blockIdx.x);
}

// Each part has totals of its own, each share a partial: which block takes a share changes nothing.
template <Kind kKind, Rule kRule>
__global__ void __launch_bounds__(kThreads, kMostBlocksEach)
    compare_pairs_kernel(const __grid_constant__ Work work, const Share* shares, std::uint32_t count,
                         std::uint32_t* next) {
    Shared<kKind>& shared = shared_memory<kKind>();
    prepare_tables<kKind, kRule>(work, shared);
    for (;;) {
        if (threadIdx.x == 0) shared.share = atomicAdd(next, 1U);
        __syncthreads();
        const std::uint32_t number = shared.share;
        if (number >= count) return;
        const Share share = shares[number];
        Totals* const totals = work.totals + share.part;
        prepare_counts(shared, totals, share.part);
        __syncthreads();
        Warp<kKind, kRule>(work, shared).run(share.tile, share.tile + share.tiles, kWarps);
        __syncthreads();
        give(shared, totals, work.partials + number);
        __syncthreads();
    }
}

// How many chunks are marked; words of 16 marks. Every `step`-th word from `begin` on; of the
// thread.
__device__ inline unsigned marks_in(const uint4* marks, std::uint64_t begin, std::uint64_t words,
                                    std::uint64_t step) {
    unsigned count = 0;
    for (std::uint64_t i = begin; i < words; i += step) {
        const uint4 w = marks[i];
        count += static_cast<unsigned>(__popc(w.x) + __popc(w.y) + __popc(w.z) + __popc(w.w));
    }
    return count;
}

__global__ void __launch_bounds__(kFinishThreads)
    count_chunks(const uint4* marks, std::uint64_t words, Totals* totals) {
    const unsigned count = warp::sum(marks_in(marks, std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                                              words, std::uint64_t{gridDim.x} * blockDim.x));
    if (threadIdx.x % kLanes == 0 && count != 0) atomicAdd(&totals->chunks, Count64{count});
}

__device__ inline void merge(Partial& into, const Partial& other) {
    into.sum += other.sum;
    into.sum_different += other.sum_different;
    into.largest = other.largest > into.largest ? other.largest : into.largest;
    into.first = other.first < into.first ? other.first : into.first;
    for (unsigned which = 0; which < 3; ++which)
        raise(into.best[which], other.best[which].value, other.best[which].at);
}

// The block's threads put partials together, always in the same order. found: one a thread.
__device__ inline void put_together(const Partial* partials, std::uint32_t count, const Totals* totals,
                                    std::uint64_t scalars, Partial* found, DeviceDifferenceResult* result) {
    Partial mine{0, 0, 0, kNowhere, {{0, kNowhere}, {0, kNowhere}, {0, kNowhere}}};
    for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        merge(mine, partials[i]);
    found[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half != 0; half /= 2) {
        if (threadIdx.x < half) merge(found[threadIdx.x], found[threadIdx.x + half]);
        __syncthreads();
    }
    DifferenceStats& stats = result->stats;
    auto* all = reinterpret_cast<std::uint64_t*>(&stats.all);
    auto* over = reinterpret_cast<std::uint64_t*>(&stats.over);
    for (unsigned i = threadIdx.x; i < kHistogramBins; i += blockDim.x) {
        if (i != 0) all[i] = totals->all[i];
        over[i] = totals->over[i];
    }
    if (threadIdx.x != 0) return;
    const Partial& sum = found[0];
    std::uint64_t unequal = 0;
    std::uint64_t different = 0;
    for (unsigned i = 0; i < kHistogramBins; ++i) {
        if (i != 0) unequal += totals->all[i];
        different += totals->over[i];
    }
    all[0] = scalars - unequal;
    stats.scalars = scalars;
    stats.different = different;
    stats.infinite = totals->over[kHistogramBins - 1];
    stats.first = sum.first;
    stats.max_abs = sum.best[0].value;
    stats.max_abs_at = sum.best[0].at;
    stats.max_rel = sum.best[1].value;
    stats.max_rel_at = sum.best[1].at;
    stats.max_rel_different = sum.best[2].value;
    stats.max_rel_different_at = sum.best[2].at;
    stats.largest = sum.largest;
    stats.sum_squares = sum.sum;
    stats.sum_squares_different = sum.sum_different;
    result->different_chunks = totals->chunks;
}

// One block.
__global__ void __launch_bounds__(kFinishThreads)
    finish(const Partial* partials, unsigned count, const Totals* totals, std::uint64_t scalars,
           DeviceDifferenceResult* result) {
    __shared__ Partial found[kFinishThreads];
    put_together(partials, count, totals, scalars, found, result);
}

// Column x of the grid's blocks is of pair x: each block counts some of its chunks, and the last
// one puts the rest together. first_share: the number of each part's first share, and that of all.
__global__ void __launch_bounds__(kPairThreads)
    finish_pairs(const Work work, const std::uint32_t* first_share, DevicePairResult* results) {
    __shared__ Partial found[kPairThreads];
    __shared__ unsigned chunks;
    __shared__ bool is_last;
    const Part part = work.parts[blockIdx.x];
    Totals* const totals = work.totals + blockIdx.x;
    DevicePairResult* const result = results + blockIdx.x;
    const std::uint64_t marks = (part.scalars - 1) / work.chunk_scalars + 1;
    if (threadIdx.x == 0) chunks = 0;
    __syncthreads();
    const unsigned mine =
        warp::sum(marks_in(reinterpret_cast<const uint4*>(work.chunk_differs + part.chunk),
                           std::uint64_t{blockIdx.y} * blockDim.x + threadIdx.x,
                           (marks - 1) / sizeof(uint4) + 1, std::uint64_t{gridDim.y} * blockDim.x));
    if (threadIdx.x % kLanes == 0 && mine != 0) atomicAdd(&chunks, mine);
    __syncthreads();
    if (threadIdx.x == 0) {
        if (chunks != 0) atomicAdd(&totals->chunks, Count64{chunks});
        __threadfence();
        is_last = atomicAdd(&totals->counted, Count64{1}) == gridDim.y - 1;
    }
    __syncthreads();
    if (!is_last) return;
    const std::uint32_t from = first_share[blockIdx.x];
    put_together(work.partials + from, first_share[blockIdx.x + 1] - from, totals, part.scalars, found,
                 &result->found);
    if (threadIdx.x != 0) return;
    result->found.different_chunks = atomicAdd(&totals->chunks, Count64{0});
    const unsigned bytes = bytes_of(work.scalar);
    const auto bits = [&](const std::byte* run, std::uint64_t at) {
        return at == kNowhere ? 0 : word_at(run + (at - part.index) * bytes, bytes);
    };
    const DifferenceStats& stats = result->found.stats;
    result->first_bits[0] = bits(part.a, stats.first);
    result->first_bits[1] = bits(part.b, stats.first);
    result->largest_bits[0] = bits(part.a, stats.max_abs_at);
    result->largest_bits[1] = bits(part.b, stats.max_abs_at);
}

}  // namespace

}  // namespace twinrun
