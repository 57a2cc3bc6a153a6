#include "sketch/word_roots.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "sketch/host_sketch.hpp"
#include "sketch/words.hpp"
#include "support/device.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

constexpr std::uint64_t kFewBytes = 1 << 16;

// Values of some type in host memory, or copied to a device.
struct PlacedArray {
    DType dtype;
    std::uint64_t items;
    std::vector<std::byte> bytes;
    std::unique_ptr<OnDevice> copy;

    PlacedArray(DType type, std::uint64_t count, std::uint64_t seed)
        : dtype(type), items(count), bytes(count * item_bytes(type)) {
        std::mt19937_64 random(seed);
        for (std::byte& byte : bytes)
            byte = static_cast<std::byte>(random());
    }
    [[nodiscard]] DeviceArray words_on_host() const {
        DeviceArray array;
        array.device = kHostMemory;
        array.data = bytes.data();
        array.dtype = dtype;
        array.shape = {items};
        return as_words(array);
    }
    [[nodiscard]] DeviceArray words_on(int device) {
        copy = std::make_unique<OnDevice>(device, std::span<const std::byte>(bytes));
        DeviceArray array = words_on_host();
        array.device = device;
        array.data = copy->data();
        return array;
    }
    // By the definition: the root of the tree of its words.
    [[nodiscard]] std::uint64_t expected() const {
        const DeviceArray words = words_on_host();
        const FieldMetadata field = plan_words(words.dtype, words.shape).value();
        MemorySource source(words.dtype, field.items(), words.data, item_bytes(words.dtype), false);
        const HostSketch sketch = HostSketch::build(field, source).value();
        return sketch.built().tree.empty() ? 0 : sketch.built().tree[0];
    }
};

PlacedArray random_array(std::mt19937_64& random) {
    constexpr DType kTypes[] = {DType::u8, DType::f16, DType::f32, DType::f64, DType::c128};
    const std::uint64_t items = random() % 6 == 0 ? 0 : random() % (random() % 6 == 0 ? 200000 : 3000);
    return PlacedArray(kTypes[random() % std::size(kTypes)], items, random());
}

TEST(WordRoots, NoArrays) {
    auto started = WordRoots::start({}, kFewBytes, {});
    ASSERT_TRUE(started.ok());
    EXPECT_TRUE(started->roots()->empty());
}

TEST(WordRoots, HostMemoryMayChangeAfterTheStart) {
    std::mt19937_64 random(test_seed(11));
    for (const std::uint64_t few_bytes : {std::uint64_t{0}, kFewBytes, std::uint64_t{1} << 40}) {
        std::vector<PlacedArray> placed;
        std::vector<DeviceArray> words;
        std::vector<std::uint64_t> expected;
        for (int i = 0; i < 20; ++i)
            placed.push_back(random_array(random));
        for (const PlacedArray& array : placed) {
            words.push_back(array.words_on_host());
            expected.push_back(array.expected());
        }
        auto started = WordRoots::start(words, few_bytes, {});
        ASSERT_TRUE(started.ok()) << started.error().message;
        for (PlacedArray& array : placed)
            std::fill(array.bytes.begin(), array.bytes.end(), std::byte{0});
        EXPECT_EQ(*started->roots(), expected);
        EXPECT_EQ(*started->roots(), expected);
    }
}

TEST(WordRoots, AnImpossibleShapeIsAnError) {
    DeviceArray array;
    array.device = kHostMemory;
    array.dtype = DType::i32;
    array.shape = {UINT64_MAX, 3};
    EXPECT_FALSE(WordRoots::start(std::span(&array, 1), kFewBytes, {}).ok());
}

// Arrays in host memory and on every device, mixed: each root is at the place of its array.
TEST(DeviceWordRoots, EachArrayGetsItsOwn) {
    TWR_TEST_DEVICE(device);
    const std::vector<int> devices = probe_devices().usable();
    std::mt19937_64 random(test_seed(12));
    for (int round = 0; round < test_rounds(20); ++round) {
        std::vector<PlacedArray> placed;
        std::vector<DeviceArray> words;
        std::vector<std::uint64_t> expected;
        for (std::size_t i = random() % 30; i != 0; --i)
            placed.push_back(random_array(random));
        for (PlacedArray& array : placed) {
            const std::size_t where = random() % (devices.size() + 1);
            words.push_back(where == devices.size() ? array.words_on_host() : array.words_on(devices[where]));
            expected.push_back(array.expected());
        }
        auto started = WordRoots::start(words, kFewBytes, {});
        ASSERT_TRUE(started.ok()) << started.error().message;
        for (int again = 0; again < 2; ++again) {
            const auto roots = started->roots();
            ASSERT_TRUE(roots.ok()) << roots.error().message;
            EXPECT_EQ(*roots, expected);
        }
    }
}

}  // namespace
}  // namespace twinrun
