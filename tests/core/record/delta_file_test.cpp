#include "record/delta_file.hpp"
#include "record/delta_format.hpp"
#include "record/delta_writer.hpp"

#include <gtest/gtest.h>

#include "base/checksum.hpp"
#include "support/faulty_file_system.hpp"
#include "support/record.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using testing::Fault;
using testing::FaultyFileSystem;
using testing::FreshFolder;
using testing::random_bytes;
using testing::read_file;
using testing::RecordBytes;
using testing::write_file;
using ChunkRun = Run;  // ::testing::Test has a member of that name

bool packs() { return codec_available(PayloadCodec::zstd); }

// A difference without a base: all of its image is payload.
Difference difference_of(std::uint64_t chunks, std::uint32_t chunk_bytes, std::uint32_t ordinal = 3) {
    Difference difference;
    difference.ordinal = ordinal;
    difference.directory.files = {{"data/field.bin", chunks * chunk_bytes}};
    difference.directory.segments = {{"field", 0, 0, chunks * chunk_bytes, 77}};
    if (chunks != 0) difference.runs = {{0, chunks, location(ordinal, 0), false}};
    return difference;
}

RecordBytes read_payload(const DifferenceFile& file) {
    Compressor compressor;
    BlockScratch scratch;
    RecordBytes all;
    for (std::size_t b = 0; b < file.difference().blocks.size(); ++b) {
        RecordBytes block(file.block_chunks(b) * file.difference().chunk_bytes);
        const auto read = file.read_block(b, compressor, scratch, block);
        EXPECT_TRUE(read.ok()) << read.error().message;
        all.insert(all.end(), block.begin(), block.end());
    }
    return all;
}

Result<DifferenceWriter::Written> write(FileSystem& system, const std::string& path,
                                        std::uint32_t chunk_bytes, const PayloadSettings& settings,
                                        std::span<const std::byte> payload, std::size_t part = 0) {
    std::filesystem::remove(path);  // of an earlier round
    TWR_TRY(const auto writer, DifferenceWriter::create(system, path, chunk_bytes, settings));
    if (part == 0) part = payload.size();
    for (std::size_t at = 0; at < payload.size(); at += part)
        TWR_CHECK(writer->add(payload.subspan(at, std::min(part, payload.size() - at)), {}, {}));
    return writer->finish(difference_of(payload.size() / chunk_bytes, chunk_bytes));
}

// Half of it can be packed.
RecordBytes mixed_bytes(std::mt19937_64& random, std::size_t size) {
    RecordBytes bytes = random_bytes(random, size);
    for (std::size_t at = 0; at < size; at += 8192)
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), std::min<std::size_t>(4096, size - at),
                    static_cast<std::byte>(at >> 13));
    return bytes;
}

TEST(DifferenceFile, RoundTrip) {
    FreshFolder folder;
    std::mt19937_64 random(test_seed(1));
    for (std::uint32_t chunk = kSmallestRecordChunk; chunk <= kLargestRecordChunk; chunk *= 2) {
        for (const PayloadCodec codec : {PayloadCodec::stored, PayloadCodec::zstd}) {
            if (!codec_available(codec)) continue;
            for (const std::uint32_t block : {0U, 1U, chunk * 3}) {
                for (const std::size_t chunks : {0U, 1U, 2U, 3U, 4U, 50U}) {
                    if (chunks == 50 && chunk > 4096) continue;
                    const RecordBytes payload = mixed_bytes(random, chunks * chunk);
                    PayloadSettings settings;
                    settings.codec = codec;
                    settings.block_bytes = block;
                    FileSystem& system = chunks == 1 ? posix_file_system() : testing::unsynced_file_system();
                    const auto written = write(system, folder / "d", chunk, settings, payload, chunk * 7);
                    ASSERT_TRUE(written.ok()) << written.error().message;
                    EXPECT_EQ(folder.names(), std::vector<std::string>{"d"});
                    const auto file = DifferenceFile::open(folder / "d");
                    ASSERT_TRUE(file.ok()) << file.error().message;
                    const Difference& difference = (*file)->difference();
                    const Difference wanted = difference_of(chunks, chunk);
                    EXPECT_EQ(difference.directory, wanted.directory);
                    EXPECT_EQ(difference.runs, wanted.runs);
                    EXPECT_EQ(difference.ordinal, 3U);
                    EXPECT_EQ(difference.base, kNoBase);
                    EXPECT_EQ(difference.chunk_bytes, chunk);
                    EXPECT_EQ(difference.payload_chunks, chunks);
                    EXPECT_FALSE(difference.partial());
                    EXPECT_EQ((*file)->bytes(), written->bytes);
                    EXPECT_EQ((*file)->header_checksum(), written->header_checksum);
                    EXPECT_EQ(read_payload(**file), payload);
                    std::uint64_t in_blocks = 0;
                    for (const PayloadBlock& part : difference.blocks)
                        in_blocks += part.bytes;
                    EXPECT_EQ(in_blocks, written->payload_bytes);
                    EXPECT_LE(in_blocks, payload.size());
                    EXPECT_EQ((*file)->position(location(3, 0)),
                              chunks == 0 ? std::nullopt : std::optional<std::uint64_t>(0));
                    EXPECT_EQ((*file)->position(location(3, chunks)), std::nullopt);
                    EXPECT_EQ((*file)->position(location(2, 0)), std::nullopt);
                }
            }
        }
    }
}

