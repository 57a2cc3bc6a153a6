// Roots of arrays of words, from the data to the root in one launch, whose arguments are all it
// takes from the host: for calls of a few arrays, where every further call of the driver takes
// longer than the work.
//
// A word is the sum of its bytes times powers of 256, but for the sign. So a block's digest is a
// sum over its bytes, each with a coefficient of its own, and digests of the 16 blocks of a chunk
// are a product of byte matrices (byte_products.cuh): 16 x bytes by bytes x 8, a column for each
// byte of the coefficients. The sign takes one instruction for 4 bytes: turning it round adds
// 2^(bits - 1) to a word, and the product of that is taken away again.
//
// A root is linear in its blocks: each has a power of RHO as its weight, that of its place in its
// chunk and of the chunk's way up the tree (TreeJoin). So parts of an array may be added in any
// order: halves of 32 bits, which cannot overflow, and who comes last hands the sum out. That makes
// the same bits as leaves that are joined.
//
// What a call costs beside its reading counts: most arrays take 5 to 20 us. A thread block takes 16
// blocks at a time wherever it begins, so that no step has fewer rows than the others; the two
// halves of a root do not wait for each other; and a thread block begins while the kernel before it
// ends, up to its first look at the array (programmatic dependent launch).
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "device/gpu.hpp"
#include "device/warp.cuh"
#include "digest/digest.hpp"
#include "digest/digest_device.hpp"
#include "digest/field61.hpp"
#include "digest/roots_fields.cuh"
#include "digest/roots_products.cuh"

namespace twinrun::gpu {

namespace {

// Adds a half of the sum of a thread block; who adds the last one hands it out, and leaves zero.
// Who sees it may give the sums to another launch.
constexpr unsigned long long kOneShare = 1ULL << 48;  // thread blocks are counted above the sums
struct AddedHalf {
    unsigned long long* sum;
    unsigned long long all;  // with this share
    bool last;

    __device__ AddedHalf(std::uint64_t* of, std::uint64_t half, std::uint32_t shares)
        : sum(reinterpret_cast<unsigned long long*>(of)) {
        const unsigned long long before = atomicAdd(sum, half + kOneShare);
        all = before % kOneShare + half;
        last = before / kOneShare == shares - 1;
    }
    __device__ void clear() const {
        if (last) *static_cast<volatile unsigned long long*>(sum) = 0;
    }
    __device__ void hand_out(std::uint64_t* to) const {
        if (last) *static_cast<volatile std::uint64_t*>(to) = all;
    }
};
__device__ void add_share(const RootField& of, std::uint64_t sum) {
    const std::uint64_t half_low = sum & 0xFFFFFFFFU;
    const std::uint64_t half_high = sum >> 32;
    if (of.shares == 1) {
        *static_cast<volatile std::uint64_t*>(&of.root->low) = half_low;
        *static_cast<volatile std::uint64_t*>(&of.root->high) = half_high;
        return;
    }
    const AddedHalf low(&of.sums->low, half_low, of.shares);
    const AddedHalf high(&of.sums->high, half_high, of.shares);
    if (!low.last && !high.last) return;
    low.clear();
    high.clear();
    __threadfence_system();
    low.hand_out(&of.root->low);
    high.hand_out(&of.root->high);
}

// Whatever was put into the stream before has been done, and its writes are seen. Without effect in
// a launch that did not begin early.
__device__ inline void wait_for_work_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

// Adds what the threads of a block have of a field. warps: room for it.
__device__ void add_total(const RootField& of, std::uint64_t total, std::uint64_t (&warps)[kWarps]) {
#pragma unroll
    for (int distance = 16; distance != 0; distance /= 2)
        total = add61(total, warp::across(total, distance));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x != 0) return;
    std::uint64_t all = 0;
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w)
        all = add61(all, warps[w]);
    add_share(of, all);
}

