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
// device. most: of one multiprocessor.
template <auto Kernel>
DeviceStatus fit(int device, unsigned threads, std::size_t shared, int most, unsigned* blocks) {
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
    each = std::min(each, most);
    *blocks = static_cast<unsigned>(each * multiprocessors);
    if (device < kMostDevices) known[device] = each * multiprocessors;
    return {};
}
// Of one multiprocessor. More of them ask for more bytes at once than the memory needs to be busy:
// then all that runs beside them waits for its own.
constexpr int kMostHashBlocks = 2;
constexpr int kAllBlocks = 1 << 16;
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
    if (const DeviceStatus status =
            fit<hash_groups<ChunkBytes>>(device, kHashWarps * 32, kShared, kMostHashBlocks, &blocks);
        status.failed)
        return status;
    hash_groups<ChunkBytes><<<grid_for(launch.end_group - launch.first_group, kHashWarps, blocks),
                              kHashWarps * 32, kShared, stream>>>(launch);
    TWR_GPU_LAUNCHED("hashes of chunks");
    return {};
}
// first, chunks: of those that are hashed.
DeviceStatus launch_hashes(int device, const HashLaunch& launch, std::uint32_t first, std::uint32_t chunks,
                           cudaStream_t stream) {
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
    if (const DeviceStatus status = fit<hash_large>(device, kSimpleThreads, 0, kAllBlocks, &blocks);
        status.failed)
        return status;
    if (launch.words != nullptr)
        TWR_GPU(cudaMemsetAsync(launch.words + launch.first_group, 0,
                                std::size_t{launch.end_group - launch.first_group} * 4, stream));
    hash_large<<<grid_for(chunks, kSimpleThreads / 32, blocks), kSimpleThreads, 0, stream>>>(launch, first,
                                                                                             chunks);
    TWR_GPU_LAUNCHED("hashes of large chunks");
    return {};
}
HashLaunch launch_of(const DeviceDedupSlice& slice) {
    HashLaunch launch{};
    launch.parts = slice.parts;
    launch.part_count = slice.part_count;
    launch.first_group = slice.first_group;
    launch.end_group = slice.first_group + slice.groups;
    launch.content = slice.content;
    launch.chunk_bytes = slice.chunk_bytes;
    return launch;
}

DeviceStatus report(int device, std::uint32_t* to, const std::uint32_t* from, std::uint32_t words,
                    StreamHandle stream) {
    if (words == 0) return {};
    TWR_GPU_CURRENT(device);
    write_words<<<grid_for(words, kSimpleThreads), kSimpleThreads, 0, gpu_stream(stream)>>>(to, from, words);
    TWR_GPU_LAUNCHED("a report to the host");
    return {};
}

std::size_t scan_scratch(std::uint64_t items) {
    return (items + kSmallestTile - 1) / kSmallestTile * sizeof(HeadMap);
}

DeviceStatus find_changed(int device, const DeviceDedupSlice& slice, StreamHandle stream) {
    if (slice.chunks == 0) return {};
    TWR_GPU_CURRENT(device);
    HashLaunch launch = launch_of(slice);
    launch.hashes = slice.hashes;
    launch.words = slice.words;
    launch.changed = slice.changed;
    launch.mask = slice.mask;
    return launch_hashes(device, launch, slice.first, slice.chunks, gpu_stream(stream));
}

DeviceStatus list_changed(int device, const DeviceDedupSlice& slice, std::uint32_t* changed,
                          StreamHandle stream_handle) {
    if (slice.groups == 0) return {};
    TWR_GPU_CURRENT(device);
    const cudaStream_t stream = gpu_stream(stream_handle);
    const std::uint32_t words = slice.words_of();
    const unsigned grid = grid_for(words, WordTile::kItems);
    auto* const tiles = static_cast<std::uint32_t*>(slice.scratch);
    count_marks<<<grid, kSimpleThreads, 0, stream>>>(slice.words + slice.first_word(), words, tiles);
    TWR_GPU_LAUNCHED("counts of changed chunks");
    list_marks<<<grid, kSimpleThreads, 0, stream>>>(slice, words, slice.words_each(), tiles, changed);
    TWR_GPU_LAUNCHED("numbers of changed chunks");
    return {};
}

DeviceStatus hash_content(int device, const DeviceDedupSlice& slice, StreamHandle stream) {
    if (slice.chunks == 0) return {};
    TWR_GPU_CURRENT(device);
    return launch_hashes(device, launch_of(slice), slice.first, slice.chunks, gpu_stream(stream));
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
        launch.end_group = (part + dedup_group_chunks(chunk_bytes) - 1) / dedup_group_chunks(chunk_bytes);
        launch.hashes = hashes + done;
        launch.chunk_bytes = chunk_bytes;
        if (const DeviceStatus status = launch_hashes(device, launch, 0, part, gpu_stream(stream));
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
    auto* const tiles = static_cast<std::uint32_t*>(what.scratch);
    const unsigned tile_grid = grid_for(count, ChunkTile::kItems);
    see_smallest<<<tile_grid, kSimpleThreads, 0, stream>>>(what, tiles);
    TWR_GPU_LAUNCHED("sources of changed chunks");
    place_fresh<<<tile_grid, kSimpleThreads, 0, stream>>>(what, tiles);
    TWR_GPU_LAUNCHED("places of new chunks");
    locate_fresh<<<grid, kSimpleThreads, 0, stream>>>(what);
    TWR_GPU_LAUNCHED("Locations of new chunks");
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
    auto* const tiles = static_cast<HeadMap*>(what.scratch);
    const unsigned grid = grid_for(what.count, ChunkTile::kItems);
    find_heads<<<grid, kSimpleThreads, 0, stream>>>(heads, what.count, tiles);
    TWR_GPU_LAUNCHED("heads of runs");
    write_runs<<<grid, kSimpleThreads, 0, stream>>>(what, heads, tiles);
    TWR_GPU_LAUNCHED("runs");
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
    auto* const tiles = static_cast<std::uint32_t*>(what.scratch);
    const unsigned tile_grid = grid_for(what.count, ChunkTile::kItems);
    find_regions<<<tile_grid, kSimpleThreads, 0, stream>>>(what, tiles);
    TWR_GPU_LAUNCHED("roots of a tree");
    write_regions<<<tile_grid, kSimpleThreads, 0, stream>>>(what, tiles);
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
    gpu::report, gpu::scan_scratch, gpu::find_changed, gpu::list_changed, gpu::hash_content, gpu::hash_chunks,
    gpu::insert, gpu::count_by_use, gpu::take_out,     gpu::put_in,       gpu::look_up,      gpu::place_all,
    gpu::join,   gpu::join_tree,    gpu::consolidate,  gpu::keep_base,    gpu::move_base,    gpu::scatter,
};

}  // namespace twinrun
