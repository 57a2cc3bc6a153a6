// Gathering items on a device.
#include "element/element_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "support/device.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;

// Row-major items of `g`, whose data lie at `base` on the host.
std::vector<std::byte> expected(const DeviceGather& g, const std::byte* base) {
    std::vector<std::byte> items(g.count * g.item_bytes);
    for (std::uint64_t i = 0; i < g.count; ++i) {
        std::uint64_t item = g.first + i;
        const std::byte* from = base;
        for (int d = g.dimensions - 1; d >= 0; --d) {
            from += static_cast<std::int64_t>(item % g.shape[d]) * g.strides[d];
            item /= g.shape[d];
        }
        std::byte* to = items.data() + i * g.item_bytes;
        std::memcpy(to, from, g.item_bytes);
        for (std::uint32_t unit = 0; g.swap_bytes != 0 && unit < g.item_bytes; unit += g.swap_bytes) {
            std::reverse(to + unit, to + unit + g.swap_bytes);
        }
    }
    return items;
}

struct Laid {
    DeviceGather gather;
    std::size_t bytes = 0;  // of the source
    std::size_t base = 0;   // of the first item in it
};

void check(int device, Laid laid, Random& random, std::size_t skew_from, std::size_t skew_to) {
    std::vector<std::byte> source(laid.bytes);
    for (std::byte& b : source)
        b = static_cast<std::byte>(random());
    const OnDevice from(device, std::span<const std::byte>(source), skew_from);
    DeviceGather& g = laid.gather;
    const std::size_t result = g.count * g.item_bytes;
    const OnDevice to(device, result + 16, skew_to);
    g.from = from.data() + laid.base;
    g.to = to.data();
    auto stream = DeviceStream::create(device);
    ASSERT_TRUE(stream.ok());
    const DeviceStatus status = device_element_kernels()->gather(device, g, stream.value().get());
    ASSERT_FALSE(status.failed) << status.text;
    ASSERT_TRUE(stream.value().wait().ok());
    const std::vector<std::byte> found = to.values<std::byte>();
    const std::vector<std::byte> wanted = expected(g, source.data() + laid.base);
    ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), found.begin()));
    for (std::size_t i = result; i < found.size(); ++i)
        ASSERT_EQ(found[i], std::byte{0xA5}) << "written beyond the end";
}

std::uint32_t some_swap(std::uint32_t item, Random& random) {
    const std::uint32_t units[] = {0, 2, 4, 8};
    const std::uint32_t unit = units[random() % 4];
    return unit <= item ? unit : 0;
}

std::string named(const DeviceGather& g) {
    std::string text = "item " + std::to_string(g.item_bytes) + " swap " + std::to_string(g.swap_bytes) +
                       " first " + std::to_string(g.first) + " count " + std::to_string(g.count);
    for (int d = 0; d < g.dimensions; ++d)
        text += " " + std::to_string(g.shape[d]) + "*" + std::to_string(g.strides[d]);
    return text;
}

// Dimensions in any order in memory, with gaps, some backwards, some repeated (stride 0).
TEST(DeviceGather, AnyStrides) {
    TWR_TEST_DEVICE(device);
    Random random(1);
    for (int round = 0; round < test_rounds(400); ++round) {
        Laid laid;
        DeviceGather& g = laid.gather;
        g.item_bytes = 1U << random() % 5;
        g.swap_bytes = some_swap(g.item_bytes, random);
        g.dimensions = static_cast<int>(random() % 6);
        std::uint64_t items = 1;
        for (int d = 0; d < g.dimensions; ++d) {
            g.shape[d] = 1 + random() % (d == g.dimensions - 1 || g.dimensions < 3 ? 90 : 8);
            items *= g.shape[d];
        }
        std::vector<int> order(static_cast<std::size_t>(g.dimensions));
        std::iota(order.begin(), order.end(), 0);
        if (random() % 3 != 0) std::shuffle(order.begin(), order.end(), random);
        std::int64_t stride = g.item_bytes;
        if (random() % 4 == 0) stride += static_cast<std::int64_t>(random() % 20);
        laid.bytes = g.item_bytes;
        for (auto d = order.rbegin(); d != order.rend(); ++d) {  // the last lies side by side
            const auto size = static_cast<std::int64_t>(g.shape[*d]);
            const auto kind = random() % 12;
            g.strides[*d] = kind == 0 ? 0 : kind == 1 ? -stride : stride;
            if (kind == 0) continue;
            laid.bytes += static_cast<std::size_t>((size - 1) * stride);
            if (kind == 1) laid.base += static_cast<std::size_t>((size - 1) * stride);
            stride *= size;
            if (random() % 4 == 0) stride += static_cast<std::int64_t>(g.item_bytes * (random() % 3));
            if (random() % 9 == 0) stride += static_cast<std::int64_t>(random() % 3);
        }
        g.first = random() % 2 == 0 ? 0 : random() % items;
        g.count = random() % 2 == 0 ? items - g.first : random() % (items - g.first + 1);
        SCOPED_TRACE(named(g));
        const std::size_t skew_from = random() % 3 == 0 ? random() % 16 : 0;
        const std::size_t skew_to = random() % 3 == 0 ? g.item_bytes * (random() % 3) : 0;
        check(device, laid, random, skew_from, skew_to);
        if (HasFatalFailure()) return;
    }
}

