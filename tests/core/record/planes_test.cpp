#include "record/planes.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "support/record.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::random_bytes;
using testing::RecordBytes;

// Numbers that are alike in their exponents and differ in all other bits.
RecordBytes numbers(std::mt19937_64& random, std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values)
        value = 1.0F + static_cast<float>(random() >> 40) * 0x1p-24F;
    return testing::bytes_of(values);
}

std::vector<PlaneItems> all_items() {
    std::vector<PlaneItems> all;
    for (const unsigned width : kPlaneWidths) {
        all.push_back({width, false});
        all.push_back({width, true});
    }
    return all;
}

bool bit_of(std::byte byte, unsigned bit) { return (std::to_integer<unsigned>(byte) >> bit & 1U) != 0; }

TEST(Planes, EachHasOneByteOfEachItem) {
    std::mt19937_64 random(test_seed(211));
    for (const PlaneItems kind : all_items()) {
        const unsigned width = kind.width;
        for (std::size_t items = 0; items < 150; ++items) {
            const RecordBytes from = random_bytes(random, items * width);
            RecordBytes split(from.size(), std::byte{0xEE});
            split_planes(from, kind, split.data());
            for (std::size_t item = 0; item < items; ++item) {
                for (unsigned bit = 0; bit < 8 * width; ++bit) {
                    const unsigned place = kind.sign_last ? (bit + 1) % (8 * width) : bit;
                    ASSERT_EQ(bit_of(split[place / 8 * items + item], place % 8),
                              bit_of(from[item * width + bit / 8], bit % 8));
                }
            }
            RecordBytes back(from.size(), std::byte{0xEE});
            join_planes(split, kind, back.data());
            ASSERT_EQ(back, from);
        }
    }
}

TEST(Planes, ComeBackAsTheyWere) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    std::mt19937_64 random(test_seed(223));
    Compressor compressor;
    std::vector<std::byte> scratch;
    for (const PlaneItems items : all_items()) {
        for (const std::size_t size : {0U, 8U, 32U, 1000U * 8, 131072U}) {
            for (int kind = 0; kind < 6; ++kind) {
                const RecordBytes from = kind % 3 == 0   ? random_bytes(random, size)
                                         : kind % 3 == 1 ? RecordBytes(size)
                                                         : numbers(random, size / 4);
                PlaneCoders coders{};
                if (kind > 2) coders.fill(random() % 2 == 0 ? PlaneCoder::literals : PlaneCoder::kept);
                RecordBytes packed(size + 4 * items.width);
                const std::size_t used = pack_planes(compressor, from, items, 1, coders, scratch, packed);
                ASSERT_NE(used, 0U);
                packed.resize(used);
                RecordBytes back(size, std::byte{0xEE});
                ASSERT_TRUE(unpack_planes(compressor, packed, items, scratch, back).ok());
                ASSERT_EQ(back, from);
                // A byte less does not do, neither to pack nor to unpack.
                EXPECT_FALSE(
                    unpack_planes(compressor, std::span(packed).first(used - 1), items, scratch, back).ok());
                RecordBytes less(used - 1);
                EXPECT_EQ(pack_planes(compressor, from, items, 1, coders, scratch, less), 0U);
                packed.push_back({});
                EXPECT_FALSE(unpack_planes(compressor, packed, items, scratch, back).ok());
            }
        }
    }
}

// What they are for: the exponents of numbers pack, their noise does not, and neither hides the other.
TEST(Planes, PackNumbersThatNothingElsePacks) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    std::mt19937_64 random(test_seed(227));
    const RecordBytes from = numbers(random, 32768);
    Compressor compressor;
    std::vector<std::byte> scratch;
    RecordBytes to(from.size());
    const std::size_t plain = compressor.pack(from, to, 1);
    PlaneCoders coders{};
    const std::size_t planes = pack_planes(compressor, from, {4, false}, 1, coders, scratch, to);
    ASSERT_NE(planes, 0U);
    EXPECT_LT(planes, from.size() * 76 / 100);
    EXPECT_TRUE(plain == 0 || planes < plain);
    // What was found to be noise is noise: all but the exponents' plane.
    EXPECT_EQ(coders[0], PlaneCoder::kept);
    EXPECT_NE(coders[3], PlaneCoder::kept);
}

// Exponents of bf16 weights and their signs hide each other.
TEST(Planes, WithTheSignLastPackWeightsBetter) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    std::mt19937_64 random(test_seed(233));
    std::normal_distribution<float> normal(0, 0.02F);
    std::vector<std::uint16_t> weights(65536);
    for (std::uint16_t& weight : weights)
        weight = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
    const RecordBytes from = testing::bytes_of(weights);
    Compressor compressor;
    std::vector<std::byte> scratch;
    RecordBytes to(from.size());
    PlaneCoders coders{};
    const std::size_t first = pack_planes(compressor, from, {2, false}, 1, coders, scratch, to);
    coders = {};
    const std::size_t last = pack_planes(compressor, from, {2, true}, 1, coders, scratch, to);
    ASSERT_NE(last, 0U);
    EXPECT_LT(last, from.size() * 67 / 100);
    EXPECT_LT(last, first - first / 128);
    EXPECT_EQ(coders[1], PlaneCoder::literals);  // no search finds anything in exponents
}

TEST(Planes, DamageIsAnError) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    std::mt19937_64 random(test_seed(229));
    Compressor compressor;
    std::vector<std::byte> scratch;
    const RecordBytes from = numbers(random, 64);
    constexpr PlaneItems kItems{4, false};
    RecordBytes packed(from.size() + 16);
    PlaneCoders coders{};
    packed.resize(pack_planes(compressor, from, kItems, 1, coders, scratch, packed));
    RecordBytes back(from.size());
    for (int round = 0; round < 3000; ++round) {
        RecordBytes bad = packed;
        for (std::uint64_t i = 0, n = 1 + random() % 3; i < n; ++i)
            bad[random() % (round % 2 == 0 ? 16 : bad.size())] = static_cast<std::byte>(random());
        const auto read = unpack_planes(compressor, bad, kItems, scratch, back);
        if (!read.ok()) {
            ASSERT_EQ(read.error().code, ErrorCode::damaged);
        }
    }
    RecordBytes other(from.size() + 4);  // another size than the planes'
    EXPECT_FALSE(unpack_planes(compressor, packed, kItems, scratch, other).ok());
    EXPECT_FALSE(unpack_planes(compressor, packed, kItems, scratch, std::span(other).first(6)).ok());
    EXPECT_FALSE(unpack_planes(compressor, {}, kItems, scratch, back).ok());
}

}  // namespace
}  // namespace twinrun
