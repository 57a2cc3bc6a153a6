// Gathers items of arrays with strides into dense native ones. Three ways, as the array lies:
// - rows without gaps: neighbouring items are taken as one larger item where everything divides by
//   it
// - a dimension other than the last has the items side by side (a transposed array): tiles through
//   shared memory, so that reads and writes are both of whole lines
// - all others: one item a thread
//
// Copies many arrays that are dense already.
#include <cstddef>
#include <cstdint>

#include "device/gpu.hpp"
#include "element/element_device.hpp"

namespace twinrun {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kTile = 32;     // items a side
constexpr unsigned kTileRows = 8;  // threads: kTile x kTileRows
constexpr unsigned kMostBlocks = 1U << 20;

template <unsigned kBytes>
struct ItemOf;
template <>
struct ItemOf<1> {
    using Type = std::uint8_t;
};
template <>
struct ItemOf<2> {
    using Type = std::uint16_t;
};
template <>
struct ItemOf<4> {
    using Type = std::uint32_t;
};
template <>
struct ItemOf<8> {
    using Type = std::uint64_t;
};
template <>
struct ItemOf<16> {
    using Type = ulonglong2;
};

__host__ __device__ inline std::uint64_t swapped(std::uint64_t x, unsigned unit) {
    if (unit == 0) return x;
    x = (x & 0x00FF00FF00FF00FFULL) << 8 | (x >> 8 & 0x00FF00FF00FF00FFULL);
    if (unit == 2) return x;
    x = (x & 0x0000FFFF0000FFFFULL) << 16 | (x >> 16 & 0x0000FFFF0000FFFFULL);
    if (unit == 4) return x;
    return x << 32 | x >> 32;
}
template <class Item>
__host__ __device__ inline Item swapped_item(Item item, unsigned unit) {
    return static_cast<Item>(swapped(item, unit));
}
template <>
__host__ __device__ inline ulonglong2 swapped_item(ulonglong2 item, unsigned unit) {
    item.x = swapped(item.x, unit);
    item.y = swapped(item.y, unit);
    return item;
}

// aligned: to the item's size.
template <class Item>
__device__ inline Item load_item(const std::byte* from, bool aligned) {
    if (aligned) return *reinterpret_cast<const Item*>(from);
    Item item;
    auto* to = reinterpret_cast<std::uint8_t*>(&item);
#pragma unroll
    for (unsigned i = 0; i < sizeof(Item); ++i)
        to[i] = *reinterpret_cast<const std::uint8_t*>(from + i);
    return item;
}
template <class Item>
__device__ inline void store_item(std::byte* to, Item item, bool aligned) {
    if (aligned) {
        *reinterpret_cast<Item*>(to) = item;
        return;
    }
    const auto* from = reinterpret_cast<const std::uint8_t*>(&item);
#pragma unroll
    for (unsigned i = 0; i < sizeof(Item); ++i)
        *reinterpret_cast<std::uint8_t*>(to + i) = from[i];
}

template <class Index>
__device__ inline std::int64_t offset_of(Index item, const DeviceGather& g) {
    std::int64_t offset = 0;
    for (int d = g.dimensions - 1; d > 0; --d) {
        const auto size = static_cast<Index>(g.shape[d]);
        const Index rest = item / size;
        offset += static_cast<std::int64_t>(item - rest * size) * g.strides[d];
        item = rest;
    }
    return g.dimensions == 0 ? 0 : offset + static_cast<std::int64_t>(item) * g.strides[0];
}

template <unsigned kBytes>
__global__ void __launch_bounds__(kThreads) gather_items(const DeviceGather g, bool aligned) {
    using Item = typename ItemOf<kBytes>::Type;
    const auto* from = static_cast<const std::byte*>(g.from);
    auto* to = static_cast<std::byte*>(g.to);
    const bool narrow = g.first + g.count <= 0xFFFFFFFFULL;  // divisions of 32 bits
    const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads;
    for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < g.count; i += step) {
        const std::uint64_t item = g.first + i;
        const std::int64_t offset =
            narrow ? offset_of(static_cast<std::uint32_t>(item), g) : offset_of(item, g);
        store_item(to + i * kBytes, swapped_item(load_item<Item>(from + offset, aligned), g.swap_bytes),
                   aligned);
    }
}

