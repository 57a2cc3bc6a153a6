// Trees on a device: tables of tree_device.hpp.
//
// Build: a block reduces an aligned subtree of 1024 nodes through ten levels in shared memory and
// writes all nodes above them; the next launch does the same with what is left. All trees of a call
// share these launches.
//
// Walk: a warp an aligned subtree of 1024 leaves. It compares the subtrees' roots, where they
// differ 32 nodes five levels below, under each that differs 32 leaves; what differs becomes a
// bitmap, counted a subtree, and the counts' sums say where each subtree's leaves go.
#include "device/gpu.hpp"
#include "device/warp.cuh"

#include <cub/block/block_scan.cuh>

#include "digest/published.hpp"
#include "tree/tree_device.hpp"

namespace twinrun {

namespace {

constexpr unsigned kStep = 10;  // levels a launch
constexpr std::uint32_t kSubtree = 1U << kStep;
constexpr unsigned kThreads = 256;
constexpr unsigned kMiddle = 5;  // levels from a warp's word of leaves to the node above it
constexpr unsigned kScanThreads = 1024;

// One tree in one launch.
struct Subtrees {
    std::uint64_t* below;  // first node of the level that is reduced
    std::uint64_t leaves;
    std::uint64_t factor;       // that joins nodes of this level (linear)
    std::uint64_t first_block;  // blocks of the trees before it
    std::uint32_t level;
    std::uint32_t levels;  // to write above it
};

struct Node1 {
    std::uint64_t word;
};
struct Node2 {
    std::uint64_t words[2];
};

__device__ Node1 join(const Node1& left, const Node1& right, std::uint64_t factor) {
    return {add61(multiply61(left.word, factor), right.word)};
}
__device__ Node2 join(const Node2& left, const Node2& right, std::uint64_t) {
    Node2 parent;
    published_join(left.words, right.words, parent.words);
    return parent;
}

template <class Node>
__global__ void __launch_bounds__(kThreads) build_levels(const Subtrees* trees, std::uint32_t n) {
    __shared__ Node even[kSubtree];
    __shared__ Node odd[kSubtree / 2];
    std::uint32_t low = 0;
    std::uint32_t high = n;  // the tree is in [low, high)
    while (high - low > 1) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (trees[middle].first_block <= blockIdx.x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const Subtrees tree = trees[low];
    const std::uint64_t first = (blockIdx.x - tree.first_block) * kSubtree;
    const std::uint64_t whole = ((tree.leaves - 1) >> tree.level) + 1;
    auto width = static_cast<std::uint32_t>(whole - first < kSubtree ? whole - first : kSubtree);
    auto* level = reinterpret_cast<Node*>(tree.below);
    for (std::uint32_t i = threadIdx.x; i < width; i += kThreads)
        even[i] = level[first + i];
    __syncthreads();
    Node* from = even;
    Node* to = odd;
    std::uint64_t factor = tree.factor;
    for (std::uint32_t k = 1; k <= tree.levels; ++k) {
        // A level lies right before the one below it.
        level -= ((tree.leaves - 1) >> (tree.level + k)) + 1;
        const std::uint32_t above = width / 2 + width % 2;
        for (std::uint32_t i = threadIdx.x; i < above; i += kThreads) {
            const Node node = 2 * i + 1 < width ? join(from[2 * i], from[2 * i + 1], factor) : from[2 * i];
            to[i] = node;
            level[(first >> k) + i] = node;
        }
        __syncthreads();
        Node* const swapped = from;
        from = to;
        to = swapped;
        width = above;
        factor = multiply61(factor, factor);
    }
}

// Launches a tree takes part in.
unsigned launches(const DeviceTreeItem& item) {
    const unsigned levels = TreeLayout{item.leaves}.levels();
    return levels < 2 ? 0 : (levels - 1 + kStep - 1) / kStep;
}

void build_scratch(const DeviceTreeItem* items, std::size_t n, std::size_t* device_bytes,
                   std::size_t* host_bytes) {
    std::size_t all = 0;
    for (std::size_t i = 0; i < n; ++i)
        all += launches(items[i]);
    *device_bytes = *host_bytes = device_aligned(all * sizeof(Subtrees));
}

DeviceStatus build(int device, const DeviceTreeItem* items, std::size_t n, void* scratch, void* host_scratch,
                   StreamHandle stream) {
    unsigned most = 0;
    for (std::size_t i = 0; i < n; ++i)
        most = launches(items[i]) > most ? launches(items[i]) : most;
    if (most == 0) return {};
    TWR_GPU_CURRENT(device);
    auto* const host = static_cast<Subtrees*>(host_scratch);
    const auto* const on_device = static_cast<const Subtrees*>(scratch);
    // Twice: written for the copy, then launched. A launch takes the trees of one kind that are
    // left, in their order.
    struct Launch {
        std::size_t first;
        std::size_t trees;
        std::uint64_t blocks;
    };
    constexpr unsigned kMostLaunches = 2 * 7;  // two kinds, 64 levels
    Launch all[kMostLaunches] = {};
    std::size_t used = 0;
    for (unsigned pass = 0; pass < most; ++pass) {
        for (unsigned kind = 0; kind < 2; ++kind) {
            Launch& launch = all[pass * 2 + kind];
            launch.first = used;
            for (std::size_t i = 0; i < n; ++i) {
                const DeviceTreeItem& item = items[i];
                if (static_cast<unsigned>(item.kind) != kind || launches(item) <= pass) continue;
                const TreeLayout layout{item.leaves};
                const unsigned level = pass * kStep;
                const unsigned left = layout.levels() - 1 - level;
                Subtrees& tree = host[used++];
                tree.below = item.nodes + layout.first(level) * node_words(item.kind);
                tree.leaves = item.leaves;
                // RHO^(blocks_per_chunk 2^level): TreeJoin.
                tree.factor = power61(kRho, item.blocks_per_chunk);
                for (unsigned h = 0; h < level; ++h)
                    tree.factor = multiply61(tree.factor, tree.factor);
                tree.first_block = launch.blocks;
                tree.level = level;
                tree.levels = left < kStep ? left : kStep;
                launch.blocks += (layout.width(level) + kSubtree - 1) / kSubtree;
            }
            launch.trees = used - launch.first;
            if (launch.blocks > 0x7FFFFFFF) {
                return gpu_failure(ErrorCode::invalid_argument, device,
                                   "trees of too many leaves for one call");
            }
        }
    }
    TWR_GPU(
        cudaMemcpyAsync(scratch, host, used * sizeof(Subtrees), cudaMemcpyHostToDevice, gpu_stream(stream)));
    for (unsigned l = 0; l < 2 * most; ++l) {
        const Launch& launch = all[l];
        if (launch.blocks == 0) continue;
        const auto blocks = static_cast<unsigned>(launch.blocks);
        const auto trees = static_cast<std::uint32_t>(launch.trees);
        if (l % 2 == static_cast<unsigned>(DigestKind::linear)) {
            build_levels<Node1><<<blocks, kThreads, 0, gpu_stream(stream)>>>(on_device + launch.first, trees);
        } else {
            build_levels<Node2><<<blocks, kThreads, 0, gpu_stream(stream)>>>(on_device + launch.first, trees);
        }
        TWR_GPU_LAUNCHED("build_levels");
    }
    return {};
}

// ---- walk ----

struct Walk {
    const std::uint64_t* a;
    const std::uint64_t* b;
    std::uint64_t leaves;
    std::uint64_t first_top;     // positions of these levels' first nodes
    std::uint64_t first_middle;  // kNoLevel: the tree is not that high
    std::uint64_t first_leaf;
    std::uint32_t subtrees;
    std::uint32_t* bitmap;  // 32 words a subtree, written where a count is not 0
    std::uint32_t* counts;  // leaves that differ, a subtree; then the sums of those before
    std::uint32_t* chunks;
    std::uint64_t* count;
};
constexpr std::uint64_t kNoLevel = ~0ULL;

template <int kWords>
__device__ bool differ(const Walk& walk, std::uint64_t node) {
    bool any = walk.a[node * kWords] != walk.b[node * kWords];
    if (kWords == 2) any |= walk.a[node * kWords + 1] != walk.b[node * kWords + 1];
    return any;
}

template <int kWords>
__global__ void __launch_bounds__(kThreads) walk_subtrees(const Walk walk) {
    const std::uint32_t subtree = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
    const std::uint32_t lane = threadIdx.x % 32;
    if (subtree >= walk.subtrees) return;
    if (!differ<kWords>(walk, walk.first_top + subtree)) {
        if (lane == 0) walk.counts[subtree] = 0;
        return;
    }
    // This lane's 32 leaves.
    const std::uint64_t group = static_cast<std::uint64_t>(subtree) * 32 + lane;
    const bool exists = group * 32 < walk.leaves;
    const bool open =
        exists && (walk.first_middle == kNoLevel || differ<kWords>(walk, walk.first_middle + group));
    const std::uint32_t groups = warp::ballot(open);
    std::uint32_t mine = 0;
    for (std::uint32_t g = 0; g < 32; ++g) {
        if ((groups >> g & 1U) == 0) continue;  // the same for all lanes
        const std::uint64_t leaf = (static_cast<std::uint64_t>(subtree) * 32 + g) * 32 + lane;
        const std::uint32_t word =
            warp::ballot(leaf < walk.leaves && differ<kWords>(walk, walk.first_leaf + leaf));
        if (lane == g) mine = word;
    }
    walk.bitmap[static_cast<std::uint64_t>(subtree) * 32 + lane] = mine;
    std::uint32_t sum = static_cast<std::uint32_t>(__popc(mine));
    for (unsigned by = 1; by < 32; by *= 2) {
        const std::uint32_t before = warp::up(sum, by);
        if (lane >= by) sum += before;
    }
    if (lane == 31) walk.counts[subtree] = sum;
}

// Turns counts into sums of those before; one block: there is a count for 4 MiB of data at least.
__global__ void __launch_bounds__(kScanThreads) sum_counts(const Walk walk) {
    using Scan = cub::BlockScan<std::uint32_t, kScanThreads>;
    __shared__ typename Scan::TempStorage storage;
    std::uint64_t before = 0;
    for (std::uint64_t at = 0; at < walk.subtrees; at += kScanThreads) {
        const std::uint64_t i = at + threadIdx.x;
        const std::uint32_t count = i < walk.subtrees ? walk.counts[i] : 0;
        std::uint32_t sum = 0;
        std::uint32_t all = 0;
        Scan(storage).ExclusiveSum(count, sum, all);
        // All leaves together are fewer than 2^32.
        if (i < walk.subtrees) walk.counts[i] = static_cast<std::uint32_t>(before) + sum;
        before += all;
        __syncthreads();  // storage is used again
    }
    if (threadIdx.x == 0) *walk.count = before;
}

__global__ void __launch_bounds__(kThreads) write_chunks(const Walk walk) {
    const std::uint32_t subtree = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
    const std::uint32_t lane = threadIdx.x % 32;
    if (subtree >= walk.subtrees) return;
    const std::uint32_t begin = walk.counts[subtree];
    const std::uint64_t end = subtree + 1 < walk.subtrees ? walk.counts[subtree + 1] : *walk.count;
    if (begin == end) return;
    const std::uint32_t mine = walk.bitmap[static_cast<std::uint64_t>(subtree) * 32 + lane];
    std::uint64_t at = begin;
    for (std::uint32_t g = 0; g < 32; ++g) {
        const std::uint32_t word = warp::from(mine, static_cast<int>(g));
        if (word == 0) continue;  // the same for all lanes
        if ((word >> lane & 1U) != 0) {
            const int place = __popc(word & ((1U << lane) - 1));
            walk.chunks[at + static_cast<unsigned>(place)] = (subtree * 32 + g) * 32 + lane;
        }
        at += static_cast<unsigned>(__popc(word));
    }
}

std::uint64_t subtrees_of(std::uint64_t leaves) { return leaves == 0 ? 0 : ((leaves - 1) >> kStep) + 1; }

std::size_t walk_scratch(std::uint64_t leaves) {
    const std::uint64_t subtrees = subtrees_of(leaves);
    return device_aligned(subtrees * 32 * sizeof(std::uint32_t)) +
           device_aligned(subtrees * sizeof(std::uint32_t));
}

DeviceStatus walk(int device, const std::uint64_t* a, const std::uint64_t* b, std::uint64_t leaves,
                  DigestKind kind, std::uint32_t* chunks, std::uint64_t* count, void* scratch,
                  StreamHandle stream) {
    if (leaves >> 32 != 0)
        return gpu_failure(ErrorCode::invalid_argument, device, "a tree of more than 2^32 leaves");
    TWR_GPU_CURRENT(device);
    if (leaves == 0) {
        TWR_GPU(cudaMemsetAsync(count, 0, sizeof *count, gpu_stream(stream)));
        return {};
    }
    const TreeLayout layout{leaves};
    const unsigned root = layout.levels() - 1;
    Walk work{};
    work.a = a;
    work.b = b;
    work.leaves = leaves;
    work.first_top = layout.first(root < kStep ? root : kStep);
    work.first_middle = root > kMiddle ? layout.first(kMiddle) : kNoLevel;
    work.first_leaf = layout.first(0);
    work.subtrees = static_cast<std::uint32_t>(subtrees_of(leaves));
    work.bitmap = static_cast<std::uint32_t*>(scratch);
    work.counts =
        work.bitmap + device_aligned(work.subtrees * 32 * sizeof(std::uint32_t)) / sizeof(std::uint32_t);
    work.chunks = chunks;
    work.count = count;
    const unsigned blocks = (work.subtrees + kThreads / 32 - 1) / (kThreads / 32);
    if (kind == DigestKind::linear) {
        walk_subtrees<1><<<blocks, kThreads, 0, gpu_stream(stream)>>>(work);
    } else {
        walk_subtrees<2><<<blocks, kThreads, 0, gpu_stream(stream)>>>(work);
    }
    TWR_GPU_LAUNCHED("walk_subtrees");
    sum_counts<<<1, kScanThreads, 0, gpu_stream(stream)>>>(work);
    TWR_GPU_LAUNCHED("sum_counts");
    write_chunks<<<blocks, kThreads, 0, gpu_stream(stream)>>>(work);
    TWR_GPU_LAUNCHED("write_chunks");
    return {};
}

__global__ void compare_roots(const DeviceRoots* pairs, std::size_t n, std::uint8_t* equal) {
    const std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= n) return;
    const DeviceRoots pair = pairs[i];
    bool is_equal = true;
    for (std::uint64_t w = 0; w < pair.words; ++w)
        is_equal = is_equal && pair.a[w] == pair.b[w];
    equal[i] = is_equal ? 1 : 0;
}

DeviceStatus equal_roots(int device, const DeviceRoots* pairs, std::size_t n, std::uint8_t* equal,
                         StreamHandle stream) {
    if (n == 0) return {};
    TWR_GPU_CURRENT(device);
    compare_roots<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0, gpu_stream(stream)>>>(
        pairs, n, equal);
    TWR_GPU_LAUNCHED("compare_roots");
    return {};
}

}  // namespace

extern const DeviceTreeKernels kDeviceTreeTable;
const DeviceTreeKernels kDeviceTreeTable = {build_scratch, build, walk_scratch, walk, equal_roots};

}  // namespace twinrun