// f32 in [1, 2).
RecordBytes number_bytes(std::mt19937_64& random, std::size_t size) {
    std::vector<float> values(size / 4);
    for (float& value : values)
        value = 1.0F + static_cast<float>(random() >> 40) * 0x1p-24F;
    return testing::bytes_of(values);
}

// The first block of a group decides for the others, but not where they are of another kind.
TEST(DifferenceFile, NumbersAreKeptInPlanes) {
    if (!packs()) GTEST_SKIP() << "this build lacks zstd";
    FreshFolder folder;
    std::mt19937_64 random(test_seed(6));
    RecordBytes payload = number_bytes(random, 20 * kPackedBlockBytes);
    const RecordBytes noise = random_bytes(random, 512);
    for (std::size_t i = 0; i < 12 * kPackedBlockBytes; ++i)  // repeats: planes would tear it
        payload.push_back(noise[i % noise.size()]);
    PayloadSettings settings;
    settings.codec = PayloadCodec::zstd;
    settings.threads = 2;
    ASSERT_TRUE(write(testing::unsynced_file_system(), folder / "d", 64, settings, payload, 0).ok());
    EXPECT_EQ(read_file(folder / "d")[8], std::byte{4});  // the version: their signs are last
    const auto file = DifferenceFile::open(folder / "d");
    ASSERT_TRUE(file.ok()) << file.error().message;
    const auto& blocks = (*file)->difference().blocks;
    ASSERT_EQ(blocks.size(), 32U);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
        SCOPED_TRACE(b);
        EXPECT_EQ(blocks[b].codec, PayloadCodec::zstd);
        EXPECT_EQ(blocks[b].width, b < 20 ? 4 : 1);
        EXPECT_LT(blocks[b].bytes, b < 20 ? kPackedBlockBytes * 77 / 100 : 2000U);
    }
    EXPECT_EQ(read_payload(**file), payload);
}

// Weights of which a few elements change at random places: hardly a chunk is as it was, and the block is sparse after XOR.
RecordBytes weight_bytes(std::mt19937_64& random, std::size_t size) {
    std::normal_distribution<float> normal(0, 0.02F);
    std::vector<std::uint16_t> weights(size / 2);
    for (std::uint16_t& weight : weights)
        weight = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
    return testing::bytes_of(weights);
}
void change_elements(std::mt19937_64& random, RecordBytes& weights, std::uint64_t one_of) {
    for (std::size_t at = 0; at < weights.size(); at += 2) {
        if (random() % one_of == 0) weights[at] ^= static_cast<std::byte>(1 + random() % 255);
    }
}

