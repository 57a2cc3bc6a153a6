#include "record/sparse.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "record/planes.hpp"
#include "support/record.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::RecordBytes;

// Items of which about every `every`-th one, at a random place, is not zero.
RecordBytes sparse_items(std::mt19937_64& random, std::size_t items, unsigned width, std::uint64_t every) {
    RecordBytes bytes(items * width);
    for (std::size_t item = 0; item < items; ++item) {
        if (random() % every != 0) continue;
        for (unsigned b = 0; b < width; ++b)
            bytes[item * width + b] = static_cast<std::byte>(random());
    }
    return bytes;
}

void put(RecordBytes& bytes, std::size_t at, std::uint32_t number) {
    for (unsigned i = 0; i < 4; ++i)
        bytes[at + i] = static_cast<std::byte>(number >> (8 * i));
}

class Sparse : public ::testing::Test {
   protected:
    void SetUp() override {
        if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "a build without zstd";
    }
    Result<> unpack(std::span<const std::byte> packed, unsigned width, std::span<std::byte> to,
                    bool mix = false) {
        if (!mix) return unpack_sparse(compressor_, packed, width, scratch_, to);
        const SparsePiece all{0, to};
        return mix_sparse(compressor_, packed, width, scratch_, to.size(), {&all, 1});
    }
    Compressor compressor_;
    SparseScratch scratch_;
};

TEST_F(Sparse, ComesBackAsItWas) {
    std::mt19937_64 random(test_seed(239));
    for (const unsigned width : kPlaneWidths) {
        for (const std::size_t items : {0U, 1U, 16U, 63U, 64U, 65U, 255U, 256U, 511U, 4000U, 65536U}) {
            for (const std::uint64_t every : {3U, 33U, 400U, 1U << 30}) {
                SCOPED_TRACE(::testing::Message() << width << ' ' << items << ' ' << every);
                const RecordBytes from = sparse_items(random, items, width, every);
                RecordBytes packed(from.size() + 64);
                const std::size_t used = pack_sparse(compressor_, from, width, scratch_, packed);
                if (used == 0) {  // more than half, of the few
                    ASSERT_LT(items, 64U);
                    continue;
                }
                packed.resize(used);
                RecordBytes back(from.size(), std::byte{0xEE});
                ASSERT_TRUE(unpack(packed, width, back).ok());
                ASSERT_EQ(back, from);
                // XORed with what is there.
                RecordBytes mixed = testing::random_bytes(random, from.size());
                RecordBytes wanted = mixed;
                for (std::size_t i = 0; i < from.size(); ++i)
                    wanted[i] ^= from[i];
                ASSERT_TRUE(unpack(packed, width, mixed, true).ok());
                ASSERT_EQ(mixed, wanted);
                // A byte less does not do, neither to pack nor to unpack; nor does one more.
                RecordBytes less(used - 1);
                EXPECT_EQ(pack_sparse(compressor_, from, width, scratch_, less), 0U);
                EXPECT_FALSE(unpack(std::span(packed).first(used - 1), width, back).ok());
                packed.push_back({});
                EXPECT_FALSE(unpack(packed, width, back).ok());
            }
        }
    }
}

// Some stretches of a block, each to a place of its own: as if the whole was unpacked, then cut.
TEST_F(Sparse, PiecesAreThoseOfTheWhole) {
    std::mt19937_64 random(test_seed(263));
    for (int round = 0; round < 300; ++round) {
        const unsigned width = kPlaneWidths[random() % 3];
        const std::size_t items = 1 + random() % 5000;
        const RecordBytes from = sparse_items(random, items, width, 3 + random() % 600);
        RecordBytes packed(from.size() + 64);
        packed.resize(pack_sparse(compressor_, from, width, scratch_, packed));
        if (packed.empty()) continue;  // more than half, of the few
        // Empty ones, neighbours, the block's ends, all of it, none.
        std::vector<SparsePiece> pieces;
        RecordBytes to = testing::random_bytes(random, from.size());
        RecordBytes wanted = to;
        const std::size_t most = 1 + random() % items;
        for (std::size_t item = random() % 2 == 0 ? 0 : random() % items; item < items && round % 20 != 0;) {
            const std::size_t count = std::min<std::size_t>(random() % (most + 1), items - item);
            pieces.push_back({item * width, std::span(to).subspan(item * width, count * width)});
            for (std::size_t i = item * width; i < (item + count) * width; ++i)
                wanted[i] ^= from[i];
            item += count + (random() % 2 == 0 ? 0 : 1 + random() % most);
        }
        ASSERT_TRUE(mix_sparse(compressor_, packed, width, scratch_, from.size(), pieces).ok());
        ASSERT_EQ(to, wanted) << round;
    }
}

