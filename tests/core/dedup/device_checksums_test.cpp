// Checksums of bytes in device memory: those of the host.
#include "dedup/device_checksums.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/checksum.hpp"
#include "support/device.hpp"

namespace twinrun {
namespace {

TEST(DeviceChecksums, AreThoseOfTheHost) {
    TWR_TEST_DEVICE(device);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        std::mt19937_64 random(seed);
        const std::size_t page_bytes = seed % 3 == 0 ? 256 : 4096;
        const std::size_t pages = seed < 2 ? seed : random() % 300;
        std::vector<std::byte> bytes(pages * page_bytes + 5000);
        for (std::byte& b : bytes)
            b = static_cast<std::byte>(random());
        const OnDevice there(device, std::span<const std::byte>(bytes));
        const auto* const begin = static_cast<const std::byte*>(there.data());
        std::vector<std::span<const std::byte>> others;
        std::vector<std::uint64_t> expected;
        for (std::size_t i = 0; i < seed % 7; ++i) {
            const std::size_t at = random() % bytes.size() / 64 * 64;
            const std::size_t size = std::min<std::size_t>(1 + random() % 4096, bytes.size() - at);
            others.emplace_back(begin + at, size);
            expected.push_back(xxh3(std::span(bytes).subspan(at, size)));
        }
        const auto found = device_checksums(device, {begin, pages * page_bytes},
                                            static_cast<std::uint32_t>(page_bytes), others);
        ASSERT_TRUE(found) << found.error().message;
        ASSERT_EQ(found->pages.size(), pages);
        for (std::size_t p = 0; p < pages; ++p)
            EXPECT_EQ(found->pages[p], xxh3(std::span(bytes).subspan(p * page_bytes, page_bytes))) << p;
        EXPECT_EQ(found->others, expected);
    }
}

}  // namespace
}  // namespace twinrun
