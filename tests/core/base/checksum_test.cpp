#include "base/checksum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace twinrun {
namespace {

std::vector<std::byte> random_bytes(std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(count));
    std::vector<std::byte> bytes(count);
    for (auto& b : bytes)
        b = static_cast<std::byte>(random());
    return bytes;
}

// Stored files depend on these numbers: they are XXH3-64's own.
TEST(Checksum, IsXxh3) {
    EXPECT_EQ(xxh3(std::string_view{}), 0x2D06800538D394C2U);
    EXPECT_EQ(xxh3(std::string_view{"a"}), 0xE6C632B61E964E1FU);
    EXPECT_EQ(xxh3(std::string_view{"abc"}), 0x78AF5F94892F3950U);
}

TEST(Checksum, OfPiecesIsThatOfTheWhole) {
    for (const std::size_t size :
         {0U, 1U, 16U, 17U, 128U, 129U, 240U, 241U, 1023U, 1024U, 1025U, 5000U, 20000U}) {
        const auto bytes = random_bytes(size);
        for (const std::size_t piece : {1U, 7U, 64U, 256U, 1024U, 4096U}) {
            StreamingChecksum sum;
            for (std::size_t at = 0; at < size; at += piece) {
                sum.update(std::span(bytes).subspan(at, std::min(piece, size - at)));
            }
            ASSERT_EQ(sum.value(), xxh3(bytes)) << size << " in pieces of " << piece;
        }
    }
}

TEST(Checksum, ValueDoesNotEndTheStream) {
    const auto bytes = random_bytes(3000);
    StreamingChecksum sum;
    sum.update(std::span(bytes).first(1000));
    EXPECT_EQ(sum.value(), xxh3(std::span(bytes).first(1000)));
    StreamingChecksum moved(std::move(sum));
    moved.update(std::span(bytes).subspan(1000));
    EXPECT_EQ(moved.value(), xxh3(bytes));
}

TEST(Checksum, SeesEveryFlippedBit) {
    auto bytes = random_bytes(100);
    const auto before = xxh3(bytes);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
        ASSERT_NE(xxh3(bytes), before);
        bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    }
}

TEST(Checksum, DependsOnTheSeed) {
    const auto bytes = random_bytes(33);
    EXPECT_EQ(xxh3(bytes, 0), xxh3(bytes));
    EXPECT_NE(xxh3(bytes, 1), xxh3(bytes));
}

}  // namespace
}  // namespace twinrun
