// Steps of a record into device memory.
#include "restore/device_restore.hpp"

#include "support/device.hpp"
#include "support/record.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using testing::FolderRecord;
using testing::FreshFolder;
using testing::RandomHistory;
using testing::TestImage;

TEST(DeviceRestore, EqualsTheHost) {
    TWR_TEST_DEVICE(device);
    const std::uint32_t chunks[] = {32, 64, 128, 256, 4096, 65536};
    for (int round = 0; round < test_rounds(12); ++round) {
        const FreshFolder folder;
        DedupOptions options;
        options.chunk_bytes = chunks[static_cast<std::size_t>(round) % std::size(chunks)];
        options.keep_base = options.give_base = round % 3 == 0;
        PayloadSettings payload;
        if (round % 3 != 1 && codec_available(PayloadCodec::zstd)) payload.codec = PayloadCodec::zstd;
        FolderRecord record(folder.path(), options, payload);
        RandomHistory history(static_cast<std::uint64_t>(round), options.chunk_bytes);
        for (int step = 0; step < 5; ++step)
            ASSERT_TRUE(record.add(history.next()).ok());
        for (std::uint32_t ordinal = 0; ordinal <= record.last(); ++ordinal) {
            const auto wanted = record.restore(ordinal);
            ASSERT_TRUE(wanted.ok()) << wanted.error().message;
            const auto map = record.chain().map(ordinal);
            ASSERT_TRUE(map.ok()) << map.error().message;
            for (std::size_t s = 0; s < wanted->size(); ++s) {
                const auto& bytes = (*wanted)[s].bytes;
                const OnDevice there(device, bytes.size(), (s + ordinal) % 3);
                const auto read =
                    read_segment_to_device(record.chain(), *map, s, device, there.data(), nullptr);
                ASSERT_TRUE(read.ok()) << read.error().message;
                ASSERT_EQ(there.values<std::byte>(), bytes);
            }
        }
    }
}

TEST(DeviceRestore, DamageIsFoundFirst) {
    TWR_TEST_DEVICE(device);
    const FreshFolder folder;
    FolderRecord record(folder.path(), {});
    RandomHistory history(7, 256);
    TestImage image = history.next();
    image.push_back({"some", testing::random_bytes(history.random(), 10'000), 0, {}, DType::u8});
    ASSERT_TRUE(record.add(image).ok());
    const auto map = record.chain().map(0);
    ASSERT_TRUE(map.ok());
    const auto number = static_cast<std::size_t>(map->find("some") - map->directory.segments.data());
    const OnDevice there(device, 10'000);
    // The chain may have the file open; its blocks are read each time.
    const auto& blocks = record.chain().open(0).value()->difference().blocks;
    for (const PayloadBlock& block : blocks)
        testing::flip_bits(record.path(0), block.offset, std::byte{1});
    const auto read = read_segment_to_device(record.chain(), *map, number, device, there.data(), nullptr);
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::damaged);
    EXPECT_EQ(there.values<std::byte>(), std::vector<std::byte>(10'000, std::byte{0xA5}));
}

}  // namespace
}  // namespace twinrun
