// A device library without a device: the tables that the core asks for, on the host with the portable kernels. What surrounds
// the kernels (slices, scratch memory, pools, errors) is tested with it on machines without a GPU:
//
//   TWINRUN_CUDA_LIBRARY=…/libtwinrun_fake_device.so test_compare --gtest_filter='Device*'
//
// Two devices; the environment variable TWINRUN_FAKE_DEVICE_MEMORY limits the bytes of each. Work is done when it is asked
// for, so orders of streams are not tested. Scratch memory is filled with rubbish: what overlaps it shows.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "digest/digest_device.hpp"
#include "element/element_device.hpp"
#include "tree/build.hpp"
#include "tree/tree_device.hpp"
#include "tree/walk.hpp"

namespace twinrun {
namespace {

constexpr int kDevices = 2;
constexpr std::size_t kScratch = 512;

struct Block {
    int device;
    std::size_t bytes;
};
std::mutex mutex;
std::map<const std::byte*, Block> blocks;
std::size_t used[kDevices] = {};

std::size_t limit() {
    const char* text = std::getenv("TWINRUN_FAKE_DEVICE_MEMORY");
    return text == nullptr ? std::size_t{8} << 30
                           : static_cast<std::size_t>(std::strtoull(text, nullptr, 10));
}

DeviceStatus failure(ErrorCode code, const char* text) {
    DeviceStatus status;
    status.failed = true;
    status.code = code;
    std::snprintf(status.text, sizeof status.text, "%s", text);
    return status;
}

DeviceStatus take(int device, std::size_t bytes, void** memory) {
    const std::lock_guard lock(mutex);
    if (device != kHostMemory && (used[device] + bytes < bytes || used[device] + bytes > limit())) {
        return failure(ErrorCode::out_of_memory, "fake: not enough device memory");
    }
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*memory == nullptr) return failure(ErrorCode::out_of_memory, "fake: not enough memory");
    std::memset(*memory, 0xCD, bytes);
    blocks[static_cast<const std::byte*>(*memory)] = {device, bytes};
    if (device != kHostMemory) used[device] += bytes;
    return {};
}

void drop(void* memory) {
    const std::lock_guard lock(mutex);
    const auto found = blocks.find(static_cast<const std::byte*>(memory));
    if (found == blocks.end()) return;
    if (found->second.device != kHostMemory) used[found->second.device] -= found->second.bytes;
    blocks.erase(found);
    std::free(memory);
}

const Block* block_of(const void* memory) {
    const auto* at = static_cast<const std::byte*>(memory);
    auto next = blocks.upper_bound(at);
    if (next == blocks.begin()) return nullptr;
    --next;
    return at < next->first + next->second.bytes ? &next->second : nullptr;
}

DeviceStatus versions(int* runtime, int* driver) {
    *runtime = *driver = 13000;
    return {};
}
DeviceStatus count(int* devices) {
    *devices = kDevices;
    return {};
}
DeviceStatus describe(int, DeviceFacts* facts) {
    std::snprintf(facts->name, sizeof facts->name, "fake");
    facts->compute_major = 9;
    facts->multiprocessors = 1;
    facts->memory_bytes = facts->free_bytes = limit();
    facts->usable = true;
    return {};
}
DeviceStatus free_memory(int device, std::uint64_t* bytes) {
    const std::lock_guard lock(mutex);
    *bytes = limit() - used[device];
    return {};
}
DeviceStatus place_of(const void* memory, int* device) {
    const std::lock_guard lock(mutex);
    const Block* block = block_of(memory);
    *device = block == nullptr ? kHostMemory : block->device;
    return {};
}
DeviceStatus page_locked(const void* memory, bool* is) {
    const std::lock_guard lock(mutex);
    const Block* block = block_of(memory);
    *is = block != nullptr && block->device == kHostMemory;
    return {};
}
DeviceStatus allocate(int device, std::size_t bytes, void** memory) { return take(device, bytes, memory); }
void release(int, void* memory) { drop(memory); }
DeviceStatus allocate_host(std::size_t bytes, void** memory) { return take(kHostMemory, bytes, memory); }
void release_host(void* memory) { drop(memory); }
DeviceStatus make_stream(int, StreamHandle* stream) {
    *stream = new int(0);
    return {};
}
void drop_stream(int, StreamHandle stream) { delete static_cast<int*>(stream); }
DeviceStatus wait_stream(int, StreamHandle) { return {}; }
DeviceStatus make_event(int, bool, EventHandle* event) {
    *event = new int(0);
    return {};
}
void drop_event(int, EventHandle event) { delete static_cast<int*>(event); }
DeviceStatus record(int, EventHandle, StreamHandle) { return {}; }
DeviceStatus stream_wait(int, StreamHandle, EventHandle) { return {}; }
DeviceStatus wait_event(int, EventHandle) { return {}; }
DeviceStatus elapsed(int, EventHandle, EventHandle, float* milliseconds) {
    *milliseconds = 0;
    return {};
}
DeviceStatus copy(int, void* to, const void* from, std::size_t bytes, StreamHandle) {
    if (bytes != 0) std::memmove(to, from, bytes);
    return {};
}
DeviceStatus fill(int, void* to, int byte, std::size_t bytes, StreamHandle) {
    if (bytes != 0) std::memset(to, byte, bytes);
    return {};
}

// In the order of DeviceRuntime's members, by name, so that a new one does not go wrong silently.
const DeviceRuntime kRuntime = {.name = "FAKE",
                                .versions = versions,
                                .count = count,
                                .describe = describe,
                                .free_memory = free_memory,
                                .place_of = place_of,
                                .page_locked = page_locked,
                                .allocate = allocate,
                                .release = release,
                                .allocate_host = allocate_host,
                                .release_host = release_host,
                                .make_stream = make_stream,
                                .drop_stream = drop_stream,
                                .wait_stream = wait_stream,
                                .make_event = make_event,
                                .drop_event = drop_event,
                                .record = record,
                                .stream_wait = stream_wait,
                                .wait_event = wait_event,
                                .elapsed = elapsed,
                                .copy = copy,
                                .fill = fill};

DeviceStatus gather(int, const DeviceGather& g, StreamHandle) {
    const auto* from = static_cast<const std::byte*>(g.from);
    auto* to = static_cast<std::byte*>(g.to);
    for (std::uint64_t i = g.first; i < g.first + g.count; ++i, to += g.item_bytes) {
        std::uint64_t rest = i;
        std::int64_t at = 0;
        for (int d = g.dimensions; d-- > 0;) {
            at += static_cast<std::int64_t>(rest % g.shape[d]) * g.strides[d];
            rest /= g.shape[d];
        }
        std::memcpy(to, from + at, g.item_bytes);
        for (std::uint32_t s = 0; g.swap_bytes != 0 && s < g.item_bytes; s += g.swap_bytes)
            std::reverse(to + s, to + s + g.swap_bytes);
    }
    return {};
}
const DeviceElementKernels kElement = {.gather = gather};

void digest_scratch(const DeviceDigestItem*, std::size_t n, std::size_t* device_bytes,
                    std::size_t* host_bytes) {
    *device_bytes = n * kScratch;
    *host_bytes = n * kScratch / 2;
}
DeviceStatus digest(int, const DeviceDigestItem* items, std::size_t n, void* scratch, void* host_scratch,
                    StreamHandle) {
    std::memset(scratch, 0xEE, n * kScratch);
    std::memset(host_scratch, 0xEE, n * kScratch / 2);
    for (std::size_t i = 0; i < n; ++i) {
        const DeviceDigestItem& item = items[i];
        if (item.scalars == 0) continue;
        Digester digester(item.settings, item.scalar, Backend::portable);
        const ElementView view = dense_view(item.scalar, item.data);
        const std::size_t per_chunk = digester.shape().chunk_scalars;
        std::vector<ChunkDigest> digests((item.scalars + per_chunk - 1) / per_chunk);
        std::vector<std::byte> residues;
        const unsigned bits = item.settings.rule.residue_bits;
        residues.resize(digests.size() * digester.shape().residue_bytes_per_chunk);
        ElementCounts counts;
        digester.chunks(view, 0, item.scalars, digests.data(), bits != 0 ? residues.data() : nullptr,
                        &counts);
        for (std::size_t c = 0; c < digests.size(); ++c) {
            if (item.settings.kind == DigestKind::published) {
                item.leaves[2 * c] = digests[c].fine;
                item.leaves[2 * c + 1] = digests[c].coarse;
            } else {
                item.leaves[c] = digests[c].coarse;
                if (item.fine != nullptr) item.fine[c] = digests[c].fine;
            }
        }
        if (item.residues != nullptr && bits != 0) {
            const std::size_t bytes = item.scalars / per_chunk * digester.shape().residue_bytes_per_chunk +
                                      chunk_residue_bytes(item.scalar, item.scalars % per_chunk, bits);
            std::memcpy(item.residues, residues.data(), bytes);
        }
        static std::mutex sums;
        const std::lock_guard lock(sums);
        if (item.counts != nullptr) item.counts->add(counts);
        if (item.largest == nullptr) continue;
        const std::uint64_t slice = (1 << 20) / item_bytes(item.scalar);
        const ComputeType type = compute_type(item.scalar);
        for (std::uint64_t at = 0; at < item.scalars; at += slice) {
            for (std::uint64_t k = at; k < std::min(at + slice, item.scalars); k += 1021) {
                alignas(64) std::byte staging[64];
                const void* value = load(view, k, 1, staging);
                double x = 0;
                if (type == ComputeType::f32) {
                    float f = 0;
                    std::memcpy(&f, value, 4);
                    x = static_cast<double>(f);
                } else if (type == ComputeType::f64) {
                    std::memcpy(&x, value, 8);
                }
                x = std::fabs(x);
                if (!std::isfinite(x)) continue;
                std::uint64_t word = 0;
                std::memcpy(&word, &x, 8);
                *item.largest = std::max(*item.largest, word);
            }
        }
    }
    return {};
}
DeviceStatus sketch(int, const DeviceSketchItem& item, StreamHandle) {
    const ChunkShape shape = chunk_shape(item.scalar, item.chunk_bytes, item.residue_bits);
    for (std::uint64_t i = 0; i < item.count; ++i) {
        const std::uint64_t c = item.chunks == nullptr ? i : item.chunks[i];
        const auto n = static_cast<std::size_t>(
            std::min<std::uint64_t>(shape.chunk_scalars, item.scalars - c * shape.chunk_scalars));
        const std::size_t at = c * shape.residue_bytes_per_chunk;
        const SketchVerdict verdict =
            check_sketch(kPortableDigest, shape, n, item.residue_bits, item.widest, item.fine_a[c],
                         item.fine_b[c], item.residues_a + at, item.residues_b + at);
        item.proven[i] = verdict.proven;
        for (std::size_t k = 0; verdict.proven && k < 8; ++k)
            item.counts[k] += verdict.counts[k];
    }
    return {};
}
const DeviceDigestKernels kDigest = {.scratch = digest_scratch, .digest = digest, .sketch = sketch};

void tree_scratch(const DeviceTreeItem*, std::size_t n, std::size_t* device_bytes, std::size_t* host_bytes) {
    *device_bytes = n * kScratch;
    *host_bytes = n * kScratch / 2;
}
DeviceStatus build(int, const DeviceTreeItem* items, std::size_t n, void* scratch, void* host_scratch,
                   StreamHandle) {
    std::memset(scratch, 0xEE, n * kScratch);
    std::memset(host_scratch, 0xEE, n * kScratch / 2);
    for (std::size_t i = 0; i < n; ++i) {
        const DeviceTreeItem& item = items[i];
        const std::size_t words = node_words(item.kind);
        const std::uint64_t* leaves = item.nodes + TreeLayout{item.leaves}.first(0) * words;
        const std::vector<std::uint64_t> nodes =
            build_tree(item.kind, item.blocks_per_chunk, {leaves, item.leaves * words});
        std::copy(nodes.begin(), nodes.end(), item.nodes);
    }
    return {};
}
std::size_t walk_scratch(std::uint64_t leaves) { return leaves / 8 + kScratch; }
DeviceStatus walk(int, const std::uint64_t* a, const std::uint64_t* b, std::uint64_t leaves, DigestKind kind,
                  std::uint32_t* chunks, std::uint64_t* number, void* scratch, StreamHandle) {
    std::memset(scratch, 0xEE, walk_scratch(leaves));
    const TreeLayout layout{leaves};
    const std::size_t words = node_words(kind);
    MemoryNodes nodes_a({a, layout.nodes() * words}, words);
    MemoryNodes nodes_b({b, layout.nodes() * words}, words);
    auto walked = walk_trees(layout, words, nodes_a, nodes_b);
    if (!walked) return failure(walked.error().code, walked.error().message.c_str());
    *number = 0;
    for (const Range& r : walked->chunks) {
        for (std::uint64_t c = r.begin; c < r.end; ++c)
            chunks[(*number)++] = static_cast<std::uint32_t>(c);
    }
    return {};
}
const DeviceTreeKernels kTree = {
    .build_scratch = tree_scratch, .build = build, .walk_scratch = walk_scratch, .walk = walk};

}  // namespace
}  // namespace twinrun

extern "C" __attribute__((visibility("default"))) const void* twinrun_device_table(const char* name,
                                                                                   std::uint32_t abi,
                                                                                   const char* version) {
    using namespace twinrun;
    if (abi != kDeviceAbi || std::strcmp(version, TWINRUN_VERSION) != 0) return nullptr;
    if (std::strcmp(name, "runtime") == 0) return &kRuntime;
    if (std::strcmp(name, "element") == 0) return &kElement;
    if (std::strcmp(name, "digest") == 0) return &kDigest;
    if (std::strcmp(name, "tree") == 0) return &kTree;
    return nullptr;
}
