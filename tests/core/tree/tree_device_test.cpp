// Trees on a device equal those of the host, and so do the chunks that a walk finds.
#include "tree/tree_device.hpp"

#include <gtest/gtest.h>

#include <random>

#include "support/device.hpp"
#include "tree/build.hpp"
#include "tree/walk.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;

std::uint64_t some_leaves(Random& random) {
    constexpr std::uint64_t edges[] = {1,    2,    3,    31,   32,   33,    511,   512,    513,     1023,
                                       1024, 1025, 1500, 2047, 2049, 32767, 32768, 100001, 1048577, 1050625};
    if (random() % 2 == 0) return edges[random() % std::size(edges)];
    return 1 + random() % (std::uint64_t{1} << (1 + random() % 17));
}

std::vector<std::uint64_t> random_leaves(std::uint64_t leaves, DigestKind kind, Random& random) {
    std::vector<std::uint64_t> words(leaves * node_words(kind));
    for (auto& w : words)
        w = kind == DigestKind::linear ? random() % kPrime : random();
    return words;
}

TEST(DeviceTree, BuildsManyTreesOfAllSizesInOneCall) {
    TWR_TEST_DEVICE(device);
    const DeviceTreeKernels* kernels = device_tree_kernels();
    ASSERT_NE(kernels, nullptr);
    Random random(1);
    for (int round = 0; round < test_rounds(20); ++round) {
        std::vector<std::vector<std::uint64_t>> expected;
        std::vector<std::unique_ptr<OnDevice>> nodes;
        std::vector<DeviceTreeItem> items;
        const std::size_t trees = round == 0 ? 1 : random() % 50;
        for (std::size_t t = 0; t < trees; ++t) {
            const DigestKind kind = random() % 3 == 0 ? DigestKind::published : DigestKind::linear;
            const std::uint64_t leaves = round == 0           ? (1 << 20) + 1025
                                         : random() % 20 == 0 ? 0
                                                              : some_leaves(random);
            const std::uint64_t blocks = std::uint64_t{1} << random() % 9;
            const auto words = random_leaves(leaves, kind, random);
            expected.push_back(build_tree(kind, blocks, words));
            // A skew of one word: nothing is aligned to more.
            nodes.push_back(std::make_unique<OnDevice>(device, expected.back().size() * 8, random() % 2 * 8));
            const std::size_t first = TreeLayout{leaves}.nodes() == 0 ? 0 : TreeLayout{leaves}.first(0);
            std::vector<std::uint64_t> given(expected.back().size(), 0x5555555555555555);
            std::copy(words.begin(), words.end(),
                      given.begin() + static_cast<std::ptrdiff_t>(first * node_words(kind)));
            nodes.back()->put(given.data(), given.size() * 8);
            items.push_back({nodes.back()->as<std::uint64_t>(), leaves, kind, blocks});
        }
        std::size_t device_bytes = 0;
        std::size_t host_bytes = 0;
        kernels->build_scratch(items.data(), items.size(), &device_bytes, &host_bytes);
        DeviceMemory scratch;
        DeviceMemory host;
        ASSERT_TRUE(scratch.reserve(device, device_bytes + 1));
        ASSERT_TRUE(host.reserve(kHostMemory, host_bytes + 1));
        auto stream = DeviceStream::create(device);
        ASSERT_TRUE(stream);
        const DeviceStatus status =
            kernels->build(device, items.data(), items.size(), scratch.data(), host.data(), stream->get());
        ASSERT_FALSE(status.failed) << status.text;
        const auto waited = stream->wait();
        ASSERT_TRUE(waited) << waited.error().message;
        for (std::size_t t = 0; t < trees; ++t) {
            ASSERT_EQ(nodes[t]->values<std::uint64_t>(), expected[t])
                << "round " << round << " tree " << t << " of " << items[t].leaves << " leaves";
        }
    }
}

TEST(DeviceTree, WalkFindsWhatTheHostFinds) {
    TWR_TEST_DEVICE(device);
    const DeviceTreeKernels* kernels = device_tree_kernels();
    ASSERT_NE(kernels, nullptr);
    Random random(2);
    for (int round = 0; round < test_rounds(60); ++round) {
        const DigestKind kind = random() % 2 == 0 ? DigestKind::published : DigestKind::linear;
        const std::size_t words = node_words(kind);
        const std::uint64_t leaves = round == 0 ? (1 << 21) + 1 : some_leaves(random);
        const auto leaves_a = random_leaves(leaves, kind, random);
        auto leaves_b = leaves_a;
        // None, one, some, a stretch, or all differ.
        const unsigned how = static_cast<unsigned>(random() % 5);
        const std::uint64_t begin = random() % leaves;
        const std::uint64_t end = how == 3 ? begin + random() % (leaves - begin + 1) : begin + 1;
        for (std::uint64_t c = 0; c < leaves; ++c) {
            const bool change = how == 4 || (how == 2 && random() % 50 == 0) ||
                                ((how == 1 || how == 3) && c >= begin && c < end);
            if (change) leaves_b[c * words + random() % words] ^= 1ULL << random() % 60;
        }
        const auto tree_a = build_tree(kind, 1, leaves_a);
        const auto tree_b = build_tree(kind, 1, leaves_b);
        MemoryNodes nodes_a(tree_a, words);
        MemoryNodes nodes_b(tree_b, words);
        const auto walked = walk_trees({leaves}, words, nodes_a, nodes_b);
        ASSERT_TRUE(walked);
        std::vector<std::uint32_t> expected;
        for (const Range& r : walked->chunks) {
            for (std::uint64_t c = r.begin; c < r.end; ++c)
                expected.push_back(static_cast<std::uint32_t>(c));
        }
        const OnDevice a(device, std::span<const std::uint64_t>(tree_a));
        const OnDevice b(device, std::span<const std::uint64_t>(tree_b), 8);
        const OnDevice chunks(device, leaves * 4);
        const OnDevice count(device, 8);
        const OnDevice scratch(device, kernels->walk_scratch(leaves));
        const DeviceStatus status =
            kernels->walk(device, a.as<std::uint64_t>(), b.as<std::uint64_t>(), leaves, kind,
                          chunks.as<std::uint32_t>(), count.as<std::uint64_t>(), scratch.data(), nullptr);
        ASSERT_FALSE(status.failed) << status.text;
        const std::uint64_t found = count.values<std::uint64_t>()[0];
        ASSERT_EQ(found, expected.size()) << "round " << round << ", " << leaves << " leaves";
        auto list = chunks.values<std::uint32_t>();
        list.resize(found);
        ASSERT_EQ(list, expected) << "round " << round << ", " << leaves << " leaves";
    }
}

TEST(DeviceTree, NothingToWalk) {
    TWR_TEST_DEVICE(device);
    const DeviceTreeKernels* kernels = device_tree_kernels();
    const OnDevice count(device, 8);
    const OnDevice scratch(device, kernels->walk_scratch(0) + 1);
    ASSERT_FALSE(kernels
                     ->walk(device, nullptr, nullptr, 0, DigestKind::linear, nullptr,
                            count.as<std::uint64_t>(), scratch.data(), nullptr)
                     .failed);
    EXPECT_EQ(count.values<std::uint64_t>()[0], 0U);
    // A tree whose table alone is asked for: no leaves, no scratch.
    std::size_t device_bytes = 1;
    std::size_t host_bytes = 1;
    kernels->build_scratch(nullptr, 0, &device_bytes, &host_bytes);
    EXPECT_FALSE(kernels->build(device, nullptr, 0, nullptr, nullptr, nullptr).failed);
}

}  // namespace
}  // namespace twinrun
