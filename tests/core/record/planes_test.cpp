#include "record/planes.hpp"

#include <gtest/gtest.h>

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

TEST(Planes, EachHasOneByteOfEachItem) {
    std::mt19937_64 random(test_seed(211));
    for (const unsigned width : kPlaneWidths) {
        for (std::size_t items = 0; items < 150; ++items) {
            const RecordBytes from = random_bytes(random, items * width);
            RecordBytes split(from.size(), std::byte{0xEE});
            split_planes(from, width, split.data());
            for (std::size_t item = 0; item < items; ++item) {
                for (unsigned plane = 0; plane < width; ++plane)
                    ASSERT_EQ(split[plane * items + item], from[item * width + plane]);
            }
            RecordBytes back(from.size(), std::byte{0xEE});
            join_planes(split, width, back.data());
            ASSERT_EQ(back, from);
        }
    }
}

TEST(Planes, ComeBackAsTheyWere) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    std::mt19937_64 random(test_seed(223));
    Compressor compressor;
    std::vector<std::byte> scratch;
    for (const unsigned width : kPlaneWidths) {
        for (const std::size_t size : {0U, 8U, 32U, 1000U * 8, 131072U}) {
            for (int kind = 0; kind < 3; ++kind) {
                const RecordBytes from = kind == 0   ? random_bytes(random, size)
                                         : kind == 1 ? RecordBytes(size)
                                                     : numbers(random, size / 4);
                RecordBytes packed(size + 4 * width);
                const std::size_t used = pack_planes(compressor, from, width, 1, scratch, packed);
                ASSERT_NE(used, 0U);
                packed.resize(used);
                RecordBytes back(size, std::byte{0xEE});
                ASSERT_TRUE(unpack_planes(compressor, packed, width, scratch, back).ok());
                ASSERT_EQ(back, from);
                // A byte less does not do, neither to pack nor to unpack.
                EXPECT_EQ(pack_planes(compressor, from, width, 1, scratch, std::span(packed).first(used - 1)),
                          0U);
                const auto cut =
                    unpack_planes(compressor, std::span(packed).first(used - 1), width, scratch, back);
                EXPECT_FALSE(cut.ok());
                packed.push_back({});
                EXPECT_FALSE(unpack_planes(compressor, packed, width, scratch, back).ok());
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
    const std::size_t planes = pack_planes(compressor, from, 4, 1, scratch, to);
    ASSERT_NE(planes, 0U);
    EXPECT_LT(planes, from.size() * 76 / 100);
    EXPECT_TRUE(plain == 0 || planes < plain);
}

TEST(Planes, DamageIsAnError) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    std::mt19937_64 random(test_seed(229));
    Compressor compressor;
    std::vector<std::byte> scratch;
    const RecordBytes from = numbers(random, 64);
    RecordBytes packed(from.size() + 16);
    packed.resize(pack_planes(compressor, from, 4, 1, scratch, packed));
    RecordBytes back(from.size());
    for (int round = 0; round < 3000; ++round) {
        RecordBytes bad = packed;
        for (std::uint64_t i = 0, n = 1 + random() % 3; i < n; ++i)
            bad[random() % (round % 2 == 0 ? 16 : bad.size())] = static_cast<std::byte>(random());
        const auto read = unpack_planes(compressor, bad, 4, scratch, back);
        if (!read.ok()) {
            ASSERT_EQ(read.error().code, ErrorCode::damaged);
        }
    }
    RecordBytes other(from.size() + 4);  // another size than the planes'
    EXPECT_FALSE(unpack_planes(compressor, packed, 4, scratch, other).ok());
    EXPECT_FALSE(unpack_planes(compressor, packed, 4, scratch, std::span(other).first(6)).ok());
    EXPECT_FALSE(unpack_planes(compressor, {}, 4, scratch, back).ok());
}

}  // namespace
}  // namespace twinrun
