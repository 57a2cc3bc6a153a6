#include "record/compression.hpp"

#include <gtest/gtest.h>

#include "support/record.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::RecordBytes;

TEST(Compression, RoundTrip) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    Compressor compressor;
    std::mt19937_64 random(test_seed(1));
    for (const std::size_t size : {1U, 100U, 4096U, 200'000U}) {
        RecordBytes bytes = testing::random_bytes(random, size / 2);
        bytes.resize(size, std::byte{3});
        RecordBytes packed(size + 1000);
        const std::size_t n = compressor.pack(bytes, packed, 1);
        ASSERT_NE(n, 0U);
        packed.resize(n);
        RecordBytes back(size);
        ASSERT_TRUE(compressor.unpack(packed, back).ok());
        EXPECT_EQ(back, bytes);
        // Into another size, or of other bytes.
        RecordBytes more(size + 1);
        EXPECT_FALSE(compressor.unpack(packed, more).ok());
        if (size > 1) {
            EXPECT_FALSE(compressor.unpack(packed, std::span(back).first(size - 1)).ok());
        }
        const auto cut = compressor.unpack(std::span(packed).first(n - 1), back);
        ASSERT_FALSE(cut.ok());
        EXPECT_EQ(cut.error().code, ErrorCode::damaged);
        const auto no_frame = compressor.unpack(bytes, back);
        ASSERT_FALSE(no_frame.ok());
        EXPECT_EQ(no_frame.error().code, ErrorCode::damaged);
        ASSERT_TRUE(compressor.unpack(packed, back).ok());  // an error leaves it of use
    }
}

TEST(Compression, ThatDoesNotFitIsNone) {
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    Compressor compressor;
    std::mt19937_64 random(test_seed(2));
    const RecordBytes bytes = testing::random_bytes(random, 4096);
    RecordBytes packed(4095);
    EXPECT_EQ(compressor.pack(bytes, packed, 1), 0U);
    EXPECT_EQ(compressor.pack(bytes, {}, 1), 0U);
    EXPECT_NE(compressor.pack(RecordBytes(4096), packed, 1), 0U);
}

TEST(Compression, StoredIsAlwaysThere) { EXPECT_TRUE(codec_available(PayloadCodec::stored)); }

}  // namespace
}  // namespace twinrun