TEST(DifferenceFile, ChangedElementsTakeATwentieth) {
    if (!packs()) GTEST_SKIP() << "a build without zstd";
    FreshFolder folder;
    std::mt19937_64 random(test_seed(8));
    const RecordBytes base = weight_bytes(random, 5U << 20);
    RecordBytes payload = base;
    change_elements(random, payload, 33);
    std::vector<Location> at;
    for (std::uint64_t i = 0; i < payload.size() / 256; ++i)
        at.push_back(location(2, i));
    PayloadSettings settings;
    settings.codec = PayloadCodec::zstd;
    settings.threads = 2;
    const auto kept = [&](std::uint32_t base_reads) {
        const std::vector<std::uint32_t> reads(at.size(), base_reads);
        auto writer = DifferenceWriter::create(testing::unsynced_file_system(),
                                               folder / std::to_string(base_reads), 256, settings);
        EXPECT_TRUE(writer.ok());
        EXPECT_TRUE((*writer)->add(payload, base, at, reads).ok());
        const auto written = (*writer)->finish(difference_of(at.size(), 256, 9));
        EXPECT_TRUE(written.ok());
        const auto file = DifferenceFile::open(folder / std::to_string(base_reads));
        EXPECT_TRUE(file.ok());
        bool all = true;
        for (std::size_t b = 0; b < (*file)->difference().blocks.size(); ++b) {
            all = all && (*file)->sparse(b);
            // What a reader of the block needs: its own bytes, and those of its bases.
            const std::uint64_t needs = (*writer)->block_reads()[b];
            const PayloadBlock& block = (*file)->difference().blocks[b];
            EXPECT_EQ(needs, divide_up(block.bytes, 512) + (block.xored ? base_reads : 0));
        }
        RecordBytes read = read_payload(**file);
        if (all) {
            for (std::size_t i = 0; i < read.size(); ++i)
                read[i] ^= base[i];
        }
        EXPECT_EQ(read, payload);
        return std::pair(all, written->bytes);
    };
    const auto [sparse, bytes] = kept(0);
    EXPECT_TRUE(sparse);
    EXPECT_LT(bytes, payload.size() / 20);
    // Where its bases need as much as it takes alone, and a little more, it is kept alone.
    EXPECT_TRUE(kept(256 * 62 / 100).first);
    const auto [chained, alone] = kept(256 * 2 * 68 / 100);
    EXPECT_FALSE(chained);
    EXPECT_GT(alone, payload.size() / 2);
}

TEST(DifferenceFile, IsTheSameForAnyThreadsAndParts) {
    FreshFolder folder;
    std::mt19937_64 random(test_seed(2));
    RecordBytes payload = mixed_bytes(random, 9U << 20);
    const RecordBytes numbers = number_bytes(random, 4U << 20);
    std::copy(numbers.begin(), numbers.end(), payload.begin() + (3U << 20));
    for (const PayloadCodec codec : {PayloadCodec::stored, PayloadCodec::zstd}) {
        if (!codec_available(codec)) continue;
        RecordBytes first;
        for (const int threads : {1, 3}) {
            for (const std::size_t part : {std::size_t{0}, std::size_t{1} << 20, std::size_t{3} << 16}) {
                PayloadSettings settings;
                settings.codec = codec;
                settings.threads = threads;
                ASSERT_TRUE(
                    write(testing::unsynced_file_system(), folder / "d", 256, settings, payload, part).ok());
                const RecordBytes bytes = read_file(folder / "d");
                if (first.empty()) first = bytes;
                ASSERT_EQ(bytes, first);
            }
        }
        const auto file = DifferenceFile::open(folder / "d");
        ASSERT_TRUE(file.ok());
        EXPECT_EQ(read_payload(**file), payload);
    }
}