TEST(DeviceGather, Transposed) {
    TWR_TEST_DEVICE(device);
    Random random(2);
    for (int round = 0; round < test_rounds(60); ++round) {
        Laid laid;
        DeviceGather& g = laid.gather;
        g.item_bytes = 1U << random() % 5;
        g.swap_bytes = some_swap(g.item_bytes, random);
        g.dimensions = 2 + static_cast<int>(random() % 2);
        std::uint64_t items = 1;
        std::int64_t stride = g.item_bytes;
        for (int d = 0; d < g.dimensions; ++d) {  // the first lies side by side
            g.shape[d] = 1 + random() % 130;
            g.strides[d] = stride;
            stride *= static_cast<std::int64_t>(g.shape[d]);
            items *= g.shape[d];
        }
        laid.bytes = items * g.item_bytes;
        g.first = random() % 2 == 0 ? 0 : random() % items;
        g.count = random() % 2 == 0 ? items - g.first : random() % (items - g.first + 1);
        SCOPED_TRACE(named(g));
        check(device, laid, random, 0, 0);
        if (HasFatalFailure()) return;
    }
}

TEST(DeviceGather, RefusesWhatItCannotDo) {
    TWR_TEST_DEVICE(device);
    DeviceGather g;
    g.item_bytes = 3;
    g.count = 1;
    EXPECT_TRUE(device_element_kernels()->gather(device, g, nullptr).failed);
    g.item_bytes = 4;
    g.dimensions = kMostGatherDimensions + 1;
    EXPECT_TRUE(device_element_kernels()->gather(device, g, nullptr).failed);
}

// Of none, few and more than one launch takes; of nothing, of parts of a tile and of many tiles;
// at any addresses. What lies between them stays.
TEST(DeviceCopies, AreExactAndTouchNothingElse) {
    TWR_TEST_DEVICE(device);
    Random random(3);
    for (int round = 0; round < test_rounds(60); ++round) {
        const std::size_t count = random() % 3 == 0 ? random() % 5 : random() % 400;
        const std::size_t most = count < 5 ? 300'000 : 2 + random() % 5'000;
        const std::size_t unit = std::size_t{1} << random() % 5;  // of all addresses
        std::vector<DeviceCopy> copies(count);
        std::vector<std::size_t> at_from(count);
        std::vector<std::size_t> at_to(count);
        std::size_t end = 0;
        std::size_t source_bytes = 1;
        for (std::size_t i = 0; i < count; ++i) {
            copies[i].bytes = random() % 6 == 0 ? 0 : random() % most;
            at_to[i] = (end + random() % 40) / unit * unit;
            if (at_to[i] < end) at_to[i] += unit;
            at_from[i] = random() % 1000 / unit * unit;
            end = at_to[i] + copies[i].bytes;
            source_bytes = std::max(source_bytes, at_from[i] + static_cast<std::size_t>(copies[i].bytes));
        }
        std::vector<std::byte> source(source_bytes);
        for (std::byte& b : source)
            b = static_cast<std::byte>(random());
        const OnDevice from(device, std::span<const std::byte>(source), unit == 1 ? random() % 16 : 0);
        const OnDevice to(device, end + 50);
        std::vector<std::byte> wanted(end + 50, std::byte{0xA5});
        for (std::size_t i = 0; i < count; ++i) {
            copies[i].from = from.data() + at_from[i];
            copies[i].to = to.data() + at_to[i];
            std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(at_from[i]), copies[i].bytes,
                        wanted.begin() + static_cast<std::ptrdiff_t>(at_to[i]));
        }
        auto stream = DeviceStream::create(device);
        ASSERT_TRUE(stream.ok());
        const DeviceStatus status =
            device_element_kernels()->copy_all(device, copies.data(), count, stream->get());
        copies.clear();  // it has read them
        ASSERT_FALSE(status.failed) << status.text;
        ASSERT_TRUE(stream->wait().ok());
        const std::vector<std::byte> found = to.values<std::byte>();
        ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), found.begin(), found.end()))
            << count << " copies of at most " << most << " bytes at multiples of " << unit;
    }
}

}  // namespace
}  // namespace twinrun