// Tiles of the dimension that lies side by side (`side`) and the last. Blocks take tiles in turn:
// of the last dimension, then of `side`, then of all other dimensions together.
struct Tiling {
    int side;
    std::uint64_t first_side;  // the first row of `side` that matters
    std::uint64_t side_tiles;
    std::uint64_t last_tiles;
    std::uint64_t tiles;
};

template <unsigned kBytes>
__global__ void __launch_bounds__(kTile* kTileRows)
    gather_tiles(const DeviceGather g, const Tiling tiling, bool aligned) {
    using Item = typename ItemOf<kBytes>::Type;
    __shared__ Item tile[kTile][kTile + 1];
    const auto* from = static_cast<const std::byte*>(g.from);
    auto* to = static_cast<std::byte*>(g.to);
    const int last = g.dimensions - 1;
    const int side = tiling.side;
    const unsigned x = threadIdx.x % kTile;
    const unsigned y = threadIdx.x / kTile;
    for (std::uint64_t t = blockIdx.x; t < tiling.tiles; t += gridDim.x) {
        std::uint64_t rest = t / tiling.last_tiles;
        const std::uint64_t first_last = (t - rest * tiling.last_tiles) * kTile;
        const std::uint64_t others = rest / tiling.side_tiles;
        const std::uint64_t first_side = tiling.first_side + (rest - others * tiling.side_tiles) * kTile;
        // Where the tile's corner lies, in bytes of the source and in items of the result.
        std::int64_t offset = static_cast<std::int64_t>(first_side) * g.strides[side] +
                              static_cast<std::int64_t>(first_last) * g.strides[last];
        std::uint64_t place = first_last;
        std::uint64_t side_step = 1;  // items of the result from one row of `side` to the next
        std::uint64_t step = 1;
        rest = others;
        for (int d = last; d >= 0; --d) {
            if (d == side) {
                side_step = step;
                place += first_side * step;
            } else if (d != last) {
                const std::uint64_t above = rest / g.shape[d];
                const std::uint64_t at = rest - above * g.shape[d];
                offset += static_cast<std::int64_t>(at) * g.strides[d];
                place += at * step;
                rest = above;
            }
            step *= g.shape[d];
        }
        const std::uint64_t sides = g.shape[side] - first_side;
        const std::uint64_t lasts = g.shape[last] - first_last;
        // Rows of the last dimension; lanes along `side`.
        for (unsigned row = y; row < kTile; row += kTileRows) {
            if (row >= lasts || x >= sides) continue;
            const std::uint64_t item = place + x * side_step + row;
            if (item - g.first >= g.count) continue;
            tile[row][x] = load_item<Item>(from + offset + static_cast<std::int64_t>(row) * g.strides[last] +
                                               static_cast<std::int64_t>(x) * g.strides[side],
                                           aligned);
        }
        __syncthreads();
        // of `side`; lanes along the last dimension
        for (unsigned row = y; row < kTile; row += kTileRows) {
            if (row >= sides || x >= lasts) continue;
            const std::uint64_t item = place + row * side_step + x;
            if (item - g.first >= g.count) continue;
            store_item(to + (item - g.first) * kBytes, swapped_item(tile[x][row], g.swap_bytes), aligned);
        }
        __syncthreads();
    }
}

// Whether all addresses are multiples of `bytes`.
bool divides(const DeviceGather& g, std::uint64_t bytes, int dimensions) {
    std::uint64_t places = reinterpret_cast<std::uintptr_t>(g.from) | reinterpret_cast<std::uintptr_t>(g.to);
    for (int d = 0; d < dimensions; ++d)
        places |= g.shape[d] > 1 ? static_cast<std::uint64_t>(g.strides[d]) : 0;
    return places % bytes == 0;
}

