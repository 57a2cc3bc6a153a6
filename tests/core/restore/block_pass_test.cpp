#include "restore/block_pass.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "support/record.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using testing::FolderRecord;
using testing::FreshFolder;
using testing::random_bytes;
using testing::RecordBytes;

constexpr std::uint32_t kBytesEach = 1024;
constexpr std::uint64_t kOutputChunks = 6000;  // some shares of what is XORed, and many stripes
constexpr const char* kNoRoom = "no memory";

// Differences whose blocks are kept as they are, packed, and as few elements; and what each block has.
class BlockPassTest : public ::testing::Test {
   public:
    void SetUp() override {
        if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
        DedupOptions options;
        options.method = RecordMethod::runs;
        options.chunk_bytes = kBytesEach;
        options.keep_base = options.give_base = true;
        PayloadSettings settings;
        settings.codec = PayloadCodec::zstd;
        settings.block_bytes = kBytesEach * 64;
        FolderRecord record(folder_.path(), options, settings, 2);
        record.deepest = 8;
        RecordBytes image = random_bytes(random_, kBytesEach * 1024);
        for (std::size_t i = image.size() / 2; i < image.size(); i += 2)
            image[i] = std::byte{7};  // what can be packed
        for (std::uint32_t step = 0; step < 5; ++step) {
            const auto added = record.add({{"x", image}});
            ASSERT_TRUE(added.ok()) << added.error().message;
            for (std::size_t at = 0; at < image.size(); at += 1 + random_() % 60)
                image[at] ^= static_cast<std::byte>(1 + random_() % 255);
        }
        for (std::uint32_t step = 0; step < 5; ++step) {
            auto file = DifferenceFile::open({folder_.path() + "/" + std::to_string(step) + ".diff"});
            ASSERT_TRUE(file.ok()) << file.error().message;
            ReadScratch scratch;
            auto& of_file = content_.emplace_back();
            for (std::size_t b = 0; b < (*file)->difference().blocks.size(); ++b) {
                of_file.emplace_back((*file)->block_chunks(b) * kBytesEach);
                ASSERT_TRUE((*file)->read_block(b, scratch.compressor, scratch.block, of_file.back()).ok());
                sparse_ += (*file)->sparse(b) ? 1 : 0;
            }
            files_.push_back(*file);
        }
        ASSERT_GT(sparse_, 20U);
        ASSERT_LT(sparse_, content_[0].size() * 5);
    }

   protected:
    struct Part {
        std::size_t file;
        std::size_t block;
        std::uint64_t first;
        std::uint64_t count;
        std::uint64_t to;
        bool repeat;
        bool mix;
    };
    // A part of a random block, whose chunks come to `to` and behind it: at most `most`.
    Part random_part(std::uint64_t to, std::uint64_t most, bool mix) {
        Part part{};
        part.file = random_() % files_.size();
        part.block = random_() % content_[part.file].size();
        const std::uint64_t chunks = content_[part.file][part.block].size() / kBytesEach;
        part.first = random_() % 2 == 0 ? 0 : random_() % chunks;
        part.repeat = random_() % 6 == 0;
        const std::uint64_t room = part.repeat ? most : std::min(most, chunks - part.first);
        part.count = random_() % 3 == 0 ? room : 1 + random_() % room;
        part.to = to;
        part.mix = mix;
        return part;
    }
    // Each chunk of the output comes from one part, or is zeros; `layers` times more are XORed.
    struct Plan {
        std::vector<Part> parts;
        std::vector<std::pair<std::uint64_t, std::uint64_t>> zeros;
        RecordBytes expected = RecordBytes(kOutputChunks * kBytesEach);
        std::set<std::pair<std::size_t, std::size_t>> blocks;
    };
    Plan random_plan(int layers) {
        Plan plan;
        for (int layer = 0; layer <= layers; ++layer) {
            for (std::uint64_t to = 0; to < kOutputChunks;) {
                Part part = random_part(to, kOutputChunks - to, layer != 0);
                to += part.count;
                if (layer == 0 && random_() % 5 == 0) {
                    plan.zeros.emplace_back(part.to, part.count);
                } else if (layer == 0 || random_() % 4 != 0) {
                    plan.parts.push_back(part);
                }
            }
        }
        for (const Part& part : plan.parts) {
            plan.blocks.insert({part.file, part.block});
            const RecordBytes& block = content_[part.file][part.block];
            for (std::uint64_t i = 0; i < part.count * kBytesEach; ++i) {
                const std::uint64_t from = part.first * kBytesEach + (part.repeat ? i % kBytesEach : i);
                plan.expected[part.to * kBytesEach + i] ^= block[from];
            }
        }
        // As a reader finds them: file by file.
        std::stable_sort(plan.parts.begin(), plan.parts.end(),
                         [](const Part& a, const Part& b) { return a.file < b.file; });
        return plan;
    }
    void fill(BlockPass& pass, const Plan& plan) const {
        for (const auto& [to, count] : plan.zeros)
            pass.add_zeros(to, count);
        for (std::size_t file = 0; file < files_.size(); ++file) {
            pass.add_file(files_[file]);
            for (const Part& part : plan.parts) {
                if (part.file == file)
                    pass.add_part(part.block, part.first, part.count, part.to, part.repeat, part.mix);
            }
        }
    }