// Kept tools have memory of the writers before, of finished and of abandoned ones.
TEST(DifferenceFile, ToolsServeOneWriterAfterTheOther) {
    FreshFolder folder;
    std::mt19937_64 random(test_seed(8));
    for (const PayloadCodec codec : {PayloadCodec::stored, PayloadCodec::zstd}) {
        if (!codec_available(codec)) continue;
        PayloadSettings settings;
        settings.codec = codec;
        settings.threads = 3;
        DifferenceTools tools(settings);
        for (int round = 0; round < 12; ++round) {
            const std::size_t chunks = random() % 3 == 0 ? random() % 50 : random() % (12U << 12);
            const RecordBytes payload = mixed_bytes(random, chunks * 256);
            RecordBytes base = payload;
            change_elements(random, base, 7);
            std::vector<Location> at(chunks, kNoLocation);
            for (std::size_t i = random() % 5; i < chunks; i += 1 + random() % 2)
                at[i] = location(1, i);
            const bool with_base = random() % 2 == 0;
            const bool abandoned = random() % 4 == 0;
            const std::size_t part = 256 * (1 + random() % (4U << 12));
            const auto made = [&](const std::string& name, DifferenceTools* with) {
                std::filesystem::remove(folder / name);
                auto writer = DifferenceWriter::create(testing::unsynced_file_system(), folder / name, 256,
                                                       settings, with);
                EXPECT_TRUE(writer.ok());
                const auto all = std::span<const std::byte>(payload);
                for (std::size_t first = 0; first < payload.size(); first += part) {
                    const std::size_t size = std::min(part, payload.size() - first);
                    const auto own = std::span<const std::byte>(base).subspan(first, size);
                    const auto places = std::span<const Location>(at).subspan(first / 256, size / 256);
                    const bool now = with_base && first / part % 3 != 1;
                    EXPECT_TRUE((*writer)
                                    ->add(all.subspan(first, size), now ? own : own.first(0),
                                          now ? places : places.first(0))
                                    .ok());
                }
                if (!abandoned) {
                    EXPECT_TRUE((*writer)->finish(difference_of(chunks, 256, 2)).ok());
                }
            };
            made("with", &tools);
            made("alone", nullptr);
            ASSERT_EQ(std::filesystem::exists(folder / "with"), !abandoned);
            if (!abandoned) {
                ASSERT_EQ(read_file(folder / "with"), read_file(folder / "alone"));
            }
        }
    }
}

// Also of a write that goes on while the next blocks are packed.
TEST(DifferenceFile, EveryErrorOfStorageIsTold) {
    std::mt19937_64 random(test_seed(9));
    const RecordBytes payload = random_bytes(random, 30U << 20);
    PayloadSettings settings;
    settings.threads = 3;
    std::size_t faults = 0;
    for (std::size_t at = 1;; ++at) {
        FreshFolder folder;
        testing::FaultyFileSystem system(testing::unsynced_file_system());
        system.inject(testing::Fault{at});
        const auto written = write(system, folder / "d", 256, settings, payload, 9U << 20);
        if (written.ok()) {
            EXPECT_GE(faults, 7U);  // create, four writes and more
            break;
        }
        ++faults;
        EXPECT_NE(written.error().message.find("injected fault"), std::string::npos);
        EXPECT_FALSE(std::filesystem::exists(folder / "d"));
        EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a file stays after fault " << at;
    }
}

