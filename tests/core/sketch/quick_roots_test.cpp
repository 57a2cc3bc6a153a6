#include "sketch/quick_roots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "sketch/host_sketch.hpp"
#include "sketch/words.hpp"
#include "source/source.hpp"
#include "support/device.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

// Words on a device, and their root as the host makes it.
struct PlacedWords {
    std::unique_ptr<OnDevice> memory;
    DeviceArray array;
    std::uint64_t expected;

    PlacedWords(int device, DType word, std::uint64_t items, std::uint64_t seed, std::size_t offset = 0) {
        std::mt19937_64 random(seed);
        std::vector<std::byte> bytes(items * item_bytes(word));
        for (std::byte& byte : bytes)
            byte = static_cast<std::byte>(random());
        memory = std::make_unique<OnDevice>(device, std::span<const std::byte>(bytes), offset);
        array.device = device;
        array.data = memory->data();
        array.dtype = word;
        array.shape = {items};
        const FieldMetadata field = plan_words(word, {items}).value();
        MemorySource source(word, items, bytes.data(), item_bytes(word), false);
        expected = HostSketch::build(field, source).value().built().tree[0];
    }
};

Result<std::shared_ptr<QueuedRoots>> queued(const std::vector<PlacedWords>& placed) {
    std::vector<const DeviceArray*> arrays;
    for (const PlacedWords& one : placed)
        arrays.push_back(&one.array);
    return queue_quick_roots(arrays);
}

void expect_roots(QueuedRoots& queued, const std::vector<PlacedWords>& placed) {
    const auto roots = queued.roots();
    ASSERT_TRUE(roots.ok()) << roots.error().message;
    ASSERT_EQ(roots->size(), placed.size());
    for (std::size_t i = 0; i < placed.size(); ++i)
        EXPECT_EQ((*roots)[i], placed[i].expected) << "array " << i << " of " << placed[i].array.items();
}

constexpr DType kWordTypes[] = {DType::i8, DType::i16, DType::i32};

// Around the ends of vectors, blocks, parts and chunks, and of trees of every form with few leaves.
TEST(DeviceQuickRoots, EqualTheHostAtEverySize) {
    TWR_TEST_DEVICE(device);
    std::vector<std::uint64_t> sizes = {1, 2, 3, 4, 15, 16, 17};
    for (const std::uint64_t step : {std::uint64_t{4096}, std::uint64_t{16384}, std::uint64_t{65536}}) {
        for (const std::uint64_t count : {1, 2, 3, 4, 5}) {
            for (const std::uint64_t more : {0, 4, 20})
                sizes.push_back(step * count + more);
            sizes.push_back(step * count - 4);
        }
    }
    for (std::uint64_t chunks = 6; chunks < 18; ++chunks)
        sizes.push_back(chunks * 65536 - 8192);
    for (const DType word : kWordTypes) {
        std::vector<PlacedWords> placed;
        for (const std::uint64_t bytes : sizes) {
            const std::uint64_t items = std::max<std::uint64_t>(bytes / item_bytes(word), 1);
            placed.emplace_back(device, word, items, bytes + test_seed(21));
        }
        auto roots = queued(placed);
        ASSERT_TRUE(roots.ok()) << roots.error().message;
        expect_roots(**roots, placed);
    }
}

TEST(DeviceQuickRoots, WordsMayBeAlignedToThemselvesAlone) {
    TWR_TEST_DEVICE(device);
    std::vector<PlacedWords> placed;
    for (const DType word : kWordTypes) {
        for (const std::uint64_t items : {1, 5, 1000, 40000})
            placed.emplace_back(device, word, items, items + test_seed(22), item_bytes(word));
    }
    auto roots = queued(placed);
    ASSERT_TRUE(roots.ok()) << roots.error().message;
    expect_roots(**roots, placed);
}

TEST(DeviceQuickRoots, AreReadInAnyOrder) {
    TWR_TEST_DEVICE(device);
    std::mt19937_64 random(test_seed(23));
    std::vector<std::vector<PlacedWords>> placed;
    std::vector<std::shared_ptr<QueuedRoots>> calls;
    for (int call = 0; call < test_rounds(40); ++call) {
        placed.emplace_back();
        for (std::size_t i = 0; i < 1 + random() % 9; ++i) {
            placed.back().emplace_back(device, kWordTypes[random() % 3],
                                       1 + random() % (random() % 8 == 0 ? 400000 : 5000), random());
        }
        auto roots = queued(placed.back());
        ASSERT_TRUE(roots.ok()) << roots.error().message;
        calls.push_back(std::move(roots).value());
    }
    std::vector<std::size_t> order(calls.size());
    for (std::size_t i = 0; i < order.size(); ++i)
        order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t at : order) {
        for (int again = 0; again < 2; ++again)
            expect_roots(*calls[at], placed[at]);
    }
}

// More calls than the ring has places, and nobody has asked for a root.
TEST(DeviceQuickRoots, OldAnswersMakeRoom) {
    TWR_TEST_DEVICE(device);
    std::vector<PlacedWords> placed;
    placed.emplace_back(device, DType::i16, 700, test_seed(24));
    placed.emplace_back(device, DType::i32, 40000, test_seed(25));
    const std::vector<const DeviceArray*> two = {&placed[0].array, &placed[1].array};
    std::vector<const DeviceArray*> many;
    for (std::size_t i = 0; i < 1500; ++i)
        many.insert(many.end(), {two[0], two[0]});
    std::vector<std::shared_ptr<QueuedRoots>> calls;
    for (std::size_t call = 0; call < kQuickRoots / many.size() + 5; ++call) {
        for (const auto& arrays : {two, many}) {
            auto roots = queue_quick_roots(arrays);
            ASSERT_TRUE(roots.ok()) << roots.error().message;
            calls.push_back(std::move(roots).value());
        }
    }
    expect_roots(*calls.front(), placed);
    expect_roots(*calls[calls.size() - 2], placed);
    EXPECT_EQ(*calls.back()->roots(), std::vector<std::uint64_t>(many.size(), placed[0].expected));
}

