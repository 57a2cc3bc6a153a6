// What a device packs, the host unpacks: the same bytes, in the same order, however they were added.
#include "record/device_packer.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "record/compression.hpp"
#include "support/device.hpp"

namespace twinrun {
namespace {

constexpr std::uint32_t kChunk = 256;
constexpr std::uint32_t kBlock = 64U << 10;
constexpr std::uint64_t kBatch = std::uint64_t{1} << 20;

// Of every kind: zeros, few values, a repeated pattern, noise.
std::vector<std::byte> bytes_of(std::size_t size, unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(size);
    for (std::size_t at = 0; at < size;) {
        const std::size_t end = std::min<std::size_t>(size, at + 1 + random() % (3 * kBlock));
        const auto kind = random() % 4;
        for (; at < end; ++at) {
            const auto value = kind == 0   ? 0U
                               : kind == 1 ? static_cast<unsigned>(random() % 3)
                               : kind == 2 ? static_cast<unsigned>(at % 96)
                                           : static_cast<unsigned>(random());
            bytes[at] = static_cast<std::byte>(value);
        }
    }
    return bytes;
}

TEST(DevicePacker, GivesTheBytesBack) {
    TWR_TEST_DEVICE(device);
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "this build lacks zstd";
    auto made = DevicePacker::create(device, kBlock, kBatch);
    if (!made && made.error().code == ErrorCode::unsupported) GTEST_SKIP() << made.error().message;
    ASSERT_TRUE(made) << made.error().message;
    DevicePacker& packer = **made;
    auto stream = DeviceStream::create(device);
    ASSERT_TRUE(stream);
    std::mt19937_64 random(7);
    // Nothing; less than a block; a block; batches, and a rest that is no block.
    for (const std::size_t chunks : {0UL, 1UL, 200UL, 256UL, 257UL, 4096UL, 4097UL, 3UL * 4096 + 777}) {
        const std::vector<std::byte> bytes = bytes_of(chunks * kChunk, static_cast<unsigned>(chunks));
        const OnDevice there(device, std::span<const std::byte>(bytes));
        std::vector<std::byte> back;
        std::uint64_t packed = 0;
        bool whole = true;
        Compressor compressor;
        const DevicePacker::Take take = [&](std::span<const PackedBlock> blocks) -> Result<> {
            for (const PackedBlock& block : blocks) {
                EXPECT_TRUE(whole) << "a block behind the last one";
                whole = block.chunks * kChunk == kBlock;
                std::vector<std::byte> own(block.chunks * kChunk);
                packed += block.bytes.size();
                if (block.stored) {
                    EXPECT_EQ(block.bytes.size(), own.size());
                    own.assign(block.bytes.begin(), block.bytes.end());
                } else {
                    EXPECT_LT(block.bytes.size(), own.size());
                    const auto unpacked = compressor.unpack(block.bytes, own);
                    EXPECT_TRUE(unpacked) << unpacked.error().message;
                }
                back.insert(back.end(), own.begin(), own.end());
            }
            return success();
        };
        for (std::size_t done = 0; done < bytes.size();) {
            const auto to = packer.reserve(bytes.size() - done);
            ASSERT_TRUE(to) << to.error().message;
            ASSERT_GE(packer.room(), kChunk);
            const std::uint64_t some =
                std::min({bytes.size() - done, std::size_t{packer.room()}, (1 + random() % 2000) * kChunk});
            ASSERT_FALSE(
                device_runtime()->copy(device, *to, there.data() + done, some, stream->get()).failed);
            packer.added(some);
            done += some;
            if (packer.room() < kChunk) {
                ASSERT_TRUE(packer.pack(false, kChunk, *stream, take));
            }
        }
        const auto last = packer.pack(true, kChunk, *stream, take);
        ASSERT_TRUE(last) << last.error().message;
        EXPECT_TRUE(back == bytes) << chunks;
        if (chunks > 4096) {
            EXPECT_LT(packed, bytes.size());
        }
    }
    EXPECT_GE(packer.memory_bytes(), kBatch);
    packer.release();
    EXPECT_EQ(packer.memory_bytes(), 0U);
}

}  // namespace
}  // namespace twinrun