// The dimension in which items lie side by side, if it is not the last one; otherwise -1.
int side_dimension(const DeviceGather& g) {
    const int last = g.dimensions - 1;
    if (g.dimensions < 2 || g.shape[last] < kTile / 2) return -1;
    const std::int64_t size = g.item_bytes;
    if (g.strides[last] >= 0 && g.strides[last] < 2 * size) return -1;
    for (int d = last - 1; d >= 0; --d) {
        if (g.strides[d] == size && g.shape[d] >= kTile / 2) return d;
    }
    return -1;
}

template <unsigned kBytes>
void launch(const DeviceGather& g, bool aligned, cudaStream_t queue) {
    const int side = side_dimension(g);
    if (side >= 0) {
        const int last = g.dimensions - 1;
        std::uint64_t items = 1;
        for (int d = 0; d < g.dimensions; ++d)
            items *= g.shape[d];
        // Of two dimensions only the rows that are asked for; of more, all items are looked at.
        if (g.dimensions == 2 || g.count >= items / 2) {
            Tiling tiling{};
            tiling.side = side;
            std::uint64_t end = g.shape[side];
            if (g.dimensions == 2) {
                tiling.first_side = g.first / g.shape[last];
                end = (g.first + g.count - 1) / g.shape[last] + 1;
            }
            tiling.side_tiles = (end - tiling.first_side + kTile - 1) / kTile;
            tiling.last_tiles = (g.shape[last] + kTile - 1) / kTile;
            tiling.tiles = items / g.shape[side] / g.shape[last] * tiling.side_tiles * tiling.last_tiles;
            const auto blocks =
                static_cast<unsigned>(tiling.tiles < kMostBlocks ? tiling.tiles : kMostBlocks);
            gather_tiles<kBytes><<<blocks, kTile * kTileRows, 0, queue>>>(g, tiling, aligned);
            return;
        }
    }
    const std::uint64_t needed = (g.count - 1) / kThreads + 1;
    const auto blocks = static_cast<unsigned>(needed < kMostBlocks ? needed : kMostBlocks);
    gather_items<kBytes><<<blocks, kThreads, 0, queue>>>(g, aligned);
}

DeviceStatus gather(int device, const DeviceGather& asked, StreamHandle stream) {
    DeviceGather g = asked;
    if (g.dimensions < 0 || g.dimensions > kMostGatherDimensions) {
        return gpu_failure(ErrorCode::invalid_argument, device,
                           "gather of an array with more than 8 dimensions");
    }
    if (g.count == 0) return {};
    TWR_GPU_CURRENT(device);
    const cudaStream_t queue = gpu_stream(stream);
    if (g.dimensions > 0) {
        const int last = g.dimensions - 1;
        while (g.item_bytes < 16 && g.strides[last] == g.item_bytes &&
               (g.shape[last] | g.first | g.count) % 2 == 0 &&
               divides(g, 2 * std::uint64_t{g.item_bytes}, last)) {
            g.item_bytes *= 2;
            g.strides[last] *= 2;
            g.shape[last] /= 2;
            g.first /= 2;
            g.count /= 2;
        }
    }
    const bool aligned = divides(g, g.item_bytes, g.dimensions);
    switch (g.item_bytes) {
        case 1: launch<1>(g, aligned, queue); break;
        case 2: launch<2>(g, aligned, queue); break;
        case 4: launch<4>(g, aligned, queue); break;
        case 8: launch<8>(g, aligned, queue); break;
        case 16: launch<16>(g, aligned, queue); break;
        default:
            return gpu_failure(ErrorCode::invalid_argument, device,
                               "gather of items that have not 1, 2, 4, 8 or 16 bytes");
    }
    TWR_GPU_LAUNCHED("gather of items");
    return {};
}

// ---- many copies ----

// A launch takes its copies as a parameter, of which there may be 4 KiB: no memory is needed, and
// nothing has to reach the device first. Blocks take tiles; each copy begins with a new one.
constexpr unsigned kCopiesAtOnce = 128;
constexpr std::uint64_t kCopyTile = 32768;  // bytes
struct CopyBatch {
    DeviceCopy copies[kCopiesAtOnce];
    std::uint32_t first_tiles[kCopiesAtOnce];
    unsigned count;
};
static_assert(sizeof(CopyBatch) <= 4096);

