#include "sketch/root_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "sketch/build.hpp"
#include "sketch/host_sketch.hpp"
#include "sketch/words.hpp"
#include "source/source.hpp"
#include "support/device.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

std::vector<std::byte> random_bytes(std::size_t bytes, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> made(bytes);
    for (std::byte& byte : made)
        byte = static_cast<std::byte>(random());
    return made;
}

// By the host, of dense words.
std::uint64_t root_of(const FieldMetadata& field, const std::vector<std::byte>& words) {
    MemorySource source(field.dtype, field.items(), words.data(), item_bytes(field.dtype), false);
    auto sketch = HostSketch::build(field, source);
    EXPECT_TRUE(sketch.ok());
    return sketch->built().tree.empty() ? 0 : sketch->built().tree[0];
}

DeviceArray array_of(int device, const OnDevice& memory, DType dtype, std::vector<std::uint64_t> shape) {
    DeviceArray array;
    array.device = device;
    array.data = memory.data();
    array.dtype = dtype;
    array.shape = std::move(shape);
    return array;
}

TEST(Words, AreTheBitsOfScalars) {
    EXPECT_EQ(word_type(DType::boolean), DType::i8);
    EXPECT_EQ(word_type(DType::bf16), DType::i16);
    EXPECT_EQ(word_type(DType::c64), DType::i32);
    EXPECT_EQ(word_type(DType::f64), DType::i32);
    EXPECT_EQ(word_shape(DType::f32, {3, 4}), (std::vector<std::uint64_t>{3, 4}));
    EXPECT_EQ(word_shape(DType::i64, {}), (std::vector<std::uint64_t>{2}));
    EXPECT_EQ(word_shape(DType::c128, {5}), (std::vector<std::uint64_t>{5, 2, 2}));
    DeviceArray array;
    array.dtype = DType::c128;
    array.shape = {5};
    array.strides = {48};
    const DeviceArray words = as_words(array);
    EXPECT_EQ(words.dtype, DType::i32);
    EXPECT_EQ(words.shape, (std::vector<std::uint64_t>{5, 2, 2}));
    EXPECT_EQ(words.strides, (std::vector<std::int64_t>{48, 8, 4}));
}

// Under the rule of words two that differ never have one cell: also those at the ends of their range.
TEST(Words, EachIsItsOwnCell) {
    for (const DType word : {DType::i8, DType::i16, DType::i32}) {
        const auto field = plan_words(word, {1});
        ASSERT_TRUE(field.ok());
        EXPECT_EQ(field->settings.rule.kind, CellKind::absolute);
        EXPECT_EQ(field->settings.rule.fine_exponent, 0);
        EXPECT_EQ(field->settings.rule.coarse_shift, 0);
    }
}

TEST(DeviceRootQueue, EqualsTheHostWhateverIsUnderWay) {
    TWR_TEST_DEVICE(device);
    struct Asked {
        std::vector<std::unique_ptr<OnDevice>> memory;
        std::vector<std::uint64_t> expected;
        std::shared_ptr<QueuedRoots> queued;
    };
    std::mt19937_64 random(test_seed(1));
    std::vector<Asked> all;
    constexpr DType kWords[] = {DType::i8, DType::i16, DType::i32};
    for (int call = 0; call < test_rounds(60); ++call) {
        Asked asked;
        std::vector<FieldMetadata> fields;
        std::vector<DeviceArray> arrays;
        const std::size_t count = random() % 5;
        for (std::size_t i = 0; i < count; ++i) {
            const DType word = kWords[random() % 3];
            const std::uint64_t items =
                random() % 8 == 0 ? 0 : random() % (random() % 8 == 0 ? 400000 : 5000);
            const auto bytes = random_bytes(items * item_bytes(word), random());
            auto field = plan_words(word, {items});
            ASSERT_TRUE(field.ok());
            asked.memory.push_back(std::make_unique<OnDevice>(device, std::span<const std::byte>(bytes),
                                                              random() % 2 == 0 ? 0 : item_bytes(word)));
            asked.expected.push_back(root_of(*field, bytes));
            arrays.push_back(array_of(device, *asked.memory.back(), word, {items}));
            fields.push_back(std::move(field).value());
        }
        auto queued = queue_roots(std::move(fields), std::move(arrays));
        ASSERT_TRUE(queued.ok()) << queued.error().message;
        asked.queued = std::move(queued).value();
        all.push_back(std::move(asked));
    }
    std::shuffle(all.begin(), all.end(), random);
    for (const Asked& asked : all) {
        for (int again = 0; again < 2; ++again) {
            const auto roots = asked.queued->roots();
            ASSERT_TRUE(roots.ok()) << roots.error().message;
            EXPECT_EQ(*roots, asked.expected);
        }
    }
}

