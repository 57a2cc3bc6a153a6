#include "sketch/quick_roots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
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

// An array of random bytes in any layout, and its root as the host makes it.
struct Layout {
    std::vector<std::uint64_t> shape;
    std::vector<std::int64_t> strides;
    std::uint64_t begin = 0;   // of the first word, in bytes
    std::uint64_t extent = 0;  // bytes

    // order: the dimensions, innermost first. gap: of each dimension, in bytes.
    Layout(std::vector<std::uint64_t> sizes, std::size_t item, const std::vector<std::size_t>& order,
           const std::vector<std::uint64_t>& gaps, const std::vector<bool>& backwards)
        : shape(std::move(sizes)), strides(shape.size()), extent(item) {
        for (const std::size_t d : order) {
            strides[d] = static_cast<std::int64_t>(extent) * (backwards[d] ? -1 : 1);
            if (backwards[d]) begin += extent * (shape[d] - 1);
            extent = extent * shape[d] + gaps[d];
        }
    }
};

void expect_root_of(int device, DType word, const Layout& layout, std::mt19937_64& random) {
    const std::size_t item = item_bytes(word);
    std::vector<std::byte> bytes(layout.extent);
    for (std::byte& byte : bytes)
        byte = static_cast<std::byte>(random());
    const OnDevice memory(device, std::span<const std::byte>(bytes), 0);
    DeviceArray array;
    array.device = device;
    array.data = static_cast<const std::byte*>(memory.data()) + layout.begin;
    array.dtype = word;
    array.shape = layout.shape;
    array.strides = layout.strides;
    ASSERT_TRUE(is_quick(array));
    std::vector<std::byte> dense;
    dense.reserve(array.items() * item);
    for (std::uint64_t i = 0; i < array.items(); ++i) {
        std::int64_t at = static_cast<std::int64_t>(layout.begin);
        std::uint64_t rest = i;
        for (std::size_t d = layout.shape.size(); d-- > 0; rest /= layout.shape[d])
            at += static_cast<std::int64_t>(rest % layout.shape[d]) * layout.strides[d];
        dense.insert(dense.end(), bytes.data() + at, bytes.data() + at + item);
    }
    const FieldMetadata field = plan_words(word, {array.items()}).value();
    MemorySource source(word, array.items(), dense.data(), item, false);
    const std::uint64_t expected = HostSketch::build(field, source).value().built().tree[0];
    const DeviceArray* const twice[] = {&array, &array};
    auto queued = queue_quick_roots(twice);
    ASSERT_TRUE(queued.ok()) << queued.error().message;
    const auto roots = (*queued)->roots();
    ASSERT_TRUE(roots.ok()) << roots.error().message;
    EXPECT_EQ((*roots)[0], expected);
    EXPECT_EQ((*roots)[1], expected);
}

// Random shapes, orders of dimensions, gaps between them and directions. The last dimension lies
// innermost, in whole vectors.
TEST(DeviceQuickRoots, RunsEqualTheHost) {
    TWR_TEST_DEVICE(device);
    std::mt19937_64 random(test_seed(27));
    for (int round = 0; round < test_rounds(150); ++round) {
        const DType word = kWordTypes[random() % 3];
        const std::size_t item = item_bytes(word);
        const std::size_t dimensions = 2 + random() % 4;
        std::vector<std::uint64_t> shape;
        for (std::size_t d = 0; d + 1 < dimensions; ++d)
            shape.push_back(1 + random() % (random() % 6 == 0 ? 60 : 6));
        shape.push_back((1 + random() % (random() % 4 == 0 ? 300 : 12)) * 16 / item);
        std::vector<std::size_t> order(dimensions - 1);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::shuffle(order.begin(), order.end(), random);
        order.insert(order.begin(), dimensions - 1);
        std::vector<std::uint64_t> gaps;
        std::vector<bool> backwards;
        for (std::size_t d = 0; d < dimensions; ++d) {
            gaps.push_back(random() % 3 * 16);
            backwards.push_back(d + 1 < dimensions && random() % 4 == 0);
        }
        expect_root_of(device, word, {shape, item, order, gaps, backwards}, random);
        if (HasFailure()) FAIL() << "round " << round;
    }
}

// The same with any dimension innermost, of any size, and with repeated words.
TEST(DeviceQuickRoots, SpreadRunsEqualTheHost) {
    TWR_TEST_DEVICE(device);
    std::mt19937_64 random(test_seed(28));
    for (int round = 0; round < test_rounds(400); ++round) {
        const DType word = kWordTypes[random() % 3];
        const std::size_t item = item_bytes(word);
        const std::size_t dimensions = 1 + random() % 5;
        std::vector<std::uint64_t> shape;
        std::vector<std::size_t> order(dimensions);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::uint64_t> gaps;
        std::vector<bool> backwards;
        std::uint64_t most = 300000;
        for (std::size_t d = 0; d < dimensions; ++d) {
            const std::uint64_t size = 1 + random() % (random() % 3 == 0 ? 1000 : 9);
            shape.push_back(std::min(size, most));
            most /= shape.back();
            gaps.push_back(random() % 4 * item);
            backwards.push_back(random() % 5 == 0);
        }
        Layout layout(shape, item, order, gaps, backwards);
        const std::size_t repeated = random() % dimensions;
        if (random() % 8 == 0) {
            if (layout.strides[repeated] < 0)
                layout.begin -= static_cast<std::uint64_t>(-layout.strides[repeated]) * (shape[repeated] - 1);
            layout.strides[repeated] = 0;
        }
        expect_root_of(device, word, layout, random);
        if (HasFailure()) FAIL() << "round " << round;
    }
}

// Parts that begin and end within runs, and runs of many parts.
TEST(DeviceQuickRoots, TransposedMatricesEqualTheHost) {
    TWR_TEST_DEVICE(device);
    std::mt19937_64 random(test_seed(29));
    const std::vector<std::uint64_t> shapes[] = {{1600, 640}, {3, 100000}, {100000, 3}, {257, 4097},
                                                 {40000, 33}, {2, 70000},  {512, 512}};
    for (const std::vector<std::uint64_t>& shape : shapes) {
        for (const DType word : kWordTypes) {
            expect_root_of(device, word, {shape, item_bytes(word), {0, 1}, {0, 0}, {false, false}}, random);
            if (HasFailure()) FAIL() << shape[0] << " x " << shape[1];
        }
    }
}

TEST(DeviceQuickRoots, WhatIsSwappedOrEmptyTakesAnotherWay) {
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
    EXPECT_TRUE(is_quick(array));
    array.data = there + 2;
    EXPECT_FALSE(is_quick(array));
    array.data = there;
    array.strides = {4, 24};
    EXPECT_TRUE(is_quick(array));
    array.strides = {4, 22};
    EXPECT_FALSE(is_quick(array));
    array.strides = {0, 0};
    EXPECT_TRUE(is_quick(array));
    array.shape = {1 << 15, (1 << 14) + 1};
    EXPECT_FALSE(is_quick(array));
    array.shape = {2, 2, 2, 2, 2, 2};
    array.strides = {4, 12, 36, 108, 324, 972};
    EXPECT_FALSE(is_quick(array));
    array.shape = {1, 2, 2, 2, 2, 2};
    EXPECT_TRUE(is_quick(array));
    array.strides = {};
    array.shape = {6, 0};
    EXPECT_FALSE(is_quick(array));
    array.shape = {6};
    array.device = kHostMemory;
    EXPECT_FALSE(is_quick(array));
}

}  // namespace
}  // namespace twinrun
