#include "dedup/hash_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/seed.hpp"

namespace twinrun {
namespace {

ChunkHash hash_of(std::uint64_t number) {
    return {number * 0x9E3779B97F4A7C15U, number * 0xD6E8FEB86659FD93U + 77};
}

TEST(HashTable, IsEmptyAtFirst) {
    const HashTable table(0);
    EXPECT_EQ(table.entries(), 0U);
    EXPECT_EQ(table.bytes(), 0U);
    EXPECT_EQ(table.find({1, 2}), HashTable::kFull);
    EXPECT_EQ(table.find({0, 0}), HashTable::kFull);
}

TEST(HashTable, KeepsTheSmallestLocation) {
    Team team(1);
    HashTable table(0);
    ASSERT_TRUE(table.reserve(1, team));
    const auto slot = table.insert({5, 6}, 100);
    EXPECT_EQ(table.at(slot), 100U);
    EXPECT_EQ(table.insert({5, 6}, 200), slot);
    EXPECT_EQ(table.at(slot), 100U);
    EXPECT_EQ(table.insert({5, 6}, 3), slot);
    EXPECT_EQ(table.at(slot), 3U);
    EXPECT_EQ(table.find({5, 6}), slot);
    EXPECT_EQ(table.entries(), 1U);
    table.set(slot, 77);
    EXPECT_EQ(table.at(table.find({5, 6})), 77U);
    table.clear();
    EXPECT_EQ(table.find({5, 6}), HashTable::kFull);
    EXPECT_EQ(table.entries(), 0U);
    ASSERT_TRUE(table.reserve(1, team));
    EXPECT_EQ(table.find({5, 6}), HashTable::kFull);
}

TEST(HashTable, AgreesWithAMapWhileItGrows) {
    for (const int threads : {1, 3}) {
        Team team(threads);
        HashTable table(0);
        std::map<std::pair<std::uint64_t, std::uint64_t>, Location> model;
        std::mt19937_64 random(test_seed(5));
        for (int round = 0; round < 60; ++round) {
            const std::uint64_t more = random() % 900;
            ASSERT_TRUE(table.reserve(more, team));
            for (std::uint64_t i = 0; i < more; ++i) {
                // Halves that are 0 or equal, low bits that are all the same, and others.
                ChunkHash hash{random() % 40, random() % 40};
                if (random() % 2 == 0) hash = {random() << 20, random()};
                const Location at = random() % 100'000;
                table.insert(hash, at);
                auto [known, made] = model.emplace(
                    std::pair(std::max<std::uint64_t>(1, hash.low), std::max<std::uint64_t>(1, hash.high)),
                    at);
                if (!made) known->second = std::min(known->second, at);
            }
            ASSERT_EQ(table.entries(), model.size());
            ASSERT_LE(2 * table.entries(), table.bytes() / HashTable::kSlotBytes);
        }
        for (const auto& [hash, at] : model) {
            const auto slot = table.find({hash.first, hash.second});
            ASSERT_NE(slot, HashTable::kFull);
            ASSERT_EQ(table.at(slot), at);
        }
        EXPECT_EQ(table.find({41, 3}), HashTable::kFull);
        EXPECT_EQ(table.evicted(), 0U);
    }
}

TEST(HashTable, ThreadsThatInsertTheSameAgree) {
    constexpr std::uint64_t kHashes = 3000;
    Team team(4);
    for (int round = 0; round < 10; ++round) {
        HashTable table(0);
        ASSERT_TRUE(table.reserve(kHashes, team));
        std::vector<std::vector<std::uint64_t>> slots(4, std::vector<std::uint64_t>(kHashes));
        team.run([&](int worker) {
            const auto w = static_cast<std::uint64_t>(worker);
            for (std::uint64_t i = 0; i < kHashes; ++i) {
                const std::uint64_t number = worker % 2 == 0 ? i : kHashes - 1 - i;
                // The same first slot and the same half for many: whoever is second must go on.
                const ChunkHash hash{number % 50, number / 50};
                slots[w][number] = table.insert(hash, number * 4 + w);
                table.use(slots[w][number], 3);
            }
        });
        // 0 counts as 1 in either half.
        std::map<std::pair<std::uint64_t, std::uint64_t>, Location> smallest;
        for (std::uint64_t number = 0; number < kHashes; ++number) {
            const std::pair key(std::max<std::uint64_t>(1, number % 50),
                                std::max<std::uint64_t>(1, number / 50));
            smallest.emplace(key, number * 4);
            for (const auto& of_one : slots)
                ASSERT_EQ(of_one[number], slots[0][number]);
        }
        ASSERT_EQ(table.entries(), smallest.size());
        for (const auto& [key, at] : smallest)
            ASSERT_EQ(table.at(table.find({key.first, key.second})), at);
    }
}

TEST(HashTable, LimitIsKept) {
    Team team(2);
    for (const std::uint64_t limit : {std::uint64_t{1}, std::uint64_t{50'000}, std::uint64_t{200'000}}) {
        HashTable table(limit);
        EXPECT_FALSE(table.reserve(table.most_at_once() + 1, team));
        EXPECT_EQ(table.entries(), 0U);
        std::uint64_t made = 0;
        std::uint32_t ordinal = 0;
        for (int round = 0; round < 50; ++round, ++ordinal) {
            const std::uint64_t more = table.most_at_once() / 3;
            ASSERT_TRUE(table.reserve(more, team));
            for (std::uint64_t i = 0; i < more; ++i, ++made)
                table.use(table.insert(hash_of(made), made), ordinal);
            ASSERT_LE(table.bytes(), std::max(limit, HashTable::kSmallest * HashTable::kSlotBytes));
            ASSERT_LE(2 * table.entries(), table.bytes() / HashTable::kSlotBytes);
            ASSERT_EQ(table.entries() + table.evicted(), made);
            for (std::uint64_t i = made - more; i < made; ++i)  // the last are there
                ASSERT_EQ(table.at(table.find(hash_of(i))), i);
        }
        EXPECT_GT(table.evicted(), 0U);
        ASSERT_TRUE(table.reserve(table.most_at_once(), team));  // all of it
        EXPECT_EQ(table.entries(), 0U);
    }
}

TEST(HashTable, WhatIsUsedStays) {
    for (const int threads : {1, 3}) {
        Team team(threads);
        HashTable table(1);
        ASSERT_TRUE(table.reserve(40, team));
        for (std::uint64_t i = 0; i < 40; ++i)
            table.use(table.insert(hash_of(i), i), 0);
        for (std::uint32_t ordinal = 1; ordinal < 60; ++ordinal) {
            ASSERT_TRUE(table.reserve(60, team));
            for (std::uint64_t i = 0; i < 60; ++i)
                table.use(table.insert(hash_of(ordinal * 1000 + i), i), ordinal);
            for (std::uint64_t i = 0; i < 20; ++i) {
                const auto slot = table.find(hash_of(i));
                ASSERT_NE(slot, HashTable::kFull) << ordinal;
                ASSERT_EQ(table.at(slot), i);
                table.use(slot, ordinal);
            }
        }
        for (std::uint64_t i = 20; i < 40; ++i)  // these were not
            EXPECT_EQ(table.find(hash_of(i)), HashTable::kFull);
    }
}

}  // namespace
}  // namespace twinrun
