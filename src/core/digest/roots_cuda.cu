// Roots of arrays of words, from the data to the root in one launch, whose arguments are all it
// takes from the host: for calls of a few arrays, where every further call of the driver takes
// longer than the work.
//
// A root is linear in its blocks: each has a power of RHO as its weight, that of its place in its
// chunk and of the chunk's way up the tree (TreeJoin). So parts of an array may be added in any
// order: halves of 32 bits, which cannot overflow, and who comes last reduces the sums. That makes
// the same bits as leaves that are joined.
#include <algorithm>
#include <atomic>
#include <type_traits>
#include <utility>

#include "device/gpu.hpp"
#include "device/warp.cuh"
#include "digest/digest_device.hpp"
#include "digest/word_multiplier.cuh"

namespace twinrun::gpu {

namespace {

constexpr unsigned kPartBlocks = 4;  // of 4096 bytes: what a thread block takes at once
constexpr unsigned kChunkBlocks = kRootChunkBytes / kBlockBytes;
static_assert(kChunkBlocks % kPartBlocks == 0, "a part lies in one chunk");

struct RootField {
    const std::byte* data;
    std::uint64_t bytes;
    std::uint64_t* root;
    DeviceRootSums* sums;
    std::uint32_t first_part;  // among all of the launch
    std::uint32_t parts;
};

// All that a launch takes. Arguments have room for 4096 bytes; copying them takes time, too.
template <unsigned Most>
struct RootLaunch {
    std::uint32_t count;
    std::uint32_t parts;
    RootField fields[Most];
};
constexpr unsigned kFewRoots = 8;
constexpr unsigned kMostRoots = 96;
static_assert(sizeof(RootLaunch<kMostRoots>) <= 4096);

// Powers of RHO: of a block in its chunk, and of each level of the tree.
struct RhoPowers {
    std::uint64_t of_block[kChunkBlocks];
    std::uint64_t of_level[32];
};
constexpr RhoPowers rho_powers() {
    RhoPowers all{};
    std::uint64_t power = 1;
    for (std::uint64_t& one : all.of_block) {
        one = power;
        power = multiply61(power, kRho);
    }
    for (std::uint64_t& one : all.of_level) {
        one = power;
        power = multiply61(power, power);
    }
    return all;
}
__constant__ constexpr RhoPowers kRhoPowers = rho_powers();

// A vector at the end of an array, or of one that is aligned to its words alone. Few are: it is no
// part of the loop.
template <class Word>
__device__ __noinline__ uint4 load_words(const std::byte* at, std::int64_t left) {
    constexpr int kBytes = static_cast<int>(sizeof(Word));
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < static_cast<int>(kVector) / kBytes; ++i) {
        if (i * kBytes >= left) break;
        const auto word = static_cast<std::make_unsigned_t<Word>>(reinterpret_cast<const Word*>(at)[i]);
        words[i * kBytes / 4] |= static_cast<std::uint32_t>(word) << (i * kBytes % 4 * 8);
    }
    return {words[0], words[1], words[2], words[3]};
}

// Where a part lies.
struct Part {
    std::uint32_t field;
    std::uint32_t blocks;       // 1 to kPartBlocks
    std::uint64_t first_block;  // of the field
};

template <class Word, unsigned Most>
__device__ Part part_of(const RootLaunch<Most>& launch, std::uint32_t number, std::uint32_t field) {
    while (field + 1 < launch.count && launch.fields[field + 1].first_part <= number)
        ++field;
    const RootField& of = launch.fields[field];
    const std::uint64_t first = std::uint64_t{number - of.first_part} * kPartBlocks;
    const std::uint64_t blocks = (of.bytes + kBlockBytes - 1) / kBlockBytes - first;
    return {field, blocks < kPartBlocks ? static_cast<std::uint32_t>(blocks) : kPartBlocks, first};
}

template <class Word>
__device__ void read_part(const RootField& of, const Part& part, uint4 (&vectors)[kPartBlocks]) {
    const std::byte* at = of.data + part.first_block * kBlockBytes + threadIdx.x * kVector;
    std::int64_t left = static_cast<std::int64_t>(of.bytes - part.first_block * kBlockBytes) -
                        static_cast<std::int64_t>(threadIdx.x * kVector);
    const bool whole = reinterpret_cast<std::uintptr_t>(of.data) % kVector == 0 &&
                       of.bytes - part.first_block * kBlockBytes >= kPartBlocks * kBlockBytes;
#pragma unroll
    for (unsigned i = 0; i < kPartBlocks; ++i) {
        vectors[i] = whole ? __ldcs(reinterpret_cast<const uint4*>(at)) : load_words<Word>(at, left);
        at += kBlockBytes;
        left -= static_cast<std::int64_t>(kBlockBytes);
    }
}

// The power of RHO by which a part's sum counts in its field's root. All lanes of a warp call it;
// the first one has it.
__device__ std::uint64_t weight_of(const RootField& of, const Part& part) {
    const std::uint64_t blocks = (of.bytes + kBlockBytes - 1) / kBlockBytes;
    const std::uint64_t chunks = (blocks + kChunkBlocks - 1) / kChunkBlocks;
    const std::uint64_t chunk = part.first_block / kChunkBlocks;
    const std::uint64_t chunk_end = (chunk + 1) * kChunkBlocks < blocks ? (chunk + 1) * kChunkBlocks : blocks;
    const unsigned lane = threadIdx.x % 32;
    // A node with a right neighbour is a left child, and counts by the level's power.
    const std::uint64_t node = chunk >> lane;
    const std::uint64_t last = (chunks - 1) >> lane;
    std::uint64_t weight = node % 2 == 0 && node < last ? kRhoPowers.of_level[lane] : 1;
    if (lane == 0)
        weight = multiply61(weight, kRhoPowers.of_block[chunk_end - part.first_block - part.blocks]);
#pragma unroll
    for (int distance = 16; distance != 0; distance /= 2)
        weight = multiply61(weight, warp::across(weight, distance));
    return weight;
}

__device__ void write_root(const RootField& of, std::uint64_t root) {
    *static_cast<volatile std::uint64_t*>(of.root) = root;
}

// Adds a part's weighted sum; who adds the last one writes the root, and leaves zeros.
__device__ void add_part(const RootField& of, std::uint64_t sum) {
    if (of.parts == 1) return write_root(of, sum);
    auto* const low = reinterpret_cast<unsigned long long*>(&of.sums->low);
    auto* const high = reinterpret_cast<unsigned long long*>(&of.sums->high);
    auto* const parts = reinterpret_cast<unsigned long long*>(&of.sums->parts);
    atomicAdd(low, sum & 0xFFFFFFFFULL);
    atomicAdd(high, sum >> 32);
    __threadfence();
    if (atomicAdd(parts, 1ULL) != of.parts - 1) return;
    __threadfence();
    const auto all = static_cast<unsigned __int128>(atomicExch(high, 0ULL)) << 32;
    const std::uint64_t root = reduce61_wide(all + atomicExch(low, 0ULL));
    atomicExch(parts, 0ULL);
    // Who sees the root may give these sums to another launch.
    __threadfence_system();
    write_root(of, root);
}

template <class Word, unsigned Most>
__global__ void __launch_bounds__(kWordThreads) make_roots(const __grid_constant__ RootLaunch<Most> launch) {
    // Sums of the warps. Two: those of the last part are read while this one's are made.
    __shared__ std::uint64_t warps[2][kWordWarps];
    const Multiplier<Word> multiplier(threadIdx.x * (kVector / static_cast<unsigned>(sizeof(Word))));
    std::uint32_t number = blockIdx.x;
    if (number >= launch.parts) return;
    uint4 ahead[kPartBlocks];
    Part next = part_of<Word>(launch, number, 0);
    read_part<Word>(launch.fields[next.field], next, ahead);
    for (unsigned side = 0;; side ^= 1) {
        const Part part = next;
        uint4 vectors[kPartBlocks];
#pragma unroll
        for (unsigned i = 0; i < kPartBlocks; ++i)
            vectors[i] = ahead[i];
        number += gridDim.x;
        const bool more = number < launch.parts;
        if (more) {
            next = part_of<Word>(launch, number, part.field);
            read_part<Word>(launch.fields[next.field], next, ahead);
        }
        std::uint64_t sum = 0;
#pragma unroll
        for (unsigned i = 0; i < kPartBlocks; ++i) {
            if (i < part.blocks) sum = append(sum, multiplier.sum(vectors[i]));
        }
        sum = reduce61(sum);
#pragma unroll
        for (int distance = 16; distance != 0; distance /= 2)
            sum = add61(sum, warp::across(sum, distance));
        if (threadIdx.x % 32 == 0) warps[side][threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x < 32) {
            const RootField& of = launch.fields[part.field];
            const std::uint64_t weight = weight_of(of, part);
            if (threadIdx.x == 0) {
                std::uint64_t digest = 0;
#pragma unroll
                for (unsigned w = 0; w < kWordWarps; ++w)
                    digest = add61(digest, warps[side][w]);
                add_part(of, multiply61(digest, weight));
            }
        }
        if (!more) return;
    }
}

// How many thread blocks fit on a device, of a kernel: asked once.
template <class Word, unsigned Most>
DeviceStatus blocks_of(int device, unsigned* blocks) {
    constexpr int kMostDevices = 64;
    static std::atomic<unsigned> known[kMostDevices];
    if (device < kMostDevices && (*blocks = known[device].load(std::memory_order_relaxed)) != 0) return {};
    int multiprocessors = 0;
    int each = 0;
    TWR_GPU(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    TWR_GPU(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, make_roots<Word, Most>,
                                                          static_cast<int>(kWordThreads), 0));
    *blocks = static_cast<unsigned>(std::max(each * multiprocessors, 1));
    if (device < kMostDevices) known[device].store(*blocks, std::memory_order_relaxed);
    return {};
}

template <class Word, unsigned Most>
DeviceStatus launch(int device, const DeviceRootItem* const* items, unsigned n, StreamHandle stream) {
    RootLaunch<Most> all;
    all.count = n;
    all.parts = 0;
    for (unsigned i = 0; i < n; ++i) {
        const DeviceRootItem& item = *items[i];
        const std::uint64_t bytes = item.words * sizeof(Word);
        const std::uint64_t parts = (bytes + kPartBlocks * kBlockBytes - 1) / (kPartBlocks * kBlockBytes);
        all.fields[i] = {static_cast<const std::byte*>(item.data), bytes, item.root, item.sums, all.parts,
                         static_cast<std::uint32_t>(parts)};
        all.parts += static_cast<std::uint32_t>(parts);
    }
    unsigned blocks = 0;
    if (const DeviceStatus status = blocks_of<Word, Most>(device, &blocks); status.failed) return status;
    make_roots<Word, Most>
        <<<std::min<std::uint32_t>(all.parts, blocks), kWordThreads, 0, gpu_stream(stream)>>>(all);
    TWR_GPU_LAUNCHED("roots of arrays");
    return {};
}

// Those of one type among the items: a launch for each kMostRoots of them.
template <class Word>
DeviceStatus launch_all(int device, DType word, const DeviceRootItem* items, std::size_t n,
                        StreamHandle stream) {
    const DeviceRootItem* some[kMostRoots];
    unsigned count = 0;
    const auto start = [&]() -> DeviceStatus {
        const unsigned all = std::exchange(count, 0);
        if (all == 0) return {};
        return all <= kFewRoots ? launch<Word, kFewRoots>(device, some, all, stream)
                                : launch<Word, kMostRoots>(device, some, all, stream);
    };
    for (std::size_t i = 0; i < n; ++i) {
        if (items[i].word != word) continue;
        some[count++] = &items[i];
        if (count < kMostRoots) continue;
        if (const DeviceStatus status = start(); status.failed) return status;
    }
    return start();
}

}  // namespace

DeviceStatus roots(int device, const DeviceRootItem* items, std::size_t n, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    for (std::size_t i = 0; i < n; ++i) {
        if (items[i].words == 0 || items[i].words > kMostRootBytes / item_bytes(items[i].word))
            return gpu_failure(ErrorCode::internal, device, "roots of arrays of an impossible size");
    }
    DeviceStatus status = launch_all<std::int8_t>(device, DType::i8, items, n, stream);
    if (!status.failed) status = launch_all<std::int16_t>(device, DType::i16, items, n, stream);
    if (!status.failed) status = launch_all<std::int32_t>(device, DType::i32, items, n, stream);
    return status;
}

}  // namespace twinrun::gpu