TEST(DifferenceFile, BlocksAreKeptTheSmallestWay) {
    if (!packs()) GTEST_SKIP() << "a build without zstd";
    FreshFolder folder;
    std::mt19937_64 random(test_seed(3));
    constexpr std::uint32_t kChunk = 64;
    constexpr std::size_t kBlock = kChunk * 64;
    PayloadSettings settings;
    settings.codec = PayloadCodec::zstd;
    settings.block_bytes = kBlock;
    auto writer = DifferenceWriter::create(testing::unsynced_file_system(), folder / "d", kChunk, settings);
    ASSERT_TRUE(writer.ok());
    // As it is; packed; XORed and packed; with a base that is of no use; and one with no base, added before all others.
    const RecordBytes early = random_bytes(random, kBlock);
    const RecordBytes noise = random_bytes(random, kBlock);
    const RecordBytes base = random_bytes(random, kBlock);
    RecordBytes near = base;
    near[100] ^= std::byte{1};
    ASSERT_TRUE((*writer)->add(early, {}, {}).ok());
    RecordBytes payload;
    RecordBytes bases;
    std::vector<Location> at;
    const auto add = [&](const RecordBytes& bytes, std::uint32_t ordinal) {
        payload.insert(payload.end(), bytes.begin(), bytes.end());
        bases.insert(bases.end(), base.begin(), base.end());
        for (std::uint64_t i = 0; i < 64; ++i)
            at.push_back(location(ordinal, i));
    };
    add(noise, 1);
    add(RecordBytes(kBlock), 4);
    add(near, 2);
    ASSERT_TRUE((*writer)->add(payload, bases, at).ok());
    EXPECT_EQ((*writer)->chunks(), 256U);
    Difference difference = difference_of(256, kChunk, 9);
    ASSERT_TRUE((*writer)->finish(Difference(difference)).ok());
    EXPECT_EQ((*writer)->bases(), std::vector<std::uint32_t>{2});
    const auto file = DifferenceFile::open(folder / "d");
    ASSERT_TRUE(file.ok()) << file.error().message;
    const auto& blocks = (*file)->difference().blocks;
    ASSERT_EQ(blocks.size(), 4U);
    EXPECT_EQ(blocks[0].codec, PayloadCodec::stored);
    EXPECT_EQ(blocks[1].codec, PayloadCodec::stored);
    EXPECT_EQ(blocks[2].codec, PayloadCodec::zstd);
    EXPECT_FALSE(blocks[0].xored || blocks[1].xored || blocks[2].xored);
    EXPECT_EQ(blocks[3].codec, PayloadCodec::zstd);
    EXPECT_TRUE(blocks[3].xored);
    EXPECT_EQ((*file)->difference().bases, (std::vector<ChunkRun>{{192, 64, location(2, 0), false}}));
    RecordBytes kept = read_payload(**file);
    ASSERT_EQ(kept.size(), 256U * kChunk);
    for (std::size_t i = 0; i < kBlock; ++i)
        kept[3 * kBlock + i] ^= base[i];
    RecordBytes wanted = early;
    wanted.insert(wanted.end(), payload.begin(), payload.end());
    EXPECT_EQ(kept, wanted);
}

TEST(DifferenceFile, LeftoversOfSeveralDifferences) {
    FreshFolder folder;
    std::mt19937_64 random(test_seed(4));
    constexpr std::uint32_t kChunk = 32;
    const RecordBytes payload = random_bytes(random, kChunk * 10);
    PayloadSettings settings;
    settings.block_bytes = kChunk * 3;
    auto writer = DifferenceWriter::create(testing::unsynced_file_system(), folder / "d", kChunk, settings);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->add(payload, {}, {}).ok());
    Difference difference;
    difference.ordinal = 8;
    constexpr std::uint64_t kFar = std::uint64_t{1} << 35;
    difference.kept = {{1, 4, 3}, {1, 9, 1}, {5, kFar, 4}, {8, 0, 2}};
    ASSERT_TRUE((*writer)->finish(Difference(difference)).ok());
    const auto file = DifferenceFile::open(folder / "d");
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_TRUE((*file)->difference().partial());
    EXPECT_EQ((*file)->difference().kept, difference.kept);
    std::uint64_t position = 0;
    for (const auto& kept : difference.kept) {
        EXPECT_EQ((*file)->position(location(kept.ordinal, kept.first + kept.count)), std::nullopt);
        if (kept.first != 0) {
            EXPECT_EQ((*file)->position(location(kept.ordinal, kept.first - 1)), std::nullopt);
        }
        for (std::uint64_t i = 0; i < kept.count; ++i)
            EXPECT_EQ((*file)->position(location(kept.ordinal, kept.first + i)), position++);
    }
    EXPECT_EQ((*file)->position(0), std::nullopt);
    EXPECT_EQ(read_payload(**file), payload);
}

TEST(DifferenceFile, OneThatIsAbandonedIsRemoved) {
    FreshFolder folder;
    {
        auto writer = DifferenceWriter::create(testing::unsynced_file_system(), folder / "d", 32, {});
        ASSERT_TRUE(writer.ok());
        ASSERT_TRUE((*writer)->add(RecordBytes(64), {}, {}).ok());
        const std::vector<std::string> names = folder.names();
        ASSERT_EQ(names.size(), 1U);
        EXPECT_TRUE(names[0].starts_with("d.") && names[0].ends_with(".tmp")) << names[0];
    }
    EXPECT_TRUE(folder.names().empty());
    {  // what could not be read again is not finished
        auto writer = DifferenceWriter::create(testing::unsynced_file_system(), folder / "d", 32, {});
        ASSERT_TRUE(writer.ok());
        Difference difference;
        difference.directory.files = {{"../out", 1}};
        EXPECT_FALSE((*writer)->finish(Difference(difference)).ok());
    }
    EXPECT_TRUE(folder.names().empty());
}