template <class Unit>
__device__ inline void copy_tile(const std::byte* from, std::byte* to, std::uint64_t bytes) {
    const auto* source = reinterpret_cast<const Unit*>(from);
    auto* target = reinterpret_cast<Unit*>(to);
    constexpr unsigned kAtOnce = 8;  // loads that are under way
    const auto units = static_cast<unsigned>(bytes / sizeof(Unit));
    unsigned i = threadIdx.x;
    for (; i + (kAtOnce - 1) * kThreads < units; i += kAtOnce * kThreads) {
        Unit held[kAtOnce];
#pragma unroll
        for (unsigned k = 0; k < kAtOnce; ++k)
            held[k] = __ldcs(source + i + k * kThreads);
#pragma unroll
        for (unsigned k = 0; k < kAtOnce; ++k)
            __stcs(target + i + k * kThreads, held[k]);
    }
    for (; i < units; i += kThreads)
        __stcs(target + i, __ldcs(source + i));
    const std::uint64_t rest = std::uint64_t{units} * sizeof(Unit) + threadIdx.x;
    if (rest < bytes) to[rest] = from[rest];  // fewer than there are threads
}

__global__ void __launch_bounds__(kThreads) copy_tiles(const __grid_constant__ CopyBatch batch) {
    unsigned low = 0;
    for (unsigned high = batch.count; high - low > 1;) {
        const unsigned middle = (low + high) / 2;
        (batch.first_tiles[middle] <= blockIdx.x ? low : high) = middle;
    }
    const DeviceCopy& copy = batch.copies[low];
    const std::uint64_t at = std::uint64_t{blockIdx.x - batch.first_tiles[low]} * kCopyTile;
    const std::uint64_t bytes = copy.bytes - at < kCopyTile ? copy.bytes - at : kCopyTile;
    const auto* from = static_cast<const std::byte*>(copy.from) + at;
    auto* to = static_cast<std::byte*>(copy.to) + at;
    const auto places = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to);
    if (places % 16 == 0) {
        copy_tile<uint4>(from, to, bytes);
    } else if (places % 4 == 0) {
        copy_tile<std::uint32_t>(from, to, bytes);
    } else {
        copy_tile<std::uint8_t>(from, to, bytes);
    }
}

DeviceStatus copy_all(int device, const DeviceCopy* copies, std::size_t count, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    // Of a tile: what its number has room for.
    constexpr std::uint64_t kMostBytes = kCopyTile << 30;
    CopyBatch batch{};
    std::uint64_t tiles = 0;
    const auto launch_batch = [&]() -> DeviceStatus {
        if (batch.count == 0) return {};
        copy_tiles<<<static_cast<unsigned>(tiles), kThreads, 0, gpu_stream(stream)>>>(batch);
        TWR_GPU_LAUNCHED("copies within a device");
        batch.count = 0;
        tiles = 0;
        return {};
    };
    for (std::size_t i = 0; i < count; ++i) {
        for (std::uint64_t at = 0; at < copies[i].bytes; at += kMostBytes) {
            const std::uint64_t left = copies[i].bytes - at;
            const std::uint64_t bytes = left < kMostBytes ? left : kMostBytes;
            const std::uint64_t own_tiles = (bytes - 1) / kCopyTile + 1;
            if (batch.count == kCopiesAtOnce || tiles + own_tiles > kMostBytes / kCopyTile) {
                if (const DeviceStatus launched = launch_batch(); launched.failed) return launched;
            }
            batch.copies[batch.count] = {static_cast<const std::byte*>(copies[i].from) + at,
                                         static_cast<std::byte*>(copies[i].to) + at, bytes};
            batch.first_tiles[batch.count] = static_cast<std::uint32_t>(tiles);
            ++batch.count;
            tiles += own_tiles;
        }
    }
    return launch_batch();
}

}  // namespace

extern const DeviceElementKernels kDeviceElementTable;
const DeviceElementKernels kDeviceElementTable = {gather, copy_all};

}  // namespace twinrun