TEST(DeviceQuickRoots, EachStreamHasItsOrder) {
    TWR_TEST_DEVICE(device);
    std::vector<DeviceStream> streams;
    std::vector<PlacedWords> placed;
    for (int i = 0; i < 3; ++i)
        streams.push_back(DeviceStream::create(device).value());
    for (std::uint64_t i = 0; i < 12; ++i) {
        placed.emplace_back(device, DType::i16, 500 + 9000 * i, i + test_seed(26));
        placed.back().array.stream = streams[i % 3].get();
    }
    auto roots = queued(placed);
    ASSERT_TRUE(roots.ok()) << roots.error().message;
    // Work that comes later may overwrite what was read.
    for (const PlacedWords& one : placed) {
        ASSERT_FALSE(device_runtime()
                         ->fill(device, const_cast<void*>(one.array.data), 0x5A, one.array.items() * 2,
                                one.array.stream)
                         .failed);
    }
    expect_roots(**roots, placed);
}

// Random shapes, orders of dimensions, gaps between them and directions.
TEST(DeviceQuickRoots, RunsEqualTheHost) {
    TWR_TEST_DEVICE(device);
    std::mt19937_64 random(test_seed(27));
    int in_runs = 0;
    for (int round = 0; round < test_rounds(150); ++round) {
        const DType word = kWordTypes[random() % 3];
        const std::size_t item = item_bytes(word);
        const std::size_t dimensions = 2 + random() % 4;
        std::vector<std::uint64_t> shape;
        for (std::size_t d = 0; d + 1 < dimensions; ++d)
            shape.push_back(1 + random() % (random() % 6 == 0 ? 60 : 6));
        shape.push_back((1 + random() % (random() % 4 == 0 ? 300 : 12)) * 16 / item);
        // Where each dimension lies: the last one innermost, the others in any order around it.
        std::vector<std::size_t> order(dimensions - 1);
        for (std::size_t d = 0; d < order.size(); ++d)
            order[d] = d;
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::int64_t> strides(dimensions, static_cast<std::int64_t>(item));
        std::uint64_t extent = shape.back() * item + random() % 3 * 16;
        std::uint64_t begin = 0;
        for (const std::size_t d : order) {
            const bool backwards = random() % 4 == 0;
            strides[d] = static_cast<std::int64_t>(extent) * (backwards ? -1 : 1);
            if (backwards) begin += extent * (shape[d] - 1);
            extent = extent * shape[d] + random() % 2 * 16;
        }
        std::vector<std::byte> bytes(extent);
        for (std::byte& byte : bytes)
            byte = static_cast<std::byte>(random());
        const OnDevice memory(device, std::span<const std::byte>(bytes), 0);
        DeviceArray array;
        array.device = device;
        array.data = static_cast<const std::byte*>(memory.data()) + begin;
        array.dtype = word;
        array.shape = shape;
        array.strides = strides;
        ASSERT_TRUE(is_quick(array));
        in_runs += array.dense() ? 0 : 1;
        std::vector<std::byte> dense;
        for (std::uint64_t i = 0; i < array.items(); ++i) {
            std::int64_t at = static_cast<std::int64_t>(begin);
            std::uint64_t rest = i;
            for (std::size_t d = dimensions; d-- > 0; rest /= shape[d])
                at += static_cast<std::int64_t>(rest % shape[d]) * strides[d];
            dense.insert(dense.end(), bytes.data() + at, bytes.data() + at + item);
        }
        const FieldMetadata field = plan_words(word, {array.items()}).value();
        MemorySource source(word, array.items(), dense.data(), item, false);
        const std::uint64_t expected = HostSketch::build(field, source).value().built().tree[0];
        const DeviceArray* const one[] = {&array, &array};
        auto queued = queue_quick_roots(one);
        ASSERT_TRUE(queued.ok()) << queued.error().message;
        const auto roots = (*queued)->roots();
        ASSERT_TRUE(roots.ok()) << roots.error().message;
        EXPECT_EQ((*roots)[0], expected) << "round " << round;
        EXPECT_EQ((*roots)[1], expected) << "round " << round;
    }
    EXPECT_GT(in_runs, 0);
}

TEST(DeviceQuickRoots, WhatIsStridedOrEmptyTakesAnotherWay) {
    DeviceArray array;
    array.device = 0;
    alignas(16) static const std::byte there[256] = {};
    array.data = there;
    array.dtype = DType::i32;
    array.shape = {6, 4};
    EXPECT_TRUE(is_quick(array));
    array.strides = {16, 4};
    EXPECT_TRUE(is_quick(array));
    array.strides = {32, 4};
    EXPECT_TRUE(is_quick(array));
    array.swap = true;
    EXPECT_FALSE(is_quick(array));
    array.swap = false;
    array.data = there + 4;
    EXPECT_FALSE(is_quick(array));
    array.data = there;
    array.strides = {20, 4};
    EXPECT_FALSE(is_quick(array));
    array.strides = {4, 24};
    EXPECT_FALSE(is_quick(array));
    array.shape = {6, 3};
    array.strides = {32, 4};
    EXPECT_FALSE(is_quick(array));
    array.strides = {};
    array.shape = {6, 0};
    EXPECT_FALSE(is_quick(array));
    array.shape = {6};
    array.device = kHostMemory;
    EXPECT_FALSE(is_quick(array));
}

}  // namespace
}  // namespace twinrun
