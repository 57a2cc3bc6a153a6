// De-duplication on devices: the table of dedup_device.hpp. The kernels are in *_kernels.cuh; here
// they are launched.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dedup/dedup_device.hpp"
#include "dedup/hash_kernels.cuh"
#include "dedup/join_kernels.cuh"
#include "dedup/kernel_support.cuh"
#include "dedup/scans.cuh"
#include "dedup/scatter_kernels.cuh"
#include "dedup/table_kernels.cuh"
#include "device/gpu.hpp"

namespace twinrun {

namespace gpu {

namespace {

// Blocks that fill a device, for kernels whose blocks take what comes: asked for once a kernel and
// device.
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
