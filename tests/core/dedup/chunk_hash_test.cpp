#include "dedup/chunk_hash.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <set>

#include "support/record.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::RecordBytes;

ChunkHash by_definition(std::span<const std::byte> bytes, std::size_t chunk_bytes) {
    RecordBytes whole(bytes.begin(), bytes.end());
    whole.resize(chunk_bytes);
    const XXH128_hash_t hash = XXH3_128bits(whole.data(), whole.size());
    return {hash.low64, hash.high64};
}

TEST(ChunkHash, IsXxh3OfTheChunkFilledUpWithZeros) {
    std::mt19937_64 random(test_seed(1));
    for (std::size_t chunk = kSmallestRecordChunk; chunk <= kLargestRecordChunk; chunk *= 2) {
        for (const std::size_t shift : {0U, 1U, 7U}) {
            // 0, 1 or 3 whole chunks, and a short one.
            for (const std::size_t size : {std::size_t{0}, std::size_t{1}, chunk - 1, chunk, chunk + 1,
                                           3 * chunk, 3 * chunk + chunk / 2}) {
                const auto memory = std::make_unique<std::byte[]>(size + shift);  // ends where the bytes do
                const RecordBytes bytes = testing::random_bytes(random, size);
                if (size != 0) std::memcpy(memory.get() + shift, bytes.data(), size);
                std::vector<ChunkHash> hashes(divide_up(size, chunk));
                chunk_hashes({memory.get() + shift, size}, chunk, hashes.data());
                for (std::size_t i = 0; i < hashes.size(); ++i) {
                    const auto part = std::span(bytes).subspan(i * chunk, std::min(chunk, size - i * chunk));
                    ASSERT_EQ(hashes[i], by_definition(part, chunk)) << chunk << " " << size << " " << i;
                    if (part.size() == chunk) {
                        ASSERT_EQ(hashes[i], chunk_hash(part.data(), chunk));
                    } else {
                        ASSERT_EQ(hashes[i], short_chunk_hash(part.data(), part.size(), chunk));
                    }
                }
            }
        }
    }
}

TEST(ContentTerm, DependsOnThePlace) {
    const ChunkHash a{1, 2};
    const ChunkHash b{2, 1};
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 1000; ++i) {
        seen.insert(content_term(a, i));
        seen.insert(content_term(b, i));
    }
    EXPECT_EQ(seen.size(), 2000U);
    EXPECT_NE(content_term(a, 0) + content_term(b, 1), content_term(b, 0) + content_term(a, 1));
    // As spec/record.md has it.
    std::uint64_t x = 1 + 0x9E3779B97F4A7C15U * 4;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
    x = (x ^ (x >> 32)) + 2;
    EXPECT_EQ(content_term(a, 3), x);
}

}  // namespace
}  // namespace twinrun