    FreshFolder folder_;
    std::mt19937_64 random_{test_seed(71)};
    std::vector<std::shared_ptr<DifferenceFile>> files_;
    std::vector<std::vector<RecordBytes>> content_;
    std::size_t sparse_ = 0;
};

TEST_F(BlockPassTest, AsOneByOneWithAnyNumberOfThreads) {
    for (const int layers : {0, 1, 5}) {
        for (int round = 0; round < 6; ++round) {
            const Plan plan = random_plan(layers);
            for (const int threads : {0, 1, 2, 5}) {
                SCOPED_TRACE(std::to_string(layers) + " layers, " + std::to_string(threads) + " threads");
                std::unique_ptr<Team> team = threads == 0 ? nullptr : std::make_unique<Team>(threads);
                std::vector<ReadScratch> scratch(static_cast<std::size_t>(std::max(1, threads)));
                ReadCounts counts;
                RecordBytes got(kOutputChunks * kBytesEach, std::byte{0xEE});
                BlockPass pass(kBytesEach, got.data(), counts);
                fill(pass, plan);
                EXPECT_EQ(pass.parts(), plan.parts.size());
                EXPECT_EQ(pass.files(), files_.size());
                const auto read = pass.read(team.get(), scratch, kNoRoom);
                ASSERT_TRUE(read.ok()) << read.error().message;
                ASSERT_TRUE(got == plan.expected);
                EXPECT_EQ(counts.blocks, plan.blocks.size());
            }
        }
    }
}

TEST_F(BlockPassTest, NothingToRead) {
    Team team(2);
    std::vector<ReadScratch> scratch(2);
    ReadCounts counts;
    BlockPass pass(kBytesEach, nullptr, counts);
    EXPECT_TRUE(pass.read(&team, scratch, kNoRoom).ok());
    EXPECT_EQ(counts.blocks, 0U);
}

// The first error is told, and nobody waits for a block that is not read.
TEST_F(BlockPassTest, ADamagedBlockIsToldByAnyNumberOfThreads) {
    const Plan plan = random_plan(3);
    for (const std::size_t file : {std::size_t{0}, std::size_t{3}}) {
        const auto& blocks = files_[file]->difference().blocks;
        for (const PayloadBlock& block : blocks)
            testing::flip_bits(files_[file]->path(), block.offset + block.bytes / 2, std::byte{16});
        for (const int threads : {0, 3}) {
            std::unique_ptr<Team> team = threads == 0 ? nullptr : std::make_unique<Team>(threads);
            std::vector<ReadScratch> scratch(static_cast<std::size_t>(std::max(1, threads)));
            ReadCounts counts;
            RecordBytes got(kOutputChunks * kBytesEach);
            BlockPass pass(kBytesEach, got.data(), counts);
            fill(pass, plan);
            const auto read = pass.read(team.get(), scratch, kNoRoom);
            ASSERT_FALSE(read.ok());
            EXPECT_EQ(read.error().code, ErrorCode::damaged);
            EXPECT_NE(read.error().message.find("payload block"), std::string::npos) << read.error().message;
        }
        for (const PayloadBlock& block : blocks)
            testing::flip_bits(files_[file]->path(), block.offset + block.bytes / 2, std::byte{16});
    }
}

}  // namespace
}  // namespace twinrun