TEST(DifferenceFaults, EveryOperationThatFailsLeavesNothing) {
    std::mt19937_64 random(test_seed(5));
    const RecordBytes payload = random_bytes(random, 9U << 20);  // written in more than one piece
    for (const PayloadCodec codec : {PayloadCodec::stored, PayloadCodec::zstd}) {
        if (!codec_available(codec)) continue;
        PayloadSettings settings;
        settings.codec = codec;
        std::size_t operations = 0;
        {
            FreshFolder folder;
            FaultyFileSystem system(testing::unsynced_file_system());
            ASSERT_TRUE(write(system, folder / "d", 4096, settings, payload, 1U << 20).ok());
            operations = system.operations();
            // create, a piece for each add(), tail, header, sync, close, rename
            ASSERT_EQ(operations, 15U);
        }
        for (const bool dead : {false, true}) {
            for (std::size_t at = 1; at <= operations; ++at) {
                SCOPED_TRACE("operation " + std::to_string(at));
                FreshFolder folder;
                FaultyFileSystem system(testing::unsynced_file_system());
                Fault fault;
                fault.at = at;
                fault.error = {ErrorCode::no_space, "injected fault"};
                fault.written_first = at * 1000;
                fault.dead_after = dead;
                system.inject(fault);
                const auto written = write(system, folder / "d", 4096, settings, payload, 1U << 20);
                ASSERT_FALSE(written.ok());
                EXPECT_EQ(written.error().code, ErrorCode::no_space);
                const auto names = folder.names();
                EXPECT_EQ(std::count(names.begin(), names.end(), "d"), 0);
                if (!dead) {
                    EXPECT_TRUE(names.empty());
                }
            }
        }
    }
}

TEST(DifferenceFaults, APowerCutLeavesAWholeFileOrNone) {
    std::mt19937_64 random(test_seed(6));
    const RecordBytes payload = random_bytes(random, 100'000 / 64 * 64);
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        FreshFolder folder;
        FaultyFileSystem system;
        ASSERT_TRUE(system.make_folders(folder / "sub").ok());
        ASSERT_TRUE(write(system, folder / "sub/d", 64, {}, payload).ok());
        if (seed % 3 == 0) {
            ASSERT_TRUE(system.sync_folder(folder / "sub").ok());
        }
        system.power_cut(seed);
        const bool there = std::filesystem::exists(folder / "sub/d");
        if (seed % 3 == 0) {
            EXPECT_TRUE(there);
        }
        if (!there) continue;
        const auto file = DifferenceFile::open(folder / "sub/d");
        ASSERT_TRUE(file.ok()) << file.error().message;
        EXPECT_EQ(read_payload(**file), payload);
    }
}

