#include "aggregate/plan/stored.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::uint8_t byte_at(std::uint64_t offset) { return static_cast<std::uint8_t>((offset * 2654435761U) >> 13); }

// One rank's declaration and memory.
struct Rank {
    std::vector<DeclaredVariable> variables;
    std::vector<RankSet> sets;
    std::vector<Bytes> memory;
    std::vector<void*> data;

    void prepare() {
        auto made = rank_sets(variables);
        ASSERT_TRUE(made) << made.error().message;
        sets = std::move(*made);
        for (const DeclaredVariable& v : variables) {
            const std::uint64_t stride = v.memory_stride == 0 ? v.item_bytes : v.memory_stride;
            memory.emplace_back(v.items * stride + 1, std::uint8_t{0xEE});
        }
        for (Bytes& bytes : memory)
            data.push_back(bytes.data());
    }
    // Calls body(place in the file, the byte in memory) for each declared byte.
    template <class Body>
    void each(Body&& body) {
        for (std::size_t k = 0; k < variables.size(); ++k) {
            const DeclaredVariable& v = variables[k];
            const std::uint64_t stride = v.memory_stride == 0 ? v.item_bytes : v.memory_stride;
            const std::uint64_t file = v.file_stride == 0 ? v.item_bytes : v.file_stride;
            for (std::uint64_t i = 0; i < v.items; ++i) {
                for (std::uint64_t b = 0; b < v.item_bytes; ++b)
                    body(v.file_offset + i * file + b, memory[k][i * stride + b]);
            }
        }
    }
};

// A file of records, cut among ranks by rows, by columns or by turns; some bytes are nobody's.
std::vector<Rank> cut(std::mt19937_64& random, std::uint64_t bytes) {
    const auto pick = [&](std::uint64_t low, std::uint64_t high) {
        return low + random() % (high - low + 1);
    };
    std::vector<Rank> ranks(pick(1, 5));
    std::uint64_t at = pick(0, 20);
    while (at < bytes) {
        Rank& rank = ranks[pick(0, ranks.size() - 1)];
        const std::uint64_t memory = pick(0, 1) * 50;
        switch (pick(0, 3)) {
            case 0: {  // a stretch
                const std::uint64_t length = std::min(pick(1, 300), bytes - at);
                rank.variables.push_back({1, length, at, 0, 0});
                at += length;
                break;
            }
            case 1: {  // columns of records, of several ranks
                const std::uint64_t columns = pick(1, 4);
                const std::uint64_t width = pick(1, 12);
                const std::uint64_t stride = columns * width + pick(0, 9);
                const std::uint64_t items = pick(1, 30);
                if (at + items * stride > bytes) break;
                for (std::uint64_t c = 0; c < columns; ++c) {
                    if (pick(0, 5) == 0) continue;
                    ranks[pick(0, ranks.size() - 1)].variables.push_back(
                        {width, items, at + c * width, stride, memory});
                }
                at += items * stride;
                break;
            }
            case 2: {  // fields of one rank's records
                const std::uint64_t items = pick(1, 40);
                const std::uint64_t fields = pick(1, 4);
                if (at + items * fields * 4 > bytes) break;
                for (std::uint64_t f = 0; f < fields; ++f)
                    rank.variables.push_back({4, items, at + 4 * f, 4 * fields, memory});
                at += items * fields * 4;
                break;
            }
            default: at += pick(0, 40);
        }
        if (bytes - std::min(at, bytes) < 40) break;
    }
    for (Rank& rank : ranks)
        rank.prepare();
    return ranks;
}

TEST(Stored, AnyCuttingReadsWhatAnyOtherWrote) {
    std::mt19937_64 random(test_seed(22));
    std::set<std::string> seen;
    for (int round = 0; round < 400; ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        const std::uint64_t bytes = 200 + random() % 4000;
        std::vector<Rank> writers = cut(random, bytes);
        std::vector<StoredSet> stored;
        Bytes stream;
        std::map<std::uint64_t, std::uint8_t> whole;
        for (Rank& writer : writers) {
            writer.each([&](std::uint64_t place, std::uint8_t& byte) {
                byte = byte_at(place);
                whole[place] = byte;
            });
            // As it lies in a sub-file: set behind set.
            std::uint64_t at = stream.size();
            const auto packed = packed_sets(writer.sets, at);
            for (const StridedSet& set : shape_of(writer.sets)) {
                stored.push_back({set, at});
                at += set.bytes();
            }
            stream.resize(at);
            for (const RankSet& set : packed) {
                const auto* from = const_cast<const void* const*>(writer.data.data());
                gather_range(set, from, {set.where.begin(), set.where.end()},
                             reinterpret_cast<std::byte*>(stream.data()) + set.where.begin());
            }
        }
        std::sort(stored.begin(), stored.end(),
                  [](const StoredSet& a, const StoredSet& b) { return a.where.offset < b.where.offset; });
        for (Rank& reader : cut(random, bytes)) {
            auto found = find_stored(reader.sets, stored);
            ASSERT_TRUE(found) << found.error().message;
            for (std::size_t i = 0; i < found->sets.size(); ++i) {
                const StridedSet& where = found->sets[i].where;
                ASSERT_LE(where.width, where.stride);
                ASSERT_LE(where.end(), stream.size());
                if (i > 0) {
                    ASSERT_LE(found->sets[i - 1].where.offset, where.offset);
                }
                if (where.count > 1) seen.insert(where.dense() ? "dense" : "strided");
                scatter_range(found->sets[i], reader.data.data(), {where.begin(), where.end()},
                              reinterpret_cast<const std::byte*>(stream.data()) + where.begin());
            }
            std::set<std::size_t> holes;
            reader.each([&](std::uint64_t place, const std::uint8_t& byte) {
                const auto at = whole.find(place);
                ASSERT_EQ(byte, at == whole.end() ? 0xEE : at->second) << "at " << place;
                if (at != whole.end()) return;
                for (std::size_t s = 0; s < reader.sets.size(); ++s) {
                    if (bytes_in(reader.sets[s].where, {place, place + 1}) != 0) holes.insert(s);
                }
            });
            EXPECT_EQ(std::vector<std::size_t>(holes.begin(), holes.end()), found->with_holes);
            if (!holes.empty()) seen.insert("holes");
            // Nothing else of memory was touched.
            for (std::size_t k = 0; k < reader.variables.size(); ++k)
                EXPECT_EQ(reader.memory[k].back(), 0xEE);
        }
    }
    EXPECT_EQ(seen, (std::set<std::string>{"dense", "holes", "strided"}));
}

TEST(Stored, WhatOneStrideHasInCommonIsAtMostTwoSets) {
    // A million items each: never item by item.
    const StridedSet a{0, 24, 1000000, 40};
    const StridedSet b{17, 30, 1000000, 40};
    std::vector<Common> common;
    ASSERT_TRUE(add_common(a, b, common));
    ASSERT_EQ(common.size(), 2U);
    EXPECT_EQ(common[0].where.width + common[1].where.width, 7U + 7U);
}

TEST(Stored, MorePiecesThanTheLimitAreAnError) {
    const StridedSet a{0, 1, 900, 3};
    const StridedSet b{0, 1, 900, 2};
    std::vector<Common> common;
    ASSERT_TRUE(add_common(a, b, common, 300));
    EXPECT_EQ(common.size(), 300U);  // one in six bytes
    common.clear();
    const auto added = add_common(a, b, common, 299);
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code, ErrorCode::unsupported);
    EXPECT_NE(added.error().message.find("299 pieces"), std::string::npos);
}

}  // namespace
}  // namespace twinrun