// Each thread block takes as many consecutive blocks of the launch as any other, give or take one.
// A thread keeps its sum of all chunks of a field, so that threads meet once a field, and once in
// about kWarps chunks for their weights.
template <class Word, class Field, unsigned Most>
__global__ void __launch_bounds__(kThreads, 2)
    make_roots(const __grid_constant__ RootLaunch<Field, Most> launch) {
    __shared__ SharedTables tables;
    // Of chunks from `first_weight` on. The last place is looked at for parts of one chunk alone,
    // and not used.
    __shared__ std::uint64_t weights[kWarps + 1];
    // Sums of the warps. Two: those of the last field are read while this one's are made.
    __shared__ std::uint64_t warps[2][kWarps];
    auto number = static_cast<std::uint32_t>(std::uint64_t{launch.blocks} * blockIdx.x / gridDim.x);
    const auto end = static_cast<std::uint32_t>(std::uint64_t{launch.blocks} * (blockIdx.x + 1) / gridDim.x);
    if (number >= end) return;
    Products<Word> products(tables);
    wait_for_work_before();
    Part next = part_at(launch, number, end, field_of(launch, number));
    uint4 first_half[kHalf][2];
    uint4 second_half[kHalf][2];
    {
        const ReaderOf<Field> reader(launch.fields[next.field], next);
        reader.template read<Word>(0, first_half);
        reader.template read<Word>(kHalf, second_half);
    }
    std::uint32_t first_weight = 0;
    std::uint32_t weights_end = 0;
    std::uint64_t total = 0;
    for (unsigned side = 0;;) {
        const Part part = next;
        const Field& of = launch.fields[part.field];
        number += part.blocks;
        const bool more = number < end;
        if (more) next = part_at(launch, number, end, part.field);
        const std::uint32_t chunk = part.first_block / kChunkBlocks;
        if ((part.first_block + part.blocks - 1) / kChunkBlocks >= weights_end) {
            first_weight = chunk;
            weights_end = chunk + kWarps;
            __syncthreads();
            const std::uint64_t weight = chunk_weight(chunk + threadIdx.x / 32, blocks_of(of));
            if (threadIdx.x % 32 == 0) weights[threadIdx.x / 32] = weight;
            __syncthreads();
        }
        products.begin();
        // What comes next is read where what was read before has been used.
        const ReaderOf<Field> reader(launch.fields[next.field], next);
        products.add(0, first_half);
        if (more) reader.template read<Word>(0, first_half);
        products.add(1, second_half);
        if (more) reader.template read<Word>(kHalf, second_half);
        total = add61(total, products.sum(part, &weights[chunk - first_weight]));
        if (more && next.field == part.field) continue;
        add_total(of, total, warps[side]);
        if (!more) return;
        side ^= 1;
        total = 0;
        weights_end = 0;
    }
}

// Of spread runs: thread blocks take parts in turn, as neighbouring parts lie side by side in lines
// of memory. Else each line would come several times.
template <class Word, unsigned Most>
__global__ void __launch_bounds__(kThreads, 2)
    make_spread_roots(const __grid_constant__ RootLaunch<SpreadField, Most> launch) {
    extern __shared__ uint4 brought[];
    __shared__ SharedTables tables;
    __shared__ std::uint64_t weights[2];  // of the part's only chunk
    __shared__ std::uint64_t warps[2][kWarps];
    auto* const memory = reinterpret_cast<std::byte*>(brought);
    std::uint32_t number = blockIdx.x;
    if (number >= launch.blocks) return;
    Products<Word> products(tables);
    wait_for_work_before();
    std::uint32_t field = 0;
    const auto ends_before = [&](std::uint32_t part) {
        return field + 1 < launch.count && launch.fields[field + 1].first_block <= part;
    };
    std::uint64_t total = 0;
    for (unsigned side = 0; number < launch.blocks;) {
        while (ends_before(number))
            ++field;
        const SpreadField& of = launch.fields[field];
        const std::uint32_t first = (number - of.first_block) * launch.part_blocks;
        const Part part{field, min(launch.part_blocks, blocks_of(of) - first), first};
        __syncthreads();  // what was brought before has been read
        if (threadIdx.x < 32) {
            const std::uint64_t weight = chunk_weight(first / kChunkBlocks, blocks_of(of));
            if (threadIdx.x < 2) weights[threadIdx.x] = weight;
        }
        SpreadReader::bring<Word>(memory, of, part);
        __syncthreads();
        const SpreadReader reader(memory, of, part);
        products.begin();
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            uint4 vectors[kHalf][2];
            reader.template read<Word>(half * kHalf, vectors);
            products.add(half, vectors);
        }
        total = add61(total, products.sum(part, weights));
        number += gridDim.x;
        if (number < launch.blocks && !ends_before(number)) continue;
        add_total(of, total, warps[side]);
        side ^= 1;
        total = 0;
    }
}

// The kernel for arrays of a kind.
template <class Word, class Field, unsigned Most>
constexpr auto kernel_of() {
    if constexpr (kIsSpread<Field>)
        return make_spread_roots<Word, Most>;
    else
        return make_roots<Word, Field, Most>;
}