// More than the ring holds is under way, and nobody has asked for a root.
TEST(DeviceRootQueue, OldAnswersMakeRoom) {
    TWR_TEST_DEVICE(device);
    const auto bytes = random_bytes(1 << 10, test_seed(2));
    const OnDevice memory(device, std::span<const std::byte>(bytes));
    const auto field = plan_words(DType::i32, {bytes.size() / 4});
    ASSERT_TRUE(field.ok());
    const std::uint64_t expected = root_of(*field, bytes);
    constexpr std::size_t kFields = 200;
    const std::vector<FieldMetadata> fields(kFields, *field);
    const std::vector<DeviceArray> arrays(kFields, array_of(device, memory, DType::i32, field->shape));
    std::vector<std::shared_ptr<QueuedRoots>> all;
    // Each call takes more than 20 KiB of the ring.
    for (std::size_t call = 0; call < kQueuedBytes / (kFields * 100) + 50; ++call) {
        auto queued = queue_roots(fields, arrays);
        ASSERT_TRUE(queued.ok()) << queued.error().message;
        all.push_back(std::move(queued).value());
    }
    for (const std::size_t at : {all.size() - 1, std::size_t{0}, all.size() / 2})
        EXPECT_EQ(*all[at]->roots(), std::vector<std::uint64_t>(kFields, expected));
}

// One call asks for more than a part of the ring: it is made in two. With a GPU's kernels, whose
// tables are larger than those of the library that plays a device, it is more than the ring holds.
TEST(DeviceRootQueue, ACallMayBeLargerThanTheRing) {
    TWR_TEST_DEVICE(device);
    const auto bytes = random_bytes(64, test_seed(5));
    const OnDevice memory(device, std::span<const std::byte>(bytes));
    std::vector<FieldMetadata> fields;
    std::vector<DeviceArray> arrays;
    std::vector<FieldMetadata> planned;
    std::vector<std::uint64_t> of_items;
    for (std::uint64_t items = 0; items <= 16; ++items) {
        const auto field = plan_words(DType::i32, {items});
        ASSERT_TRUE(field.ok());
        planned.push_back(*field);
        of_items.push_back(root_of(*field, bytes));
    }
    std::vector<std::uint64_t> expected;
    for (std::uint64_t at = 0; at < kQueuedBytes / 40; ++at) {
        const std::uint64_t items = at * 7 % 17;
        fields.push_back(planned[items]);
        arrays.push_back(array_of(device, memory, DType::i32, {items}));
        expected.push_back(of_items[items]);
    }
    auto queued = queue_roots(std::move(fields), std::move(arrays));
    ASSERT_TRUE(queued.ok()) << queued.error().message;
    EXPECT_EQ(*queued.value()->roots(), expected);
}

TEST(DeviceRootQueue, StridedArraysAreGathered) {
    TWR_TEST_DEVICE(device);
    constexpr std::uint64_t kRows = 300;
    constexpr std::uint64_t kColumns = 70;
    const auto bytes = random_bytes(kRows * kColumns * 8, test_seed(3));
    const OnDevice memory(device, std::span<const std::byte>(bytes));
    // The transposed matrix of float64, row by row.
    std::vector<std::byte> turned(bytes.size());
    for (std::uint64_t row = 0; row < kRows; ++row) {
        for (std::uint64_t column = 0; column < kColumns; ++column)
            std::memcpy(&turned[(column * kRows + row) * 8], &bytes[(row * kColumns + column) * 8], 8);
    }
    DeviceArray array = array_of(device, memory, DType::f64, {kColumns, kRows});
    array.strides = {8, kColumns * 8};
    array = as_words(array);
    const auto field = plan_words(array.dtype, array.shape);
    ASSERT_TRUE(field.ok());
    auto queued = queue_roots({*field}, {array});
    ASSERT_TRUE(queued.ok()) << queued.error().message;
    EXPECT_EQ(*queued.value()->roots(), std::vector<std::uint64_t>{root_of(*field, turned)});
}

TEST(DeviceRootQueue, WhatDoesNotFitIsRefused) {
    TWR_TEST_DEVICE(device);
    const auto bytes = random_bytes(4096, test_seed(4));
    const OnDevice memory(device, std::span<const std::byte>(bytes));
    const auto field = plan_words(DType::i32, {1024});
    ASSERT_TRUE(field.ok());
    EXPECT_FALSE(queue_roots({*field}, {array_of(device, memory, DType::i32, {1023})}).ok());
    EXPECT_FALSE(queue_roots({*field}, {array_of(device, memory, DType::i16, {1024})}).ok());
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = DType::i32;
    plan.shape = {1024};
    plan.tolerance = {1, 0};
    plan.residue_bits = 4;
    EXPECT_FALSE(
        queue_roots({*plan_field(std::move(plan))}, {array_of(device, memory, DType::i32, {1024})}).ok());
    auto after = queue_roots({*field}, {array_of(device, memory, DType::i32, {1024})});
    ASSERT_TRUE(after.ok());
    EXPECT_EQ(*after.value()->roots(), std::vector<std::uint64_t>{root_of(*field, bytes)});
}

TEST(RootQueue, OfNothingHasNoRoots) {
    auto queued = queue_roots({}, {});
    ASSERT_TRUE(queued.ok());
    EXPECT_TRUE(queued.value()->roots()->empty());
}

}  // namespace
}  // namespace twinrun