TEST(DifferenceDamage, IsFoundAndNamed) {
    FreshFolder folder;
    std::mt19937_64 random(test_seed(7));
    const RecordBytes payload = random_bytes(random, 32 * 8);
    PayloadSettings settings;
    settings.block_bytes = 64;
    ASSERT_TRUE(write(testing::unsynced_file_system(), folder / "d", 32, settings, payload).ok());
    const RecordBytes good = read_file(folder / "d");
    const std::string path = folder / "bad";
    const auto expect_damaged = [&](const RecordBytes& bytes) {
        write_file(path, bytes);
        const auto file = DifferenceFile::open(path);
        ASSERT_FALSE(file.ok());
        EXPECT_EQ(file.error().code, ErrorCode::damaged) << file.error().message;
        EXPECT_NE(file.error().message.find(path), std::string::npos) << file.error().message;
    };
    for (std::size_t size = 0; size < good.size(); ++size)
        expect_damaged({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
    RecordBytes bytes = good;
    bytes.push_back(std::byte{0});
    expect_damaged(bytes);
    for (std::size_t at = 0; at < good.size(); ++at) {
        if (at >= kDifferenceHeaderBytes && at < kDifferenceHeaderBytes + payload.size()) continue;
        bytes = good;
        bytes[at] ^= static_cast<std::byte>(1U << (at % 8));
        expect_damaged(bytes);
    }
    // A block is read on its own, and checked on its own.
    for (std::size_t at = 0; at < payload.size(); at += 5) {
        bytes = good;
        bytes[kDifferenceHeaderBytes + at] ^= std::byte{4};
        write_file(path, bytes);
        const auto file = DifferenceFile::open(path);
        ASSERT_TRUE(file.ok());
        Compressor compressor;
        BlockScratch scratch;
        for (std::size_t b = 0; b < 4; ++b) {
            RecordBytes block(64);
            const auto read = (*file)->read_block(b, compressor, scratch, block);
            EXPECT_EQ(read.ok(), b != at / 64);
            if (read.ok()) continue;
            EXPECT_EQ(read.error().code, ErrorCode::damaged);
            EXPECT_NE(read.error().message.find(path), std::string::npos);
        }
    }
}

TEST(DifferenceDamage, OtherVersions) {
    FreshFolder folder;
    ASSERT_TRUE(write(testing::unsynced_file_system(), folder / "d", 32, {}, RecordBytes(64)).ok());
    RecordBytes bytes = read_file(folder / "d");
    const auto with_version = [&](std::byte version) {
        bytes[8] = version;
        const std::uint64_t seal = xxh3(std::span(bytes).first(kDifferenceHeaderBytes - 8));
        for (unsigned i = 0; i < 8; ++i)
            bytes[kDifferenceHeaderBytes - 8 + i] = static_cast<std::byte>(seal >> (8 * i));
        write_file(folder / "d", bytes);
        return DifferenceFile::open(folder / "d");
    };
    EXPECT_TRUE(with_version(std::byte{1}).ok());
    const auto newer = with_version(std::byte{5});
    ASSERT_FALSE(newer.ok());
    EXPECT_EQ(newer.error().code, ErrorCode::unsupported);
    EXPECT_NE(newer.error().message.find("newer twinrun"), std::string::npos);
    const auto none = with_version(std::byte{0});
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::damaged);
}

TEST(DifferenceDamage, NoFileIsNotFound) {
    FreshFolder folder;
    const auto file = DifferenceFile::open(folder / "none");
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::not_found);
    EXPECT_NE(file.error().message.find(folder / "none"), std::string::npos);
}