// What is asked for once a device.
struct Abilities {
    unsigned most_blocks;  // of a launch: two for each multiprocessor are at work together
    bool begins_early;     // a launch may begin while the kernel before it ends
};
template <class Word, class Field, unsigned Most>
DeviceStatus abilities(int device, Abilities* of) {
    static std::atomic<unsigned> known[kMostDevices];  // twice the blocks, and 1 for the other
    unsigned packed = device < kMostDevices ? known[device].load(std::memory_order_relaxed) : 0;
    if (packed == 0) {
        int multiprocessors = 0;
        TWR_GPU(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
        // The code must be one that waits: an older device's, translated by the driver, does not.
        constexpr auto kKernel = kernel_of<Word, Field, Most>();
        if (kIsSpread<Field>) {
            TWR_GPU(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         SpreadReader::kBytes));
        }
        cudaFuncAttributes compiled{};
        TWR_GPU(cudaFuncGetAttributes(&compiled, kKernel));
        const bool waits = compiled.ptxVersion >= 90 && compiled.binaryVersion >= 90;
        packed = static_cast<unsigned>(std::max(multiprocessors, 1)) * 4 + (waits ? 1 : 0);
        if (device < kMostDevices) known[device].store(packed, std::memory_order_relaxed);
    }
    *of = {packed / 2, packed % 2 != 0};
    return {};
}

// The layout of an item.
void fill_in(const DeviceRootItem&, RootField*) {}
void fill_in_dimensions(const DeviceRootItem& item, RunsField* field) {
    field->dimensions = item.runs.dimensions;
    for (int d = 0; d < item.runs.dimensions; ++d) {
        field->shape[d] = Divisor(item.runs.shape[d]);
        field->strides[d] = item.runs.strides[d];
    }
}
void fill_in(const DeviceRootItem& item, RunsField* field) {
    field->run = Divisor(item.runs.run_bytes / kVector);
    fill_in_dimensions(item, field);
}
void fill_in(const DeviceRootItem& item, SpreadField* field) {
    field->run = Divisor(static_cast<std::uint32_t>(item.runs.run_bytes / item_bytes(item.word)));
    fill_in_dimensions(item, field);
    field->step = item.runs.step;
    const int inner = item.runs.dimensions - 1;
    field->by_runs = inner >= 0 && std::abs(item.runs.strides[inner]) < std::abs(item.runs.step);
}

// Blocks of a part of spread runs: all of a chunk, where that gives work to all thread blocks.
constexpr std::uint32_t part_blocks(std::uint64_t blocks, std::uint32_t thread_blocks) {
    std::uint32_t each = kChunkBlocks;
    while (each > kLeastBlocks && blocks < std::uint64_t{each} * thread_blocks)
        each /= 2;
    return each;
}

// The thread blocks of a launch, and how many of them take some of each field.
template <class Field, unsigned Most>
std::uint32_t share_out(std::uint32_t most, RootLaunch<Field, Most>* all) {
    const std::uint32_t n = all->count;
    const auto end_of = [&](std::uint32_t i) {
        return i + 1 < n ? all->fields[i + 1].first_block : all->blocks;
    };
    if constexpr (kIsSpread<Field>) {
        const std::uint32_t grid = std::min(most, all->blocks);
        for (std::uint32_t i = 0; i < n; ++i)
            all->fields[i].shares = std::min(grid, end_of(i) - all->fields[i].first_block);
        return grid;
    }
    // Where there are many small arrays, one for each of them.
    const std::uint32_t grid = std::min(most, std::max(n, (all->blocks + kLeastBlocks - 1) / kLeastBlocks));
    // Thread block b begins at block floor(blocks b / grid), so block i belongs to the last b with
    // blocks b / grid < i + 1.
    const auto owner = [&](std::uint32_t i) { return ((std::uint64_t{i} + 1) * grid - 1) / all->blocks; };
    for (std::uint32_t i = 0; i < n; ++i) {
        all->fields[i].shares =
            static_cast<std::uint32_t>(owner(end_of(i) - 1) - owner(all->fields[i].first_block) + 1);
    }
    return grid;
}

template <class Word, class Field, unsigned Most>
DeviceStatus launch(int device, const DeviceRootItem* const* items, unsigned n, StreamHandle stream) {
    Abilities able{};
    if (const DeviceStatus status = abilities<Word, Field, Most>(device, &able); status.failed) return status;
    const auto blocks_in = [](const DeviceRootItem& item) {
        return (item.words * sizeof(Word) + kBlockBytes - 1) / kBlockBytes;
    };
    RootLaunch<Field, Most> all;
    all.count = n;
    all.part_blocks = 1;
    if (kIsSpread<Field>) {
        std::uint64_t blocks = 0;
        for (unsigned i = 0; i < n; ++i)
            blocks += blocks_in(*items[i]);
        all.part_blocks = part_blocks(blocks, able.most_blocks);
    }
    all.blocks = 0;
    for (unsigned i = 0; i < n; ++i) {
        const DeviceRootItem& item = *items[i];
        static_cast<RootField&>(all.fields[i]) = {static_cast<const std::byte*>(item.data),
                                                  item.words * sizeof(Word),
                                                  item.root,
                                                  item.sums,
                                                  all.blocks,
                                                  0};
        fill_in(item, &all.fields[i]);
        all.blocks += static_cast<std::uint32_t>((blocks_in(item) + all.part_blocks - 1) / all.part_blocks);
    }
    const std::uint32_t grid = share_out(able.most_blocks, &all);
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = kThreads;
    config.dynamicSmemBytes = kIsSpread<Field> ? SpreadReader::kBytes : 0;
    config.stream = gpu_stream(stream);
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = able.begins_early ? 1 : 0;
    TWR_GPU(cudaLaunchKernelEx(&config, kernel_of<Word, Field, Most>(), all));
    return {};
}

