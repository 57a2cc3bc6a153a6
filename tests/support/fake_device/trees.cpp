// Trees.
#include <algorithm>
#include <cstring>
#include <vector>

#include "support/fake_device/checks.hpp"
#include "support/fake_device/tables.hpp"
#include "tree/build.hpp"
#include "tree/walk.hpp"

namespace twinrun::fake {

namespace {

void tree_scratch(const DeviceTreeItem*, std::size_t n, std::size_t* device_bytes, std::size_t* host_bytes) {
    *device_bytes = n * kScratch;
    *host_bytes = n * kScratch / 2;
}
DeviceStatus build(int device, const DeviceTreeItem* items, std::size_t n, void* scratch, void* host_scratch,
                   StreamHandle stream) {
    FAKE_ENTER(kBuild, device);
    const Scratch area(scratch, n * kScratch, host_scratch, n * kScratch / 2);
    area.prepare();
    return push(device, stream, [=, all = std::vector<DeviceTreeItem>(items, items + n)] {
        Checker checker(device, "build");
        area.check(checker);
        for (const DeviceTreeItem& item : all) {
            const TreeLayout layout{item.leaves};
            const std::size_t words = node_words(item.kind);
            checker.memory(item.nodes, layout.nodes() * words * 8, 8, "its nodes");
            if (!checker.ok()) return;
            if (item.leaves == 0) continue;
            const std::uint64_t* leaves = item.nodes + layout.first(0) * words;
            const std::vector<std::uint64_t> nodes =
                build_tree(item.kind, item.blocks_per_chunk, {leaves, item.leaves * words});
            std::copy(nodes.begin(), nodes.end(), item.nodes);
        }
    });
}
std::size_t walk_scratch(std::uint64_t leaves) { return leaves / 8 + kScratch; }
DeviceStatus walk(int device, const std::uint64_t* a, const std::uint64_t* b, std::uint64_t leaves,
                  DigestKind kind, std::uint32_t* chunks, std::uint64_t* number, void* scratch,
                  StreamHandle stream) {
    FAKE_ENTER(kWalk, device);
    return push(device, stream, [=] {
        const TreeLayout layout{leaves};
        const std::size_t words = node_words(kind);
        const std::size_t nodes = leaves == 0 ? 0 : layout.nodes() * words;
        Checker checker(device, "walk");
        checker.memory(number, 8, 8, "its count");
        checker.memory(a, nodes * 8, 8, "a's nodes");
        checker.memory(b, nodes * 8, 8, "b's nodes");
        checker.memory(chunks, leaves * 4, 4, "its chunks");
        checker.memory(scratch, walk_scratch(leaves), 8, "scratch memory");
        if (!checker.ok()) return;
        std::memset(scratch, 0xEE, walk_scratch(leaves));
        *number = 0;
        if (leaves == 0) return;
        MemoryNodes nodes_a({a, nodes}, words);
        MemoryNodes nodes_b({b, nodes}, words);
        const auto walked = walk_trees(layout, words, nodes_a, nodes_b);
        if (!walked) return trouble(device, walked.error().message);
        for (const Range& r : walked->chunks) {
            for (std::uint64_t c = r.begin; c < r.end; ++c)
                chunks[(*number)++] = static_cast<std::uint32_t>(c);
        }
    });
}

DeviceStatus equal_roots(int device, const DeviceRoots* pairs, std::size_t n, std::uint8_t* equal,
                         StreamHandle stream) {
    FAKE_ENTER(kEqualRoots, device);
    return push(device, stream, [=] {
        Checker checker(device, "equal_roots");
        checker.memory(pairs, n * sizeof *pairs, 8, "its pairs");
        checker.memory(equal, n, 1, "its answers");
        for (std::size_t i = 0; checker.ok() && i < n; ++i) {
            checker.memory(pairs[i].a, pairs[i].words * 8, 8, "a's root");
            checker.memory(pairs[i].b, pairs[i].words * 8, 8, "b's root");
            if (checker.ok()) equal[i] = std::memcmp(pairs[i].a, pairs[i].b, pairs[i].words * 8) == 0 ? 1 : 0;
        }
    });
}

}  // namespace

const DeviceTreeKernels kTree = {.build_scratch = tree_scratch,
                                 .build = build,
                                 .walk_scratch = walk_scratch,
                                 .walk = walk,
                                 .equal_roots = equal_roots};

}  // namespace twinrun::fake