// What a header and an index say, in all their contradictions: through the decoders, sealed as they should be.
TEST(DifferenceTail, ContradictionsAreDamaged) {
    Difference good = difference_of(5, 32);
    good.method = RecordMethod::list;
    good.payload_chunks = 4;
    good.block_chunks = 3;
    good.chunk_bytes = 32;
    good.base = 1;
    good.runs = {{0, 4, location(3, 0), false}, {4, 1, location(2, 7), false}};
    good.blocks = {{128, 96, PayloadCodec::stored, 1, false, 1}, {224, 20, PayloadCodec::zstd, 1, true, 2}};
    good.bases = {{3, 1, location(2, 1), false}};
    const auto decode = [](const Difference& difference) -> Result<Difference> {
        const auto tail = encode_difference_tail(difference);
        std::uint64_t offset = kDifferenceHeaderBytes;
        for (const PayloadBlock& block : difference.blocks)
            offset += block.bytes;
        const auto header = encode_difference_header(difference, tail, offset, tail.size(), false);
        TWR_TRY(const DifferenceHeader decoded, decode_difference_header(header, offset + tail.size()));
        return decode_difference_tail(decoded, tail);
    };
    const auto back = decode(good);
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(back->directory, good.directory);
    EXPECT_EQ(back->bases, good.bases);
    EXPECT_EQ(back->blocks.size(), 2U);
    EXPECT_EQ(back->blocks[1].offset, 224U);
    EXPECT_TRUE(back->blocks[1].xored);
    const auto refused = [&](auto change) {
        Difference bad = good;
        change(bad);
        const auto decoded = decode(bad);
        return !decoded.ok() && decoded.error().code == ErrorCode::damaged;
    };
    EXPECT_TRUE(refused([](Difference& d) { d.base = 3; }));
    EXPECT_TRUE(refused([](Difference& d) {
        d.base = kNoBase;
        d.runs.pop_back();
    }));
    EXPECT_FALSE(refused([](Difference& d) { d.runs.pop_back(); }));
    EXPECT_TRUE(refused([](Difference& d) { d.ordinal = kMostOrdinals + 1; }));
    EXPECT_TRUE(refused([](Difference& d) { d.payload_chunks = 5; }));
    EXPECT_TRUE(refused([](Difference& d) { d.block_chunks = 4; }));
    EXPECT_TRUE(refused([](Difference& d) { d.block_chunks = 0; }));
    EXPECT_TRUE(refused([](Difference& d) { d.block_chunks = (16U << 20) / 32 + 1; }));
    EXPECT_TRUE(refused([](Difference& d) { d.blocks[0].bytes = 95; }));
    EXPECT_TRUE(refused([](Difference& d) { d.blocks.pop_back(); }));
    EXPECT_TRUE(refused([](Difference& d) { d.bases[0].source = location(3, 0); }));
    EXPECT_TRUE(refused([](Difference& d) { d.bases[0].begin = 4; }));
    EXPECT_TRUE(refused([](Difference& d) { d.directory.segments[0].bytes = 32 * 6; }));
    EXPECT_TRUE(refused([](Difference& d) { d.directory.segments[0].file = 1; }));
    EXPECT_TRUE(refused([](Difference& d) { d.directory.files[0].name = "/etc/passwd"; }));
    EXPECT_TRUE(refused([](Difference& d) { d.kept = {{3, 0, 4}}; }));  // and an image
    // Each way to keep a block needs its version, which is the lowest that has it.
    for (unsigned coding = 1; coding <= 10; ++coding) {
        SCOPED_TRACE(coding);
        Difference other = good;
        if (coding > 1) {
            other.blocks[1].width = static_cast<std::uint8_t>(2U << (coding - 2) % 3);
            other.blocks[1].form = static_cast<BlockForm>((coding - 2) / 3);
        }
        const auto again = decode(other);
        ASSERT_TRUE(again.ok()) << again.error().message;
        EXPECT_EQ(again->blocks[1].width, other.blocks[1].width);
        EXPECT_EQ(again->blocks[1].form, other.blocks[1].form);
        const auto tail = encode_difference_tail(other);
        const auto header = encode_difference_header(other, tail, 244, tail.size(), false);
        auto said = decode_difference_header(header, 244 + tail.size());
        ASSERT_TRUE(said.ok());
        EXPECT_EQ(said->version, coding < 2 ? 1U : coding < 5 ? 3U : 4U);
        said->version = std::min(said->version, 3U);
        EXPECT_EQ(decode_difference_tail(*said, tail).ok(), coding < 5);
    }
    const auto leftovers = [&](const std::vector<Difference::Kept>& kept) {
        Difference d = good;
        d.directory = {};
        d.runs.clear();
        d.base = kNoBase;
        d.kept = kept;
        return decode(d).ok();
    };
    EXPECT_TRUE(leftovers({{3, 0, 4}}));
    EXPECT_TRUE(leftovers({{0, 5, 2}, {1, 0, 2}}));
    EXPECT_FALSE(leftovers({{1, 0, 2}, {0, 5, 2}}));
    EXPECT_FALSE(leftovers({{1, 0, 2}, {1, 1, 2}}));
    EXPECT_FALSE(leftovers({{1, 0, 3}}));
    EXPECT_FALSE(leftovers({{1, 0, 4}, {1, 4, 0}}));
    EXPECT_FALSE(leftovers({{4, 0, 4}}));
    EXPECT_FALSE(leftovers({{1, kMostPayloadChunks - 3, 4}}));
    EXPECT_FALSE(leftovers({{1, ~std::uint64_t{0}, 4}}));
}

}  // namespace
}  // namespace twinrun