// Whether it is an array of this kind.
template <class Field>
bool is_field(const DeviceRuns& runs) {
    if (std::is_same_v<Field, RootField>) return runs.run_bytes == 0;
    return runs.run_bytes != 0 && runs.spread == kIsSpread<Field>;
}

// Those of one type among the items, dense ones or others: as many of them in a launch as go in.
template <class Word, class Field>
DeviceStatus launch_all(int device, DType word, const DeviceRootItem* items, std::size_t n,
                        StreamHandle stream) {
    constexpr unsigned kMost = std::is_same_v<Field, RootField> ? kMostRoots : kFewRoots;
    const DeviceRootItem* some[kMost];
    unsigned count = 0;
    std::uint64_t blocks = 0;
    const auto start = [&]() -> DeviceStatus {
        const unsigned all = std::exchange(count, 0);
        blocks = 0;
        if (all == 0) return {};
        return all <= kFewRoots ? launch<Word, Field, kFewRoots>(device, some, all, stream)
                                : launch<Word, Field, kMost>(device, some, all, stream);
    };
    for (std::size_t i = 0; i < n; ++i) {
        if (items[i].word != word || !is_field<Field>(items[i].runs)) continue;
        const std::uint64_t more = (items[i].words * sizeof(Word) + kBlockBytes - 1) / kBlockBytes;
        if (count == kMost || blocks + more > kMostBlocks) {
            if (const DeviceStatus status = start(); status.failed) return status;
        }
        some[count++] = &items[i];
        blocks += more;
    }
    return start();
}

template <class Word>
DeviceStatus launch_all(int device, DType word, const DeviceRootItem* items, std::size_t n,
                        StreamHandle stream) {
    DeviceStatus status = launch_all<Word, RootField>(device, word, items, n, stream);
    if (!status.failed) status = launch_all<Word, RunsField>(device, word, items, n, stream);
    return status.failed ? status : launch_all<Word, SpreadField>(device, word, items, n, stream);
}

// Whether the layout is one that the kernel takes, and has as many words.
bool is_possible(const DeviceRootItem& item) {
    const DeviceRuns& runs = item.runs;
    if (item.words == 0 || item.words > kMostRootBytes / item_bytes(item.word)) return false;
    if (runs.run_bytes == 0) return true;
    const std::uint64_t word = item_bytes(item.word);
    const std::uint64_t bytes = item.words * word;
    const std::uint64_t unit = runs.spread ? word : kRootRunUnit;
    const auto signed_unit = static_cast<std::int64_t>(unit);
    if (bytes > kMostRunsBytes || runs.dimensions < 0 || runs.dimensions > kMostRunDimensions ||
        runs.run_bytes % unit != 0 || reinterpret_cast<std::uintptr_t>(item.data) % unit != 0 ||
        (runs.spread && runs.step % signed_unit != 0))
        return false;
    std::uint64_t all = runs.run_bytes;
    for (int d = 0; d < runs.dimensions; ++d) {
        if (runs.strides[d] % signed_unit != 0 || runs.shape[d] == 0 || runs.shape[d] > bytes / all)
            return false;
        all *= runs.shape[d];
    }
    return all == bytes;
}

}  // namespace

DeviceStatus roots(int device, const DeviceRootItem* items, std::size_t n, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    for (std::size_t i = 0; i < n; ++i) {
        if (!is_possible(items[i]))
            return gpu_failure(ErrorCode::internal, device,
                               "roots of arrays of an impossible size or layout");
    }
    DeviceStatus status = launch_all<std::int8_t>(device, DType::i8, items, n, stream);
    if (!status.failed) status = launch_all<std::int16_t>(device, DType::i16, items, n, stream);
    if (!status.failed) status = launch_all<std::int32_t>(device, DType::i32, items, n, stream);
    return status;
}

}  // namespace twinrun::gpu
