// Private to difference_cuda.cu: the histogram of one warp.
//
// Counters of decades are 4 bits of a register (a block of pairs'), then 8 bits (31 blocks'), then
// shared memory (a thread block's): they stand for 7 or 8 decades from a base that the warp
// chooses, by what the thread block has counted. Distances beyond those, outliers, go to shared
// memory at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/warp.cuh"
#include "difference/difference_shared.cuh"

namespace twinrun {

namespace {

// The bin of a distance that is not 0.
__device__ inline std::uint32_t bin(double distance) {
    const BinEntry& entry = kBinTable.entries[bits_of(distance) >> 52 & 0x7FF];
    if (entry.slot == kNoSlot) return 1;
    return entry.slot / 4 + (distance >= entry.next ? 1 : 0);
}

template <Kind kKind>
class Counters {
   public:
    using In = Shared<kKind>;
    static constexpr bool kFloats = In::kFloats;
    static constexpr unsigned kCounters = kFloats ? 7 : 8;  // decades that have one
    static constexpr std::uint32_t kMostDoublings = 6;      // of what choose_base() waits for
    static constexpr unsigned kBlocks = Stored<kKind>::kPairs / kBlock<kKind>;

    __device__ explicit Counters(In& shared)
        : shared_(shared),
          bins_(shared.bins[kFloats ? threadIdx.x / kLanes : 0]),
          bins_at_(shared_address(&bins_)) {
        forget(bins_at_);  // kept: it would be worked out anew for each group
        if (threadIdx.x % kLanes == 0) state().looks = state().wait = 0;
        set_base(1);
    }

    // The counter of a distance of floats: 1 in its 4 bits, or kOutsideCounters if it has none; 0
    // of 0. rounded: the distance, or what it was rounded from, as a float and rounded to zero, so
    // that it keeps its binade.
    [[nodiscard]] __device__ std::uint32_t of_floats(double distance, float rounded) const {
#if defined(__CUDA_ARCH__)
        // In one load, at an address without an addition: the table lies at a multiple of its size.
        static_assert(sizeof(FloatBin) == sizeof(ulonglong2));
        const auto both = in_shared<const ulonglong2>((bits_in(rounded) >> 19 & 0xFF0) | bins_at_);
        const FloatBin entry{as_double(both.x), static_cast<std::uint32_t>(both.y),
                             static_cast<std::uint32_t>(both.y >> 32)};
#else
        const FloatBin entry = bins_[bits_in(rounded) >> 23 & 0xFF];
#endif
        return distance >= entry.next ? entry.above : entry.below;
    }
    // Of others than floats: 0 if it has none. *slots: gathers what tells so.
    [[nodiscard]] __device__ std::uint32_t of_doubles(double distance, std::uint32_t* slots) const {
        const BinEntry& entry = bins_[bits_of(distance) >> 52 & 0x7FF];
        const std::uint32_t lower = 0 - base_slot_;
        const std::uint32_t upper = 4 - base_slot_;
        const std::uint32_t at = entry.slot + entry.scale * (distance >= entry.next ? upper : lower);
        *slots |= at;
        return __funnelshift_lc(0U, 1U, at);  // 0 for slots beyond
    }

    // Keeps what blocks of pairs gathered, as the above give it.
    __device__ void count(const std::uint32_t (&all)[kBlocks], const std::uint32_t (&over)[kBlocks]) {
        constexpr std::uint32_t even = 0x0F0F0F0F;
        constexpr std::uint32_t odd = kFloats ? 0x000F0F0F : even;  // the last counts those outside
#pragma unroll
        for (unsigned i = 0; i < kBlocks; ++i) {
            all_[0] += all[i] & even;
            all_[1] += all[i] >> 4 & odd;
            over_[0] += over[i] & even;
            over_[1] += over[i] >> 4 & odd;
        }
        pending_ += kBlocks;
        if (pending_ + kBlocks > kMostPending) flush();
    }
    // All that was kept goes to the thread block's counters.
    __device__ void flush() {
        if (pending_ == 0) return;
        pending_ = 0;
        flush(all_, shared_.all);
        flush(over_, shared_.over);
    }

