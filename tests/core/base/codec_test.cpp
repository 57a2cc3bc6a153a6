#include "base/codec.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/seed.hpp"

namespace twinrun {
namespace {

TEST(Codec, IsLittleEndian) {
    Encoder out;
    out.put(std::uint8_t{0x01});
    out.put(std::uint16_t{0x2345});
    out.put(std::uint32_t{0x6789ABCD});
    out.put(std::uint64_t{0x1122334455667788});
    out.put_text("ab");
    const unsigned char expected[] = {0x01, 0x45, 0x23, 0xCD, 0xAB, 0x89, 0x67, 0x88, 0x77, 0x66, 0x55,
                                      0x44, 0x33, 0x22, 0x11, 2,    0,    0,    0,    'a',  'b'};
    ASSERT_EQ(out.size(), sizeof expected);
    EXPECT_EQ(std::memcmp(out.bytes().data(), expected, sizeof expected), 0);
}

TEST(Codec, RoundTrip) {
    std::mt19937_64 random(test_seed(1));
    for (int round = 0; round < 200; ++round) {
        const std::uint64_t word = random();
        const std::string text(random() % 50, static_cast<char>(random()));
        Encoder out;
        out.put(static_cast<std::uint8_t>(word));
        out.put_i32(static_cast<std::int32_t>(word));
        out.put_text(text);
        out.put_i64(static_cast<std::int64_t>(word));
        out.put_f64(std::bit_cast<double>(word));  // any bits, NaN payloads included
        out.put(static_cast<std::uint16_t>(word));
        Decoder in(out.bytes());
        EXPECT_EQ(in.get<std::uint8_t>(), static_cast<std::uint8_t>(word));
        EXPECT_EQ(in.get_i32(), static_cast<std::int32_t>(word));
        EXPECT_EQ(in.get_text(50), text);
        EXPECT_EQ(in.get_i64(), static_cast<std::int64_t>(word));
        EXPECT_EQ(std::bit_cast<std::uint64_t>(in.get_f64()), word);
        EXPECT_EQ(in.get<std::uint16_t>(), static_cast<std::uint16_t>(word));
        EXPECT_FALSE(in.failed());
        EXPECT_EQ(in.remaining(), 0U);
    }
}

TEST(Codec, NeverReadsPastTheEnd) {
    Encoder out;
    out.put(std::uint32_t{7});
    out.put_text("some text");
    out.put(std::uint64_t{9});
    for (std::size_t size = 0; size < out.size(); ++size) {
        // A copy of exactly this size, so that a sanitizer sees a read past it.
        const std::vector<std::byte> cut(out.bytes().begin(),
                                         out.bytes().begin() + static_cast<std::ptrdiff_t>(size));
        Decoder in(cut);
        static_cast<void>(in.get<std::uint32_t>());
        static_cast<void>(in.get_text(100));
        static_cast<void>(in.get<std::uint64_t>());
        EXPECT_TRUE(in.failed()) << size;
    }
}

TEST(Codec, StaysFailedAndGivesZeros) {
    const std::vector<std::byte> bytes(5, std::byte{0xFF});
    Decoder in(bytes);
    EXPECT_EQ(in.get<std::uint64_t>(), 0U);
    EXPECT_EQ(in.get<std::uint8_t>(), 0U);  // though there would be bytes
    EXPECT_EQ(in.get_text(10), "");
    EXPECT_TRUE(in.failed());
    EXPECT_EQ(in.remaining(), 0U);
}

TEST(Codec, RefusesTextBeyondTheLimitOrTheInput) {
    Encoder out;
    out.put_text("12345");
    Decoder longer(out.bytes());
    EXPECT_EQ(longer.get_text(4), "");
    EXPECT_TRUE(longer.failed());
    Encoder hostile;
    hostile.put(std::numeric_limits<std::uint32_t>::max());
    Decoder in(hostile.bytes());
    EXPECT_EQ(in.get_text(std::numeric_limits<std::size_t>::max()), "");
    EXPECT_TRUE(in.failed());
}

TEST(Codec, SwapsBytes) {
    EXPECT_EQ(byte_swap(std::uint8_t{0x12}), 0x12);
    EXPECT_EQ(byte_swap(std::uint16_t{0x1234}), 0x3412);
    EXPECT_EQ(byte_swap(std::uint32_t{0x12345678}), 0x78563412U);
    EXPECT_EQ(byte_swap(std::uint64_t{0x0102030405060708}), 0x0807060504030201U);
}

}  // namespace
}  // namespace twinrun