// 3% of bf16 elements, of 16 bits that are noise: 0.194 bits an element say where, 0.48 what. Nothing that has bytes in a
// row says it in as little.
TEST_F(Sparse, TakesLittleMoreThanItMust) {
    std::mt19937_64 random(test_seed(241));
    const RecordBytes from = sparse_items(random, 65536, 2, 33);
    RecordBytes to(from.size());
    const std::size_t used = pack_sparse(compressor_, from, 2, scratch_, to);
    ASSERT_NE(used, 0U);
    EXPECT_LT(used, from.size() * 46 / 1000);
    PlaneCoders coders{};
    std::vector<std::byte> planes;
    EXPECT_LT(used, pack_planes(compressor_, from, {2, false}, 1, coders, planes, to) * 3 / 4);
    EXPECT_LT(used, compressor_.pack(from, to, 1) * 3 / 4);
}

TEST_F(Sparse, IsNothingForItemsThatAreMostlyThere) {
    std::mt19937_64 random(test_seed(251));
    const RecordBytes from = testing::random_bytes(random, 4096);
    RecordBytes to(2 * from.size());
    for (const unsigned width : kPlaneWidths)
        EXPECT_EQ(pack_sparse(compressor_, from, width, scratch_, to), 0U);
}

TEST_F(Sparse, DamageIsAnError) {
    std::mt19937_64 random(test_seed(257));
    const RecordBytes from = sparse_items(random, 600, 4, 20);
    RecordBytes packed(from.size());
    packed.resize(pack_sparse(compressor_, from, 4, scratch_, packed));
    RecordBytes back(from.size());
    for (int round = 0; round < 4000; ++round) {
        RecordBytes bad = packed;
        for (std::uint64_t i = 0, n = 1 + random() % 3; i < n; ++i)
            bad[random() % (round % 2 == 0 ? 28 : bad.size())] = static_cast<std::byte>(random());
        const auto read = unpack(bad, 4, back, round % 3 == 0);
        if (!read.ok()) {
            ASSERT_EQ(read.error().code, ErrorCode::damaged);
        }
    }
    EXPECT_FALSE(unpack(packed, 4, std::span(back).first(from.size() - 2)).ok());
    EXPECT_FALSE(unpack(packed, 2, back).ok());
    EXPECT_FALSE(unpack({}, 4, back).ok());
}

// By hand, nothing packed: what the gaps and counts say is checked before memory is taken or touched.
TEST_F(Sparse, CountsAndGapsFitTheBlock) {
    constexpr std::uint32_t kKept = std::uint32_t{1} << 31;
    const auto block = [&](std::uint32_t items, std::vector<std::uint8_t> gaps, std::uint32_t values) {
        RecordBytes bytes(20);
        put(bytes, 0, items);
        put(bytes, 4, static_cast<std::uint32_t>(gaps.size()));
        put(bytes, 8, static_cast<std::uint32_t>(gaps.size()) | kKept);
        put(bytes, 12, values | kKept);
        put(bytes, 16, values | kKept);
        for (const std::uint8_t gap : gaps)
            bytes.push_back(std::byte{gap});
        bytes.resize(bytes.size() + std::size_t{2} * values, std::byte{7});
        return bytes;
    };
    RecordBytes back(2 * 300);
    EXPECT_TRUE(unpack(block(2, {0, 255, 43}, 2), 2, back).ok());  // items 0 and 299
    EXPECT_EQ(back[0], std::byte{7});
    EXPECT_EQ(back[2], std::byte{0});
    EXPECT_EQ(back[599], std::byte{7});
    EXPECT_TRUE(unpack(block(0, {}, 0), 2, back).ok());
    EXPECT_TRUE(unpack(block(0, {255}, 0), 2, back).ok());          // zeros that end within the block
    EXPECT_FALSE(unpack(block(2, {0, 255, 44}, 2), 2, back).ok());  // item 300
    EXPECT_FALSE(unpack(block(0, {255, 255}, 0), 2, back).ok());    // more zeros than items
    EXPECT_FALSE(unpack(block(3, {0, 1}, 3), 2, back).ok());        // an item without a gap
    EXPECT_FALSE(unpack(block(1, {0, 1}, 1), 2, back).ok());        // a gap without an item
    EXPECT_FALSE(unpack(block(2, {0, 1}, 1), 2, back).ok());        // an item without a value
    RecordBytes huge = block(2, {0, 1}, 2);
    put(huge, 0, 0xFFFFFFFFU);
    EXPECT_FALSE(unpack(huge, 2, back).ok());
    huge = block(2, {0, 1}, 2);
    put(huge, 4, 0xFFFFFFFFU);
    EXPECT_FALSE(unpack(huge, 2, back).ok());
    EXPECT_LE(scratch_.gaps.capacity() + scratch_.values.capacity(), 4096U);
}

}  // namespace
}  // namespace twinrun