    // The thread block's counters, at once.
    __device__ void count_at(std::uint32_t number, bool differs) {
        atomicAdd(&shared_.all[number], 1U);
        if (differs) atomicAdd(&shared_.over[number], 1U);
    }
    // Counts a distance at once, if it is an outlier; whether it is.
    __device__ bool count_outlier(double distance, bool differs) {
        if (distance == 0 || has_counter(distance)) return false;
        count_at(bin(distance), differs);
        return true;
    }
    // A group had outliers. The counters come to stand for the decades that have most of what the
    // thread block has counted so far. After each look at that, twice as many groups pass by.
    __device__ void choose_base() {
        const std::uint32_t wait = state().wait;
        const std::uint32_t looks = state().looks;
        warp::sync();
        if (threadIdx.x % kLanes == 0) {
            state().wait = wait != 0 ? wait - 1 : 1U << looks;
            if (wait == 0 && looks < kMostDoublings) state().looks = looks + 1;
        }
        warp::sync();
        if (wait != 0) return;
        flush();
        warp::sync();
        const unsigned lane = threadIdx.x % kLanes;
        std::uint32_t all = 0;
        std::uint32_t most = 0;
        std::uint32_t from = 0;
        for (std::uint32_t bin = 1 + lane; bin < kHistogramBins; bin += kLanes) {
            all += counted(bin);
            if (bin + kCounters > kHistogramBins) continue;
            const std::uint32_t with_counter = counted_from(bin);
            if (with_counter > most) {
                most = with_counter;
                from = bin;
            }
        }
        all = warp::sum(all);
        // (Other warps count meanwhile: the lanes must not act by what each of them has read.)
        const std::uint32_t now = warp::from(counted_from(state().base), 0);
        const std::uint32_t best = warp::largest(most);
        const std::uint32_t outside = all > now ? all - now : 0;
        if ((all > best ? all - best : 0) >= outside - outside / 4) return;
        // The lowest of those that have as many.
        const std::uint32_t lowest = most == best ? kHistogramBins - from : 0;
        set_base(kHistogramBins - warp::largest(lowest));
    }

   private:
    using Bin = typename In::Bin;

    [[nodiscard]] __device__ WarpState& state() const { return shared_.warp[threadIdx.x / kLanes]; }

    [[nodiscard]] __device__ bool has_counter(double distance) const {  // one that is not 0
        if constexpr (kFloats) {
            return of_floats(distance, __double2float_rz(distance)) < kOutsideCounters;
        } else {
            std::uint32_t slots = 0;
            static_cast<void>(of_doubles(distance, &slots));
            return (slots & kOutlierBits) == 0;
        }
    }
    // Of what the thread block has counted: in a bin; in those that would have counters from it on.
    [[nodiscard]] __device__ std::uint32_t counted(std::uint32_t bin) const {
        return *const_cast<const volatile std::uint32_t*>(&shared_.all[bin]);
    }
    [[nodiscard]] __device__ std::uint32_t counted_from(std::uint32_t bin) const {
        std::uint32_t sum = 0;
#pragma unroll
        for (unsigned i = 0; i < kCounters; ++i)
            sum += counted(bin + i);
        return sum;
    }
    // The first counter stands for this bin.
    __device__ void set_base(std::uint32_t base) {
        base_slot_ = 4 * base;
        warp::sync();
        if (threadIdx.x % kLanes == 0) state().base = base;
        if constexpr (kFloats) {
            for (unsigned i = threadIdx.x % kLanes; i < In::kBins; i += kLanes)
                bins_[i] = float_bin(i, base);
        }
        warp::sync();
    }
    __device__ void flush(std::uint32_t (&counters)[2], std::uint32_t* bins) {
        constexpr std::uint32_t low = 0x00FF00FF;
        const std::uint32_t sums[4] = {
            warp::sum(counters[0] & low),       // slots 0 and 4
            warp::sum(counters[1] & low),       // 1 and 5
            warp::sum(counters[0] >> 8 & low),  // 2 and 6
            warp::sum(counters[1] >> 8 & low),  // 3 and 7
        };
        counters[0] = counters[1] = 0;
        if (threadIdx.x % kLanes != 0) return;
        std::uint32_t* to = bins + state().base;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            if ((sums[i] & 0xFFFF) != 0) atomicAdd(to + i, sums[i] & 0xFFFF);
            if (sums[i] >> 16 != 0) atomicAdd(to + i + 4, sums[i] >> 16);
        }
    }

    In& shared_;
    Bin (&bins_)[In::kBins];
    std::uint32_t bins_at_;
    std::uint32_t base_slot_ = 4;  // of others than floats, at hand: 4 times the first counter's bin
    std::uint32_t pending_ = 0;
    std::uint32_t all_[2] = {};
    std::uint32_t over_[2] = {};
};

}  // namespace

}  // namespace twinrun
